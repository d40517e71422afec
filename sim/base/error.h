/*
 * The error domain of the program: one code for each thing a caller can act on.
 *
 * Library code returns FALSE (or NULL) and a GError whose message already names the file, the place and
 * what would be right. Only reports/cli prints it and turns the code into an exit status.
 */
#pragma once

#include <glib.h>

#define MOESIM_ERROR (moesim_error_quark())
GQuark moesim_error_quark(void);

typedef enum MoesimError {
    MOESIM_ERROR_USAGE,    /* the command line is wrong: exit 2 */
    MOESIM_ERROR_INPUT,    /* a file's content is wrong: exit 2 */
    MOESIM_ERROR_IO,       /* reading or writing failed: exit 3 */
    MOESIM_ERROR_FAILED,   /* a check or a bound failed: exit 1 */
    MOESIM_ERROR_CANCELED, /* interrupted: exit 130 */
} MoesimError;

/* Exit status of CONTRACT: 0 when error is NULL. Errors of other domains count as I/O. */
int error_exit_status(const GError *error);

/* A value as messages show it: cut short after 80 characters (invalid UTF-8: bytes). Caller frees. */
char *error_shorten(const char *text);

/* A message as it is printed: lines of more than some 2000 bytes keep their beginning, which has the place, and their end. Caller frees. */
char *error_printable(const char *message);

/*
 * Nearest of n names to a misspelt one, or NULL when none is near (edit distance over a third of its
 * length). Case and '-' against '_' do not count.
 */
const char *error_nearest_name(const char *wrong, const char *const *names, size_t n_names);
