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

static int64_t sample_tokens(const RoutingSpec *spec)
{
    return spec->sample_tokens > 0 ? spec->sample_tokens : SAMPLE_TOKENS;
}

static int64_t state_width(const RoutingSpec *spec)
{
    return MIN(spec->model->hidden, WIDTH_MAX);
}

double *router_sample(const RoutingSpec *spec)
{
    int64_t n = sample_tokens(spec) * state_width(spec);
    double *own = g_new(double, n), size = sqrt(1 - common_part * common_part - sequence_part * sequence_part);
    for (int64_t i = 0; i < n; i++) {
        own[i] = size * normal(spec, 0, (uint64_t)((SEQUENCES + 1) * state_width(spec) + i));
    }
    return own;
}

/* States of one layer: what all tokens and those of a sequence have in common is its own. */
static Tensor *hidden_states(const RoutingSpec *spec, const double *own, int table)
{
    int64_t n = sample_tokens(spec), width = state_width(spec);
    Tensor *x = tensor_new_2d(TENSOR_F64, n, width);
    double *values = x->data;
    g_autofree double *common = g_new(double, width);
    int64_t last = -1;
    for (int64_t token = 0; token < n; token++) {
        int64_t sequence = token * SEQUENCES / n;
        for (int64_t at = 0; sequence != last && at < width; at++) {
            common[at] = common_part * normal(spec, table, (uint64_t)at) +
                         sequence_part * normal(spec, table, (uint64_t)((sequence + 1) * width + at));
        }
        last = sequence;
        for (int64_t at = 0; at < width; at++) {
            values[token * width + at] = common[at] + own[token * width + at];
        }
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

void router_load(const RoutingSpec *spec, const double *sample, int table, double *ret_share)
{
    int64_t n = sample_tokens(spec), width = state_width(spec);
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
    g_autoptr(Tensor) states = hidden_states(spec, sample, table);
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
