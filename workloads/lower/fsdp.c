#include "workloads/lower/fsdp.h"

#include "models/fp8.h"

#include "workloads/lower/body.h"

FsdpGroup *fsdp_group_new(const Plan *plan, GroupKind mesh)
{
    FsdpGroup *group = g_new0(FsdpGroup, 1);
    group->params = g_array_new(FALSE, TRUE, sizeof(FsdpParam));
    group->mesh = mesh;
    group->n_shards = plan_n_shards(plan, mesh == GROUP_EXPERT);
    group->n_ranks = mesh == GROUP_EXPERT ? plan->efsdp : plan->dp_shard * plan->cp;
    group->resident = plan->sharding != PLAN_SHARDING_FSDP;
    return group;
}

void fsdp_group_free(FsdpGroup *group)
{
    if (group != NULL) {
        g_array_unref(group->params);
        g_free(group);
    }
}

gboolean fsdp_has_grad(const GraphParam *param)
{
    return param->trainable && param->op >= 0;
}

static int64_t shards_of(const Plan *plan, const GraphParam *param)
{
    return plan_n_shards(plan, param->split == PARAM_EXPERT);
}

int64_t fsdp_local_numel(const Plan *plan, const GraphParam *param)
{
    int64_t numel = graph_param_numel(param);
    return param->split == PARAM_EXPERT ? numel / plan->ep : numel;
}

gboolean fsdp_cuts_experts(const Plan *plan, const GraphParam *param)
{
    return param->split == PARAM_EXPERT && param->n_dims > 1 && shards_of(plan, param) > param->dims[0] / plan->ep;
}

int64_t fsdp_shard_numel(const Plan *plan, const GraphParam *param)
{
    int64_t n_shards = shards_of(plan, param);
    int64_t local = fsdp_local_numel(plan, param);
    int64_t rows = param->split == PARAM_EXPERT ? param->dims[0] / plan->ep : param->dims[0];
    if (fsdp_cuts_experts(plan, param)) {
        int64_t inner = quantity_div_up(param->dims[1], n_shards);
        return local / param->dims[1] * inner;
    }
    return local / rows * quantity_div_up(rows, n_shards);
}

void fsdp_group_add(FsdpGroup *group, const Plan *plan, const Graph *graph, ParamSplit split, FsdpWanted wanted)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (param->split != split || param->role == PARAM_BUFFER || (wanted != NULL && !wanted(param))) {
            continue;
        }
        FsdpParam entry = {graph, (int)i};
        int64_t shard = fsdp_shard_numel(plan, param);
        g_array_append_val(group->params, entry);
        group->numel += fsdp_local_numel(plan, param);
        group->shard_numel += shard;
        group->padded_numel += shard * group->n_shards;
        group->gather_bytes += dtype_bytes(fsdp_whole_bytes(plan, &entry) > 0 ? plan->compute : DTYPE_FP8, shard * group->n_shards);
        if (fsdp_has_grad(param)) {
            group->n_trainable++;
            copy_in_add(&group->copy_in, dtype_bytes(plan->reduce, shard));
            group->trainable_numel += fsdp_local_numel(plan, param);
            group->trainable_shard_numel += shard;
            group->trainable_padded_numel += shard * group->n_shards;
        }
    }
}

void fsdp_group_price(FsdpGroup *group, const Plan *plan)
{
    const Cluster *cluster = plan->cluster;
    gboolean expert = group->mesh == GROUP_EXPERT;
    CollGroup ranks = cluster_group(cluster, 0, expert ? plan->ep : 1, group->n_shards);
    CollGroup replicas = cluster_group(cluster, 0, plan->dp_shard * plan->cp, plan->dp_replicate);
    if (group->n_shards > 1) {
        group->gather = coll_price(cluster, COLL_all_gather, &ranks, group->gather_bytes);
        group->reduce = coll_price(cluster, COLL_reduce_scatter, &ranks, dtype_bytes(plan->reduce, group->trainable_padded_numel));
    }
    if (group->n_shards < group->n_ranks) { /* no tensor is cut: whole gradients are summed */
        ranks = cluster_group(cluster, 0, expert ? plan->ep : 1, group->n_ranks);
        group->reduce = coll_price(cluster, COLL_all_reduce, &ranks, dtype_bytes(plan->reduce, group->trainable_padded_numel));
    }
    if (plan->dp_replicate > 1) {
        group->replica = coll_price(cluster, COLL_all_reduce, &replicas, dtype_bytes(plan->reduce, group->trainable_shard_numel));
    }
}

