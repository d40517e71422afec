#include <string.h>

#include "hw/host-link.h"
#include "workloads/lower/copies.h"
#include "workloads/lower/deal.h"
#include "workloads/lower/host-copy.h"
#include "workloads/lower/lowering.h"
#include "workloads/lower/state-stream.h"
#include "workloads/lower/whole.h"

void lowering_collect_pieces(Lowering *lowering, const GroupSite *site, GArray *pieces)
{
    for (guint i = 0; i < site->group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(site->group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        if (fsdp_has_grad(param) && !whole_takes(lowering->plan, param)) {
            OptimPiece piece = lowering_optim_piece(lowering->plan, param);
            g_array_append_val(pieces, piece);
        }
    }
}

static void collect_pieces(Lowering *lowering, const GroupSite *site, void *data)
{
    lowering_collect_pieces(lowering, site, data);
}

/* Whether states live in DDR and pass through HBM. */
static gboolean streams_states(const Plan *plan)
{
    return plan->optimizer_offload && plan->optimizer == PLAN_MUON;
}

/* Gradients that stayed whole get one name. */
static void gather_plain_grads(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)data;
    if (site->group->n_trainable > 0 && fsdp_is_plain(lowering->plan)) {
        SegmentKey key = {.what = SEGMENT_GRADS, .kind = site->kind};
        int segment = lowering_find_segment(lowering, &key);
        if (segment < 0) {
            segment = lowering_start_segment(lowering, &key, "gradients", NULL);
            fsdp_gather_grads(&lowering->emitter, site->group, ARG_GROUP);
        }
        lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, site);
    }
}

/* The update of a group's shards, in values, stands where their gradients die, unless their states have to come first. */
static int free_shard_segment(Lowering *lowering, const GroupSite *site)
{
    SegmentKey key = {.what = SEGMENT_GRADS_FREED, .kind = site->kind};
    int segment = lowering_find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    segment = lowering_start_segment(lowering, &key, "gradients freed", NULL);
    if (!streams_states(lowering->plan)) {
        emit_value(&lowering->emitter, STREAM_COMPUTE, VALUE_UPDATE, -1);
        emit_operand(&lowering->emitter, (Place){ARG_GROUP, FSDP_GRAD});
    }
    if (!site->group->resident) {
        emit_free(&lowering->emitter, (Place){ARG_GROUP, FSDP_GRAD});
    }
    if (fsdp_is_plain(lowering->plan)) {
        fsdp_free_grads(&lowering->emitter, site->group, ARG_GROUP);
    }
    return segment;
}

static void free_shard_grads(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)data;
    if (site->group->n_trainable > 0) {
        int segment = free_shard_segment(lowering, site);
        lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, site);
    }
}

/* Type of a group's gradient shard. */
static Dtype grad_dtype(const Plan *plan, const FsdpGroup *group)
{
    return group->resident ? plan->reduce : plan->parameters;
}

/* DDR traffic of the host's step of one group: that of the update, gradients written before it, parameters read after it. */
static int64_t host_step_bytes(Lowering *lowering, const GroupSite *site)
{
    const Plan *plan = lowering->plan;
    g_autoptr(GArray) pieces = g_array_new(FALSE, TRUE, sizeof(OptimPiece)), works = g_array_new(FALSE, TRUE, sizeof(Work));
    int64_t bytes = dtype_bytes(grad_dtype(plan, site->group), site->group->trainable_shard_numel) +
                    dtype_bytes(plan->parameters, site->group->trainable_shard_numel);
    collect_pieces(lowering, site, pieces);
    optim_class(OPTIM_adamw)->cost((const OptimPiece *)(void *)pieces->data, (int)pieces->len, plan->moments, works);
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        bytes += work->n_launches * (work->read_bytes + work->write_bytes);
    }
    return bytes;
}

/* The next group's gradients on their way down, while the host works on this one's. */
static void copy_grads_down(Lowering *lowering, const GroupSite *site, int arg)
{
    Emitter *emitter = &lowering->emitter;
    int64_t bytes = dtype_bytes(grad_dtype(lowering->plan, site->group), site->group->trainable_shard_numel);
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_HOST});
    emit_wait(emitter, STREAM_COPY_OUT, (Place){ARG_GLOBAL, TOKEN_HOST});
    emit_alloc_host(emitter, (Place){arg, FSDP_HOST_GRAD}, bytes, MEM_GRADIENTS);
    emit_copy_out(emitter, (Place){arg, FSDP_GRAD}, (Place){arg, FSDP_HOST_GRAD}, bytes);
}

