/*
 * Golden cases of KDA, gated delta net, short convolution and gated norm: the operators, and whole layers of them.
 */
#include <string.h>

#include "models/delta-op.h"
#include "models/golden.h"
#include "models/op-name.h"
#include "models/ops/gated-norm.h"
#include "models/ops/gdn.h"
#include "models/ops/kda.h"
#include "models/ops/linear.h"
#include "models/ops/short-conv.h"

gboolean golden_short_conv(GoldenCase *c, GError **error);
gboolean golden_gated_head_rmsnorm(GoldenCase *c, GError **error);
gboolean golden_kda_gate(GoldenCase *c, GError **error);
gboolean golden_kda_core(GoldenCase *c, GError **error);
gboolean golden_kda(GoldenCase *c, GError **error);
gboolean golden_kda_layer(GoldenCase *c, GError **error);
gboolean golden_gdn(GoldenCase *c, GError **error);
gboolean golden_gdn_layer(GoldenCase *c, GError **error);

gboolean golden_short_conv(GoldenCase *c, GError **error)
{
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    gboolean silu = strcmp(golden_text(c, "act", "silu"), "silu") == 0;
    int64_t channels = golden_dim(c, "in.w", 0), kernel = golden_dim(c, "in.w", 1);
    int y = short_conv_add(c->graph, "conv", x, channels, kernel, silu);
    if (golden_has(c, "in.state")) { /* one sequence: its rows side by side */
        Tensor *state = tensor_dup(golden_tensor(c, "in.state"));
        state->n_dims = 2;
        state->dims[0] = 1;
        state->dims[1] = (kernel - 1) * channels;
        op_input(graph_op(c->graph, 0), golden_input_value(c, "state", ROWS_SEQUENCES, TRUE, state));
    }
    golden_param(c, "conv.weight", "w");
    golden_output(c, "y", y);
    return golden_run(c, error);
}

gboolean golden_gated_head_rmsnorm(GoldenCase *c, GError **error)
{
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE), gate = golden_input(c, "gate", ROWS_TOKENS, TRUE);
    gboolean silu = strcmp(golden_text(c, "gate", "sigmoid"), "silu") == 0;
    GatedNormKind kind = silu ? GATED_NORM_SILU : GATED_NORM_SIGMOID;
    int y = gated_norm_add(c->graph, "norm", x, gate, golden_dim(c, "in.w", 0), kind, golden_number(c, "eps", 1e-5));
    golden_param(c, "norm.weight", "w");
    golden_output(c, "y", y);
    return golden_run(c, error);
}

static KdaGate kda_gate_of(const GoldenCase *c)
{
    return strcmp(golden_text(c, "gate", "bounded"), "softplus") == 0 ? KDA_GATE_SOFTPLUS : KDA_GATE_BOUNDED;
}

/* The gate alone is a function inside the operator. */
gboolean golden_kda_gate(GoldenCase *c, GError **error)
{
    KdaAttr attr = {.value_heads = golden_dim(c, "in.z", 1),
                    .key_dim = golden_dim(c, "in.z", 2),
                    .gate = kda_gate_of(c),
                    .lower_bound = golden_number(c, "lower_bound", -5)};
    const Tensor *z = golden_tensor(c, "in.z"), *a_log = golden_tensor(c, "in.A_log"),
                 *dt = golden_tensor(c, "in.dt_bias");
    g_autoptr(Tensor) g = tensor_dup(z), dz = tensor_dup(z), da_log = tensor_dup(a_log), ddt = tensor_dup(dt);
    KdaGateTensors tensors = {z, a_log, dt, golden_tensor(c, "gout.g"), g, dz, da_log, ddt};
    if (c->real == TENSOR_F64) {
        kda_gate_run_f64(&attr, &tensors);
    } else {
        kda_gate_run_f32(&attr, &tensors);
    }
    return golden_compare(c, "out.g", g, error) && golden_compare(c, "grad.z", dz, error) &&
           golden_compare(c, "grad.A_log", da_log, error) && golden_compare(c, "grad.dt_bias", ddt, error);
}

/* States before and after, if the case has them. Their dimensions begin with the sequence. */
static void add_states(GoldenCase *c, int64_t width)
{
    int before = golden_has(c, "in.S0") ? golden_input(c, "S0", ROWS_SEQUENCES, TRUE) : -1;
    int after = graph_add_tensor(c->graph, "S", ROWS_SEQUENCES, width, c->graph->compute);
    delta_op_add_states(c->graph, graph_op(c->graph, 0), before, after);
    golden_output(c, "S", after);
}

