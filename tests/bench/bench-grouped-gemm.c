/*
 * Grouped GEMM in float32, forward and both gradients, against the same products one by one in the faster of BLAS and
 * our own kernels (target: 85 % of that); the one-pass form (permute, product and unpermute together) against the chain
 * of the three operators.
 */
#include <math.h>
#include <stdlib.h>

#include "models/execute.h"
#include "models/matmul.h"
#include "models/moe-tables.h"
#include "models/ops/expert-pass.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/permute.h"
#include "models/ops/unpermute.h"
#include "sim/base/rng.h"
#include "tests/bench/bench.h"

enum { EXPERTS = 16, TOP_K = 2, IN = 768, OUT = 512, REPEATS = 4 };

static Tensor *draw(int n_dims, const int64_t *dims)
{
    Tensor *tensor = tensor_new(TENSOR_F32, n_dims, dims);
    for (int64_t i = 0; i < tensor_numel(tensor); i++) {
        tensor_set(tensor, i, rng_uniform(1, RNG_TEST, (uint64_t)i) - 0.5);
    }
    return tensor;
}

static double gflops(double flops, double seconds)
{
    return flops / seconds * 1e-9;
}

/*
 * The same products one by one, the faster of BLAS and our own kernels: seconds. Forward x Wt, else dy W and dyt x.
 */
static double products_s(const int64_t *rows, gboolean forward, const float *x, const float *w, const float *y,
                         float *out, float *dw)
{
    double best = (double)INFINITY;
    for (int way = 0; way < 2 * REPEATS; way++) {
        double start = bench_cpu_s();
        int64_t first = 0;
        for (int e = 0; e < EXPERTS; e++) {
            const float *we = w + (int64_t)e * OUT * IN;
            int64_t m = rows[e];
            Matmul nt = {m, OUT, IN, FALSE, TRUE, IN, IN, OUT, 1, 0};
            Matmul nn = {m, IN, OUT, FALSE, FALSE, OUT, IN, IN, 1, 0};
            Matmul tn = {OUT, IN, m, TRUE, FALSE, OUT, IN, IN, 1, 0};
            MatmulWay how = way % 2 == 0 ? MATMUL_BLAS : MATMUL_BLOCKED;
            if (forward) {
                matmul_by_f32(how, &nt, x + first * IN, we, out + first * OUT);
            } else {
                matmul_by_f32(how, &nn, y + first * OUT, we, out + first * IN);
                matmul_by_f32(how, &tn, y + first * OUT, x + first * IN, dw + (int64_t)e * OUT * IN);
            }
            first += m;
        }
        best = MIN(best, bench_cpu_s() - start);
    }
    return best;
}

/* A run of the operator's kernels on tensors of their own: least seconds. */
static double kernel_s(const OpRun *run, gboolean forward)
{
    const OpClass *class = op_class(OP_grouped_gemm);
    double best = (double)INFINITY;
    for (int i = 0; i <= REPEATS; i++) {
        double start = bench_cpu_s();
        (forward ? class->forward : class->backward)[OP_REAL_F32](run, NULL);
        best = MIN(best, bench_cpu_s() - start);
    }
    return best;
}

