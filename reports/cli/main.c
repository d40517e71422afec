/*
 * moesim: the command line.
 *
 * The first word picks the command; a word that is no command but looks like a file is a plan for `run`.
 * Diagnostics go to stderr as "moesim: …", results to stdout, and a result that could not be written is a
 * failure, whatever the command thought of it.
 */
#define _GNU_SOURCE /* processor sets */
#include <fcntl.h>
#include <gsl/gsl_errno.h>
#include <jansson.h>
#include <locale.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "reports/cli/command.h"
#include "sim/base/error.h"

/*
 * OpenBLAS starts a thread for every further processor when it is loaded, and each spins for a while before it sleeps:
 * on a large machine that costs many times what a prediction does. It counts the processors that the process may run
 * on, so that is one while libraries initialise themselves; main gives the others back. This runs before the
 * constructors of all libraries and may rely on none of them.
 */
static cpu_set_t all_processors;
static gboolean narrowed;

__attribute__((no_sanitize("address", "undefined"))) static void narrow_processors(void)
{
    cpu_set_t one;
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE || sched_getaffinity(0, sizeof all_processors, &all_processors) != 0) {
        return;
    }
    CPU_ZERO(&one);
    CPU_SET((size_t)here, &one);
    narrowed = sched_setaffinity(0, sizeof one, &one) == 0;
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = narrow_processors;

/* So that an interrupt is answered while libraries initialise themselves, too. A sanitizer's own sigaction() is not ready by then. */
#ifndef __SANITIZE_ADDRESS__
__attribute__((section(".preinit_array"), used)) static void (*const signals_first)(void) = command_handle_signals;
#endif

static void widen_processors(void)
{
    if (narrowed) {
        sched_setaffinity(0, sizeof all_processors, &all_processors);
    }
}

static gboolean looks_like_file(const char *word)
{
    return g_str_has_suffix(word, ".json") || strchr(word, '/') != NULL || g_file_test(word, G_FILE_TEST_EXISTS);
}

static void fail_unknown(const char *word, GError **error)
{
    size_t n;
    const Command *commands = command_table(&n);
    g_autofree const char **names = g_new(const char *, n + 1);
    for (size_t i = 0; i < n; i++) {
        names[i] = commands[i].name;
    }
    const char *nearest = error_nearest_name(word, names, n);
    if (nearest != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "'%s' is no command and no file; did you mean '%s'?", word,
                    nearest);
    } else {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "'%s' is no command and no file; see `moesim --help`",
                    word);
    }
}

/* Options before the first word: those of the program itself. Returns FALSE on a mistake; ret_text is what to print. */
static gboolean parse_program_options(int *argc, char ***argv, char **ret_text, GError **error)
{
    gboolean help = FALSE, version = FALSE;
    const GOptionEntry entries[] = {
        {"help", 'h', 0, G_OPTION_ARG_NONE, &help, NULL, NULL},
        {"version", 0, 0, G_OPTION_ARG_NONE, &version, NULL, NULL},
        {NULL},
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_option_context_set_help_enabled(context, FALSE);
    g_option_context_set_strict_posix(context, TRUE); /* stop at the command */
    g_option_context_add_main_entries(context, entries, NULL);
    g_autoptr(GError) inner = NULL;
    if (!g_option_context_parse(context, argc, argv, &inner)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s; see `moesim --help`", inner->message);
        return FALSE;
    }
    if (help) {
        *ret_text = command_program_help();
    } else if (version) {
        *ret_text = g_strdup("moesim " MOESIM_VERSION "\n");
    }
    return TRUE;
}

static gboolean run_program(int argc, char **argv, GError **error)
{
    g_autofree char *text = NULL;
    if (!parse_program_options(&argc, &argv, &text, error)) {
        return FALSE;
    }
    if (text != NULL) {
        return command_print(error, "%s", text);
    }
    if (argc > 1 && strcmp(argv[1], "--") == 0) {
        argc--;
        argv++;
    }
    if (argc < 2) {
        g_autofree char *help = command_program_help();
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "nothing to do\n\n%s", help);
        return FALSE;
    }
    const Command *command = command_find(argv[1]);
    if (command != NULL) {
        return command_run_argv(command, argc - 1, argv + 1, error);
    }
    command = command_find("run");
    if (command == NULL || !looks_like_file(argv[1])) {
        fail_unknown(argv[1], error);
        return FALSE;
    }
    return command_run_argv(command, argc, argv, error);
}

/* A standard stream that the caller closed must not become the first file that is opened, and be written to. */
static void occupy_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) {
            return;
        }
    }
}

int main(int argc, char **argv)
{
    widen_processors();
    occupy_streams();
    setlocale(LC_CTYPE, ""); /* UTF-8 arguments; numbers and messages stay as they are in C */
    gsl_set_error_handler_off();
    json_object_seed(0);
    g_set_prgname("moesim");
    command_handle_signals();

    /* GLib's option parser moves pointers about in the vector it is given. */
    g_autofree char **words = g_memdup2(argv, sizeof(char *) * (size_t)(argc + 1));
    g_autoptr(GError) error = NULL, lost = NULL;
    gboolean done = run_program(argc, words, &error);
    gboolean flushed = command_flush(&lost);
    if (done && !flushed) {
        error = g_steal_pointer(&lost);
    }
    if (error == NULL) {
        return 0;
    }
    g_autofree char *message = error_printable(error->message);
    g_printerr("moesim: %s%s", message, g_str_has_suffix(message, "\n") ? "" : "\n");
    return error_exit_status(error);
}
