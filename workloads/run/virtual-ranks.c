#include "workloads/run/virtual-ranks.h"

#include <math.h>
#include <string.h>

#include "models/execute.h"
#include "models/ops/cross-entropy.h"
#include "workloads/run/rank.h"

static void rank_init(VirtualRanks *world, int64_t idx, const Program *program)
{
    const Plan *plan = world->plan;
    Rank *rank = &world->ranks[idx];
    int64_t n_experts = MAX(plan_expert_slots(plan), 1);
    *rank = (Rank){.world = world, .program = program, .idx = idx, .op = -1};
    rank->shard = idx % plan->dp_shard;
    rank->replica = idx / plan->dp_shard;
    rank->ep_rank = rank->shard % plan->ep;
    rank->expert_shard = rank->shard / plan->ep;
    rank->n_sequences = plan->micro_batch;
    rank->buffers = g_new0(RankBuffer, program->n_buffers);
    rank->tokens = g_new0(Clock, program->n_tokens);
    rank->sites = g_new0(RankSite, program->sites->len);
    int64_t n_parts = plan->moe.overlap_chunks, n_local = n_experts / plan->ep;
    int64_t n_routed = world->graphs->n_layers * rank_n_sides(plan);
    rank->routing = g_new0(RankRouting, n_routed * n_parts);
    rank->ids = g_new0(Tensor *, plan->n_micro_batches);
    rank->labels = g_new0(Tensor *, plan->n_micro_batches);
    rank->alloc = alloc_model_new(N_STREAMS, 0);
    if (program->expandable_segments) {
        alloc_model_make_expandable(rank->alloc);
    }
    for (int64_t i = 0; i < n_routed; i++) {
        RankRouting *parts = rank_layer_routing(rank, i);
        parts->expert_rows = g_new0(int64_t, n_experts * n_parts);
        parts->loads = g_new0(int64_t, n_experts);
        for (int64_t c = 0; c < n_parts; c++) {
            parts[c].counting = -1;
            parts[c].expert_rows = parts->expert_rows + c * n_local;
            parts[c].chunk_loads = n_parts > 1 ? g_new0(int64_t, n_experts) : NULL;
        }
    }
    memcpy(rank->held, program->static_bytes, sizeof rank->held);
    for (int t = 0; t < N_MEM_TAGS; t++) {
        rank->held_sum += rank->held[t];
    }
    alloc_model_take(rank->alloc, STREAM_COMPUTE, rank->held_sum);
    rank->peak = (VirtualPeak){.bytes = rank->held_sum, .call = -1, .instr = -1, .op = -1};
    memcpy(rank->peak.by_tag, rank->held, sizeof rank->held);
    rank->ledger = world->options.with_ledger ? ledger_walk_new(program) : NULL;
    rank->order = world->options.with_order ? order_new(program->n_tokens) : NULL;
    rank_load_shards(rank);
}

VirtualRanks *virtual_ranks_new(const Plan *plan, const ModelGraph *graphs, Program *const *programs,
                                const VirtualSource *source, const VirtualOptions *options)
{
    VirtualRanks *world = g_new0(VirtualRanks, 1);
    world->plan = plan;
    world->graphs = graphs;
    world->source = source;
    world->options = *options;
    world->n_ranks = plan->dp_replicate * plan->dp_shard;
    world->ranks = g_new0(Rank, world->n_ranks);
    for (int64_t i = 0; i < world->n_ranks; i++) {
        rank_init(world, i, programs[i]);
    }
    return world;
}

void virtual_ranks_free(VirtualRanks *world)
{
    if (world == NULL) {
        return;
    }
    for (int64_t i = 0; i < world->n_ranks; i++) {
        rank_clear(&world->ranks[i]);
    }
    g_free(world->ranks);
    g_free(world);
}

int64_t virtual_ranks_n(const VirtualRanks *world)
{
    return world->n_ranks;
}

static gboolean value_sum(const RankAt *at, GError **error)
{
    const Tensor *a = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, -1, error);
    const Tensor *b = a != NULL ? rank_read_as(at, rank_operand(at, 1), TENSOR_F64, tensor_numel(a), error) : NULL;
    if (b == NULL) {
        return FALSE;
    }
    Tensor *sum = tensor_dup(a);
    execute_add_to(sum, b);
    return rank_write(at, rank_operand(at, 2), sum, rank_operand_dtype(at, 2, rank_operand(at, 0)->dtype), error);
}