/* Sizes of heads from the files' q and v. */
static KdaAttr kda_attr(GoldenCase *c, const char *q)
{
    return (KdaAttr){
        .heads = golden_dim(c, q, 1),
        .value_heads = golden_dim(c, "in.v", 1),
        .key_dim = golden_dim(c, q, 2),
        .value_dim = golden_dim(c, "in.v", 2),
    };
}

static gboolean run_kda(GoldenCase *c, const KdaAttr *attr, const char *const names[5], GError **error)
{
    int inputs[5];
    for (int i = 0; i < 5; i++) {
        inputs[i] = golden_input(c, names[i], ROWS_TOKENS, TRUE);
    }
    int o = kda_add(c->graph, "attn", inputs, attr);
    golden_output(c, "o", o);
    add_states(c, attr->value_heads * attr->key_dim * attr->value_dim);
    if (attr->gate != KDA_GATE_NONE) {
        golden_param(c, "attn.A_log", "A_log");
        golden_param(c, "attn.dt_bias", "dt_bias");
    }
    return golden_run(c, error);
}

/* Auxiliary tensors of GDN and KDA that hold normed q and k. */
enum { KEPT_Q = 2, KEPT_K };

/* What a core without a gate reads: decays by key channel or by head. */
typedef struct CoreInputs {
    const Tensor *q, *k; /* normed */
    const Tensor *g;
    gboolean per_channel;
} CoreInputs;

/* [.., 1] to [.., n], and back as sums. */
static Tensor *repeat_last(const Tensor *x, int64_t n)
{
    Tensor *y = tensor_new_2d(x->type, tensor_numel(x), n);
    for (int64_t i = 0; i < tensor_numel(y); i++) {
        tensor_set(y, i, tensor_get(x, i / n));
    }
    return y;
}

static Tensor *sum_last(const Tensor *x, int64_t n)
{
    Tensor *y = tensor_new_2d(x->type, tensor_numel(x) / n, 1);
    for (int64_t i = 0; i < tensor_numel(x); i++) {
        tensor_set(y, i / n, tensor_get(y, i / n) + tensor_get(x, i));
    }
    return y;
}

/* grad.X of an intermediate, where the file has it. */
static gboolean compare_intermediate(GoldenCase *c, const char *name, const Tensor *got, GError **error)
{
    return !golden_has(c, name) || golden_compare(c, name, got, error);
}

/*
 * The file's intermediates: normed keys and queries, decays and write strengths. They must be what gives the results, and
 * their gradients those of the core alone.
 */
static gboolean check_core(GoldenCase *c, const DeltaShape *shape, const CoreInputs *in, GError **error)
{
    KdaAttr attr = {.heads = shape->heads,
                    .value_heads = shape->value_heads,
                    .key_dim = shape->key_dim,
                    .value_dim = shape->value_dim,
                    .gate = KDA_GATE_NONE};
    g_autoptr(Tensor) g = in->per_channel ? tensor_dup(in->g) : repeat_last(in->g, shape->key_dim);
    const Tensor *given[] = {in->q, in->k, golden_tensor(c, "in.v"), g, golden_tensor(c, "out.beta"),
                             golden_tensor(c, "in.S0")};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int inputs[DELTA_N_IN];
    delta_op_sample_inputs(graph, shape, "g", shape->value_heads * shape->key_dim, inputs);
    int o = kda_add(graph, "core", inputs, &attr);
    int64_t state_width = shape->value_heads * shape->key_dim * shape->value_dim;
    int before = given[5] != NULL ? graph_add_input(graph, "S0", ROWS_SEQUENCES, state_width, DTYPE_FP64, TRUE) : -1;
    int after = graph_add_tensor(graph, "S", ROWS_SEQUENCES, state_width, DTYPE_FP64);
    delta_op_add_states(graph, graph_op(graph, 0), before, after);
    graph_finish(graph);
    g_autoptr(Execution) run = execute_new(graph, &c->rows, c->real);
    for (int i = 0; i < DELTA_N_IN; i++) {
        execute_put(run, inputs[i], given[i]);
    }
    if (before >= 0) {
        execute_put(run, before, given[5]);
    }
    execute_put_grad(run, o, golden_tensor(c, "gout.o"));
    execute_put_grad(run, after, golden_tensor(c, "gout.S"));
    if (!execute_forward(run, error) || !execute_backward(run, error)) {
        return FALSE;
    }
    g_autoptr(Tensor) dg = in->per_channel ? tensor_dup(execute_grad(run, inputs[DELTA_IN_GATE]))
                                           : sum_last(execute_grad(run, inputs[DELTA_IN_GATE]), shape->key_dim);
    return golden_compare(c, "out.o", execute_value(run, o), error) &&
           golden_compare(c, "out.S", execute_value(run, after), error) &&
           compare_intermediate(c, "grad.q", execute_grad(run, inputs[DELTA_IN_Q]), error) &&
           compare_intermediate(c, "grad.k", execute_grad(run, inputs[DELTA_IN_K]), error) &&
           compare_intermediate(c, "grad.g", dg, error) &&
           compare_intermediate(c, "grad.beta", execute_grad(run, inputs[DELTA_IN_BETA]), error);
}

