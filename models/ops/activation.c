#include "models/ops/activation.h"

#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"

/* FLOPs per element of the fused kernels, by the rule of models/op.h; backward: the slopes, then 1 per gradient. */
typedef struct ActivationFlops {
    double value, slope;
} ActivationFlops;

static ActivationFlops activation_flops(const ActivationAttr *attr)
{
    static const ActivationFlops flops[N_ACTIVATION_FORMS] = {
        [ACTIVATION_FORM_SWIGLU] = {3, 6},     [ACTIVATION_FORM_SITU] = {9, 18}, [ACTIVATION_FORM_GPTOSS] = {8, 14},
        [ACTIVATION_FORM_RELU2] = {2, 2},      [ACTIVATION_FORM_SILU] = {2, 5},  [ACTIVATION_FORM_GELU] = {5, 10},
        [ACTIVATION_FORM_GELU_TANH] = {9, 18},
    };
    gboolean unbounded = attr->form == ACTIVATION_FORM_SITU && attr->linear_beta <= 0;
    return unbounded ? (ActivationFlops){6, 12} : flops[attr->form];
}

REAL_DECLARE(activation_forward);
REAL_DECLARE(activation_backward);

#define GPTOSS_LIMIT   ((real)7)
#define GPTOSS_ALPHA   ((real)1.702)
#define SQRT_HALF      ((real)0.70710678118654752440)
#define SQRT_2_OVER_PI ((real)0.79788456080286535588)
#define GELU_CUBIC     ((real)0.044715)

/* Partial derivatives of y. */
typedef struct ActivationSlope {
    real g, u;
} ActivationSlope;

enum { KEPT_MAX = 6 };

/*
 * One form: y, and its slopes. u is 0 for plain forms. Forms whose chain of framework kernels keeps more than its
 * inputs: what it keeps of one element, and the slopes from that and from the inputs that it keeps.
 */
typedef struct ActivationKernel {
    real (*value)(const ActivationAttr *attr, real g, real u);
    ActivationSlope (*slope)(const ActivationAttr *attr, real g, real u);
    void (*keep)(const ActivationAttr *attr, real g, real u, real *ret_kept);
    ActivationSlope (*kept_slope)(const ActivationAttr *attr, real g, real u, const real *kept);
} ActivationKernel;

static real swiglu_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    return g * real_sigmoid(g) * u;
}

static ActivationSlope swiglu_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    real s = real_sigmoid(g), silu = g * s;
    return (ActivationSlope){u * (s + silu * (1 - s)), silu};
}

/* Kept: SiLU. */
static void swiglu_keep(const ActivationAttr *attr, real g, real u, real *ret_kept)
{
    (void)attr;
    (void)u;
    ret_kept[0] = g * real_sigmoid(g);
}

static ActivationSlope swiglu_kept_slope(const ActivationAttr *attr, real g, real u, const real *kept)
{
    (void)attr;
    real s = real_sigmoid(g);
    return (ActivationSlope){u * (s + g * s * (1 - s)), kept[0]};
}

static real situ_value(const ActivationAttr *attr, real g, real u)
{
    real beta = (real)attr->beta, bound = (real)attr->linear_beta;
    real linear = bound > 0 ? bound * real_tanh(u / bound) : u;
    return beta * real_tanh(g / beta) * real_sigmoid(g) * linear;
}

static ActivationSlope situ_slope(const ActivationAttr *attr, real g, real u)
{
    real beta = (real)attr->beta, bound = (real)attr->linear_beta;
    real t = real_tanh(g / beta), s = real_sigmoid(g), gate = beta * t * s;
    real tu = bound > 0 ? real_tanh(u / bound) : 0;
    real linear = bound > 0 ? bound * tu : u;
    return (ActivationSlope){linear * ((1 - t * t) * s + gate * (1 - s)), gate * (1 - tu * tu)};
}