static gboolean value_copy(const RankAt *at, GError **error)
{
    const Tensor *from = rank_read(at, rank_operand(at, 0), error);
    return from != NULL && rank_write(at, rank_operand(at, 1), tensor_dup(from),
                                      rank_operand_dtype(at, 1, rank_operand(at, 0)->dtype), error);
}

static gboolean value_loss_sum(const RankAt *at, GError **error)
{
    const Tensor *sum = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, 1, error);
    at->rank->loss += sum != NULL ? tensor_get(sum, 0) : 0;
    return sum != NULL;
}

/* Losses are sums over tokens; what the optimizer sees is the mean over all ranks' and micro-batches' valid labels. */
static gboolean value_loss_grad(const RankAt *at, GError **error)
{
    Tensor *grad = tensor_new_2d(TENSOR_F64, 1, 1);
    int64_t n_valid = at->rank->world->n_valid;
    tensor_set(grad, 0, n_valid > 0 ? 1 / (double)n_valid : 0);
    return rank_write(at, rank_operand(at, 0), grad, DTYPE_FP32, error);
}

static gboolean value_place_rows(const RankAt *at, GError **error)
{
    const Plan *plan = at->rank->world->plan;
    const Tensor *part = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, -1, error);
    if (part == NULL) {
        return FALSE;
    }
    int64_t n_tokens = plan->seq_len * at->rank->n_sequences;
    if (at->call->first_row + part->dims[0] > n_tokens) {
        return rank_fail(at, error, "the chunk's rows end behind the micro-batch");
    }
    Tensor *whole = tensor_new_2d(TENSOR_F64, n_tokens, part->dims[1]);
    memcpy((double *)whole->data + at->call->first_row * part->dims[1], part->data, (size_t)tensor_numel(part) * sizeof(double));
    return rank_write(at, rank_operand(at, 1), whole, plan->compute, error);
}

static gboolean run_value(const RankAt *at, GError **error)
{
    rank_tick(at);
    if (!rank_check_price(at, error)) {
        return FALSE;
    }
    switch ((ValueAction)at->instr->action) {
    case VALUE_FORWARD:
    case VALUE_BACKWARD:
        return rank_op(at, error);
    case VALUE_COPY:
        return value_copy(at, error);
    case VALUE_ADD:
        return value_sum(at, error);
    case VALUE_LOSS_SUM:
        return value_loss_sum(at, error);
    case VALUE_LOSS_GRAD:
        return value_loss_grad(at, error);
    case VALUE_LAYER_LOSS:
    case VALUE_LAYER_LOSS_GRAD:
    case VALUE_PASS_COUNTS:
        return rank_layer_loss(at, error);
    case VALUE_LOADS:
    case VALUE_BIASES:
        return rank_balance(at, error);
    case VALUE_PLACE_ROWS:
        return value_place_rows(at, error);
    case VALUE_DIRECTION:
    case VALUE_ORTHOGONALIZE:
    case VALUE_DESCEND:
        return rank_whole_value(at, error);
    case VALUE_STATES_IN:
    case VALUE_STATES_OUT:
    case VALUE_MOMENTUM_IN:
    case VALUE_MOMENTUM_OUT:
    case VALUE_MASTER_IN:
    case VALUE_MASTER_OUT:
        return rank_states_value(at, error);
    case VALUE_DEAL_PLACE:
    case VALUE_DEAL_TAKE:
        return rank_deal_value(at, error);
    case VALUE_SHARD_CAST:
    case VALUE_SHARD_PLACE:
    case VALUE_PARAM_CAST:
    case VALUE_COPY_OUT:
    case VALUE_GRAD_IN:
    case VALUE_UPDATE:
    case VALUE_WEIGHT_CODES:
    default:
        return rank_shard_value(at, error);
    }
}

static gboolean run_instr(const RankAt *at, GError **error)
{
    switch ((InstrKind)at->instr->kind) {
    case INSTR_ALLOC:
        return rank_alloc(at, error);
    case INSTR_FREE:
        return rank_free(at, error);
    case INSTR_MOVE:
        return rank_move(at, error);
    case INSTR_RECORD:
        rank_record(at);
        return TRUE;
    case INSTR_WAIT:
        rank_wait(at);
        return TRUE;
    case INSTR_HOST_SYNC:
        rank_host_sync(at);
        rank_note_work(at);
        return TRUE;
    case INSTR_VALUE:
        return run_value(at, error);
    case INSTR_COMPUTE:
        rank_note_work(at);
        return TRUE;
    case INSTR_MARK:
        at->rank->n_marks[at->instr->phase]++;
        return TRUE;
    case INSTR_COLLECTIVE:
    case INSTR_HOST:
    default:
        return TRUE;
    }
}

