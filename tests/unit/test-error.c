#include "tests/check.h"

#include "sim/base/error.h"

static const char *const names[] = {"dp_shard", "expert_parallel", "seq_len", "micro_batch", "zipf", "ep", "tp"};

static void test_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *wrong, *nearest;
    } cases[] = {
        {"seq_len", "seq_len"},
        {"seq-len", "seq_len"},
        {"SEQ_LEN", "seq_len"},
        {"sqe_len", "seq_len"},
        {"sequence", NULL},
        {"micro_bath", "micro_batch"},
        {"zpif", "zipf"},
        {"dp-shrad", "dp_shard"},
        {"expert_paralel", "expert_parallel"},
        {"something_else", NULL},
        {"", NULL},
        {"pe", NULL},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        check_string(error_nearest_name(cases[i].wrong, names, G_N_ELEMENTS(names)), cases[i].nearest);
    }
    assert_null(error_nearest_name("seq_len", NULL, 0));
}

static void test_exit_status(void **state)
{
    (void)state;
    static const struct {
        MoesimError code;
        int status;
    } cases[] = {
        {MOESIM_ERROR_USAGE, 2},  {MOESIM_ERROR_INPUT, 2},      {MOESIM_ERROR_IO, 3},
        {MOESIM_ERROR_FAILED, 1}, {MOESIM_ERROR_CANCELED, 130},
    };
    check_int(error_exit_status(NULL), 0);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = g_error_new_literal(MOESIM_ERROR, (int)cases[i].code, "x");
        check_int(error_exit_status(error), cases[i].status);
    }
    g_autoptr(GError) foreign = g_error_new_literal(G_FILE_ERROR, 0, "x");
    check_int(error_exit_status(foreign), 3);
}

/* Short lines stay; of long ones the beginning and the end, whole characters of them. */
static void test_printable(void **state)
{
    (void)state;
    static const char usual[] = "a.json:1:2: x: no\n\nhelp\n";
    g_autofree char *same = error_printable(usual), *none = error_printable("");
    check_string(same, usual);
    check_string(none, "");
    for (int shift = 0; shift < 3; shift++) {
        g_autoptr(GString) text = g_string_new("a.json:1:2: ");
        for (int i = 0; i < 3000 + shift; i++) {
            g_string_append(text, i < shift ? "a" : "€");
        }
        g_string_append(text, "; write b\nmore");
        g_autofree char *cut = error_printable(text->str);
        assert_true(strlen(cut) < 2100 && g_utf8_validate(cut, -1, NULL));
        assert_true(g_str_has_prefix(cut, "a.json:1:2: ") && g_str_has_suffix(cut, "; write b\nmore"));
        check_contains(cut, " … ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_exit_status),
        cmocka_unit_test(test_printable),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