gboolean golden_kda_core(GoldenCase *c, GError **error)
{
    static const char *const names[] = {"q", "k", "v", "g", "beta"};
    KdaAttr attr = kda_attr(c, "in.q");
    attr.gate = KDA_GATE_NONE;
    return run_kda(c, &attr, names, error);
}

/* The gate alone: its value and, from the file's gradient of it, those of z and of its parameters. */
static gboolean check_gate(GoldenCase *c, const KdaAttr *attr, GError **error)
{
    const Tensor *z = golden_tensor(c, "in.z"), *a_log = golden_tensor(c, "in.A_log"),
                 *dt_bias = golden_tensor(c, "in.dt_bias");
    g_autoptr(Tensor) g = tensor_new(c->real, z->n_dims, z->dims), dz = tensor_new(c->real, z->n_dims, z->dims);
    g_autoptr(Tensor) da_log = tensor_new(c->real, a_log->n_dims, a_log->dims);
    g_autoptr(Tensor) ddt_bias = tensor_new(c->real, dt_bias->n_dims, dt_bias->dims);
    KdaGateTensors tensors = {z, a_log, dt_bias, golden_tensor(c, "grad.g"), g, dz, da_log, ddt_bias};
    (c->real == TENSOR_F64 ? kda_gate_run_f64 : kda_gate_run_f32)(attr, &tensors);
    return golden_compare(c, "out.g", g, error) && golden_compare(c, "grad.z", dz, error) &&
           golden_compare(c, "grad.A_log", da_log, error) && golden_compare(c, "grad.dt_bias", ddt_bias, error);
}

gboolean golden_kda(GoldenCase *c, GError **error)
{
    static const char *const names[] = {"q_raw", "k_raw", "v", "z", "beta_logit"};
    KdaAttr attr = kda_attr(c, "in.q_raw");
    attr.gate = kda_gate_of(c);
    attr.lower_bound = golden_number(c, "lower_bound", -5);
    attr.beta_scale = golden_number(c, "beta_scale", 1);
    DeltaShape shape = {attr.heads, attr.value_heads, attr.key_dim, attr.value_dim, DELTA_CHUNK, TRUE};
    CoreInputs core = {golden_tensor(c, "out.q"), golden_tensor(c, "out.k"), golden_tensor(c, "out.g"), TRUE};
    return run_kda(c, &attr, names, error) && check_gate(c, &attr, error) && check_core(c, &shape, &core, error);
}

/* A projection of x whose weight is in.NAME. */
static int project(GoldenCase *c, int x, const char *name)
{
    OpName full = op_name("in", name), weight = op_name(name, "weight");
    int y = linear_add(c->graph, name, x, golden_dim(c, full.text, 0), FALSE);
    golden_param(c, weight.text, name);
    return y;
}

/* A projection with its short convolution, whose weight is in.CONV. */
static int project_conv(GoldenCase *c, int x, const char *name, const char *conv)
{
    OpName full = op_name("in", conv), weight = op_name(conv, "weight");
    const Tensor *taps = golden_tensor(c, full.text);
    int64_t kernel = taps->dims[taps->n_dims - 1];
    int y = short_conv_add(c->graph, conv, project(c, x, name), taps->dims[0], kernel, TRUE);
    golden_param(c, weight.text, conv);
    return y;
}