/* The host waits until gradients are down, and makes the step; what is issued behind that needs no wait. Parameters go
 * up. */
static void step_on_host(Lowering *lowering, const GroupSite *site, const GroupSite *next)
{
    const Plan *plan = lowering->plan;
    Emitter *emitter = &lowering->emitter;
    Place grad = {ARG_GROUP, FSDP_HOST_GRAD};
    int segment = lowering_start_segment(lowering, NULL, "optimizer on the host", NULL);
    emit(emitter, INSTR_HOST_SYNC, STREAM_COPY_OUT)->host_ns = emitter->device->host_sync_ns;
    if (!site->group->resident) {
        emit_free(emitter, (Place){ARG_GROUP, FSDP_GRAD});
    }
    if (next != NULL) {
        copy_grads_down(lowering, next, ARG_NEXT);
    }
    emit(emitter, INSTR_HOST, STREAM_COMPUTE)->host_ns = host_update_ns(plan->cluster, host_step_bytes(lowering, site));
    emit_transfer_in(emitter, dtype_bytes(plan->parameters, site->group->trainable_shard_numel));
    emit_value(emitter, STREAM_COPY_IN, VALUE_UPDATE, -1);
    emit_operand(emitter, grad);
    emit_record(emitter, STREAM_COPY_IN, (Place){ARG_GLOBAL, TOKEN_HOST_DONE});
    emit_free_recorded(emitter, grad);
    Call *call = lowering_add_call(lowering, segment, -1, 0);
    lowering_call_group(call, ARG_GROUP, site);
    if (next != NULL) {
        lowering_call_group(call, ARG_NEXT, next);
    }
}

static void collect_site(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)lowering;
    if (site->group->n_trainable > 0) {
        g_ptr_array_add(data, (void *)(guintptr)site);
    }
}

static void lower_host_step(Lowering *lowering)
{
    g_autoptr(GPtrArray) sites = g_ptr_array_new();
    lowering_each_group(lowering, collect_site, sites);
    int segment = lowering_start_segment(lowering, NULL, "gradients to the host", NULL);
    copy_grads_down(lowering, g_ptr_array_index(sites, 0), ARG_GROUP);
    lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, g_ptr_array_index(sites, 0));
    for (guint i = 0; i < sites->len; i++) {
        step_on_host(lowering, g_ptr_array_index(sites, i), i + 1 < sites->len ? g_ptr_array_index(sites, i + 1) : NULL);
    }
    segment = lowering_start_segment(lowering, NULL, "parameters back from the host", NULL);
    emit_wait(&lowering->emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_HOST_DONE});
    lowering_add_call(lowering, segment, -1, 0);
}

static void reduce_resident(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)data;
    if (site->group->n_trainable > 0) {
        int segment = lowering_start_segment(lowering, NULL, "gradients reduced", NULL);
        fsdp_reduce_resident(&lowering->emitter, site->group, ARG_GROUP);
        lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, site);
    }
}

static void renew_resident(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)data;
    if (site->group->n_trainable > 0) {
        int segment = lowering_start_segment(lowering, NULL, "parameters renewed", NULL);
        fsdp_renew_resident(&lowering->emitter, site->group, ARG_GROUP, ARG_GROUP_TOKEN);
        lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, site);
    }
}

/* What makes the segments of two rounds alike: their sizes, and those of the rounds before and after (n 0: none). */
typedef struct RoundKey {
    WholeRound stages[N_WHOLE_STAGES];
} RoundKey;

typedef struct RoundSegment {
    RoundKey key;
    int segment;
} RoundSegment;

static Place stage_buffer(int stage, int buffer)
{
    return (Place){ARG_WHOLE_LAST + stage, buffer};
}

static Place stage_token(int stage, int token)
{
    return (Place){ARG_WHOLE_TOKENS + stage, token};
}

static OptimPiece round_piece(const Lowering *lowering, const WholeRound *round)
{
    return (OptimPiece){.numel = round->slices, .by_matrix = TRUE, .rows = round->rows, .cols = round->cols,
                        .n_matrices = round->n_blocks, .param = lowering->plan->parameters,
                        .has_master = lowering->plan->master_weights, .grad_fp32 = lowering_grad_fp32(lowering->plan)};
}

static void emit_works(Emitter *emitter, GArray *works, int label)
{
    for (guint i = 0; i < works->len; i++) {
        emit_work(emitter, STREAM_COMPUTE, &g_array_index(works, Work, i), label, -1);
    }
    g_array_set_size(works, 0);
}

