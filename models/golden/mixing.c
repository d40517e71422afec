/*
 * Golden cases of activations, AttnRes (one mix, and whole schedules) and the vision tower.
 */
#include <math.h>
#include <string.h>

#include "models/golden.h"
#include "models/op-name.h"
#include "models/ops/activation.h"
#include "models/ops/attention.h"
#include "models/ops/attnres.h"
#include "models/ops/image-merge.h"
#include "models/ops/linear.h"
#include "models/ops/residual-add.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/split.h"

gboolean golden_activation(GoldenCase *c, GError **error);
gboolean golden_attnres_mix(GoldenCase *c, GError **error);
gboolean golden_attnres_schedule(GoldenCase *c, GError **error);
gboolean golden_vision_block(GoldenCase *c, GError **error);
gboolean golden_vision_projector(GoldenCase *c, GError **error);

gboolean golden_activation(GoldenCase *c, GError **error)
{
    static const char *const kinds[] = {"swiglu", "situ", "gptoss", "relu2", "silu", "gelu", "gelu_tanh"};
    const char *kind = golden_text(c, "kind", "");
    ActivationAttr attr = {.beta = golden_number(c, "beta", 0), .linear_beta = golden_number(c, "linear_beta", 0)};
    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        attr.form = strcmp(kinds[i], kind) == 0 ? (ActivationForm)i : attr.form;
    }
    int g = golden_input(c, "g", ROWS_TOKENS, TRUE),
        u = golden_has(c, "in.u") ? golden_input(c, "u", ROWS_TOKENS, TRUE) : -1;
    golden_output(c, "y", activation_add(c->graph, "act", &attr, g, u));
    return golden_run(c, error);
}

/* Entry i along the first dimension of a tensor. */
static Tensor *entry_of(const Tensor *all, int64_t i)
{
    Tensor *part = tensor_new(all->type, all->n_dims - 1, all->dims + 1);
    int64_t n = tensor_numel(part);
    for (int64_t j = 0; j < n; j++) {
        tensor_set(part, j, tensor_get(all, i * n + j));
    }
    return part;
}

/* The other way round: fills entry i. */
static void entry_set(Tensor *all, int64_t i, const Tensor *part)
{
    int64_t n = tensor_numel(part);
    for (int64_t j = 0; j < n; j++) {
        tensor_set(all, i * n + j, tensor_get(part, j));
    }
}

/* Softmax over the n scores of every row, as [n, rows]: the weights that the operator's kept scores stand for. */
static Tensor *softmax_columns(const Tensor *scores, int n)
{
    int64_t rows = tensor_numel(scores) / n;
    Tensor *weights = tensor_new_2d(scores->type, n, rows);
    for (int64_t t = 0; t < rows; t++) {
        double most = -INFINITY, sum = 0;
        for (int i = 0; i < n; i++) {
            most = MAX(most, tensor_get(scores, t * n + i));
        }
        for (int i = 0; i < n; i++) {
            sum += exp(tensor_get(scores, t * n + i) - most);
        }
        for (int i = 0; i < n; i++) {
            tensor_set(weights, i * rows + t, exp(tensor_get(scores, t * n + i) - most) / sum);
        }
    }
    return weights;
}

gboolean golden_attnres_mix(GoldenCase *c, GError **error)
{
    const Tensor *all = golden_tensor(c, "in.V");
    int sources[ATTNRES_SOURCES_MAX], n = (int)all->dims[0];
    for (int i = 0; i < n; i++) {
        OpName name;
        g_snprintf(name.text, sizeof name.text, "source%d", i);
        sources[i] = golden_input_value(c, name.text, ROWS_TOKENS, TRUE, entry_of(all, i));
    }
    golden_output(c, "y", attnres_add(c->graph, "proj", "norm", sources, n, golden_number(c, "eps", 1e-5)));
    golden_param(c, "proj.weight", "w");
    golden_param(c, "norm.weight", "gamma");
    if (!golden_run(c, error)) {
        return FALSE;
    }
    g_autoptr(Tensor) dsources = tensor_dup(all);
    for (int i = 0; i < n; i++) {
        entry_set(dsources, i, execute_grad(c->run, sources[i]));
    }
    g_autoptr(Tensor) alpha = softmax_columns(execute_aux(c->run, graph_n_ops(c->graph) - 1, 0), n);
    return golden_compare(c, "grad.V", dsources, error) && golden_compare(c, "out.alpha", alpha, error);
}

