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

static void add_rounds(const Plan *plan, const GArray *list, guint per_round, gboolean travels, GArray *rounds)
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
        if (plan->optimizer_offload) {
            held.momentum = pass_round(optim_moment_bytes(slices, plan->moments));
            held.master = plan->master_weights ? pass_round(4 * slices) : 0;
        }
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
        add_rounds(plan, stay, 1, FALSE, rounds);
        add_rounds(plan, travel, (guint)n, TRUE, rounds);
    }
    return rounds;
}

/* A round, or one that holds nothing. */
static const FootprintRound *round_at(const GArray *rounds, gint64 r)
{
    static const FootprintRound none = {0};
    return r >= 0 && r < rounds->len ? &g_array_index(rounds, FootprintRound, (guint)r) : &none;
}

/* States of AdamW's in one group join those of the group before. */
static void join_group(const Plan *plan, const Graph *graph, ParamSplit split, int head, int64_t *bytes)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        gboolean trained = param->role != PARAM_BUFFER && param->trainable && param->op >= 0 && !footprint_is_muons(plan, param);
        if (trained && param->split == split && (head < 0 || head == (param->role == PARAM_HEAD))) {
            *bytes += footprint_tensor_state_bytes(plan, param, footprint_shard_numel(plan, param));
        }
    }
}

/* The next group's states beside this one's. */
static void end_group(int64_t *bytes, int64_t *before, int64_t *peak)
{
    if (*bytes > 0) {
        *peak = MAX(*peak, *before + pass_round(*bytes));
        *before = pass_round(*bytes);
        *bytes = 0;
    }
}

/* Most that states of groups take at once where they are streamed. */
static int64_t streamed_groups_peak(const Plan *plan, const ModelGraph *graphs)
{
    int64_t bytes = 0, before = 0, peak = 0;
    gboolean own_head = plan->seq_chunk == 0;
    if (!plan->optimizer_offload || plan->optimizer != PLAN_MUON) {
        return 0;
    }
    join_group(plan, graphs->embedding, PARAM_DENSE, -1, &bytes);
    join_group(plan, graphs->head, PARAM_DENSE, own_head ? FALSE : -1, &bytes);
    end_group(&bytes, &before, &peak);
    for (int64_t l = 0; l < graphs->n_layers; l++) {
        join_group(plan, model_graph_layer(graphs, l), PARAM_DENSE, -1, &bytes);
        if (plan->ep > 1) {
            end_group(&bytes, &before, &peak);
        }
        join_group(plan, model_graph_layer(graphs, l), PARAM_EXPERT, -1, &bytes);
        end_group(&bytes, &before, &peak);
    }
    if (own_head) {
        join_group(plan, graphs->head, PARAM_DENSE, TRUE, &bytes);
        end_group(&bytes, &before, &peak);
    }
    return peak;
}

int64_t footprint_optimizer_peak(const Plan *plan, const ModelGraph *graphs)
{
    g_autoptr(GArray) rounds = find_rounds(plan, graphs);
    int64_t alive = 0, peak = 0;
    for (gint64 r = -2; r <= rounds->len && rounds->len > 0; r++) {
        const FootprintRound *now = round_at(rounds, r), *last = round_at(rounds, r - 1), *next = round_at(rounds, r + 1);
        gboolean now_travels = now->owned > 0, last_travels = last->owned > 0;
        alive += round_at(rounds, r + 2)->momentum + next->slices;
        peak = MAX(peak, alive);
        alive += next->owned - next->momentum;
        peak = MAX(peak, alive);
        alive += now->master - (now_travels ? now->slices : 0);
        peak = MAX(peak, alive + (now_travels ? now->slices : 0)); /* master copies are there before the slices are gone */
        peak = MAX(peak, alive + MAX(now->work, now->back));
        alive += now->back;
        alive -= (last_travels ? last->owned + last->back : last->slices) + last->master;
    }
    peak = MAX(peak, streamed_groups_peak(plan, graphs));
    return MAX(peak, plan->layer_wise ? footprint_deal_gather(plan, graphs) : 0);
}
