/*
 * Expressions, parsed: recursive descent, one function for each level of precedence.
 */
#include "sim/base/expression.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/expression-node.h"

enum {
    DEPTH_MAX = 100,   /* of nesting, and */
    LENGTH_MAX = 8192, /* of the text: they bound the stack */
};

static const char *const function_names[] = {"min", "max", "abs", "floor", "ceil", "log2"};

typedef struct Parser {
    Expression *out;
    const char *at;
    guint depth;
    GError **error;
    gboolean failed;
} Parser;

void expression_free(Expression *expression)
{
    if (expression == NULL) {
        return;
    }
    g_array_unref(expression->nodes);
    g_array_unref(expression->children);
    g_ptr_array_unref(expression->names);
    g_ptr_array_unref(expression->texts);
    g_free(expression->text);
    g_free(expression);
}

const char *expression_text(const Expression *expression)
{
    return expression->text;
}

guint expression_n_names(const Expression *expression)
{
    return expression->names->len;
}

const char *expression_name(const Expression *expression, guint name_idx)
{
    return g_ptr_array_index(expression->names, name_idx);
}

/* ---- words ---- */

static guint column_of(const Parser *parser, const char *at)
{
    return (guint)g_utf8_strlen(parser->out->text, at - parser->out->text) + 1;
}

static guint fail(Parser *parser, const char *at, const char *format, ...) G_GNUC_PRINTF(3, 4);
static guint fail(Parser *parser, const char *at, const char *format, ...)
{
    if (!parser->failed) {
        va_list args;
        va_start(args, format);
        g_autofree char *what = g_strdup_vprintf(format, args);
        va_end(args);
        g_set_error(parser->error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "column %u: %s", column_of(parser, at), what);
        parser->failed = TRUE;
    }
    return 0;
}

static void skip_blanks(Parser *parser)
{
    while (g_ascii_isspace(*parser->at)) {
        parser->at++;
    }
}

static gboolean is_word(char c)
{
    return g_ascii_isalnum(c) || c == '_';
}

/* Takes the sign if it stands next. */
static gboolean take(Parser *parser, const char *sign)
{
    skip_blanks(parser);
    size_t length = strlen(sign);
    if (strncmp(parser->at, sign, length) != 0 || (is_word(sign[0]) && is_word(parser->at[length]))) {
        return FALSE;
    }
    parser->at += length;
    return TRUE;
}

static const char *what_stands(const Parser *parser, char *buffer, size_t size)
{
    if (*parser->at == '\0') {
        return "the end";
    }
    const char *end = parser->at;
    do {
        end += g_utf8_skip[(guchar)*end];
    } while (is_word(*parser->at) && is_word(*end));
    g_snprintf(buffer, size, "'%.*s'", (int)(end - parser->at), parser->at);
    return buffer;
}

/* ---- nodes ---- */

static guint add_node(Parser *parser, Node node, const guint *operands, guint n)
{
    node.first = parser->out->children->len;
    node.n = n;
    g_array_append_vals(parser->out->children, operands, n);
    g_array_append_val(parser->out->nodes, node);
    return parser->out->nodes->len - 1;
}

static guint parse_or(Parser *parser);

static guint parse_text(Parser *parser)
{
    const char *start = parser->at, *end = strchr(start + 1, *start);
    if (end == NULL) {
        return fail(parser, start, "a text that begins here never ends");
    }
    char *text = g_strndup(start + 1, (gsize)(end - start - 1));
    g_ptr_array_add(parser->out->texts, text);
    parser->at = end + 1;
    Node node = {.kind = NODE_VALUE, .value = {EXPRESSION_TEXT, 0, text}, .column = column_of(parser, start)};
    return add_node(parser, node, NULL, 0);
}

static guint parse_number(Parser *parser)
{
    const char *start = parser->at;
    char *end;
    double number = g_ascii_strtod(start, &end);
    gboolean is_hex = start[0] == '0' && (start[1] == 'x' || start[1] == 'X');
    if (end == start || !isfinite(number) || is_hex || is_word(*end) || *end == '.') {
        return fail(parser, start, "not a number");
    }
    parser->at = end;
    Node node = {.kind = NODE_VALUE, .value = {EXPRESSION_NUMBER, number, NULL}, .column = column_of(parser, start)};
    return add_node(parser, node, NULL, 0);
}

/* Values between commas up to ')', into the list. */
static void parse_list(Parser *parser, GArray *list)
{
    do {
        guint item = parse_or(parser);
        g_array_append_val(list, item);
    } while (!parser->failed && take(parser, ","));
    char buffer[64];
    if (!parser->failed && !take(parser, ")")) {
        fail(parser, parser->at, "expected ',' or ')', not %s", what_stands(parser, buffer, sizeof buffer));
    }
}

