/*
 * Golden cases of the router, its losses and biases, and of the way of tokens through experts.
 */
#include <math.h>
#include <string.h>

#include "models/balance.h"
#include "models/block.h"
#include "models/golden.h"
#include "models/moe-tables.h"
#include "models/op-name.h"
#include "models/ops/activation.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/linear.h"
#include "models/ops/permute.h"
#include "models/ops/residual-add.h"
#include "models/ops/router-loss.h"
#include "models/ops/router.h"
#include "models/ops/unpermute.h"
#include "sim/base/error.h"

gboolean golden_router(GoldenCase *c, GError **error);
gboolean golden_router_loss(GoldenCase *c, GError **error);
gboolean golden_sign_bias(GoldenCase *c, GError **error);
gboolean golden_quantile_bias(GoldenCase *c, GError **error);
gboolean golden_permute(GoldenCase *c, GError **error);
gboolean golden_unpermute(GoldenCase *c, GError **error);
gboolean golden_grouped_gemm(GoldenCase *c, GError **error);
gboolean golden_moe_layer(GoldenCase *c, GError **error);
gboolean golden_lora_experts(GoldenCase *c, GError **error);

static gboolean missing(GError **error, const char *what)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s", what);
    return FALSE;
}

static RouterScore score_of(const char *name)
{
    return strcmp(name, "softmax") == 0   ? ROUTER_SOFTMAX
           : strcmp(name, "sigmoid") == 0 ? ROUTER_SIGMOID
                                          : ROUTER_TOPK_SOFTMAX;
}

static RouterAttr router_attr(const GoldenCase *c, int64_t experts)
{
    return (RouterAttr){
        .experts = experts,
        .top_k = golden_int(c, "topk", 1),
        .score = score_of(golden_text(c, "score", "softmax")),
        .renorm = golden_int(c, "renorm", 0) != 0,
        .scaling = golden_number(c, "scaling", 1),
        .groups = golden_int(c, "n_group", 1),
        .topk_groups = golden_int(c, "topk_group", 1),
        .group_score = strcmp(golden_text(c, "group_score", "sum2"), "max") == 0 ? ROUTER_GROUP_MAX : ROUTER_GROUP_SUM2,
        .bias_buffer = golden_has(c, "in.bias"),
        .linear_bias = golden_has(c, "in.logit_bias"),
        .emit_logits = TRUE,
    };
}

/* The chosen entries of a dense [N, E] tensor, [N, k]; and the other way, zeros elsewhere. */
static Tensor *pick(const Tensor *dense, const Tensor *sel)
{
    Tensor *picked = tensor_new_2d(dense->type, sel->dims[0], sel->dims[1]);
    for (int64_t i = 0; i < tensor_numel(sel); i++) {
        int64_t at = i / sel->dims[1] * dense->dims[1] + ((const int64_t *)sel->data)[i];
        tensor_set(picked, i, tensor_get(dense, at));
    }
    return picked;
}

static Tensor *spread(const Tensor *picked, const Tensor *sel, int64_t experts)
{
    Tensor *dense = tensor_new_2d(picked->type, sel->dims[0], experts);
    for (int64_t i = 0; i < tensor_numel(sel); i++) {
        tensor_set(dense, i / sel->dims[1] * experts + ((const int64_t *)sel->data)[i], tensor_get(picked, i));
    }
    return dense;
}

/* Choices of the file, checked: [N, k] with values below E. NULL and an error otherwise. */
static const Tensor *read_sel(GoldenCase *c, const char *full_name, int64_t experts, GError **error)
{
    const Tensor *sel = golden_tensor(c, full_name);
    gboolean fits = sel != NULL && sel->type == TENSOR_I64 && sel->n_dims == 2;
    for (int64_t i = 0; fits && i < tensor_numel(sel); i++) {
        int64_t e = ((const int64_t *)sel->data)[i];
        fits = e >= 0 && e < experts;
    }
    if (!fits) {
        missing(error, "the case has no valid choices of experts");
        return NULL;
    }
    return sel;
}

