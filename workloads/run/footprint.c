#include "workloads/run/footprint.h"

#include "sim/base/quantity.h"
#include "workloads/run/footprint-pass.h"

/* A group while its parameters are counted. */
typedef struct GroupSum {
    int64_t n_shards;
    int64_t shard, trained_shard; /* elements */
    GroupBytes bytes;
} GroupSum;

typedef struct Foot {
    const Plan *plan;
    const ModelGraph *graphs;
    RowCounts *rows;    /* [n_layers], then those of embedding and head */
    RetentionPlan *retention;
    GArray *groups;     /* GroupSum: root, head, then dense and experts of each kind */
    gboolean explicit_prefetch;
    int cut, cut_tensor; /* of a chunked loss, or -1 */
    gboolean claimed;
    gboolean first;      /* micro-batch */
} Foot;

enum { GROUP_OF_ROOT, GROUP_OF_HEAD, GROUP_OF_KINDS };

/* Elements of a parameter on this rank, and of its shard: dimension 0 in equal parts, the last one short. */
static int64_t shard_numel(const Plan *plan, const GraphParam *param, int64_t *ret_local)
{
    gboolean expert = param->split == PARAM_EXPERT;
    int64_t ep = expert ? plan->ep : 1;
    int64_t n_shards = plan_n_shards(plan, expert);
    int64_t rows = param->dims[0] / ep, inner = MAX(param->dims[1], 1) * MAX(param->dims[2], 1);
    *ret_local = rows * inner;
    if (expert && n_shards > rows && param->n_dims > 1) {
        return rows * quantity_div_up(param->dims[1], n_shards) * MAX(param->dims[2], 1);
    }
    return quantity_div_up(rows, n_shards) * inner;
}

int64_t footprint_shard_numel(const Plan *plan, const GraphParam *param)
{
    int64_t local;
    return shard_numel(plan, param, &local);
}

/* Which parameters of the head's graph a group takes. */
typedef enum HeadPart { ALL_PARAMS, HEAD_MATRIX, NOT_HEAD_MATRIX } HeadPart;

static void group_count(const Foot *foot, GroupSum *group, const Graph *graph, ParamSplit split, HeadPart part)
{
    const Plan *plan = foot->plan;
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        gboolean wanted = part == ALL_PARAMS || (param->role == PARAM_HEAD) == (part == HEAD_MATRIX);
        if (param->role == PARAM_BUFFER || param->split != split || !wanted) {
            continue;
        }
        int64_t local, shard = shard_numel(plan, param, &local);
        int64_t bytes = pass_round(dtype_bytes(plan->compute, local));
        int64_t cast = plan->parameters != plan->compute ? bytes : 0;
        GroupBytes *sum = &group->bytes;
        group->shard += shard;
        sum->params += bytes;
        /* the cast copy beside this parameter and those before it, against the parameters alone */
        sum->alone_extra = MAX(sum->alone_extra - bytes, cast);
        if (param->trainable && param->op >= 0) {
            group->trained_shard += shard;
            sum->grads += bytes;
            sum->last_grad = bytes;
        }
    }
}

static void group_finish(const Foot *foot, GroupSum *group)
{
    const Plan *plan = foot->plan;
    GroupBytes *sum = &group->bytes;
    gboolean alone = group->n_shards == 1;
    if (plan->sharding != PLAN_SHARDING_FSDP) { /* parameters and gradients are always there: a pass's own gradients come and go */
        *sum = (GroupBytes){.grads = sum->grads, .last_grad = sum->last_grad};
        return;
    }
    if (!alone && sum->params > 0) {
        sum->cast = plan->parameters != plan->compute ? pass_round(dtype_bytes(plan->compute, group->shard)) : 0;
        sum->flat = pass_round(dtype_bytes(plan->compute, group->shard * group->n_shards));
        sum->alone_extra = 0;
    }
    if (sum->grads > 0) {
        sum->reduce_in = pass_round(dtype_bytes(plan->reduce, group->trained_shard * group->n_shards));
        sum->reduce_out = pass_round(dtype_bytes(plan->reduce, group->trained_shard));
        sum->shard_grad = pass_round(dtype_bytes(plan->parameters, group->trained_shard));
    }
    sum->out_is_grad = plan->reduce == plan->parameters;
    sum->lingers = !alone;
    if (plan->plain) {
        sum->plain = TRUE;
        sum->params = sum->alone_extra = 0;
    }
}