/* Kept: the gate's tanh and its multiple, the sigmoid, their product; with a bound on u its tanh and that multiple. */
static void situ_keep(const ActivationAttr *attr, real g, real u, real *ret_kept)
{
    real beta = (real)attr->beta, bound = (real)attr->linear_beta;
    ret_kept[0] = real_tanh(g / beta);
    ret_kept[1] = beta * ret_kept[0];
    ret_kept[2] = real_sigmoid(g);
    ret_kept[3] = ret_kept[1] * ret_kept[2];
    ret_kept[4] = bound > 0 ? real_tanh(u / bound) : 0;
    ret_kept[5] = bound * ret_kept[4];
}

static ActivationSlope situ_kept_slope(const ActivationAttr *attr, real g, real u, const real *kept)
{
    gboolean bounded = attr->linear_beta > 0;
    real linear = bounded ? kept[5] : u, tu = bounded ? kept[4] : 0, s = kept[2];
    (void)g;
    return (ActivationSlope){linear * ((1 - kept[0] * kept[0]) * s + kept[1] * s * (1 - s)), kept[3] * (1 - tu * tu)};
}

static real gptoss_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    g = real_min(g, GPTOSS_LIMIT);
    u = real_max(real_min(u, GPTOSS_LIMIT), -GPTOSS_LIMIT);
    return (u + 1) * (g * real_sigmoid(GPTOSS_ALPHA * g));
}

static ActivationSlope gptoss_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    real in_g = g <= GPTOSS_LIMIT ? 1 : 0, in_u = u <= GPTOSS_LIMIT && u >= -GPTOSS_LIMIT ? 1 : 0;
    g = real_min(g, GPTOSS_LIMIT);
    u = real_max(real_min(u, GPTOSS_LIMIT), -GPTOSS_LIMIT);
    real s = real_sigmoid(GPTOSS_ALPHA * g), glu = g * s;
    return (ActivationSlope){in_g * ((u + 1) * (s + GPTOSS_ALPHA * glu * (1 - s))), in_u * glu};
}

/* Kept: the bounded gate, its sigmoid, their product, the bounded u plus one. */
static void gptoss_keep(const ActivationAttr *attr, real g, real u, real *ret_kept)
{
    (void)attr;
    ret_kept[0] = real_min(g, GPTOSS_LIMIT);
    ret_kept[1] = real_sigmoid(GPTOSS_ALPHA * ret_kept[0]);
    ret_kept[2] = ret_kept[0] * ret_kept[1];
    ret_kept[3] = real_max(real_min(u, GPTOSS_LIMIT), -GPTOSS_LIMIT) + 1;
}

static ActivationSlope gptoss_kept_slope(const ActivationAttr *attr, real g, real u, const real *kept)
{
    real in_g = g <= GPTOSS_LIMIT ? 1 : 0, in_u = u <= GPTOSS_LIMIT && u >= -GPTOSS_LIMIT ? 1 : 0, s = kept[1];
    (void)attr;
    return (ActivationSlope){in_g * (kept[3] * (s + GPTOSS_ALPHA * kept[0] * s * (1 - s))), in_u * kept[2]};
}

static real relu2_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    real r = real_max(g, 0);
    return r * r;
}

static ActivationSlope relu2_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    return (ActivationSlope){2 * real_max(g, 0), 0};
}

/* Kept: the positive part. */
static void relu2_keep(const ActivationAttr *attr, real g, real u, real *ret_kept)
{
    (void)attr;
    (void)u;
    ret_kept[0] = real_max(g, 0);
}

static ActivationSlope relu2_kept_slope(const ActivationAttr *attr, real g, real u, const real *kept)
{
    (void)attr;
    (void)g;
    (void)u;
    return (ActivationSlope){2 * kept[0], 0};
}

static real silu_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    return g * real_sigmoid(g);
}

static ActivationSlope silu_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    real s = real_sigmoid(g);
    return (ActivationSlope){s + g * s * (1 - s), 0};
}

static real gelu_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    return g * ((1 + real_erf(g * SQRT_HALF)) * (real)0.5);
}

static ActivationSlope gelu_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    real cdf = (1 + real_erf(g * SQRT_HALF)) * (real)0.5;
    real density = SQRT_HALF * SQRT_HALF * SQRT_2_OVER_PI * real_exp(g * g * (real)-0.5);
    return (ActivationSlope){cdf + g * density, 0};
}

