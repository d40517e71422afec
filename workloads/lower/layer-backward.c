#include "workloads/lower/host-copy.h"
#include "workloads/lower/walk.h"

/* Where a recomputation stops: once every tensor to keep has been made. An operator that keeps inputs alone need not
 * run again (torch stops in its save hook). */
static int recompute_end(const Walk *walk)
{
    for (int o = walk->end_op - 1; o >= walk->first_op; o--) {
        if (!walk->saves[o]) {
            continue;
        }
        if (walk->saved[o].outputs != 0 || walk->saved[o].n_aux > 0) {
            return o + 1;
        }
        if (walk->saved[o].inputs != 0) {
            return o;
        }
    }
    return walk->first_op;
}

static void recompute(Walk *walk)
{
    const LayerPass *pass = walk->pass;
    int end = recompute_end(walk);
    pass->emitter->phase = PHASE_RECOMPUTE;
    pass->emitter->is_backward = FALSE;
    pass->emitter->is_selective = walk->mode == SAVE_SELECTED && pass->retention->intercepts;
    walk_emit_checkpoint(walk);
    walk->in_recompute = TRUE;
    walk->stop_op = end - 1;
    walk_forward(walk, end);
    for (guint t = 0; t < walk->graph->tensors->len; t++) {
        if (walk->alive[t] && walk->refs[t] == 0) {
            walk_free_tensor(walk, (int)t);
        }
    }
    pass->emitter->phase = PHASE_BACKWARD;
}

/* Kept results of operators that the recomputation did not reach die with the checkpoint. */
static void free_unreached(Walk *walk, int end)
{
    for (int o = end; o < walk->end_op; o++) {
        const Op *op = graph_op(walk->graph, o);
        for (int i = 0; walk_keeps_op(walk, o) && i < op->n_outputs; i++) {
            if (!walk_is_handed_on(walk, op->outputs[i]) && !walk_is_copied(walk, o, op->outputs[i]) && walk->refs[op->outputs[i]] == 0) {
                emit_free(walk->pass->emitter, (Place){ARG_FRAME, op->outputs[i]});
            }
        }
    }
}

static GradHold *grad_hold(Walk *walk, Place place)
{
    for (guint i = 0; i < walk->held->len; i++) {
        GradHold *hold = &g_array_index(walk->held, GradHold, i);
        if (hold->place.arg == place.arg && hold->place.idx == place.idx) {
            return hold;
        }
    }
    GradHold hold = {place, 0};
    g_array_append_val(walk->held, hold);
    return &g_array_index(walk->held, GradHold, walk->held->len - 1);
}

static void grad_release(Walk *walk, Place place)
{
    GradHold *hold = grad_hold(walk, place);
    g_assert(hold->refs > 0);
    if (--hold->refs == 0) {
        emit_free(walk->pass->emitter, place);
    }
}

static void emit_grad_sum(Emitter *emitter, int64_t bytes, Place a, Place b, Place sum)
{
    emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, bytes, 1, LABEL_GRAD_ACCUMULATE);
    emit_value(emitter, STREAM_COMPUTE, VALUE_ADD, -1);
    emit_operand(emitter, a);
    emit_operand(emitter, b);
    emit_operand(emitter, sum);
}

/* A gradient arrives at a tensor: the first is it, later ones are added. */
static void grad_arrive(Walk *walk, int o, int i, Place place)
{
    int tensor = graph_op(walk->graph, o)->inputs[i];
    const GraphTensor *info = graph_tensor(walk->graph, tensor);
    int64_t bytes = graph_tensor_bytes(info, walk->pass->rows);
    Place old = walk->grad[tensor];
    if (old.idx < 0) {
        walk->grad[tensor] = place;
        return;
    }
    walk_end_exchange_of(walk, tensor);
    if (grad_hold(walk, old)->refs == 1) {
        emit_grad_sum(walk->pass->emitter, bytes, old, place, old);
        grad_release(walk, place);
        return;
    }
    Place sum = {ARG_FRAME, frame_sum(walk->graph, o, i)};
    emit_alloc(walk->pass->emitter, STREAM_COMPUTE, sum, bytes, info->tag);
    grad_hold(walk, sum)->refs = 1;
    emit_grad_sum(walk->pass->emitter, bytes, old, place, sum);
    grad_release(walk, old);
    grad_release(walk, place);
    walk->grad[tensor] = sum;
}