static Tensor *identity(TensorType type, int64_t n)
{
    Tensor *unit = tensor_new_2d(type, n, n);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(unit, i * (n + 1), 1);
    }
    return unit;
}

/* The gradient of the logits: that of the input of a router whose matrix is the identity. */
static gboolean check_logit_gradient(GoldenCase *c, const RouterAttr *attr, const Tensor *seed, GError **error)
{
    RouterAttr plain = *attr;
    const Tensor *logits = golden_tensor(c, "out.logits");
    plain.linear_bias = FALSE;
    plain.emit_logits = FALSE;
    plain.capacity = (MoeCapacity){0};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int x = graph_add_input(graph, "logits", ROWS_TOKENS, attr->experts, DTYPE_FP64, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &plain);
    graph_finish(graph);
    g_autoptr(Tensor) unit = identity(c->real, attr->experts);
    g_autoptr(Execution) run = execute_new(graph, &c->rows, c->real);
    execute_put(run, x, logits);
    execute_put_param(run, 0, unit);
    if (plain.bias_buffer) {
        execute_put_param(run, 1, golden_tensor(c, "in.bias"));
    }
    execute_put_grad(run, t.weights, seed);
    return execute_forward(run, error) && execute_backward(run, error) &&
           golden_compare(c, "grad.logits", execute_grad(run, x), error);
}

gboolean golden_router(GoldenCase *c, GError **error)
{
    int64_t experts = golden_dim(c, "in.W", 0);
    RouterAttr attr = router_attr(c, experts);
    const Tensor *sel = read_sel(c, "out.sel", experts, error);
    if (sel == NULL) {
        return FALSE;
    }
    Tensor *seed = pick(golden_tensor(c, "gout.weights"), sel);
    g_ptr_array_add(c->owned, seed);
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    RouterTensors t = router_add(c->graph, "gate", x, &attr);
    c->rows.rows[ROWS_EXPERTS] = experts;
    golden_param(c, "gate.weight", "W");
    if (attr.bias_buffer) {
        golden_param(c, "gate.e_score_correction_bias", "bias");
    }
    if (attr.linear_bias) {
        golden_param(c, "gate.bias", "logit_bias");
    }
    golden_output(c, "sel_weights", t.weights);
    golden_output(c, "sel", t.sel);
    golden_output(c, "counts", t.counts);
    golden_seed(c, t.weights, tensor_dup(seed));
    if (!golden_run(c, error)) {
        return FALSE;
    }
    g_autoptr(Tensor) dense = spread(execute_value(c->run, t.weights), execute_value(c->run, t.sel), experts);
    return golden_compare(c, "out.weights", dense, error) &&
           golden_compare(c, "out.logits", execute_value(c->run, t.logits), error) &&
           check_logit_gradient(c, &attr, seed, error);
}

/* Choices of each expert, sequence by sequence. */
static gboolean compare_sequence_counts(GoldenCase *c, const Tensor *sel, int64_t n_sequences, int64_t experts,
                                        GError **error)
{
    int64_t per_sequence = tensor_numel(sel) / n_sequences;
    g_autoptr(Tensor) counts = tensor_new_2d(TENSOR_I64, n_sequences, experts);
    for (int64_t i = 0; i < tensor_numel(sel); i++) {
        ((int64_t *)counts->data)[i / per_sequence * experts + ((const int64_t *)sel->data)[i]]++;
    }
    return golden_compare(c, "out.counts", counts, error);
}

