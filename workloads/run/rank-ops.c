#include <string.h>

#include "models/execute.h"
#include "models/ops/dispatch.h"
#include "models/ops/token-dispatch.h"
#include "models/moe-tables.h"
#include "sim/base/error.h"
#include "workloads/lower/layer.h"
#include "workloads/run/rank.h"

/* One run of an operator: what is read, what is made. */
typedef struct OpAt {
    const RankAt *at;
    const Graph *graph;
    const Op *op;
    const OpClass *class;
    RowCounts rows;
    OpView view;
    OpSaved saved;
    OpRun run;
    GPtrArray *own; /* Tensor: views, slices, and results until they are handed over */
    int first_out, first_aux, first_dout, first_din; /* operands */
} OpAt;

static void free_tensor(void *tensor)
{
    tensor_free(tensor);
}

int rank_n_sides(const Plan *plan)
{
    return plan->moe.overlap_micro_batches ? 2 : 1;
}

RankRouting *rank_layer_routing(const Rank *rank, int64_t layer)
{
    return &rank->routing[layer * rank->world->plan->moe.overlap_chunks];
}

RankRouting *rank_part_routing(const RankAt *at, int part)
{
    const Rank *rank = at->rank;
    int64_t side = program_micro_batch(rank->program, rank->call, rank->n_repeats) % rank_n_sides(rank->world->plan);
    return rank_layer_routing(rank, side * rank->world->graphs->n_layers + at->call->layer) + part;
}

RankRouting *rank_routing(const RankAt *at)
{
    return rank_part_routing(at, op_part(graph_op(at->segment->graph, at->instr->op)));
}

/* Rows of the chunks, as far as they have been routed. */
static void chunk_rows(const RankAt *at, RowCounts *rows)
{
    int n = (int)at->rank->world->plan->moe.overlap_chunks;
    row_counts_cut(rows, n);
    for (int c = 0; c < n; c++) {
        const RankRouting *routing = rank_part_routing(at, c);
        rows->rows[row_space_of_chunk(ROWS_SLOTS, c + 1)] = routing->slots;
        rows->rows[row_space_of_chunk(ROWS_RECEIVED, c + 1)] = routing->received;
        rows->rows[row_space_of_chunk(ROWS_ARRIVED, c + 1)] = routing->arrived_tokens;
    }
    rows->chunk_expert_rows = rank_part_routing(at, 0)->expert_rows;
}

/* What the tokens of the micro-batch at hand take in a layer, where that is given. */
static const int64_t *given_choices(const RankAt *at)
{
    const Rank *rank = at->rank;
    const int64_t *const *choices = rank->world->options.choices;
    const Plan *plan = rank->world->plan;
    if (choices == NULL || at->call->layer < 0 || at->call->layer >= plan->model->n_layers ||
        choices[at->call->layer] == NULL) {
        return NULL;
    }
    int64_t micro_batch = program_micro_batch(rank->program, rank->call, rank->n_repeats);
    int64_t size = rank->n_sequences * plan->seq_len * plan->model->top_k;
    return choices[at->call->layer] + (rank->idx * plan->n_micro_batches + micro_batch) * size;
}

RowCounts rank_rows(const RankAt *at)
{
    const Plan *plan = at->rank->world->plan;
    const Routing *placed = at->rank->world->options.routing;
    RowCounts rows = routing_row_counts(plan, placed, plan_moe_layer(plan, at->call->layer), at->rank->ep_rank);
    rows.rows[ROWS_SEQUENCES] = at->rank->n_sequences;
    rows.rows[ROWS_TOKENS] = at->call->n_rows > 0 ? at->call->n_rows : at->rank->n_sequences * plan->seq_len;
    rows.rows[ROWS_PAIRS] = at->rank->n_sequences * plan->seq_len * plan->seq_len;
    if (at->call->layer >= 0) {
        const RankRouting *routing = rank_part_routing(at, 0);
        rows.rows[ROWS_SLOTS] = routing->slots;
        rows.rows[ROWS_RECEIVED] = routing->received;
        rows.rows[ROWS_ARRIVED] = routing->arrived_tokens;
        rows.local_expert_rows = routing->expert_rows;
    }
    if (at->call->layer >= 0 && plan->moe.overlap_chunks > 1) {
        chunk_rows(at, &rows);
    }
    rows.choices = given_choices(at);
    return rows;
}

