/*
 * Arrivals: tokens that reach a rank, or a node, of an expert-parallel group when each travels there once, whatever number
 * of its experts lie there.
 *
 * A split matrix says how many choices go where, not how many of them are of one token. Choices of a token are taken
 * without replacement, each as likely to lie in a part as the rows that go there say; exact for even loads. Routers that
 * limit a token to a few groups of experts, or hand out experts in turn, crowd its choices: by as much as for even loads
 * (models/moe-spread.h).
 */
#pragma once

#include "workloads/plan/plan.h"

typedef struct ArrivalSpec {
    int64_t tokens; /* of one source */
    int64_t top_k, experts;
    int64_t groups, topk_groups; /* that the router opens to a token */
    gboolean consecutive;        /* tokens get experts in turn */
    gboolean to_all;             /* every token goes everywhere */
} ArrivalSpec;

ArrivalSpec arrivals_spec(const Plan *plan);

/*
 * Tokens of one source that reach a part of the group (one of n_parts equal runs of ranks) to which `rows` of its choices
 * go: at least the rows over top_k, at most the rows and the tokens.
 */
int64_t arrivals_expected(const ArrivalSpec *spec, int64_t rows, int64_t n_parts);
