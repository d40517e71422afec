#include "models/graph.h"

#include <string.h>

#include "models/op.h"
#include "sim/base/quantity.h"

Graph *graph_new(Dtype compute)
{
    Graph *graph = g_new0(Graph, 1);
    graph->ops = g_array_new(FALSE, TRUE, sizeof(Op));
    graph->tensors = g_array_new(FALSE, TRUE, sizeof(GraphTensor));
    graph->params = g_array_new(FALSE, TRUE, sizeof(GraphParam));
    graph->inputs = g_array_new(FALSE, TRUE, sizeof(int));
    graph->outputs = g_array_new(FALSE, TRUE, sizeof(int));
    graph->attrs = g_ptr_array_new_with_free_func(g_free);
    graph->compute = compute;
    graph->ep_size = 1;
    return graph;
}

void graph_free(Graph *graph)
{
    if (graph == NULL) {
        return;
    }
    g_array_unref(graph->ops);
    g_array_unref(graph->tensors);
    g_array_unref(graph->params);
    g_array_unref(graph->inputs);
    g_array_unref(graph->outputs);
    g_ptr_array_unref(graph->attrs);
    g_free(graph);
}

Graph *graph_vary(const Graph *graph)
{
    Graph *copy = g_new0(Graph, 1);
    *copy = *graph;
    copy->ops = g_array_sized_new(FALSE, TRUE, sizeof(Op), graph->ops->len);
    g_array_append_vals(copy->ops, graph->ops->data, graph->ops->len);
    g_array_ref(copy->tensors);
    g_array_ref(copy->params);
    g_array_ref(copy->inputs);
    g_array_ref(copy->outputs);
    copy->attrs = g_ptr_array_new_with_free_func(g_free);
    return copy;
}

gboolean graph_is_variant(const Graph *a, const Graph *b)
{
    return a == b || (a != NULL && b != NULL && a->params == b->params);
}

size_t graph_size_bytes(const Graph *graph)
{
    enum { ATTR_BYTES = 64, ARRAYS = 6, ARRAY_BYTES = 48 }; /* attributes are small structs of many kinds */
    if (graph == NULL) {
        return 0;
    }
    /* arrays grow by doubling: up to twice what they hold */
    return sizeof *graph + ARRAYS * ARRAY_BYTES +
           2 * (graph->ops->len * sizeof(Op) + graph->tensors->len * sizeof(GraphTensor) +
                graph->params->len * sizeof(GraphParam) + (graph->inputs->len + graph->outputs->len) * sizeof(int)) +
           graph->attrs->len * (ATTR_BYTES + 2 * sizeof(void *));
}

RowSpace row_space_of_chunk(RowSpace space, int chunk)
{
    static const int places[ROWS_OF_CHUNKS] = {[ROWS_TOKENS] = 1, [ROWS_SLOTS] = 2, [ROWS_RECEIVED] = 3, [ROWS_ARRIVED] = 4};
    g_assert(chunk >= 0 && chunk <= TOKEN_CHUNKS_MAX);
    if (chunk == 0 || space >= ROWS_OF_CHUNKS || places[space] == 0) {
        return space;
    }
    return (RowSpace)(ROWS_OF_CHUNKS + N_CHUNK_SPACES * (chunk - 1) + places[space] - 1);
}

RowSpace row_space_kind(RowSpace space)
{
    static const RowSpace kinds[N_CHUNK_SPACES] = {ROWS_TOKENS, ROWS_SLOTS, ROWS_RECEIVED, ROWS_ARRIVED};
    return space < ROWS_OF_CHUNKS ? space : kinds[(space - ROWS_OF_CHUNKS) % N_CHUNK_SPACES];
}

int64_t token_chunk_start(int64_t tokens, int64_t n, int64_t c)
{
    int64_t each = tokens / n, more = tokens % n;
    return c * each + MIN(c, more);
}

void row_counts_cut(RowCounts *rows, int64_t n)
{
    int64_t tokens = rows->rows[ROWS_TOKENS];
    for (int64_t c = 0; c < n; c++) {
        rows->rows[row_space_of_chunk(ROWS_TOKENS, (int)c + 1)] = token_chunk_start(tokens, n, c + 1) - token_chunk_start(tokens, n, c);
    }
}

int graph_add_tensor(Graph *graph, const char *name, RowSpace rows, int64_t width, Dtype dtype)
{
    GraphTensor tensor = {
        .rows = row_space_of_chunk(rows, graph->chunk), .width = width, .dtype = dtype, .tag = MEM_ACTIVATIONS, .producer = -1};
    g_assert(width > 0);
    g_strlcpy(tensor.name, name, sizeof tensor.name);
    g_array_append_val(graph->tensors, tensor);
    return (int)graph->tensors->len - 1;
}

int graph_add_input(Graph *graph, const char *name, RowSpace rows, int64_t width, Dtype dtype, gboolean needs_grad)
{
    int idx = graph_add_tensor(graph, name, rows, width, dtype);
    graph_tensor(graph, idx)->needs_grad = needs_grad;
    g_array_append_val(graph->inputs, idx);
    return idx;
}

