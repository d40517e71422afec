#include "workloads/lower/walk.h"

#include "workloads/lower/host-copy.h"

gint32 frame_aux(const Graph *graph, int op, int i)
{
    return (gint32)graph->tensors->len + op * OP_AUX_MAX + i;
}

gint32 frame_grad(const Graph *graph, int op, int i)
{
    return frame_aux(graph, graph_n_ops(graph), 0) + op * OP_INPUTS_MAX + i;
}

gint32 frame_sum(const Graph *graph, int op, int i)
{
    return frame_grad(graph, graph_n_ops(graph), 0) + op * OP_INPUTS_MAX + i;
}

gint32 frame_param_grad(const Graph *graph, int param)
{
    return frame_sum(graph, graph_n_ops(graph), 0) + param;
}

gint32 frame_workspace(const Graph *graph)
{
    return frame_param_grad(graph, (int)graph->params->len);
}

gint32 frame_cut_grad(const Graph *graph)
{
    return frame_workspace(graph) + 1;
}

gint32 frame_loss_grad(const Graph *graph)
{
    return frame_cut_grad(graph) + 1;
}

gint32 frame_exchange(const Graph *graph, int op)
{
    return frame_loss_grad(graph) + 1 + walk_exchange_slot(graph, op);
}

gint32 frame_param_part(const Graph *graph, int param)
{
    return frame_loss_grad(graph) + 1 + walk_n_exchange_slots(graph) + param;
}

gint32 frame_host(const Graph *graph, int op, int slot)
{
    return layer_frame_buffers(graph) + op * N_SLOTS + slot;
}

gint32 frame_back(const Graph *graph, int op, int slot)
{
    return frame_host(graph, graph_n_ops(graph) + op, slot);
}

int layer_frame_buffers(const Graph *graph)
{
    return frame_param_part(graph, graph->n_chunks > 1 ? (int)graph->params->len : 0);
}

int layer_tier_buffers(const Graph *graph)
{
    return 2 * N_SLOTS * graph_n_ops(graph);
}

char *layer_buffer_name(const Graph *graph, gint32 buffer)
{
    if (buffer < frame_aux(graph, 0, 0)) {
        return g_strdup_printf("tensor %s", graph_tensor(graph, buffer)->name);
    }
    if (buffer < frame_grad(graph, 0, 0)) {
        gint32 i = buffer - frame_aux(graph, 0, 0);
        return g_strdup_printf("kept tensor %d of %s", i % OP_AUX_MAX, graph_op(graph, i / OP_AUX_MAX)->name);
    }
    if (buffer < frame_param_grad(graph, 0)) {
        gint32 i = buffer - frame_grad(graph, 0, 0);
        gboolean is_sum = buffer >= frame_sum(graph, 0, 0);
        i = is_sum ? buffer - frame_sum(graph, 0, 0) : i;
        return g_strdup_printf("%s of input %d of %s", is_sum ? "summed gradient" : "gradient", i % OP_INPUTS_MAX,
                               graph_op(graph, i / OP_INPUTS_MAX)->name);
    }
    if (buffer < frame_workspace(graph)) {
        return g_strdup_printf("gradient of %s", graph_param(graph, buffer - frame_param_grad(graph, 0))->name);
    }
    if (buffer >= layer_frame_buffers(graph)) {
        gint32 i = (buffer - frame_host(graph, 0, 0)) / N_SLOTS, n = graph_n_ops(graph);
        return g_strdup_printf("slot %d of %s, %s", (buffer - frame_host(graph, 0, 0)) % N_SLOTS, graph_op(graph, i % n)->name,
                               i < n ? "in host memory" : "back from host memory");
    }
    if (buffer >= frame_param_part(graph, 0)) {
        return g_strdup_printf("a chunk's gradient of %s", graph_param(graph, buffer - frame_param_part(graph, 0))->name);
    }
    return g_strdup(buffer == frame_workspace(graph)  ? "workspace"
                    : buffer == frame_cut_grad(graph)  ? "gradient at the cut"
                    : buffer == frame_loss_grad(graph) ? "gradient of a loss"
                                                       : "exchanged rows");
}

int walk_source_index(const Graph *graph, int tensor)
{
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (g_array_index(graph->inputs, int, i) == tensor) {
            return (int)i;
        }
    }
    return -1;
}

