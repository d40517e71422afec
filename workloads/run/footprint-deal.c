/*
 * The optimizer's part of the footprint where whole tensors are dealt to ranks: states of the fullest rank, and what a step holds.
 */
#include <stdlib.h>

#include "models/optim.h"
#include "sim/base/quantity.h"
#include "workloads/run/footprint-pass.h"

/* A trained tensor of one rank before the deal. */
typedef struct Dealt {
    int64_t numel, states; /* elements; bytes of optimizer state */
    int64_t work;          /* Muon: elements that its orthogonalisation takes besides; 0 = AdamW's */
    double flops;
    guint nth;
} Dealt;

static void add_param(const Plan *plan, const GraphParam *param, GArray *tensors)
{
    gboolean is_expert = param->split == PARAM_EXPERT, stack = param->n_dims == 3;
    int64_t local = param->dims[0] / (is_expert ? plan->ep : 1), n = is_expert || stack ? local : 1;
    int64_t numel = local * MAX(param->dims[1], 1) * MAX(param->dims[2], 1) / n;
    if (param->role == PARAM_BUFFER || !param->trainable || param->op < 0) {
        return;
    }
    Dealt tensor = {.numel = numel, .states = footprint_tensor_state_bytes(plan, param, numel)};
    if (footprint_is_muons(plan, param)) {
        int64_t heads = stack || !plan->muon_per_head ? 1 : param->heads, cols = param->dims[stack ? 2 : 1];
        int64_t rows = numel / cols / heads, m = MIN(rows, cols);
        tensor.work = heads * (rows * cols + 2 * m * m);
        tensor.flops = (double)heads * (4.0 * (double)m * (double)m * (double)MAX(rows, cols) + 2.0 * (double)m * (double)m * (double)m);
    }
    for (int64_t i = 0; i < n; i++) {
        tensor.nth = tensors->len;
        g_array_append_val(tensors, tensor);
    }
}

/* Dense parameters of a graph, or its experts'; head: of the head's matrix alone, of all but it, or (-1) all. */
static void add_graph(const Plan *plan, const Graph *graph, ParamSplit split, int head, GArray *tensors)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (param->split == split && (head < 0 || head == (param->role == PARAM_HEAD))) {
            add_param(plan, param, tensors);
        }
    }
}

static int by_size(const void *a, const void *b)
{
    const Dealt *x = a, *y = b;
    return x->numel != y->numel ? (x->numel < y->numel ? -1 : 1) : x->nth < y->nth ? -1 : 1;
}

/* Those of one mesh, in the order of the deal. */
static GArray *tensors_of(const Plan *plan, const ModelGraph *graphs, gboolean expert)
{
    GArray *all = g_array_new(FALSE, TRUE, sizeof(Dealt));
    gboolean own_head = plan->seq_chunk == 0;
    if (!expert) {
        add_graph(plan, graphs->embedding, PARAM_DENSE, -1, all);
        add_graph(plan, graphs->head, PARAM_DENSE, own_head ? FALSE : -1, all);
    }
    if (!expert && own_head) {
        add_graph(plan, graphs->head, PARAM_DENSE, TRUE, all);
    }
    for (int64_t l = 0; l < graphs->n_layers; l++) {
        if (!expert) {
            add_graph(plan, model_graph_layer(graphs, l), PARAM_DENSE, -1, all);
        }
        if (expert == (plan->ep > 1)) {
            add_graph(plan, model_graph_layer(graphs, l), PARAM_EXPERT, -1, all);
        }
    }
    g_array_sort(all, by_size);
    return all;
}

/* States of each of n ranks; caller frees. */
static int64_t *states_of(const GArray *tensors, int64_t n)
{
    int64_t *bytes = g_new0(int64_t, n);
    for (guint i = 0; i < tensors->len; i++) {
        int64_t at = i % (2 * n);
        bytes[at < n ? at : 2 * n - 1 - at] += g_array_index(tensors, Dealt, i).states;
    }
    return bytes;
}

int64_t footprint_deal_state_bytes(const Plan *plan, const ModelGraph *graphs)
{
    int64_t most = 0, n = plan->dp_shard * plan->cp;
    g_autoptr(GArray) dense = tensors_of(plan, graphs, FALSE), experts = tensors_of(plan, graphs, TRUE);
    g_autofree int64_t *of_dense = states_of(dense, n), *of_experts = states_of(experts, plan->efsdp);
    for (int64_t r = 0; r < n; r++) {
        most = MAX(most, of_dense[r] + of_experts[r / plan->ep]);
    }
    return most;
}

static int64_t two_bytes(int64_t numel)
{
    return pass_round(2 * numel);
}

void footprint_deal_rounds(const Plan *plan, const ModelGraph *graphs, GArray *rounds)
{
    for (int experts = 0; experts < 2; experts++) {
        g_autoptr(GArray) tensors = tensors_of(plan, graphs, experts);
        int64_t n = experts ? plan->efsdp : plan->dp_shard * plan->cp;
        for (guint at = 0; at < tensors->len; at += (guint)n) {
            int64_t largest = 0;
            const Dealt *costliest = NULL;
            for (guint k = at; k < MIN(at + (guint)n, tensors->len); k++) {
                const Dealt *tensor = &g_array_index(tensors, Dealt, k);
                largest = tensor->work > 0 ? MAX(largest, tensor->numel) : largest;
                costliest = tensor->work > 0 && (costliest == NULL || tensor->flops > costliest->flops) ? tensor : costliest;
            }
            FootprintRound round = {.slices = two_bytes(largest), .work = costliest != NULL ? two_bytes(costliest->work) : 0};
            if (costliest != NULL) {
                g_array_append_val(rounds, round);
            }
        }
    }
}

int64_t footprint_deal_gather(const Plan *plan, const ModelGraph *graphs)
{
    int64_t most = 0;
    for (int experts = 0; experts < 2; experts++) {
        g_autoptr(GArray) tensors = tensors_of(plan, graphs, experts);
        int64_t numel = 0;
        for (guint i = 0; i < tensors->len; i++) {
            numel += g_array_index(tensors, Dealt, i).numel;
        }
        if ((experts ? plan->efsdp : plan->dp_shard * plan->cp) > 1) {
            most = MAX(most, pass_round(dtype_bytes(plan->compute, numel)));
        }
    }
    return most;
}
