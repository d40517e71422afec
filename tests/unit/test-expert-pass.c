/* Permute, grouped GEMM and unpermute as one pass against the chain of the three operators, values and gradients. */
#include "models/expert-pass.h"

#include "models/execute.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/permute.h"
#include "models/ops/router.h"
#include "models/ops/unpermute.h"
#include "sim/base/rng.h"
#include "tests/check.h"

typedef struct PassCase {
    const char *name;
    int64_t n_tokens, in, out, experts, top_k;
    double capacity_factor;
    gboolean single; /* float32 */
} PassCase;

static const PassCase cases[] = {
    {"small", 5, 3, 4, 4, 2, 0, FALSE},
    {"one token", 1, 2, 3, 6, 2, 0, FALSE},
    {"every expert chosen", 7, 4, 3, 3, 3, 0, FALSE},
    {"dropped slots", 40, 3, 5, 4, 2, 0.6, FALSE},
    {"more slots than a tile", 700, 9, 7, 3, 2, 0, FALSE},
    {"empty experts", 3, 5, 4, 16, 1, 0, FALSE},
    {"no tokens", 0, 5, 4, 4, 2, 0, FALSE},
    {"float32", 300, 33, 17, 5, 2, 0, TRUE},
};

typedef struct Chain {
    Graph *graph;
    int x, yp, out;
    RouterTensors router;
} Chain;

/* The operators; the router is frozen and stands in front to make the tables. */
static Chain chain_new(const PassCase *c)
{
    RouterAttr attr = {.experts = c->experts, .top_k = c->top_k, .score = ROUTER_SIGMOID, .renorm = TRUE, .scaling = 1,
                       .capacity_factor = c->capacity_factor, .drop = MOE_DROP_POSITION};
    Chain chain = {.graph = graph_new(DTYPE_FP64)};
    int gate_x = graph_add_input(chain.graph, "gate_x", ROWS_TOKENS, 3, DTYPE_FP64, FALSE);
    chain.x = graph_add_input(chain.graph, "x", ROWS_TOKENS, c->in, DTYPE_FP64, TRUE);
    chain.router = router_add(chain.graph, "gate", gate_x, &attr);
    int slots = permute_add(chain.graph, "permute", chain.x, chain.router.order);
    chain.yp = grouped_gemm_add(chain.graph, "w", slots, c->out, c->experts);
    chain.out = unpermute_add(chain.graph, "unpermute", chain.yp, chain.router.weights, chain.router.order);
    graph_add_output(chain.graph, chain.out);
    graph_finish(chain.graph);
    return chain;
}

static Tensor *draw(TensorType type, int n_dims, const int64_t *dims, uint64_t seed)
{
    Tensor *tensor = tensor_new(type, n_dims, dims);
    for (int64_t i = 0; i < tensor_numel(tensor); i++) {
        tensor_set(tensor, i, rng_normal(seed, RNG_TEST, (uint64_t)i));
    }
    return tensor;
}

static void check_same(const Tensor *got, const Tensor *want, double tolerance)
{
    for (int64_t i = 0; i < tensor_numel(got); i++) {
        assert_true(fabs(tensor_get(got, i) - (want != NULL ? tensor_get(want, i) : 0)) <= tolerance);
    }
}

static void run_pass(const PassCase *c, const Chain *chain, const Execution *run, const Tensor *const in[3], Tensor *const out[4])
{
    const Tensor *weights = execute_value(run, chain->router.weights);
    ExpertPass pass = {.n_tokens = c->n_tokens, .top_k = c->top_k, .experts = c->experts, .in = c->in, .out = c->out,
                       .order = execute_value(run, chain->router.order)->data,
                       .counts = execute_value(run, chain->router.counts)->data};
    if (c->single) {
        expert_pass_forward_f32(&pass, in[0]->data, weights->data, in[1]->data, out[0]->data);
        expert_pass_backward_f32(&pass, in[0]->data, weights->data, in[1]->data, in[2]->data, out[1]->data, out[2]->data, out[3]->data);
    } else {
        expert_pass_forward_f64(&pass, in[0]->data, weights->data, in[1]->data, out[0]->data);
        expert_pass_backward_f64(&pass, in[0]->data, weights->data, in[1]->data, in[2]->data, out[1]->data, out[2]->data, out[3]->data);
    }
}

static void test_pass(void **state)
{
    const PassCase *c = *state;
    TensorType type = c->single ? TENSOR_F32 : TENSOR_F64;
    double tolerance = c->single ? 1e-4 : 1e-12;
    Chain chain = chain_new(c);
    g_autoptr(Graph) graph = chain.graph;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = c->n_tokens, [ROWS_EXPERTS] = c->experts,
                               [ROWS_LOCAL_EXPERTS] = c->experts}, .seq_len = c->n_tokens};
    g_autoptr(Tensor) gate_x = draw(type, 2, (int64_t[]){c->n_tokens, 3}, 1);
    g_autoptr(Tensor) gate_w = draw(type, 2, (int64_t[]){c->experts, 3}, 2);
    g_autoptr(Tensor) x = draw(type, 2, (int64_t[]){c->n_tokens, c->in}, 3);
    g_autoptr(Tensor) w = draw(type, 3, (int64_t[]){c->experts, c->out, c->in}, 4);
    g_autoptr(Tensor) dy = draw(type, 2, (int64_t[]){c->n_tokens, c->out}, 5);
    g_autoptr(Tensor) y = tensor_dup(dy);
    g_autoptr(Tensor) dx = tensor_dup(x);
    g_autoptr(Tensor) dweights = tensor_new_2d(type, c->n_tokens, c->top_k);
    g_autoptr(Tensor) dw = tensor_dup(w);
    g_autoptr(Execution) run = execute_new(chain.graph, &rows, type);
    execute_put(run, g_array_index(chain.graph->inputs, int, 0), gate_x);
    execute_put(run, chain.x, x);
    execute_put_param(run, 0, gate_w);
    execute_put_param(run, 1, w);
    assert_true(execute_forward(run, NULL));
    execute_put_grad(run, chain.out, dy);
    assert_true(execute_backward(run, NULL));
    run_pass(c, &chain, run, (const Tensor *const[]){x, w, dy}, (Tensor *const[]){y, dx, dweights, dw});
    check_same(y, execute_value(run, chain.out), tolerance);
    check_same(dx, execute_grad(run, chain.x), tolerance);
    check_same(dweights, execute_grad(run, chain.router.weights), tolerance);
    check_same(dw, execute_param_grad(run, 1), 10 * tolerance);
}

int main(void)
{
    return check_run_cases("expert-pass", test_pass, cases, G_N_ELEMENTS(cases), sizeof cases[0]);
}
