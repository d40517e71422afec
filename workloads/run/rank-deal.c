/*
 * Dealt tensors in values: what a rank puts where all gather, what it takes from there, and which states it holds.
 */
#include <math.h>
#include <string.h>

#include "workloads/lower/deal.h"
#include "workloads/lower/whole.h"
#include "workloads/run/rank.h"

int64_t rank_mesh_index(const Rank *rank, GroupKind mesh)
{
    return mesh == GROUP_EXPERT ? rank->expert_shard : rank->shard;
}

gboolean rank_owns(const Rank *rank, const DealTensor *tensor)
{
    return tensor->owner == rank_mesh_index(rank, (GroupKind)tensor->mesh);
}

/* First element of a dealt tensor in its rank's shards. */
static double *tensor_values(const Rank *rank, const DealTensor *tensor)
{
    const FsdpGroup *group = g_array_index(rank->program->sites, ProgramSite, (guint)tensor->site).group;
    int64_t shard, grad;
    rank_part_offset(rank->world->plan, group, tensor->param, &shard, &grad);
    return (double *)rank->sites[tensor->site].shard->data + shard + tensor->matrix * tensor->numel;
}

/* Dealt tensors of the instruction's mesh: the rank's own, or those of the others. */
static gboolean has_part(const RankAt *at, const DealTensor *tensor, gboolean own)
{
    return tensor->mesh == at->instr->op && rank_owns(at->rank, tensor) == own;
}

/* What other owners will send is not a number until they have. */
static gboolean place(const RankAt *at, GError **error)
{
    const Program *program = at->rank->program;
    Tensor *all = tensor_new_2d(TENSOR_F64, 1, deal_numel(program, (GroupKind)at->instr->op));
    double *values = all->data;
    for (int64_t i = 0; i < tensor_numel(all); i++) {
        values[i] = NAN;
    }
    for (guint i = 0; i < program->dealt->len; i++) {
        const DealTensor *tensor = &g_array_index(program->dealt, DealTensor, i);
        if (!has_part(at, tensor, TRUE)) {
            continue;
        }
        if (!rank_note_read(at, &at->rank->sites[tensor->site].guard, error)) {
            tensor_free(all);
            return FALSE;
        }
        memcpy(values + tensor->first, tensor_values(at->rank, tensor), (size_t)tensor->numel * sizeof *values);
    }
    return rank_write(at, rank_operand(at, 0), all, at->rank->world->plan->compute, error);
}

static gboolean take(const RankAt *at, GError **error)
{
    const Program *program = at->rank->program;
    const Tensor *all = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, deal_numel(program, (GroupKind)at->instr->op), error);
    for (guint i = 0; all != NULL && i < program->dealt->len; i++) {
        const DealTensor *tensor = &g_array_index(program->dealt, DealTensor, i);
        if (!has_part(at, tensor, FALSE)) {
            continue;
        }
        if (!rank_note_write(at, &at->rank->sites[tensor->site].guard, error)) {
            return FALSE;
        }
        memcpy(tensor_values(at->rank, tensor), (const double *)all->data + tensor->first, (size_t)tensor->numel * sizeof(double));
    }
    return all != NULL;
}

gboolean rank_deal_value(const RankAt *at, GError **error)
{
    if (at->instr->op != GROUP_DENSE && at->instr->op != GROUP_EXPERT) {
        return rank_fail(at, error, "names no mesh whose tensors were dealt");
    }
    return at->instr->action == VALUE_DEAL_PLACE ? place(at, error) : take(at, error);
}

gboolean rank_deal_gather(const RankAt *ats, int64_t n, GError **error)
{
    const Program *program = ats->rank->program;
    GroupKind mesh = (GroupKind)ats->instr->group;
    int64_t numel = deal_numel(program, mesh);
    g_autofree const double **parts = g_new0(const double *, n);
    if (ats->instr->coll != COLL_all_gather || n != deal_n_owners(program, mesh)) {
        return rank_fail(ats, error, "is no gathering of what was dealt to %" G_GINT64_FORMAT " ranks", deal_n_owners(program, mesh));
    }
    for (int64_t i = 0; i < n; i++) {
        const Tensor *part = rank_read_as(&ats[i], rank_operand(&ats[i], 0), TENSOR_F64, numel, error);
        if (part == NULL || !rank_check_moved(&ats[i], n, dtype_bytes(ats->rank->world->plan->compute, numel), error)) {
            return FALSE;
        }
        parts[i] = part->data;
    }
    g_autoptr(Tensor) whole = tensor_new_2d(TENSOR_F64, 1, numel);
    for (guint t = 0; t < program->dealt->len; t++) {
        const DealTensor *tensor = &g_array_index(program->dealt, DealTensor, t);
        if (tensor->mesh == (gint32)mesh) {
            memcpy((double *)whole->data + tensor->first, parts[tensor->owner] + tensor->first, (size_t)tensor->numel * sizeof(double));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        if (!rank_write(&ats[i], rank_operand(&ats[i], 0), tensor_dup(whole), ats->rank->world->plan->compute, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Whether any state of a dealt tensor has moved. */
static gboolean has_moved(const OptimState *state, const DealTensor *tensor)
{
    const Tensor *const moments[] = {state->m, state->v};
    for (int k = 0; k < 2; k++) {
        const double *values = moments[k] != NULL ? (const double *)moments[k]->data + tensor->matrix * tensor->numel : NULL;
        for (int64_t i = 0; values != NULL && i < tensor->numel; i++) {
            if (fabs(values[i]) > 0) {
                return TRUE;
            }
        }
    }
    return FALSE;
}

/* States that a rank owns, and whatever else it has moved. */
static int64_t state_bytes(const Rank *rank)
{
    const Plan *plan = rank->world->plan;
    int64_t bytes = 0;
    for (guint i = 0; i < rank->program->dealt->len; i++) {
        const DealTensor *tensor = &g_array_index(rank->program->dealt, DealTensor, i);
        const OptimState *state = &rank->sites[tensor->site].states[tensor->param];
        if (state->m != NULL && (rank_owns(rank, tensor) || has_moved(state, tensor))) {
            bytes += (1 + (state->v != NULL)) * optim_moment_bytes(tensor->numel, plan->moments) +
                     (plan->master_weights ? dtype_bytes(DTYPE_FP32, tensor->numel) : 0);
        }
    }
    return bytes;
}

int64_t rank_deal_state_bytes(const VirtualRanks *world)
{
    int64_t most = 0;
    for (int64_t r = 0; r < world->n_ranks; r++) {
        most = MAX(most, state_bytes(&world->ranks[r]));
    }
    return most;
}
