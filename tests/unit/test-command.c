/* The command table: whatever stands in it can be run, has help, and stands in the man page with all its options. */
#include "tests/check.h"

#include "reports/cli/command.h"
#include "sim/base/error.h"

static void test_table(void **state)
{
    (void)state;
    size_t n;
    const Command *commands = command_table(&n);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(command_find(commands[i].name), &commands[i]);
        assert_true(commands[i].summary[0] != '\0');
        assert_non_null(commands[i].cls->run);
        assert_non_null(commands[i].cls->usage);
        assert_true(commands[i].cls->max_words < 0 || commands[i].cls->max_words >= commands[i].cls->min_words);
    }
    assert_null(command_find("no-such-command"));
    assert_null(command_find(""));
}

static void test_help(void **state)
{
    (void)state;
    size_t n;
    const Command *commands = command_table(&n);
    g_autofree char *program = command_program_help();
    for (size_t i = 0; i < n; i++) {
        check_contains(program, commands[i].name);
        check_contains(program, commands[i].summary);
        g_autofree char *help = command_help(&commands[i]);
        check_contains(help, commands[i].summary);
        check_contains(help, commands[i].cls->usage);
        for (const CommandOption *option = commands[i].cls->options; option != NULL && option->name != NULL; option++) {
            check_contains(help, option->name);
            check_contains(help, option->help);
        }
    }
}

/* The man page writes \- for a dash. */
static void test_man_page(void **state)
{
    (void)state;
    g_autofree char *path = check_source_path("reports/man/moesim.1");
    g_autofree char *page = NULL;
    assert_true(g_file_get_contents(path, &page, NULL, NULL));
    g_auto(GStrv) parts = g_strsplit(page, "\\-", -1);
    g_autofree char *text = g_strjoinv("-", parts);
    size_t n;
    const Command *commands = command_table(&n);
    for (size_t i = 0; i < n; i++) {
        g_autofree char *head = g_strdup_printf(".B moesim %s", commands[i].name);
        check_contains(text, head);
        for (const CommandOption *option = commands[i].cls->options; option != NULL && option->name != NULL; option++) {
            g_autofree char *word = g_strdup_printf("--%s", option->name);
            check_contains(text, word);
        }
    }
}

static gboolean keep_words(const CommandCall *call, GError **error)
{
    (void)error;
    g_autofree char *words = g_strjoinv("|", call->words);
    *(char **)call->options = g_steal_pointer(&words);
    return TRUE;
}

/* Words behind "--" are words, whatever they begin with. */
static void test_words(void **state)
{
    (void)state;
    static const CommandOption options[] = {{"keep", 'k', G_OPTION_ARG_STRING, 0, "keep", "WORD"}, {NULL}};
    static const CommandClass cls = {.usage = "A B",
                                     .min_words = 2,
                                     .max_words = 2,
                                     .options = options,
                                     .options_size = sizeof(char *),
                                     .run = keep_words};
    const Command command = {"test", "a test", &cls};
    static const struct {
        const char *line, *message; /* NULL: runs */
    } cases[] = {
        {"test a b", NULL},
        {"test -- a -b", NULL},
        {"test a -k x", "test: expected A B"},
        {"test a b c", "'c' is one word too many"},
        {"test a -b", "Unknown option -b"},
        {"test a b --keep", "Missing argument for --keep"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_auto(GStrv) words = g_strsplit(cases[i].line, " ", -1);
        g_autofree char **argv = g_memdup2(words, sizeof(char *) * (g_strv_length(words) + 1));
        gboolean ok = command_run_argv(&command, (int)g_strv_length(words), argv, &error);
        if (cases[i].message == NULL) {
            check_no_error(error);
            assert_true(ok);
        } else {
            assert_false(ok);
            check_error(&error, MOESIM_ERROR_USAGE, cases[i].message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_man_page),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