static GroupSum *group_at(const Foot *foot, guint i)
{
    return &g_array_index(foot->groups, GroupSum, i);
}

static void count_groups(Foot *foot)
{
    const Plan *plan = foot->plan;
    const ModelGraph *graphs = foot->graphs;
    gboolean own_head = plan->seq_chunk == 0;
    foot->groups = g_array_new(FALSE, TRUE, sizeof(GroupSum));
    g_array_set_size(foot->groups, GROUP_OF_KINDS + 2 * graphs->kinds->len);
    for (guint i = 0; i < foot->groups->len; i++) {
        group_at(foot, i)->n_shards = plan_n_shards(plan, FALSE);
    }
    group_count(foot, group_at(foot, GROUP_OF_ROOT), graphs->embedding, PARAM_DENSE, ALL_PARAMS);
    group_count(foot, group_at(foot, GROUP_OF_ROOT), graphs->head, PARAM_DENSE, own_head ? NOT_HEAD_MATRIX : ALL_PARAMS);
    if (own_head) {
        group_count(foot, group_at(foot, GROUP_OF_HEAD), graphs->head, PARAM_DENSE, HEAD_MATRIX);
    }
    for (guint k = 0; k < graphs->kinds->len; k++) {
        GroupSum *dense = group_at(foot, GROUP_OF_KINDS + 2 * k), *experts = dense + 1;
        const Graph *graph = g_ptr_array_index(graphs->kinds, k);
        experts->n_shards = plan_n_shards(plan, TRUE);
        group_count(foot, dense, graph, PARAM_DENSE, ALL_PARAMS);
        group_count(foot, plan->ep > 1 ? experts : dense, graph, PARAM_EXPERT, ALL_PARAMS);
    }
    for (guint i = 0; i < foot->groups->len; i++) {
        group_finish(foot, group_at(foot, i));
    }
}

static const GroupBytes *layer_group(const Foot *foot, int64_t layer)
{
    return &group_at(foot, GROUP_OF_KINDS + 2 * (guint)foot->graphs->layer_kind[layer])->bytes;
}

/* The nested group of a layer's experts, or NULL. */
static const GroupBytes *layer_experts(const Foot *foot, int64_t layer)
{
    const GroupSum *group = group_at(foot, GROUP_OF_KINDS + 2 * (guint)foot->graphs->layer_kind[layer] + 1);
    return group->shard > 0 ? &group->bytes : NULL;
}

static void count_rows(Foot *foot, const Routing *routing, int64_t ep_rank)
{
    const Plan *plan = foot->plan;
    const Model *model = plan->model;
    int64_t moe_layer = 0, n_layers = foot->graphs->n_layers;
    foot->rows = g_new(RowCounts, n_layers + 1);
    for (int64_t i = 0; i <= n_layers; i++) {
        gboolean is_moe = i < n_layers && model->layers[i].ffn == FFN_MOE;
        foot->rows[i] = routing_row_counts(plan, routing, is_moe ? moe_layer : -1, ep_rank);
        moe_layer += is_moe;
    }
}

/* Whether codes of a parameter outlive a pass, and their bytes: for both sides one an element, and a scale for every 128 x 128. */
static gboolean is_coded(const Plan *plan, const Graph *graph, int param)
{
    int reader = graph_param(graph, param)->op;
    return plan->fp8_weights != PLAN_FP8_EACH_PASS && reader >= 0 && graph_op(graph, reader)->fp8 && graph_op(graph, reader)->params[0] == param;
}

static int64_t code_bytes(const GraphParam *param, int64_t local)
{
    int64_t rows = param->dims[param->n_dims - 2], cols = param->dims[param->n_dims - 1];
    return 2 * (local + local / rows / cols * 4 * quantity_div_up(rows, 128) * quantity_div_up(cols, 128));
}

