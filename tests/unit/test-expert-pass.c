/* Permute, grouped GEMM and unpermute as one pass against the chain of the three operators, values and gradients. */
#include "models/ops/expert-pass.h"

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

/* One way, run: outputs and gradients. */
typedef struct Side {
    Graph *graph;
    Execution *run;
    int x, weights, out;
} Side;

static Tensor *draw(TensorType type, int n_dims, const int64_t *dims, uint64_t seed)
{
    Tensor *tensor = tensor_new(type, n_dims, dims);
    for (int64_t i = 0; i < tensor_numel(tensor); i++) {
        tensor_set(tensor, i, rng_normal(seed, RNG_TEST, (uint64_t)i));
    }
    return tensor;
}

/* The graph: a router on an input of its own, then the experts in one pass or by three operators. */
static Side side_new(const PassCase *c, gboolean one_pass)
{
    RouterAttr attr = {.experts = c->experts,
                       .top_k = c->top_k,
                       .score = ROUTER_SIGMOID,
                       .renorm = TRUE,
                       .scaling = 1,
                       .capacity = {.factor = c->capacity_factor},
                       .drop = MOE_DROP_POSITION};
    Graph *graph = graph_new(DTYPE_FP64);
    Side side = {.graph = graph};
    int gate_x = graph_add_input(graph, "gate_x", ROWS_TOKENS, 3, DTYPE_FP64, FALSE);
    side.x = graph_add_input(graph, "x", ROWS_TOKENS, c->in, DTYPE_FP64, TRUE);
    RouterTensors t = router_add(graph, "gate", gate_x, &attr);
    side.weights = t.weights;
    if (one_pass) {
        side.out = expert_pass_add(graph, "w", side.x, t.weights, t.order, c->out, c->experts);
    } else {
        int y = grouped_gemm_add(graph, "w", permute_add(graph, "permute", side.x, t.order), c->out, c->experts);
        side.out = unpermute_add(graph, "unpermute", y, t.weights, t.order);
    }
    graph_add_output(graph, side.out);
    graph_finish(graph);
    return side;
}

/* values: gate's input and matrix, x, the experts' matrices, the gradient of the output. */
static void side_run(Side *side, const PassCase *c, Tensor *const values[5])
{
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = c->n_tokens, [ROWS_EXPERTS] = c->experts},
                      .seq_len = c->n_tokens};
    side->run = execute_new(side->graph, &rows, values[0]->type);
    execute_put(side->run, g_array_index(side->graph->inputs, int, 0), values[0]);
    execute_put_param(side->run, 0, values[1]);
    execute_put(side->run, side->x, values[2]);
    execute_put_param(side->run, 1, values[3]);
    assert_true(execute_forward(side->run, NULL));
    execute_put_grad(side->run, side->out, values[4]);
    assert_true(execute_backward(side->run, NULL));
}

static void side_clear(Side *side)
{
    execute_free(side->run);
    graph_free(side->graph);
}

static void check_same(const Tensor *got, const Tensor *want, double tolerance)
{
    for (int64_t i = 0; i < tensor_numel(got); i++) {
        assert_true(fabs(tensor_get(got, i) - tensor_get(want, i)) <= tolerance);
    }
}

static void test_pass(void **state)
{
    const PassCase *c = *state;
    TensorType type = c->single ? TENSOR_F32 : TENSOR_F64;
    double tolerance = c->single ? 1e-4 : 1e-12;
    g_autoptr(Tensor) gate_x = draw(type, 2, (int64_t[]){c->n_tokens, 3}, 1);
    g_autoptr(Tensor) gate_w = draw(type, 2, (int64_t[]){c->experts, 3}, 2);
    g_autoptr(Tensor) x = draw(type, 2, (int64_t[]){c->n_tokens, c->in}, 3);
    g_autoptr(Tensor) w = draw(type, 3, (int64_t[]){c->experts, c->out, c->in}, 4);
    g_autoptr(Tensor) dy = draw(type, 2, (int64_t[]){c->n_tokens, c->out}, 5);
    Tensor *const values[5] = {gate_x, gate_w, x, w, dy};
    Side chain = side_new(c, FALSE);
    Side pass = side_new(c, TRUE);
    side_run(&chain, c, values);
    side_run(&pass, c, values);
    check_same(execute_value(pass.run, pass.out), execute_value(chain.run, chain.out), tolerance);
    check_same(execute_grad(pass.run, pass.x), execute_grad(chain.run, chain.x), tolerance);
    check_same(execute_grad(pass.run, pass.weights), execute_grad(chain.run, chain.weights), tolerance);
    check_same(execute_param_grad(pass.run, 1), execute_param_grad(chain.run, 1), 10 * tolerance);
    side_clear(&chain);
    side_clear(&pass);
}

int main(void)
{
    return check_run_cases("expert-pass", test_pass, cases, G_N_ELEMENTS(cases), sizeof cases[0]);
}