/* Slices to the owners of the matrices, or back: every rank sends and gets at most one matrix, less its own slice. */
static void emit_round_exchange(Lowering *lowering, const WholeRound *round, int stage, Place from, Place to)
{
    const Cluster *cluster = lowering->plan->cluster;
    gboolean expert = round->mesh == GROUP_EXPERT;
    int64_t n = plan_n_shards(lowering->plan, expert);
    CollGroup group = cluster_group(cluster, 0, expert ? lowering->plan->ep : 1, n);
    int64_t slice = dtype_bytes(DTYPE_BF16, quantity_div_up(round->whole, n));
    CollPrice price = coll_price(cluster, COLL_all_to_all, &group, slice * n);
    emit_collective(&lowering->emitter, STREAM_REDUCE, COLL_all_to_all, (GroupKind)round->mesh, dtype_bytes(DTYPE_BF16, round->slices),
                    &price)
        ->op = stage - 1;
    emit_operand(&lowering->emitter, from);
    emit_operand(&lowering->emitter, to);
}

/* Bytes of a round's momentum, and of its master copies, where they live in DDR; else 0. */
static int64_t momentum_bytes(const Lowering *lowering, const WholeRound *round)
{
    return streams_states(lowering->plan) ? optim_moment_bytes(round->slices, lowering->plan->moments) : 0;
}

static int64_t master_bytes(const Lowering *lowering, const WholeRound *round)
{
    return streams_states(lowering->plan) && lowering->plan->master_weights ? dtype_bytes(DTYPE_FP32, round->slices) : 0;
}

static void fetch_momentum(Lowering *lowering, const WholeRound *round)
{
    enum { STAGE = WHOLE_STAGE_AHEAD };
    state_fetch(&lowering->emitter, stage_buffer(STAGE, WHOLE_MOMENTUM), stage_token(STAGE, WHOLE_MOMENTUM_THERE),
                momentum_bytes(lowering, round), VALUE_MOMENTUM_IN, STAGE - 1);
}

/* The operand that a streamed state is, and its return behind the value that has changed it; bytes 0: nothing. */
static void use_state(Emitter *emitter, Place state, int64_t bytes, ValueAction back, int op)
{
    if (bytes > 0) {
        emit_operand(emitter, state);
        state_return(emitter, state, bytes, back, op);
    }
}

/* Momentum, and the direction's slices on their way. */
static void start_round(Lowering *lowering, const WholeRound *round, GArray *works)
{
    enum { STAGE = 2 };
    Emitter *emitter = &lowering->emitter;
    OptimPiece piece = round_piece(lowering, round);
    emit_alloc(emitter, STREAM_COMPUTE, stage_buffer(STAGE, WHOLE_SLICES), dtype_bytes(DTYPE_BF16, round->slices), MEM_WORKSPACE);
    int64_t momentum = momentum_bytes(lowering, round);
    if (momentum > 0) {
        emit_wait(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_MOMENTUM_THERE));
    }
    optim_muon_momentum_cost(&piece, lowering->plan->moments, works);
    emit_host(emitter, round->n * emitter->device->optimizer_tensor_ns);
    emit_works(emitter, works, LABEL_OPTIMIZER);
    emit_value(emitter, STREAM_COMPUTE, VALUE_DIRECTION, STAGE - 1);
    emit_operand(emitter, stage_buffer(STAGE, WHOLE_SLICES));
    use_state(emitter, stage_buffer(STAGE, WHOLE_MOMENTUM), momentum, VALUE_MOMENTUM_OUT, STAGE - 1);
    if (round->travels) {
        emit_alloc(emitter, STREAM_COMPUTE, stage_buffer(STAGE, WHOLE_OWNED), dtype_bytes(DTYPE_BF16, round->whole), MEM_WORKSPACE);
        emit_record(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_READY));
        emit_wait(emitter, STREAM_REDUCE, stage_token(STAGE, WHOLE_READY));
        emit_round_exchange(lowering, round, STAGE, stage_buffer(STAGE, WHOLE_SLICES), stage_buffer(STAGE, WHOLE_OWNED));
        emit_record(emitter, STREAM_REDUCE, stage_token(STAGE, WHOLE_ARRIVED));
    }
}

