#include "workloads/lower/hottest.h"

#include <stdlib.h>

/* A rank by what its kernels grow with: of each chunk of tokens what it sends, what arrives, and the rows of its slots, falling. */
typedef struct RankLoad {
    int64_t rank, n_received;
    int64_t *sizes;
} RankLoad;

static int by_falling(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_received(const void *a, const void *b)
{
    const RankLoad *x = a, *y = b;
    if (x->n_received != y->n_received) {
        return x->n_received < y->n_received ? 1 : -1;
    }
    return x->rank < y->rank ? -1 : 1;
}

/* No kernel of b takes longer than a's: a sends and gets as much, and has as many rows in its busiest slot, in the next one, … */
static gboolean exceeds(const RankLoad *a, const RankLoad *b, int64_t n_sizes)
{
    for (int64_t i = 0; i < n_sizes; i++) {
        if (a->sizes[i] < b->sizes[i]) {
            return FALSE;
        }
    }
    return TRUE;
}

static void fill_load(const Plan *plan, const Routing *routing, int table, RankLoad *load)
{
    int64_t n_slots = plan_expert_slots(plan) / plan->ep;
    for (int64_t c = 0; c < plan->moe.overlap_chunks; c++) {
        RoutingRows rows;
        int64_t *sizes = load->sizes + c * (2 + n_slots);
        routing_chunk_rows(routing, table, load->rank, c, &rows);
        load->n_received += rows.n_received;
        sizes[0] = rows.n_sent;
        sizes[1] = plan_sends_tokens(plan) ? rows.n_arrived : 0; /* tokens that travel once */
        for (int64_t s = 0; s < n_slots; s++) {
            sizes[2 + s] = rows.local_expert_rows[s];
        }
        qsort(sizes + 2, (size_t)n_slots, sizeof *sizes, by_falling);
    }
}

static gboolean is_sized_by_experts(const OpView *view)
{
    const Op *op = view->op;
    for (int i = 0; i < op->n_inputs + op->n_outputs; i++) {
        int tensor = i < op->n_inputs ? op->inputs[i] : op->outputs[i - op->n_inputs];
        RowSpace rows = tensor >= 0 ? row_space_kind(graph_tensor(view->graph, tensor)->rows) : ROWS_ONE;
        if (rows == ROWS_RECEIVED || rows == ROWS_SLOTS || rows == ROWS_ARRIVED) {
            return TRUE;
        }
    }
    return FALSE;
}

static SimTime cost_ns(const Device *device, const OpCost *cost, PriceList *prices)
{
    SimTime sum = 0;
    for (int i = 0; i < cost->n_works; i++) {
        Price price = price_list_get(prices, device, &cost->works[i]);
        sum += (price.one_ns[CLOCK_USUAL] + device->kernel_gap_ns) * cost->works[i].n_launches;
    }
    return sum;
}

static SimTime rank_ns(const Plan *plan, const Graph *graph, const RowCounts *rows, PriceList *prices)
{
    SimTime sum = 0;
    for (int o = 0; o < graph_n_ops(graph); o++) {
        OpView view = {graph, graph_op(graph, o), rows};
        const OpClass *class = op_class(view.op->kind);
        OpCost forward = {0}, backward = {0};
        if (!is_sized_by_experts(&view)) {
            continue;
        }
        class->forward_cost(&view, &forward);
        if (op_has_backward(&view)) {
            class->backward_cost(&view, &backward);
        }
        sum += (plan->recompute == PLAN_RECOMPUTE_NONE ? 1 : 2) * cost_ns(plan->cluster->device, &forward, prices);
        sum += cost_ns(plan->cluster->device, &backward, prices);
    }
    return sum;
}

Hottest hottest_rank(const Plan *plan, const Graph *graph, const Routing *routing, int64_t moe_layer, PriceList *prices)
{
    int64_t n_sizes = plan->moe.overlap_chunks * (2 + plan_expert_slots(plan) / plan->ep);
    g_autofree RankLoad *loads = g_new(RankLoad, plan->ep);
    g_autofree int64_t *sizes = g_new(int64_t, plan->ep * n_sizes);
    Hottest hottest = {.rank = 0, .ns = -1};
    for (int64_t r = 0; r < plan->ep; r++) {
        loads[r] = (RankLoad){.rank = r, .sizes = sizes + r * n_sizes};
        fill_load(plan, routing, routing_table(routing, moe_layer), &loads[r]);
    }
    qsort(loads, (size_t)plan->ep, sizeof *loads, by_received);
    for (int64_t i = 0; i < plan->ep; i++) {
        gboolean dominated = FALSE;
        for (int64_t k = 0; k < i && !dominated; k++) {
            dominated = exceeds(&loads[k], &loads[i], n_sizes);
        }
        if (dominated) {
            continue;
        }
        RowCounts rows = routing_row_counts(plan, routing, moe_layer, loads[i].rank);
        SimTime ns = rank_ns(plan, graph, &rows, prices);
        if (ns > hottest.ns) {
            hottest.rank = loads[i].rank;
            hottest.ns = ns;
        }
    }
    return hottest;
}
