#include "workloads/run/footprint-pass.h"

#include "sim/base/dtype.h"
#include "workloads/lower/layer.h"

/* Places of one operator. */
enum { AT_PRE = 0, AT_KERNELS = 8, AT_ARRIVE = 9, AT_END = AT_ARRIVE + OP_INPUTS_MAX, AT_POST, STRIDE = AT_POST + 7 };

/* Lifetimes of the tensors of one pass. */
typedef struct Lives {
    const PassSpec *spec;
    int n_ops;
    OpSaved *saved;
    gboolean *saves;
    int *storage;  /* by tensor: the one whose memory it is */
    int *last_use; /* by tensor: last operator that reads it, or -1 */
    int *keeper;   /* by tensor: first operator whose backward keeps it, or -1 */
} Lives;

/* A gradient buffer and how many tensors' gradient it is. */
typedef struct GradBytes {
    int64_t bytes;
    int names;
} GradBytes;

typedef struct Grads {
    const Graph *graph;
    GArray *buffers; /* GradBytes */
    int *of_tensor;  /* index, or -1 */
    int64_t *under_way; /* by operator: bytes of the rows of its exchange that nobody has waited for yet; 0 = none */
    int n_ops;
} Grads;

static int forward_place(int op)
{
    return PASS_PROLOGUE + op * STRIDE;
}

static int backward_place(const Lives *lives, int op)
{
    return PASS_PROLOGUE + (2 * lives->n_ops - op) * STRIDE;
}

static int final_place(int n_ops)
{
    return PASS_PROLOGUE + (2 * n_ops + 1) * STRIDE;
}

static int64_t tensor_bytes(const Lives *lives, int tensor)
{
    return pass_round(graph_tensor_bytes(graph_tensor(lives->spec->graph, tensor), lives->spec->rows));
}

static OpView op_view(const Lives *lives, int op)
{
    return (OpView){lives->spec->graph, graph_op(lives->spec->graph, op), lives->spec->rows};
}

/* Whether a backward finds a slot in DDR, so that what was made need not stay. */
static gboolean is_moved(const Lives *lives, int op, int slot)
{
    const Retention *retention = lives->spec->retention;
    return lives->spec->keep == PASS_KEEP_ALL && retention != NULL && (retention->moved[op] >> slot & 1u);
}

static void lives_keep(Lives *lives, int op, int slot, int tensor)
{
    if (is_moved(lives, op, slot)) {
        return;
    }
    int *keeper = &lives->keeper[lives->storage[tensor]];
    *keeper = *keeper < 0 ? op : MIN(*keeper, op);
}

static void lives_read_op(Lives *lives, int o)
{
    OpView view = op_view(lives, o);
    for (int i = 0; i < view.op->n_inputs; i++) {
        if (view.op->inputs[i] >= 0) {
            lives->last_use[lives->storage[view.op->inputs[i]]] = o;
        }
    }
    lives->saves[o] = op_has_backward(&view);
    if (!lives->saves[o]) {
        return;
    }
    op_class(view.op->kind)->saved(&view, &lives->saved[o]);
    for (int i = 0; i < view.op->n_inputs; i++) {
        if ((lives->saved[o].inputs >> i & 1u) && view.op->inputs[i] >= 0) {
            lives_keep(lives, o, i, view.op->inputs[i]);
        }
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        if (lives->saved[o].outputs >> i & 1u) {
            lives_keep(lives, o, SLOT_OUTPUT + i, view.op->outputs[i]);
        }
    }
}

static void lives_init(Lives *lives, const PassSpec *spec)
{
    int n_tensors = (int)spec->graph->tensors->len;
    *lives = (Lives){.spec = spec, .n_ops = graph_n_ops(spec->graph)};
    lives->saved = g_new0(OpSaved, lives->n_ops);
    lives->saves = g_new0(gboolean, lives->n_ops);
    lives->storage = g_new(int, n_tensors);
    lives->last_use = g_new(int, n_tensors);
    lives->keeper = g_new(int, n_tensors);
    for (int t = 0; t < n_tensors; t++) {
        int producer = graph_tensor(spec->graph, t)->producer;
        lives->last_use[t] = lives->keeper[t] = -1;
        lives->storage[t] = t;
        /* a view's source was made earlier, so its own storage is known */
        if (producer >= 0 && op_class(graph_op(spec->graph, producer)->kind)->views_input) {
            lives->storage[t] = lives->storage[graph_op(spec->graph, producer)->inputs[0]];
        }
    }
    for (int o = spec->first; o < spec->end; o++) {
        lives_read_op(lives, o);
    }
}

