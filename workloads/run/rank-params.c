/*
 * Whole parameters and gradients out of what virtual ranks hold of them.
 */
#include <math.h>
#include <string.h>

#include "workloads/run/rank.h"

/* Slots become experts again: [slots, …] to [experts, …], NaN where copies are not equal to the last bit. */
static Tensor *merge_slots(const VirtualRanks *world, int64_t layer, const GraphParam *param, const Tensor *slots)
{
    int64_t dims[3] = {world->plan->model->n_experts, param->dims[1], param->dims[2]}, size = graph_param_numel(param) / param->dims[0];
    Tensor *merged = tensor_new(TENSOR_F64, param->n_dims, dims);
    double *to = merged->data;
    g_autofree gboolean *seen = g_new0(gboolean, dims[0]);
    for (int64_t s = 0; s < param->dims[0]; s++) {
        int64_t expert = rank_expert_in_slot(world, layer, s);
        const double *from = (const double *)slots->data + s * size;
        for (int64_t i = 0; i < size; i++) {
            gboolean differs = seen[expert] && memcmp(&to[expert * size + i], &from[i], sizeof *from) != 0;
            to[expert * size + i] = differs ? (double)NAN : from[i];
        }
        seen[expert] = TRUE;
    }
    return merged;
}

/* A parameter of a group. */
static const GraphParam *param_at(const FsdpGroup *group, guint i)
{
    const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
    return graph_param(entry->graph, entry->param);
}

/* A rank's shard of a parameter, or of its gradient, goes into the whole one. */
static void add_part(Tensor *whole, const Rank *rank, const RankSite *own, const ProgramSite *site, int param, VirtualPart part)
{
    const Plan *plan = rank->world->plan;
    const GraphParam *info = param_at(site->group, (guint)param);
    ShardShape shape = shard_shape(plan, info);
    int64_t shard, grad;
    rank_part_offset(plan, site->group, param, &shard, &grad);
    const double *from = part == VIRTUAL_GRAD ? (const double *)own->grad->data + grad : (const double *)own->shard->data + shard;
    shard_put(&shape, rank_shard_index(rank, site->group), from, (double *)whole->data + rank_slot_offset(rank, info));
}

/* Root and head groups hold parameters of two graphs: only those of the wanted one count. */
static int site_param(const Rank *rank, const ProgramSite *site, int64_t layer, int param)
{
    const ModelGraph *graphs = rank->world->graphs;
    const Graph *graph = layer < 0 ? graphs->embedding : layer == graphs->n_layers ? graphs->head : model_graph_layer(graphs, layer);
    gint32 wanted = layer < 0 || layer == graphs->n_layers ? -1 : (gint32)layer;
    return site->layer == wanted ? fsdp_group_find(site->group, graph, param) : -1;
}

/* What a rank holds whole between steps is what the shards of all make; NaN where it is not. */
static void check_resident(Tensor *whole, const Rank *rank, const ProgramSite *site, int param)
{
    const GraphParam *info = param_at(site->group, (guint)param);
    const Tensor *held = rank->buffers[site->buffer + FSDP_PARAMS + param].value;
    const Tensor *codes = rank->buffers[site->buffer + fsdp_codes_buffer(site->group, (guint)param)].value;
    double *values = (double *)whole->data + rank_slot_offset(rank, info);
    for (int64_t i = 0; site->group->resident && i < fsdp_local_numel(rank->world->plan, info); i++) {
        gboolean differs = held == NULL || memcmp(&values[i], (const double *)held->data + i, sizeof *values) != 0 ||
                           (codes != NULL && memcmp(&values[i], (const double *)codes->data + i, sizeof *values) != 0);
        values[i] = differs ? (double)NAN : values[i];
    }
}

/* The site of a parameter on a rank of a replica, and its place there; NULL if it has none. */
static const ProgramSite *find_site(const Rank *rank, int64_t replica, int64_t layer, int param, guint *ret_site, int *ret_param)
{
    for (guint s = 0; rank->replica == replica && s < rank->program->sites->len; s++) {
        const ProgramSite *site = &g_array_index(rank->program->sites, ProgramSite, s);
        *ret_param = site_param(rank, site, layer, param);
        *ret_site = s;
        if (*ret_param >= 0) {
            return site;
        }
    }
    return NULL;
}

Tensor *virtual_ranks_param(const VirtualRanks *world, VirtualPart part, int64_t replica, int64_t layer, int param)
{
    g_autoptr(Tensor) whole = NULL;
    const GraphParam *of = NULL;
    guint s;
    int i;
    for (int64_t r = 0; r < world->n_ranks; r++) {
        const Rank *rank = &world->ranks[r];
        const ProgramSite *site = find_site(rank, replica, layer, param, &s, &i);
        if (site == NULL) {
            continue;
        }
        of = param_at(site->group, (guint)i);
        if (part == VIRTUAL_GRAD && (!fsdp_has_grad(of) || rank->sites[s].grad == NULL)) {
            return NULL;
        }
        if (whole == NULL) {
            whole = tensor_new(TENSOR_F64, of->n_dims, of->dims);
        }
        add_part(whole, rank, &rank->sites[s], site, i, part);
    }
    for (int64_t r = 0; whole != NULL && part != VIRTUAL_GRAD && r < world->n_ranks; r++) {
        const ProgramSite *site = find_site(&world->ranks[r], replica, layer, param, &s, &i);
        if (site != NULL) {
            check_resident(whole, &world->ranks[r], site, i);
        }
    }
    return whole != NULL && of->split == PARAM_EXPERT ? merge_slots(world, layer, of, whole) : g_steal_pointer(&whole);
}