static void backward_free_saved(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    const OpSaved *saved = &walk->saved[o];
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (walk->moved[o] >> slot & 1u) {
            emit_free_recorded(walk->pass->emitter, walk_slot(walk, o, slot));
        }
    }
    for (int i = 0; i < saved->n_aux; i++) {
        if (!(walk->moved[o] >> (SLOT_AUX + i) & 1u)) {
            emit_free(walk->pass->emitter, (Place){ARG_FRAME, frame_aux(walk->graph, o, i)});
        }
    }
    for (int k = 0; k < op->n_inputs + op->n_outputs; k++) {
        gboolean is_input = k < op->n_inputs;
        int i = is_input ? k : k - op->n_inputs;
        int named = is_input ? op->inputs[i] : op->outputs[i];
        int t = named >= 0 ? walk->storage[named] : -1;
        guint32 mask = is_input ? saved->inputs : saved->outputs;
        gboolean moved = walk->moved[o] >> (is_input ? i : SLOT_OUTPUT + i) & 1u;
        if (t < 0 || !(mask >> i & 1u) || moved || --walk->refs[t] > 0) {
            continue;
        }
        gboolean is_private = walk->in_recompute || !walk_is_handed_on(walk, t);
        if (!walk_is_external(walk, t) && is_private) {
            walk_free_tensor(walk, t);
        }
    }
}

/* An operator without kernels of its own hands its gradient to its inputs. */
static void backward_pass_on(Walk *walk, int o, Place dout)
{
    OpView view = walk_view(walk, o);
    for (int i = 0; i < view.op->n_inputs; i++) {
        if (op_needs_input_grad(&view, i)) {
            grad_hold(walk, dout)->refs++;
            grad_arrive(walk, o, i, dout);
        }
    }
}

static gboolean any_output_grad(const Walk *walk, const Op *op)
{
    for (int i = 0; i < op->n_outputs; i++) {
        if (walk->grad[op->outputs[i]].idx >= 0) {
            return TRUE;
        }
    }
    return FALSE;
}

static int64_t param_grad_bytes(const Walk *walk, const GraphParam *param)
{
    return dtype_bytes(walk->graph->compute, fsdp_local_numel(walk->pass->emitter->plan, param));
}

/* What a chunk makes of the gradients of parameters joins that of the chunks before it, as autograd adds them. */
static void add_param_parts(const Walk *walk, int o)
{
    OpView view = walk_view(walk, o);
    for (int i = 0; i < view.op->n_params; i++) {
        if (!op_trains_param(&view, i)) {
            continue;
        }
        Place sum = layer_param_grad(walk->graph, view.op->params[i]), part = layer_op_param_grad(walk->graph, o, i);
        if (part.idx != sum.idx) {
            emit_grad_sum(walk->pass->emitter, param_grad_bytes(walk, op_weight(&view, i)), sum, part, sum);
            emit_free(walk->pass->emitter, part);
        }
    }
}

static void backward_kernels(Walk *walk, int o, OpCost *cost)
{
    OpView view = walk_view(walk, o);
    Emitter *emitter = walk->pass->emitter;
    Place fresh[OP_INPUTS_MAX];
    for (int i = 0; i < view.op->n_inputs; i++) {
        fresh[i] = (Place){ARG_FRAME, -1};
        if (!op_needs_input_grad(&view, i)) {
            continue;
        }
        const GraphTensor *info = op_in(&view, i);
        Place place = {ARG_FRAME, frame_grad(walk->graph, o, i)};
        fresh[i] = place;
        grad_hold(walk, place)->refs = 1;
        emit_alloc(emitter, STREAM_COMPUTE, place, graph_tensor_bytes(info, view.rows), info->tag);
    }
    for (int i = 0; i < view.op->n_params; i++) {
        if (op_trains_param(&view, i)) {
            emit_alloc(emitter, STREAM_COMPUTE, layer_op_param_grad(walk->graph, o, i), param_grad_bytes(walk, op_weight(&view, i)),
                       MEM_GRADIENTS);
        }
    }
    Place douts[OP_OUTPUTS_MAX];
    for (int i = 0; i < view.op->n_outputs; i++) {
        douts[i] = walk->grad[view.op->outputs[i]];
    }
    if (walk->moved[o] != 0) {
        walk_swap_wait(walk, o);
    }
    walk_compute(walk, o, cost, douts);
    backward_free_saved(walk, o);
    for (int i = 0; i < view.op->n_outputs; i++) {
        Place dout = walk->grad[view.op->outputs[i]];
        if (dout.idx >= 0) {
            grad_release(walk, dout);
        }
    }
    for (int i = 0; i < view.op->n_inputs; i++) {
        if (fresh[i].idx >= 0) {
            grad_arrive(walk, o, i, fresh[i]);
        }
    }
    add_param_parts(walk, o);
}

