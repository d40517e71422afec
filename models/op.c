#include "models/op.h"

#include <string.h>

#include "sim/base/quantity.h"

#define OP(id, title) extern const OpClass op_##id;
#include "models/ops.def"
#undef OP

static const OpClass *const op_classes[N_OPS] = {
#define OP(id, title) [OP_##id] = &op_##id,
#include "models/ops.def"
#undef OP
};

const OpClass *op_class(OpKind kind)
{
    g_assert(kind < N_OPS);
    return op_classes[kind];
}

gboolean op_kind_from_id(const char *id, OpKind *ret_kind)
{
    for (int i = 0; i < N_OPS; i++) {
        if (strcmp(op_classes[i]->id, id) == 0) {
            *ret_kind = (OpKind)i;
            return TRUE;
        }
    }
    return FALSE;
}

Op *op_add(Graph *graph, OpKind kind, const char *name, const void *attr, size_t attr_size)
{
    Op op = {.kind = kind, .eager = graph->eager_default, .chunk = graph->chunk};
    if (graph->chunk > 0) {
        g_snprintf(op.name, sizeof op.name, "%s.chunk%d", name, graph->chunk - 1);
    } else {
        g_strlcpy(op.name, name, sizeof op.name);
    }
    if (attr_size > 0) {
        void *copy = g_memdup2(attr, attr_size);
        g_ptr_array_add(graph->attrs, copy);
        op.attr = copy;
    }
    graph->n_chunks = MAX(graph->n_chunks, graph->chunk);
    g_array_append_val(graph->ops, op);
    return graph_op(graph, graph_n_ops(graph) - 1);
}

void op_input(Op *op, int tensor)
{
    g_assert(op->n_inputs < OP_INPUTS_MAX);
    op->inputs[op->n_inputs++] = tensor;
}

void op_output(Graph *graph, Op *op, int tensor)
{
    g_assert(op->n_outputs < OP_OUTPUTS_MAX);
    graph_tensor(graph, tensor)->producer = (int)(op - (Op *)(void *)graph->ops->data);
    op->outputs[op->n_outputs++] = tensor;
}

void op_param(Graph *graph, Op *op, int param)
{
    g_assert(op->n_params < OP_PARAMS_MAX);
    if (param >= 0) {
        graph_param(graph, param)->op = (int)(op - (Op *)(void *)graph->ops->data);
    }
    op->params[op->n_params++] = param;
}

const GraphTensor *op_in(const OpView *view, int i)
{
    return graph_tensor(view->graph, view->op->inputs[i]);
}

const GraphTensor *op_out(const OpView *view, int i)
{
    return graph_tensor(view->graph, view->op->outputs[i]);
}

const GraphParam *op_weight(const OpView *view, int i)
{
    return graph_param(view->graph, view->op->params[i]);
}

int64_t op_rows(const OpView *view, RowSpace space)
{
    return view->rows->rows[row_space_of_chunk(space, view->op->chunk)];
}

const int64_t *op_expert_rows(const OpView *view)
{
    const RowCounts *rows = view->rows;
    if (view->op->chunk == 0) {
        return rows->local_expert_rows;
    }
    return rows->chunk_expert_rows != NULL ? rows->chunk_expert_rows + (view->op->chunk - 1) * rows->rows[ROWS_LOCAL_EXPERTS] : NULL;
}

int64_t op_in_bytes(const OpView *view, int i)
{
    return graph_tensor_bytes(op_in(view, i), view->rows);
}

int64_t op_out_bytes(const OpView *view, int i)
{
    return graph_tensor_bytes(op_out(view, i), view->rows);
}

int64_t op_in_elem_bytes(const OpView *view, int i)
{
    return dtype_bytes(op_in(view, i)->dtype, 1);
}

int64_t op_weight_bytes(const OpView *view, int i)
{
    const GraphParam *param = op_weight(view, i);
    return dtype_bytes(param->always_fp32 ? DTYPE_FP32 : view->graph->compute, graph_param_numel(param));
}

OpKind op_in_maker(const OpView *view, int i, gboolean *ret_eager)
{
    int producer = op_in(view, i)->producer;
    if (producer < 0) {
        *ret_eager = FALSE;
        return N_OPS;
    }
    *ret_eager = graph_op(view->graph, producer)->eager;
    return graph_op(view->graph, producer)->kind;
}

