#include "models/ops/sparse-attention.h"

#include <math.h>
#include <string.h>

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/dsa-indexer.h"
#include "models/ops/sparse-core.h"
#include "models/real.h"
#include "models/sequences.h"
#include "models/values.h"
#include "sim/base/error.h"

REAL_DECLARE(sparse_attention_forward);
REAL_DECLARE(sparse_attention_backward);

enum { IN_Q, IN_K, IN_V, IN_SEL, OUT_O = 0, OUT_LSE, OUT_Q_ABS };
enum { IN_LATENT = IN_K, IN_K_ROPE = IN_V }; /* absorbed */

static SparseCore core_of(const OpRun *run, const real *q_abs)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    SparseCore core = {.tokens = values_rows(run, IN_Q),
                       .heads = attr->heads,
                       .scale = (real)attr->scale,
                       .sel = values_ids(run, IN_SEL)};
    core.top_k = op_in(run->view, IN_SEL)->width;
    core.k = values_in(run, IN_K);
    if (attr->latent > 0) {
        core.kv_heads = 1;
        core.main_dim = attr->latent;
        core.tail_dim = attr->rope_dim;
        core.v_dim = attr->latent;
        core.q = q_abs;
        core.k_tail = values_in(run, IN_K_ROPE);
        core.v = core.k;
    } else {
        core.kv_heads = attr->kv_heads;
        core.main_dim = attr->head_dim;
        core.v_dim = attr->v_dim;
        core.q = values_in(run, IN_Q);
        core.v = values_in(run, IN_V);
    }
    return core;
}

/* Numbers that are fetched for one selected key: all of it once, for every head that shares it. */
static int64_t key_numbers(const OpRun *run, const SparseCore *core)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    return attr->latent > 0 ? q_dim(core) : core->kv_heads * (core->main_dim + core->v_dim);
}

/* How many keys a token has: they stand in front; checks that each is one of the batch. */
static gboolean n_selected(const SparseCore *core, int64_t t, int64_t *ret_n, GError **error)
{
    const int64_t *sel = core->sel + t * core->top_k;
    int64_t n = 0;
    while (n < core->top_k && sel[n] >= 0 && sel[n] < core->tokens) {
        n++;
    }
    if (n == 0 || (n < core->top_k && sel[n] >= core->tokens)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "token %" G_GINT64_FORMAT " selects no key, or one past the last", t);
        return FALSE;
    }
    *ret_n = n;
    return TRUE;
}

static gboolean core_forward(const OpRun *run, const SparseCore *core, real *z, GError **error)
{
    int64_t elem = op_in_elem_bytes(run->view, IN_Q);
    g_autofree real *p = g_new(real, (gsize)core->top_k);
    for (int64_t t = 0; t < core->tokens; t++) {
        int64_t n;
        if (!n_selected(core, t, &n, error)) {
            return FALSE;
        }
        for (int64_t h = 0; h < core->heads; h++) {
            int64_t row = t * core->heads + h;
            values_out(run, OUT_LSE)[row] = attend(core, t, h, n, p, z + row * core->v_dim);
            double pair = 2 * (double)(q_dim(core) + core->v_dim) + 5;
            op_count_bytes(run, pair * (double)n + (double)core->v_dim + 2, elem * q_dim(core), elem * core->v_dim);
        }
        op_count_bytes(run, 0, elem * n * key_numbers(run, core), 0);
    }
    op_count_bytes(run, 0, op_in_bytes(run->view, IN_SEL), op_out_bytes(run->view, OUT_LSE));
    return TRUE;
}