static void lives_clear(Lives *lives)
{
    g_free(lives->saved);
    g_free(lives->saves);
    g_free(lives->storage);
    g_free(lives->last_use);
    g_free(lives->keeper);
}

static gboolean is_kept_op(const Lives *lives, int op)
{
    return lives->spec->keep == PASS_KEEP_SELECTED && lives->spec->retention->of_op[op] != KEEP_NOT;
}

static gboolean is_handed_on(const Lives *lives, int tensor)
{
    return tensor == lives->spec->cut_tensor || graph_is_result(lives->spec->graph, tensor);
}

static gboolean is_copied(const Lives *lives, int op, int i)
{
    return lives->saved[op].copied_outputs >> i & 1u;
}

static gboolean owns_memory(const Lives *lives, int tensor)
{
    return lives->storage[tensor] == tensor;
}

/* Operators that read expert parameters: first and last. */
static gboolean expert_range(const PassSpec *spec, int *ret_first, int *ret_last)
{
    *ret_first = -1;
    for (int o = spec->first; o < spec->end; o++) {
        const Op *op = graph_op(spec->graph, o);
        for (int i = 0; i < op->n_params; i++) {
            if (op->params[i] >= 0 && graph_param(spec->graph, op->params[i])->split == PARAM_EXPERT) {
                *ret_first = *ret_first < 0 ? o : *ret_first;
                *ret_last = o;
            }
        }
    }
    return *ret_first >= 0;
}

static gboolean is_exchange(const Graph *graph, int o)
{
    return op_class(graph_op(graph, o)->kind)->collective == OP_COLLECTIVE_ALL_TO_ALL && graph->ep_size > 1;
}

/*
 * Scratch memory of an operator in forward: where it is born and dies. Rows go to their experts while the operators before a
 * dispatch run, and come back while those behind a combine do, up to the end of the pass.
 */
static void workspace_alive(const Lives *lives, Timeline *timeline, int o, int end, int64_t bytes)
{
    const Graph *graph = lives->spec->graph;
    int from = forward_place(o) + AT_KERNELS, to = from;
    if (is_exchange(graph, o) && op_class(graph_op(graph, o)->kind)->to_experts) {
        from = layer_exchange_is_early(graph, o) ? forward_place(layer_exchange_start(graph, o)) + AT_PRE : from;
    } else if (is_exchange(graph, o)) {
        int back = MIN(layer_exchange_end(graph, o), end);
        to = back > o + 1 ? forward_place(back) - 1 : to;
    }
    timeline_alive(timeline, bytes > 0 ? pass_round(bytes) : 0, from, to);
}

/* Rows of an operator's exchange have left at a place: what interleaves goes on there. */
static void cut_behind(const PassSpec *spec, Timeline *timeline, int o, int at)
{
    if (spec->plan->moe.overlap_micro_batches && layer_ends_part(spec->graph, o)) {
        g_assert(timeline->n_cuts < TIMELINE_CUTS_MAX);
        timeline->cuts[timeline->n_cuts++] = at;
    }
}

/* Whether anything of an operator is copied to DDR behind it. */
static gboolean swaps_out(const Lives *lives, int o)
{
    const Retention *retention = lives->spec->retention;
    if (retention == NULL || lives->spec->keep == PASS_KEEP_NONE) {
        return FALSE;
    }
    return lives->spec->keep == PASS_KEEP_ALL ? retention->moved[o] != 0 : retention->of_op[o] == KEEP_DDR;
}

static void forward_op(const Lives *lives, Timeline *timeline, int o)
{
    OpView view = op_view(lives, o);
    PassKeep keep = lives->spec->keep;
    int at = forward_place(o) + AT_KERNELS;
    OpCost cost = {0};
    op_class(view.op->kind)->forward_cost(&view, &cost);
    workspace_alive(lives, timeline, o, swaps_out(lives, o) ? o + 1 : lives->spec->end, cost.workspace_bytes);
    for (int i = 0; lives->saves[o] && i < lives->saved[o].n_aux; i++) {
        int64_t bytes = pass_round(op_aux_bytes(&lives->saved[o].aux[i], lives->spec->rows));
        timeline_born(timeline, bytes, at);
        gboolean outlives = (keep == PASS_KEEP_ALL && !is_moved(lives, o, SLOT_AUX + i)) || is_kept_op(lives, o);
        timeline_dead(timeline, outlives ? 0 : bytes, at);
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        int t = view.op->outputs[i];
        gboolean outlives = is_handed_on(lives, t) || (keep == PASS_KEEP_ALL && lives->keeper[t] >= 0) ||
                            (is_kept_op(lives, o) && !is_copied(lives, o, i));
        if (owns_memory(lives, t)) {
            timeline_born(timeline, tensor_bytes(lives, t), at);
            timeline_dead(timeline, outlives ? 0 : tensor_bytes(lives, t), forward_place(MAX(lives->last_use[t], o)) + AT_KERNELS);
        }
    }
}

