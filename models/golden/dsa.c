/*
 * Golden cases of DeepSeek sparse attention: selection, attention over a selection, the indexer's loss, the whole
 * layer.
 */
#include <math.h>
#include <string.h>

#include "models/golden.h"
#include "models/ops/attention.h"
#include "models/ops/dsa-indexer.h"
#include "models/ops/dsa-kl.h"
#include "models/ops/linear.h"
#include "models/ops/mla-pack.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/sparse-attention.h"
#include "models/ops/split.h"
#include "models/sequences.h"

gboolean golden_dsa_indexer(GoldenCase *c, GError **error);
gboolean golden_dsa_kl(GoldenCase *c, GError **error);
gboolean golden_sparse_attention(GoldenCase *c, GError **error);
gboolean golden_dsa_layer(GoldenCase *c, GError **error);

/* Scores lie sequence after sequence here, as one matrix of all tokens in the files: copies between the two. */
static Tensor *scores_convert(const GoldenCase *c, const Tensor *from, gboolean to_matrix)
{
    int64_t n = c->rows.rows[ROWS_TOKENS];
    int64_t at = 0;
    Tensor *to = to_matrix ? tensor_new_2d(from->type, n, n) : tensor_new_2d(from->type, c->rows.rows[ROWS_PAIRS], 1);
    for (int64_t q = 0; q < sequences_count(&c->rows, ROWS_TOKENS); q++) {
        int64_t start = sequences_start(&c->rows, ROWS_TOKENS, q);
        int64_t end = sequences_start(&c->rows, ROWS_TOKENS, q + 1);
        for (int64_t t = start; t < end; t++) {
            for (int64_t s = start; s < end; s++, at++) {
                tensor_set(to, to_matrix ? t * n + s : at, tensor_get(from, to_matrix ? at : t * n + s));
            }
        }
    }
    return to;
}

/* Compares the scores with out.I after a run. */
static gboolean scores_compare(GoldenCase *c, int scores, GError **error)
{
    g_autoptr(Tensor) matrix = scores_convert(c, execute_value(c->run, scores), TRUE);
    return golden_compare(c, "out.I", matrix, error);
}

static DsaIndexerAttr index_attr(GoldenCase *c)
{
    return (DsaIndexerAttr){
        .heads = golden_dim(c, "in.q_index", 1),
        .dim = golden_dim(c, "in.q_index", 2),
        .top_k = golden_int(c, "topk", 1),
        .scale = 1,
        .no_relu = golden_int(c, "relu", 1) == 0,
    };
}

static DsaIndexerTensors index_add(GoldenCase *c, const DsaIndexerAttr *attr)
{
    int q = golden_input(c, "q_index", ROWS_TOKENS, TRUE);
    int k = golden_input(c, "k_index", ROWS_TOKENS, TRUE);
    int w = golden_input(c, "w_index", ROWS_TOKENS, TRUE);
    c->rows.rows[ROWS_PAIRS] = sequences_all_pairs(&c->rows, ROWS_TOKENS);
    return dsa_indexer_add(c->graph, "indexer", q, k, w, attr);
}

gboolean golden_dsa_indexer(GoldenCase *c, GError **error)
{
    DsaIndexerAttr attr = index_attr(c);
    attr.emit_scores = TRUE;
    DsaIndexerTensors t = index_add(c, &attr);
    const Tensor *upstream = golden_tensor(c, "gout.I");
    graph_add_output(c->graph, t.scores);
    golden_output(c, "sel", t.sel);
    golden_seed(c, t.scores, scores_convert(c, upstream, FALSE));
    return golden_run(c, error) && scores_compare(c, t.scores, error);
}

/*
 * The loss takes a target from queries, keys and log-sum-exps. Such as give exactly P: the key of token s is the unit
 * vector s, a query holds the logarithms of its row of P, the log-sum-exp is 0.
 */
static DsaKlTarget target_of_probabilities(GoldenCase *c)
{
    enum { LOG_OF_ZERO = -10000 };
    const Tensor *p = golden_tensor(c, "in.P");
    int64_t heads = p->dims[0];
    int64_t n = p->dims[1];
    Tensor *q = tensor_new_2d(c->real, n, heads * n);
    Tensor *k = tensor_new_2d(c->real, n, n);
    for (int64_t i = 0; i < heads * n * n; i++) {
        double value = tensor_get(p, i);
        int64_t head = i / (n * n);
        int64_t row = i / n % n;
        tensor_set(q, (row * heads + head) * n + i % n, value > 0 ? log(value) : LOG_OF_ZERO);
    }
    for (int64_t s = 0; s < n; s++) {
        tensor_set(k, s * n + s, 1);
    }
    return (DsaKlTarget){
        .q = golden_input_value(c, "target_q", ROWS_TOKENS, FALSE, q),
        .k = golden_input_value(c, "target_k", ROWS_TOKENS, FALSE, k),
        .k_tail = -1,
        .lse = golden_input_value(c, "target_lse", ROWS_TOKENS, FALSE, tensor_new_2d(c->real, n, heads)),
    };
}

