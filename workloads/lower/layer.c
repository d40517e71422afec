#include "workloads/lower/layer.h"

#include <string.h>

/*
 * Frame layout: tensors, auxiliary tensors (OP_AUX_MAX per operator), gradients that an operator makes of its inputs, sums
 * of such gradients with earlier ones (OP_INPUTS_MAX each per operator), gradients of parameters, workspace, cut gradient.
 */
static gint32 frame_aux(const Graph *graph, int op, int i)
{
    return (gint32)graph->tensors->len + op * OP_AUX_MAX + i;
}

static gint32 frame_grad(const Graph *graph, int op, int i)
{
    return frame_aux(graph, graph_n_ops(graph), 0) + op * OP_INPUTS_MAX + i;
}

static gint32 frame_sum(const Graph *graph, int op, int i)
{
    return frame_grad(graph, graph_n_ops(graph), 0) + op * OP_INPUTS_MAX + i;
}

static gint32 frame_param_grad(const Graph *graph, int param)
{
    return frame_sum(graph, graph_n_ops(graph), 0) + param;
}

static gint32 frame_workspace(const Graph *graph)
{
    return frame_param_grad(graph, (int)graph->params->len);
}

static gint32 frame_cut_grad(const Graph *graph)
{
    return frame_workspace(graph) + 1;
}

int layer_frame_buffers(const Graph *graph)
{
    return frame_cut_grad(graph) + 1;
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
    return g_strdup(buffer == frame_workspace(graph) ? "workspace" : "gradient at the cut");
}

static int source_index(const Graph *graph, int tensor)
{
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (g_array_index(graph->inputs, int, i) == tensor) {
            return (int)i;
        }
    }
    return -1;
}

static gboolean is_output(const Graph *graph, int tensor)
{
    for (guint i = 0; i < graph->outputs->len; i++) {
        if (g_array_index(graph->outputs, int, i) == tensor) {
            return TRUE;
        }
    }
    return FALSE;
}

Place layer_tensor(const Graph *graph, int tensor)
{
    int source = source_index(graph, tensor);
    if (source >= 0) {
        return (Place){ARG_SOURCES + source, BOUNDARY_VALUE};
    }
    return is_output(graph, tensor) ? (Place){ARG_OUTPUT, BOUNDARY_VALUE} : (Place){ARG_FRAME, tensor};
}

Place layer_cut_grad(const Graph *graph)
{
    return (Place){ARG_FRAME, frame_cut_grad(graph)};
}

Place layer_param_grad(const Graph *graph, int param)
{
    return (Place){ARG_FRAME, frame_param_grad(graph, param)};
}

/* State of one pass over the operators. */
typedef struct Walk {
    const LayerPass *pass;
    const Graph *graph;
    SaveMode mode;
    gboolean in_recompute;
    int first_op, end_op;
    OpSaved *saved;      /* by operator */
    gboolean *saves;     /* by operator: its backward will run */
    int *storage;        /* by tensor: the one whose memory it is; views share their input's */
    gint16 *uses;        /* by tensor: readers still to come */
    gint16 *refs;        /* by tensor: backward operators that will read it */
    gboolean *alive;     /* by tensor */
    Place *grad;         /* by tensor; idx -1 = none */
    GArray *held;        /* GradHold */
} Walk;

/* How many names a gradient buffer goes by. */
typedef struct GradHold {
    Place place;
    int refs;
} GradHold;

/* Given from outside the pass: a source of the graph, or made by an operator before the range. */
static gboolean is_external(const Walk *walk, int tensor)
{
    int producer = graph_tensor(walk->graph, tensor)->producer;
    return producer < 0 || producer < walk->first_op;
}

/* Handed on to whoever follows the pass: an output of the graph, or read by an operator after the range. */
static gboolean is_handed_on(const Walk *walk, int tensor)
{
    return is_output(walk->graph, tensor) || tensor == walk->pass->cut_tensor;
}

static OpView walk_view(const Walk *walk, int op)
{
    return (OpView){walk->graph, graph_op(walk->graph, op), walk->pass->rows};
}

