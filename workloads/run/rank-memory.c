#include <string.h>

#include "sim/base/error.h"
#include "workloads/lower/layer.h"
#include "workloads/run/rank.h"
#include "workloads/run/result.h"

static char *buffer_name(const RankAt *at, Place place)
{
    return place.arg == ARG_FRAME && at->segment->graph != NULL && place.idx >= 0
               ? layer_buffer_name(at->segment->graph, place.idx)
               : g_strdup_printf("buffer %d of argument %d", place.idx, place.arg);
}

gboolean rank_fail(const RankAt *at, GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    const Graph *graph = at->segment->graph;
    gint32 op = at->instr->op >= 0 && graph != NULL ? at->instr->op : at->rank->op;
    long nth = (long)(at->instr - (const Instr *)(const void *)at->segment->instrs->data);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "rank %" G_GINT64_FORMAT ", %s, layer %d, instruction %ld, operator %s: %s",
                at->rank->idx, at->segment->name, at->call->layer, nth,
                op >= 0 && graph != NULL && op < graph_n_ops(graph) ? graph_op(graph, op)->name : "none", what);
    return FALSE;
}

static gboolean fail_place(const RankAt *at, Place place, const char *what, GError **error)
{
    g_autofree char *name = buffer_name(at, place);
    return rank_fail(at, error, "%s %s", name, what);
}

static gboolean fail_buffer(const RankAt *at, const RankBuffer *buffer, const char *what, GError **error)
{
    for (int i = 0; i < at->instr->n_operands; i++) {
        if (rank_operand(at, i) == buffer) {
            return fail_place(at, program_operand(at->segment, at->instr, i), what, error);
        }
    }
    return rank_fail(at, error, "buffer %ld %s", (long)(buffer - at->rank->buffers), what);
}

static void clock_join(Clock *clock, const Clock *other)
{
    for (int s = 0; s < N_STREAMS; s++) {
        clock->at[s] = MAX(clock->at[s], other->at[s]);
    }
}

static gboolean clock_covers(const Clock *clock, const Clock *other)
{
    for (int s = 0; s < N_STREAMS; s++) {
        if (clock->at[s] < other->at[s]) {
            return FALSE;
        }
    }
    return TRUE;
}

void rank_tick(const RankAt *at)
{
    at->rank->now[at->instr->stream].at[at->instr->stream]++;
    if (at->rank->order != NULL) {
        order_act(at->rank->order, (StreamId)at->instr->stream);
    }
}

void rank_record(const RankAt *at)
{
    gint32 token = program_resolve(at->call, at->instr->place);
    at->rank->tokens[token] = at->rank->now[at->instr->stream];
    if (at->rank->order != NULL) {
        order_record(at->rank->order, (StreamId)at->instr->stream, token);
    }
}

void rank_wait(const RankAt *at)
{
    gint32 token = program_resolve(at->call, at->instr->place);
    clock_join(&at->rank->now[at->instr->stream], &at->rank->tokens[token]);
    if (at->rank->order != NULL) {
        order_wait(at->rank->order, (StreamId)at->instr->stream, token);
    }
}

void rank_host_sync(const RankAt *at)
{
    clock_join(&at->rank->host, &at->rank->now[at->instr->stream]);
    for (int s = 0; s < N_STREAMS; s++) {
        clock_join(&at->rank->now[s], &at->rank->now[at->instr->stream]);
    }
    if (at->rank->order != NULL) {
        order_host_sync(at->rank->order, (StreamId)at->instr->stream);
    }
}

void rank_note_counts(const RankAt *at, RankRouting *routing)
{
    routing->counted = at->rank->now[at->instr->stream];
    routing->counting = at->rank->order != NULL ? order_latest(at->rank->order, (StreamId)at->instr->stream) : -1;
}

gboolean rank_knows_counts(const RankAt *at, const RankRouting *routing)
{
    gboolean knows = clock_covers(&at->rank->host, &routing->counted);
    g_assert(at->rank->order == NULL || order_host_knows(at->rank->order, routing->counting) == knows);
    return knows;
}

gboolean rank_host_sees(const RankAt *at, const RankBuffer *buffer)
{
    gboolean sees = clock_covers(&at->rank->host, &buffer->written);
    g_assert(at->rank->order == NULL || buffer->life == 0 || order_host_sees(at->rank->order, buffer->life) == sees);
    return sees;
}

