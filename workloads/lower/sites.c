#include "workloads/lower/deal.h"
#include "workloads/lower/hottest.h"
#include "workloads/lower/lowering.h"
#include "workloads/lower/walk.h"
#include "workloads/lower/whole.h"

gint32 lowering_take_buffers(Lowering *lowering, int n)
{
    gint32 first = lowering->program->n_buffers;
    lowering->program->n_buffers += n;
    return first;
}

static gint32 take_token(Lowering *lowering)
{
    return lowering->program->n_tokens++;
}

const Graph *lowering_layer_graph(const Lowering *lowering, int64_t layer)
{
    return g_ptr_array_index(lowering->graphs->kinds, lowering->graphs->layer_kind[layer]);
}

static FsdpGroup *new_geometry(Lowering *lowering, GroupKind mesh)
{
    FsdpGroup *group = fsdp_group_new(lowering->plan, mesh);
    g_ptr_array_add(lowering->program->groups, group);
    return group;
}

static GroupSite group_site(Lowering *lowering, FsdpGroup *group, gint32 kind, gint32 layer)
{
    GroupSite site = {.kind = kind, .buffer = -1, .token = -1};
    if (group->params->len > 0) {
        site.group = group;
        site.buffer = lowering_take_buffers(lowering, fsdp_group_buffers(group));
        site.token = take_token(lowering);
        ProgramSite listed = {group, site.buffer, layer};
        g_array_append_val(lowering->program->sites, listed);
    }
    return site;
}

static gboolean is_head_param(const GraphParam *param)
{
    return param->role == PARAM_HEAD;
}

static gboolean is_no_head_param(const GraphParam *param)
{
    return param->role != PARAM_HEAD;
}

enum { N_END_GROUPS = 2 }; /* of program->groups: the root's and the head's */

/* Embedding, final norm, and the head unless it is a group of its own. */
static void place_ends(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    const ModelGraph *graphs = lowering->graphs;
    gboolean own_head = plan->seq_chunk == 0;
    FsdpGroup *root = new_geometry(lowering, GROUP_DENSE), *head = new_geometry(lowering, GROUP_DENSE);
    fsdp_group_add(root, plan, graphs->embedding, PARAM_DENSE, NULL);
    fsdp_group_add(root, plan, graphs->head, PARAM_DENSE, own_head ? is_no_head_param : NULL);
    if (own_head) {
        fsdp_group_add(head, plan, graphs->head, PARAM_DENSE, is_head_param);
    }
    fsdp_group_price(root, plan);
    fsdp_group_price(head, plan);
    lowering->root = group_site(lowering, root, -2, -1);
    lowering->head = group_site(lowering, head, -3, -1);
}

/*
 * What copy-ins cost the host, once all tables are known. The largest is asked for among those that do not depend on how the
 * loss is cut, as segments of layers must not: the layers' own, and that of the ends without the head.
 */
static void price_copy_ins(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    GPtrArray *groups = lowering->program->groups;
    FsdpGroup *ends = fsdp_group_new(plan, GROUP_DENSE);
    fsdp_group_add(ends, plan, lowering->graphs->embedding, PARAM_DENSE, NULL);
    fsdp_group_add(ends, plan, lowering->graphs->head, PARAM_DENSE, is_no_head_param);
    int64_t largest = ends->copy_in.capacity_bytes;
    fsdp_group_free(ends);
    for (guint i = N_END_GROUPS; i < groups->len; i++) {
        largest = MAX(largest, ((const FsdpGroup *)g_ptr_array_index(groups, i))->copy_in.capacity_bytes);
    }
    for (guint i = 0; i < groups->len; i++) {
        FsdpGroup *group = g_ptr_array_index(groups, i);
        int64_t fresh = plan->host_keeps_pages ? 0 : copy_in_fresh_bytes(&group->copy_in, largest);
        group->copy_in_ns = copy_in_host_ns(plan->cluster->device, &group->copy_in, fresh);
        group->fresh_ns = group->copy_in_ns - copy_in_host_ns(plan->cluster->device, &group->copy_in, 0);
    }
}

static void place_layers(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    guint n_kinds = lowering->graphs->kinds->len;
    g_autofree FsdpGroup **dense = g_new0(FsdpGroup *, n_kinds);
    g_autofree FsdpGroup **experts = g_new0(FsdpGroup *, n_kinds);
    for (guint k = 0; k < n_kinds; k++) {
        const Graph *graph = g_ptr_array_index(lowering->graphs->kinds, k);
        dense[k] = new_geometry(lowering, GROUP_DENSE);
        experts[k] = new_geometry(lowering, GROUP_EXPERT);
        fsdp_group_add(dense[k], plan, graph, PARAM_DENSE, NULL);
        fsdp_group_add(plan->ep > 1 ? experts[k] : dense[k], plan, graph, PARAM_EXPERT, NULL);
        fsdp_group_price(dense[k], plan);
        fsdp_group_price(experts[k], plan);
    }
    lowering->layers = g_new0(GroupSite, lowering->graphs->n_layers);
    lowering->experts = g_new0(GroupSite, lowering->graphs->n_layers);
    for (int64_t i = 0; i < lowering->graphs->n_layers; i++) {
        int k = lowering->graphs->layer_kind[i];
        lowering->layers[i] = group_site(lowering, dense[k], 2 * k, (gint32)i);
        lowering->experts[i] = group_site(lowering, experts[k], 2 * k + 1, (gint32)i);
    }
}