static void walk_init(Walk *walk, const LayerPass *pass, SaveMode mode)
{
    const Graph *graph = pass->graph;
    int n_ops = graph_n_ops(graph), n_tensors = (int)graph->tensors->len;
    *walk = (Walk){.pass = pass, .graph = graph, .mode = mode};
    walk->first_op = pass->first_op;
    walk->end_op = pass->end_op > 0 ? pass->end_op : n_ops;
    walk->saved = g_new0(OpSaved, n_ops);
    walk->saves = g_new0(gboolean, n_ops);
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
        for (int i = 0; i < view.op->n_inputs; i++) {
            if (walk->saved[o].inputs >> i & 1u && view.op->inputs[i] >= 0) {
                walk->refs[walk->storage[view.op->inputs[i]]]++;
            }
        }
        for (int i = 0; i < view.op->n_outputs; i++) {
            if (walk->saved[o].outputs >> i & 1u) {
                walk->refs[walk->storage[view.op->outputs[i]]]++;
            }
        }
    }
}

static void walk_clear(Walk *walk)
{
    g_free(walk->saved);
    g_free(walk->saves);
    g_free(walk->storage);
    g_free(walk->uses);
    g_free(walk->refs);
    g_free(walk->alive);
    g_free(walk->grad);
    g_array_unref(walk->held);
}

/* Whether an operator's results stay under SAVE_SELECTED. */
static gboolean op_is_kept(const Walk *walk, int op)
{
    return op >= 0 && walk->pass->keep[op_class(graph_op(walk->graph, op)->kind)->keep];
}

/* Whether a tensor outlives its last reader in a forward pass. */
static gboolean tensor_outlives(const Walk *walk, int tensor)
{
    if (is_external(walk, tensor)) {
        return TRUE;
    }
    if (is_handed_on(walk, tensor) && !walk->in_recompute) {
        return TRUE;
    }
    switch (walk->mode) {
    case SAVE_ALL:
        return walk->refs[tensor] > 0;
    case SAVE_SELECTED:
        return walk->in_recompute ? walk->refs[tensor] > 0 : op_is_kept(walk, graph_tensor(walk->graph, tensor)->producer);
    case SAVE_NONE:
    case SAVE_RECOMPUTE:
    default:
        return walk->in_recompute && walk->refs[tensor] > 0;
    }
}

static Place walk_tensor(const Walk *walk, int tensor)
{
    /* a recomputed output is a private copy: the one handed on is long gone */
    gboolean is_private = walk->in_recompute && !is_external(walk, tensor);
    return is_private ? (Place){ARG_FRAME, tensor} : layer_tensor(walk->graph, tensor);
}

static void walk_alloc_tensor(Walk *walk, int tensor)
{
    const GraphTensor *info = graph_tensor(walk->graph, tensor);
    emit_alloc(walk->pass->emitter, STREAM_COMPUTE, walk_tensor(walk, tensor), graph_tensor_bytes(info, walk->pass->rows),
               info->tag);
    walk->alive[tensor] = TRUE;
}

static void walk_free_tensor(Walk *walk, int tensor)
{
    emit_free(walk->pass->emitter, walk_tensor(walk, tensor));
    walk->alive[tensor] = FALSE;
}

static gboolean aux_outlives(const Walk *walk, int op)
{
    if (!walk->saves[op]) {
        return FALSE;
    }
    return walk->in_recompute || walk->mode == SAVE_ALL || (walk->mode == SAVE_SELECTED && op_is_kept(walk, op));
}