static int64_t static_of(const Foot *foot, const Graph *graph)
{
    const Plan *plan = foot->plan;
    int64_t bytes = 0, local;
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (param->role == PARAM_BUFFER) {
            bytes += dtype_bytes(DTYPE_FP32, graph_param_numel(param));
            continue;
        }
        int64_t shard = shard_numel(plan, param, &local);
        gboolean whole = plan->sharding != PLAN_SHARDING_FSDP;
        gboolean keeps = is_coded(plan, graph, (int)i);
        bytes += keeps && plan->fp8_weights == PLAN_FP8_PRIMARY ? 0 : dtype_bytes(plan->parameters, whole ? local : shard);
        bytes += keeps ? code_bytes(param, local) : 0;
        if (whole && param->trainable && param->op >= 0) {
            bytes += dtype_bytes(plan->reduce, shard * plan_n_shards(plan, param->split == PARAM_EXPERT));
        }
        bytes += footprint_state_bytes(plan, param, shard);
    }
    for (int o = 0; o < graph_n_ops(graph); o++) { /* counts that stay from one micro-batch to the next */
        const Op *op = graph_op(graph, o);
        bytes += op->kind == OP_router_counts ? dtype_bytes(DTYPE_INT64, graph_tensor(graph, op->outputs[0])->width) : 0;
    }
    return bytes;
}

static int64_t static_bytes(const Foot *foot)
{
    const Plan *plan = foot->plan;
    int64_t bytes = plan->cluster->device->workspace_bytes + plan->seq_len * plan->micro_batch * 2 * (int64_t)sizeof(int64_t);
    bytes += plan_balance_static_bytes(plan) + static_of(foot, foot->graphs->embedding) + static_of(foot, foot->graphs->head);
    for (int64_t i = 0; i < foot->graphs->n_layers; i++) {
        bytes += static_of(foot, model_graph_layer(foot->graphs, i));
    }
    return bytes + (plan->layer_wise ? footprint_deal_state_bytes(plan, foot->graphs) : 0);
}

/* Last input of a graph that is no index: the value whose memory the graph's backward ends. Counts them, too. */
static int last_source(const Graph *graph, int *ret_n)
{
    int last = -1;
    *ret_n = 0;
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (graph_tensor(graph, g_array_index(graph->inputs, int, i))->dtype != DTYPE_INT64) {
            last = (int)i;
            (*ret_n)++;
        }
    }
    return last;
}

static PassSpec pass_spec(const Foot *foot, const Graph *graph, const RowCounts *rows, PassKeep keep)
{
    return (PassSpec){.plan = foot->plan, .graph = graph, .rows = rows, .keep = keep, .end = graph_n_ops(graph), .cut_tensor = -1,
                      .dying_source = -1, .next_op = -1, .first_micro_batch = foot->first};
}

static PassSpec layer_spec(const Foot *foot, int64_t layer, const Retention *retention)
{
    static const PassKeep keeps[] = {[SAVE_ALL] = PASS_KEEP_ALL, [SAVE_NONE] = PASS_KEEP_NONE, [SAVE_SELECTED] = PASS_KEEP_SELECTED};
    const Graph *graph = model_graph_layer(foot->graphs, layer);
    int64_t block = foot->plan->model->attnres_block;
    int n_sources, source = 0;
    PassSpec spec = pass_spec(foot, graph, &foot->rows[layer], keeps[retention->mode]);
    spec.retention = retention;
    spec.dying_source = last_source(graph, &n_sources);
    spec.group = layer_group(foot, layer);
    spec.experts = layer_experts(foot, layer);
    for (guint i = 0; i < graph->inputs->len; i++) {
        const GraphTensor *input = graph_tensor(graph, g_array_index(graph->inputs, int, i));
        if (input->dtype != DTYPE_INT64) {
            source++;
            /* later layers have read it: a finished block's row, or the prefix that becomes one here */
            spec.source_grads[i] = block > 0 && input->needs_grad && (source < n_sources || layer % block == 0);
        }
    }
    return spec;
}

