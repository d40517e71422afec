#include "workloads/plan/arrivals.h"

#include <math.h>

#include "models/moe-spread.h"

ArrivalSpec arrivals_spec(const Plan *plan)
{
    const Model *model = plan->model;
    return (ArrivalSpec){.tokens = plan->seq_len * plan->micro_batch,
                         .top_k = model->top_k,
                         .experts = model->n_experts,
                         .groups = model->router_groups,
                         .topk_groups = model->router_topk_groups,
                         .consecutive = plan->routing == PLAN_ROUTING_CONSECUTIVE,
                         .to_all = plan->moe.dispatch == PLAN_DISPATCH_ALL_GATHER};
}

/* How much fewer parts a token reaches because its experts are neighbours: for even loads. */
static double crowding(const ArrivalSpec *spec, int64_t n_parts)
{
    MoeSpread limited = {spec->experts, spec->top_k, spec->groups, spec->topk_groups, spec->consecutive};
    MoeSpread open = {.experts = spec->experts, .top_k = spec->top_k};
    gboolean divides = spec->groups > 1 && spec->experts % n_parts == 0 && spec->experts % spec->groups == 0 &&
                       (spec->groups % n_parts == 0 || n_parts % spec->groups == 0);
    if (spec->consecutive ? spec->experts % n_parts != 0 : !divides || spec->topk_groups >= spec->groups) {
        return 1.0;
    }
    return moe_spread_parts(&limited, n_parts) / moe_spread_parts(&open, n_parts);
}

int64_t arrivals_expected(const ArrivalSpec *spec, int64_t rows, int64_t n_parts)
{
    if (spec->to_all || spec->tokens == 0 || spec->top_k == 0) {
        return spec->tokens;
    }
    double k = (double)spec->top_k, experts = (double)spec->experts, missed = 1.0;
    double share = (double)rows / (double)spec->tokens; /* choices of a token that lie there */
    for (int64_t j = 0; j < spec->top_k; j++) {
        missed *= fmax(0.0, 1.0 - share / k * experts / (experts - (double)j));
    }
    double reached = (double)spec->tokens * (1.0 - missed) * crowding(spec, n_parts);
    int64_t least = quantity_div_up(rows, spec->top_k), most = MIN(rows, spec->tokens);
    return CLAMP((int64_t)floor(reached + 0.5), least, MAX(most, least));
}
