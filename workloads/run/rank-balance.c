/*
 * Loss-free balancing in values: the rows that each expert got in the step, on all ranks, move the selection biases. Rules that
 * need scores stand for the sign rule here (workloads/run/shrink.h).
 */
#include <string.h>

#include "models/balance.h"
#include "workloads/run/rank.h"

/* The step's loads of all MoE layers, one behind the other. */
static gboolean stack_loads(const RankAt *at, GError **error)
{
    const Plan *plan = at->rank->world->plan;
    int64_t experts = plan->model->n_experts, n = 0;
    Tensor *table = tensor_new_2d(TENSOR_I64, 1, plan_n_moe_layers(plan) * experts);
    for (int64_t l = 0; l < plan->model->n_layers; l++) {
        if (plan->model->layers[l].ffn == FFN_MOE) {
            memcpy((int64_t *)table->data + n, rank_layer_routing(at->rank, l)->loads, (size_t)experts * sizeof(int64_t));
            n += experts;
        }
    }
    return rank_write(at, rank_operand(at, 0), table, DTYPE_INT64, error);
}

/* How far one step of the rule moves the biases. */
static gboolean move_biases(const RankAt *at, GError **error)
{
    const VirtualRanks *world = at->rank->world;
    const Plan *plan = world->plan;
    int64_t experts = plan->model->n_experts, n = plan_n_moe_layers(plan) * experts, all = plan->model->top_k * world->n_tokens;
    gboolean dropless = plan->moe.capacity.factor <= 0 && plan->moe.drop_target < 0 && !plan->moe.pad;
    const Tensor *table = rank_read_as(at, rank_operand(at, 0), TENSOR_I64, n, error);
    if (table == NULL) {
        return FALSE;
    }
    g_free(at->rank->biases);
    at->rank->biases = g_new0(double, n);
    for (int64_t first = 0; first < n; first += experts) {
        const int64_t *counts = (const int64_t *)table->data + first;
        int64_t sum = 0;
        for (int64_t e = 0; e < experts; e++) {
            sum += counts[e];
        }
        if (dropless ? sum != all : sum > all) {
            return rank_fail(at, error, "%" G_GINT64_FORMAT " rows are counted, all ranks made %" G_GINT64_FORMAT, sum, all);
        }
        balance_sign(counts, experts, plan->moe.balance_rate, at->rank->biases + first);
    }
    return TRUE;
}

gboolean rank_balance(const RankAt *at, GError **error)
{
    return at->instr->action == VALUE_LOADS ? stack_loads(at, error) : move_biases(at, error);
}
