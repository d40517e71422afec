#include "workloads/lower/host-copy.h"
#include "workloads/lower/walk.h"

static gboolean aux_moves(const Walk *walk, int op, int i)
{
    return walk->moved[op] >> (SLOT_AUX + i) & 1u;
}

static gboolean aux_outlives(const Walk *walk, int op, int i)
{
    if (!walk->saves[op]) {
        return FALSE;
    }
    return walk->in_recompute || (walk->mode == SAVE_ALL && !aux_moves(walk, op, i)) ||
           (walk->mode == SAVE_SELECTED && walk_keeps_op(walk, op));
}

static void forward_op(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    OpView view = walk_view(walk, o);
    OpCost cost = {0};
    int n_aux = walk->saves[o] ? walk->saved[o].n_aux : 0;
    for (int i = 0; i < op->n_outputs; i++) {
        if (walk->storage[op->outputs[i]] == op->outputs[i]) {
            walk_alloc_tensor(walk, op->outputs[i]);
        }
    }
    for (int i = 0; i < n_aux; i++) {
        emit_alloc(walk->pass->emitter, STREAM_COMPUTE, (Place){ARG_FRAME, frame_aux(walk->graph, o, i)},
                   op_aux_bytes(&walk->saved[o].aux[i], walk->pass->rows), walk_result_tag(walk, o, MEM_ACTIVATIONS));
    }
    op_class(op->kind)->forward_cost(&view, &cost);
    if (o == walk->stop_op && cost.n_works_to_save > 0) {
        cost.n_works = cost.n_works_to_save;
    }
    walk_compute(walk, o, &cost, NULL);
    walk_add_loss(walk, o);
    walk_swap_out(walk, o);
    for (int i = 0; i < n_aux; i++) {
        Place aux = {ARG_FRAME, frame_aux(walk->graph, o, i)};
        if (aux_moves(walk, o, i)) {
            emit_free_recorded(walk->pass->emitter, aux);
        } else if (!aux_outlives(walk, o, i)) {
            emit_free(walk->pass->emitter, aux);
        }
    }
}

/* After an operator: its inputs lose a reader, its unread outputs die. */
static void forward_release(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    for (int i = 0; i < op->n_inputs; i++) {
        int t = op->inputs[i] >= 0 ? walk->storage[op->inputs[i]] : -1;
        if (t >= 0 && --walk->uses[t] == 0 && walk->alive[t] && !walk_outlives(walk, t)) {
            walk_free_tensor(walk, t);
        }
    }
    for (int i = 0; i < op->n_outputs; i++) {
        int t = op->outputs[i];
        if (walk->uses[t] == 0 && walk->alive[t] && !walk_outlives(walk, t)) {
            walk_free_tensor(walk, t);
        }
    }
}

/* The nested group's own hooks. In a recomputation the block's hook has gathered it ahead. */
static void forward_experts(const Walk *walk)
{
    const LayerPass *pass = walk->pass;
    if (walk->in_recompute) {
        fsdp_wait(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN, TRUE, -1);
        return;
    }
    fsdp_unshard(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN);
    fsdp_wait(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN, pass->free_flat, pass->own_flat ? ARG_GROUP : -1);
}

/* The results of a kept operator come from the cache; what is only a copy of a cached one is copied again. */
static void take_cached(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    Emitter *emitter = walk->pass->emitter;
    gboolean exchanges = op_class(op->kind)->collective == OP_COLLECTIVE_ALL_TO_ALL && walk->graph->ep_size > 1;
    walk_swap_wait(walk, o);
    if (walk->pass->retention->intercepts) {
        emit_host(emitter, emitter->device->selective_op_ns + (exchanges ? walk_intercept_ns(emitter->device, op) : 0));
    }
    for (int i = 0, n_copied = 0; i < op->n_outputs; i++) {
        int64_t bytes = graph_tensor_bytes(graph_tensor(walk->graph, op->outputs[i]), walk->pass->rows);
        if (!walk_is_copied(walk, o, op->outputs[i])) {
            walk->alive[op->outputs[i]] = TRUE;
            continue;
        }
        walk_alloc_tensor(walk, op->outputs[i]);
        emit_bytes(emitter, STREAM_COMPUTE, WORK_STRIDED, bytes, bytes, 1, (int)op->kind);
        emit_value(emitter, STREAM_COMPUTE, VALUE_COPY, -1);
        emit_operand(emitter, walk_slot(walk, o, SLOT_AUX + n_copied++));
        emit_operand(emitter, walk_tensor(walk, op->outputs[i]));
    }
}

void walk_forward(Walk *walk, int end_op)
{
    const LayerPass *pass = walk->pass;
    int first = 0, last = -1;
    gboolean nested = pass->experts != NULL && walk_expert_range(walk, &first, &last);
    gboolean gathers = nested && (!walk->in_recompute || retention_runs_experts(pass->retention));
    for (int o = walk->first_op; o < end_op; o++) {
        gboolean is_cached = walk->in_recompute && walk->mode == SAVE_SELECTED && walk_keeps_op(walk, o);
        walk_exchanges_before(walk, o, end_op, FALSE);
        if (gathers && o == first && (pass->reshard || !walk->in_recompute)) {
            forward_experts(walk);
        }
        if (is_cached) {
            take_cached(walk, o);
        } else if (!walk->in_recompute || retention_runs(pass->retention, o)) {
            forward_op(walk, o);
        }
        forward_release(walk, o);
        if (gathers && o == last && pass->reshard) {
            fsdp_reshard(pass->emitter, pass->experts, ARG_EXPERTS);
        }
    }
    walk_exchanges_before(walk, end_op, end_op, FALSE);
}

static void walk_free_source(const Walk *walk)
{
    int tensor = g_array_index(walk->graph->inputs, int, walk->pass->dying_source);
    Place source = {ARG_SOURCES + walk->pass->dying_source, BOUNDARY_VALUE};
    if (walk->is_moving[tensor]) {
        emit_free_recorded(walk->pass->emitter, source);
    } else {
        emit_free(walk->pass->emitter, source);
    }
}

void layer_forward(const LayerPass *pass, SaveMode mode)
{
    Walk walk;
    walk_init(&walk, pass, mode);
    pass->emitter->phase = PHASE_FORWARD;
    pass->emitter->is_backward = FALSE;
    pass->emitter->is_selective = mode == SAVE_SELECTED && pass->retention->intercepts;
    if (mode == SAVE_NONE || mode == SAVE_SELECTED) {
        walk_emit_checkpoint(&walk);
    }
    walk_forward(&walk, walk.end_op);
    if (walk.source_dies_early) {
        walk_free_source(&walk);
    }
    walk_clear(&walk);
}