/* The rank's next instruction; FALSE at the end. */
static gboolean rank_next(Rank *rank, RankAt *ret_at)
{
    while (rank->call < rank->program->calls->len) {
        const Call *call = &g_array_index(rank->program->calls, Call, rank->call);
        const Segment *segment = program_segment(rank->program, call->segment);
        if (rank->instr < segment->instrs->len) {
            *ret_at = (RankAt){rank, call, segment, &g_array_index(segment->instrs, Instr, rank->instr)};
            return TRUE;
        }
        rank->call = program_next_call(rank->program, rank->call, rank->program->repeat.times, &rank->n_repeats);
        rank->instr = 0;
        rank->op = -1;
        rank->peak.op = MAX(rank->peak.op, -1);
    }
    return FALSE;
}

/* Whether an instruction is the first kind that uses gradients which all ranks have summed. */
static gboolean uses_grads(const Instr *instr)
{
    gboolean updates = instr->kind == INSTR_VALUE && (instr->action == VALUE_UPDATE || instr->action == VALUE_DIRECTION);
    return instr->phase == PHASE_OPTIMIZER && (updates || (instr->kind == INSTR_COMPUTE && instr->label == LABEL_SWAP_OUT));
}

/* A rank goes on to its next collective; ret_at->instr is NULL at the end. */
static gboolean rank_advance(Rank *rank, RankAt *ret_at, GError **error)
{
    const VirtualRanks *world = rank->world;
    while (rank_next(rank, ret_at)) {
        rank->waits = world->options.clip > 0 && !world->is_clipped && uses_grads(ret_at->instr);
        if (rank->waits) {
            break;
        }
        if (ret_at->instr->kind == INSTR_COLLECTIVE) {
            return TRUE;
        }
        if (!run_instr(ret_at, error) || !rank_follow_ledger(ret_at, error)) {
            return FALSE;
        }
        rank->instr++;
    }
    *ret_at = (RankAt){.rank = rank};
    return TRUE;
}

/* Members of a rank's group, in order; returns how many. */
static int64_t group_members(const VirtualRanks *world, const Rank *rank, GroupKind group, int64_t *ret_members)
{
    const Plan *plan = world->plan;
    int64_t first = rank->replica * plan->dp_shard, step = 1, n = plan->dp_shard;
    if (group == GROUP_EP) {
        first += rank->expert_shard * plan->ep;
        n = plan->ep;
    } else if (group == GROUP_EXPERT) {
        first += rank->ep_rank;
        step = plan->ep;
        n = plan->efsdp;
    } else if (group == GROUP_REPLICA) {
        first = rank->shard;
        step = plan->dp_shard;
        n = plan->dp_replicate;
    } else if (group == GROUP_WORLD) {
        first = 0;
        n = world->n_ranks;
    }
    for (int64_t i = 0; i < n; i++) {
        ret_members[i] = first + i * step;
    }
    return n;
}

static char *describe(const RankAt *at)
{
    if (at->instr == NULL) {
        return g_strdup("has finished");
    }
    return g_strdup_printf("calls %s (%s) in %s, layer %d, call %u, instruction %u", coll_name((CollKind)at->instr->coll),
                           program_group_name((GroupKind)at->instr->group), at->segment->name, at->call->layer, at->rank->call,
                           at->rank->instr);
}

/* The same exchange of the same pass. What ranks do between collectives may differ: one may keep in HBM what another copies. */
static gboolean same_collective(const RankAt *a, const RankAt *b)
{
    if (b->instr == NULL || a->call->layer != b->call->layer || a->call->micro_batch != b->call->micro_batch ||
        a->call->first_row != b->call->first_row || a->rank->n_repeats != b->rank->n_repeats) {
        return FALSE;
    }
    return a->instr->coll == b->instr->coll && a->instr->group == b->instr->group && a->instr->n_operands == b->instr->n_operands &&
           a->instr->op == b->instr->op && a->instr->phase == b->instr->phase;
}