/* The head before the cut of a chunked loss, or all of it. */
static PassSpec head_spec(const Foot *foot)
{
    int n_sources;
    PassSpec spec = pass_spec(foot, foot->graphs->head, &foot->rows[foot->graphs->n_layers], PASS_KEEP_ALL);
    spec.dying_source = last_source(foot->graphs->head, &n_sources);
    if (foot->cut > 0) {
        spec.end = foot->cut;
        spec.cut_tensor = foot->cut_tensor;
    }
    return spec;
}

static void find_cut(Foot *foot)
{
    const Graph *head = foot->graphs->head;
    for (int o = graph_n_ops(head) - 1; o >= 0; o--) {
        const Op *op = graph_op(head, o);
        for (int i = 0; i < op->n_params; i++) {
            if (op->params[i] >= 0 && graph_param(head, op->params[i])->role == PARAM_HEAD) {
                foot->cut = o;
                foot->cut_tensor = op->inputs[0];
            }
        }
    }
}

/* Root group and embedding. */
static Profile begin_forward(const Foot *foot, int64_t *ret_last_flat)
{
    const GroupBytes *root = &group_at(foot, GROUP_OF_ROOT)->bytes;
    PassSpec spec = pass_spec(foot, foot->graphs->embedding, &foot->rows[foot->graphs->n_layers], PASS_KEEP_ALL);
    Timeline timeline;
    pass_forward(&spec, &timeline);
    timeline_unshard(&timeline, root, 0);
    timeline_wait(&timeline, root, 1, FALSE, 0);
    *ret_last_flat = root->flat;
    return timeline_end(&timeline);
}

/* Parts of a layer's pass, from the next one on. */
typedef struct PassParts {
    Profile parts[TIMELINE_PARTS_MAX];
    int next, n;
} PassParts;

static void end_pass(Timeline *timeline, PassParts *ret_parts)
{
    *ret_parts = (PassParts){.next = 0};
    ret_parts->n = timeline_end_parts(timeline, ret_parts->parts);
}

/* The next part, if there is one, behind what came before. */
static void add_part(Profile *profile, PassParts *parts)
{
    if (parts->next < parts->n) {
        *profile = profile_then(*profile, parts->parts[parts->next++]);
    }
}

static void add_pass(Profile *profile, PassParts *parts)
{
    while (parts->next < parts->n) {
        add_part(profile, parts);
    }
}

static void forward_layer(const Foot *foot, int64_t layer, int64_t *last_flat, PassParts *ret_parts)
{
    PassSpec spec = layer_spec(foot, layer, foot->retention->made[layer]);
    gboolean at_once = foot->explicit_prefetch;
    Timeline timeline;
    spec.own_flat = at_once ? 0 : spec.group->flat;
    pass_forward(&spec, &timeline);
    if (!at_once || layer == 0) {
        timeline_unshard(&timeline, spec.group, 0);
    }
    timeline_wait(&timeline, spec.group, 1, at_once, *last_flat);
    if (at_once && layer + 1 < foot->graphs->n_layers) {
        timeline_unshard(&timeline, layer_group(foot, layer + 1), 3);
    }
    timeline_dead(&timeline, foot->plan->reshard_after_forward ? spec.group->params : 0, timeline.n - 1);
    *last_flat = at_once ? 0 : spec.experts != NULL ? spec.experts->flat : spec.group->flat;
    end_pass(&timeline, ret_parts);
}

static RowCounts chunk_rows(const Foot *foot, int64_t chunk)
{
    RowCounts rows = foot->rows[foot->graphs->n_layers];
    int64_t size = MIN(foot->plan->seq_chunk, rows.rows[ROWS_TOKENS]);
    rows.rows[ROWS_TOKENS] = MIN(size, rows.rows[ROWS_TOKENS] - chunk * size);
    return rows;
}