/* Tokens in ascending order, so that sums over the selecting tokens are reproducible. */
static gboolean core_backward(const OpRun *run, const SparseCore *core, const real *z, const real *dz,
                              const SparseGradient *to, GError **error)
{
    int64_t elem = op_in_elem_bytes(run->view, IN_Q);
    int64_t key = key_numbers(run, core);
    for (int64_t t = 0; t < core->tokens; t++) {
        int64_t n;
        if (!n_selected(core, t, &n, error)) {
            return FALSE;
        }
        for (int64_t h = 0; h < core->heads; h++) {
            int64_t row = t * core->heads + h;
            attend_backward(core, row, n, values_out(run, OUT_LSE)[row], z + row * core->v_dim, dz + row * core->v_dim,
                            to);
            double pair = 6 * (double)q_dim(core) + 4 * (double)core->v_dim + 6;
            op_count_bytes(run, pair * (double)n + 2 * (double)core->v_dim, elem * (q_dim(core) + 2 * core->v_dim),
                           elem * q_dim(core));
        }
        op_count_bytes(run, 0, (elem + 4) * n * key, 4 * n * key); /* fetched; sums in fp32 read and written */
    }
    op_count_bytes(run, 0, op_in_bytes(run->view, IN_SEL) + op_out_bytes(run->view, OUT_LSE), 0);
    op_count_bytes(run, 0, 4 * core->tokens * key, elem * core->tokens * key); /* sums rounded */
    return TRUE;
}

/* One product of the absorbed form, for each head: C_h = op(A_h) B_h, with the heads interleaved in rows of A and C. */
typedef struct HeadProduct {
    Matmul shape;
    int64_t a_head, b_head, c_head; /* distance from one head to the next */
} HeadProduct;

static void head_products(const OpRun *run, const HeadProduct *p, const real *a, const real *b, real *c)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    int64_t elem = op_in_elem_bytes(run->view, IN_Q);
    const Matmul *s = &p->shape;
    for (int64_t h = 0; h < attr->heads; h++) {
        REAL_NAME(matmul)(s, a + h * p->a_head, b + h * p->b_head, c + h * p->c_head);
        op_count_bytes(run, 2 * (double)s->m * (double)s->n * (double)s->k, elem * (s->m + s->n) * s->k,
                       elem * s->m * s->n);
    }
}

/* Sizes of the absorbed form: rows of q, o, q~, z and of one head's projection. */
typedef struct AbsorbedSize {
    int64_t tokens, nope, rope, c, v;
    int64_t q_row, o_row, qa_row, z_row, w_head;
} AbsorbedSize;

static AbsorbedSize absorbed_size(const OpRun *run)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    AbsorbedSize s = {.tokens = values_rows(run, IN_Q), .rope = attr->rope_dim, .c = attr->latent, .v = attr->v_dim};
    s.nope = attr->head_dim - s.rope;
    s.q_row = attr->heads * attr->head_dim;
    s.o_row = attr->heads * s.v;
    s.qa_row = attr->heads * (s.c + s.rope);
    s.z_row = attr->heads * s.c;
    s.w_head = (s.nope + s.v) * s.c;
    return s;
}

/* Copies the part of the query that is not absorbed: from q to q~, or its gradient back. */
static void copy_rope_part(const OpRun *run, real *q, real *q_abs, gboolean back)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    AbsorbedSize s = absorbed_size(run);
    for (int64_t row = 0; row < s.tokens * attr->heads; row++) {
        real *own = q + row * attr->head_dim + s.nope;
        real *absorbed = q_abs + row * (s.c + s.rope) + s.c;
        memcpy(back ? own : absorbed, back ? absorbed : own, (size_t)s.rope * sizeof *own);
    }
    int64_t bytes = op_in_elem_bytes(run->view, IN_Q) * s.tokens * attr->heads * s.rope;
    op_count_bytes(run, 0, bytes, bytes);
}

static gboolean absorbed_forward(const OpRun *run, GError **error)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    AbsorbedSize s = absorbed_size(run);
    const real *weight = values_param(run, 0);
    real *q_abs = values_out(run, OUT_Q_ABS);
    g_autofree real *scratch = run->aux[0] == NULL ? g_new(real, (gsize)(s.tokens * s.z_row)) : NULL;
    real *z = run->aux[0] != NULL ? values_aux(run, 0) : scratch;
    HeadProduct absorb = {
        {.m = s.tokens, .n = s.c, .k = s.nope, .lda = s.q_row, .ldb = s.c, .ldc = s.qa_row, .alpha = 1},
        attr->head_dim,
        s.w_head,
        s.c + s.rope};
    head_products(run, &absorb, values_in(run, IN_Q), weight, q_abs);
    copy_rope_part(run, run->in[IN_Q]->data, q_abs, FALSE);
    SparseCore core = core_of(run, q_abs);
    if (!core_forward(run, &core, z, error)) {
        return FALSE;
    }
    HeadProduct project = {
        {.m = s.tokens, .n = s.v, .k = s.c, .trans_b = TRUE, .lda = s.z_row, .ldb = s.c, .ldc = s.o_row, .alpha = 1},
        s.c,
        s.w_head,
        s.v};
    head_products(run, &project, z, weight + s.nope * s.c, values_out(run, OUT_O));
    return TRUE;
}

