/*
 * Whole matrices in values: what Muon does to the shards of a rank, and how slices and matrices change ranks.
 */
#include <string.h>

#include "workloads/lower/whole.h"
#include "workloads/run/rank.h"

const WholeRound *rank_round(const RankAt *at)
{
    const GArray *rounds = at->rank->program->whole_rounds;
    gint64 i = (gint64)at->call->round + at->instr->op;
    return i >= 0 && i < rounds->len ? &g_array_index(rounds, WholeRound, (guint)i) : NULL;
}

UnitAt rank_unit_at(const Rank *rank, const WholeRound *round, gint32 k)
{
    UnitAt u = {.unit = &g_array_index(rank->program->whole_units, WholeUnit, (guint)(round->first + k))};
    u.site = &g_array_index(rank->program->sites, ProgramSite, (guint)u.unit->site);
    u.own = &rank->sites[u.unit->site];
    const FsdpParam *entry = &g_array_index(u.site->group->params, FsdpParam, (guint)u.unit->param);
    u.param = graph_param(entry->graph, entry->param);
    u.state = u.unit->matrix * u.unit->shard_numel;
    rank_part_offset(rank->world->plan, u.site->group, u.unit->param, &u.shard, &u.grad);
    u.shard += u.state;
    u.grad += u.state;
    for (gint32 before = 0; before < k && !round->dealt; before++) {
        u.slice += g_array_index(rank->program->whole_units, WholeUnit, (guint)(round->first + before)).shard_numel;
    }
    return u;
}

/* Whether a rank has a shard of the k-th unit of a round: of dealt ones it has its own alone. */
static gboolean has_shard(const Rank *rank, const WholeRound *round, const WholeUnit *unit)
{
    return !round->dealt || unit->owner == rank_mesh_index(rank, (GroupKind)round->mesh);
}

/* The unit that a rank orthogonalises in a round, or NULL. */
static const WholeUnit *own_unit(const Rank *rank, const WholeRound *round)
{
    for (gint32 k = 0; k < round->n; k++) {
        const WholeUnit *unit = &g_array_index(rank->program->whole_units, WholeUnit, (guint)(round->first + k));
        if (unit->owner < 0 || unit->owner == rank_mesh_index(rank, (GroupKind)round->mesh)) {
            return unit;
        }
    }
    return NULL;
}

static OptimSettings settings_of(const Rank *rank)
{
    OptimSettings settings = rank->world->options.optim;
    settings.step = rank->world->n_steps;
    settings.n_heads = 1;
    return settings;
}

static Tensor *vector_of(const double *from, int64_t n)
{
    Tensor *vector = tensor_new_2d(TENSOR_F64, 1, n);
    if (from != NULL) {
        memcpy(vector->data, from, (size_t)n * sizeof *from);
    }
    return vector;
}

/* The momentum of a unit is a part of its parameter's. */
double *rank_momentum(const Rank *rank, const UnitAt *u)
{
    OptimState *whole = &u->own->states[u->unit->param];
    if (whole->m == NULL) {
        whole->m = vector_of(NULL, fsdp_shard_numel(rank->world->plan, u->param));
    }
    return (double *)whole->m->data + u->state;
}

static void unit_direction(const Rank *rank, const UnitAt *u, const double *grads, double *momentum, double *ret_slice)
{
    OptimSettings settings = settings_of(rank);
    int64_t n = u->unit->shard_numel;
    size_t bytes = (size_t)n * sizeof(double);
    OptimState part = {.m = vector_of(momentum, n)};
    g_autoptr(Tensor) grad = vector_of(grads + u->grad, n), direction = vector_of(NULL, n);
    optim_muon_momentum(&settings, grad, &part, direction);
    memcpy(momentum, part.m->data, bytes);
    memcpy(ret_slice, direction->data, bytes);
    optim_state_clear(&part);
}

static gboolean direction(const RankAt *at, GError **error)
{
    Rank *rank = at->rank;
    const WholeRound *round = rank_round(at);
    g_autoptr(Tensor) slices = vector_of(NULL, round->slices);
    Tensor *streamed = NULL;
    if (at->instr->n_operands > 1 && (streamed = rank_change(at, rank_operand(at, 1), TENSOR_F64, round->slices, error)) == NULL) {
        return FALSE;
    }
    for (gint32 k = 0; k < round->n; k++) {
        UnitAt u = rank_unit_at(rank, round, k);
        if (!has_shard(rank, round, u.unit)) {
            continue;
        }
        const Tensor *grads = rank_read_as(at, &rank->buffers[u.site->buffer + FSDP_GRAD], TENSOR_F64,
                                           u.site->group->trainable_shard_numel, error);
        if (grads == NULL) {
            return FALSE;
        }
        double *momentum = streamed != NULL ? (double *)streamed->data + u.slice : rank_momentum(rank, &u);
        unit_direction(rank, &u, grads->data, momentum, (double *)slices->data + u.slice);
    }
    return rank_write(at, rank_operand(at, 0), g_steal_pointer(&slices), DTYPE_BF16, error);
}

/* A rank owns the unit of its own index; where nothing travels, all (one) of the round. */
static gboolean orthogonalize(const RankAt *at, GError **error)
{
    const WholeRound *round = rank_round(at);
    OptimSettings settings = settings_of(at->rank);
    int64_t numel = round->travels ? round->whole : round->slices;
    Tensor *value = rank_change(at, rank_operand(at, 0), TENSOR_F64, numel, error);
    if (value == NULL) {
        return FALSE;
    }
    const WholeUnit *unit = own_unit(at->rank, round);
    if (unit == NULL) {
        return TRUE;
    }
    int64_t dims[3] = {unit->n_blocks, unit->rows, unit->cols};
    g_autoptr(Tensor) blocks = tensor_new(TENSOR_F64, 3, dims);
    size_t bytes = (size_t)unit->whole_numel * sizeof(double);
    g_assert(tensor_numel(blocks) == unit->whole_numel);
    memcpy(blocks->data, value->data, bytes);
    optim_muon_orthogonalize(&settings, blocks);
    memcpy(value->data, blocks->data, bytes);
    return TRUE;
}

