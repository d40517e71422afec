/*
 * The optimizer's part of the footprint: states between steps, and what whole matrices of Muon hold during the step.
 */
#include <stdlib.h>

#include "models/optim.h"
#include "sim/base/quantity.h"
#include "workloads/run/footprint-pass.h"

/* A matrix, or all those of one parameter that stay, in elements. */
typedef struct Matrix {
    double flops;
    int64_t nth; /* keeps the order of equals */
    int64_t slice, whole, work;
} Matrix;

gboolean footprint_is_muons(const Plan *plan, const GraphParam *param)
{
    return plan->optimizer == PLAN_MUON && param->trainable && param->op >= 0 && param->role == PARAM_MATRIX && param->n_dims > 1;
}

int64_t footprint_tensor_state_bytes(const Plan *plan, const GraphParam *param, int64_t shard)
{
    int64_t master = plan->master_weights ? 4 * shard : 0;
    return (footprint_is_muons(plan, param) ? 1 : 2) * optim_moment_bytes(shard, plan->moments) + master;
}

int64_t footprint_state_bytes(const Plan *plan, const GraphParam *param, int64_t shard)
{
    gboolean elsewhere = plan->optimizer_offload || plan->layer_wise; /* in DDR, or with the tensor's owner */
    return param->trainable && param->op >= 0 && !elsewhere ? footprint_tensor_state_bytes(plan, param, shard) : 0;
}

static int64_t two_bytes(int64_t numel)
{
    return pass_round(2 * numel);
}

/* Matrices of one parameter split over n ranks: those that travel are appended to one list, the rest to the other. */
static void add_matrices(const Plan *plan, const GraphParam *param, int64_t n, GArray *stay, GArray *travel)
{
    gboolean stack = param->n_dims == 3;
    int64_t heads = !stack && plan->muon_per_head ? param->heads : 1;
    int64_t whole_rows = stack ? param->dims[0] / (param->split == PARAM_EXPERT ? plan->ep : 1) : param->dims[0];
    int64_t rows = stack ? param->dims[1] : param->dims[0] / heads, cols = stack ? param->dims[2] : param->dims[1];
    int64_t chunk = quantity_div_up(whole_rows, n), m = MIN(rows, cols), one = rows * cols;
    gboolean by_columns = param->split == PARAM_EXPERT && n > whole_rows;
    gboolean cut = n > 1 && (stack ? by_columns : chunk % rows != 0);
    int64_t blocks = stack ? (cut ? 1 : chunk) : cut ? heads : chunk / rows, count = stack && cut ? whole_rows : 1;
    int64_t slice = stack ? (cut ? quantity_div_up(rows, n) * cols : chunk * one) : chunk * cols;
    GArray *list = cut ? travel : stay;
    for (int64_t i = 0; i < count; i++) {
        double flops = (double)blocks * 5.0 * (4.0 * (double)m * (double)m * (double)MAX(rows, cols) + 2.0 * (double)m * (double)m * (double)m);
        Matrix matrix = {flops, list->len, slice, cut ? blocks * one : slice, blocks * (one + 2 * m * m)};
        g_array_append_val(list, matrix);
    }
}

static int by_flops(const void *a, const void *b)
{
    const Matrix *x = a, *y = b;
    return x->flops > y->flops ? -1 : x->flops < y->flops ? 1 : x->nth < y->nth ? -1 : 1;
}

static void add_rounds(const GArray *list, guint per_round, gboolean travels, GArray *rounds)
{
    for (guint at = 0; at < list->len; at += per_round) {
        const Matrix *first = &g_array_index(list, Matrix, at);
        int64_t slices = 0, whole = 0;
        for (guint k = at; k < MIN(at + per_round, list->len); k++) {
            const Matrix *matrix = &g_array_index(list, Matrix, k);
            slices += matrix->slice;
            whole = MAX(whole, matrix->whole);
        }
        FootprintRound held = {two_bytes(slices), travels ? two_bytes(whole) : 0, two_bytes(first->work), travels ? two_bytes(slices) : 0};
        g_array_append_val(rounds, held);
    }
}

/* All rounds, those of dense parameters first. */
static GArray *find_rounds(const Plan *plan, const ModelGraph *graphs)
{
    GArray *rounds = g_array_new(FALSE, TRUE, sizeof(FootprintRound));
    if (plan->layer_wise) {
        footprint_deal_rounds(plan, graphs, rounds);
        return rounds;
    }
    for (int experts = 0; experts < 2; experts++) {
        g_autoptr(GArray) stay = g_array_new(FALSE, TRUE, sizeof(Matrix)), travel = g_array_new(FALSE, TRUE, sizeof(Matrix));
        int64_t n = plan_n_shards(plan, experts);
        for (int64_t l = 0; l < graphs->n_layers; l++) {
            const Graph *graph = model_graph_layer(graphs, l);
            /* without EP experts belong to their layer's group, behind its other parameters */
            for (guint i = 0; i < 2 * graph->params->len; i++) {
                const GraphParam *param = graph_param(graph, (int)(i % graph->params->len));
                gboolean is_expert = param->split == PARAM_EXPERT, in_second = i >= graph->params->len;
                if (footprint_is_muons(plan, param) && is_expert == in_second && (is_expert && plan->ep > 1) == experts) {
                    add_matrices(plan, param, n, stay, travel);
                }
            }
        }
        g_array_sort(travel, by_flops);
        add_rounds(stay, 1, FALSE, rounds);
        add_rounds(travel, (guint)n, TRUE, rounds);
    }
    return rounds;
}

int64_t footprint_optimizer_peak(const Plan *plan, const ModelGraph *graphs)
{
    g_autoptr(GArray) rounds = find_rounds(plan, graphs);
    const FootprintRound none = {0};
    int64_t alive = 0, peak = 0;
    for (gint64 r = -1; r <= rounds->len && rounds->len > 0; r++) {
        const FootprintRound *now = r >= 0 && r < rounds->len ? &g_array_index(rounds, FootprintRound, (guint)r) : &none;
        const FootprintRound *last = r > 0 ? &g_array_index(rounds, FootprintRound, (guint)(r - 1)) : &none;
        const FootprintRound *next = r + 1 < rounds->len ? &g_array_index(rounds, FootprintRound, (guint)(r + 1)) : &none;
        gboolean now_travels = now->owned > 0, last_travels = last->owned > 0;
        alive += next->slices + next->owned;
        peak = MAX(peak, alive);
        alive -= now_travels ? now->slices : 0;
        peak = MAX(peak, alive + MAX(now->work, now->back));
        alive += now->back;
        alive -= last_travels ? last->owned + last->back : last->slices;
    }
    return MAX(peak, plan->layer_wise ? footprint_deal_gather(plan, graphs) : 0);
}