static gboolean is_integer(Dtype dtype)
{
    return dtype == DTYPE_INT64 || dtype == DTYPE_INT32 || dtype == DTYPE_INT8;
}

static Tensor *new_rows(OpAt *o, int64_t rows, int64_t width, Dtype dtype)
{
    Tensor *tensor = tensor_new_2d(is_integer(dtype) ? TENSOR_I64 : TENSOR_F64, rows, width);
    g_ptr_array_add(o->own, tensor);
    return tensor;
}

/* Rows of a loss chunk of what the whole micro-batch has. */
static const Tensor *slice(OpAt *o, const Tensor *whole, const GraphTensor *info)
{
    const Call *call = o->at->call;
    if (call->n_rows == 0 || info->rows != ROWS_TOKENS || whole->dims[0] == call->n_rows) {
        return whole;
    }
    Tensor *part = new_rows(o, call->n_rows, info->width, info->dtype);
    size_t row = (size_t)info->width * tensor_elem_bytes(whole->type);
    memcpy(part->data, (const char *)whole->data + (size_t)call->first_row * row, (size_t)call->n_rows * row);
    return part;
}

/* A tensor that is a part of another one: made again from that. */
static const Tensor *view_of(OpAt *o, int tensor, const Tensor *root, GError **error)
{
    int producer = graph_tensor(o->graph, tensor)->producer;
    const Op *op = producer >= 0 ? graph_op(o->graph, producer) : NULL;
    if (op == NULL || !op_class(op->kind)->views_input) {
        return root;
    }
    OpView view = {o->graph, op, &o->rows};
    OpRun run = {.view = &view};
    const Tensor *found = NULL;
    run.in[0] = view_of(o, op->inputs[0], root, error);
    if (run.in[0] == NULL) {
        return NULL;
    }
    for (int i = 0; i < op->n_outputs; i++) {
        const GraphTensor *info = graph_tensor(o->graph, op->outputs[i]);
        run.out[i] = new_rows(o, o->rows.rows[info->rows], info->width, info->dtype);
        found = op->outputs[i] == tensor ? run.out[i] : found;
    }
    return op_class(op->kind)->forward[OP_REAL_F64](&run, error) ? found : NULL;
}

/* Whether that is the tensor of an exchange whose rows, on the other side of it, lie in the workspace. */
static gboolean is_exchanged(const OpAt *o, const GraphTensor *info)
{
    gboolean exchanges = o->class->collective == OP_COLLECTIVE_ALL_TO_ALL && o->graph->ep_size > 1;
    return exchanges && info == graph_tensor(o->graph, o->class->to_experts ? o->op->inputs[0] : o->op->outputs[0]);
}

static int64_t exchanged_rows(const OpAt *o, const GraphTensor *info)
{
    if (!is_exchanged(o, info)) {
        return o->rows.rows[info->rows];
    }
    return op_rows(&o->view, row_space_kind(info->rows) == ROWS_TOKENS ? ROWS_ARRIVED : ROWS_RECEIVED);
}

/* Value of a tensor that stands in an operand. */
static gboolean read_tensor(OpAt *o, int operand, int tensor, const Tensor **ret_value, GError **error)
{
    const RankAt *at = o->at;
    const GraphTensor *info = graph_tensor(o->graph, tensor);
    RankBuffer *buffer = rank_operand(at, operand);
    const Tensor *value = NULL;
    if (buffer == &at->rank->buffers[at->rank->program->inputs]) {
        gboolean is_ids = o->graph == at->rank->world->graphs->embedding;
        value = (is_ids ? at->rank->ids : at->rank->labels)[program_micro_batch(at->rank->program, at->rank->call, at->rank->n_repeats)];
    } else if (buffer != NULL) {
        value = rank_read(at, buffer, error);
        value = value != NULL && !is_exchanged(o, info) ? view_of(o, tensor, value, error) : value;
    }
    if (value == NULL) {
        return buffer == NULL;
    }
    if (value->dims[0] < at->call->first_row + at->call->n_rows && at->call->n_rows > 0 && info->rows == ROWS_TOKENS &&
        value->dims[0] != at->call->n_rows) {
        return rank_fail(at, error, "the chunk's rows %d to %d are not in %s", at->call->first_row,
                         at->call->first_row + at->call->n_rows, info->name);
    }
    if ((value->type == TENSOR_I64) != is_integer(info->dtype)) {
        return rank_fail(at, error, "%s is given %s", info->name,
                         value->type == TENSOR_I64 ? "integers" : "real numbers");
    }
    *ret_value = slice(o, value, info);
    if (tensor_numel(*ret_value) != exchanged_rows(o, info) * info->width) {
        return rank_fail(at, error, "%s has %" G_GINT64_FORMAT " elements, its operator expects %" G_GINT64_FORMAT, info->name,
                         tensor_numel(*ret_value), exchanged_rows(o, info) * info->width);
    }
    return TRUE;
}

