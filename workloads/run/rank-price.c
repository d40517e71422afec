/*
 * What is timed is what is computed: the kernels that a program prices before a value are those of the value's operator, with
 * the FLOPs of the rows that it really has, and the host waits as often as the operator makes it wait.
 *
 * Between one value and the next stand the kernels and the host synchronisations of the next. Counts hold always; FLOPs only
 * when the program was lowered with the loads that the routers made (exact sizes).
 */
#include <math.h>
#include <string.h>

#include "models/ops/dispatch.h"
#include "models/optim.h"
#include "workloads/lower/walk.h"
#include "workloads/lower/whole.h"
#include "workloads/run/rank.h"

void rank_note_work(const RankAt *at)
{
    RankPrice *price = &at->rank->price;
    if (at->instr->kind == INSTR_HOST_SYNC) {
        price->n_syncs++;
        price->n_count_syncs += at->instr->action == VALUE_EXCHANGE_COUNTS;
        price->sync_op = at->instr->op;
        price->sync_frame = at->call->frame;
        return;
    }
    if (at->instr->label == LABEL_OPTIMIZER) { /* those of all shards together */
        return;
    }
    price->n_works++;
    price->stream = at->instr->stream;
    price->moved_bytes +=
        at->instr->label == LABEL_SWAP_IN || at->instr->label == LABEL_SWAP_OUT ? at->instr->bytes : 0;
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
    gint32 place = walk_op_exchanges(graph, at->instr->op) ? frame_exchange(graph, at->instr->op) : frame_workspace(graph);
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
    if (view.op->chunk > 1 && price->n_count_syncs > 0) { /* the sizes of all chunks, where the first chunk does not run again */
        cost.n_host_syncs += dispatch_count_syncs(view.op);
    }
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

/* Newton-Schulz steps of a round's matrices. */
static gboolean check_orthogonal(const RankAt *at, const RankPrice *price, GError **error)
{
    const WholeRound *round =
        &g_array_index(at->rank->program->whole_rounds, WholeRound, (guint)(at->call->round + at->instr->op));
    OptimPiece piece = {.numel = round->slices,
                        .by_matrix = TRUE,
                        .rows = round->rows,
                        .cols = round->cols,
                        .n_matrices = round->n_blocks};
    g_autoptr(GArray) works = g_array_new(FALSE, TRUE, sizeof(Work));
    double flops = 0;
    optim_muon_orthogonal_cost(&piece, works);
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        flops += work->flops * work->n_launches;
    }
    if (fabs(price->flops - flops) > 1e-9 * flops) {
        return rank_fail(at, error, "its kernels have %.15g FLOPs, its matrices make %.15g", price->flops, flops);
    }
    return check_count(at, price->n_works, (int)works->len, "kernels", error);
}

/* What the host changed goes up again; what crosses the host link is as large as what is copied. */
static gboolean check_moved(const RankAt *at, const RankPrice *price, GError **error)
{
    const RankBuffer *from = rank_operand(at, 0);
    gboolean is_update = at->instr->action == VALUE_UPDATE;
    const ProgramSite *site = is_update
                                  ? program_site(at->rank->program, (gint32)(from - at->rank->buffers) -
                                                                        program_operand(at->segment, at->instr, 0).idx)
                                  : NULL;
    int64_t bytes = site != NULL   ? dtype_bytes(at->rank->world->plan->parameters, site->group->trainable_shard_numel)
                    : from != NULL ? from->bytes
                                   : 0;
    return price->moved_bytes == bytes || !at->rank->world->options.exact_sizes ||
           rank_fail(at, error, "%" G_GINT64_FORMAT " bytes cross the host link, priced are %" G_GINT64_FORMAT, bytes,
                     price->moved_bytes);
}

gboolean rank_check_price(const RankAt *at, GError **error)
{
    enum { NONE, ONE, TWO, ANY }; /* the optimizer is priced for all shards together */
    static const int n_works[N_VALUE_ACTIONS] = {
        [VALUE_COPY] = ONE,        [VALUE_ADD] = ONE,           [VALUE_LOSS_GRAD] = ONE,
        [VALUE_PLACE_ROWS] = TWO,  [VALUE_LAYER_LOSS] = ONE,    [VALUE_LAYER_LOSS_GRAD] = ONE,
        [VALUE_PASS_COUNTS] = ONE, [VALUE_LOADS] = ONE, [VALUE_BIASES] = ONE, [VALUE_SHARD_CAST] = ONE,    [VALUE_SHARD_PLACE] = ONE,
        [VALUE_PARAM_CAST] = ONE,  [VALUE_COPY_OUT] = ONE,      [VALUE_UPDATE] = NONE,
        [VALUE_STATES_IN] = ONE,   [VALUE_STATES_OUT] = ONE,    [VALUE_MOMENTUM_IN] = ONE, [VALUE_MOMENTUM_OUT] = ONE,
        [VALUE_MASTER_IN] = ONE,   [VALUE_MASTER_OUT] = ONE,
        [VALUE_WEIGHT_CODES] = ONE, [VALUE_DEAL_PLACE] = ONE,  [VALUE_DEAL_TAKE] = ONE,     [VALUE_DIRECTION] = ANY,   [VALUE_ORTHOGONALIZE] = ANY, [VALUE_DESCEND] = ANY,
    };
    RankPrice price = at->rank->price;
    at->rank->price = (RankPrice){.op = -1, .sync_op = -1};
    gboolean on_host =
        at->instr->action == VALUE_UPDATE && program_operand(at->segment, at->instr, 0).idx == FSDP_HOST_GRAD;
    gboolean is_op = at->instr->action == VALUE_FORWARD || at->instr->action == VALUE_BACKWARD;
    /* of an exchange that started ahead, maybe of another micro-batch's pass */
    gboolean is_ahead = price.sync_op >= 0 && (price.sync_op != at->instr->op || price.sync_frame != at->call->frame);
    if (price.n_works > 0 && price.stream != at->instr->stream) {
        return rank_fail(at, error, "its kernels run on the stream of %s", program_stream_name((StreamId)price.stream));
    }
    if (price.n_syncs > 0 && (is_ahead || (!is_op && !on_host))) {
        at->rank->price.n_syncs = price.n_syncs;
        at->rank->price.n_count_syncs = price.n_count_syncs;
        at->rank->price.sync_op = price.sync_op;
        at->rank->price.sync_frame = price.sync_frame;
        price.n_syncs = price.n_count_syncs = 0;
    }
    if (is_op) {
        return check_op(at, &price, error);
    }
    if (at->instr->action == VALUE_ORTHOGONALIZE) {
        return check_orthogonal(at, &price, error);
    }
    if (on_host && !check_count(at, price.n_syncs, 1, "host synchronisations", error)) {
        return FALSE;
    }
    if ((on_host || price.moved_bytes > 0) && !check_moved(at, &price, error)) {
        return FALSE;
    }
    int wanted = on_host                              ? ONE
                 : names_only(at)                     ? NONE
                 : at->instr->action == VALUE_GRAD_IN ? n_grad_works(at)
                                                      : n_works[at->instr->action];
    gboolean joins_chunks = at->instr->action == VALUE_LOSS_SUM && at->rank->world->plan->seq_chunk > 0;
    return wanted == ANY || check_count(at, price.n_works, joins_chunks ? ONE : wanted, "kernels", error);
}