gboolean golden_dsa_kl(GoldenCase *c, GError **error)
{
    gboolean dense = strcmp(golden_text(c, "stage", "sparse"), "dense") == 0;
    DsaKlAttr attr = {.index = index_attr(c), .coeff = golden_number(c, "kl_coeff", 1), .kv_heads = 1, .scale = 1};
    attr.index.top_k = golden_dim(c, "out.sel", 1); /* dense: all of them */
    attr.heads = golden_dim(c, "in.P", 0);
    attr.head_dim = golden_dim(c, "in.P", 1);
    DsaIndexerTensors indexer = index_add(c, &attr.index);
    DsaKlTarget target = target_of_probabilities(c);
    golden_output(c, "sel", indexer.sel);
    golden_output(c, "kl", dsa_kl_add(c->graph, "kl", &indexer, dense, &target, &attr));
    return golden_run(c, error);
}

gboolean golden_sparse_attention(GoldenCase *c, GError **error)
{
    SparseAttentionAttr attr = {
        .heads = golden_dim(c, "in.q", 1),
        .kv_heads = golden_dim(c, "in.k", 1),
        .head_dim = golden_dim(c, "in.q", 2),
        .v_dim = golden_dim(c, "in.v", 2),
        .scale = golden_number(c, "scale", 0),
    };
    int q = golden_input(c, "q", ROWS_TOKENS, TRUE);
    int k = golden_input(c, "k", ROWS_TOKENS, TRUE);
    int v = golden_input(c, "v", ROWS_TOKENS, TRUE);
    int sel = golden_input(c, "sel", ROWS_TOKENS, FALSE);
    SparseAttentionTensors t = sparse_attention_add(c->graph, "attention", q, k, v, sel, &attr);
    golden_output(c, "o", t.o);
    golden_output(c, "lse", t.lse);
    return golden_run(c, error);
}

/* Sizes of a whole layer, and the tensors that its attention reads. */
typedef struct DsaLayer {
    int64_t heads, nope, rope, v, latent;
    int x, positions;
    int cq, q, c, k_rope;
} DsaLayer;

static int linear(GoldenCase *c, const char *name, int x)
{
    g_autofree char *file_name = g_strdup_printf("in.%s", name);
    g_autofree char *param = g_strdup_printf("%s.weight", name);
    int y = linear_add(c->graph, name, x, golden_dim(c, file_name, 0), FALSE);
    golden_param(c, param, name);
    return y;
}

static int latent_norm(GoldenCase *c, const char *name, int x)
{
    g_autofree char *param = g_strdup_printf("%s.weight", name);
    int y =
        rmsnorm_add(c->graph, name, x, graph_tensor(c->graph, x)->width, golden_number(c, "latent_eps", 1e-6), FALSE);
    golden_param(c, param, name);
    return y;
}

static int layer_rope(GoldenCase *c, const DsaLayer *l, const char *name, int x, int64_t heads)
{
    const char *layout = golden_text(c, "rope_layout", "none");
    RopeAttr attr = {.heads = heads, .head_dim = graph_tensor(c->graph, x)->width / heads, .rotary_dim = l->rope};
    if (strcmp(layout, "none") == 0) {
        return x;
    }
    attr.offset = attr.head_dim - l->rope;
    attr.base = golden_number(c, "rope_base", 10000);
    attr.layout = strcmp(layout, "half") == 0 ? ROPE_HALF : ROPE_INTERLEAVED;
    return rope_add(c->graph, name, x, l->positions, &attr);
}

static DsaLayer layer_project(GoldenCase *c)
{
    DsaLayer l = {golden_int(c, "heads", 1), golden_int(c, "nope", 1), golden_int(c, "rope", 1),
                  golden_int(c, "vdim", 1)};
    int parts[2];
    l.latent = golden_dim(c, "in.kv_a_layernorm", 0);
    SplitAttr split = {.groups = 1, .n_parts = 2, .widths = {l.latent, l.rope}};
    l.x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    l.positions = golden_has(c, "in.positions") ? golden_input(c, "positions", ROWS_TOKENS, FALSE) : -1;
    l.cq = latent_norm(c, "q_a_layernorm", linear(c, "q_a_proj", l.x));
    l.q = layer_rope(c, &l, "q_rope", linear(c, "q_b_proj", l.cq), l.heads);
    split_add(c->graph, "kv_split", linear(c, "kv_a_proj_with_mqa", l.x), &split, parts);
    l.c = latent_norm(c, "kv_a_layernorm", parts[0]);
    l.k_rope = layer_rope(c, &l, "k_rope", parts[1], 1);
    c->rows.rows[ROWS_PAIRS] = sequences_all_pairs(&c->rows, ROWS_TOKENS);
    return l;
}