gint32 fsdp_codes_buffer(const FsdpGroup *group, guint i)
{
    return (gint32)(FSDP_PARAMS + 2 * group->params->len + i);
}

int fsdp_group_buffers(const FsdpGroup *group)
{
    return FSDP_PARAMS + 3 * (int)group->params->len;
}

int64_t fsdp_code_bytes(const Plan *plan, const FsdpParam *entry)
{
    const GraphParam *param = graph_param(entry->graph, entry->param);
    const Op *op = param->op >= 0 ? graph_op(entry->graph, param->op) : NULL;
    if (op == NULL || !op->fp8_codes || op->params[0] != entry->param) {
        return 0;
    }
    int64_t n = param->dims[param->n_dims - 2], k = param->dims[param->n_dims - 1];
    return 2 * fp8_weight_bytes(fsdp_local_numel(plan, param) / (n * k), n, k);
}

int64_t fsdp_whole_bytes(const Plan *plan, const FsdpParam *entry)
{
    gboolean is_code = plan->fp8_weights == PLAN_FP8_PRIMARY && fsdp_code_bytes(plan, entry) > 0;
    return is_code ? 0 : dtype_bytes(plan->parameters, fsdp_local_numel(plan, graph_param(entry->graph, entry->param)));
}

int fsdp_group_find(const FsdpGroup *group, const Graph *graph, int param)
{
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        if (entry->param == param && graph_is_variant(entry->graph, graph)) {
            return (int)i;
        }
    }
    return -1;
}

static Place global_token(int token)
{
    return (Place){ARG_GLOBAL, token};
}

gboolean fsdp_has_flat(const FsdpGroup *group)
{
    return group->n_shards > 1 && !group->resident;
}

gboolean fsdp_leaves_reduce(const FsdpGroup *group)
{
    return group->n_trainable > 0 && !group->resident;
}

void fsdp_unshard(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token)
{
    const Plan *plan = emitter->plan;
    int64_t stored = dtype_bytes(plan->parameters, group->shard_numel);
    int64_t cast = dtype_bytes(plan->compute, group->shard_numel);
    int64_t flat = dtype_bytes(plan->compute, group->padded_numel);
    gboolean needs_cast = plan->parameters != plan->compute;
    if (body_hook(emitter, HOOK_UNSHARD, (Hook){.arg = arg, .arg_token = arg_token}, group, NULL) || !fsdp_has_flat(group)) {
        return;
    }
    emit_host(emitter, emitter->device->fsdp_group_ns);
    if (needs_cast) {
        emit_alloc(emitter, STREAM_GATHER_IN, (Place){arg, FSDP_CAST}, cast, MEM_UNSHARDED);
        emit_bytes(emitter, STREAM_GATHER_IN, WORK_COPY, stored, cast, 1, LABEL_SHARD_CAST);
        emit_value(emitter, STREAM_GATHER_IN, VALUE_SHARD_CAST, -1);
        emit_operand(emitter, (Place){arg, FSDP_CAST});
    }
    emit_alloc(emitter, STREAM_GATHER_IN, (Place){arg, FSDP_FLAT}, flat, MEM_UNSHARDED);
    emit_bytes(emitter, STREAM_GATHER_IN, WORK_COPY, cast, cast, 1, LABEL_SHARD_CAST);
    emit_value(emitter, STREAM_GATHER_IN, VALUE_SHARD_PLACE, -1);
    emit_operand(emitter, (Place){arg, needs_cast ? FSDP_CAST : -1});
    emit_operand(emitter, (Place){arg, FSDP_FLAT});
    emit_record(emitter, STREAM_GATHER_IN, global_token(TOKEN_CAST));
    emit_wait(emitter, STREAM_GATHER, global_token(TOKEN_CAST));
    emit_collective(emitter, STREAM_GATHER, COLL_all_gather, group->mesh, flat, &group->gather);
    emit_operand(emitter, (Place){arg, FSDP_FLAT});
    emit_record(emitter, STREAM_GATHER, (Place){arg_token, 0});
    if (needs_cast) {
        emit_free(emitter, (Place){arg, FSDP_CAST});
    }
}

void fsdp_start(Emitter *emitter)
{
    emit_record(emitter, STREAM_COMPUTE, global_token(TOKEN_COPY_OUT));
    emit_wait(emitter, STREAM_GATHER_IN, global_token(TOKEN_COPY_OUT)); /* the gather itself follows its copy-in */
}

