/*
 * Searches over a million layouts of the 2.8 T parameter model on 512 GPUs, each with its proof: how long on two threads, how
 * many of the plans were run. Target: two minutes of two cores, so 240 CPU seconds; a space that takes longer is stopped, and
 * says what is open. Spaces are the sweep files named, else those of tests/bench/spaces.
 */
#include "tests/bench/bench.h"

#include <glib.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/json-read.h"
#include "workloads/sweep/search.h"

enum { CPU_S_MAX = 240, THREADS = 2 };

typedef struct Watch {
    double start_s, limit_s;
    SearchProgress last;
} Watch;

static gboolean is_over(const SearchProgress *progress, void *data)
{
    Watch *watch = data;
    watch->last = *progress;
    return bench_cpu_s() - watch->start_s > watch->limit_s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files of the spaces, by name; caller frees with g_ptr_array_unref. */
static GPtrArray *space_files(const char *root)
{
    g_autofree char *dir = g_build_filename(root, "tests/bench/spaces", NULL);
    g_autoptr(GDir) entries = g_dir_open(dir, 0, NULL);
    GPtrArray *files = g_ptr_array_new_with_free_func(g_free);
    g_assert(entries != NULL);
    for (const char *name = g_dir_read_name(entries); name != NULL; name = g_dir_read_name(entries)) {
        g_ptr_array_add(files, g_build_filename(dir, name, NULL));
    }
    qsort(files->pdata, files->len, sizeof *files->pdata, by_name);
    return files;
}

static void search_file(const char *path, json_t *schema, double limit_s)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Sweep) sweep = sweep_load(path, schema, &error);
    g_autofree char *name = g_path_get_basename(path);
    Watch watch = {.start_s = bench_cpu_s(), .limit_s = limit_s};
    SearchOptions options = {THREADS, sweep != NULL ? MAX(sweep->top, 1) : 1, is_over, &watch};
    SearchResult result;
    gint64 start_us = g_get_monotonic_time();
    if (sweep == NULL || !search_run(sweep, &options, &result, &error)) {
        g_error("%s", error->message);
    }
    double best = result.best->len > 0 ? g_array_index(result.best, SearchBest, 0).objective : (double)NAN;
    printf("%-28s %8" G_GINT64_FORMAT " points: %6.1f s of CPU, %.1f s on %d threads; %" G_GINT64_FORMAT " layouts, %" G_GINT64_FORMAT
           " invalid, %" G_GINT64_FORMAT " without room, %" G_GINT64_FORMAT " ruled out; %" G_GINT64_FORMAT " bounds, %" G_GINT64_FORMAT
           " points run; best %.7g%s",
           name, sweep->n_points, bench_cpu_s() - watch.start_s, (double)(g_get_monotonic_time() - start_us) * 1e-6, THREADS,
           result.n_layouts, result.n_invalid, result.n_without_room, result.n_pruned, result.n_bounds, result.n_evaluated, best,
           result.is_proven ? "\n" : "");
    if (!result.is_proven) {
        printf("; NOT ENDED: %" G_GINT64_FORMAT " layouts open, bound %.7g\n", watch.last.n_open, result.unvisited);
    }
    fflush(stdout);
    search_result_clear(&result);
}

int main(int argc, char **argv)
{
    const char *root = g_getenv("MOESIM_SOURCE_ROOT"), *limit = g_getenv("MOESIM_BENCH_CPU_S");
    root = root != NULL ? root : ".";
    g_autofree char *path = g_build_filename(root, "reports/schema/plan.schema.json", NULL);
    g_autoptr(json_t) schema = json_load_file(path, 0, NULL);
    g_autoptr(GPtrArray) files = argc > 1 ? g_ptr_array_new() : space_files(root);
    g_assert(schema != NULL);
    for (int i = 1; i < argc; i++) {
        g_ptr_array_add(files, argv[i]);
    }
    for (guint i = 0; i < files->len; i++) {
        search_file(g_ptr_array_index(files, i), schema, limit != NULL ? g_ascii_strtod(limit, NULL) : CPU_S_MAX);
    }
    return 0;
}