gboolean golden_router_loss(GoldenCase *c, GError **error)
{
    gboolean aux = strcmp(golden_text(c, "loss", "aux"), "aux") == 0;
    int64_t experts = golden_dim(c, "in.logits", 1);
    int64_t n_sequences = MAX(golden_int(c, "sequences", 1), 1);
    RouterAttr attr = router_attr(c, experts);
    int logits = golden_input(c, "logits", ROWS_TOKENS, TRUE);
    RouterTensors t = router_add(c->graph, "gate", logits, &attr);
    RouterLossAttr loss = {.kind = aux ? ROUTER_LOSS_AUX : ROUTER_LOSS_Z,
                           .experts = experts,
                           .top_k = attr.top_k,
                           .score = attr.score,
                           .coeff = golden_number(c, "coeff", 1),
                           .per_sequence = n_sequences > 1};
    golden_output(c, "loss", router_loss_add(c->graph, "balance", t.logits, t.sel, &loss));
    golden_output(c, "sel", t.sel);
    if (n_sequences == 1 && aux) {
        golden_output(c, "counts", t.counts);
    }
    golden_param_value(c, "gate.weight", NULL, identity(c->real, experts));
    if (attr.bias_buffer) {
        golden_param(c, "gate.e_score_correction_bias", "bias");
    }
    c->rows.rows[ROWS_EXPERTS] = experts;
    c->rows.rows[ROWS_SEQUENCES] = n_sequences;
    c->rows.seq_len = c->rows.rows[ROWS_TOKENS] / n_sequences;
    c->rows.doc_starts = NULL;
    return golden_run(c, error) &&
           (n_sequences == 1 || !aux || compare_sequence_counts(c, execute_value(c->run, t.sel), n_sequences, experts, error));
}

/* Values of a tensor as doubles; caller frees. */
static double *doubles(const Tensor *tensor)
{
    double *values = g_new(double, (gsize)tensor_numel(tensor));
    for (int64_t i = 0; i < tensor_numel(tensor); i++) {
        values[i] = tensor_get(tensor, i);
    }
    return values;
}

static gboolean compare_doubles(GoldenCase *c, const char *full_name, const double *values, int64_t n, GError **error)
{
    g_autoptr(Tensor) tensor = tensor_new(TENSOR_F64, 1, &n);
    memcpy(tensor->data, values, (size_t)n * sizeof *values);
    return golden_compare(c, full_name, tensor, error);
}

gboolean golden_sign_bias(GoldenCase *c, GError **error)
{
    const Tensor *counts = golden_tensor(c, "in.counts");
    const Tensor *bias = golden_tensor(c, "in.b");
    if (counts == NULL || bias == NULL || counts->type != TENSOR_I64 || tensor_numel(counts) != tensor_numel(bias)) {
        return missing(error, "the case needs counts and as many biases");
    }
    g_autofree double *moved = doubles(bias);
    balance_sign(counts->data, tensor_numel(counts), golden_number(c, "rate", 0), moved);
    return compare_doubles(c, "out.b", moved, tensor_numel(bias), error);
}

/* Tokens of each expert under scores and bias. */
static gboolean compare_counts(GoldenCase *c, const char *full_name, const double *scores, const double *bias,
                               GError **error)
{
    int64_t n = golden_dim(c, "in.s", 0);
    int64_t experts = golden_dim(c, "in.s", 1);
    g_autofree double *alpha = g_new(double, (gsize)n);
    g_autoptr(Tensor) counts = tensor_new(TENSOR_I64, 1, &experts);
    balance_cutoffs(&(MoeShape){n, golden_int(c, "topk", 1), experts}, scores, bias, alpha);
    for (int64_t i = 0; i < n * experts; i++) {
        ((int64_t *)counts->data)[i % experts] += scores[i] + bias[i % experts] > alpha[i / experts] ? 1 : 0;
    }
    return golden_compare(c, full_name, counts, error);
}

