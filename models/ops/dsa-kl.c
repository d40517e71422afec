#include "models/ops/dsa-kl.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/sequences.h"
#include "models/real.h"

enum { IN_Q_INDEX, IN_K_INDEX, IN_W, IN_SEL, IN_Q, IN_K, IN_K_TAIL, IN_LSE };

#if REAL_HAS_CLASS
int dsa_kl_add(Graph *graph, const char *name, const DsaIndexerTensors *indexer, gboolean dense, const DsaKlTarget *target, const DsaKlAttr *attr)
{
    DsaKlAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, target->q)->width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, target->k)->width == full.kv_heads * (full.head_dim - full.tail_dim));
    g_assert((full.tail_dim > 0) == (target->k_tail >= 0));
    int loss = graph_add_tensor(graph, name, ROWS_ONE, 1, DTYPE_FP32);
    Op *op = op_add(graph, OP_dsa_kl, name, &full, sizeof full);
    op_input(op, indexer->q);
    op_input(op, indexer->k);
    op_input(op, indexer->w);
    op_input(op, dense ? -1 : indexer->sel);
    op_input(op, target->q);
    op_input(op, target->k);
    op_input(op, target->k_tail);
    op_input(op, target->lse);
    op_output(graph, op, loss);
    return loss;
}

static int64_t kl_pairs(const OpView *view)
{
    int64_t limit = view->op->inputs[IN_SEL] >= 0 ? op_in(view, IN_SEL)->width : 0;
    return sequences_causal_pairs(view->rows, ROWS_TOKENS, limit);
}

static void dsa_kl_saved(const OpView *view, OpSaved *ret_saved)
{
    if (!op_has_backward(view)) {
        return;
    }
    for (int i = 0; i < view->op->n_inputs; i++) {
        ret_saved->inputs |= view->op->inputs[i] >= 0 ? 1u << i : 0;
    }
    op_saved_aux(ret_saved, ROWS_TOKENS, 1, DTYPE_FP32); /* log-sum-exp of the scores */
    op_saved_aux(ret_saved, ROWS_TOKENS, 1, DTYPE_FP32); /* sum of the target before it is normalised */
}

/* Target: per head the dot product, scale, minus, exp, sum. Score: as in dsa-indexer.c. */
static double pair_flops(const DsaKlAttr *attr)
{
    double score = (double)attr->index.heads * (2 * (double)attr->index.dim + (attr->index.no_relu ? 2 : 3));
    return (double)attr->heads * (2 * (double)attr->head_dim + 4) + score;
}

/* Reads of both passes: whole tensors in the dense stage, the selected keys of each token in the sparse one. */
static int64_t kl_read_bytes(const OpView *view)
{
    int64_t bytes = op_in_bytes(view, IN_Q_INDEX) + op_in_bytes(view, IN_W) + op_in_bytes(view, IN_Q) + op_in_bytes(view, IN_LSE);
    const int keys[] = {IN_K_INDEX, IN_K, IN_K_TAIL};
    for (int i = 0; i < 3; i++) {
        if (view->op->inputs[keys[i]] >= 0) {
            gboolean gathers = view->op->inputs[IN_SEL] >= 0;
            const GraphTensor *key = op_in(view, keys[i]);
            bytes += gathers ? dtype_bytes(key->dtype, kl_pairs(view) * key->width) : op_in_bytes(view, keys[i]);
        }
    }
    return bytes + (view->op->inputs[IN_SEL] >= 0 ? op_in_bytes(view, IN_SEL) : 0);
}

static void set_shape(const OpView *view, Work *work)
{
    const DsaKlAttr *attr = view->op->attr;
    work->dtype = op_in(view, IN_Q)->dtype;
    work->m = op_rows(view, ROWS_TOKENS);
    work->n = attr->heads;
    work->k = attr->head_dim;
    work->n_groups = sequences_count(view->rows, ROWS_TOKENS);
}

/*
 * Beside the pair: sum and division of the target 2, max, minus, exp and sum of the softmax 4, the loss 6; per row the
 * scaled weights, the log-sum-exp 2 and the sum 1; the mean 2.
 */
static void dsa_kl_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaKlAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, ROWS_TOKENS);
    double flops = (double)kl_pairs(view) * (pair_flops(attr) + 12) + (double)rows * (double)(attr->index.heads + 3) + 2;
    int64_t aux = op_has_backward(view) ? dtype_bytes(DTYPE_FP32, 2 * rows) : 0;
    WorkLaw law = view->op->inputs[IN_SEL] >= 0 ? WORK_SPARSE_ATTENTION_FORWARD : WORK_ATTENTION_FORWARD;
    set_shape(view, op_cost_stream(ret_cost, law, flops, kl_read_bytes(view), op_out_bytes(view, 0) + aux));
}

/*
 * Pair: both again, the division 1, softmax 2, dI 2; per index head dw 2, dR 1, dq and dk 4 d. Per row the weights and
 * their gradient 2 J; the factor 2. In the sparse stage dk is added up in fp32 where tokens select the same key.
 */
static void dsa_kl_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaKlAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    int64_t rows = op_rows(view, ROWS_TOKENS);
    int64_t pairs = kl_pairs(view);
    gboolean sparse = view->op->inputs[IN_SEL] >= 0;
    double heads = (double)attr->index.heads;
    double flops = (double)pairs * (pair_flops(attr) + 5 + heads * (4 * (double)attr->index.dim + 3)) + 2 * heads * (double)rows + 2;
    int64_t read = kl_read_bytes(view) + dtype_bytes(DTYPE_FP32, 2 * rows) + op_out_bytes(view, 0);
    int64_t write = op_in_bytes(view, IN_Q_INDEX) + op_in_bytes(view, IN_W);
    int64_t scattered = dtype_bytes(DTYPE_FP32, pairs * attr->index.dim);
    if (!sparse) {
        set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_BACKWARD, flops, read, write + op_in_bytes(view, IN_K_INDEX)));
        return;
    }
    int64_t sums = dtype_bytes(DTYPE_FP32, rows * attr->index.dim);
    set_shape(view, op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_BACKWARD, flops, read + scattered, write + scattered));
    op_cost_stream(ret_cost, WORK_COPY, 0, sums, op_in_bytes(view, IN_K_INDEX));
    ret_cost->workspace_bytes = sums;
}

extern const OpClass op_dsa_kl;
const OpClass op_dsa_kl = {
    .id = "dsa_kl",
    .title = "DSA indexer KL loss",
    .no_grad_inputs = 0xf8,
    .saved = dsa_kl_saved,
    .forward_cost = dsa_kl_forward_cost,
    .backward_cost = dsa_kl_backward_cost,
};
#endif