/* The hyperbolic tangent of GELU's approximation. */
static real gelu_tanh(real g)
{
    return real_tanh(SQRT_2_OVER_PI * (g * (1 + GELU_CUBIC * (g * g))));
}

static real gelu_tanh_value(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    return g * ((1 + gelu_tanh(g)) * (real)0.5);
}

static ActivationSlope gelu_tanh_slope(const ActivationAttr *attr, real g, real u)
{
    (void)attr;
    (void)u;
    real t = gelu_tanh(g);
    real inner = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * (g * g));
    return (ActivationSlope){(1 + t) * (real)0.5 + g * (real)0.5 * ((1 - t * t) * inner), 0};
}

static const ActivationKernel activation_kernels[N_ACTIVATION_FORMS] = {
    [ACTIVATION_FORM_SWIGLU] = {swiglu_value, swiglu_slope, swiglu_keep, swiglu_kept_slope},
    [ACTIVATION_FORM_SITU] = {situ_value, situ_slope, situ_keep, situ_kept_slope},
    [ACTIVATION_FORM_GPTOSS] = {gptoss_value, gptoss_slope, gptoss_keep, gptoss_kept_slope},
    [ACTIVATION_FORM_RELU2] = {relu2_value, relu2_slope, relu2_keep, relu2_kept_slope},
    [ACTIVATION_FORM_SILU] = {silu_value, silu_slope, NULL, NULL},
    [ACTIVATION_FORM_GELU] = {gelu_value, gelu_slope, NULL, NULL},
    [ACTIVATION_FORM_GELU_TANH] = {gelu_tanh_value, gelu_tanh_slope, NULL, NULL},
};

/* Slopes of element i, from the inputs or from what a chain has kept. */
static ActivationSlope activation_slope(const OpRun *run, const ActivationKernel *kernel, int64_t i)
{
    const real *g = real_data_const(run->in[0]), *u = real_data_const(run->in[1]);
    real at_g = g != NULL ? g[i] : 0, at_u = u != NULL ? u[i] : 0, kept[KEPT_MAX];
    if (run->aux[0] == NULL) {
        return kernel->slope(run->view->op->attr, at_g, at_u);
    }
    for (int k = 0; k < KEPT_MAX && run->aux[k] != NULL; k++) {
        kept[k] = real_data_const(run->aux[k])[i];
    }
    return kernel->kept_slope(run->view->op->attr, at_g, at_u, kept);
}

gboolean REAL_NAME(activation_forward)(const OpRun *run, GError **error)
{
    (void)error;
    const ActivationAttr *attr = run->view->op->attr;
    const ActivationKernel *kernel = &activation_kernels[attr->form];
    const real *g = real_data_const(run->in[0]), *u = real_data_const(run->in[1]);
    real *y = real_data(run->out[0]);
    int64_t n = tensor_numel(run->out[0]);
    for (int64_t i = 0; i < n; i++) {
        real kept[KEPT_MAX], at_u = u != NULL ? u[i] : 0;
        y[i] = kernel->value(attr, g[i], at_u);
        if (run->aux[0] != NULL) {
            kernel->keep(attr, g[i], at_u, kept);
        }
        for (int k = 0; k < KEPT_MAX && run->aux[k] != NULL; k++) {
            real_data(run->aux[k])[i] = kept[k];
        }
    }
    op_count(run, activation_flops(attr).value * (double)n, (u != NULL ? 2 : 1) * n, n);
    return TRUE;
}

gboolean REAL_NAME(activation_backward)(const OpRun *run, GError **error)
{
    (void)error;
    const ActivationAttr *attr = run->view->op->attr;
    const ActivationKernel *kernel = &activation_kernels[attr->form];
    const real *dy = real_data_const(run->dout[0]);
    real *dg = real_data(run->din[0]), *du = real_data(run->din[1]);
    int64_t n = graph_tensor_numel(op_in(run->view, 0), run->view->rows);
    for (int64_t i = 0; i < n; i++) {
        ActivationSlope slope = activation_slope(run, kernel, i);
        real upstream = dy != NULL ? dy[i] : 0;
        if (dg != NULL) {
            dg[i] = upstream * slope.g;
        }
        if (du != NULL) {
            du[i] = upstream * slope.u;
        }
    }
    int n_grads = (dg != NULL ? 1 : 0) + (du != NULL ? 1 : 0);
    op_count(run, (activation_flops(attr).slope + n_grads) * (double)n, (run->in[1] != NULL ? 3 : 2) * n, n_grads * n);
    return TRUE;
}