void fsdp_finish(Emitter *emitter)
{
    emit_record(emitter, STREAM_REDUCE, global_token(TOKEN_REDUCED));
}

/* Later gathers may not overtake the copy-out whose flat buffer they could be given. */
static void gather_waits_for_copy_out(Emitter *emitter)
{
    emit_wait(emitter, STREAM_GATHER_IN, global_token(TOKEN_COPY_OUT)); /* the gather itself follows its copy-in */
}

void fsdp_release_flat(Emitter *emitter, int arg)
{
    gather_waits_for_copy_out(emitter);
    emit_free(emitter, (Place){arg, FSDP_FLAT});
}

/* A group of one rank: each parameter is cast into a copy, and that copied to its place. */
static void wait_alone(Emitter *emitter, const FsdpGroup *group, int arg)
{
    const Plan *plan = emitter->plan;
    gboolean needs_cast = plan->parameters != plan->compute;
    Place temporary = {arg, FSDP_CAST};
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        int64_t numel = fsdp_local_numel(plan, graph_param(entry->graph, entry->param));
        int64_t bytes = dtype_bytes(plan->compute, numel);
        if (needs_cast) {
            emit_alloc(emitter, STREAM_COMPUTE, temporary, bytes, MEM_UNSHARDED);
            emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, dtype_bytes(plan->parameters, numel), bytes, 1, LABEL_SHARD_CAST);
            emit_value(emitter, STREAM_COMPUTE, VALUE_PARAM_CAST, (int)i);
            emit_operand(emitter, temporary);
        }
        emit_alloc(emitter, STREAM_COMPUTE, (Place){arg, FSDP_PARAMS + (gint32)i}, bytes, MEM_UNSHARDED);
        emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, bytes, bytes, 1, LABEL_COPY_OUT);
        emit_value(emitter, STREAM_COMPUTE, needs_cast ? VALUE_COPY : VALUE_PARAM_CAST, (int)i);
        if (needs_cast) {
            emit_operand(emitter, temporary);
        }
        emit_operand(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
        if (needs_cast) {
            emit_free(emitter, temporary);
        }
    }
}

gboolean fsdp_is_plain(const Plan *plan)
{
    return plan->plain;
}

static void wait_plain(Emitter *emitter, const FsdpGroup *group, int arg)
{
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        Place param = {arg, FSDP_PARAMS + (gint32)i};
        int64_t numel = fsdp_local_numel(emitter->plan, graph_param(entry->graph, entry->param));
        emit_view(emitter, param, dtype_bytes(emitter->plan->compute, numel), MEM_UNSHARDED);
        emit_value(emitter, STREAM_COMPUTE, VALUE_PARAM_CAST, (int)i);
        emit_operand(emitter, param);
    }
}

static Place whole_grad(const FsdpGroup *group, int arg, int64_t i)
{
    return (Place){arg, (gint32)(FSDP_PARAMS + group->params->len + i)};
}

/* Bytes of the i-th gradient of a group. */
static int64_t grad_bytes(const Plan *plan, const FsdpGroup *group, int64_t wanted)
{
    int64_t n = 0;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        if (fsdp_has_grad(param) && n++ == wanted) {
            return dtype_bytes(plan->compute, fsdp_local_numel(plan, param));
        }
    }
    g_assert_not_reached();
}

/* Gradients stay, or join those of earlier micro-batches. */
static void keep_grads(Emitter *emitter, const FsdpGroup *group, int arg, const Place *grads, gboolean first)
{
    for (int64_t i = 0; i < group->n_trainable; i++) {
        Place whole = whole_grad(group, arg, i);
        if (first) {
            emit_move(emitter, grads[i], whole);
            continue;
        }
        int64_t bytes = grad_bytes(emitter->plan, group, i);
        emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, bytes, 1, LABEL_GRAD_ACCUMULATE);
        emit_value(emitter, STREAM_COMPUTE, VALUE_ADD, -1);
        emit_operand(emitter, whole);
        emit_operand(emitter, grads[i]);
        emit_operand(emitter, whole);
        emit_free(emitter, grads[i]);
    }
}

void fsdp_gather_grads(Emitter *emitter, const FsdpGroup *group, int arg)
{
    Place all = {arg, FSDP_GRAD};
    emit_view(emitter, all, dtype_bytes(emitter->plan->parameters, group->trainable_shard_numel), MEM_GRADIENTS);
    emit_value(emitter, STREAM_COMPUTE, VALUE_GRAD_IN, -1);
    emit_operand(emitter, all);
    for (int64_t i = 0; i < group->n_trainable; i++) {
        emit_operand(emitter, whole_grad(group, arg, i));
    }
}