gboolean REAL_NAME(sparse_attention_forward)(const OpRun *run, GError **error)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    if (attr->latent > 0) {
        return absorbed_forward(run, error);
    }
    SparseCore core = core_of(run, NULL);
    return core_forward(run, &core, values_out(run, OUT_O), error);
}

/* dB_V = dot z and dB_K = qt dq~, head by head. */
static void projection_gradient(const OpRun *run, const real *dq_abs)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    AbsorbedSize s = absorbed_size(run);
    Matmul shape = {.m = s.v, .n = s.c, .k = s.tokens, .trans_a = TRUE, .lda = s.o_row, .ldb = s.z_row, .alpha = 1};
    shape.ldc = s.c;
    HeadProduct dv = {shape, s.v, s.c, s.w_head};
    shape.m = s.nope;
    shape.lda = s.q_row;
    shape.ldb = s.qa_row;
    HeadProduct dk = {shape, attr->head_dim, s.c + s.rope, s.w_head};
    head_products(run, &dv, values_dout(run, OUT_O), values_aux(run, 0), values_dparam(run, 0) + s.nope * s.c);
    head_products(run, &dk, values_in(run, IN_Q), dq_abs, values_dparam(run, 0));
}

static gboolean absorbed_backward(const OpRun *run, GError **error)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    AbsorbedSize s = absorbed_size(run);
    const real *weight = values_param(run, 0);
    const real *dout = values_dout(run, OUT_O);
    const real *z = values_aux(run, 0);
    g_autofree real *dz = g_new(real, (gsize)(s.tokens * s.z_row) + 1);
    g_autofree real *dq_abs = g_new0(real, (gsize)(s.tokens * s.qa_row) + 1);
    HeadProduct to_z = {{.m = s.tokens, .n = s.c, .k = s.v, .lda = s.o_row, .ldb = s.c, .ldc = s.z_row, .alpha = 1},
                        s.v,
                        s.w_head,
                        s.c};
    head_products(run, &to_z, dout, weight + s.nope * s.c, dz);
    SparseCore core = core_of(run, values_out(run, OUT_Q_ABS));
    SparseGradient to = {.q = dq_abs,
                         .k = values_din(run, IN_LATENT),
                         .k_tail = values_din(run, IN_K_ROPE),
                         .v = values_din(run, IN_LATENT)};
    if (!core_backward(run, &core, z, dz, &to, error)) {
        return FALSE;
    }
    if (run->dparam[0] != NULL) {
        projection_gradient(run, dq_abs);
    }
    g_autofree real *unwanted = run->din[IN_Q] == NULL ? g_new(real, (gsize)(s.tokens * s.q_row) + 1) : NULL;
    real *dq = run->din[IN_Q] != NULL ? values_din(run, IN_Q) : unwanted;
    HeadProduct to_q = {{.m = s.tokens,
                         .n = s.nope,
                         .k = s.c,
                         .trans_b = TRUE,
                         .lda = s.qa_row,
                         .ldb = s.c,
                         .ldc = s.q_row,
                         .alpha = 1},
                        s.c + s.rope,
                        s.w_head,
                        attr->head_dim};
    head_products(run, &to_q, dq_abs, weight, dq);
    copy_rope_part(run, dq, dq_abs, TRUE);
    return TRUE;
}

gboolean REAL_NAME(sparse_attention_backward)(const OpRun *run, GError **error)
{
    const SparseAttentionAttr *attr = run->view->op->attr;
    values_zero_gradients(run);
    if (run->dout[OUT_O] == NULL) {
        return TRUE;
    }
    if (attr->latent > 0) {
        return absorbed_backward(run, error);
    }
    SparseCore core = core_of(run, NULL);
    SparseGradient to = {.q = values_din(run, IN_Q), .k = values_din(run, IN_K), .v = values_din(run, IN_V)};
    return core_backward(run, &core, values_out(run, OUT_O), values_dout(run, OUT_O), &to, error);
}