/* A source whose memory ends with the forward pass: nobody keeps it. */
static gboolean source_dies_early(const Lives *lives)
{
    const PassSpec *spec = lives->spec;
    return spec->dying_source >= 0 && spec->plan->model->attnres_block == 0 && spec->keep == PASS_KEEP_ALL &&
           lives->keeper[g_array_index(spec->graph->inputs, int, spec->dying_source)] < 0;
}

static int64_t source_bytes(const Lives *lives)
{
    int source = lives->spec->dying_source;
    return source >= 0 ? tensor_bytes(lives, g_array_index(lives->spec->graph->inputs, int, source)) : 0;
}

void pass_forward(const PassSpec *spec, Timeline *ret_timeline)
{
    Lives lives;
    int first, last;
    lives_init(&lives, spec);
    timeline_init(ret_timeline, final_place(lives.n_ops) + PASS_EPILOGUE);
    for (int o = spec->first; o < spec->end; o++) {
        forward_op(&lives, ret_timeline, o);
        cut_behind(spec, ret_timeline, o, forward_place(o) + AT_KERNELS);
    }
    if (spec->experts != NULL && expert_range(spec, &first, &last)) {
        gboolean at_once = spec->plan->prefetch == PLAN_PREFETCH_EXPLICIT;
        timeline_unshard(ret_timeline, spec->experts, forward_place(first) + AT_PRE);
        timeline_wait(ret_timeline, spec->experts, forward_place(first) + AT_PRE + 1, at_once, spec->own_flat);
        timeline_dead(ret_timeline, spec->plan->reshard_after_forward ? spec->experts->params : 0, forward_place(last) + AT_POST);
    }
    timeline_dead(ret_timeline, source_dies_early(&lives) ? source_bytes(&lives) : 0, final_place(lives.n_ops));
    lives_clear(&lives);
}

/* End of the recomputation: the last tensor to keep has been made, or is read by an operator that keeps nothing else. */
static int recompute_end(const Lives *lives)
{
    int end = lives->spec->first;
    for (int o = lives->spec->first; o < lives->spec->end; o++) {
        if (lives->saves[o] && (lives->saved[o].outputs != 0 || lives->saved[o].n_aux > 0)) {
            end = o + 1;
        } else if (lives->saves[o] && lives->saved[o].inputs != 0) {
            end = o;
        }
    }
    return end;
}

/* What an operator makes again, and when that dies if no backward keeps it. */
static void recompute_op(const Lives *lives, Timeline *timeline, int o, int end)
{
    OpView view = op_view(lives, o);
    gboolean cached = is_kept_op(lives, o);
    int at = forward_place(o) + AT_KERNELS;
    if (!cached && !retention_runs(lives->spec->retention, o)) {
        return;
    }
    OpCost cost = {0};
    op_class(view.op->kind)->forward_cost(&view, &cost);
    workspace_alive(lives, timeline, o, end, cached ? 0 : cost.workspace_bytes);
    for (int i = 0; !cached && lives->saves[o] && i < lives->saved[o].n_aux; i++) {
        timeline_born(timeline, pass_round(op_aux_bytes(&lives->saved[o].aux[i], lives->spec->rows)), at);
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        int t = view.op->outputs[i], last = MAX(lives->last_use[t], o);
        if (!owns_memory(lives, t)) {
            continue;
        }
        timeline_born(timeline, !cached || is_copied(lives, o, i) ? tensor_bytes(lives, t) : 0, at);
        timeline_dead(timeline, lives->keeper[t] < 0 ? tensor_bytes(lives, t) : 0, forward_place(MIN(last, end)) + AT_KERNELS);
    }
}