static int64_t n_chunks(const Foot *foot)
{
    return foot->cut < 0 ? 0 : quantity_div_up(foot->plan->seq_len * foot->plan->micro_batch, foot->plan->seq_chunk);
}

static Profile forward_head(const Foot *foot, int64_t last_flat)
{
    const GroupBytes *head = &group_at(foot, GROUP_OF_HEAD)->bytes;
    PassSpec spec = head_spec(foot);
    Timeline timeline;
    pass_forward(&spec, &timeline);
    timeline_unshard(&timeline, head, 0);
    timeline_wait(&timeline, head, 1, TRUE, last_flat);
    Profile profile = timeline_end(&timeline);
    for (int64_t chunk = 0; chunk < n_chunks(foot); chunk++) {
        RowCounts rows = chunk_rows(foot, chunk);
        PassSpec part = pass_spec(foot, foot->graphs->head, &rows, PASS_KEEP_NONE);
        part.first = foot->cut;
        pass_forward(&part, &timeline);
        profile = profile_then(profile, timeline_end(&timeline));
    }
    return profile;
}

static int64_t output_bytes(const Graph *graph, const RowCounts *rows)
{
    return pass_round(graph_tensor_bytes(graph_tensor(graph, g_array_index(graph->outputs, int, 0)), rows));
}

/* Gradients of a chunk join the sums: new sums of the parameters', a whole of zeros around the stream's. */
static Profile sum_chunk(const Foot *foot, const RowCounts *rows, gboolean first)
{
    const Graph *head = foot->graphs->head;
    const GraphTensor *cut = graph_tensor(head, foot->cut_tensor);
    int64_t whole = pass_round(graph_tensor_bytes(cut, &foot->rows[foot->graphs->n_layers]));
    int at = 0;
    Timeline timeline;
    timeline_init(&timeline, (int)head->params->len + 2);
    for (guint i = 0; i < head->params->len; i++) {
        const GraphParam *param = graph_param(head, (int)i);
        if (!first && param->trainable && param->op >= foot->cut) {
            int64_t bytes = pass_round(dtype_bytes(head->compute, graph_param_numel(param)));
            timeline_born(&timeline, bytes, at);
            timeline_dead(&timeline, 2 * bytes, at++);
        }
    }
    if (cut->needs_grad) {
        timeline_born(&timeline, whole, at);
        timeline_dead(&timeline, pass_round(graph_tensor_bytes(cut, rows)) + (first ? 0 : whole), at);
    }
    timeline_dead(&timeline, output_bytes(head, rows), at + 1);
    return timeline_end(&timeline);
}

static Profile backward_chunks(Foot *foot)
{
    Profile profile = {0, 0};
    for (int64_t chunk = n_chunks(foot) - 1; chunk >= 0; chunk--) {
        RowCounts rows = chunk_rows(foot, chunk);
        PassSpec spec = pass_spec(foot, foot->graphs->head, &rows, PASS_KEEP_NONE);
        Timeline timeline;
        int final;
        int64_t pending;
        spec.first = foot->cut;
        foot->claimed &= pass_backward(&spec, &timeline, &final, &pending);
        timeline_born(&timeline, output_bytes(foot->graphs->head, &rows), 0); /* gradient of the loss */
        profile = profile_then(profile, timeline_end(&timeline));
        profile = profile_then(profile, sum_chunk(foot, &rows, chunk == n_chunks(foot) - 1));
    }
    return profile;
}

static Profile backward_head(Foot *foot, int64_t *ret_pending)
{
    const GroupBytes *head = &group_at(foot, GROUP_OF_HEAD)->bytes;
    gboolean whole = foot->cut < 0;
    Profile profile = backward_chunks(foot);
    PassSpec spec = head_spec(foot);
    Timeline timeline;
    int final;
    if (foot->plan->reshard_after_forward) {
        Foot probe = *foot;
        find_cut(&probe);
        spec.next = layer_group(foot, foot->graphs->n_layers - 1);
        spec.next_op = whole ? probe.cut : -1;
    }
    foot->claimed &= pass_backward(&spec, &timeline, &final, ret_pending);
    timeline_born(&timeline, whole ? output_bytes(spec.graph, spec.rows) : 0, 0);
    timeline_dead(&timeline, whole ? output_bytes(spec.graph, spec.rows) : 0, final);
    timeline_dead(&timeline, whole ? 0 : pass_round(graph_tensor_bytes(graph_tensor(spec.graph, foot->cut_tensor), spec.rows)), final);
    timeline_dead(&timeline, head->params, final);
    *ret_pending = timeline_reduce(&timeline, head, final + 1, 0, foot->first);
    return profile_then(profile, timeline_end(&timeline));
}