#if REAL_HAS_CLASS
static SparseAttentionTensors outputs_add(Graph *graph, const char *name, Dtype dtype, const SparseAttentionAttr *attr)
{
    SparseAttentionTensors t = {.q_abs = -1};
    t.o = graph_add_tensor(graph, name, ROWS_TOKENS, attr->heads * attr->v_dim, dtype);
    t.lse = graph_add_tensor(graph, op_name(name, "lse").text, ROWS_TOKENS, attr->heads, DTYPE_FP32);
    if (attr->latent > 0) {
        int64_t width = attr->heads * (attr->latent + attr->rope_dim);
        t.q_abs = graph_add_tensor(graph, op_name(name, "q_abs").text, ROWS_TOKENS, width, dtype);
    }
    return t;
}

static SparseAttentionTensors sparse_add(Graph *graph, const char *name, int param, const int inputs[4],
                                         const SparseAttentionAttr *attr)
{
    SparseAttentionAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, inputs[0])->width == full.heads * full.head_dim);
    SparseAttentionTensors t = outputs_add(graph, name, graph_tensor(graph, inputs[0])->dtype, &full);
    Op *op = op_add(graph, OP_sparse_attention, name, &full, sizeof full);
    for (int i = 0; i < 4; i++) {
        op_input(op, inputs[i]);
    }
    op_param(graph, op, param);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    if (t.q_abs >= 0) {
        op_output(graph, op, t.q_abs);
    }
    return t;
}

SparseAttentionTensors sparse_attention_add(Graph *graph, const char *name, int q, int k, int v, int sel,
                                            const SparseAttentionAttr *attr)
{
    g_assert(attr->latent == 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0);
    g_assert(graph_tensor(graph, k)->width == attr->kv_heads * attr->head_dim);
    g_assert(graph_tensor(graph, v)->width == attr->kv_heads * attr->v_dim);
    return sparse_add(graph, name, -1, (int[]){q, k, v, sel}, attr);
}

SparseAttentionTensors sparse_mla_add(Graph *graph, const char *name, const char *param, const int inputs[4],
                                      const SparseAttentionAttr *attr)
{
    int64_t rows = attr->heads * (attr->head_dim - attr->rope_dim + attr->v_dim);
    g_assert(attr->latent > 0 && attr->rope_dim > 0 && attr->rope_dim < attr->head_dim);
    g_assert(graph_tensor(graph, inputs[1])->width == attr->latent &&
             graph_tensor(graph, inputs[2])->width == attr->rope_dim);
    int weight = graph_add_param(graph, op_name(param, "weight").text, PARAM_MATRIX, rows, attr->latent, 0);
    return sparse_add(graph, name, weight, inputs, attr);
}

/* What one run computes on, in the form its core sees: q of width d, gathered keys and values. */
typedef struct SparseSize {
    double rows;  /* tokens x heads */
    double pairs; /* selected keys, summed over tokens and heads */
    double d, dv; /* core: latent + rope and latent, or head_dim and v_dim */
    int64_t tokens;
    int64_t gathered; /* numbers fetched: every selected key once for all heads that share it */
    int64_t elem;     /* bytes of a number */
    int64_t kv;       /* numbers of all keys and values */
} SparseSize;

static SparseSize sparse_size(const OpView *view)
{
    const SparseAttentionAttr *attr = view->op->attr;
    gboolean absorbed = attr->latent > 0;
    int64_t d = absorbed ? attr->latent + attr->rope_dim : attr->head_dim;
    int64_t dv = absorbed ? attr->latent : attr->v_dim;
    int64_t key = absorbed ? d : attr->kv_heads * (d + dv); /* the latent is key and value at once */
    int64_t pairs = sequences_causal_pairs(view->rows, ROWS_TOKENS, op_in(view, 3)->width);
    SparseSize s = {
        .tokens = op_rows(view, ROWS_TOKENS), .d = (double)d, .dv = (double)dv, .elem = op_in_elem_bytes(view, 0)};
    s.rows = (double)s.tokens * (double)attr->heads;
    s.pairs = (double)pairs * (double)attr->heads;
    s.gathered = pairs * key;
    s.kv = s.tokens * key;
    return s;
}