/* Results that the first pass kept and the recomputation did not come to. */
static void free_unreached(const Lives *lives, Timeline *timeline, int end)
{
    for (int o = end; o < lives->spec->end; o++) {
        const Op *op = graph_op(lives->spec->graph, o);
        for (int i = 0; is_kept_op(lives, o) && i < op->n_outputs; i++) {
            int t = op->outputs[i];
            gboolean dies = owns_memory(lives, t) && !is_handed_on(lives, t) && !is_copied(lives, o, i) && lives->keeper[t] < 0;
            timeline_dead(timeline, dies ? tensor_bytes(lives, t) : 0, final_place(lives->n_ops));
        }
    }
}

static int grads_new(Grads *grads, int64_t bytes)
{
    GradBytes buffer = {bytes, 1};
    g_array_append_val(grads->buffers, buffer);
    return (int)grads->buffers->len - 1;
}

static void grads_release(Grads *grads, Timeline *timeline, int buffer, int at)
{
    GradBytes *held = &g_array_index(grads->buffers, GradBytes, buffer);
    if (--held->names == 0) {
        timeline_dead(timeline, held->bytes, at);
    }
}

/* The rows of an operator's exchange are back before a place: their buffer is free. */
static void grads_end_exchange(Grads *grads, Timeline *timeline, int op, int before)
{
    timeline_dead(timeline, grads->under_way[op], before - 1);
    grads->under_way[op] = 0;
}

/* Meets what has come before: added in place where the sum has no other name, else a new sum is born. */
static void grads_arrive(Grads *grads, Timeline *timeline, int tensor, int buffer, int at)
{
    int old = grads->of_tensor[tensor];
    if (old < 0) {
        grads->of_tensor[tensor] = buffer;
        return;
    }
    for (int o = 0; o < grads->n_ops; o++) {
        if (grads->under_way[o] > 0 && graph_op(grads->graph, o)->inputs[0] == tensor) {
            grads_end_exchange(grads, timeline, o, at);
        }
    }
    if (g_array_index(grads->buffers, GradBytes, old).names > 1) {
        int64_t bytes = g_array_index(grads->buffers, GradBytes, old).bytes;
        grads->of_tensor[tensor] = grads_new(grads, bytes);
        timeline_born(timeline, bytes, at);
        grads_release(grads, timeline, old, at);
    }
    grads_release(grads, timeline, buffer, at);
}

static void grads_init(Grads *grads, const Lives *lives)
{
    const PassSpec *spec = lives->spec;
    const Graph *graph = spec->graph;
    grads->graph = graph;
    grads->n_ops = lives->n_ops;
    grads->under_way = g_new0(int64_t, lives->n_ops);
    grads->buffers = g_array_new(FALSE, TRUE, sizeof(GradBytes));
    grads->of_tensor = g_new(int, graph->tensors->len);
    for (guint t = 0; t < graph->tensors->len; t++) {
        grads->of_tensor[t] = -1;
    }
    if (spec->cut_tensor >= 0) {
        grads->of_tensor[spec->cut_tensor] = grads_new(grads, tensor_bytes(lives, spec->cut_tensor));
    }
    int result = g_array_index(graph->outputs, int, 0);
    if (graph_tensor(graph, result)->needs_grad && graph_tensor(graph, result)->producer < spec->end) {
        grads->of_tensor[result] = grads_new(grads, tensor_bytes(lives, result));
    }
    for (guint i = 0; i < graph->inputs->len; i++) {
        int t = g_array_index(graph->inputs, int, i);
        if (spec->source_grads[i]) {
            grads->of_tensor[t] = grads_new(grads, tensor_bytes(lives, t));
        }
    }
}

/* Elements of a parameter on this rank, unsharded. */
static int64_t whole_bytes(const Plan *plan, const GraphParam *param)
{
    int64_t numel = graph_param_numel(param) / (param->split == PARAM_EXPERT ? plan->ep : 1);
    return pass_round(dtype_bytes(plan->compute, numel));
}