/* All members of a group of ats[first] meet. */
static gboolean meet(VirtualRanks *world, RankAt *ats, int64_t first, GError **error)
{
    g_autofree int64_t *members = g_new0(int64_t, world->n_ranks);
    g_autofree RankAt *group = g_new0(RankAt, world->n_ranks);
    int64_t n = group_members(world, ats[first].rank, (GroupKind)ats[first].instr->group, members);
    for (int64_t i = 0; i < n; i++) {
        group[i] = ats[members[i]];
        if (!same_collective(&ats[first], &group[i])) {
            g_autofree char *other = describe(&group[i]);
            g_autofree char *own = describe(&ats[first]);
            return rank_fail(&ats[first], error, "members differ: rank %" G_GINT64_FORMAT " %s, but rank %" G_GINT64_FORMAT " %s",
                             ats[first].rank->idx, own, group[i].rank->idx, other);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        rank_tick(&group[i]);
    }
    if (!rank_collective(group, n, error)) {
        return FALSE;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!rank_follow_ledger(&group[i], error)) {
            return FALSE;
        }
        group[i].rank->instr++;
        ats[members[i]].instr = NULL;
        ats[members[i]].segment = NULL;
    }
    return TRUE;
}

/* The gradient shards of a group, alive before the update; NULL if it has none. */
static Tensor *grad_shards(const Rank *rank, guint site)
{
    const ProgramSite *at = &g_array_index(rank->program->sites, ProgramSite, site);
    return rank->buffers[at->buffer + FSDP_GRAD].value;
}

/* Once all ranks have their gradients: the norm over one replica, and every gradient times the factor that bounds it. */
static void clip_grads(VirtualRanks *world)
{
    double squares = 0;
    for (int64_t r = 0; r < world->plan->dp_shard; r++) {
        for (guint s = 0; s < world->ranks[r].program->sites->len; s++) {
            const FsdpGroup *group = g_array_index(world->ranks[r].program->sites, ProgramSite, s).group;
            gboolean counted = group->n_shards == 1 && rank_mesh_index(&world->ranks[r], group->mesh) > 0; /* by the first that holds it */
            const Tensor *grad = counted ? NULL : grad_shards(&world->ranks[r], s);
            for (int64_t i = 0; grad != NULL && i < tensor_numel(grad); i++) {
                squares += tensor_get(grad, i) * tensor_get(grad, i);
            }
        }
    }
    world->grad_norm = sqrt(squares);
    world->is_clipped = TRUE;
    double factor = optim_clip_factor(world->grad_norm, world->options.clip);
    for (int64_t r = 0; r < world->n_ranks; r++) {
        for (guint s = 0; s < world->ranks[r].program->sites->len; s++) {
            Tensor *grad = grad_shards(&world->ranks[r], s);
            for (int64_t i = 0; grad != NULL && i < tensor_numel(grad); i++) {
                tensor_set(grad, i, tensor_get(grad, i) * factor);
            }
        }
    }
}

/* Rounds: all ranks go on to a collective, then all groups meet. FALSE in ret_more at the end of all programs. */
static gboolean run_round(VirtualRanks *world, RankAt *ats, gboolean *ret_more, GError **error)
{
    gboolean all_wait = TRUE;
    for (int64_t i = 0; i < world->n_ranks; i++) {
        if (!rank_advance(&world->ranks[i], &ats[i], error)) {
            return FALSE;
        }
        all_wait = all_wait && world->ranks[i].waits;
    }
    *ret_more = all_wait;
    if (all_wait) {
        clip_grads(world);
    }
    for (int64_t i = 0; i < world->n_ranks; i++) {
        if (ats[i].instr != NULL) {
            *ret_more = TRUE;
            if (!meet(world, ats, i, error)) {
                return FALSE;
            }
        }
    }
    return TRUE;
}

static Tensor *column(int64_t n, const int64_t *values)
{
    Tensor *tensor = tensor_new_2d(TENSOR_I64, n, 1);
    memcpy(tensor->data, values, (size_t)n * sizeof *values);
    return tensor;
}

static void start_step(VirtualRanks *world, const int64_t *tokens, const int64_t *labels)
{
    const Plan *plan = world->plan;
    int64_t at = 0;
    world->n_valid = 0;
    world->is_clipped = FALSE;
    world->n_steps++;
    for (int64_t r = 0; r < world->n_ranks; r++) {
        Rank *rank = &world->ranks[r];
        rank_forget_counts(rank);
        rank->call = rank->instr = 0;
        rank->n_repeats = 0;
        rank->loss = rank->extra_loss = 0;
        rank->price = (RankPrice){.op = -1, .sync_op = -1};
        memset(rank->n_marks, 0, sizeof rank->n_marks);
        for (int64_t i = 0; i < world->graphs->n_layers; i++) {
            RankRouting *parts = rank_layer_routing(rank, i);
            memset(parts->loads, 0, (size_t)plan->model->n_experts * sizeof(int64_t));
            for (int64_t c = 0; plan->moe.overlap_chunks > 1 && c < plan->moe.overlap_chunks; c++) {
                memset(parts[c].chunk_loads, 0, (size_t)plan->model->n_experts * sizeof(int64_t));
            }
        }
        int64_t n = plan->seq_len * rank->n_sequences;
        for (int64_t m = 0; m < plan->n_micro_batches; m++, at += n) {
            tensor_free(rank->ids[m]);
            tensor_free(rank->labels[m]);
            rank->ids[m] = column(n, tokens + at);
            rank->labels[m] = column(n, labels + at);
        }
    }
    world->n_tokens = at;
    for (int64_t i = 0; i < at; i++) {
        world->n_valid += labels[i] != CROSS_ENTROPY_IGNORE;
    }
}