/* The rows change ranks: compute waits for the exchange, which waits for compute. */
static void emit_exchange(const LayerPass *pass)
{
    Emitter *emitter = pass->emitter;
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_collective(emitter, STREAM_ALL_TO_ALL, COLL_all_to_all, GROUP_EP, pass->exchange.bytes, pass->exchange.rows_ns,
                    pass->exchange.evidence);
    emit_record(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
    emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
}

/* Counts go first; the host must know them before it can size the exchange. */
static void emit_counts_exchange(const LayerPass *pass, int n_host_syncs)
{
    Emitter *emitter = pass->emitter;
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_collective(emitter, STREAM_ALL_TO_ALL, COLL_all_to_all, GROUP_EP, 0, pass->exchange.counts_ns, pass->exchange.evidence);
    emit_record(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
    emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
    for (int i = 0; i < n_host_syncs; i++) {
        emit(emitter, INSTR_HOST_SYNC, STREAM_COMPUTE)->host_ns = emitter->device->host_sync_ns;
    }
}

/* Kernels of a pass of an operator, with its exchange where it stands. */
static void walk_compute(const Walk *walk, int op, OpCost *cost, gboolean backward)
{
    const LayerPass *pass = walk->pass;
    OpKind kind = graph_op(walk->graph, op)->kind;
    gboolean exchanges = op_class(kind)->collective == OP_COLLECTIVE_ALL_TO_ALL && walk->graph->ep_size > 1;
    gboolean exchange_first = (kind == OP_dispatch) != backward;
    if (exchanges && exchange_first) {
        if (!backward) {
            emit_counts_exchange(pass, cost->n_host_syncs);
            cost->n_host_syncs = 0;
        }
        emit_exchange(pass);
    }
    if (cost->workspace_bytes > 0) {
        emit_alloc(pass->emitter, STREAM_COMPUTE, (Place){ARG_FRAME, frame_workspace(walk->graph)}, cost->workspace_bytes,
                   MEM_WORKSPACE);
    }
    emit_cost(pass->emitter, STREAM_COMPUTE, cost, (int)kind, op);
    if (cost->workspace_bytes > 0) {
        emit_free(pass->emitter, (Place){ARG_FRAME, frame_workspace(walk->graph)});
    }
    if (exchanges && !exchange_first) {
        emit_exchange(pass);
    }
}

/* First and last operator that reads an expert parameter; FALSE if there is none. */
static gboolean expert_range(const Walk *walk, int *ret_first, int *ret_last)
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
                   op_aux_bytes(&walk->saved[o].aux[i], walk->pass->rows), MEM_ACTIVATIONS);
    }
    op_class(op->kind)->forward_cost(&view, &cost);
    walk_compute(walk, o, &cost, FALSE);
    for (int i = 0; i < n_aux && !aux_outlives(walk, o); i++) {
        emit_free(walk->pass->emitter, (Place){ARG_FRAME, frame_aux(walk->graph, o, i)});
    }
}

/* After an operator: its inputs lose a reader, its unread outputs die. */
static void forward_release(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    for (int i = 0; i < op->n_inputs; i++) {
        int t = op->inputs[i] >= 0 ? walk->storage[op->inputs[i]] : -1;
        if (t >= 0 && --walk->uses[t] == 0 && walk->alive[t] && !tensor_outlives(walk, t)) {
            walk_free_tensor(walk, t);
        }
    }
    for (int i = 0; i < op->n_outputs; i++) {
        int t = op->outputs[i];
        if (walk->uses[t] == 0 && walk->alive[t] && !tensor_outlives(walk, t)) {
            walk_free_tensor(walk, t);
        }
    }
}

/* The nested group's own hooks. In a recomputation the block's hook has gathered it ahead. */
static void forward_experts(const Walk *walk)
{
    const LayerPass *pass = walk->pass;
    if (!walk->in_recompute) {
        fsdp_unshard(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN);
    }
    fsdp_wait(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN, TRUE, -1);
}

static void forward_ops(Walk *walk, int end_op)
{
    const LayerPass *pass = walk->pass;
    int first = 0, last = -1;
    gboolean nested = pass->experts != NULL && expert_range(walk, &first, &last);
    for (int o = walk->first_op; o < end_op; o++) {
        gboolean is_cached = walk->in_recompute && walk->mode == SAVE_SELECTED && op_is_kept(walk, o);
        if (nested && o == first && (pass->reshard || !walk->in_recompute)) {
            forward_experts(walk);
        }
        if (is_cached) {
            for (int i = 0; i < graph_op(walk->graph, o)->n_outputs; i++) {
                walk->alive[graph_op(walk->graph, o)->outputs[i]] = TRUE;
            }
        } else {
            forward_op(walk, o);
        }
        forward_release(walk, o);
        if (nested && o == last && pass->reshard) {
            fsdp_reshard(pass->emitter, pass->experts, ARG_EXPERTS);
        }
    }
}

