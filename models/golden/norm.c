/*
 * Golden cases of the norms, the rotary embedding, and attention over given q, k, v.
 */
#include <string.h>

#include "models/golden.h"
#include "models/ops/attention.h"
#include "models/ops/l2norm.h"
#include "models/ops/layernorm.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/rope.h"

gboolean golden_rmsnorm(GoldenCase *c, GError **error);
gboolean golden_layernorm(GoldenCase *c, GError **error);
gboolean golden_l2norm(GoldenCase *c, GError **error);
gboolean golden_rope(GoldenCase *c, GError **error);
gboolean golden_gqa_attention(GoldenCase *c, GError **error);

gboolean golden_rmsnorm(GoldenCase *c, GError **error)
{
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    gboolean zero_centered = golden_int(c, "zero_centered", 0) != 0;
    int y = rmsnorm_add(c->graph, "norm", x, golden_dim(c, "in.w", 0), golden_number(c, "eps", 1e-5), zero_centered);
    golden_param(c, "norm.weight", "w");
    golden_output(c, "y", y);
    return golden_run(c, error);
}

gboolean golden_layernorm(GoldenCase *c, GError **error)
{
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int y = layernorm_add(c->graph, "norm", x, golden_number(c, "eps", 1e-5));
    golden_param(c, "norm.weight", "w");
    golden_param(c, "norm.bias", "b");
    golden_output(c, "y", y);
    return golden_run(c, error);
}

gboolean golden_l2norm(GoldenCase *c, GError **error)
{
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    golden_output(c, "y", l2norm_add(c->graph, "norm", x, golden_dim(c, "in.x", 1), golden_number(c, "eps", 1e-6)));
    return golden_run(c, error);
}

gboolean golden_rope(GoldenCase *c, GError **error)
{
    RopeAttr attr = {.heads = golden_dim(c, "in.x", 1), .head_dim = golden_dim(c, "in.x", 2)};
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int positions = golden_input(c, "positions", ROWS_TOKENS, FALSE);
    attr.rotary_dim = golden_int(c, "rotary_dim", attr.head_dim);
    attr.base = golden_number(c, "base", 10000);
    attr.layout = strcmp(golden_text(c, "layout", "half"), "interleaved") == 0 ? ROPE_INTERLEAVED : ROPE_HALF;
    golden_output(c, "y", rope_add(c->graph, "rope", x, positions, &attr));
    return golden_run(c, error);
}

gboolean golden_gqa_attention(GoldenCase *c, GError **error)
{
    AttentionAttr attr = {
        .heads = golden_dim(c, "in.q", 1),
        .kv_heads = golden_dim(c, "in.k", 1),
        .head_dim = golden_dim(c, "in.q", 2),
        .v_dim = golden_dim(c, "in.v", 2),
        .scale = golden_number(c, "scale", 0),
        .causal = golden_int(c, "causal", 1) != 0,
    };
    int q = golden_input(c, "q", ROWS_TOKENS, TRUE);
    int k = golden_input(c, "k", ROWS_TOKENS, TRUE);
    int v = golden_input(c, "v", ROWS_TOKENS, TRUE);
    AttentionTensors t = attention_add(c->graph, "attention", q, k, v, &attr);
    golden_output(c, "o", t.o);
    golden_output(c, "lse", t.lse);
    return golden_run(c, error);
}
