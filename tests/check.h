/*
 * What every test program includes: cmocka with what it needs in front, and checks that print both sides.
 *
 * One group per program (a second one would print a second TAP plan). Do not call skip(): under TAP it
 * counts as a failure; leave the test out of the list instead. A failed check jumps out of the test, so
 * leaks reported after it mean nothing: read the first failure.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* got is within rel x |want| of want; where want is 0, within rel. */
#define check_close(got, want, rel) check_close_at((got), (want), (rel), #got, __FILE__, __LINE__)

/* Integers of any type up to 64 bits, printed in decimal. */
#define check_int(got, want) check_int_at((int64_t)(got), (int64_t)(want), #got, __FILE__, __LINE__)

/* Text, either of which may be NULL. */
#define check_string(got, want) check_string_at((got), (want), #got, __FILE__, __LINE__)

/* text holds part. */
#define check_contains(text, part) check_contains_at((text), (part), __FILE__, __LINE__)

/* *error is set, of that code of MOESIM_ERROR, and its message holds part; clears it. */
#define check_error(error, code, part) check_error_at((error), (int)(code), (part), __FILE__, __LINE__)

/* No error; prints its message otherwise. */
#define check_no_error(error) check_no_error_at((error), __FILE__, __LINE__)

static inline void check_close_at(double got, double want, double rel, const char *what, const char *file, int line)
{
    double bound = want < 0 || want > 0 ? rel * fabs(want) : rel;
    if (!(fabs(got - want) <= bound)) {
        print_error("%s = %.17g, want %.17g within %g: off by %g\n", what, got, want, rel, got - want);
        _fail(file, line);
    }
}

static inline void check_int_at(int64_t got, int64_t want, const char *what, const char *file, int line)
{
    if (got != want) {
        print_error("%s = %" G_GINT64_FORMAT ", want %" G_GINT64_FORMAT "\n", what, got, want);
        _fail(file, line);
    }
}

static inline void check_string_at(const char *got, const char *want, const char *what, const char *file, int line)
{
    if (g_strcmp0(got, want) != 0) {
        print_error("%s = \"%s\", want \"%s\"\n", what, got != NULL ? got : "(null)", want != NULL ? want : "(null)");
        _fail(file, line);
    }
}

static inline void check_contains_at(const char *text, const char *part, const char *file, int line)
{
    if (text == NULL || strstr(text, part) == NULL) {
        print_error("\"%s\" does not hold \"%s\"\n", text != NULL ? text : "(null)", part);
        _fail(file, line);
    }
}

static inline void check_error_at(GError **error, int code, const char *part, const char *file, int line)
{
    if (*error == NULL) {
        print_error("no error, want one with \"%s\"\n", part);
        _fail(file, line);
    }
    check_string_at(g_quark_to_string((*error)->domain), "moesim-error-quark", "error domain", file, line);
    check_contains_at((*error)->message, part, file, line);
    check_int_at((*error)->code, code, "error code", file, line);
    g_clear_error(error);
}

static inline void check_no_error_at(const GError *error, const char *file, int line)
{
    if (error != NULL) {
        print_error("unexpected error: %s\n", error->message);
        _fail(file, line);
    }
}

/* Path of a file of the source tree, from the root of the repository; caller frees. */
static inline char *check_source_path(const char *path)
{
    const char *root = g_getenv("MOESIM_SOURCE_ROOT");
    return g_build_filename(root != NULL ? root : ".", path, NULL);
}

/* A new empty directory; caller removes it with check_remove_dir, which frees the path. */
static inline char *check_make_dir(void)
{
    char *path = g_dir_make_tmp("moesim-test-XXXXXX", NULL);
    assert_non_null(path);
    return path;
}

/* Removes the directory and the files (no directories) in it. */
static inline void check_remove_dir(char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *file = g_build_filename(path, name, NULL);
        g_unlink(file);
    }
    g_rmdir(path);
    g_free(path);
}

/* Writes a text to a file in a directory; returns its path, caller frees. */
static inline char *check_write_file(const char *dir, const char *name, const char *text)
{
    char *path = g_build_filename(dir, name, NULL);
    assert_true(g_file_set_contents(path, text, -1, NULL));
    return path;
}

/*
 * Runs a test over a table: n cases of `size` bytes, each beginning with its name (const char *). The test
 * gets its case as *state.
 */
static inline int check_run_cases(const char *group, CMUnitTestFunction test, const void *cases, size_t n, size_t size)
{
    g_autofree struct CMUnitTest *tests = g_new0(struct CMUnitTest, n);
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)cases + i * size;
        tests[i].name = *(const char *const *)(const void *)at;
        tests[i].test_func = test;
        tests[i].initial_state = (void *)(guintptr)at; /* tests do not write to it */
    }
    return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}