/* Backward with kernels: gradients of inputs and parameters are born, those of the outputs die. */
static void backward_kernels(const Lives *lives, Grads *grads, Timeline *timeline, int o, int64_t workspace_bytes)
{
    OpView view = op_view(lives, o);
    int place = backward_place(lives, o), fresh[OP_INPUTS_MAX];
    int64_t workspace = workspace_bytes > 0 ? pass_round(workspace_bytes) : 0;
    gboolean leaves = is_exchange(view.graph, o) && !op_class(view.op->kind)->to_experts;
    gboolean returns = is_exchange(view.graph, o) && !leaves && layer_exchange_start(view.graph, o) < o;
    gboolean early = leaves && layer_exchange_is_early(view.graph, o); /* behind the first that read its rows in forward */
    cut_behind(lives->spec, timeline, o, place + AT_KERNELS);
    gboolean waits = is_exchange(view.graph, o) && layer_exchange_start(view.graph, o) == o;
    for (int f = o + 1; waits && f < lives->n_ops; f++) { /* what goes along is back, too */
        if (grads->under_way[f] > 0 && layer_exchange_leader(view.graph, f) == o) {
            grads_end_exchange(grads, timeline, f, place + AT_KERNELS + 1);
        }
    }
    timeline_born(timeline, workspace, early ? backward_place(lives, layer_exchange_end(view.graph, o) - 1) + AT_PRE : place + AT_KERNELS);
    if (returns) {
        grads->under_way[o] = workspace;
    } else {
        timeline_dead(timeline, workspace, place + AT_KERNELS);
    }
    for (int i = 0; i < view.op->n_params; i++) {
        int64_t bytes = op_trains_param(&view, i) ? whole_bytes(lives->spec->plan, op_weight(&view, i)) : 0;
        gboolean joins = op_trains_param(&view, i) && op_weight(&view, i)->op != o; /* what other operators make of it */
        timeline_born(timeline, bytes, place + AT_KERNELS);
        timeline_dead(timeline, joins ? bytes : 0, place + AT_END);
    }
    for (int i = 0; i < view.op->n_inputs; i++) {
        fresh[i] = -1;
        if (op_needs_input_grad(&view, i)) {
            fresh[i] = grads_new(grads, tensor_bytes(lives, view.op->inputs[i]));
            timeline_born(timeline, tensor_bytes(lives, view.op->inputs[i]), place + AT_KERNELS);
        }
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        int buffer = grads->of_tensor[view.op->outputs[i]];
        if (buffer >= 0) {
            grads_release(grads, timeline, buffer, place + AT_KERNELS);
        }
    }
    for (int i = 0; i < view.op->n_inputs; i++) {
        if (fresh[i] >= 0) {
            grads_arrive(grads, timeline, view.op->inputs[i], fresh[i], place + AT_ARRIVE + i);
        }
    }
}

/* Backward of one operator; returns the place after which what it alone kept dies. */
static int backward_op(const Lives *lives, Grads *grads, Timeline *timeline, int o)
{
    OpView view = op_view(lives, o);
    int place = backward_place(lives, o);
    gboolean has_grad = FALSE, trains = FALSE;
    OpCost cost = {0};
    for (int i = 0; i < view.op->n_outputs; i++) {
        int t = view.op->outputs[i];
        if (graph_is_loss(view.graph, t) && graph_tensor(view.graph, t)->needs_grad) {
            grads->of_tensor[t] = grads_new(grads, tensor_bytes(lives, t));
            timeline_born(timeline, tensor_bytes(lives, t), place + AT_KERNELS);
        }
        has_grad = has_grad || grads->of_tensor[t] >= 0;
    }
    for (int i = 0; i < view.op->n_params; i++) {
        trains = trains || op_trains_param(&view, i);
    }
    if (!has_grad) {
        return place + AT_KERNELS;
    }
    op_class(view.op->kind)->backward_cost(&view, &cost);
    if (cost.n_works > 0 || cost.workspace_bytes > 0 || trains || view.op->n_outputs != 1 ||
        op_class(view.op->kind)->collective != OP_COLLECTIVE_NONE) {
        backward_kernels(lives, grads, timeline, o, cost.workspace_bytes);
        return place + AT_KERNELS;
    }
    int dout = grads->of_tensor[view.op->outputs[0]];
    for (int i = 0; i < view.op->n_inputs; i++) {
        if (op_needs_input_grad(&view, i)) {
            g_array_index(grads->buffers, GradBytes, dout).names++;
            grads_arrive(grads, timeline, view.op->inputs[i], dout, place + AT_ARRIVE + i);
        }
    }
    grads_release(grads, timeline, dout, place + AT_END);
    return place + AT_END;
}

/* What came back from DDR for an operator. */
static int64_t back_bytes(const Lives *lives, int op)
{
    const PassSpec *spec = lives->spec;
    g_autofree guint8 *ops = g_new0(guint8, lives->n_ops);
    ops[op] = 1;
    return spec->keep == PASS_KEEP_ALL && spec->retention != NULL ? pass_slot_bytes(spec->retention, spec->graph, spec->rows, ops) : 0;
}