static void held_add(Rank *rank, int tag, int64_t bytes)
{
    rank->held[tag] += bytes;
    rank->held_sum += bytes;
    if (rank->held_sum > rank->peak.bytes) {
        rank->peak = (VirtualPeak){.bytes = rank->held_sum, .call = (gint32)rank->call, .instr = (gint32)rank->instr, .op = RANK_OP_NEXT};
        memcpy(rank->peak.by_tag, rank->held, sizeof rank->held);
    }
}

gboolean rank_alloc(const RankAt *at, GError **error)
{
    Rank *rank = at->rank;
    RankBuffer *buffer = &rank->buffers[program_resolve(at->call, at->instr->place)];
    if (buffer->alive) {
        return fail_place(at, at->instr->place, "is allocated while it is alive", error);
    }
    *buffer = (RankBuffer){.alive = TRUE,
                           .tag = at->instr->tag,
                           .pool = at->instr->stream,
                           .tier = at->instr->tier,
                           .bytes = at->instr->bytes,
                           .call = rank->call};
    if (rank->order != NULL) {
        buffer->life = order_born(rank->order, buffer->tier == TIER_HBM ? (StreamId)buffer->pool : N_STREAMS);
    }
    if (buffer->tier == TIER_VIEW) {
        return TRUE;
    }
    if (buffer->tier == TIER_DDR) {
        rank->host_held += buffer->bytes;
        rank->host_peak = MAX(rank->host_peak, rank->host_held);
        return TRUE;
    }
    buffer->born = rank->pools[buffer->pool];
    buffer->block = alloc_model_take(rank->alloc, at->instr->stream, MAX(at->instr->bytes, 1));
    held_add(rank, buffer->tag, alloc_model_block_bytes(rank->alloc, buffer->block));
    return TRUE;
}

gboolean rank_free(const RankAt *at, GError **error)
{
    Rank *rank = at->rank;
    RankBuffer *buffer = &rank->buffers[program_resolve(at->call, at->instr->place)];
    gboolean is_workspace = buffer->tag == MEM_WORKSPACE;
    if (!buffer->alive) {
        return fail_place(at, at->instr->place, "is freed while it is not alive", error);
    }
    if (buffer->tag == MEM_CACHE && at->instr->phase == PHASE_FORWARD && buffer->call == rank->call) {
        return fail_place(at, at->instr->place, "is counted as cached, and dies in the pass that made it", error);
    }
    if (buffer->value == NULL && !is_workspace) {
        return fail_place(at, at->instr->place, "is freed and was never written", error);
    }
    if (!at->instr->recorded) {
        clock_join(&rank->pools[buffer->pool], &buffer->written);
        clock_join(&rank->pools[buffer->pool], &buffer->read);
    }
    if (buffer->life > 0) {
        order_died(rank->order, buffer->life, (StreamId)buffer->pool, !at->instr->recorded);
    }
    if (buffer->tier == TIER_DDR) {
        rank->host_held -= buffer->bytes;
    } else if (buffer->tier == TIER_HBM) {
        held_add(rank, buffer->tag, -alloc_model_block_bytes(rank->alloc, buffer->block));
        alloc_model_give(rank->alloc, buffer->block);
    }
    tensor_free(buffer->value);
    *buffer = (RankBuffer){0};
    return TRUE;
}

gboolean rank_move(const RankAt *at, GError **error)
{
    RankBuffer *from = &at->rank->buffers[program_resolve(at->call, at->instr->place)];
    RankBuffer *to = &at->rank->buffers[program_resolve(at->call, at->instr->to)];
    if (!from->alive) {
        return fail_place(at, at->instr->place, "is moved while it is not alive", error);
    }
    if (to->alive) {
        return fail_place(at, at->instr->to, "is moved onto while it is alive", error);
    }
    *to = *from;
    *from = (RankBuffer){0};
    return TRUE;
}

Dtype rank_operand_dtype(const RankAt *at, int i, Dtype or_else)
{
    const Plan *plan = at->rank->world->plan;
    Place place = program_operand(at->segment, at->instr, i);
    const ProgramSite *site = place.arg != ARG_FRAME ? program_site(at->rank->program, at->call->args[place.arg]) : NULL;
    if (site == NULL || place.idx < 0) {
        return or_else;
    }
    return place.idx == FSDP_GRAD || place.idx == FSDP_HOST_GRAD                                           ? (site->group->resident ? plan->reduce : plan->parameters)
           : place.idx == FSDP_REDUCE_IN || place.idx == FSDP_REDUCE_OUT ? plan->reduce
                                                                             : plan->compute;
}

