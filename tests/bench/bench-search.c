/*
 * A search over a million layouts of the 2.8 T parameter model on 512 GPUs, with its proof: how long on two threads, how many of
 * its plans were run. Target: two minutes of two cores.
 */
#include "tests/bench/bench.h"

#include <glib.h>

#include "sim/base/json-read.h"
#include "workloads/sweep/search.h"

static const char space_text[] =
    "{\"base\": {\"model\": \"kimi-k3\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 64, \"gpus_per_node\": 8},"
    " \"workload\": {\"mode\": \"pretrain\", \"seq_len\": 8192, \"global_batch\": 4096}, \"precision\": {\"parameters\": \"bf16\"}},"
    " \"grid\": {\"parallel.dp_replicate\": [1, 2, 4, 8], \"parallel.ep\": [8, 16, 32, 64, 128, 256],"
    " \"parallel.fsdp.prefetch\": [\"implicit\", \"explicit\"], \"parallel.fsdp.reshard_after_forward\": [true, false],"
    " \"workload.micro_batch\": [1, 2, 4],"
    " \"optimizer.kind\": [\"adamw\", \"muon\"], \"optimizer.moments\": [\"bf16\", \"fp32\"], \"optimizer.offload\": [false, true],"
    " \"optimizer.master_weights\": [false, true], \"precision.reduce\": [\"fp32\", \"bf16\"],"
    " \"loss.seq_chunk\": [0, 256, 512, 1024, 2048, 4096, 8192], \"loss.vocab_chunk\": [0, 16384, 32768]},"
    " \"list\": [{\"memory.recompute\": \"none\"}, {\"memory.recompute\": \"full\"}, {\"memory.recompute\": \"selective\"},"
    " {\"memory.recompute\": \"selective\", \"memory.keep\": [\"attention\"]},"
    " {\"memory.recompute\": \"selective\", \"memory.keep\": [\"matmul\"]},"
    " {\"memory.recompute\": \"selective\", \"memory.keep\": [\"attention\", \"all_to_all\"]}]}";

static gboolean never(const char *what, int64_t n_done, int64_t n_all, void *data)
{
    (void)what;
    (void)n_done;
    (void)n_all;
    (void)data;
    return FALSE;
}

int main(void)
{
    const char *root = g_getenv("MOESIM_SOURCE_ROOT");
    g_autofree char *path = g_build_filename(root != NULL ? root : ".", "reports/schema/plan.schema.json", NULL);
    g_autoptr(json_t) schema = json_load_file(path, 0, NULL);
    g_autoptr(Sweep) sweep = schema != NULL ? sweep_parse(space_text, "space", schema, NULL) : NULL;
    SearchOptions options = {2, 5, never, NULL};
    SearchResult result;
    g_assert(sweep != NULL);
    gint64 start_us = g_get_monotonic_time();
    double start_s = bench_cpu_s();
    g_assert(search_run(sweep, &options, &result, NULL) && result.is_proven && result.best->len > 0);
    printf("%" G_GINT64_FORMAT " points: %.1f s of CPU, %.1f s on two threads; %" G_GINT64_FORMAT " layouts, %" G_GINT64_FORMAT
           " without room, %" G_GINT64_FORMAT " ruled out by bounds, %" G_GINT64_FORMAT " points run; best %.6g (target 120 s)\n",
           sweep->n_points, bench_cpu_s() - start_s, (double)(g_get_monotonic_time() - start_us) * 1e-6, result.n_nodes,
           result.n_without_room, result.n_pruned, result.n_evaluated, g_array_index(result.best, SearchBest, 0).objective);
    search_result_clear(&result);
    return 0;
}