static int find_param(const Graph *graph, const char *name)
{
    for (guint i = 0; i < graph->params->len; i++) {
        if (strcmp(graph_param(graph, (int)i)->name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

int graph_add_param(Graph *graph, const char *name, ParamRole role, int64_t d0, int64_t d1, int64_t d2)
{
    if (graph->chunk > 1) {
        int shared = find_param(graph, name);
        g_assert(shared >= 0);
        return shared;
    }
    GraphParam param = {.dims = {d0, d1, d2}, .split = PARAM_DENSE, .role = role, .op = -1, .heads = 1};
    g_assert(d0 > 0 && (d1 > 0 || d2 == 0));
    param.n_dims = d2 > 0 ? 3 : d1 > 0 ? 2 : 1;
    param.trainable = !graph->freeze_base && role != PARAM_BUFFER;
    g_strlcpy(param.name, name, sizeof param.name);
    g_array_append_val(graph->params, param);
    return (int)graph->params->len - 1;
}

void graph_set_heads(Graph *graph, const char *name, int64_t heads)
{
    int found = find_param(graph, name);
    if (found >= 0) {
        GraphParam *param = graph_param(graph, found);
        g_assert(param->n_dims == 2 && param->dims[0] % heads == 0);
        param->heads = heads;
    }
}

gboolean graph_param_is_matrix(const GraphParam *param)
{
    return param->role == PARAM_MATRIX && param->n_dims >= 2;
}

void graph_add_output(Graph *graph, int tensor)
{
    g_array_append_val(graph->outputs, tensor);
}

/* Whether a gradient reaches the outputs of an operator through any of its inputs or parameters. */
static gboolean op_is_upstream(const Graph *graph, const Op *op, const OpClass *class)
{
    for (int i = 0; i < op->n_params; i++) {
        if (op->params[i] >= 0 && graph_param(graph, op->params[i])->trainable) {
            return TRUE;
        }
    }
    for (int i = 0; i < op->n_inputs; i++) {
        gboolean flows = op->inputs[i] >= 0 && !((class->no_grad_inputs | op->detached) >> i & 1u);
        if (flows && graph_tensor(graph, op->inputs[i])->needs_grad) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean graph_is_result(const Graph *graph, int tensor)
{
    return graph->outputs->len > 0 && g_array_index(graph->outputs, int, 0) == tensor;
}

gboolean graph_is_loss(const Graph *graph, int tensor)
{
    for (guint i = 1; i < graph->outputs->len; i++) {
        if (g_array_index(graph->outputs, int, i) == tensor) {
            return TRUE;
        }
    }
    return FALSE;
}

void graph_finish(Graph *graph)
{
    for (int o = 0; o < graph_n_ops(graph); o++) {
        Op *op = graph_op(graph, o);
        const OpClass *class = op_class(op->kind);
        gboolean upstream = op_is_upstream(graph, op, class);
        for (int i = 0; i < op->n_inputs; i++) {
            if (op->inputs[i] >= 0) {
                graph_tensor(graph, op->inputs[i])->n_consumers++;
            }
        }
        for (int i = 0; i < op->n_outputs; i++) {
            GraphTensor *tensor = graph_tensor(graph, op->outputs[i]);
            tensor->producer = o;
            tensor->needs_grad = upstream && !(class->no_grad_outputs >> i & 1u);
        }
        for (int i = 0; i < op->n_params; i++) {
            if (op->params[i] >= 0) {
                graph_param(graph, op->params[i])->op = o;
            }
        }
    }
}

GraphTensor *graph_tensor(const Graph *graph, int idx)
{
    g_assert(idx >= 0 && (guint)idx < graph->tensors->len);
    return &g_array_index(graph->tensors, GraphTensor, idx);
}

GraphParam *graph_param(const Graph *graph, int idx)
{
    g_assert(idx >= 0 && (guint)idx < graph->params->len);
    return &g_array_index(graph->params, GraphParam, idx);
}

Op *graph_op(const Graph *graph, int idx)
{
    g_assert(idx >= 0 && (guint)idx < graph->ops->len);
    return &g_array_index(graph->ops, Op, idx);
}

int graph_n_ops(const Graph *graph)
{
    return (int)graph->ops->len;
}

int64_t graph_param_numel(const GraphParam *param)
{
    int64_t n = 1;
    for (int i = 0; i < param->n_dims; i++) {
        gboolean fits = quantity_mul(n, param->dims[i], &n);
        g_assert(fits);
    }
    return n;
}

int64_t graph_tensor_numel(const GraphTensor *tensor, const RowCounts *rows)
{
    int64_t n;
    gboolean fits = quantity_mul(rows->rows[tensor->rows], tensor->width, &n);
    g_assert(fits);
    return n;
}

int64_t graph_tensor_bytes(const GraphTensor *tensor, const RowCounts *rows)
{
    return dtype_bytes(tensor->dtype, graph_tensor_numel(tensor, rows));
}
