#include "workloads/lower/whole.h"

#include <stdlib.h>
#include <string.h>

#include "models/optim.h"
#include "workloads/lower/deal.h"

gboolean whole_takes(const Plan *plan, const GraphParam *param)
{
    return plan->optimizer == PLAN_MUON && fsdp_has_grad(param) && graph_param_is_matrix(param);
}

int64_t whole_heads(const Plan *plan, const GraphParam *param)
{
    return plan->muon_per_head ? param->heads : 1;
}

/* Products of five Newton-Schulz steps: 5 (4 m^2 n + 2 m^3) each. */
static double block_flops(int64_t rows, int64_t cols)
{
    double m = (double)MIN(rows, cols), n = (double)MAX(rows, cols);
    return OPTIM_MUON_STEPS * (4 * m * m * n + 2 * m * m * m);
}

double whole_round_flops(const WholeRound *round)
{
    return (double)round->n_blocks * block_flops(round->rows, round->cols);
}

static double unit_flops(const WholeUnit *unit)
{
    return (double)unit->n_blocks * block_flops(unit->rows, unit->cols);
}

/* Whether a parameter's shards cut its blocks; *ret_local: blocks of the fullest rank if not. */
static gboolean shards_cut(const Plan *plan, const FsdpGroup *group, const GraphParam *param, int64_t *ret_local)
{
    gboolean stack = param->n_dims == 3;
    int64_t heads = whole_heads(plan, param), matrices = stack ? param->dims[0] / (param->split == PARAM_EXPERT ? plan->ep : 1) : heads;
    *ret_local = quantity_div_up(matrices, group->n_shards);
    if (group->n_shards == 1) {
        return FALSE;
    }
    if (stack) {
        return fsdp_cuts_experts(plan, param);
    }
    int64_t rows = quantity_div_up(param->dims[0], group->n_shards), head = param->dims[0] / heads;
    *ret_local = rows / head;
    return rows % head != 0;
}

/* The units of one parameter. */
static void add_units(const Plan *plan, const FsdpGroup *group, gint32 site, gint32 i, GArray *stay, GArray *travel)
{
    const FsdpParam *entry = &g_array_index(group->params, FsdpParam, (guint)i);
    const GraphParam *param = graph_param(entry->graph, entry->param);
    gboolean stack = param->n_dims == 3;
    int64_t local, heads = whole_heads(plan, param), shard = fsdp_shard_numel(plan, param);
    if (!whole_takes(plan, param)) {
        return;
    }
    WholeUnit unit = {.site = site, .param = i, .rows = stack ? param->dims[1] : param->dims[0] / heads,
                      .cols = stack ? param->dims[2] : param->dims[1], .shard_numel = shard, .owner = -1};
    if (!shards_cut(plan, group, param, &local)) {
        unit.n_blocks = local;
        unit.whole_numel = shard;
        g_array_append_val(stay, unit);
        return;
    }
    int64_t n = stack ? fsdp_local_numel(plan, param) / (unit.rows * unit.cols) : 1;
    unit.n_blocks = stack ? 1 : heads;
    unit.shard_numel = shard / n;
    unit.whole_numel = unit.rows * unit.cols * unit.n_blocks;
    for (unit.matrix = 0; unit.matrix < n; unit.matrix++) {
        g_array_append_val(travel, unit);
    }
}

static int costliest_first(const void *a, const void *b)
{
    const WholeUnit *x = a, *y = b;
    double xf = unit_flops(x), yf = unit_flops(y);
    if (xf > yf || xf < yf) {
        return xf > yf ? -1 : 1;
    }
    if (x->site != y->site) {
        return x->site < y->site ? -1 : 1;
    }
    if (x->param != y->param) {
        return x->param < y->param ? -1 : 1;
    }
    return x->matrix < y->matrix ? -1 : x->matrix > y->matrix;
}

/* Rounds of up to `per_round` units each. */
static void add_rounds(Program *program, const GArray *units, GroupKind mesh, int64_t per_round, gboolean travels)
{
    for (guint at = 0; at < units->len; at += (guint)per_round) {
        const WholeUnit *unit = &g_array_index(units, WholeUnit, at);
        WholeRound round = {.first = (gint32)program->whole_units->len, .n = (gint32)MIN(per_round, units->len - at),
                            .travels = travels, .mesh = (gint32)mesh, .rows = unit->rows, .cols = unit->cols,
                            .n_blocks = unit->n_blocks};
        for (gint32 k = 0; k < round.n; k++) {
            WholeUnit own = unit[k];
            round.slices += own.shard_numel;
            round.whole = MAX(round.whole, own.whole_numel);
            own.owner = travels ? k : -1;
            g_array_append_val(program->whole_units, own);
        }
        g_array_append_val(program->whole_rounds, round);
    }
}