static void sparse_attention_saved(const OpView *view, OpSaved *ret_saved)
{
    const SparseAttentionAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    if (attr->latent == 0) {
        *ret_saved = (OpSaved){.inputs = 15, .outputs = 3};
        return;
    }
    *ret_saved = (OpSaved){.inputs = 14u | (op_trains_param(view, 0) ? 1u : 0u), .outputs = 6};
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->heads * attr->latent, op_out(view, 0)->dtype); /* z */
}

static void set_shape(const OpView *view, Work *work)
{
    const SparseAttentionAttr *attr = view->op->attr;
    work->dtype = op_in(view, 0)->dtype;
    work->m = op_rows(view, ROWS_TOKENS);
    work->n = attr->heads;
    work->k = attr->latent > 0 ? attr->latent + attr->rope_dim : attr->head_dim;
    work->n_groups = sequences_count(view->rows, ROWS_TOKENS);
}

/* One product per head: rows of all heads are the rows of all groups. */
static Work *head_gemm_cost(const OpView *view, OpCost *ret_cost, int64_t n, int64_t k)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t m = op_rows(view, ROWS_TOKENS) * attr->heads;
    Work *work = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM, op_in(view, 0)->dtype, m, n, k);
    work->n_groups = attr->heads;
    work->read_bytes += (attr->heads - 1) * dtype_bytes(work->dtype, n * k);
    return work;
}

static void head_wgrad_cost(const OpView *view, OpCost *ret_cost, int64_t m, int64_t n)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t k = op_rows(view, ROWS_TOKENS) * attr->heads;
    Work *work = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM_WGRAD, op_in(view, 0)->dtype, m, n, k);
    work->n_groups = attr->heads;
    work->write_bytes *= attr->heads;
}

/* The part of the query that is not absorbed passes through the absorbing product's output. */
static void add_rope_pass(const OpView *view, Work *work)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t bytes = op_in_elem_bytes(view, 0) * op_rows(view, ROWS_TOKENS) * attr->heads * attr->rope_dim;
    work->read_bytes += bytes;
    work->write_bytes += bytes;
}

/* kernels.md 5.4; the softmax as in attention.c. One kernel in the eager form too: no chain of operators exists. */
static void sparse_attention_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const SparseAttentionAttr *attr = view->op->attr;
    SparseSize s = sparse_size(view);
    double flops = s.pairs * (2 * (s.d + s.dv) + 5) + s.rows * (s.dv + 2);
    int64_t q = s.elem * (int64_t)(s.rows * s.d);
    int64_t z = s.elem * (int64_t)(s.rows * s.dv);
    if (attr->latent > 0) {
        add_rope_pass(view, head_gemm_cost(view, ret_cost, attr->latent, attr->head_dim - attr->rope_dim));
    }
    Work *core = op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_FORWARD, flops,
                                q + s.elem * s.gathered + op_in_bytes(view, 3), z + op_out_bytes(view, 1));
    set_shape(view, core);
    ret_cost->pointwise_flops = 5 * s.pairs;
    if (attr->latent > 0) {
        head_gemm_cost(view, ret_cost, attr->v_dim, attr->latent);
    }
}

/*
 * Core: five products per pair, 6 d + 4 dv, and 6 more as in attention.c; D = dz z: 2 dv per row. Gradients of keys and
 * values are added up in fp32 where the selecting tokens meet, then rounded.
 */
static void core_backward_cost(const OpView *view, OpCost *ret_cost)
{
    SparseSize s = sparse_size(view);
    double flops = s.pairs * (6 * s.d + 4 * s.dv + 6) + s.rows * 2 * s.dv;
    int64_t q = s.elem * (int64_t)(s.rows * s.d);
    int64_t z = s.elem * (int64_t)(s.rows * s.dv);
    int64_t scattered = dtype_bytes(DTYPE_FP32, s.gathered);
    int64_t sums = dtype_bytes(DTYPE_FP32, s.kv);
    int64_t read = q + 2 * z + s.elem * s.gathered + op_in_bytes(view, 3) + op_out_bytes(view, 1) + scattered;
    set_shape(view, op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_BACKWARD, flops, read, q + scattered));
    ret_cost->pointwise_flops = 6 * s.pairs;
    op_cost_stream(ret_cost, WORK_COPY, 0, sums, s.elem * s.kv);
    ret_cost->workspace_bytes = sums + dtype_bytes(DTYPE_FP32, (int64_t)s.rows);
}