static void orthogonalize_round(Lowering *lowering, const WholeRound *round, GArray *works)
{
    enum { STAGE = 1 };
    Emitter *emitter = &lowering->emitter;
    OptimPiece piece = round_piece(lowering, round);
    Place whole = stage_buffer(STAGE, round->travels ? WHOLE_OWNED : WHOLE_SLICES), work = stage_buffer(STAGE, WHOLE_WORK);
    if (master_bytes(lowering, round) > 0) {
        state_fetch(emitter, stage_buffer(STAGE, WHOLE_MASTER), stage_token(STAGE, WHOLE_MASTER_THERE), master_bytes(lowering, round),
                    VALUE_MASTER_IN, STAGE - 1);
    }
    if (round->travels) {
        emit_wait(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_ARRIVED));
        emit_free(emitter, stage_buffer(STAGE, WHOLE_SLICES));
    }
    emit_alloc(emitter, STREAM_COMPUTE, work, optim_muon_orthogonal_bytes(&piece), MEM_WORKSPACE);
    optim_muon_orthogonal_cost(&piece, works);
    emit_works(emitter, works, LABEL_ORTHOGONALIZE);
    emit_value(emitter, STREAM_COMPUTE, VALUE_ORTHOGONALIZE, STAGE - 1);
    emit_operand(emitter, whole);
    emit_free(emitter, work);
    if (round->travels) {
        emit_alloc(emitter, STREAM_COMPUTE, stage_buffer(STAGE, WHOLE_BACK), dtype_bytes(DTYPE_BF16, round->slices), MEM_WORKSPACE);
        emit_record(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_DONE));
        emit_wait(emitter, STREAM_REDUCE, stage_token(STAGE, WHOLE_DONE));
        emit_round_exchange(lowering, round, STAGE, whole, stage_buffer(STAGE, WHOLE_BACK));
        emit_record(emitter, STREAM_REDUCE, stage_token(STAGE, WHOLE_RETURNED));
    }
}

static void end_round(Lowering *lowering, const WholeRound *round, GArray *works)
{
    enum { STAGE = 0 };
    Emitter *emitter = &lowering->emitter;
    OptimPiece piece = round_piece(lowering, round);
    Place back = stage_buffer(STAGE, round->travels ? WHOLE_BACK : WHOLE_SLICES);
    if (round->travels) {
        emit_wait(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_RETURNED));
        emit_free(emitter, stage_buffer(STAGE, WHOLE_OWNED));
    }
    int64_t master = master_bytes(lowering, round);
    if (master > 0) {
        emit_wait(emitter, STREAM_COMPUTE, stage_token(STAGE, WHOLE_MASTER_THERE));
    }
    optim_muon_apply_cost(&piece, works);
    emit_works(emitter, works, LABEL_OPTIMIZER);
    emit_value(emitter, STREAM_COMPUTE, VALUE_DESCEND, STAGE - 1);
    emit_operand(emitter, back);
    use_state(emitter, stage_buffer(STAGE, WHOLE_MASTER), master, VALUE_MASTER_OUT, STAGE - 1);
    emit_free(emitter, back);
}

static int round_segment(Lowering *lowering, GArray *known, const RoundKey *key)
{
    for (guint i = 0; i < known->len; i++) {
        const RoundSegment *segment = &g_array_index(known, RoundSegment, i);
        if (memcmp(&segment->key, key, sizeof *key) == 0) {
            return segment->segment;
        }
    }
    g_autoptr(GArray) works = g_array_new(FALSE, TRUE, sizeof(Work));
    RoundSegment fresh = {*key, lowering_start_segment(lowering, NULL, "matrices made orthogonal", NULL)};
    if (key->stages[WHOLE_STAGE_AHEAD].n > 0) {
        fetch_momentum(lowering, &key->stages[WHOLE_STAGE_AHEAD]);
    }
    if (key->stages[2].n > 0) {
        start_round(lowering, &key->stages[2], works);
    }
    if (key->stages[1].n > 0) {
        orthogonalize_round(lowering, &key->stages[1], works);
    }
    if (key->stages[0].n > 0) {
        end_round(lowering, &key->stages[0], works);
    }
    g_array_append_val(known, fresh);
    return fresh.segment;
}