#if REAL_HAS_CLASS
gboolean activation_is_gated(ActivationForm form)
{
    return form == ACTIVATION_FORM_SWIGLU || form == ACTIVATION_FORM_SITU || form == ACTIVATION_FORM_GPTOSS;
}

int activation_add(Graph *graph, const char *name, const ActivationAttr *attr, int g, int u)
{
    GraphTensor in = *graph_tensor(graph, g);
    g_assert(activation_is_gated(attr->form) == (u >= 0));
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    graph_tensor(graph, y)->tag = in.tag;
    Op *op = op_add(graph, OP_activation, name, attr, sizeof *attr);
    op_input(op, g);
    if (u >= 0) {
        op_input(op, u);
    }
    op_output(graph, op, y);
    return y;
}

/*
 * The chain of framework kernels as PyTorch 2.11 runs it (profiled). One digit per kernel: the tensors that it
 * reads; each writes one. SiTU is 4*tanh(g/4) * sigmoid(g) * (25*tanh(u/25)): autograd keeps both tanh, their
 * multiples, the sigmoid and the product of the gate side, but neither g nor u.
 */
typedef struct ActivationChain {
    const char *forward, *backward_g, *backward_u;
    int n_kept; /* private tensors of the input's size that autograd keeps */
    guint32 kept_inputs;
    int n_extra; /* more of them alive at once in backward than kept tensors, dy and gradients */
} ActivationChain;

static const ActivationChain activation_chains[N_ACTIVATION_FORMS] = {
    [ACTIVATION_FORM_SWIGLU] = {"12", "22", "2", 1, 3, 0},
    [ACTIVATION_FORM_SITU] = {"111121112", "22121222", "2121", 6, 0, 0},
    [ACTIVATION_FORM_GPTOSS] = {"1111122", "222212", "2", 4, 3, 0},
    [ACTIVATION_FORM_RELU2] = {"11", "1122", "", 1, 0, 1},
    [ACTIVATION_FORM_SILU] = {"1", "2", "", 0, 1, 0},
    [ACTIVATION_FORM_GELU] = {"1", "2", "", 0, 1, 0},
    [ACTIVATION_FORM_GELU_TANH] = {"1", "2", "", 0, 1, 0},
};

/* SiTU without a bound on u: u enters the last product as it is. */
static const ActivationChain activation_situ_unbounded = {"111122", "22121222", "2", 4, 2, 0};

static const ActivationChain *activation_chain(const ActivationAttr *attr)
{
    gboolean unbounded = attr->form == ACTIVATION_FORM_SITU && attr->linear_beta <= 0;
    return unbounded ? &activation_situ_unbounded : &activation_chains[attr->form];
}

static void activation_saved(const OpView *view, OpSaved *ret_saved)
{
    const ActivationAttr *attr = view->op->attr;
    const GraphTensor *g = op_in(view, 0);
    *ret_saved = (OpSaved){.inputs = activation_is_gated(attr->form) ? 3 : 1};
    if (view->op->eager) {
        const ActivationChain *chain = activation_chain(attr);
        ret_saved->inputs = chain->kept_inputs;
        for (int i = 0; i < chain->n_kept; i++) {
            op_saved_aux(ret_saved, g->rows, g->width, g->dtype);
        }
    }
}

/* Adds the kernels of a chain over n elements that take `bytes` per tensor. */
static void activation_cost_chain(OpCost *cost, const char *chain, int64_t n, int64_t bytes)
{
    for (const char *reads = chain; *reads != '\0'; reads++) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)n, (*reads - '0') * bytes, bytes);
    }
}

