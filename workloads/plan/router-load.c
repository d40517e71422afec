#include "workloads/plan/router-load.h"

#include <math.h>

#include "models/execute.h"
#include "models/ops/router.h"
#include "sim/base/rng.h"
#include "workloads/plan/balanced-load.h"

enum { WIDTH_MAX = 128, SAMPLE_TOKENS = 8192, SEQUENCES = 32 };

/*
 * Norms of the parts of a hidden state. The tail of a normal score falls by some 1.8 of its deviations per deviation where 6
 * of 64 experts lie above, so these make the spreads of log-popularity of routing-draw.c, 0.175 and 0.24, of deviations.
 */
static const double common_part = 0.1, sequence_part = 0.135;

static double normal(const RoutingSpec *spec, int table, uint64_t index)
{
    return rng_normal(spec->seed, RNG_EXPERTS, ((uint64_t)table + 1) << 40 | index);
}

static Tensor *hidden_states(const RoutingSpec *spec, int table, int64_t n, int64_t width)
{
    Tensor *x = tensor_new_2d(TENSOR_F64, n, width);
    double own = sqrt(1 - common_part * common_part - sequence_part * sequence_part);
    for (int64_t i = 0; i < n * width; i++) {
        int64_t token = i / width, at = i % width, sequence = token * SEQUENCES / n;
        double common = normal(spec, table, (uint64_t)at);
        double of_sequence = normal(spec, table, (uint64_t)((sequence + 1) * width + at));
        double rest = normal(spec, table, (uint64_t)((SEQUENCES + 1) * width + i));
        tensor_set(x, i, common_part * common + sequence_part * of_sequence + own * rest);
    }
    return x;
}

/* Weights of a deviation that gives logits of deviation 1; a bias buffer of zeros as at the start of training. */
static Tensor *random_param(const RoutingSpec *spec, int table, const GraphParam *param, int64_t width)
{
    Tensor *value = tensor_new(TENSOR_F64, param->n_dims, param->dims);
    for (int64_t i = 0; param->role == PARAM_MATRIX && i < tensor_numel(value); i++) {
        tensor_set(value, i, normal(spec, table, (uint64_t)1 << 38 | (uint64_t)i) / sqrt((double)width));
    }
    return value;
}

void router_load(const RoutingSpec *spec, int table, double *ret_share)
{
    int64_t n = spec->sample_tokens > 0 ? spec->sample_tokens : SAMPLE_TOKENS, width = MIN(spec->model->hidden, WIDTH_MAX);
    RouterAttr attr = router_of_model(spec->model);
    attr.experts = spec->experts; /* a spec may ask for other sizes */
    attr.top_k = spec->top_k;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n, [ROWS_EXPERTS] = spec->experts, [ROWS_SEQUENCES] = 1}, .seq_len = n};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    g_autoptr(GPtrArray) params = g_ptr_array_new_with_free_func((GDestroyNotify)tensor_free);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, width, DTYPE_FP64, FALSE);
    RouterTensors tensors = router_add(graph, "gate", x, &attr);
    graph_add_output(graph, tensors.weights);
    graph_finish(graph);
    g_autoptr(Tensor) states = hidden_states(spec, table, n, width);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    execute_put(run, x, states);
    for (guint p = 0; p < graph->params->len; p++) {
        g_ptr_array_add(params, random_param(spec, table, graph_param(graph, (int)p), width));
        execute_put_param(run, (int)p, g_ptr_array_index(params, p));
    }
    gboolean ok = execute_forward(run, NULL);
    g_assert(ok);
    load_from_sample(execute_value(run, tensors.counts)->data, spec->experts, spec->top_k, n, ret_share);
}
