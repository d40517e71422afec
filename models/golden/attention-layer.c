/*
 * Golden cases of whole attention layers: grouped-query and multi-head latent attention.
 */
#include <math.h>
#include <string.h>

#include "models/golden.h"
#include "models/ops/attention.h"
#include "models/ops/linear.h"
#include "models/ops/mla-pack.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/split.h"

gboolean golden_gqa_layer(GoldenCase *c, GError **error);
gboolean golden_mla(GoldenCase *c, GError **error);

/* A linear layer whose weight is in.NAME. */
static int linear(GoldenCase *c, const char *name, int x)
{
    g_autofree char *file_name = g_strdup_printf("in.%s", name);
    g_autofree char *param = g_strdup_printf("%s.weight", name);
    int y = linear_add(c->graph, name, x, golden_dim(c, file_name, 0), FALSE);
    golden_param(c, param, name);
    return y;
}

/* RMSNorm over parts of x, if the file has its weight in.NAME. */
static int optional_norm(GoldenCase *c, const char *name, int x, double eps)
{
    g_autofree char *file_name = g_strdup_printf("in.%s", name);
    g_autofree char *param = g_strdup_printf("%s.weight", name);
    if (!golden_has(c, file_name)) {
        return x;
    }
    int y = rmsnorm_add(c->graph, name, x, golden_dim(c, file_name, 0), eps, FALSE);
    golden_param(c, param, name);
    return y;
}

gboolean golden_gqa_layer(GoldenCase *c, GError **error)
{
    AttentionAttr attr = {.heads = golden_int(c, "heads", 1), .kv_heads = golden_int(c, "kv_heads", 1), .causal = TRUE};
    attr.head_dim = attr.v_dim = golden_int(c, "head_dim", 1);
    RopeAttr rope = {
        .heads = attr.heads, .head_dim = attr.head_dim, .base = golden_number(c, "base", 10000), .layout = ROPE_HALF};
    rope.rotary_dim = golden_int(c, "rotary_dim", attr.head_dim);
    double eps = golden_number(c, "eps", 1e-6);
    gboolean gated = golden_int(c, "gated", 0) != 0;
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int positions = golden_input(c, "positions", ROWS_TOKENS, FALSE);
    int parts[2] = {linear(c, "q_proj", x), -1};
    if (gated) {
        SplitAttr split = {.groups = attr.heads, .n_parts = 2, .widths = {attr.head_dim, attr.head_dim}};
        split_add(c->graph, "q_split", parts[0], &split, parts);
    }
    int q = rope_add(c->graph, "q_rope", optional_norm(c, "q_norm", parts[0], eps), positions, &rope);
    rope.heads = attr.kv_heads;
    int k = rope_add(c->graph, "k_rope", optional_norm(c, "k_norm", linear(c, "k_proj", x), eps), positions, &rope);
    int o = attention_add(c->graph, "attention", q, k, linear(c, "v_proj", x), &attr).o;
    if (gated) {
        o = sigmoid_gate_add(c->graph, "gate", o, parts[1]);
    }
    golden_output(c, "y", linear(c, "o_proj", o));
    return golden_run(c, error);
}

/* Rotates the last `rope` numbers of every head, if the case has a layout. */
static int mla_rope(GoldenCase *c, const char *name, int x, int positions, RopeAttr attr)
{
    const char *layout = golden_text(c, "rope_layout", "none");
    if (strcmp(layout, "none") == 0) {
        return x;
    }
    attr.base = golden_number(c, "rope_base", 10000);
    attr.rotary_dim = golden_int(c, "rope", 0);
    attr.layout = strcmp(layout, "half") == 0 ? ROPE_HALF : ROPE_INTERLEAVED;
    return rope_add(c->graph, name, x, positions, &attr);
}

gboolean golden_mla(GoldenCase *c, GError **error)
{
    MlaPackAttr pack = {golden_int(c, "heads", 1), golden_int(c, "nope", 1), golden_int(c, "rope", 1),
                        golden_int(c, "vdim", 1)};
    AttentionAttr attr = {.heads = pack.heads, .kv_heads = pack.heads, .v_dim = pack.v_dim, .causal = TRUE};
    attr.head_dim = pack.nope_dim + pack.rope_dim;
    attr.scale = golden_number(c, "scale_mult", 1) / sqrt((double)attr.head_dim);
    SplitAttr split = {.groups = 1, .n_parts = 2, .widths = {golden_dim(c, "in.kv_a_layernorm", 0), pack.rope_dim}};
    double eps = golden_number(c, "latent_eps", 1e-6);
    int parts[2];
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int positions = golden_has(c, "in.positions") ? golden_input(c, "positions", ROWS_TOKENS, FALSE) : -1;
    int q = golden_has(c, "in.q_proj")
                ? linear(c, "q_proj", x)
                : linear(c, "q_b_proj", optional_norm(c, "q_a_layernorm", linear(c, "q_a_proj", x), eps));
    q = mla_rope(c, "q_rope", q, positions,
                 (RopeAttr){.heads = pack.heads, .head_dim = attr.head_dim, .offset = pack.nope_dim});
    split_add(c->graph, "kv_split", linear(c, "kv_a_proj_with_mqa", x), &split, parts);
    int k_rope = mla_rope(c, "k_rope", parts[1], positions, (RopeAttr){.heads = 1, .head_dim = pack.rope_dim});
    int kv = linear(c, "kv_b_proj", optional_norm(c, "kv_a_layernorm", parts[0], eps));
    MlaPackTensors packed = mla_pack_add(c->graph, "pack", kv, k_rope, &pack);
    AttentionTensors t = attention_add(c->graph, "attention", q, packed.k, packed.v, &attr);
    int o = t.o;
    if (golden_has(c, "in.g_proj")) {
        o = sigmoid_gate_add(c->graph, "gate", o, linear(c, "g_proj", x));
    }
    golden_output(c, "o", t.o);
    golden_output(c, "lse", t.lse);
    golden_output(c, "y", linear(c, "o_proj", o));
    return golden_run(c, error);
}