static void backward_layer(Foot *foot, int64_t layer, int64_t *pending, PassParts *ret_parts)
{
    PassSpec spec = layer_spec(foot, layer, foot->retention->found[layer]);
    Timeline timeline;
    int final;
    spec.next = foot->plan->reshard_after_forward && layer > 0 ? layer_group(foot, layer - 1) : NULL;
    spec.pending = *pending;
    foot->claimed &= pass_backward(&spec, &timeline, &final, pending);
    timeline_dead(&timeline, spec.group->params, final);
    *pending = timeline_reduce(&timeline, spec.group, final + 1, *pending, foot->first);
    end_pass(&timeline, ret_parts);
}

static Profile backward_end(Foot *foot, int64_t pending)
{
    const GroupBytes *root = &group_at(foot, GROUP_OF_ROOT)->bytes;
    const Graph *graph = foot->graphs->embedding;
    const Graph *layer = model_graph_layer(foot->graphs, 0);
    const RowCounts *rows = &foot->rows[foot->graphs->n_layers];
    PassSpec spec = pass_spec(foot, graph, rows, PASS_KEEP_ALL);
    int final = 0, n_sources, prefix = last_source(layer, &n_sources);
    int64_t unused;
    Timeline timeline;
    if (graph_tensor(graph, g_array_index(graph->outputs, int, 0))->needs_grad) {
        foot->claimed &= pass_backward(&spec, &timeline, &final, &unused);
    } else {
        gboolean has_grad = graph_tensor(layer, g_array_index(layer->inputs, int, prefix))->needs_grad;
        timeline_init(&timeline, PASS_EPILOGUE);
        timeline_dead(&timeline, has_grad ? output_bytes(graph, rows) : 0, 0);
    }
    timeline_dead(&timeline, root->params, final);
    pending = timeline_reduce(&timeline, root, final + 1, pending, foot->first);
    timeline_dead(&timeline, pending, final + 5);
    return timeline_end(&timeline);
}

/* What moves between the tiers at one place of the step; copies out take nothing and free nothing yet. */
static Profile swap_at(const Foot *foot, gint32 at)
{
    const RetentionPlan *retention = foot->retention;
    Profile profile = {0, 0};
    for (guint i = retention_first_event(retention, at); i < retention->events->len; i++) {
        const SwapEvent *event = &g_array_index(retention->events, SwapEvent, i);
        if (event->at != at) {
            break;
        }
        const Retention *table = event->action == SWAP_FETCH ? retention->found[event->layer] : retention->made[event->layer];
        int64_t bytes = pass_slot_bytes(table, model_graph_layer(foot->graphs, event->layer), &foot->rows[event->layer], event->ops);
        gboolean frees = event->action == SWAP_RELEASE || event->action == SWAP_DROP;
        int64_t net = event->action == SWAP_FETCH ? bytes : frees ? -bytes : 0;
        profile = profile_then(profile, (Profile){net, MAX(net, 0)});
    }
    return profile;
}

static Profile forward_pass(const Foot *foot)
{
    int64_t n_layers = foot->graphs->n_layers, last_flat;
    Profile profile = begin_forward(foot, &last_flat);
    PassParts parts;
    for (int64_t i = 0; i < n_layers; i++) {
        profile = profile_then(profile, swap_at(foot, retention_before_forward(foot->retention, i)));
        forward_layer(foot, i, &last_flat, &parts);
        add_pass(&profile, &parts);
    }
    profile = profile_then(profile, swap_at(foot, retention_before_forward(foot->retention, n_layers)));
    return profile_then(profile, forward_head(foot, last_flat));
}