static void bench_split(const char *name, const int64_t *rows)
{
    int64_t m = 0;
    for (int e = 0; e < EXPERTS; e++) {
        m += rows[e];
    }
    g_autoptr(Graph) graph = graph_new(DTYPE_FP32);
    int x = graph_add_input(graph, "x", ROWS_RECEIVED, IN, DTYPE_FP32, TRUE);
    grouped_gemm_add(graph, "w", x, OUT, EXPERTS);
    graph_finish(graph);
    RowCounts counts = {.rows = {[ROWS_RECEIVED] = m}, .local_expert_rows = rows};
    OpView view = {graph, graph_op(graph, 0), &counts};
    g_autoptr(Tensor) in = draw(2, (int64_t[]){m, IN});
    g_autoptr(Tensor) w = draw(3, (int64_t[]){EXPERTS, OUT, IN});
    g_autoptr(Tensor) dy = draw(2, (int64_t[]){m, OUT});
    g_autoptr(Tensor) y = tensor_dup(dy);
    g_autoptr(Tensor) din = tensor_dup(in);
    g_autoptr(Tensor) dw = tensor_dup(w);
    OpRun run = {.view = &view, .in = {in}, .param = {w}, .out = {y}, .dout = {dy}, .din = {din}, .dparam = {dw}};
    double flops = 2.0 * (double)m * OUT * IN;
    double forward = kernel_s(&run, TRUE);
    double backward = kernel_s(&run, FALSE);
    double best_forward = products_s(rows, TRUE, in->data, w->data, dy->data, y->data, NULL);
    double best_backward = products_s(rows, FALSE, in->data, w->data, dy->data, din->data, dw->data);
    printf("%-28s forward %6.1f GFLOP/s (%3.0f %%), backward %6.1f (%3.0f %%), target 85 %%\n", name,
           gflops(flops, forward), 100 * best_forward / forward, gflops(2 * flops, backward),
           100 * best_backward / backward);
}

/* Forward of the chain, or of the one pass, over the same choices: least seconds. */
static double chain_s(gboolean one_pass)
{
    enum { N = 2048 };
    g_autofree int64_t *sel = g_new(int64_t, N * TOP_K);
    g_autoptr(Tensor) order = tensor_new_2d(TENSOR_I64, N, TOP_K);
    int64_t counts[EXPERTS];
    for (int i = 0; i < N * TOP_K; i++) {
        sel[i] = (int64_t)rng_below(2, RNG_TEST, (uint64_t)(i / TOP_K), EXPERTS / TOP_K) * TOP_K + i % TOP_K;
    }
    moe_order(&(MoeShape){N, TOP_K, EXPERTS}, sel, NULL, order->data, counts);
    g_autoptr(Graph) graph = graph_new(DTYPE_FP32);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, IN, DTYPE_FP32, TRUE);
    int weights = graph_add_input(graph, "weights", ROWS_TOKENS, TOP_K, DTYPE_FP32, TRUE);
    int table = graph_add_input(graph, "order", ROWS_TOKENS, TOP_K, DTYPE_INT64, FALSE);
    if (one_pass) {
        expert_pass_add(graph, "w", x, weights, table, OUT, EXPERTS);
    } else {
        int yp = grouped_gemm_add(graph, "w", permute_add(graph, "permute", x, table), OUT, EXPERTS);
        unpermute_add(graph, "unpermute", yp, weights, table);
    }
    graph_finish(graph);
    RowCounts rows = {.rows = {[ROWS_TOKENS] = N, [ROWS_SLOTS] = N * TOP_K, [ROWS_RECEIVED] = N * TOP_K},
                      .local_expert_rows = counts};
    g_autoptr(Tensor) in = draw(2, (int64_t[]){N, IN});
    g_autoptr(Tensor) factors = draw(2, (int64_t[]){N, TOP_K});
    g_autoptr(Tensor) w = draw(3, (int64_t[]){EXPERTS, OUT, IN});
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F32);
    execute_put(run, x, in);
    execute_put(run, weights, factors);
    execute_put(run, table, order);
    execute_put_param(run, 0, w);
    double best = (double)INFINITY;
    for (int i = 0; i <= REPEATS; i++) {
        double start = bench_cpu_s();
        execute_forward(run, NULL);
        best = MIN(best, bench_cpu_s() - start);
    }
    return best;
}

int main(void)
{
    int64_t even[EXPERTS];
    int64_t skewed[EXPERTS];
    int64_t small[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        even[e] = 256;
        skewed[e] = (int64_t)floor(1024.0 / (e + 1));
        small[e] = e % 4 == 0 ? 0 : 37;
    }
    bench_split("even, 256 rows", even);
    bench_split("zipf 1, 1024 to 64 rows", skewed);
    bench_split("small, 37 rows, some empty", small);
    printf("%-28s chain %.2f ms, one pass %.2f ms\n", "permute, product, unpermute", 1e3 * chain_s(FALSE),
           1e3 * chain_s(TRUE));
    return EXIT_SUCCESS;
}