gboolean rank_follow_ledger(const RankAt *at, GError **error)
{
    Rank *rank = at->rank;
    if (rank->ledger == NULL) {
        return TRUE;
    }
    if (!ledger_walk_instr(rank->ledger, rank->call, rank->instr, error)) {
        return FALSE;
    }
    rank->n_followed++;
    const int64_t *said = ledger_walk_held(rank->ledger);
    for (int t = 0; t < N_MEM_TAGS; t++) {
        if (said[t] != rank->held[t]) {
            return rank_fail(at, error, "holds %" G_GINT64_FORMAT " bytes of %s, the ledger says %" G_GINT64_FORMAT, rank->held[t],
                             result_mem_tag_name((MemTag)t), said[t]);
        }
    }
    return TRUE;
}

RankBuffer *rank_operand(const RankAt *at, int i)
{
    Place place = program_operand(at->segment, at->instr, i);
    gint32 buffer = place.idx < 0 ? 0 : program_resolve(at->call, place);
    gboolean exists = buffer >= 0 && buffer < at->rank->program->n_buffers;
    return place.idx < 0 ? NULL : exists ? &at->rank->buffers[buffer] : &at->rank->nothing;
}

/* What is wrong with an access, by the clocks; and by sets of actions, which must find the same. */
static guint access_fault(const RankAt *at, RankBuffer *buffer, gboolean writes)
{
    StreamId stream = (StreamId)at->instr->stream;
    const Clock *now = &at->rank->now[stream];
    gboolean in_order = clock_covers(now, &buffer->written) && (!writes || clock_covers(now, &buffer->read));
    guint fault = (in_order ? 0 : ORDER_RACE) | (clock_covers(now, &buffer->born) ? 0 : ORDER_REUSE);
    Order *order = at->rank->order;
    if (order != NULL) {
        buffer->life = buffer->life > 0 ? buffer->life : order_born(order, N_STREAMS);
        guint by_sets = order_access(order, stream, buffer->life, writes);
        g_assert(by_sets == fault);
    }
    return fault;
}

gboolean rank_note_read(const RankAt *at, RankBuffer *buffer, GError **error)
{
    int stream = at->instr->stream;
    guint fault = access_fault(at, buffer, FALSE);
    if (fault != 0) {
        return fail_buffer(at, buffer,
                           fault & ORDER_RACE ? "is read before its write on another stream is known to be done"
                                              : "is used while its memory may still be in use on another stream",
                           error);
    }
    buffer->read.at[stream] = at->rank->now[stream].at[stream];
    return TRUE;
}

gboolean rank_note_write(const RankAt *at, RankBuffer *buffer, GError **error)
{
    int stream = at->instr->stream;
    guint fault = access_fault(at, buffer, TRUE);
    if (fault != 0) {
        return fail_buffer(at, buffer,
                           fault & ORDER_RACE ? "is written before its uses on another stream are known to be done"
                                              : "is used while its memory may still be in use on another stream",
                           error);
    }
    buffer->written.at[stream] = at->rank->now[stream].at[stream];
    return TRUE;
}

const Tensor *rank_read(const RankAt *at, RankBuffer *buffer, GError **error)
{
    if (buffer == NULL) {
        rank_fail(at, error, "does not name what it reads");
        return NULL;
    }
    if (!buffer->alive) {
        fail_buffer(at, buffer, "is used while it is not alive", error);
        return NULL;
    }
    if (buffer->value == NULL) {
        fail_buffer(at, buffer, "is read before anything was written", error);
        return NULL;
    }
    return rank_note_read(at, buffer, error) ? buffer->value : NULL;
}

const Tensor *rank_read_as(const RankAt *at, RankBuffer *buffer, TensorType type, int64_t numel, GError **error)
{
    const Tensor *value = rank_read(at, buffer, error);
    if (value == NULL || (value->type == type && (numel < 0 || tensor_numel(value) == numel))) {
        return value;
    }
    g_autofree char *what = g_strdup_printf(
        "holds %" G_GINT64_FORMAT " %s, expected are %s%" G_GINT64_FORMAT, tensor_numel(value),
        value->type == TENSOR_I64 ? "integers" : "real numbers",
        type == TENSOR_I64 ? "integers, so many (-1 = any): " : "real numbers, so many (-1 = any): ", numel);
    fail_buffer(at, buffer, what, error);
    return NULL;
}

gboolean rank_write(const RankAt *at, RankBuffer *buffer, Tensor *value, Dtype dtype, GError **error)
{
    return rank_write_sized(at, buffer, value, dtype, dtype_bytes(dtype, tensor_numel(value)), error);
}