Place layer_tensor(const Graph *graph, int tensor)
{
    int source = walk_source_index(graph, tensor);
    if (source >= 0) {
        return (Place){ARG_SOURCES + source, BOUNDARY_VALUE};
    }
    return graph_is_result(graph, tensor) ? (Place){ARG_OUTPUT, BOUNDARY_VALUE} : (Place){ARG_FRAME, tensor};
}

Place layer_cut_grad(const Graph *graph)
{
    return (Place){ARG_FRAME, frame_cut_grad(graph)};
}

Place layer_param_grad(const Graph *graph, int param)
{
    return (Place){ARG_FRAME, frame_param_grad(graph, param)};
}

Place layer_op_param_grad(const Graph *graph, int op, int i)
{
    int param = graph_op(graph, op)->params[i];
    gboolean is_last = graph_param(graph, param)->op == op;
    return is_last ? layer_param_grad(graph, param) : (Place){ARG_FRAME, frame_param_part(graph, param)};
}

gboolean walk_is_external(const Walk *walk, int tensor)
{
    int producer = graph_tensor(walk->graph, tensor)->producer;
    return producer < 0 || producer < walk->first_op;
}

gboolean walk_is_handed_on(const Walk *walk, int tensor)
{
    return graph_is_result(walk->graph, tensor) || tensor == walk->pass->cut_tensor;
}

OpView walk_view(const Walk *walk, int op)
{
    return (OpView){walk->graph, graph_op(walk->graph, op), walk->pass->rows};
}

/* A backward will read a slot: the tensor itself, or a copy that comes back from DDR. */
static void count_ref(Walk *walk, int op, int slot, int tensor)
{
    gboolean moves = walk->moved[op] >> slot & 1u;
    walk->refs[tensor] = (gint16)(walk->refs[tensor] + !moves);
    walk->is_moving[tensor] = walk->is_moving[tensor] || moves;
}

static void list_exchanges(Walk *walk)
{
    walk->exchanges = g_new(int, graph_n_ops(walk->graph));
    for (int o = walk->first_op; o < walk->end_op; o++) {
        if (walk->exchange_at[o] >= 0) {
            walk->exchanges[walk->n_exchanges++] = o;
        }
    }
}

void walk_init(Walk *walk, const LayerPass *pass, SaveMode mode)
{
    const Graph *graph = pass->graph;
    int n_ops = graph_n_ops(graph), n_tensors = (int)graph->tensors->len;
    *walk = (Walk){.pass = pass, .graph = graph, .mode = mode};
    walk->first_op = pass->first_op;
    walk->stop_op = -1;
    walk->under_way = g_new0(gboolean, n_ops);
    walk->goes_along = g_new0(gboolean, n_ops);
    walk->exchange_at = walk_exchange_places(graph);
    walk->end_op = pass->end_op > 0 ? pass->end_op : n_ops;
    list_exchanges(walk);
    walk->saved = g_new0(OpSaved, n_ops);
    walk->saves = g_new0(gboolean, n_ops);
    walk->moved = g_new0(guint64, n_ops);
    walk->is_moving = g_new0(gboolean, n_tensors);
    walk->storage = g_new(int, n_tensors);
    walk->uses = g_new0(gint16, n_tensors);
    walk->refs = g_new0(gint16, n_tensors);
    walk->alive = g_new0(gboolean, n_tensors);
    walk->grad = g_new(Place, n_tensors);
    walk->held = g_array_new(FALSE, TRUE, sizeof(GradHold));
    for (int t = 0; t < n_tensors; t++) {
        walk->grad[t] = (Place){ARG_FRAME, -1};
        walk->storage[t] = t;
    }
    for (int o = 0; o < n_ops; o++) {
        const Op *op = graph_op(graph, o);
        for (int i = 0; op_class(op->kind)->views_input && i < op->n_outputs; i++) {
            walk->storage[op->outputs[i]] = walk->storage[op->inputs[0]];
        }
    }
    for (int o = walk->first_op; o < walk->end_op; o++) {
        OpView view = walk_view(walk, o);
        const OpClass *class = op_class(view.op->kind);
        for (int i = 0; i < view.op->n_inputs; i++) {
            if (view.op->inputs[i] >= 0) {
                walk->uses[walk->storage[view.op->inputs[i]]]++;
            }
        }
        walk->saves[o] = op_has_backward(&view);
        if (!walk->saves[o]) {
            continue;
        }
        class->saved(&view, &walk->saved[o]);
        walk->moved[o] = mode == SAVE_ALL && pass->retention != NULL ? pass->retention->moved[o] : 0;
        for (int i = 0; i < view.op->n_inputs; i++) {
            if (walk->saved[o].inputs >> i & 1u && view.op->inputs[i] >= 0) {
                count_ref(walk, o, i, walk->storage[view.op->inputs[i]]);
            }
        }
        for (int i = 0; i < view.op->n_outputs; i++) {
            if (walk->saved[o].outputs >> i & 1u) {
                count_ref(walk, o, SLOT_OUTPUT + i, walk->storage[view.op->outputs[i]]);
            }
        }
    }
    walk->source_dies_early = pass->dying_source >= 0 && !pass->sources_are_shared && mode == SAVE_ALL &&
                              walk->refs[g_array_index(graph->inputs, int, pass->dying_source)] == 0;
}

