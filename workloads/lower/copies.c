#include "workloads/lower/copies.h"

#include <string.h>

CollPrice copies_exchange_price(const Plan *plan, const int64_t *bytes, int64_t self)
{
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    CollExchange exchange = {0};
    for (int64_t peer = 0; peer < plan->ep; peer++) {
        gboolean is_near = peer / group.per_domain == self / group.per_domain;
        exchange.domain_bytes += is_near && peer != self ? bytes[peer] : 0;
        exchange.outside_bytes += is_near ? 0 : bytes[peer];
    }
    return coll_exchange_price(plan->cluster, &group, &exchange);
}

int64_t copies_slot_bytes(const Plan *plan, const ModelGraph *graphs)
{
    int64_t slots = plan_expert_slots(plan) / plan->ep, most = 0;
    for (guint k = 0; k < graphs->kinds->len; k++) {
        const Graph *graph = g_ptr_array_index(graphs->kinds, k);
        int64_t sum = 0;
        for (guint i = 0; i < graph->params->len; i++) {
            const GraphParam *param = graph_param(graph, (int)i);
            if (param->split == PARAM_EXPERT && param->role != PARAM_BUFFER) {
                OptimPiece piece = lowering_optim_piece(plan, param);
                sum += dtype_bytes(plan->parameters, piece.numel);
                sum += fsdp_has_grad(param) ? optim_class(plan->optimizer == PLAN_MUON ? OPTIM_muon : OPTIM_adamw)->state_bytes(&piece, plan->moments) : 0;
            }
        }
        most = MAX(most, sum / slots);
    }
    return most;
}

/*
 * Bytes that a rank sends to each peer when the copies of its slots are summed: an all-reduce among m holders sends
 * 2 (m - 1) / m of a slot, evenly to the others. Returns their sum.
 */
static int64_t rank_bytes(const Plan *plan, const Placement *placement, int64_t rank, int64_t slot_bytes, int64_t *ret_bytes)
{
    int64_t local = placement->slots / plan->ep, sum = 0;
    memset(ret_bytes, 0, (size_t)plan->ep * sizeof *ret_bytes);
    for (int64_t slot = rank * local; slot < (rank + 1) * local; slot++) {
        int64_t expert = placement->expert[slot], copies = placement_copies(placement, expert);
        for (int64_t c = 0; c < copies; c++) {
            int64_t peer = placement->slot[placement->first[expert] + c] / local;
            ret_bytes[peer] += peer != rank ? 2 * slot_bytes / copies : 0;
        }
    }
    for (int64_t peer = 0; peer < plan->ep; peer++) {
        sum += ret_bytes[peer];
    }
    return sum;
}

/* What the busiest rank takes, and what this class's rank sends. */
static CollPrice sum_price(const Lowering *lowering, const Placement *placement, int64_t slot_bytes, int64_t *ret_bytes)
{
    const Plan *plan = lowering->plan;
    g_autofree int64_t *bytes = g_new0(int64_t, plan->ep);
    CollPrice longest = {.evidence = EVIDENCE_ASSUMED};
    for (int64_t rank = 0; rank < plan->ep; rank++) {
        int64_t sum = rank_bytes(plan, placement, rank, slot_bytes, bytes);
        CollPrice price = sum > 0 ? copies_exchange_price(plan, bytes, rank) : (CollPrice){0};
        longest = price.ns > longest.ns ? price : longest;
        gboolean is_meant = lowering->ep_rank == LOWER_HOTTEST ? longest.ns == price.ns : rank == lowering->ep_rank;
        *ret_bytes = is_meant ? sum : *ret_bytes;
    }
    return longest;
}

void copies_reduce(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    Emitter *emitter = &lowering->emitter;
    if (plan->moe.redundant_experts == 0 || lowering->routing == NULL) {
        return;
    }
    for (int64_t layer = 0; layer < lowering->graphs->n_layers; layer++) {
        const GroupSite *site = &lowering->experts[layer];
        RowCounts rows = routing_row_counts(plan, lowering->routing, plan_moe_layer(plan, layer), MAX(lowering->ep_rank, 0));
        if (rows.placement == NULL || site->group == NULL || site->group->n_trainable == 0) {
            continue;
        }
        int64_t slots = plan_expert_slots(plan) / plan->ep, bytes = 0;
        int64_t slot_bytes = dtype_bytes(plan->parameters, site->group->trainable_shard_numel) / slots;
        CollPrice price = sum_price(lowering, rows.placement, slot_bytes, &bytes);
        lowering_call_group(lowering_add_call(lowering, lowering_start_segment(lowering, NULL, "copies of experts summed", NULL),
                                              layer, 0),
                            ARG_GROUP, site);
        emit_collective(emitter, STREAM_REDUCE, COLL_all_reduce, GROUP_DENSE, bytes, &price)->action = VALUE_SUM_COPIES;
        emit_operand(emitter, (Place){ARG_GROUP, FSDP_GRAD});
    }
    int segment = lowering_start_segment(lowering, NULL, "copies of experts equal", NULL);
    fsdp_finish(emitter);
    emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_REDUCED});
    lowering_add_call(lowering, segment, -1, 0);
}