gboolean op_needs_input_grad(const OpView *view, int i)
{
    guint32 blocked = op_class(view->op->kind)->no_grad_inputs | view->op->detached;
    if (i >= view->op->n_inputs || view->op->inputs[i] < 0 || (blocked >> i & 1u)) {
        return FALSE;
    }
    return op_in(view, i)->needs_grad;
}

gboolean op_trains_param(const OpView *view, int i)
{
    return i < view->op->n_params && view->op->params[i] >= 0 && op_weight(view, i)->trainable;
}

int64_t op_counted_slots(const OpView *view, const Tensor *counts)
{
    const OpClass *class = op_class(view->op->kind);
    int64_t n = tensor_numel(counts), sum = 0;
    int64_t padded = class->padded_slots != NULL ? class->padded_slots(view) : 0;
    for (int64_t e = 0; e < n; e++) {
        sum += padded > 0 ? padded : ((const int64_t *)counts->data)[e];
    }
    return sum;
}

gboolean op_has_backward(const OpView *view)
{
    for (int i = 0; i < view->op->n_inputs; i++) {
        if (op_needs_input_grad(view, i)) {
            return TRUE;
        }
    }
    for (int i = 0; i < view->op->n_params; i++) {
        if (op_trains_param(view, i)) {
            return TRUE;
        }
    }
    return FALSE;
}

static Work *op_cost_next(OpCost *cost)
{
    g_assert(cost->n_works < OP_WORKS_MAX);
    Work *work = &cost->works[cost->n_works++];
    *work = (Work){.dtype = DTYPE_BF16, .n_launches = 1};
    return work;
}

Work *op_cost_stream(OpCost *cost, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes)
{
    Work *work = op_cost_next(cost);
    work->law = law;
    work->flops = flops;
    work->read_bytes = read_bytes;
    work->write_bytes = write_bytes;
    return work;
}

Work *op_cost_gemm(OpCost *cost, WorkLaw law, Dtype dtype, int64_t m, int64_t n, int64_t k)
{
    Work *work = op_cost_next(cost);
    work->law = law;
    work->dtype = dtype;
    work->m = m;
    work->n = n;
    work->k = k;
    work->flops = 2.0 * (double)m * (double)n * (double)k;
    work->read_bytes = dtype_bytes(dtype, m * k) + dtype_bytes(dtype, n * k);
    work->write_bytes = dtype_bytes(dtype, m * n);
    return work;
}

double op_cost_flops(const OpCost *cost)
{
    double sum = 0;
    for (int i = 0; i < cost->n_works; i++) {
        sum += cost->works[i].flops * cost->works[i].n_launches;
    }
    return sum;
}

int64_t op_cost_bytes(const OpCost *cost)
{
    int64_t sum = 0;
    for (int i = 0; i < cost->n_works; i++) {
        sum += (cost->works[i].read_bytes + cost->works[i].write_bytes) * cost->works[i].n_launches;
    }
    return sum;
}

int op_cost_launches(const OpCost *cost)
{
    int sum = 0;
    for (int i = 0; i < cost->n_works; i++) {
        sum += cost->works[i].n_launches;
    }
    return sum;
}

int op_saved_aux(OpSaved *saved, RowSpace rows, int64_t width, Dtype dtype)
{
    g_assert(saved->n_aux < OP_AUX_MAX);
    saved->aux[saved->n_aux] = (OpAux){rows, width, dtype};
    return saved->n_aux++;
}

int64_t op_aux_bytes(const OpAux *aux, const RowCounts *rows)
{
    return dtype_bytes(aux->dtype, rows->rows[aux->rows] * aux->width);
}

void op_count(const OpRun *run, double flops, int64_t read_elems, int64_t write_elems)
{
    if (run->counter != NULL) {
        run->counter->flops += flops;
        run->counter->read_bytes += read_elems * (int64_t)sizeof(double);
        run->counter->write_bytes += write_elems * (int64_t)sizeof(double);
    }
}

void op_count_bytes(const OpRun *run, double flops, int64_t read_bytes, int64_t write_bytes)
{
    if (run->counter != NULL) {
        run->counter->flops += flops;
        run->counter->read_bytes += read_bytes;
        run->counter->write_bytes += write_bytes;
    }
}