/* A unit joins the round of its turn. */
static void add_dealt(Program *program, const WholeUnit *unit, GroupKind mesh, gboolean starts)
{
    if (starts) {
        const WholeRound fresh = {.first = (gint32)program->whole_units->len, .dealt = TRUE, .mesh = (gint32)mesh};
        g_array_append_val(program->whole_rounds, fresh);
    }
    WholeRound *round = &g_array_index(program->whole_rounds, WholeRound, program->whole_rounds->len - 1);
    if (round->n == 0 || unit_flops(unit) > whole_round_flops(round)) {
        round->rows = unit->rows;
        round->cols = unit->cols;
        round->n_blocks = unit->n_blocks;
    }
    round->n++;
    round->slices = round->whole = MAX(round->whole, unit->whole_numel);
    g_array_append_val(program->whole_units, *unit);
}

/* Rounds of dealt tensors: those of Muon in each turn. */
static void plan_dealt(Program *program, const Plan *plan)
{
    const DealTensor *last = NULL;
    for (guint i = 0; i < program->dealt->len; i++) {
        const DealTensor *tensor = &g_array_index(program->dealt, DealTensor, i);
        const FsdpGroup *group = g_array_index(program->sites, ProgramSite, (guint)tensor->site).group;
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, (guint)tensor->param);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        gboolean stack = param->n_dims == 3;
        int64_t heads = stack ? 1 : whole_heads(plan, param);
        if (!whole_takes(plan, param)) {
            continue;
        }
        WholeUnit unit = {.site = tensor->site, .param = tensor->param, .matrix = tensor->matrix, .owner = tensor->owner,
                          .rows = stack ? param->dims[1] : param->dims[0] / heads, .cols = param->dims[stack ? 2 : 1],
                          .n_blocks = heads, .shard_numel = tensor->numel, .whole_numel = tensor->numel};
        add_dealt(program, &unit, (GroupKind)tensor->mesh, last == NULL || last->mesh != tensor->mesh || last->turn != tensor->turn);
        last = tensor;
    }
}

void whole_plan(Program *program, const Plan *plan)
{
    if (plan->layer_wise) {
        plan_dealt(program, plan);
        return;
    }
    if (plan->optimizer != PLAN_MUON) { /* it takes none */
        return;
    }
    for (int mesh = GROUP_DENSE; mesh <= GROUP_EXPERT; mesh++) {
        g_autoptr(GArray) stay = g_array_new(FALSE, TRUE, sizeof(WholeUnit)), travel = g_array_new(FALSE, TRUE, sizeof(WholeUnit));
        int64_t n_shards = 1;
        for (guint s = 0; s < program->sites->len; s++) {
            const FsdpGroup *group = g_array_index(program->sites, ProgramSite, s).group;
            for (guint i = 0; (int)group->mesh == mesh && i < group->params->len; i++) {
                n_shards = group->n_shards;
                add_units(plan, group, (gint32)s, (gint32)i, stay, travel);
            }
        }
        g_array_sort(travel, costliest_first);
        add_rounds(program, stay, (GroupKind)mesh, 1, FALSE);
        add_rounds(program, travel, (GroupKind)mesh, n_shards, TRUE);
    }
}

double whole_max_over_mean(const Program *program)
{
    double most = 0, mean = 0;
    for (guint r = 0; r < program->whole_rounds->len; r++) {
        const WholeRound *round = &g_array_index(program->whole_rounds, WholeRound, r);
        const WholeUnit *units = &g_array_index(program->whole_units, WholeUnit, (guint)round->first);
        const FsdpGroup *group = g_array_index(program->sites, ProgramSite, (guint)units->site).group;
        double sum = 0;
        for (gint32 k = 0; k < round->n; k++) {
            sum += unit_flops(&units[k]);
        }
        most += whole_round_flops(round);
        mean += round->travels || round->dealt ? sum / (double)group->n_ranks : whole_round_flops(round);
    }
    return mean > 0 ? most / mean : 1;
}
