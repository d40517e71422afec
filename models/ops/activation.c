#include "models/ops/activation.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
/* FLOPs per element of the fused kernels, by the rule of models/op.h. */
typedef struct ActivationFlops {
    double forward, backward_g, backward_u;
} ActivationFlops;

static ActivationFlops activation_flops(const ActivationAttr *attr)
{
    static const ActivationFlops flops[N_ACTIVATION_FORMS] = {
        [ACTIVATION_FORM_SWIGLU] = {3, 7, 3},
        [ACTIVATION_FORM_SITU] = {9, 16, 11},
        [ACTIVATION_FORM_GPTOSS] = {8, 11, 5},
        [ACTIVATION_FORM_RELU2] = {2, 3, 0},
        [ACTIVATION_FORM_SILU] = {2, 6, 0},
        [ACTIVATION_FORM_GELU] = {5, 10, 0},
        [ACTIVATION_FORM_GELU_TANH] = {9, 18, 0},
    };
    return flops[attr->form];
}

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
    int n_kept;          /* private tensors of the input's size that autograd keeps */
    guint32 kept_inputs;
    int n_extra;         /* more of them alive at once in backward than kept tensors, dy and gradients */
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

/* Backward of a clamp with n_bounds sides: masks of one byte, then a selection that is not vectorised. */
static void activation_cost_clamp_backward(OpCost *cost, int n_bounds, int64_t n, int64_t bytes)
{
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
    double flops = activation_flops(attr).forward * (double)n;
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
        ActivationFlops flops = activation_flops(attr);
        double per_elem = (need_g ? flops.backward_g : 0) + (need_u ? flops.backward_u : 0);
        int64_t n_in = (gated ? 2 : 1) + 1, n_out = (need_g ? 1 : 0) + (need_u ? 1 : 0);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, per_elem * (double)n, n_in * bytes, n_out * bytes);
    }
}

extern const OpClass op_activation;
const OpClass op_activation = {
    .id = "activation",
    .title = "activation",
    .saved = activation_saved,
    .forward_cost = activation_forward_cost,
    .backward_cost = activation_backward_cost,
};
#endif
