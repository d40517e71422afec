/*
 * Expressions, evaluated: from the root down. Every node has a value or a message that names its column.
 */
#include "sim/base/expression.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/expression-node.h"

typedef struct Evaluation {
    const Expression *expression;
    ExpressionLookup lookup;
    void *data;
    GError **error;
} Evaluation;

static const char *const kind_names[] = {"null (it has no value)", "a truth value", "a number", "a text"};

static gboolean evaluate(const Evaluation *run, guint idx, ExpressionValue *ret_value);

static gboolean mistake(const Evaluation *run, guint idx, const char *format, ...) G_GNUC_PRINTF(3, 4);
static gboolean mistake(const Evaluation *run, guint idx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(run->error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "column %u: %s",
                g_array_index(run->expression->nodes, Node, idx).column, what);
    return FALSE;
}

static guint operand(const Evaluation *run, const Node *node, guint i)
{
    return g_array_index(run->expression->children, guint, node->first + i);
}

static gboolean evaluate_as(const Evaluation *run, guint idx, ExpressionKind kind, double *ret_number)
{
    ExpressionValue value;
    if (!evaluate(run, idx, &value)) {
        return FALSE;
    }
    if (value.kind != kind) {
        return mistake(run, idx, "%s where %s belongs", kind_names[value.kind], kind_names[kind]);
    }
    *ret_number = value.number;
    return TRUE;
}

static gboolean values_equal(const ExpressionValue *a, const ExpressionValue *b)
{
    if (a->kind != b->kind) {
        return FALSE;
    }
    return a->kind == EXPRESSION_TEXT ? strcmp(a->text, b->text) == 0
                                      : a->kind == EXPRESSION_NULL || !(a->number < b->number || a->number > b->number);
}

/* == and != take any two values, but a text never equals a number: that is a slip, unless one side is null. */
static gboolean evaluate_equality(const Evaluation *run, guint idx, const Node *node, ExpressionValue *ret_value)
{
    ExpressionValue a, b;
    if (!evaluate(run, operand(run, node, 0), &a) || !evaluate(run, operand(run, node, 1), &b)) {
        return FALSE;
    }
    if (a.kind != b.kind && a.kind != EXPRESSION_NULL && b.kind != EXPRESSION_NULL) {
        return mistake(run, idx, "%s is compared with %s", kind_names[a.kind], kind_names[b.kind]);
    }
    gboolean equal = values_equal(&a, &b);
    *ret_value = (ExpressionValue){EXPRESSION_BOOL, equal == (node->op == OPERATOR_EQUAL) ? 1 : 0, NULL};
    return TRUE;
}

static gboolean evaluate_in(const Evaluation *run, const Node *node, ExpressionValue *ret_value)
{
    ExpressionValue wanted, item;
    *ret_value = (ExpressionValue){EXPRESSION_BOOL, 0, NULL};
    if (!evaluate(run, operand(run, node, 0), &wanted)) {
        return FALSE;
    }
    for (guint i = 1; i < node->n; i++) {
        if (!evaluate(run, operand(run, node, i), &item)) {
            return FALSE;
        }
        if (values_equal(&wanted, &item)) {
            ret_value->number = 1;
        }
    }
    return TRUE;
}

static gboolean evaluate_junction(const Evaluation *run, const Node *node, ExpressionValue *ret_value)
{
    double number = 0;
    double decides = node->op == OPERATOR_OR ? 1 : 0;
    if (!evaluate_as(run, operand(run, node, 0), EXPRESSION_BOOL, &number)) {
        return FALSE;
    }
    gboolean decided = !(number < decides || number > decides);
    if (!decided && !evaluate_as(run, operand(run, node, 1), EXPRESSION_BOOL, &number)) {
        return FALSE;
    }
    *ret_value = (ExpressionValue){EXPRESSION_BOOL, number, NULL};
    return TRUE;
}

static gboolean finite_value(const Evaluation *run, guint idx, double number, ExpressionValue *ret_value)
{
    *ret_value = (ExpressionValue){EXPRESSION_NUMBER, number, NULL};
    return isfinite(number) || mistake(run, idx, "the result is no finite number");
}

