#include "workloads/run/choices.h"

struct Choices {
    const Plan *plan;
    Routing *loads; /* before any capacity, expert by expert */
    int64_t **by_layer;
    int64_t tokens; /* of a micro-batch */
};

int64_t choices_load(const Choices *choices, int64_t layer, int64_t rank, int64_t expert)
{
    const Plan *plan = choices->plan;
    int table = routing_table(choices->loads, plan_moe_layer(plan, layer));
    return routing_tokens(choices->loads, table, rank % plan->dp_shard % plan->ep, expert);
}

/* One micro-batch of a rank: [tokens][top_k]. Ranks begin at different tokens. */
static void deal(const Choices *choices, int64_t layer, int64_t rank, int64_t *ret_experts)
{
    int64_t n = choices->tokens, k = choices->plan->model->top_k, dealt = 0;
    for (int64_t e = 0; e < choices->plan->model->n_experts; e++) {
        for (int64_t i = choices_load(choices, layer, rank, e); i > 0; i--, dealt++) {
            ret_experts[(dealt + rank) % n * k + dealt / n] = e;
        }
    }
    g_assert(dealt == n * k);
}

Choices *choices_new(const Plan *plan)
{
    if (plan->routing != PLAN_ROUTING_MEASURED || plan->model->n_experts == 0) {
        return NULL;
    }
    Choices *choices = g_new0(Choices, 1);
    choices->plan = plan;
    choices->tokens = plan->seq_len * plan->micro_batch;
    RoutingSpec spec = routing_spec(plan, choices->tokens, plan->micro_batch);
    spec.capacity = (MoeCapacity){0};
    spec.measured_capacity = spec.padded = FALSE;
    spec.slots = 0;
    spec.placement = PLAN_PLACEMENT_LINEAR;
    choices->loads = routing_new(&spec, NULL);
    g_assert(choices->loads != NULL); /* the plan has been checked */
    choices->by_layer = g_new0(int64_t *, plan->model->n_layers);
    int64_t size = choices->tokens * plan->model->top_k, n_ranks = plan->dp_replicate * plan->dp_shard;
    for (int64_t layer = 0; layer < plan->model->n_layers; layer++) {
        if (plan->model->layers[layer].ffn != FFN_MOE) {
            continue;
        }
        choices->by_layer[layer] = g_new(int64_t, n_ranks * plan->n_micro_batches * size);
        for (int64_t i = 0; i < n_ranks * plan->n_micro_batches; i++) {
            deal(choices, layer, i / plan->n_micro_batches, choices->by_layer[layer] + i * size);
        }
    }
    return choices;
}

void choices_free(Choices *choices)
{
    if (choices == NULL) {
        return;
    }
    for (int64_t layer = 0; layer < choices->plan->model->n_layers; layer++) {
        g_free(choices->by_layer[layer]);
    }
    g_free(choices->by_layer);
    routing_free(choices->loads);
    g_free(choices);
}

const int64_t *const *choices_by_layer(const Choices *choices)
{
    return choices != NULL ? (const int64_t *const *)choices->by_layer : NULL;
}