static void backward_op(Walk *walk, int o)
{
    OpView view = walk_view(walk, o);
    const OpClass *class = op_class(view.op->kind);
    OpCost cost = {0};
    if (!walk->saves[o]) {
        return;
    }
    if (walk_start_loss_grad(walk, o, &walk->grad[view.op->outputs[0]])) {
        grad_hold(walk, walk->grad[view.op->outputs[0]])->refs = 1;
    }
    if (!any_output_grad(walk, view.op)) {
        backward_free_saved(walk, o);
        return;
    }
    class->backward_cost(&view, &cost);
    Place dout = walk->grad[view.op->outputs[0]];
    gboolean trains = FALSE;
    for (int i = 0; i < view.op->n_params; i++) {
        trains = trains || op_trains_param(&view, i);
    }
    gboolean passes_on = cost.n_works == 0 && cost.workspace_bytes == 0 && !trains && view.op->n_outputs == 1;
    if (passes_on && class->collective == OP_COLLECTIVE_NONE) {
        backward_pass_on(walk, o, dout);
        backward_free_saved(walk, o);
        grad_release(walk, dout);
    } else {
        backward_kernels(walk, o, &cost);
    }
}

static void collect_grads(const Graph *graph, const FsdpGroup *group, Place *ret_grads)
{
    int64_t n = 0;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        if (graph_is_variant(entry->graph, graph) && fsdp_has_grad(graph_param(graph, entry->param))) {
            ret_grads[n++] = layer_param_grad(graph, entry->param);
        }
    }
}

static void reduce_group(const LayerPass *pass, const FsdpGroup *group, int arg, int last_reduce)
{
    g_autofree Place *grads = g_new0(Place, group->params->len + 1);
    collect_grads(pass->graph, group, grads);
    fsdp_reduce(pass->emitter, group, arg, grads, last_reduce, pass->first_micro_batch);
}

/* The nested group's hook before its backward; then the next layer is gathered ahead. */
static void backward_experts(const Walk *walk)
{
    const LayerPass *pass = walk->pass;
    if (pass->reshard && walk->mode != SAVE_ALL && retention_runs_experts(pass->retention)) {
        fsdp_unshard(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN);
    }
    if (pass->reshard) {
        fsdp_wait(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN, TRUE, -1);
    }
    if (pass->next != NULL) {
        fsdp_unshard(pass->emitter, pass->next, ARG_NEXT, ARG_NEXT_TOKEN);
    }
}

/* Backward of the operators, gathering and reducing the nested experts where they stand. Returns the argument whose reduce
 * buffer is pending afterwards. */
static int backward_ops(Walk *walk, int pending)
{
    const LayerPass *pass = walk->pass;
    int first = 0, last = -1;
    gboolean nested = pass->experts != NULL && walk_expert_range(walk, &first, &last);
    for (int o = walk->end_op - 1; o >= walk->first_op; o--) {
        walk_exchanges_before(walk, o, walk->end_op, TRUE);
        if (nested && o == last) {
            backward_experts(walk);
        }
        if (o == pass->next_op && pass->next != NULL) {
            fsdp_unshard(pass->emitter, pass->next, ARG_NEXT, ARG_NEXT_TOKEN);
        }
        pass->emitter->is_backward = TRUE;
        backward_op(walk, o);
        if (nested && o == first) {
            fsdp_reshard(pass->emitter, pass->experts, ARG_EXPERTS);
            reduce_group(pass, pass->experts, ARG_EXPERTS, pending);
            pending = fsdp_leaves_reduce(pass->experts) ? ARG_EXPERTS : pending;
        }
    }
    walk_exchanges_before(walk, -1, walk->end_op, TRUE);
    return pending;
}