/* Rounds of whole matrices, three under way at a time, and the momentum of a fourth. */
static void lower_rounds(Lowering *lowering)
{
    Program *program = lowering->program;
    gint32 n = (gint32)program->whole_rounds->len, buffers = lowering->whole_stages, tokens = program->n_tokens;
    g_autoptr(GArray) known = g_array_new(FALSE, TRUE, sizeof(RoundSegment));
    if (n == 0) {
        return;
    }
    program->n_tokens += N_WHOLE_STAGES * N_WHOLE_TOKENS;
    gint32 n_stages = streams_states(lowering->plan) ? N_WHOLE_STAGES : WHOLE_STAGE_AHEAD;
    for (gint32 r = 2 - n_stages; r <= n; r++) {
        RoundKey key = {0};
        for (gint32 stage = 0; stage < n_stages; stage++) {
            gint32 at = r - 1 + stage;
            if (at >= 0 && at < n) {
                key.stages[stage] = g_array_index(program->whole_rounds, WholeRound, (guint)at);
                key.stages[stage].first = 0;
            }
        }
        Call *call = lowering_add_call(lowering, round_segment(lowering, known, &key), -1, 0);
        call->round = r;
        for (gint32 stage = 0; stage < N_WHOLE_STAGES; stage++) {
            gint32 slot = (r + N_WHOLE_STAGES + stage) % N_WHOLE_STAGES;
            call->args[ARG_WHOLE_LAST + stage] = buffers + slot * N_WHOLE_BUFFERS;
            call->args[ARG_WHOLE_TOKENS + stage] = tokens + slot * N_WHOLE_TOKENS;
        }
    }
}

/* The fused step of everything that is no matrix of Muon's. */
static void lower_pieces(Lowering *lowering)
{
    g_autoptr(GArray) pieces = g_array_new(FALSE, TRUE, sizeof(OptimPiece));
    g_autoptr(GArray) works = g_array_new(FALSE, TRUE, sizeof(Work));
    if (lowering->plan->layer_wise) {
        deal_adam_pieces(lowering->program, lowering->plan, pieces);
    } else {
        lowering_each_group(lowering, collect_pieces, pieces);
    }
    optim_class(OPTIM_adamw)->cost((const OptimPiece *)(void *)pieces->data, (int)pieces->len, lowering->plan->moments, works);
    int segment = lowering_start_segment(lowering, NULL, "optimizer", NULL);
    emit_host(&lowering->emitter, pieces->len * lowering->emitter.device->optimizer_tensor_ns);
    emit_works(&lowering->emitter, works, LABEL_OPTIMIZER);
    lowering_add_call(lowering, segment, -1, 0);
}

/* The compute stream waits for the last reduction. */
static void wait_for_reductions(Lowering *lowering)
{
    int segment = lowering_start_segment(lowering, NULL, "gradients complete", NULL);
    emit_wait(&lowering->emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_REDUCED});
    lowering_add_call(lowering, segment, -1, 0);
}

/* Activations came back into memory that compute has freed: states may get it once compute has done with it. */
static void wait_for_fetched(Lowering *lowering)
{
    if (streams_states(lowering->plan) && lowering->retention->has_ddr) {
        int segment = lowering_start_segment(lowering, NULL, "fetched activations done with", NULL);
        emit_record(&lowering->emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_HOST});
        emit_wait(&lowering->emitter, STREAM_COPY_IN, (Place){ARG_GLOBAL, TOKEN_HOST});
        lowering_add_call(lowering, segment, -1, 0);
    }
}

void lowering_optimizer(Lowering *lowering)
{
    lowering->emitter.phase = PHASE_OPTIMIZER;
    lowering->emitter.is_backward = FALSE;
    gboolean resident = lowering->plan->sharding != PLAN_SHARDING_FSDP;
    if (resident) {
        lowering_each_group(lowering, reduce_resident, NULL);
        wait_for_reductions(lowering);
    }
    copies_reduce(lowering);
    lowering_each_group(lowering, gather_plain_grads, NULL);
    if (lowering->plan->optimizer_offload && !streams_states(lowering->plan)) {
        lower_host_step(lowering);
    } else {
        deal_plan(lowering->program, lowering->plan);
        whole_plan(lowering->program, lowering->plan);
        wait_for_fetched(lowering);
        lower_rounds(lowering);
        if (streams_states(lowering->plan)) {
            state_stream_groups(lowering);
        } else {
            lower_pieces(lowering);
        }
        lowering_each_group(lowering, free_shard_grads, NULL);
    }
    deal_gather(lowering);
    if (resident) {
        lowering_each_group(lowering, renew_resident, NULL);
    }
    lowering_balance(lowering);
    int segment = lowering_start_segment(lowering, NULL, "end of the step", NULL);
    emit(&lowering->emitter, INSTR_MARK, STREAM_COMPUTE);
    lowering_add_call(lowering, segment, -1, 0);
}