void layer_forward(const LayerPass *pass, SaveMode mode)
{
    Walk walk;
    walk_init(&walk, pass, mode);
    pass->emitter->phase = PHASE_FORWARD;
    pass->emitter->is_backward = FALSE;
    pass->emitter->is_selective = mode == SAVE_SELECTED;
    if (mode == SAVE_NONE || mode == SAVE_SELECTED) {
        emit_host(pass->emitter, pass->emitter->device->checkpoint_ns);
    }
    forward_ops(&walk, walk.end_op);
    walk_clear(&walk);
}

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
    pass->emitter->is_selective = walk->mode == SAVE_SELECTED;
    emit_host(pass->emitter, pass->emitter->device->checkpoint_ns);
    walk->in_recompute = TRUE;
    forward_ops(walk, end);
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
        for (int i = 0; op_is_kept(walk, o) && i < op->n_outputs; i++) {
            if (!is_handed_on(walk, op->outputs[i]) && walk->refs[op->outputs[i]] == 0) {
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
    if (grad_hold(walk, old)->refs == 1) {
        emit_bytes(walk->pass->emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, bytes, 1, LABEL_GRAD_ACCUMULATE);
        grad_release(walk, place);
        return;
    }
    Place sum = {ARG_FRAME, frame_sum(walk->graph, o, i)};
    emit_alloc(walk->pass->emitter, STREAM_COMPUTE, sum, bytes, info->tag);
    grad_hold(walk, sum)->refs = 1;
    emit_bytes(walk->pass->emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, bytes, 1, LABEL_GRAD_ACCUMULATE);
    grad_release(walk, old);
    grad_release(walk, place);
    walk->grad[tensor] = sum;
}

static void backward_free_saved(Walk *walk, int o)
{
    const Op *op = graph_op(walk->graph, o);
    const OpSaved *saved = &walk->saved[o];
    for (int i = 0; i < saved->n_aux; i++) {
        emit_free(walk->pass->emitter, (Place){ARG_FRAME, frame_aux(walk->graph, o, i)});
    }
    for (int k = 0; k < op->n_inputs + op->n_outputs; k++) {
        gboolean is_input = k < op->n_inputs;
        int i = is_input ? k : k - op->n_inputs;
        int named = is_input ? op->inputs[i] : op->outputs[i];
        int t = named >= 0 ? walk->storage[named] : -1;
        guint32 mask = is_input ? saved->inputs : saved->outputs;
        if (t < 0 || !(mask >> i & 1u) || --walk->refs[t] > 0) {
            continue;
        }
        gboolean is_private = walk->in_recompute || !is_handed_on(walk, t);
        if (!is_external(walk, t) && is_private) {
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
            const GraphParam *param = op_weight(&view, i);
            emit_alloc(emitter, STREAM_COMPUTE, layer_param_grad(walk->graph, view.op->params[i]),
                       dtype_bytes(walk->graph->compute, fsdp_local_numel(emitter->plan, param)), MEM_GRADIENTS);
        }
    }
    walk_compute(walk, o, cost, TRUE);
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
}

static void backward_op(Walk *walk, int o)
{
    OpView view = walk_view(walk, o);
    const OpClass *class = op_class(view.op->kind);
    OpCost cost = {0};
    if (!walk->saves[o]) {
        return;
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
        if (entry->graph == graph && fsdp_has_grad(graph_param(graph, entry->param))) {
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
    if (pass->reshard && walk->mode != SAVE_ALL) {
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
    gboolean nested = pass->experts != NULL && expert_range(walk, &first, &last);
    for (int o = walk->end_op - 1; o >= walk->first_op; o--) {
        if (nested && o == last) {
            backward_experts(walk);
        }
        pass->emitter->is_backward = TRUE;
        backward_op(walk, o);
        if (nested && o == first) {
            fsdp_reshard(pass->emitter, pass->experts, ARG_EXPERTS);
            reduce_group(pass, pass->experts, ARG_EXPERTS, pending);
            pending = pass->experts->n_trainable > 0 ? ARG_EXPERTS : pending;
        }
    }
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
        if ((int)i == walk->pass->dying_source) {
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
    for (guint i = 0; i < graph->outputs->len; i++) {
        int t = g_array_index(graph->outputs, int, i);
        if (graph_tensor(graph, t)->needs_grad && graph_tensor(graph, t)->producer < walk->end_op) {
            walk->grad[t] = (Place){ARG_OUTPUT + (gint32)i, BOUNDARY_GRAD};
            grad_hold(walk, walk->grad[t])->refs = 1;
        }
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
        gboolean is_cut = graph_tensor(walk->graph, (int)t)->producer >= 0 && is_external(walk, (int)t);
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
    pass->emitter->phase = PHASE_BACKWARD;
    pass->emitter->is_backward = TRUE;
    pass->emitter->is_selective = FALSE;
    if (pass->group != NULL && pass->reshard) {
        fsdp_wait(pass->emitter, pass->group, ARG_GROUP, ARG_GROUP_TOKEN, TRUE, -1);
    }
    if (pass->experts != NULL && pass->reshard) {
        fsdp_unshard(pass->emitter, pass->experts, ARG_EXPERTS, ARG_EXPERTS_TOKEN);
    } else if (pass->experts == NULL && pass->next != NULL) {
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