static guint parse_call(Parser *parser, const char *word, const char *start)
{
    int function = -1;
    for (guint i = 0; i < G_N_ELEMENTS(function_names); i++) {
        function = strcmp(word, function_names[i]) == 0 ? (int)i : function;
    }
    if (function < 0) {
        return fail(parser, start, "'%s' is no function; there are min, max, abs, floor, ceil and log2", word);
    }
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(guint));
    parse_list(parser, list);
    if (!parser->failed && function > FUNCTION_MAX && list->len != 1) {
        return fail(parser, start, "%s takes one value", word);
    }
    Node node = {.kind = NODE_CALL, .function = (Function)function, .column = column_of(parser, start)};
    return add_node(parser, node, (const guint *)(const void *)list->data, list->len);
}

static guint add_name(Parser *parser, const char *word, const char *start)
{
    guint idx = 0;
    while (idx < parser->out->names->len && strcmp(g_ptr_array_index(parser->out->names, idx), word) != 0) {
        idx++;
    }
    if (idx == parser->out->names->len) {
        g_ptr_array_add(parser->out->names, g_strdup(word));
    }
    Node node = {.kind = NODE_NAME, .name_idx = idx, .column = column_of(parser, start)};
    return add_node(parser, node, NULL, 0);
}

static guint parse_word(Parser *parser)
{
    static const struct {
        const char *word;
        ExpressionValue value;
    } constants[] = {
        {"true", {EXPRESSION_BOOL, 1, NULL}}, {"false", {EXPRESSION_BOOL, 0, NULL}}, {"null", {EXPRESSION_NULL, 0, NULL}}};
    const char *start = parser->at;
    while (is_word(*parser->at) || (*parser->at == '.' && is_word(parser->at[1]))) {
        parser->at++;
    }
    g_autofree char *word = g_strndup(start, (gsize)(parser->at - start));
    for (size_t i = 0; i < G_N_ELEMENTS(constants); i++) {
        if (strcmp(word, constants[i].word) == 0) {
            Node node = {.kind = NODE_VALUE, .value = constants[i].value, .column = column_of(parser, start)};
            return add_node(parser, node, NULL, 0);
        }
    }
    return take(parser, "(") ? parse_call(parser, word, start) : add_name(parser, word, start);
}

static guint parse_primary(Parser *parser)
{
    char buffer[64];
    skip_blanks(parser);
    if (take(parser, "(")) {
        guint inner = parse_or(parser);
        if (!parser->failed && !take(parser, ")")) {
            return fail(parser, parser->at, "expected ')', not %s", what_stands(parser, buffer, sizeof buffer));
        }
        return inner;
    }
    if (*parser->at == '"' || *parser->at == '\'') {
        return parse_text(parser);
    }
    if (g_ascii_isdigit(*parser->at) || (*parser->at == '.' && g_ascii_isdigit(parser->at[1]))) {
        return parse_number(parser);
    }
    if (is_word(*parser->at)) {
        return parse_word(parser);
    }
    return fail(parser, parser->at, "expected a value, not %s", what_stands(parser, buffer, sizeof buffer));
}

/* ---- operators ---- */

static guint parse_unary(Parser *parser)
{
    skip_blanks(parser);
    const char *start = parser->at;
    if (++parser->depth > DEPTH_MAX) {
        return fail(parser, start, "nested too deeply");
    }
    guint result;
    if (take(parser, "-")) {
        guint operand = parse_unary(parser);
        Node node = {.kind = NODE_UNARY, .op = OPERATOR_NEGATE, .column = column_of(parser, start)};
        result = add_node(parser, node, &operand, 1);
    } else {
        result = parse_primary(parser);
    }
    parser->depth--;
    return result;
}

typedef struct Sign {
    const char *sign;
    Operator op;
} Sign;

/* left OP right OP right …, from the left; the signs of one level, longer ones first. */
static guint parse_level(Parser *parser, guint (*parse_operand)(Parser *), const Sign *signs)
{
    guint left = parse_operand(parser);
    while (!parser->failed) {
        skip_blanks(parser);
        const char *start = parser->at;
        const Sign *sign = signs;
        while (sign->sign != NULL && !take(parser, sign->sign)) {
            sign++;
        }
        if (sign->sign == NULL) {
            break;
        }
        guint operands[] = {left, parse_operand(parser)};
        Node node = {.kind = NODE_BINARY, .op = sign->op, .column = column_of(parser, start)};
        left = add_node(parser, node, operands, 2);
    }
    return left;
}