/* Rank of the expert-parallel group whose rows a MoE layer has. hottest[table]: 1 + those found so far. */
static int64_t layer_rank(const Lowering *lowering, int64_t layer, int64_t moe_layer, int64_t *hottest)
{
    if (lowering->routing == NULL || lowering->ep_rank != LOWER_HOTTEST) {
        return MAX(lowering->ep_rank, 0);
    }
    int64_t *known = &hottest[routing_table(lowering->routing, moe_layer)];
    if (*known == 0) {
        const Graph *graph = lowering_layer_graph(lowering, layer);
        *known = 1 + hottest_rank(lowering->plan, graph, lowering->routing, moe_layer, lowering->emitter.prices).rank;
    }
    return *known - 1;
}

static void count_rows(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    const Model *model = plan->model;
    lowering->rows = g_new0(RowCounts, model->n_layers);
    int64_t n_chunks = plan->moe.overlap_chunks;
    lowering->exchanges = g_new0(AllToAll, model->n_layers * n_chunks);
    lowering->loads = g_new0(gint32, model->n_layers);
    int64_t moe_layer = 0;
    g_autofree int64_t *hottest = g_new0(int64_t, lowering->routing != NULL ? routing_n_tables(lowering->routing) : 1);
    int64_t last_moe = -1;
    for (int64_t i = 0; i < model->n_layers; i++) {
        gboolean is_moe = model->layers[i].ffn == FFN_MOE;
        lowering->rows[i] =
            routing_row_counts(plan, lowering->routing, is_moe ? moe_layer : -1, is_moe ? layer_rank(lowering, i, moe_layer, hottest) : 0);
        if (!is_moe) {
            continue;
        }
        if (lowering->routing != NULL) {
            lowering->loads[i] = routing_table(lowering->routing, moe_layer);
        }
        if (plan->ep > 1) {
            /* without loads all MoE layers exchange alike */
            gboolean is_alike = lowering->routing == NULL && last_moe >= 0;
            for (int64_t c = 0; c < n_chunks; c++) {
                lowering->exchanges[i * n_chunks + c] = is_alike ? lowering->exchanges[last_moe * n_chunks + c]
                                                                 : lowering_price_exchange(lowering, lowering->loads[i], c);
            }
            last_moe = i;
        }
        moe_layer++;
    }
}

const AllToAll *lowering_layer_exchanges(const Lowering *lowering, int64_t layer)
{
    return &lowering->exchanges[layer * lowering->plan->moe.overlap_chunks];
}

void lowering_take_losses(Lowering *lowering)
{
    lowering->losses = lowering_take_buffers(lowering, (int)head_n_chunks(lowering) * N_BOUNDARY);
}

static StepSide take_side(Lowering *lowering)
{
    const ModelGraph *graphs = lowering->graphs;
    StepSide side = {.frames = g_new0(gint32, graphs->n_layers)};
    side.boundary = lowering_take_buffers(lowering, (int)(graphs->n_layers + 1) * N_BOUNDARY);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        const Graph *graph = lowering_layer_graph(lowering, i);
        side.frames[i] = lowering_take_buffers(lowering, layer_frame_buffers(graph) + (lowering->retention->has_ddr ? layer_tier_buffers(graph) : 0));
    }
    side.embedding_frame = lowering_take_buffers(lowering, layer_frame_buffers(graphs->embedding));
    return side;
}

void lowering_place_groups(Lowering *lowering)
{
    place_ends(lowering);
    place_layers(lowering);
}