static Profile backward_pass(Foot *foot)
{
    int64_t pending;
    Profile profile = swap_at(foot, retention_before_head_backward(foot->retention));
    PassParts parts;
    profile = profile_then(profile, backward_head(foot, &pending));
    for (int64_t i = foot->graphs->n_layers - 1; i >= 0; i--) {
        profile = profile_then(profile, swap_at(foot, retention_before_backward(foot->retention, i)));
        backward_layer(foot, i, &pending, &parts);
        add_pass(&profile, &parts);
    }
    return profile_then(profile, backward_end(foot, pending));
}

/* Backward of a micro-batch with the forward of the next between its parts (lower/interleave.h). */
static Profile pass_pair(Foot *foot)
{
    int64_t n_layers = foot->graphs->n_layers, last_flat, pending;
    Profile profile = backward_head(foot, &pending);
    PassParts forward = {.n = 0}, backward;
    profile = profile_then(profile, begin_forward(foot, &last_flat));
    for (int64_t i = 0; i < n_layers; i++) {
        backward_layer(foot, n_layers - 1 - i, &pending, &backward);
        add_part(&profile, &backward);
        add_pass(&profile, &forward); /* its last part */
        forward_layer(foot, i, &last_flat, &forward);
        int end = forward.n > 1 ? forward.n - 1 : 1;
        while (forward.next < end || backward.next < backward.n) {
            if (forward.next < end) {
                add_part(&profile, &forward);
            }
            add_part(&profile, &backward);
        }
    }
    add_pass(&profile, &forward);
    profile = profile_then(profile, backward_end(foot, pending));
    return profile_then(profile, forward_head(foot, last_flat));
}

/*
 * All passes of a step; *ret_after_forward: bytes alive after the last forward pass. The first backward pass makes the gradient shards; all
 * later ones are alike.
 */
static Profile all_passes(Foot *foot, int64_t *ret_after_forward)
{
    gboolean interleaves = foot->plan->moe.overlap_micro_batches;
    Profile profile = forward_pass(foot);
    for (int64_t i = 1; i < MIN(foot->plan->n_micro_batches, interleaves ? 3 : 2); i++) {
        profile = profile_then(profile, interleaves ? pass_pair(foot) : backward_pass(foot));
        foot->first = FALSE;
        profile = interleaves ? profile : profile_then(profile, forward_pass(foot));
    }
    *ret_after_forward = profile.net_bytes;
    return profile_then(profile, backward_pass(foot));
}

gboolean footprint_compute(const Plan *plan, const ModelGraph *graphs, RetentionPlan *retention, const Routing *routing, int64_t ep_rank,
                           Footprint *ret_footprint)
{
    Foot foot = {.plan = plan, .graphs = graphs, .cut = -1, .cut_tensor = -1, .claimed = TRUE, .first = TRUE};
    int64_t after_forward;
    foot.explicit_prefetch = plan->prefetch == PLAN_PREFETCH_EXPLICIT;
    count_groups(&foot);
    count_rows(&foot, routing, ep_rank);
    foot.retention = retention != NULL ? retention_plan_ref(retention) : retention_plan_new(plan, graphs, NULL);
    if (plan->seq_chunk > 0) {
        find_cut(&foot);
    }
    Profile step = all_passes(&foot, &after_forward);
    *ret_footprint = (Footprint){.static_bytes = static_bytes(&foot)};
    ret_footprint->after_forward_bytes = ret_footprint->static_bytes + after_forward;
    int64_t optimizer_peak = MAX(step.net_bytes + footprint_optimizer_peak(plan, graphs), pass_round(plan_balance_bytes(plan)));
    ret_footprint->peak_bytes = ret_footprint->static_bytes + MAX(step.peak_bytes, optimizer_peak);
    g_free(foot.rows);
    retention_plan_free(foot.retention);
    g_array_unref(foot.groups);
    return foot.claimed;
}