/* Weights of one kind over layers, such as in.norm_attn [layers, h]: which parameter of the graph holds each layer's.
 */
typedef struct LayerWeights {
    const char *name;
    int params[32];
} LayerWeights;

/* A schedule under construction. */
typedef struct Schedule {
    GoldenCase *c;
    double eps;
    int two, one; /* constants [TOKENS, h], for tanh(x) = 2 sigmoid(2x) - 1 */
    int sources[ATTNRES_SOURCES_MAX];
    int n_bank;
} Schedule;

/* Binds the parameter added last but `back` to the layer's entry of in.NAME. */
static void bind_layer(Schedule *s, LayerWeights *weights, int layer, int back)
{
    OpName full = op_name("in", weights->name);
    int param = (int)s->c->graph->params->len - 1 - back;
    weights->params[layer] = param;
    golden_param_value(s->c, graph_param(s->c->graph, param)->name, NULL,
                       entry_of(golden_tensor(s->c, full.text), layer));
}

/* The mix of the bank and, unless -1, the prefix. */
static int schedule_mix(Schedule *s, const OpName *name, int prefix)
{
    int sources[ATTNRES_SOURCES_MAX], n = s->n_bank;
    memcpy(sources, s->sources, sizeof sources);
    if (prefix >= 0) {
        sources[n++] = prefix;
    }
    OpName proj = op_name(name->text, "proj"), norm = op_name(name->text, "norm");
    return attnres_add(s->c->graph, proj.text, norm.text, sources, n, s->eps);
}

static int schedule_tanh(Schedule *s, int x)
{
    Graph *graph = s->c->graph;
    int twice = residual_add(graph, "twice", x, x, 1);
    return residual_add(graph, "tanh", sigmoid_gate_add(graph, "sigmoid", s->two, twice), s->one, -1);
}

/* One sublayer: norm, matrix, tanh or SiLU. */
static int schedule_sublayer(Schedule *s, int layer, gboolean mlp, int u, LayerWeights *norms, LayerWeights *matrices)
{
    Graph *graph = s->c->graph;
    OpName name;
    int64_t h = graph_tensor(graph, u)->width;
    g_snprintf(name.text, sizeof name.text, "%d.%s", layer, mlp ? "mlp" : "attn");
    int normed = rmsnorm_add(graph, op_name(name.text, "norm").text, u, h, s->eps, FALSE);
    bind_layer(s, norms, layer, 0);
    int y = linear_add(graph, op_name(name.text, "proj").text, normed, h, FALSE);
    bind_layer(s, matrices, layer, 0);
    ActivationAttr silu = {.form = ACTIVATION_FORM_SILU};
    return mlp ? activation_add(graph, name.text, &silu, y, -1) : schedule_tanh(s, y);
}

static Tensor *constant_like(const Tensor *like, double value)
{
    Tensor *constant = tensor_dup(like);
    for (int64_t i = 0; i < tensor_numel(constant); i++) {
        tensor_set(constant, i, value);
    }
    return constant;
}

/* Compares gradients of one kind of weights, all layers together; weights that no layer used have none. */
static gboolean compare_layers(Schedule *s, const LayerWeights *weights, int n_layers, GError **error)
{
    OpName in = op_name("in", weights->name), grad = op_name("grad", weights->name);
    g_autoptr(Tensor) all = constant_like(golden_tensor(s->c, in.text), 0);
    for (int i = 0; i < n_layers; i++) {
        const Tensor *part = weights->params[i] >= 0 ? execute_param_grad(s->c->run, weights->params[i]) : NULL;
        if (part != NULL) {
            entry_set(all, i, part);
        }
    }
    return golden_compare(s->c, grad.text, all, error);
}

enum { W_ATTN, GAMMA_ATTN, W_MLP, GAMMA_MLP, NORM_ATTN, NORM_MLP, MATRIX_ATTN, MATRIX_MLP, N_LAYER_WEIGHTS };