gboolean golden_kda_layer(GoldenCase *c, GError **error)
{
    int64_t heads = golden_int(c, "heads", 1), dim = golden_int(c, "head_dim", 1);
    KdaAttr attr = {.heads = heads,
                    .value_heads = heads,
                    .key_dim = dim,
                    .value_dim = dim,
                    .gate = kda_gate_of(c),
                    .lower_bound = golden_number(c, "lower_bound", -5),
                    .beta_scale = 1};
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int q = project_conv(c, x, "q_proj", "q_conv1d"), k = project_conv(c, x, "k_proj", "k_conv1d");
    int v = project_conv(c, x, "v_proj", "v_conv1d");
    int z = project(c, project(c, x, "f_a_proj"), "f_b_proj"), beta = project(c, x, "b_proj");
    int o = kda_add(c->graph, "attn", (int[]){q, k, v, z, beta}, &attr);
    int states = graph_add_tensor(c->graph, "S", ROWS_SEQUENCES, heads * dim * dim, c->graph->compute);
    delta_op_add_states(c->graph, graph_op(c->graph, graph_n_ops(c->graph) - 1), -1, states);
    int gate = golden_has(c, "in.g_proj") ? project(c, x, "g_proj") : project(c, project(c, x, "g_a_proj"), "g_b_proj");
    int normed = gated_norm_add(c->graph, "o_norm", o, gate, dim, GATED_NORM_SIGMOID, golden_number(c, "eps", 1e-5));
    golden_param(c, "attn.A_log", "A_log");
    golden_param(c, "attn.dt_bias", "dt_bias");
    golden_param(c, "o_norm.weight", "o_norm");
    golden_output(c, "y", project(c, normed, "o_proj"));
    golden_output(c, "S", states);
    return golden_run(c, error);
}

gboolean golden_gdn(GoldenCase *c, GError **error)
{
    static const char *const names[] = {"q_raw", "k_raw", "v", "a", "beta_logit"};
    KdaAttr sizes = kda_attr(c, "in.q_raw");
    GdnAttr attr = {
        .heads = sizes.heads, .value_heads = sizes.value_heads, .key_dim = sizes.key_dim, .value_dim = sizes.value_dim};
    int inputs[5];
    for (int i = 0; i < 5; i++) {
        inputs[i] = golden_input(c, names[i], ROWS_TOKENS, TRUE);
    }
    golden_output(c, "o", gdn_add(c->graph, "attn", inputs, &attr));
    add_states(c, attr.value_heads * attr.key_dim * attr.value_dim);
    golden_param(c, "attn.A_log", "A_log");
    golden_param(c, "attn.dt_bias", "dt_bias");
    if (!golden_run(c, error)) {
        return FALSE;
    }
    DeltaShape shape = {attr.heads, attr.value_heads, attr.key_dim, attr.value_dim, DELTA_CHUNK, FALSE};
    CoreInputs core = {execute_aux(c->run, 0, KEPT_Q), execute_aux(c->run, 0, KEPT_K), golden_tensor(c, "out.g"),
                       FALSE};
    return check_core(c, &shape, &core, error);
}

gboolean golden_gdn_layer(GoldenCase *c, GError **error)
{
    GdnAttr attr = {.heads = golden_int(c, "key_heads", 1),
                    .value_heads = golden_int(c, "value_heads", 1),
                    .key_dim = golden_int(c, "key_dim", 1),
                    .value_dim = golden_int(c, "value_dim", 1)};
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int q = project_conv(c, x, "q_proj", "q_conv"), k = project_conv(c, x, "k_proj", "k_conv");
    int v = project_conv(c, x, "v_proj", "v_conv"), z = project(c, x, "z_proj");
    int a = project(c, x, "a_proj"), beta = project(c, x, "b_proj");
    int o = gdn_add(c->graph, "attn", (int[]){q, k, v, a, beta}, &attr);
    int normed = gated_norm_add(c->graph, "norm", o, z, attr.value_dim, GATED_NORM_SILU, golden_number(c, "eps", 1e-6));
    golden_param(c, "attn.A_log", "A_log");
    golden_param(c, "attn.dt_bias", "dt_bias");
    golden_param(c, "norm.weight", "norm");
    golden_output(c, "y", project(c, normed, "o_proj"));
    return golden_run(c, error);
}
