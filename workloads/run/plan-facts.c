#include "workloads/run/plan-facts.h"

/* Copies of an expert train as one. */
static int64_t trainable_numel(const Plan *plan, const Graph *graph)
{
    int64_t sum = 0;
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        int64_t numel = graph_param_numel(param);
        numel = param->split == PARAM_EXPERT ? numel / param->dims[0] * plan->model->n_experts : numel;
        sum += param->trainable ? numel : 0;
    }
    return sum;
}

static int64_t local_numel(const Plan *plan, const Graph *graph)
{
    int64_t sum = 0;
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        int64_t numel = graph_param_numel(param);
        sum += param->split == PARAM_EXPERT ? numel / plan->ep : numel;
    }
    return sum;
}

static int64_t model_trainable_numel(const Plan *plan, const ModelGraph *graphs)
{
    int64_t sum = trainable_numel(plan, graphs->embedding) + trainable_numel(plan, graphs->head);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        sum += trainable_numel(plan, g_ptr_array_index(graphs->kinds, graphs->layer_kind[i]));
    }
    return sum;
}

void plan_facts(const Plan *plan, const ModelGraph *graphs, PlanFacts *ret_facts)
{
    model_graph_flops(graphs, plan->model, plan->seq_len, &ret_facts->flops);
    param_counts(plan->model, &ret_facts->counts);
    ret_facts->trainable = model_trainable_numel(plan, graphs);
    ret_facts->per_rank = local_numel(plan, graphs->embedding) + local_numel(plan, graphs->head);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        ret_facts->per_rank += local_numel(plan, g_ptr_array_index(graphs->kinds, graphs->layer_kind[i]));
    }
}
