#include "reports/cli/sweep-resume.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

#include "reports/cli/command.h"
#include "sim/base/error.h"
#include "sim/base/file.h"

static char *note_path(const SweepRun *run)
{
    return g_strconcat(run->path, ".resume", NULL);
}

/* What is written beside an unfinished file. */
static char *note_text(const SweepRun *run)
{
    g_autofree char *fingerprint = sweep_fingerprint(run->sweep);
    return g_strdup_printf("{\"schema\": \"moesim.sweep-resume/1\", \"sweep\": \"%s\", \"shard\": \"%" G_GINT64_FORMAT
                           "/%" G_GINT64_FORMAT "\", \"format\": \"%s\"}\n",
                           fingerprint, run->shard.k + 1, run->shard.n,
                           sweep_layout_format(run->layout) == ROW_CSV ? "csv" : "jsonl");
}

static gboolean refuse(const SweepRun *run, GError **error, const char *format, ...) G_GNUC_PRINTF(3, 4);
static gboolean refuse(const SweepRun *run, GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: %s; start over without --resume, or write to another file",
                run->path, what);
    return FALSE;
}

/* ---- what a file holds ---- */

static gboolean read_header(const SweepRun *run, RowReader *reader, gboolean *ret_found, GError **error)
{
    const char *row, *header = sweep_layout_header(run->layout);
    size_t length;
    *ret_found = TRUE;
    if (header[0] == '\0') {
        return TRUE;
    }
    if (!row_reader_next(reader, &row, &length, error)) {
        return FALSE;
    }
    *ret_found = row != NULL;
    if (row != NULL && (length != strlen(header) || memcmp(row, header, length) != 0)) {
        return refuse(run, error, "its columns are not those of this sweep");
    }
    return TRUE;
}

/* The next job of the shard from *job on that has a row; n_jobs when none has. */
static void skip_left_out(const SweepRun *run, SweepWorker *worker, int64_t n_jobs, int64_t *job)
{
    while (*job < n_jobs && !sweep_point_has_row(worker, sweep_shard_point(&run->shard, *job))) {
        ++*job;
    }
}

typedef struct Check {
    const SweepRun *run;
    SweepWorker *worker;
    Table *table;
    GString *text;
} Check;

/* The last row is computed again: a program, model or machine that changed shows there. */
static gboolean check_last_row(Check *check, int64_t job, const char *row, size_t length, GError **error)
{
    int64_t point = sweep_shard_point(&check->run->shard, job);
    SweepOutcome outcome;
    sweep_evaluate(check->worker, point, &outcome);
    g_string_truncate(check->text, 0);
    sweep_layout_append_row(check->run->layout, check->table, point, &outcome, check->text);
    sweep_outcome_clear(&outcome);
    if (check->text->len == length && memcmp(check->text->str, row, length) == 0) {
        return TRUE;
    }
    return refuse(check->run, error, "its last row is not what this sweep gives for that point now");
}

static gboolean check_start(Check *check, int64_t job, const char *row, size_t length, int64_t n_rows, GError **error)
{
    g_string_truncate(check->text, 0);
    sweep_layout_append_start(check->run->layout, check->table, sweep_shard_point(&check->run->shard, job), check->text);
    if (length >= check->text->len && memcmp(row, check->text->str, check->text->len) == 0) {
        return TRUE;
    }
    return refuse(check->run, error, "row %" G_GINT64_FORMAT " is not that of this sweep's next point", n_rows + 1);
}