void fsdp_free_grads(Emitter *emitter, const FsdpGroup *group, int arg)
{
    for (int64_t i = 0; i < group->n_trainable; i++) {
        emit_free(emitter, whole_grad(group, arg, i));
    }
}

static void wait_gathered(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token)
{
    const Plan *plan = emitter->plan;
    int64_t bytes = dtype_bytes(plan->compute, group->numel);
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        int64_t numel = fsdp_local_numel(plan, graph_param(entry->graph, entry->param));
        emit_alloc(emitter, STREAM_COMPUTE, (Place){arg, FSDP_PARAMS + (gint32)i}, dtype_bytes(plan->compute, numel), MEM_UNSHARDED);
    }
    emit_wait(emitter, STREAM_COMPUTE, (Place){arg_token, 0});
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, bytes, bytes, 1, LABEL_COPY_OUT);
    emit_value(emitter, STREAM_COMPUTE, VALUE_COPY_OUT, -1);
    emit_operand(emitter, (Place){arg, FSDP_FLAT});
    for (guint i = 0; i < group->params->len; i++) {
        emit_operand(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
    }
}

void fsdp_wait(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token, gboolean free_flat, int last_flat)
{
    Hook hook = {.arg = arg, .arg_token = arg_token, .flag = free_flat, .last = last_flat};
    if (body_hook(emitter, HOOK_WAIT, hook, group, NULL) || group->resident) {
        return;
    }
    if (fsdp_is_plain(emitter->plan)) {
        wait_plain(emitter, group, arg);
        return;
    }
    emit_host(emitter, emitter->device->fsdp_group_ns);
    if (last_flat >= 0) {
        fsdp_release_flat(emitter, last_flat);
    }
    if (fsdp_has_flat(group)) {
        wait_gathered(emitter, group, arg, arg_token);
    } else {
        wait_alone(emitter, group, arg);
    }
    emit_record(emitter, STREAM_COMPUTE, global_token(TOKEN_COPY_OUT));
    if (free_flat && fsdp_has_flat(group)) {
        fsdp_release_flat(emitter, arg);
    }
}

