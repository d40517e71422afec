#include "reports/cli/sweep-search.h"

#include <math.h>
#include <string.h>

#include "reports/cli/command.h"
#include "reports/cli/sweep-report.h"
#include "reports/cli/sweep-workers.h"
#include "reports/out/text.h"
#include "sim/base/error.h"
#include "workloads/sweep/search.h"

enum { LABEL = 12, WIDTH = 100 };

/* ---- progress ---- */

/* How long the rest takes cannot be known: what is told is how far the best found is from what may still be found. */
static gboolean stop(const SearchProgress *progress, void *data)
{
    gint64 *shown_us = data, now = g_get_monotonic_time();
    if (now - *shown_us > 200000) {
        *shown_us = now;
        g_autoptr(GString) text = g_string_new(progress->is_started ? NULL : "memory between steps");
        if (progress->is_started) {
            g_string_append_printf(text,
                                   "%" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " layouts open, %" G_GINT64_FORMAT " bounds, %" G_GINT64_FORMAT
                                   " combinations evaluated",
                                   progress->n_open, progress->n_layouts, progress->n_bounds, progress->n_evaluated);
        }
        if (isfinite(progress->best)) {
            g_string_append_printf(text, "; best %.6g", progress->best);
        }
        if (isfinite(progress->bound)) {
            g_string_append_printf(text, ", %.6g not ruled out", progress->bound);
        }
        command_progress_text(text->str);
    }
    return command_interrupted(NULL);
}

/* ---- rows ---- */

/* The cells of a point's row, NULL when it has none; adds the row to the text, which may be NULL. */
static GPtrArray *point_cells(SweepEvaluator *evaluator, const SweepLayout *layout, int64_t point, GString *text)
{
    g_autofree char *row = sweep_evaluator_row(evaluator, point);
    if (row == NULL) {
        return NULL;
    }
    if (text != NULL) {
        g_string_append(text, row);
    }
    return row_cells(sweep_layout_format(layout), row, strlen(row));
}

static void cells_unref(void *cells)
{
    g_ptr_array_unref(cells);
}

/* The rows in which one axis alone is turned from the point. */
static GPtrArray *turned_rows(SweepEvaluator *evaluator, const SweepRun *run, int64_t point)
{
    GPtrArray *rows = g_ptr_array_new_with_free_func(cells_unref);
    int64_t stride = 1;
    for (guint a = run->sweep->axes->len; a-- > 0;) {
        int64_t n = g_array_index(run->sweep->axes, SweepAxis, a).n_values, here = point / stride % n;
        for (int64_t v = 0; v < n && !command_interrupted(NULL); v++) {
            GPtrArray *cells = v != here ? point_cells(evaluator, run->layout, point + (v - here) * stride, NULL) : NULL;
            if (cells != NULL) {
                g_ptr_array_add(rows, cells);
            }
        }
        stride *= n;
    }
    return rows;
}

/* ---- what is proven ---- */

static char *title_text(const SweepRun *run, const SearchResult *result)
{
    GString *out = g_string_new(NULL);
    const SweepGoal *goal = &run->sweep->objective;
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(text,
                           "%s: %" G_GINT64_FORMAT " combinations in %" G_GINT64_FORMAT " layouts; %" G_GINT64_FORMAT
                           " are invalid, %" G_GINT64_FORMAT " cannot fit, %" G_GINT64_FORMAT
                           " cannot be among the best; %" G_GINT64_FORMAT " bounds, %" G_GINT64_FORMAT " combinations evaluated",
                           run->sweep->name, run->sweep->n_points, result->n_layouts, result->n_invalid, result->n_without_room,
                           result->n_pruned, result->n_bounds, result->n_evaluated);
    g_string_append_printf(out, "%-*s", LABEL, "Search");
    text_append_wrapped(out, text->str, LABEL, WIDTH);
    g_string_append_printf(out, "%-*s%s, %s is better\n", LABEL, "Objective", goal->path, goal->maximize ? "higher" : "lower");
    g_string_truncate(text, 0);
    gboolean full = (int64_t)result->best->len >= MAX(run->sweep->top, 1);
    if (!result->is_proven && !isfinite(result->unvisited)) {
        g_string_append(text, "nothing: it was interrupted before all layouts had a bound");
    } else if (!result->is_proven) {
        g_string_append_printf(text, "no combination that was not evaluated has %s %s %.6g; interrupted, so some may be better than the best here", goal->path,
                               goal->maximize ? "above" : "below", result->unvisited);
    } else if (!full) {
        g_string_append(text, "every combination that can fit was evaluated");
    } else {
        g_string_append_printf(text, "no combination that was not evaluated has %s %s %.6g, that of the last row here", goal->path,
                               goal->maximize ? "above" : "below",
                               g_array_index(result->best, SearchBest, result->best->len - 1).objective);
    }
    g_string_append_printf(out, "%-*s", LABEL, "Proven");
    text_append_wrapped(out, text->str, LABEL, WIDTH);
    return g_string_free(out, FALSE);
}

static gboolean write_rows(const SweepRun *run, const GString *text, GError **error)
{
    RowWriter *writer = row_writer_open(run->path, 0, error);
    if (writer == NULL) {
        return FALSE;
    }
    if (!row_writer_append(writer, text->str, text->len, error)) {
        row_writer_free(writer);
        return FALSE;
    }
    return row_writer_close(writer, error);
}

/* Rows to the file, the report to standard output; without a file rows alone. */
static gboolean tell(const SweepRun *run, const SearchResult *result, GError **error)
{
    SweepWork work = {run->sweep, run->layout, {0, 1}, 0};
    SweepEvaluator *evaluator = sweep_evaluator_new(&work);
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(cells_unref);
    g_autoptr(GPtrArray) turned = NULL;
    g_autoptr(GString) text = g_string_new(sweep_layout_header(run->layout));
    for (guint i = 0; i < result->best->len; i++) {
        g_ptr_array_add(rows, point_cells(evaluator, run->layout, g_array_index(result->best, SearchBest, i).point, text));
    }
    turned = rows->len > 0 && run->path != NULL
                 ? turned_rows(evaluator, run, g_array_index(result->best, SearchBest, 0).point)
                 : g_ptr_array_new_with_free_func(cells_unref);
    sweep_evaluator_free(evaluator);
    if (!write_rows(run, text, error)) {
        return FALSE;
    }
    g_autofree char *title = title_text(run, result);
    g_autofree char *report = sweep_report_of_rows(run->sweep, run->layout, title, rows, turned);
    return run->path == NULL || command_print(error, "%s", report);
}

gboolean sweep_search(const SweepRun *run, GError **error)
{
    SearchResult result;
    gint64 shown_us = 0;
    SearchOptions options = {run->n_threads, MAX(run->sweep->top, 1), stop, &shown_us};
    command_catch_interrupt();
    if (!search_run(run->sweep, &options, &result, error)) {
        return FALSE;
    }
    command_progress_text("");
    gboolean ok = tell(run, &result, error);
    if (ok && result.n_invalid == result.n_layouts) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no combination is valid; a sweep says why", run->sweep->name);
        ok = FALSE;
    }
    if (ok && !result.is_proven) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_CANCELED, "interrupted; the best so far are written");
        ok = FALSE;
    }
    search_result_clear(&result);
    return ok;
}
