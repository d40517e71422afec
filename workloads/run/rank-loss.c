/*
 * Losses of layers in values. A layer's loss is the mean over the rows that its rank sees, so what it adds to the step's is
 * weighed with these rows' share of the step's tokens; and that is its gradient, too.
 */
#include <string.h>

#include "models/ops/router-counts.h"
#include "workloads/run/rank.h"

static double share_of_tokens(const Rank *rank)
{
    int64_t n_tokens = rank->n_sequences * rank->world->plan->seq_len, n_all = rank->world->n_tokens;
    return n_all > 0 ? (double)n_tokens / (double)n_all : 0;
}

void rank_forget_counts(Rank *rank)
{
    for (int64_t i = 0; i < rank->world->graphs->n_layers; i++) {
        const Graph *graph = model_graph_layer(rank->world->graphs, i);
        for (int o = 0; o < graph_n_ops(graph); o++) {
            const Op *op = graph_op(graph, o);
            if (op->kind == OP_router_counts) {
                RankRouting *routing = rank_layer_routing(rank, i);
                tensor_free(routing->choices_made);
                routing->choices_made = tensor_new_2d(TENSOR_I64, 1, graph_tensor(graph, op->outputs[0])->width);
            }
        }
    }
}

/* Counts of all choices of a micro-batch on all ranks, or of several micro-batches. */
static gboolean check_choices(const RankAt *at, const int64_t *counts, const RouterCountsAttr *attr, int64_t n_passes, GError **error)
{
    const VirtualRanks *world = at->rank->world;
    int64_t sum = 0, all = attr->top_k * world->n_tokens / world->plan->n_micro_batches * n_passes;
    for (int64_t e = 0; e < attr->experts; e++) {
        sum += counts[e];
    }
    return sum == all || rank_fail(at, error, "%" G_GINT64_FORMAT " choices are counted, all ranks made %" G_GINT64_FORMAT, sum, all);
}

/* A recomputation finds the sums as they were. */
static gboolean pass_counts(const RankAt *at, GError **error)
{
    const RouterCountsAttr *attr = graph_op(at->segment->graph, at->instr->op)->attr;
    int64_t *made = rank_layer_routing(at->rank, at->call->layer)->choices_made->data;
    Tensor *counts = rank_change(at, rank_operand(at, 0), TENSOR_I64, attr->experts, error);
    if (counts == NULL) {
        return FALSE;
    }
    int64_t *values = counts->data;
    if (at->instr->phase == PHASE_FORWARD && !check_choices(at, values, attr, 1, error)) {
        return FALSE;
    }
    for (int64_t e = 0; e < attr->experts; e++) {
        made[e] += at->instr->phase == PHASE_FORWARD ? values[e] : 0;
        values[e] = made[e];
    }
    return check_choices(at, values, attr, 1 + program_micro_batch(at->rank->program, at->rank->call, at->rank->n_repeats), error);
}

static gboolean add_loss(const RankAt *at, GError **error)
{
    const Tensor *loss = rank_read(at, rank_operand(at, 0), error);
    at->rank->extra_loss += loss != NULL ? tensor_get(loss, 0) * share_of_tokens(at->rank) : 0;
    return loss != NULL;
}

gboolean rank_layer_loss(const RankAt *at, GError **error)
{
    if (at->instr->action == VALUE_PASS_COUNTS) {
        return pass_counts(at, error);
    }
    if (at->instr->action == VALUE_LAYER_LOSS) {
        return add_loss(at, error);
    }
    Tensor *grad = tensor_new_2d(TENSOR_F64, 1, 1);
    tensor_set(grad, 0, share_of_tokens(at->rank));
    return rank_write(at, rank_operand(at, 0), grad, DTYPE_FP32, error);
}

gboolean rank_sum_counts(const RankAt *ats, int64_t n, GError **error)
{
    int64_t numel = -1;
    g_autofree int64_t *sums = NULL;
    for (int64_t i = 0; i < n; i++) {
        const Tensor *counts = rank_read(&ats[i], rank_operand(&ats[i], 0), error);
        if (counts == NULL) {
            return FALSE;
        }
        if (numel < 0) {
            numel = tensor_numel(counts);
            sums = g_new0(int64_t, numel);
        }
        if (counts->type != TENSOR_I64 || tensor_numel(counts) != numel) {
            return rank_fail(&ats[i], error, "sums what is no table of counts");
        }
        for (int64_t e = 0; e < numel; e++) {
            sums[e] += ((const int64_t *)counts->data)[e];
        }
    }
    if (ats->instr->coll != COLL_all_reduce) {
        return rank_fail(ats, error, "counts of all ranks are summed, not gathered");
    }
    for (int64_t i = 0; i < n; i++) {
        if (!rank_check_bytes(&ats[i], dtype_bytes(DTYPE_INT64, numel), error)) {
            return FALSE;
        }
        Tensor *sum = tensor_new_2d(TENSOR_I64, 1, numel);
        memcpy(sum->data, sums, (size_t)numel * sizeof *sums);
        if (!rank_write(&ats[i], rank_operand(&ats[i], 0), sum, DTYPE_INT64, error)) {
            return FALSE;
        }
    }
    return TRUE;
}