void fsdp_reshard(Emitter *emitter, const FsdpGroup *group, int arg)
{
    if (body_hook(emitter, HOOK_RESHARD, (Hook){.arg = arg}, group, NULL)) {
        return;
    }
    for (guint i = 0; i < group->params->len && !group->resident; i++) {
        emit_free(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
    }
}

void fsdp_release_reduce(Emitter *emitter, int last_reduce)
{
    if (fsdp_is_plain(emitter->plan)) {
        return; /* nothing was reduced */
    }
    emit_wait(emitter, STREAM_COMPUTE, global_token(TOKEN_REDUCED));
    emit_free(emitter, (Place){last_reduce, FSDP_REDUCE_IN});
}

/* The reduced shard becomes the gradient: cast to the stored type, or added to that of earlier micro-batches. */
static void fsdp_update_shard(Emitter *emitter, const FsdpGroup *group, int arg, gboolean first)
{
    const Plan *plan = emitter->plan;
    Place out = {arg, FSDP_REDUCE_OUT}, grad = {arg, FSDP_GRAD};
    int64_t reduced = dtype_bytes(plan->reduce, group->trainable_shard_numel);
    int64_t stored = dtype_bytes(plan->parameters, group->trainable_shard_numel);
    if (first && plan->reduce == plan->parameters) {
        emit_move(emitter, out, grad);
        return;
    }
    if (first) {
        emit_alloc(emitter, STREAM_REDUCE, grad, stored, MEM_GRADIENTS);
    }
    emit_bytes(emitter, STREAM_REDUCE, first ? WORK_COPY : WORK_ELEMENTWISE, reduced + (first ? 0 : stored), stored, 1,
               LABEL_SHARD_ACCUMULATE);
    emit_value(emitter, STREAM_REDUCE, first ? VALUE_COPY : VALUE_ADD, -1);
    if (!first) {
        emit_operand(emitter, grad);
    }
    emit_operand(emitter, out);
    emit_operand(emitter, grad);
    emit_free(emitter, out);
}

/* A pass's gradients become, or join, the whole ones. */
static void add_resident(Emitter *emitter, const FsdpGroup *group, int arg, const Place *grads, gboolean first)
{
    const Plan *plan = emitter->plan;
    for (int64_t i = 0; i < group->n_trainable; i++) {
        int64_t pass = grad_bytes(plan, group, i), whole = pass / dtype_bytes(plan->compute, 1) * dtype_bytes(plan->reduce, 1);
        emit_bytes(emitter, STREAM_COMPUTE, first ? WORK_COPY : WORK_ELEMENTWISE, pass + (first ? 0 : whole), whole, 1, LABEL_GRAD_ACCUMULATE);
    }
    emit_value(emitter, STREAM_COMPUTE, VALUE_GRAD_IN, first ? -1 : 0);
    emit_operand(emitter, (Place){arg, FSDP_REDUCE_IN});
    for (int64_t i = 0; i < group->n_trainable; i++) {
        emit_operand(emitter, grads[i]);
    }
    for (int64_t i = 0; i < group->n_trainable; i++) {
        emit_free(emitter, grads[i]);
    }
}

void fsdp_reduce_resident(Emitter *emitter, const FsdpGroup *group, int arg)
{
    const Plan *plan = emitter->plan;
    Place whole = {arg, FSDP_REDUCE_IN}, grad = {arg, FSDP_GRAD};
    int64_t flat = dtype_bytes(plan->reduce, group->trainable_padded_numel);
    emit_record(emitter, STREAM_COMPUTE, global_token(TOKEN_GRADS_IN));
    emit_wait(emitter, STREAM_REDUCE, global_token(TOKEN_GRADS_IN));
    if (group->n_shards > 1) {
        emit_collective(emitter, STREAM_REDUCE, COLL_reduce_scatter, group->mesh, flat, &group->reduce);
        emit_operand(emitter, whole);
        emit_operand(emitter, grad);
    } else {
        if (group->n_ranks > 1) {
            emit_collective(emitter, STREAM_REDUCE, COLL_all_reduce, group->mesh, flat, &group->reduce);
            emit_operand(emitter, whole);
        }
        emit_value(emitter, STREAM_REDUCE, VALUE_COPY, -1); /* the whole is the shard */
        emit_operand(emitter, whole);
        emit_operand(emitter, grad);
    }
    if (plan->dp_replicate > 1) {
        emit_collective(emitter, STREAM_REDUCE, COLL_all_reduce, GROUP_REPLICA, dtype_bytes(plan->reduce, group->trainable_shard_numel),
                        &group->replica);
        emit_operand(emitter, grad);
    }
    emit_record(emitter, STREAM_REDUCE, global_token(TOKEN_REDUCED));
}

/* Codes of the weights that the optimizer has changed: of whole weights, or, where shards were gathered as codes, of these for the other
 * side. */
static void renew_codes(Emitter *emitter, const FsdpGroup *group, int arg)
{
    const Plan *plan = emitter->plan;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        int64_t codes = fsdp_code_bytes(plan, entry), whole = dtype_bytes(plan->compute, fsdp_local_numel(plan, param));
        gboolean came = group->n_shards > 1 && fsdp_whole_bytes(plan, entry) == 0;
        if (codes > 0 && fsdp_has_grad(param)) {
            emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, came ? codes / 2 : whole, came ? codes / 2 : codes, 1, LABEL_WEIGHT_CODES);
            emit_value(emitter, STREAM_COMPUTE, VALUE_WEIGHT_CODES, (int)i);
            emit_operand(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
            emit_operand(emitter, (Place){arg, fsdp_codes_buffer(group, i)});
        }
    }
}

