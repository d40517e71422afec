/*
 * Commands: what the user can type behind `moesim`. One file cmd-<id>.c and one line in commands.def each.
 *
 * A class is data: the words and options that a command takes, and the function that does it. Help, shell
 * completion and parsing all read the same tables. The function gets its options in a struct of its own
 * (zeroed, then `init`), prints results to stdout and returns FALSE with an error for everything else: only
 * main prints diagnostics and turns errors into exit statuses.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <stdio.h>

/* How a command's words complete in a shell. */
typedef enum CommandWords {
    COMMAND_WORDS_NONE,
    COMMAND_WORDS_FILES,
    COMMAND_WORDS_MODELS,  /* names of model presets, or files */
    COMMAND_WORDS_DEVICES, /* names of device presets, or files */
} CommandWords;

/* One option: a long name, perhaps a letter, and the field of the options struct that it sets. */
typedef struct CommandOption {
    const char *name;
    char letter; /* 0 = none */
    GOptionArg
        kind;      /* NONE: gboolean; INT64: gint64; DOUBLE: double; STRING, FILENAME: char * (freed for the command) */
    size_t offset; /* of the field */
    const char *help;
    const char *value; /* what the help calls the value; NULL for NONE */
} CommandOption;

typedef struct CommandCall {
    int n_words;
    char **words;  /* behind the command's name and options, as typed */
    void *options; /* the class's options struct, or NULL */
} CommandCall;

typedef struct CommandClass {
    const char *usage;        /* "PLAN.json" */
    const char *description;  /* below the options in the help: what it prints, an example */
    int min_words, max_words; /* max -1: any number */
    CommandWords words;
    const CommandOption *options; /* ended by a NULL name; may be NULL */
    size_t options_size;
    void (*init)(void *options); /* defaults other than zero; may be NULL */
    gboolean (*run)(const CommandCall *call, GError **error);
} CommandClass;

typedef struct Command {
    const char *name;
    const char *summary;
    const CommandClass *cls;
} Command;

/* The commands in the order of the help, and how many. */
const Command *command_table(size_t *ret_n);

/* The command of that name, or NULL. */
const Command *command_find(const char *name);

/*
 * Parses argv (argv[0] = the command's name; changed in place) and runs the command. `--help` prints the help.
 */
gboolean command_run_argv(const Command *command, int argc, char **argv, GError **error);

/* Help of the whole program, and of one command; caller frees. */
char *command_program_help(void);
char *command_help(const Command *command);

/*
 * Prints to standard output. FALSE when the text could not be written (a full disk, a closed pipe): long
 * output stops there.
 */
gboolean command_print(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Writes out what stdout still holds; FALSE when anything of it was lost. */
gboolean command_flush(GError **error);

/*
 * Bounds in percent, as DOUBLE options: their value before parsing, whether one was given, and whether it is a
 * finite number from 0.
 */
extern const double command_no_bound;
gboolean command_bound_given(double bound);
gboolean command_check_bound(const char *option, double bound, GError **error);

/*
 * From here on an interrupt does not end the program at once; the command asks command_interrupted() between
 * pieces of work and ends in good order. A second interrupt ends it at once.
 */
void command_catch_interrupt(void);
gboolean command_interrupted(GError **error);

/* Called once by main: an interrupt ends the program with status 130. */
void command_handle_signals(void);

/*
 * Progress of long work, on a terminal only: "moesim: 12 of 23 what". Call with done = total to clear the line.
 */
void command_progress(size_t done, size_t total, const char *what);

/* The same with how many a second and how long the rest will take: "moesim: 12 of 23 points, 432/s, 1 min 5 s left". */
void command_progress_rate(int64_t done, int64_t total, const char *what, double per_s);

/* The same with a text of one line in the place of counts; "" takes the line away. */
void command_progress_text(const char *text);