void virtual_ranks_deal(VirtualRanks *world, int64_t n_sequences)
{
    g_assert(world->plan->n_micro_batches == 1 && !world->options.exact_sizes);
    for (int64_t i = 0; i < world->n_ranks; i++) {
        world->ranks[i].n_sequences = n_sequences / world->n_ranks + (i < n_sequences % world->n_ranks ? 1 : 0);
    }
}

void virtual_ranks_set_lr(VirtualRanks *world, double lr)
{
    world->options.optim.lr = lr;
}

double virtual_ranks_grad_norm(const VirtualRanks *world)
{
    return world->grad_norm;
}

double virtual_ranks_extra_loss(const VirtualRanks *world)
{
    double sum = 0;
    for (int64_t i = 0; i < world->n_ranks; i++) {
        sum += world->ranks[i].extra_loss;
    }
    return sum;
}

gboolean virtual_ranks_step(VirtualRanks *world, const int64_t *tokens, const int64_t *labels, double *ret_loss, GError **error)
{
    g_autofree RankAt *ats = g_new0(RankAt, world->n_ranks);
    gboolean more = TRUE;
    double loss = 0;
    start_step(world, tokens, labels);
    while (more) {
        if (!run_round(world, ats, &more, error)) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < world->n_ranks; i++) {
        loss += world->ranks[i].loss;
        if (!rank_check_empty(&world->ranks[i], error)) {
            return FALSE;
        }
    }
    *ret_loss = world->n_valid > 0 ? loss / (double)world->n_valid : 0;
    return TRUE;
}

const int64_t *virtual_ranks_loads(const VirtualRanks *world, int64_t rank, int64_t layer)
{
    return world->plan->model->layers[layer].ffn == FFN_MOE ? rank_layer_routing(&world->ranks[rank], layer)->loads : NULL;
}

const double *virtual_ranks_biases(const VirtualRanks *world, int64_t rank, int64_t layer)
{
    const double *biases = world->ranks[rank].biases;
    int64_t moe_layer = plan_moe_layer(world->plan, layer);
    return biases != NULL && moe_layer >= 0 ? biases + moe_layer * world->plan->model->n_experts : NULL;
}

const int64_t *virtual_ranks_chunk_loads(const VirtualRanks *world, int64_t rank, int64_t layer, int64_t chunk)
{
    return rank_layer_routing(&world->ranks[rank], layer)[chunk].chunk_loads;
}

int64_t virtual_ranks_arrivals(const VirtualRanks *world, int64_t rank, int64_t layer, int64_t chunk, int64_t member)
{
    const Tensor *sent_to = rank_layer_routing(&world->ranks[rank], layer)[chunk].sent_to;
    int64_t n = 0;
    for (int64_t t = 0; sent_to != NULL && t < sent_to->dims[1]; t++) {
        n += ((const int64_t *)sent_to->data)[member * sent_to->dims[1] + t];
    }
    return n;
}

const VirtualPeak *virtual_ranks_peak(const VirtualRanks *world, int64_t rank)
{
    return &world->ranks[rank].peak;
}

int64_t virtual_ranks_n_exchanged(const VirtualRanks *world, int64_t rank, int64_t *ret_bytes)
{
    *ret_bytes = world->ranks[rank].exchanged_bytes;
    return world->ranks[rank].n_exchanged;
}

int64_t virtual_ranks_n_ordered(const VirtualRanks *world, int64_t rank)
{
    return world->ranks[rank].order != NULL ? order_n_pairs(world->ranks[rank].order) : 0;
}

int64_t virtual_ranks_n_followed(const VirtualRanks *world, int64_t rank)
{
    return world->ranks[rank].n_followed;
}