static void sparse_attention_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const SparseAttentionAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    if (attr->latent == 0) {
        core_backward_cost(view, ret_cost);
        return;
    }
    SparseSize s = sparse_size(view);
    int64_t nope = attr->head_dim - attr->rope_dim;
    head_gemm_cost(view, ret_cost, attr->latent, attr->v_dim); /* dz = do B_V */
    if (op_trains_param(view, 0)) {
        head_wgrad_cost(view, ret_cost, attr->v_dim, attr->latent);
    }
    core_backward_cost(view, ret_cost);
    add_rope_pass(view, head_gemm_cost(view, ret_cost, nope, attr->latent)); /* dq = dq~ B_Kt */
    if (op_trains_param(view, 0)) {
        head_wgrad_cost(view, ret_cost, nope, attr->latent);
    }
    ret_cost->workspace_bytes += s.elem * (int64_t)(s.rows * (s.d + s.dv)); /* dq~ and dz */
}

static const int64_t packed_starts[] = {0, 4, 9};

static const struct {
    int64_t rows, top_k;
    gboolean packed;
    SparseAttentionAttr attr;
} samples[] = {
    {7, 3, FALSE, {4, 2, 3, 5, 0, 0, 0}},
    {1, 2, FALSE, {1, 1, 1, 1, 0, 0, 0.7}},
    {9, 3, TRUE, {2, 0, 5, 3, 4, 2, 0}},
    {5, 8, FALSE, {3, 0, 4, 2, 3, 1, 0.4}},
};

/* The indexer that selects is part of the graph, so that the selection is a real one. */
static gboolean sparse_attention_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const SparseAttentionAttr *attr = &samples[idx].attr;
    DsaIndexerAttr select = {.heads = 2, .dim = 3, .top_k = samples[idx].top_k, .scale = 1};
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = samples[idx].packed ? (int64_t)G_N_ELEMENTS(packed_starts) - 1 : 1;
    rows->doc_starts = samples[idx].packed ? packed_starts : NULL;
    rows->rows[ROWS_PAIRS] = sequences_all_pairs(rows, ROWS_TOKENS);
    int iq = graph_add_input(graph, "index_q", ROWS_TOKENS, 6, graph->compute, FALSE);
    int ik = graph_add_input(graph, "index_k", ROWS_TOKENS, 3, graph->compute, FALSE);
    int iw = graph_add_input(graph, "index_w", ROWS_TOKENS, 2, graph->compute, FALSE);
    int sel = dsa_indexer_add(graph, "indexer", iq, ik, iw, &select).sel;
    int q = graph_add_input(graph, "q", ROWS_TOKENS, attr->heads * attr->head_dim, graph->compute, TRUE);
    gboolean absorbed = attr->latent > 0;
    int k = graph_add_input(graph, "k", ROWS_TOKENS, absorbed ? attr->latent : attr->kv_heads * attr->head_dim,
                            graph->compute, TRUE);
    int v = graph_add_input(graph, "v", ROWS_TOKENS, absorbed ? attr->rope_dim : attr->kv_heads * attr->v_dim,
                            graph->compute, TRUE);
    SparseAttentionTensors t = absorbed ? sparse_mla_add(graph, "attn", "kv_b_proj", (int[]){q, k, v, sel}, attr)
                                        : sparse_attention_add(graph, "attn", q, k, v, sel, attr);
    graph_add_output(graph, t.o);
    return TRUE;
}

extern const OpClass op_sparse_attention;
const OpClass op_sparse_attention = {
    .id = "sparse_attention",
    .title = "sparse attention",
    .keep = OP_KEEP_ATTENTION,
    .no_grad_inputs = 8,
    .no_grad_outputs = 6,
    .saved = sparse_attention_saved,
    .forward_cost = sparse_attention_forward_cost,
    .backward_cost = sparse_attention_backward_cost,
    .forward = REAL_KERNELS(sparse_attention_forward),
    .backward = REAL_KERNELS(sparse_attention_backward),
    .sample = sparse_attention_sample,
};
#endif
