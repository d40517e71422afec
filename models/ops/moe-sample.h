/*
 * A router in front of the samples of the operators that need its tables.
 */
#pragma once

#include "models/ops/router.h"

typedef struct MoeSample {
    int64_t tokens, hidden, experts, top_k;
    double capacity_factor; /* 0 = nothing is dropped */
    gboolean padded;        /* every expert has as many slots as its capacity */
} MoeSample;

/* Adds a token input and a router over it; *ret_x is the input. Fills the rows, those of the slots if none is dropped.
 */
static inline RouterTensors moe_sample_add(Graph *graph, RowCounts *rows, const MoeSample *sample, int *ret_x)
{
    RouterAttr attr = {.experts = sample->experts,
                       .top_k = sample->top_k,
                       .score = ROUTER_SIGMOID,
                       .renorm = TRUE,
                       .scaling = 1,
                       .capacity = {.factor = sample->capacity_factor},
                       .padded = sample->padded,
                       .drop = MOE_DROP_POSITION};
    rows->rows[ROWS_TOKENS] = sample->tokens;
    rows->rows[ROWS_SEQUENCES] = 1;
    rows->seq_len = sample->tokens;
    rows->rows[ROWS_EXPERTS] = sample->experts;
    rows->rows[ROWS_LOCAL_EXPERTS] = sample->experts / graph->ep_size;
    rows->rows[ROWS_SLOTS] = sample->tokens * sample->top_k;
    rows->rows[ROWS_RECEIVED] = sample->tokens * sample->top_k;
    if (sample->padded) {
        const MoeShape shape = {sample->tokens, sample->top_k, sample->experts};
        rows->rows[ROWS_SLOTS] = rows->rows[ROWS_RECEIVED] = sample->experts * moe_capacity_rows(&attr.capacity, &shape);
    }
    *ret_x = graph_add_input(graph, "x", ROWS_TOKENS, sample->hidden, graph->compute, TRUE);
    return router_add(graph, "gate", *ret_x, &attr);
}