/* Always in float64: the update is made on the host. */
gboolean golden_quantile_bias(GoldenCase *c, GError **error)
{
    g_autoptr(Tensor) s = safetensors_get(c->file, "in.s", error);
    g_autoptr(Tensor) b = s != NULL ? safetensors_get(c->file, "in.b", error) : NULL;
    if (b == NULL) {
        return FALSE;
    }
    int64_t n = golden_dim(c, "in.s", 0);
    int64_t experts = golden_dim(c, "in.s", 1);
    int64_t top_k = golden_int(c, "topk", 1);
    if (tensor_numel(b) != experts || top_k >= experts) {
        return missing(error, "the case needs one bias for each expert, and more experts than choices");
    }
    MoeShape shape = {n, top_k, experts};
    g_autofree double *scores = doubles(s);
    g_autofree double *before = doubles(b);
    g_autofree double *after = doubles(b);
    g_autofree double *alpha = g_new(double, (gsize)n);
    balance_cutoffs(&shape, scores, before, alpha);
    if (strcmp(golden_text(c, "mode", "exact"), "exact") == 0) {
        balance_quantile(&shape, scores, after);
    } else {
        g_autoptr(BalanceHistogram) histogram =
            balance_histogram_new(before, experts, top_k, golden_int(c, "bins", 1000));
        g_autoptr(BalanceHistogram) rest = balance_histogram_new(before, experts, top_k, golden_int(c, "bins", 1000));
        balance_histogram_add(histogram, scores, n / 3); /* two micro-batches */
        balance_histogram_add(rest, scores + n / 3 * experts, n - n / 3);
        balance_histogram_merge(histogram, rest);
        balance_histogram_update(histogram, after);
    }
    return compare_doubles(c, "out.b", after, experts, error) && compare_doubles(c, "out.alpha", alpha, n, error) &&
           compare_counts(c, "out.counts_before", scores, before, error) &&
           compare_counts(c, "out.counts_after", scores, after, error);
}

/* The slot order of the case's choices as an input [TOKENS, k]; ret_counts [E]. Sets the rows of the slots. */
static int add_order(GoldenCase *c, const Tensor *sel, int64_t experts, Tensor **ret_counts)
{
    Tensor *order = tensor_new_2d(TENSOR_I64, sel->dims[0], sel->dims[1]);
    Tensor *counts = tensor_new(TENSOR_I64, 1, &experts);
    int64_t n_slots =
        moe_order(&(MoeShape){sel->dims[0], sel->dims[1], experts}, sel->data, NULL, order->data, counts->data);
    c->rows.rows[ROWS_SLOTS] = n_slots;
    c->rows.rows[ROWS_RECEIVED] = n_slots;
    g_ptr_array_add(c->owned, counts);
    *ret_counts = counts;
    return golden_input_value(c, "order", ROWS_TOKENS, FALSE, order);
}

/* Token and choice of each slot, counts and offsets of the experts. */
static gboolean compare_slots(GoldenCase *c, int order_input, const Tensor *counts, int64_t top_k, GError **error)
{
    const Tensor *order = execute_value(c->run, order_input);
    int64_t n_slots = tensor_numel(order);
    int64_t experts = tensor_numel(counts);
    g_autoptr(Tensor) token = tensor_new(TENSOR_I64, 1, &n_slots);
    g_autoptr(Tensor) choice = tensor_new(TENSOR_I64, 1, &n_slots);
    g_autoptr(Tensor) offsets = tensor_new(TENSOR_I64, 1, &experts);
    for (int64_t s = 0; s < n_slots; s++) {
        ((int64_t *)token->data)[s] = ((const int64_t *)order->data)[s] / top_k;
        ((int64_t *)choice->data)[s] = ((const int64_t *)order->data)[s] % top_k;
    }
    for (int64_t e = 1; e < experts; e++) {
        ((int64_t *)offsets->data)[e] = ((int64_t *)offsets->data)[e - 1] + ((const int64_t *)counts->data)[e - 1];
    }
    return golden_compare(c, "out.slot_token", token, error) && golden_compare(c, "out.slot_k", choice, error) &&
           golden_compare(c, "out.counts", counts, error) && golden_compare(c, "out.offsets", offsets, error);
}

