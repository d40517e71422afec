#include "reports/cli/sweep-run.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

#include "reports/cli/command.h"
#include "reports/cli/sweep-mpi.h"
#include "reports/cli/sweep-resume.h"
#include "reports/cli/sweep-workers.h"
#include "sim/base/error.h"

enum { SHARD_BLOCK = 16, FLUSH_US = 50000, FLUSH_BYTES = 1 << 16 };

/* ---- shards ---- */

int64_t sweep_shard_n_jobs(const SweepShard *shard, int64_t n_points)
{
    int64_t n_blocks = n_points / SHARD_BLOCK, rest = n_points % SHARD_BLOCK;
    int64_t mine = n_blocks / shard->n + (n_blocks % shard->n > shard->k ? 1 : 0);
    return mine * SHARD_BLOCK + (n_blocks % shard->n == shard->k ? rest : 0);
}

int64_t sweep_shard_point(const SweepShard *shard, int64_t job)
{
    return (job / SHARD_BLOCK * shard->n + shard->k) * SHARD_BLOCK + job % SHARD_BLOCK;
}

int64_t sweep_shard_of(int64_t point, int64_t n)
{
    return point / SHARD_BLOCK % n;
}

gboolean sweep_shard_parse(const char *text, SweepShard *ret_shard, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(text, "/", -1);
    gint64 k, n;
    if (g_strv_length(parts) != 2 || !g_ascii_string_to_signed(parts[1], 10, 1, G_MAXINT32, &n, NULL) ||
        !g_ascii_string_to_signed(parts[0], 10, 1, n, &k, NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE,
                    "--shard: '%s' is no shard; expected K/N with K from 1 to N, as in 3/8", text);
        return FALSE;
    }
    *ret_shard = (SweepShard){k - 1, n};
    return TRUE;
}

/* ---- the run ---- */

typedef struct Writing {
    const SweepRun *run;
    RowWriter *writer;
    GString *pending; /* whole rows that are not in the file yet */
    gint64 flushed_us, started_us, shown_us;
    int64_t n_jobs, n_done, n_before; /* jobs: all, consumed, those of an earlier run */
    gboolean any_valid;               /* on standard output, where no report can read the rows again */
    GError *error;
} Writing;

static gboolean flush(Writing *writing)
{
    writing->flushed_us = g_get_monotonic_time();
    if (writing->pending->len == 0) {
        return TRUE;
    }
    gboolean done = row_writer_append(writing->writer, writing->pending->str, writing->pending->len, &writing->error);
    g_string_truncate(writing->pending, 0);
    return done;
}

/* On a terminal only; wall clock enters nothing else. */
static void show_progress(Writing *writing)
{
    gint64 now = g_get_monotonic_time();
    if (now - writing->shown_us < 200000) {
        return;
    }
    writing->shown_us = now;
    double rate = (double)(writing->n_done - writing->n_before) / ((double)(now - writing->started_us) * 1e-6);
    command_progress_rate(writing->n_done, writing->n_jobs, "points", rate);
}

static gboolean stop(void *data)
{
    Writing *writing = data;
    show_progress(writing);
    if (g_get_monotonic_time() - writing->flushed_us > FLUSH_US && !flush(writing)) {
        return TRUE;
    }
    return command_interrupted(NULL);
}

static gboolean is_valid_row(const SweepLayout *layout, const char *row)
{
    g_autoptr(GPtrArray) cells = row_cells(sweep_layout_format(layout), row, strlen(row));
    int status = sweep_layout_find(layout, "status");
    g_assert(status >= 0 && status < (int)cells->len);
    return strcmp(g_ptr_array_index(cells, (guint)status), sweep_status_name(SWEEP_INVALID)) != 0;
}

static gboolean consume(int64_t job, void *result, void *data)
{
    Writing *writing = data;
    g_autofree char *row = result; /* NULL: left out */
    (void)job;
    if (row != NULL) {
        g_string_append(writing->pending, row);
        writing->any_valid = writing->any_valid || writing->run->path != NULL || is_valid_row(writing->run->layout, row);
    }
    writing->n_done++;
    return writing->pending->len < FLUSH_BYTES || flush(writing);
}

static gboolean write_rows(Writing *writing, int64_t first_job)
{
    const SweepRun *run = writing->run;
    writing->n_jobs = sweep_shard_n_jobs(&run->shard, run->sweep->n_points);
    writing->n_done = writing->n_before = first_job;
    writing->started_us = writing->flushed_us = g_get_monotonic_time();
    SweepWork work = {run->sweep, run->layout, run->shard, first_job};
    SweepRowSink sink = {consume, stop, writing};
    if (run->n_ranks > 1) {
        sweep_mpi_run(&work, run->n_threads, writing->n_jobs - first_job, &sink);
    } else {
        sweep_workers_run(&work, run->n_threads, writing->n_jobs - first_job, &sink);
    }
    command_progress(1, 1, "");
    return flush(writing) && writing->error == NULL;
}

static gboolean interrupted(const Writing *writing, GError **error)
{
    if (writing->n_done == writing->n_jobs) {
        return FALSE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_CANCELED, "interrupted%s",
                row_writer_is_regular(writing->writer) ? "; the rows so far are kept, --resume goes on from there" : "");
    return TRUE;
}

static gboolean run_into(const SweepRun *run, SweepResume *resume, GError **error)
{
    g_autoptr(GString) pending = g_string_new(NULL);
    g_autoptr(RowWriter) writer = row_writer_open(run->path, resume->keep_bytes, error);
    if (writer == NULL) {
        return FALSE;
    }
    Writing writing = {.run = run, .writer = writer, .pending = pending};
    if (resume->keep_bytes == 0) {
        g_string_append(pending, sweep_layout_header(run->layout));
    }
    if (!write_rows(&writing, resume->n_jobs)) {
        g_propagate_error(error, writing.error);
        if (row_writer_is_regular(writer)) {
            g_prefix_error(error, "after %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " points (--resume goes on from there): ",
                           writing.n_done, writing.n_jobs);
        }
        return FALSE;
    }
    if (interrupted(&writing, error) || !row_writer_close(g_steal_pointer(&writer), error)) {
        return FALSE;
    }
    if (run->path == NULL && run->shard.n == 1 && !writing.any_valid) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no row is valid%s", run->sweep->name,
                    writing.n_jobs > 0 ? "; their column reason says why, or a constraint leaves them out" : "");
        return FALSE;
    }
    return TRUE;
}

gboolean sweep_run(const SweepRun *run, GError **error)
{
    SweepResume resume = {0};
    if (!sweep_resume_begin(run, &resume, error)) {
        return FALSE;
    }
    command_catch_interrupt();
    return (resume.is_complete || run_into(run, &resume, error)) && sweep_resume_end(run, error);
}