static DsaIndexerTensors layer_index(GoldenCase *c, const DsaLayer *l, DsaKlAttr *ret_attr)
{
    static const char *const names[] = {"wq_b.weight",         "wq_b",          "wk.weight",   "wk",
                                        "k_norm.weight",       "k_norm.weight", "k_norm.bias", "k_norm.bias",
                                        "weights_proj.weight", "weights_proj"};
    DsaIndexerLayer layer = {.norm_eps = golden_number(c, "index_eps", 1e-5),
                             .rotary_dim = golden_int(c, "index_rope", 0)};
    layer.rope_base = golden_number(c, "rope_base", 10000);
    layer.select.heads = golden_int(c, "index_heads", 1);
    layer.select.dim = golden_int(c, "index_dim", 1);
    layer.select.top_k = golden_int(c, "index_topk", 1);
    layer.select.scale = 1 / sqrt((double)(layer.select.heads * layer.select.dim));
    layer.select.emit_scores = TRUE;
    DsaIndexerTensors t = dsa_indexer_layer_add(c->graph, "indexer", l->x, l->cq, l->positions, &layer);
    for (size_t i = 0; i < G_N_ELEMENTS(names); i += 2) {
        g_autofree char *param = g_strdup_printf("indexer.%s", names[i]);
        g_autofree char *name = g_strdup_printf("indexer.%s", names[i + 1]);
        golden_param(c, param, name);
    }
    *ret_attr = (DsaKlAttr){.index = layer.select, .coeff = golden_number(c, "kl_coeff", 1), .heads = l->heads};
    ret_attr->scale = 1 / sqrt((double)(l->nope + l->rope));
    return t;
}

/* Dense warm-up: attention over everything, in the form with keys of every head. */
static int attend_dense(GoldenCase *c, const DsaLayer *l, DsaKlTarget *ret_target, DsaKlAttr *attr)
{
    MlaPackAttr pack = {l->heads, l->nope, l->rope, l->v};
    AttentionAttr attention = {
        .heads = l->heads, .kv_heads = l->heads, .head_dim = l->nope + l->rope, .v_dim = l->v, .causal = TRUE};
    MlaPackTensors kv = mla_pack_add(c->graph, "pack", linear(c, "kv_b_proj", l->c), l->k_rope, &pack);
    AttentionTensors t = attention_add(c->graph, "attention", l->q, kv.k, kv.v, &attention);
    *ret_target = (DsaKlTarget){.q = l->q, .k = kv.k, .k_tail = -1, .lse = t.lse};
    attr->kv_heads = l->heads;
    attr->head_dim = attention.head_dim;
    return t.o;
}

/* Sparse stage: the absorbed form over the selection. */
static int attend_sparse(GoldenCase *c, const DsaLayer *l, int sel, DsaKlTarget *ret_target, DsaKlAttr *attr)
{
    SparseAttentionAttr attention = {
        .heads = l->heads, .head_dim = l->nope + l->rope, .v_dim = l->v, .latent = l->latent, .rope_dim = l->rope};
    SparseAttentionTensors t =
        sparse_mla_add(c->graph, "attention", "kv_b_proj", (int[]){l->q, l->c, l->k_rope, sel}, &attention);
    golden_param(c, "kv_b_proj.weight", "kv_b_proj");
    *ret_target = (DsaKlTarget){.q = t.q_abs, .k = l->c, .k_tail = l->k_rope, .lse = t.lse};
    attr->kv_heads = 1;
    attr->head_dim = l->latent + l->rope;
    attr->tail_dim = l->rope;
    return t.o;
}

gboolean golden_dsa_layer(GoldenCase *c, GError **error)
{
    gboolean dense = strcmp(golden_text(c, "stage", "sparse"), "dense") == 0;
    DsaLayer l = layer_project(c);
    DsaKlAttr attr;
    DsaKlTarget target;
    DsaIndexerTensors indexer = layer_index(c, &l, &attr);
    int o = dense ? attend_dense(c, &l, &target, &attr) : attend_sparse(c, &l, indexer.sel, &target, &attr);
    int kl = dsa_kl_add(c->graph, "kl", &indexer, dense, &target, &attr);
    if (golden_has(c, "in.g_proj")) {
        o = sigmoid_gate_add(c->graph, "gate", o, linear(c, "g_proj", l.x));
    }
    golden_output(c, "sel", indexer.sel);
    golden_output(c, "kl", kl);
    golden_output(c, "y", linear(c, "o_proj", o));
    return golden_run(c, error) && scores_compare(c, indexer.scores, error);
}
