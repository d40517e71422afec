#include "models/check-sample.h"

#include "sim/base/error.h"
#include "sim/base/rng.h"

gboolean check_sample_fail(const Sample *s, const char *what, GError **error)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s sample %d: %s", s->class->id, s->idx, what);
    return FALSE;
}

gboolean check_sample_build(const OpClass *class, int idx, Graph **ret_graph, RowCounts *ret_rows)
{
    Graph *graph = graph_new(DTYPE_FP64);
    *ret_rows = (RowCounts){.rows = {[ROWS_ONE] = 1}};
    if (class->sample == NULL || !class->sample(idx, graph, ret_rows)) {
        graph_free(graph);
        return FALSE;
    }
    *ret_graph = graph;
    return TRUE;
}

gboolean check_is_integer(Dtype dtype)
{
    return dtype == DTYPE_INT64 || dtype == DTYPE_INT32 || dtype == DTYPE_INT8;
}

static Tensor *random_tensor(int n_dims, const int64_t *dims, uint64_t stream)
{
    Tensor *tensor = tensor_new(TENSOR_F64, n_dims, dims);
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(tensor, i, rng_normal(stream, RNG_VALUES, (uint64_t)i));
    }
    return tensor;
}

/* In a float64 graph every real tensor has 8 bytes, so counted bytes can equal the formula's. */
static void widen(Graph *graph)
{
    for (guint i = 0; i < graph->tensors->len; i++) {
        GraphTensor *tensor = graph_tensor(graph, (int)i);
        tensor->dtype = check_is_integer(tensor->dtype) ? DTYPE_INT64 : DTYPE_FP64;
    }
}

static void fill_values(Sample *s)
{
    const Graph *graph = s->graph;
    for (guint i = 0; i < graph->inputs->len; i++) {
        int at = g_array_index(graph->inputs, int, i);
        const GraphTensor *shape = graph_tensor(graph, at);
        int64_t dims[2] = {s->rows.rows[shape->rows], shape->width};
        s->values[at] =
            check_is_integer(shape->dtype) ? tensor_new(TENSOR_I64, 2, dims) : random_tensor(2, dims, 100 + i);
    }
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        int64_t dims[3] = {param->dims[0], param->dims[1], param->dims[2]};
        if (param->split == PARAM_EXPERT) {
            dims[0] /= graph->ep_size;
        }
        s->params[i] = random_tensor(param->n_dims, dims, 200 + i);
    }
    for (guint i = 0; i < graph->outputs->len; i++) {
        int at = g_array_index(graph->outputs, int, i);
        const GraphTensor *shape = graph_tensor(graph, at);
        int64_t dims[2] = {s->rows.rows[shape->rows], shape->width};
        s->seeds[at] = shape->needs_grad && !check_is_integer(shape->dtype) ? random_tensor(2, dims, 300 + i) : NULL;
    }
}

/* The class's own values for the operators of its kind. */
static void fill_special(Sample *s)
{
    for (int o = 0; s->class->sample_fill != NULL && o < graph_n_ops(s->graph); o++) {
        const Op *op = graph_op(s->graph, o);
        OpView view = {s->graph, op, &s->rows};
        Tensor *in[OP_INPUTS_MAX] = {NULL}, *param[OP_PARAMS_MAX] = {NULL};
        if (op_class(op->kind) != s->class) {
            continue;
        }
        for (int i = 0; i < op->n_inputs; i++) {
            in[i] = op->inputs[i] >= 0 ? s->values[op->inputs[i]] : NULL;
        }
        for (int i = 0; i < op->n_params; i++) {
            param[i] = op->params[i] >= 0 ? s->params[op->params[i]] : NULL;
        }
        s->class->sample_fill(s->idx, &view, in, param);
    }
}

void check_sample_clear(Sample *s)
{
    for (guint i = 0; i < s->graph->tensors->len; i++) {
        tensor_free(s->values[i]);
        tensor_free(s->seeds[i]);
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        tensor_free(s->params[i]);
    }
    g_free(s->values);
    g_free(s->seeds);
    g_free(s->params);
    graph_free(s->graph);
}

gboolean check_is_chain(Variant variant)
{
    return variant >= VARIANT_CHAIN;
}

/* Before the graph is finished a variant freezes what it does not differentiate. */
gboolean check_sample_init(Sample *s, OpKind kind, int idx, Variant variant)
{
    gboolean is_chain = check_is_chain(variant);
    gboolean is_frozen = variant == VARIANT_FROZEN || variant == VARIANT_CHAIN_FROZEN;
    gboolean no_input_grad = variant == VARIANT_NO_INPUT_GRAD || variant == VARIANT_CHAIN_NO_INPUT_GRAD;
    *s = (Sample){.class = op_class(kind), .idx = idx};
    if (!check_sample_build(s->class, idx, &s->graph, &s->rows)) {
        return FALSE;
    }
    for (guint i = 0; is_frozen && i < s->graph->params->len; i++) {
        graph_param(s->graph, (int)i)->trainable = FALSE;
    }
    for (guint i = 0; no_input_grad && i < s->graph->inputs->len; i++) {
        graph_tensor(s->graph, g_array_index(s->graph->inputs, int, i))->needs_grad = FALSE;
    }
    for (int o = 0; is_chain && o < graph_n_ops(s->graph); o++) {
        graph_op(s->graph, o)->eager = TRUE;
    }
    widen(s->graph);
    graph_finish(s->graph);
    s->values = g_new0(Tensor *, s->graph->tensors->len + 1);
    s->seeds = g_new0(Tensor *, s->graph->tensors->len + 1);
    s->params = g_new0(Tensor *, s->graph->params->len + 1);
    fill_values(s);
    fill_special(s);
    return TRUE;
}

Execution *check_sample_run(const Sample *s)
{
    Execution *run = execute_new(s->graph, &s->rows, TENSOR_F64);
    for (guint i = 0; i < s->graph->inputs->len; i++) {
        int at = g_array_index(s->graph->inputs, int, i);
        execute_put(run, at, s->values[at]);
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        execute_put_param(run, (int)i, s->params[i]);
    }
    return run;
}

void check_sample_seed(const Sample *s, Execution *run)
{
    for (guint i = 0; i < s->graph->outputs->len; i++) {
        int at = g_array_index(s->graph->outputs, int, i);
        if (s->seeds[at] != NULL) {
            execute_put_grad(run, at, s->seeds[at]);
        }
    }
}