void walk_clear(Walk *walk)
{
    g_free(walk->saved);
    g_free(walk->saves);
    g_free(walk->moved);
    g_free(walk->under_way);
    g_free(walk->goes_along);
    g_free(walk->exchange_at);
    g_free(walk->exchanges);
    g_free(walk->is_moving);
    g_free(walk->storage);
    g_free(walk->uses);
    g_free(walk->refs);
    g_free(walk->alive);
    g_free(walk->grad);
    g_array_unref(walk->held);
}

void walk_emit_checkpoint(const Walk *walk)
{
    const Device *device = walk->pass->emitter->device;
    int n_kept = 0;
    for (int o = walk->first_op; o < walk->end_op; o++) {
        const OpSaved *saved = &walk->saved[o];
        if (walk->saves[o]) {
            n_kept += __builtin_popcount(saved->inputs) + __builtin_popcount(saved->outputs) + saved->n_aux + graph_op(walk->graph, o)->n_params;
        }
    }
    emit_host(walk->pass->emitter, device->checkpoint_ns + n_kept * device->checkpoint_tensor_ns);
}

gboolean walk_keeps_op(const Walk *walk, int op)
{
    const Retention *retention = walk->pass->retention;
    return op >= 0 && retention != NULL && retention->of_op[op] != KEEP_NOT;
}

/* Whether SAVE_SELECTED keeps a tensor: the result of a kept operator, unless that can be copied again. */
static gboolean walk_keeps_result(const Walk *walk, int tensor)
{
    int producer = graph_tensor(walk->graph, tensor)->producer;
    return walk_keeps_op(walk, producer) && !walk_is_copied(walk, producer, tensor);
}

gboolean walk_is_copied(const Walk *walk, int op, int tensor)
{
    for (int i = 0; i < graph_op(walk->graph, op)->n_outputs; i++) {
        if (graph_op(walk->graph, op)->outputs[i] == tensor) {
            return walk->saved[op].copied_outputs >> i & 1u;
        }
    }
    return FALSE;
}

gboolean walk_outlives(const Walk *walk, int tensor)
{
    if (walk_is_external(walk, tensor)) {
        return TRUE;
    }
    if (walk_is_handed_on(walk, tensor) && !walk->in_recompute) {
        return TRUE;
    }
    switch (walk->mode) {
    case SAVE_ALL:
        return walk->refs[tensor] > 0;
    case SAVE_SELECTED:
        return walk->in_recompute ? walk->refs[tensor] > 0 : walk_keeps_result(walk, tensor);
    case SAVE_NONE:
    case SAVE_RECOMPUTE:
    default:
        return walk->in_recompute && walk->refs[tensor] > 0;
    }
}

Place walk_tensor(const Walk *walk, int tensor)
{
    /* a recomputed output is a private copy: the one handed on is long gone */
    gboolean is_private = walk->in_recompute && !walk_is_external(walk, tensor);
    return is_private ? (Place){ARG_FRAME, tensor} : layer_tensor(walk->graph, tensor);
}

MemTag walk_result_tag(const Walk *walk, int op, MemTag tag)
{
    const Retention *retention = walk->pass->retention;
    gboolean cached = retention != NULL && retention->runs != NULL && !walk->in_recompute && walk_keeps_op(walk, op);
    return cached ? MEM_CACHE : tag;
}