/* Backward of a clamp with n_bounds sides: a zero, masks of one byte, then a selection that is not vectorised. */
static void activation_cost_clamp_backward(OpCost *cost, int n_bounds, int64_t n, int64_t bytes)
{
    op_cost_stream(cost, WORK_COPY, 0, 0, n > 0 ? bytes / n : 0);
    for (int i = 0; i < n_bounds; i++) {
        op_cost_stream(cost, WORK_ELEMENTWISE, 0, bytes, n);
    }
    if (n_bounds > 1) {
        op_cost_stream(cost, WORK_ELEMENTWISE, 0, 2 * n, n);
    }
    op_cost_stream(cost, WORK_STRIDED, 0, bytes + n, bytes);
}

static void activation_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const ActivationAttr *attr = view->op->attr;
    int64_t n = graph_tensor_numel(op_in(view, 0), view->rows);
    int64_t bytes = op_in_bytes(view, 0);
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        activation_cost_chain(ret_cost, activation_chain(attr)->forward, n, bytes);
        return;
    }
    int n_in = activation_is_gated(attr->form) ? 2 : 1;
    double flops = activation_flops(attr).value * (double)n;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, flops, n_in * bytes, op_out_bytes(view, 0));
}

static void activation_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const ActivationAttr *attr = view->op->attr;
    gboolean gated = activation_is_gated(attr->form);
    gboolean need_g = op_needs_input_grad(view, 0), need_u = gated && op_needs_input_grad(view, 1);
    int64_t n = graph_tensor_numel(op_in(view, 0), view->rows);
    int64_t bytes = op_in_bytes(view, 0);
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        const ActivationChain *chain = activation_chain(attr);
        gboolean clamps = attr->form == ACTIVATION_FORM_GPTOSS;
        activation_cost_chain(ret_cost, need_u ? chain->backward_u : "", n, bytes);
        activation_cost_chain(ret_cost, need_g ? chain->backward_g : "", n, bytes);
        if (clamps && need_g) {
            activation_cost_clamp_backward(ret_cost, 1, n, bytes);
        }
        if (clamps && need_u) {
            activation_cost_clamp_backward(ret_cost, 2, n, bytes);
        }
        ret_cost->workspace_bytes = chain->n_extra * bytes;
        return;
    }
    if (need_g || need_u) {
        int n_grads = (need_g ? 1 : 0) + (need_u ? 1 : 0);
        double flops = (activation_flops(attr).slope + n_grads) * (double)n;
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, flops, (gated ? 3 : 2) * bytes, n_grads * bytes);
    }
}

static gboolean activation_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        ActivationAttr attr;
        int64_t rows, width;
    } samples[] = {
        {{ACTIVATION_FORM_SWIGLU, 0, 0}, 5, 7}, {{ACTIVATION_FORM_SITU, 4, 25}, 3, 9},
        {{ACTIVATION_FORM_SITU, 4, 0}, 4, 5},   {{ACTIVATION_FORM_GPTOSS, 0, 0}, 6, 3},
        {{ACTIVATION_FORM_RELU2, 0, 0}, 5, 5},  {{ACTIVATION_FORM_SILU, 0, 0}, 1, 1},
        {{ACTIVATION_FORM_GELU, 0, 0}, 2, 11},  {{ACTIVATION_FORM_GELU_TANH, 0, 0}, 7, 3},
    };
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    int64_t width = samples[idx].width;
    gboolean gated = activation_is_gated(samples[idx].attr.form);
    int g = graph_add_input(graph, "g", ROWS_TOKENS, width, graph->compute, TRUE);
    int u = gated ? graph_add_input(graph, "u", ROWS_TOKENS, width, graph->compute, TRUE) : -1;
    graph_add_output(graph, activation_add(graph, "act", &samples[idx].attr, g, u));
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = 1;
    rows->seq_len = samples[idx].rows;
    return TRUE;
}

extern const OpClass op_activation;
const OpClass op_activation = {
    .id = "activation",
    .title = "activation",
    .saved = activation_saved,
    .forward_cost = activation_forward_cost,
    .backward_cost = activation_backward_cost,
    .forward = REAL_KERNELS(activation_forward),
    .backward = REAL_KERNELS(activation_backward),
    .sample = activation_sample,
};
#endif