/* The input of a sublayer: a mix, or the prefix alone where there is nothing to mix. */
static int schedule_input(Schedule *s, int layer, gboolean mlp, int prefix, LayerWeights *weights)
{
    OpName name;
    if (s->n_bank == 0) {
        return prefix;
    }
    g_snprintf(name.text, sizeof name.text, "%d.%s_res", layer, mlp ? "mlp" : "attn");
    int mixed = schedule_mix(s, &name, prefix);
    bind_layer(s, &weights[mlp ? W_MLP : W_ATTN], layer, 1);
    bind_layer(s, &weights[mlp ? GAMMA_MLP : GAMMA_ATTN], layer, 0);
    return mixed;
}

/*
 * kernels.md 6.3: every `block` layers the prefix goes to the bank. In the full variant (block 0) every sublayer's
 * result goes there by itself. Returns the last prefix, -1 if there is none.
 */
static int schedule_layers(Schedule *s, int n_layers, int block, int embedding, LayerWeights *weights)
{
    Graph *graph = s->c->graph;
    int prefix = embedding;
    for (int i = 0; i < n_layers; i++) {
        for (int mlp = 0; mlp < 2; mlp++) {
            gboolean closes = block > 0 ? !mlp && i % block == 0 : TRUE;
            int u = schedule_input(s, i, mlp, prefix, weights);
            if (closes && prefix >= 0) {
                s->sources[s->n_bank++] = prefix;
                prefix = -1;
            }
            int y = schedule_sublayer(s, i, mlp, u, &weights[mlp ? NORM_MLP : NORM_ATTN],
                                      &weights[mlp ? MATRIX_MLP : MATRIX_ATTN]);
            prefix = prefix >= 0 ? residual_add(graph, "prefix", prefix, y, 1) : y;
        }
    }
    return prefix;
}

