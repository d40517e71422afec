/*
 * What is timed is what is computed: the kernels that a program prices before a value are those of the value's operator, with
 * the FLOPs of the rows that it really has, and the host waits as often as the operator makes it wait.
 *
 * Between one value and the next stand the kernels and the host synchronisations of the next. Counts hold always; FLOPs only
 * when the program was lowered with the loads that the routers made (exact sizes).
 */
#include <math.h>
#include <string.h>

#include "workloads/lower/walk.h"
#include "workloads/run/rank.h"

void rank_note_work(const RankAt *at)
{
    RankPrice *price = &at->rank->price;
    if (at->instr->kind == INSTR_HOST_SYNC) {
        price->n_syncs++;
        price->sync_op = at->instr->op;
        return;
    }
    /* the optimizer's are those of all shards together; what it changed on the host goes up again */
    if (at->instr->label == LABEL_OPTIMIZER || (at->instr->phase == PHASE_OPTIMIZER && at->instr->label == LABEL_SWAP_IN)) {
        return;
    }
    price->n_works++;
    price->flops += at->instr->flops;
    price->op = at->instr->op;
}

static gboolean check_count(const RankAt *at, int found, int expected, const char *what, GError **error)
{
    return found == expected || rank_fail(at, error, "%d %s before it, its cost has %d", found, what, expected);
}

/* Scratch memory is what the operator's cost says. */
static gboolean check_workspace(const RankAt *at, int64_t bytes, GError **error)
{
    const Graph *graph = at->segment->graph;
    gint32 place = walk_op_exchanges(graph, at->instr->op) ? frame_exchange(graph) : frame_workspace(graph);
    const RankBuffer *workspace = &at->rank->buffers[at->call->frame + place];
    int64_t found = workspace->alive ? workspace->bytes : 0;
    return found == bytes || rank_fail(at, error, "has %" G_GINT64_FORMAT " bytes of scratch memory, its rows make %" G_GINT64_FORMAT,
                                       found, bytes);
}

static gboolean check_op(const RankAt *at, const RankPrice *price, GError **error)
{
    const Graph *graph = at->segment->graph;
    RowCounts rows = rank_rows(at);
    OpView view = {graph, graph_op(graph, at->instr->op), &rows};
    const OpClass *class = op_class(view.op->kind);
    OpCost cost = {0};
    if (at->instr->action == VALUE_BACKWARD) {
        class->backward_cost(&view, &cost);
    } else {
        class->forward_cost(&view, &cost);
    }
    /* a recomputation stops inside its last operator */
    gboolean stops = at->instr->phase == PHASE_RECOMPUTE && cost.n_works_to_save > 0 && price->n_works == cost.n_works_to_save;
    cost.n_works = stops ? cost.n_works_to_save : cost.n_works;
    double flops = op_cost_flops(&cost);
    if (price->n_works > 0 && price->op != at->instr->op) {
        return rank_fail(at, error, "the kernels before it are those of another operator");
    }
    if (!check_count(at, price->n_works, cost.n_works, "kernels", error) ||
        !check_count(at, price->n_syncs, cost.n_host_syncs, "host synchronisations", error)) {
        return FALSE;
    }
    if (at->rank->world->options.exact_sizes && fabs(price->flops - flops) > 1e-9 * flops) {
        return rank_fail(at, error, "its kernels have %.15g FLOPs, its rows make %.15g", price->flops, flops);
    }
    return !at->rank->world->options.exact_sizes || check_workspace(at, cost.workspace_bytes, error);
}

/* Whether a value gets no more than another name: views, and parts of what lies there between steps. */
static gboolean names_only(const RankAt *at)
{
    ValueAction action = (ValueAction)at->instr->action;
    int last = at->instr->n_operands - 1;
    const RankBuffer *to = last >= 0 ? rank_operand(at, action == VALUE_GRAD_IN ? 0 : last) : NULL;
    gboolean fills = action == VALUE_COPY || action == VALUE_PARAM_CAST || action == VALUE_SHARD_PLACE || action == VALUE_COPY_OUT;
    return to != NULL && (to->tier == TIER_VIEW || (fills && to->resident));
}

/* Gradients that join a buffer which lies there between steps do so one by one; others are gathered by one kernel. */
static int n_grad_works(const RankAt *at)
{
    return rank_operand(at, 0)->resident ? at->instr->n_operands - 1 : 1;
}

gboolean rank_check_price(const RankAt *at, GError **error)
{
    enum { NONE, ONE, TWO, ANY }; /* the optimizer is priced for all shards together */
    static const int n_works[N_VALUE_ACTIONS] = {
        [VALUE_COPY] = ONE,        [VALUE_ADD] = ONE,        [VALUE_LOSS_GRAD] = ONE, [VALUE_PLACE_ROWS] = TWO,
        [VALUE_LAYER_LOSS] = ONE,  [VALUE_LAYER_LOSS_GRAD] = ONE, [VALUE_PASS_COUNTS] = ONE,
        [VALUE_SHARD_CAST] = ONE,  [VALUE_SHARD_PLACE] = ONE, [VALUE_PARAM_CAST] = ONE, [VALUE_COPY_OUT] = ONE,
        [VALUE_UPDATE] = ANY,      [VALUE_DIRECTION] = ANY,   [VALUE_ORTHOGONALIZE] = ANY, [VALUE_DESCEND] = ANY,
    };
    RankPrice price = at->rank->price;
    at->rank->price = (RankPrice){.op = -1, .sync_op = -1};
    if (price.n_syncs > 0 && price.sync_op >= 0 && price.sync_op != at->instr->op) { /* of an exchange that started ahead */
        at->rank->price.n_syncs = price.n_syncs;
        at->rank->price.sync_op = price.sync_op;
        price.n_syncs = 0;
    }
    if (at->instr->action == VALUE_FORWARD || at->instr->action == VALUE_BACKWARD) {
        return check_op(at, &price, error);
    }
    int wanted = names_only(at) ? NONE : at->instr->action == VALUE_GRAD_IN ? n_grad_works(at) : n_works[at->instr->action];
    gboolean joins_chunks = at->instr->action == VALUE_LOSS_SUM && at->rank->world->plan->seq_chunk > 0;
    return wanted == ANY || check_count(at, price.n_works, joins_chunks ? ONE : wanted, "kernels", error);
}