static gboolean read_params(OpAt *o, GError **error)
{
    const Rank *rank = o->at->rank;
    for (int i = 0; i < o->op->n_params; i++) {
        int p = o->op->params[i];
        if (p < 0) {
            continue;
        }
        if (graph_param(o->graph, p)->role == PARAM_BUFFER) {
            o->run.param[i] = rank->world->source->param(rank->world->source->self, o->at->call->layer, p);
            continue;
        }
        RankBuffer *buffer = rank_param_buffer(o->at, p);
        g_assert(buffer != NULL);
        int64_t numel = fsdp_local_numel(rank->world->plan, graph_param(o->graph, p));
        o->run.param[i] = rank_read_as(o->at, buffer, TENSOR_F64, numel, error);
        if (o->run.param[i] == NULL) {
            g_prefix_error(error, "parameter %s: ", graph_param(o->graph, p)->name);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean read_inputs(OpAt *o, GError **error)
{
    gboolean ok = TRUE;
    for (int i = 0; ok && i < o->op->n_inputs; i++) {
        ok = o->op->inputs[i] < 0 || read_tensor(o, i, o->op->inputs[i], &o->run.in[i], error);
    }
    if (ok && o->op->kind == OP_dispatch && o->graph->ep_size > 1) {
        o->run.in[1] = rank_routing(o->at)->arrived;
    } else if (ok && o->op->kind == OP_token_dispatch) {
        o->run.in[1] = rank_routing(o->at)->choices;
    }
    return ok && read_params(o, error);
}

/* Slots of a fixed size: every rank knows what every other one sends. */
static void note_padded(OpAt *o, RankRouting *routing, int64_t capacity)
{
    int64_t ep = o->graph->ep_size, slots = o->rows.rows[ROWS_EXPERTS], local = slots / ep;
    tensor_free(routing->sent);
    tensor_free(routing->arrived);
    routing->sent = tensor_new_2d(TENSOR_I64, slots, 1);
    routing->arrived = tensor_new_2d(TENSOR_I64, slots, 1);
    for (int64_t s = 0; s < slots; s++) {
        ((int64_t *)routing->sent->data)[s] = ((int64_t *)routing->arrived->data)[s] = capacity;
    }
    routing->received = moe_arrival(routing->arrived->data, ep, local, NULL, routing->expert_rows);
    routing->has_counts = TRUE;
}

/* Value of an operand that must have so many elements. */
static const Tensor *read_sized(const RankAt *at, int operand, int64_t numel, const char *what, GError **error)
{
    const Tensor *value = rank_read(at, rank_operand(at, operand), error);
    if (value != NULL && tensor_numel(value) != numel) {
        rank_fail(at, error, "%s has %" G_GINT64_FORMAT " elements, its operator expects %" G_GINT64_FORMAT, what, tensor_numel(value), numel);
        return NULL;
    }
    return value;
}

/* Rows to each expert, from counts by slot. */
static void add_loads(const OpAt *o, const Tensor *counts, int64_t *loads)
{
    const Placement *placement = o->rows.placement;
    for (int64_t s = 0; o->at->instr->phase == PHASE_FORWARD && s < tensor_numel(counts); s++) {
        loads[placement != NULL ? placement->expert[s] : s] += ((const int64_t *)counts->data)[s];
    }
}

/* The counts of each chunk size what follows of it. */
static void note_chunks(OpAt *o)
{
    int n = o->op->n_outputs / 2;
    for (int c = 0; c < n; c++) {
        const Tensor *counts = o->run.out[n + c];
        RankRouting *routing = rank_part_routing(o->at, c);
        routing->slots = 0;
        for (int64_t s = 0; s < tensor_numel(counts); s++) {
            routing->slots += ((const int64_t *)counts->data)[s];
        }
        add_loads(o, counts, routing->chunk_loads);
    }
}

/* The router's counts size what follows. */
static void note_routing(OpAt *o)
{
    int output = o->class->counts_output - 1;
    if (output < 0) {
        return;
    }
    RankRouting *routing = rank_routing(o->at);
    const Tensor *counts = o->run.out[output];
    const int64_t *rows = counts->data;
    int64_t n = tensor_numel(counts), padded = o->class->padded_slots != NULL ? o->class->padded_slots(&o->view) : 0;
    routing->slots = op_counted_slots(&o->view, counts);
    add_loads(o, counts, rank_layer_routing(o->at->rank, o->at->call->layer)->loads);
    if (padded > 0) {
        note_padded(o, routing, padded);
    } else if (o->graph->ep_size <= 1) {
        routing->received = routing->slots;
        memcpy(routing->expert_rows, rows, (size_t)n * sizeof *rows);
    }
}

/* Hands a result over to its buffer. */
static gboolean hand_over(OpAt *o, Tensor *value, RankBuffer *buffer, Dtype dtype, GError **error)
{
    guint idx;
    gboolean found = g_ptr_array_find(o->own, value, &idx);
    g_assert(found);
    g_ptr_array_steal_index_fast(o->own, idx);
    return rank_write(o->at, buffer, value, dtype, error);
}

static gboolean forward(OpAt *o, GError **error)
{
    const RankAt *at = o->at;
    int n_aux = at->instr->n_operands - o->first_aux;
    if (o->class->views_input) {
        return TRUE;
    }
    if (!read_inputs(o, error)) {
        return FALSE;
    }
    for (int i = 0; i < o->op->n_outputs; i++) {
        const GraphTensor *info = op_out(&o->view, i);
        o->run.out[i] = new_rows(o, exchanged_rows(o, info), info->width, info->dtype);
    }
    for (int i = 0; i < o->saved.n_aux; i++) { /* without a backward pass nothing is kept of them */
        const OpAux *aux = &o->saved.aux[i];
        o->run.aux[i] = new_rows(o, o->rows.rows[aux->rows], aux->width, aux->dtype);
    }
    if (!o->class->forward[OP_REAL_F64](&o->run, error)) {
        return FALSE;
    }
    note_routing(o);
    if (o->op->kind == OP_route_chunks) {
        note_chunks(o);
    }
    gboolean counts_stay = o->op->kind == OP_dispatch && dispatch_is_padded(o->op); /* also where their operator does not run again */
    if ((o->op->kind == OP_dispatch && !counts_stay) || (o->op->kind == OP_token_dispatch && !token_dispatch_follows(o->op))) {
        rank_routing(at)->has_counts = FALSE;
    }
    for (int i = 0; i < o->op->n_outputs; i++) {
        if (!hand_over(o, o->run.out[i], rank_operand(at, o->first_out + i), op_out(&o->view, i)->dtype, error)) {
            return FALSE;
        }
    }
    for (int i = 0; i < n_aux; i++) {
        if (!hand_over(o, o->run.aux[i], rank_operand(at, o->first_aux + i), o->saved.aux[i].dtype, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Kernels take outputs and auxiliary tensors as writable; backward only reads them. */
static Tensor *kept_value(const Tensor *value)
{
    union {
        const Tensor *in;
        Tensor *out;
    } pointer = {.in = value};
    return pointer.out;
}

static gboolean read_saved(OpAt *o, GError **error)
{
    const RankAt *at = o->at;
    if (!read_inputs(o, error)) {
        return FALSE;
    }
    for (int i = 0; i < o->op->n_outputs; i++) {
        const Tensor *value = NULL;
        RankBuffer *dout = rank_operand(at, o->first_dout + i);
        if (!read_tensor(o, o->first_out + i, o->op->outputs[i], &value, error)) {
            return FALSE;
        }
        o->run.out[i] = kept_value(value);
        const GraphTensor *info = op_out(&o->view, i);
        if (dout != NULL && (o->run.dout[i] = read_sized(at, o->first_dout + i, exchanged_rows(o, info) * info->width, "a gradient",
                                                         error)) == NULL) {
            return FALSE;
        }
    }
    for (int i = 0; i < o->saved.n_aux; i++) {
        const OpAux *kept = &o->saved.aux[i];
        const Tensor *aux = read_sized(at, o->first_aux + i, o->rows.rows[kept->rows] * kept->width, "a kept tensor", error);
        if (aux == NULL) {
            return FALSE;
        }
        o->run.aux[i] = kept_value(aux);
    }
    return TRUE;
}

static RankBuffer *param_grad_buffer(const OpAt *o, int i)
{
    return &o->at->rank->buffers[program_resolve(o->at->call, layer_op_param_grad(o->graph, o->at->instr->op, i))];
}

static gboolean backward(OpAt *o, GError **error)
{
    const RankAt *at = o->at;
    if (!read_saved(o, error)) {
        return FALSE;
    }
    for (int i = 0; i < o->op->n_inputs; i++) {
        if (rank_operand(at, o->first_din + i) != NULL) {
            const GraphTensor *info = op_in(&o->view, i);
            o->run.din[i] = new_rows(o, exchanged_rows(o, info), info->width, info->dtype);
        }
    }
    for (int i = 0; i < o->op->n_params; i++) {
        if (op_trains_param(&o->view, i)) {
            o->run.dparam[i] = tensor_new(TENSOR_F64, o->run.param[i]->n_dims, o->run.param[i]->dims);
            g_ptr_array_add(o->own, o->run.dparam[i]);
        }
    }
    if (!o->class->backward[OP_REAL_F64](&o->run, error)) {
        return FALSE;
    }
    for (int i = 0; i < o->op->n_inputs; i++) {
        if (o->run.din[i] != NULL &&
            !hand_over(o, o->run.din[i], rank_operand(at, o->first_din + i), op_in(&o->view, i)->dtype, error)) {
            return FALSE;
        }
    }
    for (int i = 0; i < o->op->n_params; i++) {
        if (o->run.dparam[i] != NULL &&
            !hand_over(o, o->run.dparam[i], param_grad_buffer(o, i), o->graph->compute, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Whether the operator has to have that operand: 1, must not: 0, may: -1. */
static int wants_operand(const OpAt *o, int i, gboolean is_backward)
{
    if (i < o->first_out) {
        return o->op->inputs[i] >= 0 && (!is_backward || o->saved.inputs >> i & 1u);
    }
    if (i < o->first_aux) {
        return !is_backward || o->saved.outputs >> (i - o->first_out) & 1u;
    }
    if (i < o->first_dout) {
        return 1;
    }
    return i < o->first_din ? -1 : op_needs_input_grad(&o->view, i - o->first_din);
}

static gboolean check_operands(const OpAt *o, gboolean is_backward, GError **error)
{
    const RankAt *at = o->at;
    int n = is_backward ? o->first_din + o->op->n_inputs : op_has_backward(&o->view) ? o->first_dout : o->first_aux;
    if (at->instr->n_operands != n) {
        return rank_fail(at, error, "has %d operands, its operator %d", at->instr->n_operands, n);
    }
    for (int i = 0; i < n; i++) {
        int wanted = wants_operand(o, i, is_backward);
        if (wanted >= 0 && (rank_operand(at, i) != NULL) != (wanted != 0)) {
            return rank_fail(at, error, "operand %d is %s", i, wanted != 0 ? "missing" : "not one of its operator");
        }
    }
    return TRUE;
}

gboolean rank_op(const RankAt *at, GError **error)
{
    const Graph *graph = at->segment->graph;
    const Op *op = graph_op(graph, at->instr->op);
    gboolean is_backward = at->instr->action == VALUE_BACKWARD;
    OpAt o = {.at = at, .graph = graph, .op = op, .class = op_class(op->kind), .rows = rank_rows(at)};
    at->rank->op = at->instr->op;
    at->rank->peak.op = at->rank->peak.op == RANK_OP_NEXT ? at->instr->op : at->rank->peak.op;
    o.view = (OpView){graph, op, &o.rows};
    o.run.view = &o.view;
    o.class->saved(&o.view, &o.saved);
    o.own = g_ptr_array_new_with_free_func(free_tensor);
    o.first_out = op->n_inputs;
    o.first_aux = o.first_out + op->n_outputs;
    o.first_dout = o.first_aux + o.saved.n_aux;
    o.first_din = o.first_dout + op->n_outputs;
    GError *found = NULL;
    gboolean ok = check_operands(&o, is_backward, &found) && (is_backward ? backward(&o, &found) : forward(&o, &found));
    g_ptr_array_unref(o.own);
    if (!ok && found->domain == MOESIM_ERROR && strstr(found->message, "rank ") == NULL) {
        rank_fail(at, error, "%s", found->message);
        g_error_free(found);
    } else if (!ok) {
        g_propagate_error(error, found);
    }
    return ok;
}