void walk_alloc_tensor(Walk *walk, int tensor)
{
    const GraphTensor *info = graph_tensor(walk->graph, tensor);
    gboolean is_copied =
        info->producer >= 0 && walk_is_copied(walk, info->producer, tensor); /* what it is copied from is kept */
    emit_alloc(walk->pass->emitter, STREAM_COMPUTE, walk_tensor(walk, tensor),
               graph_tensor_bytes(info, walk->pass->rows),
               is_copied ? info->tag : walk_result_tag(walk, info->producer, info->tag));
    walk->alive[tensor] = TRUE;
}

void walk_free_tensor(Walk *walk, int tensor)
{
    if (walk->is_moving[tensor]) {
        emit_free_recorded(walk->pass->emitter, walk_tensor(walk, tensor));
    } else {
        emit_free(walk->pass->emitter, walk_tensor(walk, tensor));
    }
    walk->alive[tensor] = FALSE;
}

void walk_emit_value(const Walk *walk, int op, gboolean backward, const Place *douts, const ExchangePlaces *exchange)
{
    Emitter *emitter = walk->pass->emitter;
    const Place absent = {ARG_FRAME, -1};
    OpView view = walk_view(walk, op);
    gboolean is_dispatch = exchange != NULL && op_class(view.op->kind)->to_experts;
    gboolean is_combine = exchange != NULL && !is_dispatch;
    int n_aux = walk->saves[op] ? walk->saved[op].n_aux : 0;
    emit_value(emitter, STREAM_COMPUTE, backward ? VALUE_BACKWARD : VALUE_FORWARD, op);
    for (int i = 0; i < view.op->n_inputs; i++) {
        int t = view.op->inputs[i];
        gboolean is_read = t >= 0 && (!backward || walk->saved[op].inputs >> i & 1u);
        Place own = backward && is_read ? walk_slot(walk, op, i) : is_read ? walk_tensor(walk, walk->storage[t]) : absent;
        emit_operand(emitter, is_read && is_dispatch && !backward && i == 0 ? exchange->arrived : own);
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        int t = view.op->outputs[i];
        gboolean is_named = !backward || walk->saved[op].outputs >> i & 1u;
        Place own = backward ? walk_slot(walk, op, SLOT_OUTPUT + i) : walk_tensor(walk, walk->storage[t]);
        emit_operand(emitter, !is_named ? absent : is_combine && !backward ? exchange->arrived : own);
    }
    for (int i = 0; i < n_aux; i++) {
        emit_operand(emitter, backward ? walk_slot(walk, op, SLOT_AUX + i) : (Place){ARG_FRAME, frame_aux(walk->graph, op, i)});
    }
    for (int i = 0; backward && i < view.op->n_outputs; i++) {
        emit_operand(emitter, is_combine ? exchange->arrived : douts[i]);
    }
    for (int i = 0; backward && i < view.op->n_inputs; i++) {
        Place fresh = {ARG_FRAME, frame_grad(walk->graph, op, i)};
        emit_operand(emitter, !op_needs_input_grad(&view, i) ? absent : is_dispatch && i == 0 ? exchange->arrived : fresh);
    }
}

void walk_compute(Walk *walk, int op, OpCost *cost, const Place *douts)
{
    Emitter *emitter = walk->pass->emitter;
    Place workspace = {ARG_FRAME, frame_workspace(walk->graph)};
    if (walk_op_exchanges(walk->graph, op)) {
        walk_compute_exchanged(walk, op, cost, douts);
        return;
    }
    if (cost->workspace_bytes > 0) {
        emit_alloc(emitter, STREAM_COMPUTE, workspace, cost->workspace_bytes, MEM_WORKSPACE);
    }
    emit_cost(emitter, STREAM_COMPUTE, cost, (int)graph_op(walk->graph, op)->kind, op);
    walk_emit_value(walk, op, douts != NULL, douts, NULL);
    if (cost->workspace_bytes > 0) {
        emit_free(emitter, workspace);
    }
    if (walk_is_summed(walk->graph, op)) {
        walk_sum_counts(walk, op);
    }
}

gboolean walk_expert_range(const Walk *walk, int *ret_first, int *ret_last)
{
    gboolean found = FALSE;
    for (int o = walk->first_op; o < walk->end_op; o++) {
        const Op *op = graph_op(walk->graph, o);
        for (int i = 0; i < op->n_params; i++) {
            if (op->params[i] >= 0 && graph_param(walk->graph, op->params[i])->split == PARAM_EXPERT) {
                *ret_first = found ? *ret_first : o;
                *ret_last = o;
                found = TRUE;
            }
        }
    }
    return found;
}