/* Gradients of the sources get their lasting names; a source that dies here is freed. */
static void backward_finish_sources(Walk *walk)
{
    const Graph *graph = walk->graph;
    for (guint i = 0; i < graph->inputs->len; i++) {
        int t = g_array_index(graph->inputs, int, i);
        Place lasting = {ARG_SOURCES + (gint32)i, BOUNDARY_GRAD};
        Place grad = walk->grad[t];
        if (grad.idx >= 0 && (grad.arg != lasting.arg || grad.idx != lasting.idx)) {
            g_assert(grad_hold(walk, grad)->refs == 1);
            emit_move(walk->pass->emitter, grad, lasting);
        }
        if ((int)i == walk->pass->dying_source && !walk->source_dies_early) {
            emit_free(walk->pass->emitter, (Place){ARG_SOURCES + (gint32)i, BOUNDARY_VALUE});
        }
    }
}

static void backward_start_grads(Walk *walk)
{
    const Graph *graph = walk->graph;
    if (walk->pass->cut_tensor >= 0) {
        walk->grad[walk->pass->cut_tensor] = layer_cut_grad(graph);
        grad_hold(walk, layer_cut_grad(graph))->refs = 1;
    }
    int result = g_array_index(graph->outputs, int, 0);
    if (graph_tensor(graph, result)->needs_grad && graph_tensor(graph, result)->producer < walk->end_op) {
        walk->grad[result] = (Place){ARG_OUTPUT, BOUNDARY_GRAD};
        grad_hold(walk, walk->grad[result])->refs = 1;
    }
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (walk->pass->source_grads[i]) {
            int t = g_array_index(graph->inputs, int, i);
            walk->grad[t] = (Place){ARG_SOURCES + (gint32)i, BOUNDARY_GRAD};
            grad_hold(walk, walk->grad[t])->refs = 1;
        }
    }
}

/* The gradient of a tensor that came from before the range gets the name that the earlier range expects. */
static void backward_finish_cut(Walk *walk)
{
    for (guint t = 0; t < walk->graph->tensors->len; t++) {
        gboolean is_cut = graph_tensor(walk->graph, (int)t)->producer >= 0 && walk_is_external(walk, (int)t);
        if (is_cut && walk->grad[t].idx >= 0) {
            emit_move(walk->pass->emitter, walk->grad[t], layer_cut_grad(walk->graph));
        }
    }
}

void layer_backward(const LayerPass *pass, SaveMode mode, Place *grads)
{
    Walk walk;
    int pending = pass->reduce_pending ? ARG_LAST_REDUCE : -1;
    walk_init(&walk, pass, mode);
    walk.in_backward = TRUE;
    pass->emitter->phase = PHASE_BACKWARD;
    pass->emitter->is_backward = TRUE;
    pass->emitter->is_selective = FALSE;
    if (pass->group != NULL && pass->reshard) {
        fsdp_wait(pass->emitter, pass->group, ARG_GROUP, ARG_GROUP_TOKEN, TRUE, -1);
    }
    if (pass->experts != NULL && pass->reshard) {
        fsdp_unshard(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN);
    } else if (pass->experts == NULL && pass->next != NULL && pass->next_op < 0) {
        fsdp_unshard(pass->emitter, pass->next, ARG_NEXT, ARG_NEXT_TOKEN);
    }
    if (mode == SAVE_NONE || mode == SAVE_SELECTED) {
        recompute(&walk);
    } else {
        for (guint t = 0; t < pass->graph->tensors->len; t++) {
            walk.alive[t] = walk.refs[t] > 0; /* the forward pass left them */
        }
    }
    backward_start_grads(&walk);
    pending = backward_ops(&walk, pending);
    if (mode == SAVE_SELECTED) {
        free_unreached(&walk, recompute_end(&walk));
    }
    backward_finish_sources(&walk);
    backward_finish_cut(&walk);
    if (grads != NULL) {
        for (guint p = 0; p < pass->graph->params->len; p++) {
            grads[p] = layer_param_grad(pass->graph, (int)p);
        }
    } else if (pass->group != NULL) {
        fsdp_reshard(pass->emitter, pass->group, ARG_GROUP);
        reduce_group(pass, pass->group, ARG_GROUP, pending);
    }
    walk_clear(&walk);
}
