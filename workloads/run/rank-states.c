/*
 * Streamed optimizer states in values. While states are in HBM, what the host has of them is no number; what does not come
 * back is missed at the end of the step. Master copies are the shards themselves: theirs must be equal when they go back.
 */
#include <math.h>
#include <string.h>

#include "workloads/lower/whole.h"
#include "workloads/run/rank.h"

/* Which way values go between a streamed buffer and where they live. */
typedef enum Way { TO_BUFFER, TO_HOST } Way;

static const FsdpGroup *group_of(const RankAt *at, const RankBuffer *buffer, RankSite **ret_own)
{
    const Rank *rank = at->rank;
    const ProgramSite *site = buffer != NULL ? program_site(rank->program, (gint32)(buffer - rank->buffers) - FSDP_STATES) : NULL;
    if (site == NULL) {
        return NULL;
    }
    *ret_own = &rank->sites[site - (const ProgramSite *)(const void *)rank->program->sites->data];
    return site->group;
}

static const GraphParam *param_of(const FsdpGroup *group, guint i)
{
    const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
    return graph_param(entry->graph, entry->param);
}

static int n_copies(const Plan *plan)
{
    return plan->master_weights ? 3 : 2;
}

/* Bytes that the states of n elements take, of moments of a number each and a master copy. */
static int64_t stored_bytes(const Plan *plan, int64_t n, int moments, gboolean master)
{
    return moments * optim_moment_bytes(n, plan->moments) + (master ? dtype_bytes(DTYPE_FP32, n) : 0);
}

/* Elements of the states that AdamW has of a group, and their bytes. */
static int64_t group_numel(const Plan *plan, const FsdpGroup *group, int64_t *ret_bytes)
{
    int64_t sum = 0;
    *ret_bytes = 0;
    for (guint i = 0; i < group->params->len; i++) {
        const GraphParam *param = param_of(group, i);
        int64_t n = fsdp_has_grad(param) && !whole_takes(plan, param) ? fsdp_shard_numel(plan, param) : 0;
        sum += n_copies(plan) * n;
        *ret_bytes += stored_bytes(plan, n, 2, plan->master_weights);
    }
    return sum;
}

static Tensor *zeros(int64_t n)
{
    return tensor_new_2d(TENSOR_F64, 1, n);
}

static void swap_values(Way way, double *buffer, double *host, int64_t n)
{
    memcpy(way == TO_BUFFER ? buffer : host, way == TO_BUFFER ? host : buffer, (size_t)n * sizeof *host);
    for (int64_t i = 0; way == TO_BUFFER && i < n; i++) {
        host[i] = NAN;
    }
}

/* States of a group, and the master copies behind them. FALSE: masters that go back are not the parameters. */
static gboolean move_group(const Plan *plan, const FsdpGroup *group, RankSite *own, Way way, double *buffer)
{
    int64_t at = 0, shard, grad;
    for (guint i = 0; i < group->params->len; i++) {
        const GraphParam *param = param_of(group, i);
        int64_t n = fsdp_shard_numel(plan, param);
        OptimState *state = &own->states[i];
        if (!fsdp_has_grad(param) || whole_takes(plan, param)) {
            continue;
        }
        if (state->m == NULL) {
            *state = (OptimState){zeros(n), zeros(n)};
        }
        swap_values(way, buffer + at, state->m->data, n);
        swap_values(way, buffer + at + n, state->v->data, n);
        rank_part_offset(plan, group, (gint32)i, &shard, &grad);
        double *master = (double *)own->shard->data + shard, *copy = buffer + at + 2 * n;
        if (plan->master_weights && way == TO_HOST && memcmp(copy, master, (size_t)n * sizeof *copy) != 0) {
            return FALSE;
        }
        if (plan->master_weights) {
            memcpy(copy, master, (size_t)n * sizeof *copy);
        }
        at += n_copies(plan) * n;
    }
    return TRUE;
}