gboolean golden_permute(GoldenCase *c, GError **error)
{
    int64_t experts = golden_int(c, "experts", 1);
    const Tensor *sel = read_sel(c, "in.sel", experts, error);
    Tensor *counts;
    if (sel == NULL) {
        return FALSE;
    }
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int order = add_order(c, sel, experts, &counts);
    golden_output(c, "xp", permute_add(c->graph, "permute", x, order));
    return golden_run(c, error) && compare_slots(c, order, counts, sel->dims[1], error);
}

gboolean golden_unpermute(GoldenCase *c, GError **error)
{
    int64_t experts = golden_int(c, "experts", 1);
    const Tensor *sel = read_sel(c, "in.sel", experts, error);
    Tensor *counts;
    if (sel == NULL) {
        return FALSE;
    }
    int yp = golden_input(c, "yp", ROWS_SLOTS, TRUE);
    int weights = golden_input(c, "weights", ROWS_TOKENS, TRUE);
    int order = add_order(c, sel, experts, &counts);
    golden_output(c, "y", unpermute_add(c->graph, "unpermute", yp, weights, order));
    return golden_run(c, error);
}

/* in.counts as the rows of the experts; checked against the rows of x. */
static gboolean read_expert_rows(GoldenCase *c, int64_t experts, GError **error)
{
    const Tensor *counts = golden_tensor(c, "in.counts");
    int64_t left = golden_dim(c, "in.x", 0);
    gboolean fits = counts != NULL && counts->type == TENSOR_I64 && tensor_numel(counts) == experts;
    for (int64_t e = 0; fits && e < experts; e++) {
        int64_t rows = ((const int64_t *)counts->data)[e];
        fits = rows >= 0 && rows <= left;
        left -= rows;
    }
    if (!fits || left != 0) {
        return missing(error, "in.counts must split the rows of in.x over the experts of the weights");
    }
    c->rows.local_expert_rows = counts->data;
    c->rows.rows[ROWS_EXPERTS] = experts;
    c->rows.rows[ROWS_LOCAL_EXPERTS] = experts;
    return TRUE;
}

gboolean golden_grouped_gemm(GoldenCase *c, GError **error)
{
    int64_t experts = golden_dim(c, "in.W", 0);
    if (!read_expert_rows(c, experts, error)) {
        return FALSE;
    }
    int x = golden_input(c, "x", ROWS_RECEIVED, TRUE);
    golden_output(c, "y", grouped_gemm_add(c->graph, "w", x, golden_dim(c, "in.W", 1), experts));
    golden_param(c, "w.weight", "W");
    return golden_run(c, error);
}

/* The case as a model of one MoE layer. */
static Model layer_model(GoldenCase *c)
{
    const char *act = golden_text(c, "act", "swiglu");
    return (Model){
        .hidden = golden_dim(c, "in.x", 1),
        .norm_eps = golden_number(c, "eps", 1e-5),
        .n_experts = golden_dim(c, "in.router", 0),
        .top_k = golden_int(c, "topk", 1),
        .expert_width = golden_dim(c, "in.w1", 1),
        .shared_width = golden_dim(c, "in.shared_gate", 0),
        .latent_width = golden_dim(c, "in.down", 0),
        .latent_norm = golden_has(c, "in.norm"),
        .router_groups = 1,
        .router_topk_groups = 1,
        .router_score = score_of(golden_text(c, "score", "softmax")),
        .router_renorm = golden_int(c, "renorm", 0) != 0,
        .router_scaling = golden_number(c, "scaling", 1),
        .router_bias_buffer = golden_has(c, "in.bias"),
        .activation = strcmp(act, "situ") == 0    ? ACTIVATION_SITU
                      : strcmp(act, "relu2") == 0 ? ACTIVATION_RELU2
                                                  : ACTIVATION_SWIGLU,
        .ungated_mlp = !golden_has(c, "in.w3"),
        .situ_beta = golden_number(c, "situ_beta", 4),
        .situ_linear_beta = golden_number(c, "situ_linear_beta", 0),
    };
}

