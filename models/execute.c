#include "models/execute.h"

typedef struct Kept {
    Tensor *aux[OP_AUX_MAX];
} Kept;

struct Execution {
    const Graph *graph;
    RowCounts rows;
    TensorType real;
    OpReal kernels;
    OpCounter *counter;
    GPtrArray *values;      /* Tensor * by tensor, owned */
    GPtrArray *grads;       /* by tensor, owned */
    GPtrArray *param_grads; /* by parameter, owned */
    const Tensor **given;   /* by tensor, borrowed */
    const Tensor **params;  /* by parameter, borrowed */
    Kept *kept;             /* by operator */
};

static void tensor_free_any(void *tensor)
{
    tensor_free(tensor);
}

static GPtrArray *tensor_slots(guint n)
{
    GPtrArray *slots = g_ptr_array_new_with_free_func(tensor_free_any);
    g_ptr_array_set_size(slots, (int)n);
    return slots;
}

/* Replaces what stands in a slot. */
static void slot_set(GPtrArray *slots, int idx, Tensor *tensor)
{
    tensor_free(slots->pdata[idx]);
    slots->pdata[idx] = tensor;
}

Execution *execute_new(const Graph *graph, const RowCounts *rows, TensorType real)
{
    Execution *run = g_new0(Execution, 1);
    g_assert(real == TENSOR_F64 || real == TENSOR_F32);
    run->graph = graph;
    run->rows = *rows;
    run->real = real;
    run->kernels = real == TENSOR_F64 ? OP_REAL_F64 : OP_REAL_F32;
    run->values = tensor_slots(graph->tensors->len);
    run->grads = tensor_slots(graph->tensors->len);
    run->param_grads = tensor_slots(graph->params->len);
    run->given = g_new0(const Tensor *, graph->tensors->len + 1);
    run->params = g_new0(const Tensor *, graph->params->len + 1);
    run->kept = g_new0(Kept, graph->ops->len + 1);
    return run;
}

void execute_free(Execution *run)
{
    if (run == NULL) {
        return;
    }
    for (int i = 0; i < graph_n_ops(run->graph); i++) {
        execute_drop_aux(run, i);
    }
    g_ptr_array_unref(run->values);
    g_ptr_array_unref(run->grads);
    g_ptr_array_unref(run->param_grads);
    g_free(run->given);
    g_free(run->params);
    g_free(run->kept);
    g_free(run);
}

RowCounts *execute_rows(Execution *run)
{
    return &run->rows;
}

void execute_set_counter(Execution *run, OpCounter *counter)
{
    run->counter = counter;
}

void execute_put(Execution *run, int tensor, const Tensor *value)
{
    g_assert(tensor_numel(value) == graph_tensor_numel(graph_tensor(run->graph, tensor), &run->rows));
    run->given[tensor] = value;
}

void execute_put_param(Execution *run, int param, const Tensor *value)
{
    run->params[param] = value;
}

void execute_add_to(Tensor *into, const Tensor *from)
{
    int64_t n = tensor_numel(into);
    g_assert(into->type == from->type && tensor_numel(from) == n && into->type != TENSOR_I64);
    if (into->type == TENSOR_F64) {
        double *a = into->data;
        const double *b = from->data;
        for (int64_t i = 0; i < n; i++) {
            a[i] += b[i];
        }
    } else {
        float *a = into->data;
        const float *b = from->data;
        for (int64_t i = 0; i < n; i++) {
            a[i] += b[i];
        }
    }
}

/* Takes over a gradient. */
static void grad_take(Execution *run, int tensor, Tensor *grad)
{
    Tensor *sum = run->grads->pdata[tensor];
    if (sum == NULL) {
        run->grads->pdata[tensor] = grad;
    } else {
        execute_add_to(sum, grad);
        tensor_free(grad);
    }
}

void execute_put_grad(Execution *run, int tensor, const Tensor *grad)
{
    grad_take(run, tensor, tensor_dup(grad));
}

const Tensor *execute_value(const Execution *run, int tensor)
{
    return run->given[tensor] != NULL ? run->given[tensor] : run->values->pdata[tensor];
}

const Tensor *execute_grad(const Execution *run, int tensor)
{
    return run->grads->pdata[tensor];
}

const Tensor *execute_param_grad(const Execution *run, int param)
{
    return run->param_grads->pdata[param];
}

void execute_drop_value(Execution *run, int tensor)
{
    slot_set(run->values, tensor, NULL);
    run->given[tensor] = NULL;
}

void execute_drop_grad(Execution *run, int tensor)
{
    slot_set(run->grads, tensor, NULL);
}

void execute_drop_aux(Execution *run, int op)
{
    for (int i = 0; i < OP_AUX_MAX; i++) {
        g_clear_pointer(&run->kept[op].aux[i], tensor_free);
    }
}

Tensor *execute_aux(Execution *run, int op, int idx)
{
    return run->kept[op].aux[idx];
}

int64_t execute_aux_numel(const Execution *run, int op)
{
    int64_t n = 0;
    for (int i = 0; i < OP_AUX_MAX; i++) {
        n += run->kept[op].aux[i] != NULL ? tensor_numel(run->kept[op].aux[i]) : 0;
    }
    return n;
}

static gboolean is_integer(Dtype dtype)
{
    return dtype == DTYPE_INT64 || dtype == DTYPE_INT32 || dtype == DTYPE_INT8;
}

static Tensor *tensor_for(const Execution *run, int tensor)
{
    const GraphTensor *shape = graph_tensor(run->graph, tensor);
    return tensor_new_2d(is_integer(shape->dtype) ? TENSOR_I64 : run->real, run->rows.rows[shape->rows], shape->width);
}

