/*
 * Token dispatch: sends each token's row once to every rank that has one of its experts (or to all ranks), as DeepEP,
 * HybridEP and an all-gather of tokens do; slots are made where the rows arrive.
 *
 * Class contract, as of dispatch (dispatch.h). Time: the lowering issues the exchange; what writes the rows is part of it,
 * so the class prices only the table of local slots. Values: the kernel sees the received side: in[0] the rows as they
 * arrived [ARRIVED, l], by source, then token; in[1] the table of their choices [ARRIVED, k]: the local expert slot of each,
 * -1 where it lies elsewhere or was dropped. Backward gives din[0] for the rows that arrived, which the caller sends back
 * and adds up by token.
 */
#pragma once

#include "models/op.h"

typedef struct TokenDispatchAttr {
    int64_t experts; /* slots of experts in the group */
    int64_t ep_size;
    gboolean to_all;  /* every rank gets every token */
    gboolean follows; /* more columns of rows that another token dispatch has sent: no table, no counting */
} TokenDispatchAttr;

typedef struct TokenDispatchTensors {
    int rows;  /* [ARRIVED, l] (MEM_DISPATCH) */
    int order; /* [ARRIVED, k] INT64, as a router's `order`: local slots by (expert, row, choice); -1 if it follows */
} TokenDispatchTensors;

/* Adds a token dispatch of x [TOKENS, l] with a router's `order` and `counts`. graph->ep_size > 1. */
TokenDispatchTensors token_dispatch_add(Graph *graph, const char *name, int x, int order, int counts,
                                        const TokenDispatchAttr *attr);

/* Whether an operator is a token dispatch that follows another, and whether it goes to all ranks. */
gboolean token_dispatch_follows(const Op *op);
gboolean token_dispatch_to_all(const Op *op);
