#include "reports/cli/command.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "sim/base/error.h"

#define COMMAND(id, summary) extern const CommandClass command_##id;
#include "reports/cli/commands.def"
#undef COMMAND

static const Command commands[] = {
#define COMMAND(id, text) {#id, text, &command_##id},
#include "reports/cli/commands.def"
#undef COMMAND
};

enum { STATUS_INTERRUPTED = 130 };

const Command *command_table(size_t *ret_n)
{
    *ret_n = G_N_ELEMENTS(commands);
    return commands;
}

const Command *command_find(const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* ---- options ---- */

static size_t count_options(const CommandClass *cls)
{
    size_t n = 0;
    while (cls->options != NULL && cls->options[n].name != NULL) {
        n++;
    }
    return n;
}

/* GLib's option context of a command, with the options' fields in `values`. */
static GOptionContext *new_context(const Command *command, void *values, gboolean *help)
{
    size_t n = count_options(command->cls);
    g_autofree GOptionEntry *entries = g_new0(GOptionEntry, n + 2);
    for (size_t i = 0; i < n; i++) {
        const CommandOption *option = &command->cls->options[i];
        entries[i] = (GOptionEntry){
            .long_name = option->name,
            .short_name = option->letter,
            .arg = option->kind,
            .arg_data = (char *)values + option->offset,
            .description = option->help,
            .arg_description = option->value,
        };
    }
    entries[n] = (GOptionEntry){"help", 'h', 0, G_OPTION_ARG_NONE, help, "Show this help", NULL};
    GOptionContext *context = g_option_context_new(command->cls->usage);
    g_option_context_set_help_enabled(context,
                                      FALSE); /* GLib's own ends the program without asking whether it was read */
    g_option_context_set_summary(context, command->summary);
    g_option_context_set_description(context, command->cls->description);
    g_option_context_add_main_entries(context, entries, NULL);
    return context;
}

static void free_values(const CommandClass *cls, void *values)
{
    for (size_t i = 0; i < count_options(cls); i++) {
        if (cls->options[i].kind == G_OPTION_ARG_STRING || cls->options[i].kind == G_OPTION_ARG_FILENAME) {
            g_free(*(char **)(void *)((char *)values + cls->options[i].offset));
        }
    }
    g_free(values);
}

/* GLib leaves a "--" among the words when one of them begins with a dash. */
static void drop_dashes(int *argc, char **argv)
{
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            memmove(&argv[i], &argv[i + 1], sizeof(char *) * (size_t)(*argc - i));
            (*argc)--;
            return;
        }
    }
}

static gboolean check_words(const Command *command, int n, char **words, GError **error)
{
    const CommandClass *cls = command->cls;
    if (n < cls->min_words) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: expected %s; see `moesim %s --help`", command->name,
                    cls->usage, command->name);
        return FALSE;
    }
    if (cls->max_words >= 0 && n > cls->max_words) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: '%s' is one word too many; see `moesim %s --help`",
                    command->name, words[cls->max_words], command->name);
        return FALSE;
    }
    return TRUE;
}

/* A file without a name is a slip: "$OUT" of a script that never set it. */
static gboolean check_files(const Command *command, const void *values, GError **error)
{
    for (size_t i = 0; i < count_options(command->cls); i++) {
        const CommandOption *option = &command->cls->options[i];
        const char *value = option->kind == G_OPTION_ARG_FILENAME
                                ? *(char *const *)(const void *)((const char *)values + option->offset)
                                : NULL;
        if (value != NULL && value[0] == '\0') {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: --%s: the name is empty; give %s, or leave the option out",
                        command->name, option->name, option->value);
            return FALSE;
        }
    }
    return TRUE;
}

/* Whether the word is a letter with its value attached, "-j4". */
static gboolean has_value_attached(const CommandClass *cls, const char *word)
{
    for (size_t i = 0; i < count_options(cls); i++) {
        const CommandOption *option = &cls->options[i];
        if (word[0] == '-' && option->letter != 0 && word[1] == option->letter && word[2] != '\0' &&
            option->kind != G_OPTION_ARG_NONE) {
            return TRUE;
        }
    }
    return FALSE;
}

/* The words, with attached values as words of their own: GLib reads "-j 4" and not "-j4". `made` owns what is new. */
static GPtrArray *split_attached(const CommandClass *cls, int argc, char **argv, GPtrArray *made)
{
    GPtrArray *words = g_ptr_array_new();
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            for (; i < argc; i++) {
                g_ptr_array_add(words, argv[i]);
            }
            break;
        }
        if (i > 0 && has_value_attached(cls, argv[i])) {
            char *letter = g_strdup_printf("-%c", argv[i][1]);
            g_ptr_array_add(made, letter);
            g_ptr_array_add(words, letter);
            g_ptr_array_add(words, argv[i] + 2);
        } else {
            g_ptr_array_add(words, argv[i]);
        }
    }
    g_ptr_array_add(words, NULL);
    return words;
}

static gboolean parse_and_run(const Command *command, int n_typed, char **typed, void *values, GError **error)
{
    g_autoptr(GPtrArray) made = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) all = split_attached(command->cls, n_typed, typed, made);
    int argc = (int)all->len - 1;
    char **argv = (char **)(void *)all->pdata;
    gboolean help = FALSE;
    g_autoptr(GOptionContext) context = new_context(command, values, &help);
    g_autoptr(GError) inner = NULL;
    if (!g_option_context_parse(context, &argc, &argv, &inner)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: %s; see `moesim %s --help`", command->name,
                    inner->message, command->name);
        return FALSE;
    }
    if (help) {
        g_autofree char *text = command_help(command);
        return command_print(error, "%s", text);
    }
    drop_dashes(&argc, argv);
    if (!check_files(command, values, error) || !check_words(command, argc - 1, argv + 1, error)) {
        return FALSE;
    }
    CommandCall call = {.n_words = argc - 1, .words = argv + 1, .options = values};
    return command->cls->run(&call, error);
}

