/*
 * Expressions: conditions and small computations in input files, "parallel.ep * 2 <= ranks".
 *
 * Values are numbers, texts, truth values and null (a name that has no value). By falling precedence:
 *     ( )   name   1   2.5e3   "text"   'text'   true   false   null   f(a, b)
 *     - x
 *     * / // %           // divides and rounds down, % is the rest of that
 *     + -
 *     == != < <= > >=    and: x in (a, b, c)
 *     not x
 *     and
 *     or
 * Functions: min, max (of one or more), abs, floor, ceil, log2. `and` and `or` do not look at what decides nothing.
 * Names are words joined by dots. Null equals null and nothing else; any other use of it is an error, as are a
 * division by zero and texts where numbers belong: an expression has a value or a message, never a NaN.
 *
 * A parsed expression does not change and may be evaluated by many threads at once.
 */
#pragma once

#include <glib.h>

typedef struct Expression Expression;

typedef enum ExpressionKind { EXPRESSION_NULL, EXPRESSION_BOOL, EXPRESSION_NUMBER, EXPRESSION_TEXT } ExpressionKind;

typedef struct ExpressionValue {
    ExpressionKind kind;
    double number;    /* of a truth value: 0 or 1 */
    const char *text; /* borrowed */
} ExpressionValue;

/* The value of the name with that index; FALSE and an error when there is no such name. */
typedef gboolean (*ExpressionLookup)(guint name_idx, const char *name, void *data, ExpressionValue *ret_value,
                                     GError **error);

/* Errors: "column 5: what is wrong" (columns from 1, in characters). */
Expression *expression_parse(const char *text, GError **error);
void expression_free(Expression *expression);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Expression, expression_free)

/* The text it was parsed from. */
const char *expression_text(const Expression *expression);

/* The different names in it, in the order of first use. */
guint expression_n_names(const Expression *expression);
const char *expression_name(const Expression *expression, guint name_idx);

gboolean expression_evaluate(const Expression *expression, ExpressionLookup lookup, void *data,
                             ExpressionValue *ret_value, GError **error);

/* Evaluates to a truth value; anything else is an error. */
gboolean expression_is_true(const Expression *expression, ExpressionLookup lookup, void *data, gboolean *ret_true,
                            GError **error);