static gboolean compute(const Evaluation *run, guint idx, Operator op, const double *x, ExpressionValue *ret_value)
{
    gboolean divides = op == OPERATOR_DIVIDE || op == OPERATOR_DIVIDE_DOWN || op == OPERATOR_REST;
    if (divides && !(x[1] < 0 || x[1] > 0)) {
        return mistake(run, idx, "division by zero");
    }
    gboolean truth = FALSE;
    switch (op) {
    case OPERATOR_MULTIPLY:
        return finite_value(run, idx, x[0] * x[1], ret_value);
    case OPERATOR_DIVIDE:
        return finite_value(run, idx, x[0] / x[1], ret_value);
    case OPERATOR_DIVIDE_DOWN:
        return finite_value(run, idx, floor(x[0] / x[1]), ret_value);
    case OPERATOR_REST:
        return finite_value(run, idx, x[0] - x[1] * floor(x[0] / x[1]), ret_value);
    case OPERATOR_ADD:
        return finite_value(run, idx, x[0] + x[1], ret_value);
    case OPERATOR_SUBTRACT:
        return finite_value(run, idx, x[0] - x[1], ret_value);
    case OPERATOR_LESS:
        truth = x[0] < x[1];
        break;
    case OPERATOR_LESS_EQUAL:
        truth = x[0] <= x[1];
        break;
    case OPERATOR_MORE:
        truth = x[0] > x[1];
        break;
    case OPERATOR_MORE_EQUAL:
        truth = x[0] >= x[1];
        break;
    case OPERATOR_NONE:
    case OPERATOR_NEGATE:
    case OPERATOR_NOT:
    case OPERATOR_EQUAL:
    case OPERATOR_UNEQUAL:
    case OPERATOR_AND:
    case OPERATOR_OR:
        g_assert_not_reached();
    }
    *ret_value = (ExpressionValue){EXPRESSION_BOOL, truth, NULL};
    return TRUE;
}

static gboolean evaluate_call(const Evaluation *run, guint idx, const Node *node, ExpressionValue *ret_value)
{
    double result = 0;
    for (guint i = 0; i < node->n; i++) {
        double x = 0;
        if (!evaluate_as(run, operand(run, node, i), EXPRESSION_NUMBER, &x)) {
            return FALSE;
        }
        switch (node->function) {
        case FUNCTION_MIN:
            result = i == 0 ? x : MIN(result, x);
            break;
        case FUNCTION_MAX:
            result = i == 0 ? x : MAX(result, x);
            break;
        case FUNCTION_ABS:
            result = fabs(x);
            break;
        case FUNCTION_FLOOR:
            result = floor(x);
            break;
        case FUNCTION_CEIL:
            result = ceil(x);
            break;
        case FUNCTION_LOG2:
            result = log2(x);
            break;
        }
    }
    return finite_value(run, idx, result, ret_value);
}

static gboolean evaluate_unary(const Evaluation *run, const Node *node, ExpressionValue *ret_value)
{
    gboolean is_not = node->op == OPERATOR_NOT;
    double x = 0;
    if (!evaluate_as(run, operand(run, node, 0), is_not ? EXPRESSION_BOOL : EXPRESSION_NUMBER, &x)) {
        return FALSE;
    }
    *ret_value = (ExpressionValue){is_not ? EXPRESSION_BOOL : EXPRESSION_NUMBER, is_not ? 1 - x : -x, NULL};
    return TRUE;
}

static gboolean evaluate_binary(const Evaluation *run, guint idx, const Node *node, ExpressionValue *ret_value)
{
    if (node->op == OPERATOR_EQUAL || node->op == OPERATOR_UNEQUAL) {
        return evaluate_equality(run, idx, node, ret_value);
    }
    if (node->op == OPERATOR_AND || node->op == OPERATOR_OR) {
        return evaluate_junction(run, node, ret_value);
    }
    double x[2] = {0, 0};
    return evaluate_as(run, operand(run, node, 0), EXPRESSION_NUMBER, &x[0]) &&
           evaluate_as(run, operand(run, node, 1), EXPRESSION_NUMBER, &x[1]) && compute(run, idx, node->op, x, ret_value);
}

static gboolean evaluate(const Evaluation *run, guint idx, ExpressionValue *ret_value)
{
    const Node *node = &g_array_index(run->expression->nodes, Node, idx);
    switch (node->kind) {
    case NODE_VALUE:
        *ret_value = node->value;
        return TRUE;
    case NODE_NAME:
        return run->lookup(node->name_idx, expression_name(run->expression, node->name_idx), run->data, ret_value,
                           run->error);
    case NODE_UNARY:
        return evaluate_unary(run, node, ret_value);
    case NODE_BINARY:
        return evaluate_binary(run, idx, node, ret_value);
    case NODE_CALL:
        return evaluate_call(run, idx, node, ret_value);
    case NODE_IN:
        return evaluate_in(run, node, ret_value);
    }
    g_assert_not_reached();
}

gboolean expression_evaluate(const Expression *expression, ExpressionLookup lookup, void *data,
                             ExpressionValue *ret_value, GError **error)
{
    Evaluation run = {expression, lookup, data, error};
    return evaluate(&run, expression->root, ret_value);
}

gboolean expression_is_true(const Expression *expression, ExpressionLookup lookup, void *data, gboolean *ret_true,
                            GError **error)
{
    Evaluation run = {expression, lookup, data, error};
    double number = 0;
    if (!evaluate_as(&run, expression->root, EXPRESSION_BOOL, &number)) {
        return FALSE;
    }
    *ret_true = number > 0;
    return TRUE;
}