gboolean rank_write_sized(const RankAt *at, RankBuffer *buffer, Tensor *value, Dtype dtype, int64_t bytes, GError **error)
{
    if (buffer == NULL) {
        tensor_free(value);
        return rank_fail(at, error, "does not name what it writes");
    }
    gboolean fits = !at->rank->world->options.exact_sizes || bytes == buffer->bytes;
    if (!buffer->alive || !fits || !rank_note_write(at, buffer, error)) {
        tensor_free(value);
        if (!buffer->alive) {
            return fail_buffer(at, buffer, "is used while it is not alive", error);
        }
        if (!fits) {
            g_autofree char *what = g_strdup_printf("takes %" G_GINT64_FORMAT " bytes, allocated were %" G_GINT64_FORMAT,
                                                    bytes, buffer->bytes);
            return fail_buffer(at, buffer, what, error);
        }
        return FALSE;
    }
    int tag = rank_tag(at, buffer);
    gboolean is_kept =
        at->call->layer >= 0 && (at->instr->phase == PHASE_FORWARD || at->instr->stream == STREAM_COPY_IN);
    gboolean is_cached =
        buffer->tag == MEM_CACHE && at->rank->world->plan->has_cache && is_kept; /* whatever it is the result of */
    if (tag != RANK_ANY_TAG && tag != buffer->tag && !is_cached) {
        g_autofree char *what = g_strdup_printf("is counted as %s, what is written are %s", result_mem_tag_name((MemTag)buffer->tag),
                                                result_mem_tag_name((MemTag)tag));
        tensor_free(value);
        return fail_buffer(at, buffer, what, error);
    }
    if (buffer->value != value) {
        tensor_free(buffer->value);
        buffer->value = value;
    }
    buffer->dtype = dtype;
    return TRUE;
}

Tensor *rank_change(const RankAt *at, RankBuffer *buffer, TensorType type, int64_t numel, GError **error)
{
    return rank_read_as(at, buffer, type, numel, error) != NULL && rank_note_write(at, buffer, error) ? buffer->value
                                                                                                      : NULL;
}

/* The instruction that allocated a buffer last. */
static gboolean fail_leak(Rank *rank, gint32 buffer, GError **error)
{
    RankAt leak = {.rank = rank};
    for (guint c = 0; c < rank->program->calls->len; c++) {
        const Call *call = &g_array_index(rank->program->calls, Call, c);
        const Segment *segment = program_segment(rank->program, call->segment);
        for (guint i = 0; i < segment->instrs->len; i++) {
            const Instr *instr = &g_array_index(segment->instrs, Instr, i);
            Place made = instr->kind == INSTR_MOVE ? instr->to : instr->place;
            if ((instr->kind == INSTR_ALLOC || instr->kind == INSTR_MOVE) && program_resolve(call, made) == buffer) {
                leak = (RankAt){rank, call, segment, instr};
            }
        }
    }
    g_assert(leak.instr != NULL);
    return fail_place(&leak, leak.instr->kind == INSTR_MOVE ? leak.instr->to : leak.instr->place, "is never freed", error);
}

gboolean rank_check_empty(Rank *rank, GError **error)
{
    for (gint32 b = 0; b < rank->program->n_buffers; b++) {
        if (rank->buffers[b].alive && !rank->buffers[b].resident) {
            return fail_leak(rank, b, error);
        }
    }
    if (rank->n_streamed != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "rank %" G_GINT64_FORMAT ": %" G_GINT64_FORMAT " elements of optimizer states do not go back to the host",
                    rank->idx, rank->n_streamed);
        return FALSE;
    }
    int64_t n = rank->world->plan->n_micro_batches;
    if (rank->n_marks[PHASE_FORWARD] != n || rank->n_marks[PHASE_BACKWARD] != n || rank->n_marks[PHASE_OPTIMIZER] != 1) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "rank %" G_GINT64_FORMAT ": a phase is not marked once per micro-batch",
                    rank->idx);
        return FALSE;
    }
    return TRUE;
}

static void routing_clear(Rank *rank)
{
    int64_t n_parts = rank->world->plan->moe.overlap_chunks;
    for (int64_t i = 0; i < rank->world->graphs->n_layers * rank_n_sides(rank->world->plan) * n_parts; i++) {
        RankRouting *routing = &rank->routing[i];
        g_free(i % n_parts == 0 ? routing->expert_rows : NULL);
        g_free(routing->loads);
        tensor_free(routing->choices_made);
        g_free(routing->chunk_loads);
        tensor_free(routing->sent);
        tensor_free(routing->arrived);
        tensor_free(routing->sent_to);
        tensor_free(routing->choices);
    }
    g_free(rank->routing);
}