/* Walks rows and points side by side. */
static gboolean match_rows(Check *check, RowReader *reader, SweepResume *resume, GError **error)
{
    int64_t n_jobs = sweep_shard_n_jobs(&check->run->shard, check->run->sweep->n_points), n_rows = 0, job = 0;
    g_autoptr(GString) last = g_string_new(NULL);
    const char *row;
    size_t length;
    for (;;) {
        if (command_interrupted(error) || !row_reader_next(reader, &row, &length, error)) {
            return FALSE;
        }
        if (row == NULL) {
            break;
        }
        skip_left_out(check->run, check->worker, n_jobs, &job);
        if (job >= n_jobs) {
            return refuse(check->run, error, "has more rows than this sweep");
        }
        if (!check_start(check, job, row, length, n_rows, error)) {
            return FALSE;
        }
        g_string_truncate(last, 0);
        g_string_append_len(last, row, (gssize)length);
        resume->keep_bytes = row_reader_end(reader);
        n_rows++;
        job++;
    }
    resume->n_jobs = job;
    skip_left_out(check->run, check->worker, n_jobs, &job);
    resume->is_complete = job == n_jobs && !row_reader_is_torn(reader);
    return n_rows == 0 || check_last_row(check, resume->n_jobs - 1, last->str, last->len, error);
}

static gboolean find_rows(const SweepRun *run, SweepResume *resume, GError **error)
{
    gboolean found;
    g_autoptr(RowReader) reader = row_reader_open(run->path, sweep_layout_format(run->layout), error);
    if (reader == NULL || !read_header(run, reader, &found, error)) {
        return FALSE;
    }
    if (!found) { /* killed before the header was whole */
        return TRUE;
    }
    resume->keep_bytes = row_reader_end(reader);
    g_autoptr(SweepWorker) worker = sweep_worker_new(run->sweep);
    g_autoptr(Table) table = sweep_layout_table(run->layout);
    g_autoptr(GString) text = g_string_new(NULL);
    Check check = {run, worker, table, text};
    return match_rows(&check, reader, resume, error);
}

/* ---- notes ---- */

/* Whether the note says that the file is the beginning of this run. *ret_found: there is one. */
static gboolean check_note(const SweepRun *run, gboolean *ret_found, GError **error)
{
    g_autofree char *path = note_path(run), *want = note_text(run), *have = NULL;
    *ret_found = g_file_test(path, G_FILE_TEST_EXISTS);
    if (!*ret_found) {
        return TRUE;
    }
    have = file_read(path, NULL, error);
    if (have == NULL) {
        return FALSE;
    }
    return strcmp(have, want) == 0 ||
           refuse(run, error, "is the beginning of another sweep: the sweep file, a file that it names, the shard, the "
                              "format or the version of moesim has changed");
}

static gboolean is_regular(const char *path)
{
    struct stat info;
    return path != NULL && (stat(path, &info) != 0 ? errno == ENOENT : S_ISREG(info.st_mode));
}

/* First the old rows go, then the note says whose the new ones are: a kill between leaves nothing that misleads. */
static gboolean start_over(const SweepRun *run, GError **error)
{
    RowWriter *writer = row_writer_open(run->path, 0, error);
    if (writer == NULL || !row_writer_close(writer, error)) {
        return FALSE;
    }
    g_autofree char *path = note_path(run), *text = note_text(run);
    return file_write(path, text, strlen(text), error);
}

gboolean sweep_resume_begin(const SweepRun *run, SweepResume *ret_resume, GError **error)
{
    gboolean has_note;
    *ret_resume = (SweepResume){0};
    if (!is_regular(run->path)) {
        if (run->resume) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--resume: needs --output with a regular file to go on from");
        }
        return !run->resume;
    }
    struct stat info;
    if (!run->resume || stat(run->path, &info) != 0 || info.st_size == 0) {
        return start_over(run, error);
    }
    if (!check_note(run, &has_note, error) || !find_rows(run, ret_resume, error)) {
        return FALSE;
    }
    if (!has_note && !ret_resume->is_complete) {
        return ret_resume->keep_bytes == 0
                   ? start_over(run, error)
                   : refuse(run, error, "cannot be gone on with: %s.resume, which says of what sweep it is, is missing",
                            run->path);
    }
    return TRUE;
}

gboolean sweep_resume_end(const SweepRun *run, GError **error)
{
    if (!is_regular(run->path)) {
        return TRUE;
    }
    g_autofree char *path = note_path(run);
    if (g_unlink(path) != 0 && errno != ENOENT) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "%s: %s", path, g_strerror(errno));
        return FALSE;
    }
    return TRUE;
}
