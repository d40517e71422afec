#include "models/ops/attention.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/sequences.h"
#include "models/real.h"

#if REAL_HAS_CLASS
AttentionTensors attention_add(Graph *graph, const char *name, int q, int k, int v, const AttentionAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, q);
    AttentionAttr full = *attr;
    g_assert(full.kv_heads > 0 && full.heads % full.kv_heads == 0 && in.width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, k)->width == full.kv_heads * full.head_dim);
    g_assert(graph_tensor(graph, v)->width == full.kv_heads * full.v_dim);
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    int sinks = -1;
    if (full.sinks) {
        sinks = graph_add_param(graph, op_name(name, "sinks").text, PARAM_VECTOR, full.heads, 0, 0);
    }
    AttentionTensors t = {
        .o = graph_add_tensor(graph, name, in.rows, full.heads * full.v_dim, in.dtype),
        .lse = graph_add_tensor(graph, op_name(name, "lse").text, in.rows, full.heads, DTYPE_FP32),
    };
    Op *op = op_add(graph, OP_attention, name, &full, sizeof full);
    op_input(op, q);
    op_input(op, k);
    op_input(op, v);
    op_param(graph, op, sinks);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    return t;
}

/* Query-key pairs that one head computes. */
static double attention_pairs(const OpView *view)
{
    const AttentionAttr *attr = view->op->attr;
    RowSpace space = op_in(view, 0)->rows;
    return (double)(attr->causal ? sequences_causal_pairs(view->rows, space, attr->window) : sequences_all_pairs(view->rows, space));
}

/* The framework's rotation leaves queries head by head; the result then lies so too, and is copied token by token. */
static gboolean copies_output(const OpView *view)
{
    gboolean rope_eager;
    return view->op->eager && op_in_maker(view, 0, &rope_eager) == OP_rope && rope_eager;
}

static void attention_saved(const OpView *view, OpSaved *ret_saved)
{
    const GraphTensor *o = op_out(view, 0);
    ret_saved->inputs = 7;
    ret_saved->outputs = 2;
    if (copies_output(view)) {
        op_saved_aux(ret_saved, o->rows, o->width, o->dtype);
    } else {
        ret_saved->outputs |= 1;
    }
}

static void set_shape(const OpView *view, Work *work)
{
    const AttentionAttr *attr = view->op->attr;
    work->dtype = op_in(view, 0)->dtype;
    work->m = op_rows(view, op_in(view, 0)->rows);
    work->n = attr->heads;
    work->k = attr->head_dim;
    work->n_groups = sequences_count(view->rows, op_in(view, 0)->rows);
}

static int64_t qkv_bytes(const OpView *view)
{
    return op_in_bytes(view, 0) + op_in_bytes(view, 1) + op_in_bytes(view, 2);
}

/*
 * kernels.md 4.3: two products per pair, 2 (d + dv); scale, max, minus, exp and sum 5; per row the division dv and the
 * log-sum-exp 2. A sink takes part in max and sum: 4.
 */
static void attention_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const AttentionAttr *attr = view->op->attr;
    double rows = (double)op_rows(view, op_in(view, 0)->rows) * (double)attr->heads;
    double pairs = attention_pairs(view) * (double)attr->heads;
    double flops = pairs * (2 * (double)(attr->head_dim + attr->v_dim) + 5) + rows * ((double)attr->v_dim + 2);
    int64_t read = qkv_bytes(view);
    if (attr->sinks) {
        flops += 4 * rows;
        read += op_weight_bytes(view, 0);
    }
    set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_FORWARD, flops, read, op_out_bytes(view, 0) + op_out_bytes(view, 1)));
    ret_cost->pointwise_flops = 5 * pairs;
    if (copies_output(view)) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_out_bytes(view, 0), op_out_bytes(view, 0));
    }
}

/*
 * Five products per pair, 6 d + 4 dv; scale, p = exp(s - lse) 3; ds = p (dp - D) scale 3; per row D = do o: 2 dv. A
 * sink's gradient, -sum p_sink D: 4 per row.
 */
static void attention_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const AttentionAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    int64_t n = op_rows(view, op_in(view, 0)->rows);
    double rows = (double)n * (double)attr->heads;
    double pairs = attention_pairs(view) * (double)attr->heads;
    double flops = pairs * (6 * (double)attr->head_dim + 4 * (double)attr->v_dim + 6) + rows * 2 * (double)attr->v_dim;
    int64_t read = qkv_bytes(view) + 2 * op_out_bytes(view, 0) + op_out_bytes(view, 1);
    int64_t write = qkv_bytes(view);
    if (op_trains_param(view, 0)) {
        flops += 4 * rows;
        read += op_weight_bytes(view, 0);
        write += op_weight_bytes(view, 0);
    }
    set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_BACKWARD, flops, read, write));
    ret_cost->pointwise_flops = 6 * pairs;
    /* The kernels hold dq in fp32 and D; with grouped queries dk and dv of every query head. */
    ret_cost->workspace_bytes = dtype_bytes(DTYPE_FP32, n * attr->heads * (attr->head_dim + 1));
    if (attr->kv_heads < attr->heads) {
        ret_cost->workspace_bytes += op_in_elem_bytes(view, 1) * n * attr->heads * (attr->head_dim + attr->v_dim);
    }
}

extern const OpClass op_attention;
const OpClass op_attention = {
    .id = "attention",
    .title = "attention",
    .keep = OP_KEEP_ATTENTION,
    .no_grad_outputs = 2,
    .saved = attention_saved,
    .forward_cost = attention_forward_cost,
    .backward_cost = attention_backward_cost,
};
#endif