/* Backward of all operators, and the deaths of everything that they kept. */
static void backward_ops(const Lives *lives, Timeline *timeline)
{
    const PassSpec *spec = lives->spec;
    g_autofree int *over = g_new0(int, lives->n_ops);
    Grads grads;
    grads_init(&grads, lives);
    for (int o = spec->end - 1; o >= spec->first; o--) {
        for (int d = o + 1; d < spec->end; d++) {
            if (grads.under_way[d] > 0 && o < layer_exchange_start(spec->graph, d)) {
                grads_end_exchange(&grads, timeline, d, backward_place(lives, o));
            }
        }
        over[o] = lives->saves[o] ? backward_op(lives, &grads, timeline, o) : 0;
        for (int i = 0; lives->saves[o] && i < lives->saved[o].n_aux; i++) {
            int64_t bytes = is_moved(lives, o, SLOT_AUX + i) ? 0 : pass_round(op_aux_bytes(&lives->saved[o].aux[i], spec->rows));
            timeline_dead(timeline, bytes, over[o]);
        }
        timeline_dead(timeline, lives->saves[o] ? back_bytes(lives, o) : 0, over[o]);
    }
    for (int d = spec->first; d < spec->end; d++) {
        grads_end_exchange(&grads, timeline, d, final_place(lives->n_ops));
    }
    for (guint t = 0; t < spec->graph->tensors->len; t++) {
        int producer = graph_tensor(spec->graph, (int)t)->producer;
        gboolean is_private = spec->keep != PASS_KEEP_ALL || !is_handed_on(lives, (int)t);
        if (lives->keeper[t] >= 0 && producer >= spec->first && is_private) {
            timeline_dead(timeline, tensor_bytes(lives, (int)t), over[lives->keeper[t]]);
        }
    }
    g_array_unref(grads.buffers);
    g_free(grads.of_tensor);
    g_free(grads.under_way);
}

/* The nested experts around the operators that read them. Returns the pending reduce buffer. */
static int64_t backward_experts(const Lives *lives, Timeline *timeline, int first, int last)
{
    const PassSpec *spec = lives->spec;
    int at = backward_place(lives, last) + AT_PRE, after = backward_place(lives, first) + AT_POST;
    if (spec->plan->reshard_after_forward) {
        timeline_unshard(timeline, spec->experts, PASS_PROLOGUE - 4);
        if (spec->keep != PASS_KEEP_ALL && retention_runs_experts(spec->retention)) {
            timeline_wait(timeline, spec->experts, forward_place(first) + AT_PRE, TRUE, 0);
            timeline_dead(timeline, spec->experts->params, forward_place(last) + AT_POST);
            timeline_unshard(timeline, spec->experts, at);
        }
        timeline_wait(timeline, spec->experts, at + 1, TRUE, 0);
    }
    if (spec->next != NULL) {
        timeline_unshard(timeline, spec->next, at + 3);
    }
    timeline_dead(timeline, spec->experts->params, after);
    return timeline_reduce(timeline, spec->experts, after + 1, spec->pending, spec->first_micro_batch);
}

gboolean pass_backward(const PassSpec *spec, Timeline *ret_timeline, int *ret_final, int64_t *ret_pending)
{
    Lives lives;
    int first, last;
    lives_init(&lives, spec);
    int end = spec->keep == PASS_KEEP_ALL ? spec->first : recompute_end(&lives);
    gboolean nested = spec->experts != NULL && expert_range(spec, &first, &last);
    gboolean claimed = !nested || spec->keep == PASS_KEEP_ALL || end > last;
    *ret_final = final_place(lives.n_ops) + 1;
    timeline_init(ret_timeline, final_place(lives.n_ops) + PASS_EPILOGUE);
    if (spec->group != NULL && spec->plan->reshard_after_forward) {
        timeline_wait(ret_timeline, spec->group, 1, TRUE, 0);
    }
    *ret_pending = nested ? backward_experts(&lives, ret_timeline, first, last) : spec->pending;
    if (spec->next != NULL && !nested) {
        timeline_unshard(ret_timeline, spec->next,
                         spec->next_op >= 0 ? backward_place(&lives, spec->next_op) + AT_PRE : PASS_PROLOGUE - 4);
    }
    for (int o = spec->first; o < end; o++) {
        recompute_op(&lives, ret_timeline, o, end);
    }
    backward_ops(&lives, ret_timeline);
    if (spec->keep == PASS_KEEP_SELECTED) {
        free_unreached(&lives, ret_timeline, end);
    }
    timeline_dead(ret_timeline, source_dies_early(&lives) ? 0 : source_bytes(&lives), final_place(lives.n_ops));
    lives_clear(&lives);
    return claimed;
}
