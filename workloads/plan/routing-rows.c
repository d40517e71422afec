/* Rows of a pass, as the operators of a graph ask for them. */
#include "workloads/plan/routing.h"

/* Rows of the chunks, even or by the routing. */
static void count_chunks(const Plan *plan, const Routing *routing, int64_t moe_layer, int64_t ep_rank, RowCounts *counts)
{
    row_counts_cut(counts, plan->moe.overlap_chunks);
    for (int64_t c = 0; c < plan->moe.overlap_chunks; c++) {
        int chunk = (int)c + 1;
        ArrivalSpec arrival = arrivals_spec(plan);
        arrival.tokens = counts->rows[row_space_of_chunk(ROWS_TOKENS, chunk)];
        int64_t slots = arrival.tokens * plan->model->top_k;
        RoutingRows rows = {.n_received = slots, .n_sent = slots, .n_arrived = plan->ep * arrivals_expected(&arrival, slots / plan->ep, plan->ep)};
        if (routing != NULL && moe_layer >= 0) {
            routing_chunk_rows(routing, routing_table(routing, moe_layer), ep_rank, c, &rows);
            counts->chunk_expert_rows = c == 0 ? rows.local_expert_rows : counts->chunk_expert_rows;
        }
        counts->rows[row_space_of_chunk(ROWS_SLOTS, chunk)] = rows.n_sent;
        counts->rows[row_space_of_chunk(ROWS_RECEIVED, chunk)] = rows.n_received;
        counts->rows[row_space_of_chunk(ROWS_ARRIVED, chunk)] = rows.n_arrived;
    }
}

RowCounts routing_row_counts(const Plan *plan, const Routing *routing, int64_t moe_layer, int64_t ep_rank)
{
    const Model *model = plan->model;
    int64_t tokens = plan->seq_len * plan->micro_batch;
    RowCounts counts = {.seq_len = plan->seq_len, .source = ep_rank};
    counts.rows[ROWS_ONE] = 1;
    counts.rows[ROWS_TOKENS] = tokens;
    counts.rows[ROWS_SLOTS] = counts.rows[ROWS_RECEIVED] = tokens * model->top_k;
    ArrivalSpec arrival = arrivals_spec(plan);
    counts.rows[ROWS_ARRIVED] = plan->ep * arrivals_expected(&arrival, tokens * model->top_k / plan->ep, plan->ep);
    counts.rows[ROWS_EXPERTS] = plan_expert_slots(plan);
    counts.rows[ROWS_LOCAL_EXPERTS] = plan_expert_slots(plan) / plan->ep;
    counts.rows[ROWS_PAIRS] = tokens * plan->seq_len;
    counts.rows[ROWS_SEQUENCES] = plan->micro_batch;
    if (routing != NULL && moe_layer >= 0) {
        RoutingRows rows;
        routing_rows(routing, routing_table(routing, moe_layer), ep_rank, &rows);
        counts.local_expert_rows = rows.local_expert_rows;
        counts.rows[ROWS_RECEIVED] = rows.n_received;
        counts.rows[ROWS_ARRIVED] = rows.n_arrived;
        counts.rows[ROWS_SLOTS] = rows.n_sent;
        counts.capacity = rows.capacity;
        counts.placement = rows.placement;
    }
    if (plan->moe.overlap_chunks > 1) {
        count_chunks(plan, routing, moe_layer, ep_rank, &counts);
    }
    return counts;
}