static guint parse_product(Parser *parser)
{
    static const Sign signs[] = {{"*", OPERATOR_MULTIPLY}, {"//", OPERATOR_DIVIDE_DOWN}, {"/", OPERATOR_DIVIDE},
                                 {"%", OPERATOR_REST},     {NULL, OPERATOR_NONE}};
    return parse_level(parser, parse_unary, signs);
}

static guint parse_sum(Parser *parser)
{
    static const Sign signs[] = {{"+", OPERATOR_ADD}, {"-", OPERATOR_SUBTRACT}, {NULL, OPERATOR_NONE}};
    return parse_level(parser, parse_product, signs);
}

static guint parse_in(Parser *parser, guint left, const char *start)
{
    char buffer[64];
    if (!take(parser, "(")) {
        return fail(parser, parser->at, "expected '(' behind in, not %s", what_stands(parser, buffer, sizeof buffer));
    }
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(guint));
    g_array_append_val(list, left);
    parse_list(parser, list);
    Node node = {.kind = NODE_IN, .column = column_of(parser, start)};
    return add_node(parser, node, (const guint *)(const void *)list->data, list->len);
}

static guint parse_comparison(Parser *parser)
{
    static const Sign signs[] = {{"==", OPERATOR_EQUAL}, {"!=", OPERATOR_UNEQUAL}, {"<=", OPERATOR_LESS_EQUAL},
                                 {"<", OPERATOR_LESS},   {">=", OPERATOR_MORE_EQUAL}, {">", OPERATOR_MORE},
                                 {NULL, OPERATOR_NONE}};
    guint left = parse_sum(parser);
    skip_blanks(parser);
    const char *start = parser->at;
    if (parser->failed) {
        return 0;
    }
    if (take(parser, "in")) {
        return parse_in(parser, left, start);
    }
    if (*start == '=' && start[1] != '=') {
        return fail(parser, start, "'=' compares nothing; use ==");
    }
    const Sign *sign = signs;
    while (sign->sign != NULL && !take(parser, sign->sign)) {
        sign++;
    }
    if (sign->sign == NULL) {
        return left;
    }
    guint operands[] = {left, parse_sum(parser)};
    Node node = {.kind = NODE_BINARY, .op = sign->op, .column = column_of(parser, start)};
    guint result = add_node(parser, node, operands, 2);
    skip_blanks(parser);
    for (sign = signs; !parser->failed && sign->sign != NULL; sign++) {
        if (g_str_has_prefix(parser->at, sign->sign)) {
            return fail(parser, parser->at, "comparisons do not chain; join two of them with and");
        }
    }
    return result;
}

static guint parse_not(Parser *parser)
{
    skip_blanks(parser);
    const char *start = parser->at;
    if (!take(parser, "not")) {
        return parse_comparison(parser);
    }
    if (++parser->depth > DEPTH_MAX) {
        return fail(parser, start, "nested too deeply");
    }
    guint operand = parse_not(parser);
    parser->depth--;
    Node node = {.kind = NODE_UNARY, .op = OPERATOR_NOT, .column = column_of(parser, start)};
    return add_node(parser, node, &operand, 1);
}

static guint parse_and(Parser *parser)
{
    static const Sign signs[] = {{"and", OPERATOR_AND}, {"&&", OPERATOR_AND}, {NULL, OPERATOR_NONE}};
    return parse_level(parser, parse_not, signs);
}

static guint parse_or(Parser *parser)
{
    static const Sign signs[] = {{"or", OPERATOR_OR}, {"||", OPERATOR_OR}, {NULL, OPERATOR_NONE}};
    return parser->failed ? 0 : parse_level(parser, parse_and, signs);
}

Expression *expression_parse(const char *text, GError **error)
{
    g_autoptr(Expression) expression = g_new0(Expression, 1);
    expression->text = g_strdup(text);
    expression->nodes = g_array_new(FALSE, FALSE, sizeof(Node));
    expression->children = g_array_new(FALSE, FALSE, sizeof(guint));
    expression->names = g_ptr_array_new_with_free_func(g_free);
    expression->texts = g_ptr_array_new_with_free_func(g_free);
    Parser parser = {.out = expression, .at = expression->text, .error = error};
    if (strlen(text) > LENGTH_MAX) {
        fail(&parser, parser.at, "longer than %d bytes", LENGTH_MAX);
        return NULL;
    }
    expression->root = parse_or(&parser);
    skip_blanks(&parser);
    char buffer[64];
    if (!parser.failed && *parser.at != '\0') {
        fail(&parser, parser.at, "expected an operator or the end, not %s",
             what_stands(&parser, buffer, sizeof buffer));
    }
    return parser.failed ? NULL : g_steal_pointer(&expression);
}