void fsdp_renew_resident(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token)
{
    Place flat = {arg, FSDP_FLAT};
    for (guint i = 0; group->n_shards == 1 && i < group->params->len; i++) {
        emit_value(emitter, STREAM_COMPUTE, VALUE_PARAM_CAST, (int)i); /* the optimizer has written them */
        emit_operand(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
    }
    if (group->n_shards == 1) {
        renew_codes(emitter, group, arg);
        return;
    }
    emit_value(emitter, STREAM_COMPUTE, VALUE_SHARD_PLACE, -1);
    emit_operand(emitter, (Place){arg, -1});
    emit_operand(emitter, flat);
    emit_record(emitter, STREAM_COMPUTE, global_token(TOKEN_CAST));
    emit_wait(emitter, STREAM_GATHER, global_token(TOKEN_CAST));
    emit_collective(emitter, STREAM_GATHER, COLL_all_gather, group->mesh, group->gather_bytes, &group->gather);
    emit_operand(emitter, flat);
    emit_record(emitter, STREAM_GATHER, (Place){arg_token, 0});
    emit_wait(emitter, STREAM_COMPUTE, (Place){arg_token, 0});
    emit_value(emitter, STREAM_COMPUTE, VALUE_COPY_OUT, -1); /* views of what was gathered */
    emit_operand(emitter, flat);
    for (guint i = 0; i < group->params->len; i++) {
        emit_operand(emitter, (Place){arg, FSDP_PARAMS + (gint32)i});
    }
    renew_codes(emitter, group, arg);
}

static void emit_labelled_host(Emitter *emitter, SimTime ns, int label)
{
    if (ns > 0) {
        Instr *work = emit(emitter, INSTR_HOST, STREAM_COMPUTE);
        work->label = label;
        work->host_ns = ns;
    }
}

void fsdp_reduce(Emitter *emitter, const FsdpGroup *group, int arg, const Place *grads, int last_reduce, gboolean first)
{
    const Plan *plan = emitter->plan;
    int64_t flat = dtype_bytes(plan->reduce, group->trainable_padded_numel);
    int64_t shard = dtype_bytes(plan->reduce, group->trainable_shard_numel);
    Hook hook = {.arg = arg, .last = last_reduce, .flag = first};
    if (body_hook(emitter, HOOK_REDUCE, hook, group, grads) || group->n_trainable == 0) {
        return;
    }
    if (group->resident) {
        add_resident(emitter, group, arg, grads, first);
        return;
    }
    if (fsdp_is_plain(plan)) {
        keep_grads(emitter, group, arg, grads, first);
        return;
    }
    emit_host(emitter, emitter->device->fsdp_group_ns);
    emit_labelled_host(emitter, group->copy_in_ns - group->fresh_ns, LABEL_GRAD_COPY_IN);
    emit_labelled_host(emitter, group->fresh_ns, LABEL_GRAD_PAGES);
    if (last_reduce >= 0) {
        fsdp_release_reduce(emitter, last_reduce);
    }
    emit_alloc(emitter, STREAM_COMPUTE, (Place){arg, FSDP_REDUCE_IN}, flat, MEM_GRADIENTS);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_CHUNK_CAT, dtype_bytes(plan->compute, group->trainable_numel), flat, 1,
               LABEL_GRAD_COPY_IN);
    emit_value(emitter, STREAM_COMPUTE, VALUE_GRAD_IN, -1);
    emit_operand(emitter, (Place){arg, FSDP_REDUCE_IN});
    for (int64_t i = 0; i < group->n_trainable; i++) {
        emit_operand(emitter, grads[i]);
    }
    /* with several shards torch's copy-in loop still names the last gradient until the reduction is issued */
    gboolean last_lingers = group->n_shards > 1;
    for (int64_t i = 0; i < group->n_trainable - last_lingers; i++) {
        emit_free(emitter, grads[i]);
    }
    emit_record(emitter, STREAM_COMPUTE, global_token(TOKEN_GRADS_IN));
    emit_wait(emitter, STREAM_REDUCE, global_token(TOKEN_GRADS_IN));
    emit_alloc(emitter, STREAM_REDUCE, (Place){arg, FSDP_REDUCE_OUT}, shard, MEM_GRADIENTS);
    if (group->n_shards > 1) {
        emit_collective(emitter, STREAM_REDUCE, COLL_reduce_scatter, group->mesh, flat, &group->reduce);
    } else {
        emit_bytes(emitter, STREAM_REDUCE, WORK_COPY, flat, shard, 1, LABEL_SHARD_ACCUMULATE);
        emit_value(emitter, STREAM_REDUCE, VALUE_COPY, -1);
    }
    emit_operand(emitter, (Place){arg, FSDP_REDUCE_IN});
    emit_operand(emitter, (Place){arg, FSDP_REDUCE_OUT});
    emit_record(emitter, STREAM_REDUCE, global_token(TOKEN_REDUCED));
    if (plan->dp_replicate > 1) {
        emit_collective(emitter, STREAM_REDUCE, COLL_all_reduce, GROUP_REPLICA, shard, &group->replica);
        emit_operand(emitter, (Place){arg, FSDP_REDUCE_OUT});
    }
    fsdp_update_shard(emitter, group, arg, first);
    if (last_lingers) {
        emit_free(emitter, grads[group->n_trainable - 1]);
    }
}