static void bind_layer_params(GoldenCase *c)
{
    static const struct {
        const char *file, *graph;
    } names[] = {
        {"router", "gate.weight"},
        {"bias", "gate.e_score_correction_bias"},
        {"w1", "experts.w1.weight"},
        {"w3", "experts.w3.weight"},
        {"w2", "experts.w2.weight"},
        {"down", "routed_expert_down_proj.weight"},
        {"norm", "routed_expert_norm.weight"},
        {"up", "routed_expert_up_proj.weight"},
        {"shared_gate", "shared_experts.gate_proj.weight"},
        {"shared_up", "shared_experts.up_proj.weight"},
        {"shared_down", "shared_experts.down_proj.weight"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *full = g_strconcat("in.", names[i].file, NULL);
        if (golden_has(c, full)) {
            golden_param(c, op_name("block_sparse_moe", names[i].graph).text, names[i].file);
        }
    }
}

/* The router of a layer's graph. */
static const Op *find_router(const Graph *graph)
{
    for (int i = 0; i < graph_n_ops(graph); i++) {
        if (graph_op(graph, i)->kind == OP_router) {
            return graph_op(graph, i);
        }
    }
    g_assert_not_reached();
}

/* Choices, dense weights, what a capacity keeps, loads before and after it. */
static gboolean compare_routing(GoldenCase *c, const Model *model, const BlockOptions *options, GError **error)
{
    const Op *router = find_router(c->graph);
    const Tensor *sel = execute_value(c->run, router->outputs[1]);
    const Tensor *order = execute_value(c->run, router->outputs[2]);
    int64_t n = sel->dims[0];
    int64_t one = 1;
    g_autoptr(Tensor) dense = spread(execute_value(c->run, router->outputs[0]), sel, model->n_experts);
    g_autoptr(Tensor) keep = tensor_new(TENSOR_I64, 2, sel->dims);
    g_autoptr(Tensor) counts = tensor_new(TENSOR_I64, 1, &model->n_experts);
    g_autoptr(Tensor) capacity = tensor_new(TENSOR_I64, 1, &one);
    for (int64_t i = 0; i < tensor_numel(sel); i++) {
        int64_t slot = ((const int64_t *)order->data)[i];
        ((int64_t *)counts->data)[((const int64_t *)sel->data)[i]]++;
        if (slot >= 0) {
            ((int64_t *)keep->data)[slot] = 1;
        }
    }
    ((int64_t *)capacity->data)[0] =
        options->capacity.factor > 0
            ? moe_capacity_rows(&options->capacity, &(MoeShape){n, model->top_k, model->n_experts})
            : -1;
    return golden_compare(c, "out.sel", sel, error) && golden_compare(c, "out.weights", dense, error) &&
           golden_compare(c, "out.keep", keep, error) && golden_compare(c, "out.counts", counts, error) &&
           golden_compare(c, "out.kept_counts", execute_value(c->run, router->outputs[3]), error) &&
           golden_compare(c, "out.capacity", capacity, error);
}

/* Logits of the layer's router, from its own input and matrix, and their gradient, from what arrives at its weights. */
static gboolean compare_logits(GoldenCase *c, GError **error)
{
    const Op *router = find_router(c->graph);
    const Tensor *dweights = execute_grad(c->run, router->outputs[0]);
    RouterAttr attr = *(const RouterAttr *)router->attr;
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, golden_dim(c, "in.router", 1), DTYPE_FP64, TRUE);
    int logits = linear_add(graph, "gate", x, attr.experts, FALSE);
    graph_add_output(graph, logits);
    graph_finish(graph);
    g_autoptr(Execution) run = execute_new(graph, &c->rows, c->real);
    execute_put(run, x, execute_value(c->run, router->inputs[0]));
    execute_put_param(run, 0, golden_tensor(c, "in.router"));
    return execute_forward(run, error) && golden_compare(c, "out.logits", execute_value(run, logits), error) &&
           check_logit_gradient(c, &attr, dweights, error);
}