gboolean command_run_argv(const Command *command, int argc, char **argv, GError **error)
{
    void *values = g_malloc0(MAX(command->cls->options_size, 1));
    if (command->cls->init != NULL) {
        command->cls->init(values);
    }
    gboolean ok = parse_and_run(command, argc, argv, values, error);
    free_values(command->cls, values);
    return ok;
}

/* ---- help ---- */

char *command_help(const Command *command)
{
    gboolean help = FALSE;
    void *values = g_malloc0(MAX(command->cls->options_size, 1));
    g_autoptr(GOptionContext) context = new_context(command, values, &help);
    g_autofree char *before = g_strdup(g_get_prgname());
    g_autofree char *name = g_strdup_printf("moesim %s", command->name);
    g_set_prgname(name); /* GLib takes the usage line's first words from there */
    char *text = g_option_context_get_help(context, TRUE, NULL);
    g_set_prgname(before);
    g_free(values);
    return text;
}

char *command_program_help(void)
{
    GString *text =
        g_string_new("Usage:\n"
                     "  moesim PLAN.json              predict one training step (same as moesim run PLAN.json)\n"
                     "  moesim COMMAND [OPTION...]    see moesim COMMAND --help\n"
                     "\n"
                     "Predicts step time and peak memory of training very large mixture-of-experts models.\n"
                     "\n"
                     "Commands:\n");
    for (size_t i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_string_append_printf(text, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    g_string_append(text, "\n"
                          "Options:\n"
                          "  -h, --help       show this help\n"
                          "  --version        show the version\n"
                          "\n"
                          "Exit status: 0 done, 1 a check or bound failed, 2 bad usage or input,\n"
                          "3 input/output failure, 130 interrupted.\n");
    return g_string_free(text, FALSE);
}

/* ---- output ---- */

static gboolean output_failed(int code, GError **error)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "standard output: %s", g_strerror(code != 0 ? code : EIO));
    return FALSE;
}

gboolean command_print(GError **error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    errno = 0;
    int n = vfprintf(stdout, format, arguments);
    int code = errno;
    va_end(arguments);
    return n >= 0 ? TRUE : output_failed(code, error);
}

gboolean command_flush(GError **error)
{
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return output_failed(errno, error);
    }
    return TRUE;
}

/* ---- bounds ---- */

const double command_no_bound = -G_MAXDOUBLE;

gboolean command_bound_given(double bound)
{
    return !(bound <= command_no_bound); /* NaN was given */
}

gboolean command_check_bound(const char *option, double bound, GError **error)
{
    if (command_bound_given(bound) && (!isfinite(bound) || bound < 0)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--%s: expected a number of percent, 0 or more", option);
        return FALSE;
    }
    return TRUE;
}

/* ---- interrupts: a signal handler can reach nothing but these ---- */

static volatile sig_atomic_t catching = 0;
static volatile sig_atomic_t interrupted = 0;

static void on_interrupt(int signal_number)
{
    static const char text[] = "moesim: interrupted\n";
    (void)signal_number;
    if (!catching || interrupted) {
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written; /* who is on the way out tells nobody else */
        _exit(STATUS_INTERRUPTED);
    }
    interrupted = 1;
}

void command_handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    struct sigaction before;
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        sigaction(SIGINT, &action, NULL); /* a caller that ignores interrupts wants them ignored */
    }
    action.sa_handler = SIG_IGN; /* a closed pipe is a failed write like any other */
    sigaction(SIGPIPE, &action, NULL);
}

void command_catch_interrupt(void)
{
    catching = 1;
}

gboolean command_interrupted(GError **error)
{
    if (!interrupted) {
        return FALSE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_CANCELED, "interrupted");
    return TRUE;
}

/* ---- progress ---- */

void command_progress(size_t done, size_t total, const char *what)
{
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    if (done >= total) {
        fprintf(stderr, "\r%*s\r", 60, "");
    } else {
        fprintf(stderr, "\rmoesim: %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT " %s ", done, total, what);
    }
    fflush(stderr);
}

void command_progress_text(const char *text)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%s%s", text[0] != '\0' ? "moesim: " : "", text);
        fflush(stderr);
    }
}

/* "12 s", "3 min 5 s", "2 h 10 min". */
static void format_left(double seconds, char *buffer, size_t size)
{
    long s = seconds < 1e9 ? (long)(seconds + 0.5) : 1000000000L;
    if (s < 60) {
        g_snprintf(buffer, size, "%ld s", s);
    } else if (s < 3600) {
        g_snprintf(buffer, size, "%ld min %ld s", s / 60, s % 60);
    } else {
        g_snprintf(buffer, size, "%ld h %ld min", s / 3600, s % 3600 / 60);
    }
}

void command_progress_rate(int64_t done, int64_t total, const char *what, double per_s)
{
    char left[64] = "";
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    if (per_s > 0) {
        format_left((double)(total - done) / per_s, left, sizeof left);
    }
    fprintf(stderr, "\rmoesim: %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " %s, %.*f/s%s%s%s   ", done, total, what,
            per_s < 10 ? 1 : 0, per_s, left[0] != '\0' ? ", " : "", left, left[0] != '\0' ? " left" : "");
    fflush(stderr);
}