void lowering_start(Lowering *lowering, gint32 *head_frame)
{
    const ModelGraph *graphs = lowering->graphs;
    lowering->program->n_tokens = N_GLOBAL_TOKENS;
    lowering->inputs = lowering->program->inputs = lowering_take_buffers(lowering, 1);
    lowering_place_groups(lowering);
    price_copy_ins(lowering);
    count_rows(lowering);
    lowering->swap_tokens = g_new0(gint32, graphs->n_layers);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        gboolean tiered = lowering->retention->has_ddr;
        lowering->swap_tokens[i] = tiered ? lowering->program->n_tokens : -1;
        lowering->program->n_tokens += tiered ? 2 * graph_n_ops(lowering_layer_graph(lowering, i)) : 0;
    }
    lowering->sides[0] = lowering->sides[1] = take_side(lowering);
    if (lowering->plan->moe.overlap_micro_batches) {
        lowering->sides[1] = take_side(lowering);
    }
    lowering->balance_table = lowering_take_buffers(lowering, 1);
    lowering->whole_stages = lowering_take_buffers(lowering, N_WHOLE_STAGES * N_WHOLE_BUFFERS);
    lowering->dealt = lowering_take_buffers(lowering, lowering->plan->layer_wise ? 1 : 0);
    lowering->chunk_sums = lowering_take_buffers(lowering, CHUNK_PARAMS + 2 * (int)graphs->head->params->len);
    *head_frame = lowering_take_buffers(lowering, layer_frame_buffers(graphs->head));
    lowering_take_losses(lowering);
}

void lowering_each_group(Lowering *lowering, void (*visit)(Lowering *lowering, const GroupSite *site, void *data), void *data)
{
    visit(lowering, &lowering->root, data);
    for (int64_t i = 0; i < lowering->graphs->n_layers; i++) {
        visit(lowering, &lowering->layers[i], data);
        if (lowering->experts[i].group != NULL) {
            visit(lowering, &lowering->experts[i], data);
        }
    }
    if (lowering->head.group != NULL) {
        visit(lowering, &lowering->head, data);
    }
}

gboolean lowering_grad_fp32(const Plan *plan)
{
    return plan->sharding != PLAN_SHARDING_FSDP && plan->reduce == DTYPE_FP32;
}

OptimPiece lowering_optim_piece(const Plan *plan, const GraphParam *param)
{
    return (OptimPiece){.numel = fsdp_shard_numel(plan, param), .by_matrix = whole_takes(plan, param), .param = plan->parameters,
                        .has_master = plan->master_weights, .grad_fp32 = lowering_grad_fp32(plan)};
}

/* What n groups of a geometry hold. */
static void add_static(Lowering *lowering, const FsdpGroup *group, int64_t n)
{
    const Plan *plan = lowering->plan;
    int64_t *bytes = lowering->program->static_bytes;
    int64_t *states = plan->optimizer_offload ? &lowering->program->host_static_bytes : &bytes[MEM_OPTIMIZER];
    bytes[MEM_PARAMETERS] += group->resident ? 0 : n * dtype_bytes(plan->parameters, group->shard_numel);
    bytes[MEM_GRADIENTS] += group->resident ? n * dtype_bytes(plan->reduce, group->trainable_padded_numel) : 0;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        bytes[MEM_PARAMETERS] += group->resident ? n * (fsdp_whole_bytes(plan, entry) + fsdp_code_bytes(plan, entry)) : 0;
        if (fsdp_has_grad(param) && !plan->layer_wise) {
            OptimPiece piece = lowering_optim_piece(plan, param);
            *states += n * optim_class(plan->optimizer == PLAN_MUON ? OPTIM_muon : OPTIM_adamw)->state_bytes(&piece, plan->moments);
        }
    }
}

/* Selection biases, and the counts of a step's micro-batches that a balancing loss needs. */
static void add_buffers(int64_t *ret_bytes, const Graph *graph)
{
    for (int o = 0; o < graph_n_ops(graph); o++) {
        const RowCounts one = {.rows = {[ROWS_ONE] = 1}};
        *ret_bytes += walk_is_summed(graph, o) ? graph_tensor_bytes(graph_tensor(graph, graph_op(graph, o)->outputs[0]), &one) : 0;
    }
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (param->role == PARAM_BUFFER) {
            *ret_bytes += dtype_bytes(DTYPE_FP32, graph_param_numel(param));
        }
    }
}

void lowering_count_static(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    int64_t *bytes = lowering->program->static_bytes;
    const GPtrArray *groups = lowering->program->groups, *kinds = lowering->graphs->kinds;
    for (guint g = 0; g < groups->len; g++) {
        const FsdpGroup *group = g_ptr_array_index(groups, g);
        int64_t n = 0;
        for (guint s = 0; s < lowering->program->sites->len; s++) {
            n += g_array_index(lowering->program->sites, ProgramSite, s).group == group;
        }
        add_static(lowering, group, n);
    }
    deal_count_states(lowering->program, plan);
    for (guint k = 0; k < kinds->len; k++) {
        int64_t n_bytes = 0;
        add_buffers(&n_bytes, g_ptr_array_index(kinds, k));
        bytes[MEM_PARAMETERS] += model_graph_n_layers(lowering->graphs, (int)k) * n_bytes;
    }
    bytes[MEM_PARAMETERS] += plan_balance_static_bytes(plan);
    /* library workspace, and token ids and labels as 64-bit integers */
    bytes[MEM_WORKSPACE] = plan->cluster->device->workspace_bytes + plan->seq_len * plan->micro_batch * 2 * 8;
}