void rank_clear(Rank *rank)
{
    for (gint32 b = 0; b < rank->program->n_buffers; b++) {
        tensor_free(rank->buffers[b].value);
    }
    for (guint s = 0; s < rank->program->sites->len; s++) {
        const FsdpGroup *group = g_array_index(rank->program->sites, ProgramSite, s).group;
        for (guint i = 0; i < group->params->len; i++) {
            optim_state_clear(&rank->sites[s].states[i]);
        }
        g_free(rank->sites[s].states);
        tensor_free(rank->sites[s].shard);
        tensor_free(rank->sites[s].grad);
    }
    for (int64_t m = 0; m < rank->world->plan->n_micro_batches; m++) {
        tensor_free(rank->ids[m]);
        tensor_free(rank->labels[m]);
    }
    routing_clear(rank);
    g_free(rank->biases);
    g_free(rank->ids);
    g_free(rank->labels);
    g_free(rank->sites);
    g_free(rank->buffers);
    g_free(rank->tokens);
    alloc_model_free(rank->alloc);
    ledger_walk_free(rank->ledger);
    order_free(rank->order);
}

char *virtual_ranks_static_fault(const VirtualRanks *world, int64_t idx)
{
    const Rank *rank = &world->ranks[idx];
    const Plan *plan = world->plan;
    int64_t params = 0, states = 0, grads = 0;
    for (guint s = 0; s < rank->program->sites->len; s++) {
        const FsdpGroup *group = g_array_index(rank->program->sites, ProgramSite, s).group;
        const gint32 first = g_array_index(rank->program->sites, ProgramSite, s).buffer;
        params += group->resident ? 0 : dtype_bytes(plan->parameters, tensor_numel(rank->sites[s].shard));
        grads += group->resident ? rank->buffers[first + FSDP_REDUCE_IN].bytes : 0;
        for (guint i = 0; group->resident && i < group->params->len; i++) {
            const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
            params += fsdp_whole_bytes(plan, entry) > 0 ? rank->buffers[first + FSDP_PARAMS + (gint32)i].bytes : 0;
            params += rank->buffers[first + fsdp_codes_buffer(group, i)].bytes;
        }
        for (guint i = 0; i < group->params->len; i++) {
            const OptimState *state = &rank->sites[s].states[i];
            states += state->m != NULL ? optim_moment_bytes(tensor_numel(state->m), plan->moments) : 0;
            states += state->v != NULL ? optim_moment_bytes(tensor_numel(state->v), plan->moments) : 0;
            states += state->m != NULL && plan->master_weights ? dtype_bytes(DTYPE_FP32, tensor_numel(state->m)) : 0;
        }
    }
    states = plan->layer_wise ? rank_deal_state_bytes(world) : states;
    for (int64_t l = 0; l < world->graphs->n_layers; l++) {
        const Graph *graph = model_graph_layer(world->graphs, l);
        for (guint p = 0; p < graph->params->len; p++) {
            const GraphParam *param = graph_param(graph, (int)p);
            const Tensor *value = param->role == PARAM_BUFFER ? world->source->param(world->source->self, l, (int)p) : NULL;
            params += value != NULL ? dtype_bytes(DTYPE_FP32, tensor_numel(value)) : 0;
        }
        const Tensor *counts = rank_layer_routing(rank, l)->choices_made;
        params += counts != NULL ? dtype_bytes(DTYPE_INT64, tensor_numel(counts)) : 0;
    }
    const int64_t *said = rank->program->static_bytes;
    if (params == said[MEM_PARAMETERS] && states == (plan->optimizer_offload ? rank->program->host_static_bytes : said[MEM_OPTIMIZER]) && grads == said[MEM_GRADIENTS]) {
        return NULL;
    }
    return g_strdup_printf("rank %" G_GINT64_FORMAT " holds %" G_GINT64_FORMAT " bytes of parameters, %" G_GINT64_FORMAT
                           " of optimizer state and %" G_GINT64_FORMAT " of gradients, its program says %" G_GINT64_FORMAT
                           ", %" G_GINT64_FORMAT " and %" G_GINT64_FORMAT,
                           idx, params, states, grads, said[MEM_PARAMETERS], said[MEM_OPTIMIZER], said[MEM_GRADIENTS]);
}