static gboolean fail(const Op *op, GError **error)
{
    g_prefix_error(error, "%s: ", op->name);
    return FALSE;
}

/* What only the values know: a router's counts size the operators behind it. */
static void rows_update(Execution *run, const Op *op, const OpClass *class)
{
    if (class->counts_output == 0) {
        return;
    }
    const Tensor *counts = run->values->pdata[op->outputs[class->counts_output - 1]];
    OpView view = {run->graph, op, &run->rows};
    gboolean padded = class->padded_slots != NULL && class->padded_slots(&view) > 0;
    run->rows.rows[ROWS_SLOTS] = op_counted_slots(&view, counts);
    if (run->graph->ep_size <= 1) {
        run->rows.rows[ROWS_RECEIVED] = run->rows.rows[ROWS_SLOTS];
        run->rows.local_expert_rows = padded ? NULL : counts->data; /* padded slots are even */
    }
}

gboolean execute_op_forward(Execution *run, int op_idx, GError **error)
{
    const Op *op = graph_op(run->graph, op_idx);
    const OpClass *class = op_class(op->kind);
    OpView view = {run->graph, op, &run->rows};
    OpRun call = {.view = &view, .counter = run->counter};
    OpSaved saved = {0};
    class->saved(&view, &saved);
    for (int i = 0; i < op->n_inputs; i++) {
        call.in[i] = op->inputs[i] >= 0 ? execute_value(run, op->inputs[i]) : NULL;
        g_assert(op->inputs[i] < 0 || call.in[i] != NULL);
    }
    for (int i = 0; i < op->n_params; i++) {
        call.param[i] = op->params[i] >= 0 ? run->params[op->params[i]] : NULL;
        g_assert(op->params[i] < 0 || call.param[i] != NULL);
    }
    for (int i = 0; i < op->n_outputs; i++) {
        slot_set(run->values, op->outputs[i], tensor_for(run, op->outputs[i]));
        call.out[i] = run->values->pdata[op->outputs[i]];
    }
    execute_drop_aux(run, op_idx);
    for (int i = 0; i < saved.n_aux; i++) {
        const OpAux *aux = &saved.aux[i];
        run->kept[op_idx].aux[i] =
            tensor_new_2d(is_integer(aux->dtype) ? TENSOR_I64 : run->real, run->rows.rows[aux->rows], aux->width);
        call.aux[i] = run->kept[op_idx].aux[i];
    }
    if (!class->forward[run->kernels](&call, error)) {
        return fail(op, error);
    }
    rows_update(run, op, class);
    return TRUE;
}

/* Whether a gradient has arrived at any output. */
static gboolean has_dout(const Execution *run, const Op *op)
{
    for (int i = 0; i < op->n_outputs; i++) {
        if (run->grads->pdata[op->outputs[i]] != NULL) {
            return TRUE;
        }
    }
    return FALSE;
}

/* What backward may read: what is kept, and the gradients that arrived. */
static void backward_operands(const Execution *run, const OpView *view, int op_idx, OpRun *call)
{
    const Op *op = view->op;
    OpSaved saved = {0};
    op_class(op->kind)->saved(view, &saved);
    for (int i = 0; i < op->n_inputs; i++) {
        call->in[i] = op->inputs[i] >= 0 && (saved.inputs >> i & 1u) ? execute_value(run, op->inputs[i]) : NULL;
    }
    for (int i = 0; i < op->n_params; i++) {
        call->param[i] = op->params[i] >= 0 ? run->params[op->params[i]] : NULL;
    }
    for (int i = 0; i < op->n_outputs; i++) {
        call->out[i] = saved.outputs >> i & 1u ? run->values->pdata[op->outputs[i]] : NULL;
        call->dout[i] = run->grads->pdata[op->outputs[i]];
    }
    for (int i = 0; i < saved.n_aux; i++) {
        call->aux[i] = run->kept[op_idx].aux[i];
    }
}

gboolean execute_op_backward(Execution *run, int op_idx, GError **error)
{
    const Op *op = graph_op(run->graph, op_idx);
    OpView view = {run->graph, op, &run->rows};
    OpRun call = {.view = &view, .counter = run->counter};
    if (!op_has_backward(&view) || !has_dout(run, op)) {
        return TRUE;
    }
    backward_operands(run, &view, op_idx, &call);
    for (int i = 0; i < op->n_inputs; i++) {
        call.din[i] = op_needs_input_grad(&view, i) ? tensor_for(run, op->inputs[i]) : NULL;
    }
    for (int i = 0; i < op->n_params; i++) {
        if (op_trains_param(&view, i)) {
            const Tensor *param = run->params[op->params[i]];
            call.dparam[i] = tensor_new(param->type, param->n_dims, param->dims);
        }
    }
    gboolean ok = op_class(op->kind)->backward[run->kernels](&call, error);
    for (int i = 0; i < op->n_inputs; i++) {
        if (call.din[i] != NULL) {
            grad_take(run, op->inputs[i], call.din[i]);
        }
    }
    for (int i = 0; i < op->n_params; i++) {
        if (call.dparam[i] != NULL) {
            slot_set(run->param_grads, op->params[i], call.dparam[i]);
        }
    }
    return ok || fail(op, error);
}

gboolean execute_forward(Execution *run, GError **error)
{
    for (int i = 0; i < graph_n_ops(run->graph); i++) {
        if (!execute_op_forward(run, i, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean execute_backward(Execution *run, GError **error)
{
    for (int i = graph_n_ops(run->graph) - 1; i >= 0; i--) {
        if (!execute_op_backward(run, i, error)) {
            return FALSE;
        }
    }
    return TRUE;
}
