#include <string.h>

#include "workloads/lower/lowering.h"

int lowering_find_segment(const Lowering *lowering, const SegmentKey *key)
{
    for (guint i = 0; i < lowering->cache->len; i++) {
        const CachedSegment *cached = &g_array_index(lowering->cache, CachedSegment, i);
        if (memcmp(&cached->key, key, sizeof *key) == 0) {
            return cached->segment;
        }
    }
    return -1;
}

/* Starts a segment for a key; the emitter then writes into it. */
int lowering_start_segment(Lowering *lowering, const SegmentKey *key, const char *name, const Graph *graph)
{
    int segment = program_add_segment(lowering->program, name, graph);
    if (key != NULL) {
        CachedSegment cached = {*key, segment};
        g_array_append_val(lowering->cache, cached);
    }
    lowering->emitter.segment = program_segment(lowering->program, segment);
    return segment;
}

Call *lowering_add_call(Lowering *lowering, int segment, int64_t layer, int64_t micro_batch)
{
    Call call = {.segment = segment, .layer = (gint32)layer, .micro_batch = (gint32)micro_batch};
    g_array_append_val(lowering->program->calls, call);
    return &g_array_index(lowering->program->calls, Call, lowering->program->calls->len - 1);
}

void lowering_call_group(Call *call, int arg, const GroupSite *site)
{
    call->args[arg] = site->buffer;
    call->args[arg + 1] = site->token;
}

gint32 lowering_boundary(const Lowering *lowering, int64_t value)
{
    return lowering->boundary + (gint32)(value * N_BOUNDARY);
}

/*
 * Boundary values that layer i reads (n_layers: the head): without attention residuals the one before it; with them the
 * value at the start of every block so far, then the running prefix. Value 0 is the embedding, value i + 1 layer i's
 * output.
 */
int lowering_layer_sources(const Lowering *lowering, int64_t layer, int64_t *ret_values)
{
    int64_t block = lowering->plan->model->attnres_block;
    int n = 0;
    for (int64_t start = 0; block > 0 && start < layer; start += block) {
        ret_values[n++] = start;
    }
    ret_values[n++] = layer;
    return n;
}

void lowering_call_sources(const Lowering *lowering, Call *call, const Graph *graph, int64_t layer)
{
    int64_t values[CALL_ARGS_MAX];
    int n = lowering_layer_sources(lowering, layer, values), source = 0;
    for (guint i = 0; i < graph->inputs->len; i++) {
        const GraphTensor *input = graph_tensor(graph, g_array_index(graph->inputs, int, i));
        gboolean is_data = input->dtype == DTYPE_INT64;
        g_assert(is_data || source < n);
        call->args[ARG_SOURCES + i] = is_data ? lowering->inputs : lowering_boundary(lowering, values[source++]);
    }
}

/* Input of the graph that dies in its backward: the last boundary value it reads. */
int lowering_dying_source(const Graph *graph)
{
    int last = -1;
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (graph_tensor(graph, g_array_index(graph->inputs, int, i))->dtype != DTYPE_INT64) {
            last = (int)i;
        }
    }
    return last;
}

LayerPass lowering_pass(Lowering *lowering, const Graph *graph, const RowCounts *rows)
{
    return (LayerPass){.emitter = &lowering->emitter,
                       .graph = graph,
                       .rows = rows,
                       .free_flat = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT,
                       .reshard = lowering->plan->reshard_after_forward,
                       .first_micro_batch = TRUE,
                       .dying_source = -1,
                       .sources_are_shared = lowering->plan->model->attnres_block > 0,
                       .next_op = -1,
                       .cut_tensor = -1};
}