gboolean rank_use_states(const RankAt *at, GError **error)
{
    RankSite *own = NULL;
    const FsdpGroup *group = group_of(at, rank_operand(at, 1), &own);
    const Plan *plan = at->rank->world->plan;
    int64_t bytes;
    if (group == NULL) {
        return rank_fail(at, error, "updates with what are no states of a group");
    }
    Tensor *states = rank_change(at, rank_operand(at, 1), TENSOR_F64, group_numel(plan, group, &bytes), error);
    if (states == NULL) {
        return FALSE;
    }
    (void)move_group(plan, group, own, TO_HOST, states->data);
    return TRUE;
}

void rank_used_states(const RankAt *at)
{
    RankSite *own = NULL;
    const FsdpGroup *group = group_of(at, rank_operand(at, 1), &own);
    (void)move_group(at->rank->world->plan, group, own, TO_BUFFER, rank_operand(at, 1)->value->data);
}

static gboolean group_states(const RankAt *at, Way way, GError **error)
{
    RankSite *own = NULL;
    const Plan *plan = at->rank->world->plan;
    const FsdpGroup *group = group_of(at, rank_operand(at, 0), &own);
    if (group == NULL) {
        return rank_fail(at, error, "operand 0 is no buffer of a group's states");
    }
    int64_t bytes, n = group_numel(plan, group, &bytes);
    if (way == TO_BUFFER) {
        Tensor *states = zeros(n);
        (void)move_group(plan, group, own, TO_BUFFER, states->data);
        at->rank->n_streamed += n;
        return rank_write_sized(at, rank_operand(at, 0), states, DTYPE_FP32, bytes, error);
    }
    const Tensor *states = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, n, error);
    at->rank->n_streamed -= n;
    g_autoptr(Tensor) copy = states != NULL ? tensor_dup(states) : NULL;
    return states != NULL && (move_group(plan, group, own, TO_HOST, copy->data) ||
                              rank_fail(at, error, "the master copies that go back are not the parameters"));
}

/* Momentum or master copies of a round, unit by unit. */
static gboolean round_states(const RankAt *at, Way way, gboolean master, GError **error)
{
    Rank *rank = at->rank;
    const WholeRound *round = rank_round(at);
    if (round == NULL) {
        return rank_fail(at, error, "streams states of a round that there is not");
    }
    g_autoptr(Tensor) states = zeros(round->slices);
    if (way == TO_HOST) {
        const Tensor *value = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, round->slices, error);
        if (value == NULL) {
            return FALSE;
        }
        memcpy(states->data, value->data, (size_t)round->slices * sizeof(double));
    }
    for (gint32 k = 0; k < round->n; k++) {
        UnitAt u = rank_unit_at(rank, round, k);
        double *slice = (double *)states->data + u.slice;
        int64_t n = u.unit->shard_numel;
        if (!master) {
            swap_values(way, slice, rank_momentum(rank, &u), n);
        } else if (way == TO_BUFFER) {
            memcpy(slice, (const double *)u.own->shard->data + u.shard, (size_t)n * sizeof *slice);
        } else if (memcmp(slice, (const double *)u.own->shard->data + u.shard, (size_t)n * sizeof *slice) != 0) {
            return rank_fail(at, error, "the master copies that go back are not the parameters");
        }
    }
    rank->n_streamed += way == TO_BUFFER ? round->slices : -round->slices;
    int64_t bytes = stored_bytes(rank->world->plan, round->slices, master ? 0 : 1, master);
    return way == TO_HOST || rank_write_sized(at, rank_operand(at, 0), g_steal_pointer(&states), DTYPE_FP32, bytes, error);
}

gboolean rank_states_value(const RankAt *at, GError **error)
{
    switch ((int)at->instr->action) {
    case VALUE_STATES_IN:
        return group_states(at, TO_BUFFER, error);
    case VALUE_STATES_OUT:
        return group_states(at, TO_HOST, error);
    case VALUE_MOMENTUM_IN:
        return round_states(at, TO_BUFFER, FALSE, error);
    case VALUE_MOMENTUM_OUT:
        return round_states(at, TO_HOST, FALSE, error);
    case VALUE_MASTER_IN:
        return round_states(at, TO_BUFFER, TRUE, error);
    default:
        return round_states(at, TO_HOST, TRUE, error);
    }
}
