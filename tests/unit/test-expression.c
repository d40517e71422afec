#include "tests/check.h"

#include <math.h>

#include "sim/base/error.h"
#include "sim/base/expression.h"

/* a = 6, b.c = 4, text = "full", yes = true, gone = null; others are unknown. */
static gboolean lookup(guint name_idx, const char *name, void *data, ExpressionValue *ret_value, GError **error)
{
    static const struct {
        const char *name;
        ExpressionValue value;
    } known[] = {{"a", {EXPRESSION_NUMBER, 6, NULL}},
                 {"b.c", {EXPRESSION_NUMBER, 4, NULL}},
                 {"text", {EXPRESSION_TEXT, 0, "full"}},
                 {"yes", {EXPRESSION_BOOL, 1, NULL}},
                 {"gone", {EXPRESSION_NULL, 0, NULL}}};
    check_string(name, expression_name(data, name_idx));
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++) {
        if (g_str_equal(known[i].name, name)) {
            *ret_value = known[i].value;
            return TRUE;
        }
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "no %s", name);
    return FALSE;
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"1 + 2 * 3", 7},          {"(1 + 2) * 3", 9},      {"8 / 4 / 2", 1},     {"7 // 2", 3},
        {"-7 // 2", -4},           {"-7 % 3", 2},           {"7 % 3", 1},         {"2 - 3 - 4", -5},
        {"- - 2", 2},              {"a * b.c", 24},         {"min(3, a, 2)", 2},  {"max(a, b.c)", 6},
        {"abs(-2.5)", 2.5},        {"floor(2.9)", 2},       {"ceil(2.1)", 3},     {"log2(1024)", 10},
        {"1e3+.5", 1000.5},        {"min(1,2) + 1", 2},     {"-a+a", 0},          {"a//b.c*b.c", 4},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Expression) expression = expression_parse(cases[i].text, &error);
        check_no_error(error);
        ExpressionValue value;
        assert_true(expression_evaluate(expression, lookup, expression, &value, &error));
        check_int(value.kind, EXPRESSION_NUMBER);
        check_close(value.number, cases[i].value, 1e-15);
        check_string(expression_text(expression), cases[i].text);
    }
}

static void test_truths(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        gboolean value;
    } cases[] = {
        {"a * 2 <= 12", TRUE},
        {"a < b.c", FALSE},
        {"not a < b.c", TRUE},
        {"a == 6 and b.c != 4 or yes", TRUE},
        {"a == 6 and (b.c != 4 or not yes)", FALSE},
        {"text == 'full'", TRUE},
        {"text in ('none', \"full\")", TRUE},
        {"a in (1, 2, 3)", FALSE},
        {"gone == null", TRUE},
        {"a != null && yes || false", TRUE},
        {"false and unknown > 1", FALSE}, /* does not look */
        {"true or 1 / 0 > 1", TRUE},
        {"index_of >= 0 or true", FALSE}, /* a name that begins like a word */
        {"gone == a", FALSE},
        {"not not yes", TRUE},
        {"a>=6", TRUE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Expression) expression = expression_parse(cases[i].text, &error);
        check_no_error(error);
        gboolean value = -1;
        if (g_str_has_prefix(cases[i].text, "index_of")) {
            assert_false(expression_is_true(expression, lookup, expression, &value, &error));
            check_error(&error, MOESIM_ERROR_INPUT, "no index_of");
            continue;
        }
        assert_true(expression_is_true(expression, lookup, expression, &value, &error));
        check_int(value, cases[i].value);
    }
}

static void test_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "column 1: expected a value, not the end"},
        {"1 +", "column 4: expected a value, not the end"},
        {"(1", "column 3: expected ')', not the end"},
        {"1 2", "column 3: expected an operator or the end, not '2'"},
        {"a = 1", "column 3: '=' compares nothing; use =="},
        {"1 < 2 < 3", "column 7: comparisons do not chain"},
        {"'x", "column 1: a text that begins here never ends"},
        {"foo(1)", "column 1: 'foo' is no function"},
        {"abs(1, 2)", "column 1: abs takes one value"},
        {"min()", "column 5: expected a value, not ')'"},
        {"min(1", "column 6: expected ',' or ')', not the end"},
        {"1e999", "column 1: not a number"},
        {"2x", "column 1: not a number"},
        {"0x10", "column 1: not a number"},
        {"1.2.3", "column 1: not a number"},
        {"a in 3", "column 6: expected '(' behind in, not '3'"},
        {"é", "column 1: expected a value, not 'é'"},
        {"1 + é", "column 5: expected a value, not 'é'"},
        {"a $ 2", "column 3: expected an operator or the end, not '$'"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        assert_null(expression_parse(cases[i].text, &error));
        check_error(&error, MOESIM_ERROR_INPUT, cases[i].error);
    }
    g_autoptr(GString) deep = g_string_new(NULL);
    for (int i = 0; i < 3000; i++) {
        g_string_append_c(deep, '(');
    }
    g_autoptr(GError) error = NULL;
    assert_null(expression_parse(deep->str, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "nested too deeply");
    for (int i = 0; i < 9000; i++) {
        g_string_append_c(deep, '-');
    }
    assert_null(expression_parse(deep->str, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "longer than");
}

static void test_no_value(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"1 / (a - 6) > 0", "column 3: division by zero"},
        {"1 % 0 > 0", "column 3: division by zero"},
        {"a", "column 1: a number where a truth value belongs"},
        {"text + 1 > 0", "column 1: a text where a number belongs"},
        {"text == 1", "column 6: a text is compared with a number"},
        {"gone < 1", "column 1: null (it has no value) where a number belongs"},
        {"yes < 1", "column 1: a truth value where a number belongs"},
        {"a and yes", "column 1: a number where a truth value belongs"},
        {"1e300 * 1e300 > 1", "column 7: the result is no finite number"},
        {"log2(-1) > 0", "column 1: the result is no finite number"},
        {"unknown > 1", "no unknown"},
        {"not a", "column 5: a number where a truth value belongs"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Expression) expression = expression_parse(cases[i].text, &error);
        check_no_error(error);
        gboolean value;
        assert_false(expression_is_true(expression, lookup, expression, &value, &error));
        check_error(&error, MOESIM_ERROR_INPUT, cases[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_truths),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_no_value),
    };
    return cmocka_run_group_tests_name("expression", tests, NULL, NULL);
}