gboolean golden_attnres_schedule(GoldenCase *c, GError **error)
{
    LayerWeights weights[N_LAYER_WEIGHTS] = {{.name = "w_attn"},    {.name = "gamma_attn"}, {.name = "w_mlp"},
                                             {.name = "gamma_mlp"}, {.name = "norm_attn"},  {.name = "norm_mlp"},
                                             {.name = "A"},         {.name = "M"}};
    int n_layers = (int)golden_int(c, "layers", 1), block = (int)golden_int(c, "block", 1);
    gboolean full = strcmp(golden_text(c, "variant", "block"), "full") == 0;
    for (int w = 0; w < N_LAYER_WEIGHTS; w++) {
        memset(weights[w].params, -1, sizeof weights[w].params);
    }
    int x = golden_input(c, "embedding", ROWS_TOKENS, TRUE);
    const Tensor *embedding = golden_tensor(c, "in.embedding");
    Schedule s = {.c = c, .eps = golden_number(c, "eps", 1e-5)};
    s.two = golden_input_value(c, "two", ROWS_TOKENS, FALSE, constant_like(embedding, 2));
    s.one = golden_input_value(c, "one", ROWS_TOKENS, FALSE, constant_like(embedding, 1));
    int prefix = schedule_layers(&s, n_layers, full ? 0 : block, x, weights);
    int mixed = schedule_mix(&s, &(OpName){"output_res"}, prefix);
    golden_param(c, "output_res.proj.weight", "w_out");
    golden_param(c, "output_res.norm.weight", "gamma_out");
    int y = rmsnorm_add(c->graph, "norm", mixed, embedding->dims[1], s.eps, FALSE);
    golden_param(c, "norm.weight", "norm_final");
    golden_output(c, "y", y);
    if (!golden_run(c, error)) {
        return FALSE;
    }
    for (int w = 0; w < N_LAYER_WEIGHTS; w++) {
        if (!compare_layers(&s, &weights[w], n_layers, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Row and column of every patch, from in.pos_y and in.pos_x. */
static Tensor *patch_grid(GoldenCase *c)
{
    const Tensor *pos_x = golden_tensor(c, "in.pos_x"), *pos_y = golden_tensor(c, "in.pos_y");
    int64_t n = tensor_numel(pos_x);
    Tensor *grid = tensor_new_2d(c->real, n, 2);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(grid, 2 * i, tensor_get(pos_y, i));
        tensor_set(grid, 2 * i + 1, tensor_get(pos_x, i));
    }
    return grid;
}

gboolean golden_vision_block(GoldenCase *c, GError **error)
{
    int64_t heads = golden_int(c, "heads", 1), dim = golden_int(c, "head_dim", 1), h = golden_dim(c, "in.norm0", 0);
    double eps = golden_number(c, "eps", 1e-5);
    Graph *graph = c->graph;
    RopeAttr rope = {.heads = heads,
                     .head_dim = dim,
                     .rotary_dim = dim,
                     .base = golden_number(c, "base", 10000),
                     .layout = ROPE_INTERLEAVED,
                     .planar = TRUE};
    AttentionAttr attention = {.heads = heads, .kv_heads = heads, .head_dim = dim, .v_dim = dim};
    SplitAttr thirds = {.groups = 1, .n_parts = 3, .widths = {heads * dim, heads * dim, heads * dim}};
    ActivationAttr gelu = {.form = ACTIVATION_FORM_GELU_TANH};
    int qkv[3];
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE),
        grid = golden_input_value(c, "grid", ROWS_TOKENS, FALSE, patch_grid(c));
    int normed = rmsnorm_add(graph, "norm0", x, h, eps, FALSE);
    split_add(graph, "qkv", linear_add(graph, "wqkv", normed, 3 * heads * dim, FALSE), &thirds, qkv);
    int q = rope_add(graph, "q_rope", qkv[0], grid, &rope), k = rope_add(graph, "k_rope", qkv[1], grid, &rope);
    int o = attention_add(graph, "attn", q, k, qkv[2], &attention).o;
    int middle = residual_add(graph, "middle", x, linear_add(graph, "wo", o, h, FALSE), 1);
    int mlp =
        linear_add(graph, "fc0", rmsnorm_add(graph, "norm1", middle, h, eps, FALSE), golden_dim(c, "in.fc0", 0), FALSE);
    mlp = linear_add(graph, "fc1", activation_add(graph, "gelu", &gelu, mlp, -1), h, FALSE);
    golden_output(c, "y", residual_add(graph, "end", middle, mlp, 1));
    static const char *const names[] = {"norm0", "wqkv", "wo", "norm1", "fc0", "fc1"};
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        golden_param(c, op_name(names[i], "weight").text, names[i]);
    }
    return golden_run(c, error);
}

gboolean golden_vision_projector(GoldenCase *c, GError **error)
{
    const Tensor *x = golden_tensor(c, "in.x"); /* [frames, height, width, channels] */
    ImageMergeAttr merge = {.merge = 2, .frames = x->dims[0], .height = x->dims[1], .width = x->dims[2]};
    int64_t n = x->dims[0] * x->dims[1] * x->dims[2];
    Tensor *patches = tensor_dup(x);
    patches->n_dims = 2;
    patches->dims[0] = n;
    patches->dims[1] = x->dims[3];
    ActivationAttr gelu = {.form = ACTIVATION_FORM_GELU};
    int in = golden_input_value(c, "x", ROWS_PATCHES, TRUE, patches);
    c->rows.rows[ROWS_IMAGE_TOKENS] = n / (4 * merge.frames);
    int merged = image_merge_add(c->graph, "merge", in, &merge);
    int y = linear_add(c->graph, "fc0", merged, golden_dim(c, "in.fc0", 0), FALSE);
    int64_t out = golden_dim(c, "in.fc1", 0);
    y = linear_add(c->graph, "fc1", activation_add(c->graph, "gelu", &gelu, y, -1), out, FALSE);
    golden_output(c, "merged", merged);
    golden_output(c, "y", rmsnorm_add(c->graph, "norm", y, out, golden_number(c, "eps", 1e-5), FALSE));
    golden_param(c, "fc0.weight", "fc0");
    golden_param(c, "fc1.weight", "fc1");
    golden_param(c, "norm.weight", "norm");
    return golden_run(c, error);
}