gboolean golden_moe_layer(GoldenCase *c, GError **error)
{
    Model model = layer_model(c);
    const char *drop = golden_text(c, "drop", "position");
    BlockOptions options = {
        .compute = DTYPE_FP64, .ep_size = 1, .capacity = {.factor = golden_number(c, "capacity_factor", 0)}};
    options.drop = strcmp(drop, "probs") == 0             ? MOE_DROP_PROBS
                   : strcmp(drop, "position_choice") == 0 ? MOE_DROP_POSITION_CHOICE
                                                          : MOE_DROP_POSITION;
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    c->rows.rows[ROWS_EXPERTS] = model.n_experts;
    c->rows.rows[ROWS_LOCAL_EXPERTS] = model.n_experts;
    golden_output(c, "y", block_class(BLOCK_moe_layer)->build(c->graph, &model, NULL, &options, x));
    bind_layer_params(c);
    return golden_run(c, error) && compare_routing(c, &model, &options, error) && compare_logits(c, error);
}

/* One adapted matrix of the experts: base, A (of each expert or of all) and B. Binds the case's tensors. */
static int add_adapted(GoldenCase *c, const char *number, int x)
{
    g_autofree char *w = g_strconcat("W", number, NULL), *a = g_strconcat("A", number, NULL),
                    *b = g_strconcat("B", number, NULL);
    g_autofree char *in_w = g_strconcat("in.", w, NULL), *in_a = g_strconcat("in.", a, NULL);
    gboolean shared = golden_int(c, "shared_a", 0) != 0;
    int64_t experts = golden_dim(c, in_w, 0);
    int64_t out = golden_dim(c, in_w, 1);
    int64_t rank = golden_dim(c, in_a, shared ? 0 : 1);
    double scale = golden_number(c, "alpha", 1) / (double)MAX(rank, 1);
    int y = grouped_gemm_add(c->graph, w, x, out, experts);
    int u =
        shared ? linear_add(c->graph, a, x, rank, FALSE) : grouped_gemm_add_adapter(c->graph, a, x, rank, experts, 1);
    int v = grouped_gemm_add_adapter(c->graph, b, u, out, experts, scale);
    graph_param(c->graph, graph_op(c->graph, graph_tensor(c->graph, y)->producer)->params[0])->trainable = FALSE;
    golden_param(c, op_name(w, "weight").text, w);
    golden_param(c, op_name(a, "weight").text, a);
    golden_param(c, op_name(b, "weight").text, b);
    return residual_add(c->graph, op_name(w, "lora").text, y, v, 1);
}

gboolean golden_lora_experts(GoldenCase *c, GError **error)
{
    gboolean situ = strcmp(golden_text(c, "act", "swiglu"), "situ") == 0;
    ActivationAttr act = {.form = situ ? ACTIVATION_FORM_SITU : ACTIVATION_FORM_SWIGLU,
                          .beta = golden_number(c, "situ_beta", 4),
                          .linear_beta = golden_number(c, "situ_linear_beta", 25)};
    if (!read_expert_rows(c, golden_dim(c, "in.W1", 0), error)) {
        return FALSE;
    }
    int x = golden_input(c, "x", ROWS_RECEIVED, TRUE);
    int gate = add_adapted(c, "1", x);
    int up = add_adapted(c, "3", x);
    int h = activation_add(c->graph, "act", &act, gate, up);
    golden_output(c, "y", add_adapted(c, "2", h));
    return golden_run(c, error);
}