static gboolean descend(const RankAt *at, GError **error)
{
    const WholeRound *round = rank_round(at);
    OptimSettings settings = settings_of(at->rank);
    const Tensor *slices = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, round->slices, error);
    Tensor *master = NULL;
    if (at->instr->n_operands > 1 && (master = rank_change(at, rank_operand(at, 1), TENSOR_F64, round->slices, error)) == NULL) {
        return FALSE;
    }
    for (gint32 k = 0; slices != NULL && k < round->n; k++) {
        UnitAt u = rank_unit_at(at->rank, round, k);
        if (!has_shard(at->rank, round, u.unit)) {
            continue;
        }
        double *shard = (double *)u.own->shard->data + u.shard;
        g_autoptr(Tensor) slice = vector_of((const double *)slices->data + u.slice, u.unit->shard_numel),
                          value = vector_of(master != NULL ? (const double *)master->data + u.slice : shard, u.unit->shard_numel);
        if (!rank_note_write(at, &u.own->guard, error)) {
            return FALSE;
        }
        optim_muon_apply(&settings, slice, value);
        memcpy(shard, value->data, (size_t)u.unit->shard_numel * sizeof(double));
        if (master != NULL) {
            memcpy((double *)master->data + u.slice, value->data, (size_t)u.unit->shard_numel * sizeof(double));
        }
    }
    return slices != NULL;
}

gboolean rank_whole_value(const RankAt *at, GError **error)
{
    switch ((int)at->instr->action) {
    case VALUE_DIRECTION:
        return direction(at, error);
    case VALUE_ORTHOGONALIZE:
        return orthogonalize(at, error);
    default:
        return descend(at, error);
    }
}

/* Where the shards of a unit lie in its whole. */
static ShardShape unit_shape(const Rank *rank, const UnitAt *u)
{
    ShardShape shape = shard_shape(rank->world->plan, u->param);
    shape.outer = 1;
    return shape;
}

/* Slices of all ranks become the whole of each owner. */
static gboolean gather_wholes(const RankAt *ats, int64_t n, const WholeRound *round, GError **error)
{
    g_autofree const double **slices = g_new0(const double *, n);
    for (int64_t i = 0; i < n; i++) {
        const Tensor *value = rank_read_as(&ats[i], rank_operand(&ats[i], 0), TENSOR_F64, round->slices, error);
        if (value == NULL || !rank_check_bytes(&ats[i], dtype_bytes(DTYPE_BF16, round->slices), error)) {
            return FALSE;
        }
        slices[i] = value->data;
    }
    for (int64_t owner = 0; owner < n; owner++) {
        g_autoptr(Tensor) whole = vector_of(NULL, round->whole);
        for (int64_t i = 0; owner < round->n && i < n; i++) {
            UnitAt u = rank_unit_at(ats[i].rank, round, (gint32)owner);
            ShardShape shape = unit_shape(ats[i].rank, &u);
            shard_put(&shape, i, slices[i] + u.slice, whole->data);
        }
        if (!rank_write(&ats[owner], rank_operand(&ats[owner], 1), g_steal_pointer(&whole), DTYPE_BF16, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* The wholes of the owners become slices of all ranks. */
static gboolean scatter_wholes(const RankAt *ats, int64_t n, const WholeRound *round, GError **error)
{
    g_autofree const double **wholes = g_new0(const double *, n);
    for (int64_t i = 0; i < n; i++) {
        const Tensor *value = rank_read_as(&ats[i], rank_operand(&ats[i], 0), TENSOR_F64, round->whole, error);
        if (value == NULL || !rank_check_bytes(&ats[i], dtype_bytes(DTYPE_BF16, round->slices), error)) {
            return FALSE;
        }
        wholes[i] = value->data;
    }
    for (int64_t i = 0; i < n; i++) {
        g_autoptr(Tensor) slices = vector_of(NULL, round->slices);
        for (gint32 k = 0; k < round->n; k++) {
            UnitAt u = rank_unit_at(ats[i].rank, round, k);
            ShardShape shape = unit_shape(ats[i].rank, &u);
            shard_take(&shape, i, wholes[k], (double *)slices->data + u.slice);
        }
        if (!rank_write(&ats[i], rank_operand(&ats[i], 1), g_steal_pointer(&slices), DTYPE_BF16, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean rank_whole_exchange(const RankAt *ats, int64_t n, GError **error)
{
    gint32 at = ats->call->round + ats->instr->op;
    if (ats->instr->phase != PHASE_OPTIMIZER || at < 0 || (guint)at >= ats->rank->program->whole_rounds->len) {
        return rank_fail(ats, error, "exchanges matrices where no optimizer has any");
    }
    int64_t idx = (int64_t)ats->call->round + ats->instr->op;
    if (ats->instr->n_operands != 2 || idx < 0 || idx >= (int64_t)ats->rank->program->whole_rounds->len) {
        return rank_fail(ats, error, "is no exchange of matrices");
    }
    const WholeRound *round = rank_round(ats);
    if ((GroupKind)ats->instr->group != (GroupKind)round->mesh || round->n > n) {
        return rank_fail(ats, error, "exchanges matrices with ranks that do not share them");
    }
    return ats->instr->op > 0 ? gather_wholes(ats, n, round, error) : scatter_wholes(ats, n, round, error);
}
