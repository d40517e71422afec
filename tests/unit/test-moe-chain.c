/*
 * The chains of framework operators of a MoE layer against a profile (hidden 2048, 8 layers, 64 experts of 1408, top 6,
 * 4 sequences of 4096; one GPU, and two with the experts split): kernels per step by kind, as the profiler counted
 * them. And what autograd kept of a K3-sized permutation, to the byte, from the allocator. Sources:
 * tests/reference/README.md.
 */
#include "models/ops/combine.h"
#include "models/ops/dispatch.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/permute.h"
#include "models/ops/router.h"
#include "models/ops/unpermute.h"
#include "tests/check.h"

enum { N_LAYERS = 8, HIDDEN = 2048, WIDTH = 1408, EXPERTS = 64, TOP_K = 6, TOKENS = 4 * 4096 };

/* Launches of a step in the profile. */
typedef struct ChainCase {
    const char *name;
    int64_t ep_size;
    int scatter_add, gather, fill, grouped_gemm, reduce, topk, sort;
    int n_host_syncs; /* of a layer: two in bincount, two lists of splits, two in repeat_interleave */
} ChainCase;

static const ChainCase cases[] = {
    /* indexFuncLargeIndex 16; vectorized_gather 17 less the embedding's; gatherTopK 8; reduce_kernel of bf16 rows 8 */
    {"one GPU", 1, 16, 16, 16, 24, 8, 8, 16, 2},
    /* 32; 33 less 1; 16 fills more; onesweep passes 160 against 96: one argsort more in each layer */
    {"two GPUs, experts split", 2, 32, 32, 32, 24, 8, 8, 24, 6},
};

static Graph *layer_graph(int64_t ep_size)
{
    Graph *graph = graph_new(DTYPE_BF16);
    RouterAttr attr = {.experts = EXPERTS, .top_k = TOP_K, .score = ROUTER_SOFTMAX, .renorm = TRUE, .scaling = 1};
    graph->eager_default = TRUE;
    graph->ep_size = ep_size;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, HIDDEN, DTYPE_BF16, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &attr);
    int slots = permute_add(graph, "permute", x, t.order);
    DispatchTensors sent = dispatch_add(graph, "dispatch", slots, t.counts, EXPERTS);
    grouped_gemm_add(graph, "w3", sent.rows, WIDTH, EXPERTS);
    int y = grouped_gemm_add(graph, "w2", grouped_gemm_add(graph, "w1", sent.rows, WIDTH, EXPERTS), HIDDEN, EXPERTS);
    y = combine_add(graph, "combine", y, sent.arrival);
    graph_add_output(graph, unpermute_add(graph, "unpermute", y, t.weights, t.order));
    graph_finish(graph);
    return graph;
}

/* Kernels over whole rows: those below 10 MB belong to tables and weights, which the profile's list does not reach. */
static int count(const OpCost *cost, WorkLaw law, gboolean fill)
{
    int n = 0;
    for (int i = 0; i < cost->n_works; i++) {
        const Work *work = &cost->works[i];
        gboolean small = work->read_bytes + work->write_bytes < 10000000 && law != WORK_TOPK && law != WORK_SORT;
        n += work->law == law && !small && (!fill || work->read_bytes == 0) ? work->n_launches : 0;
    }
    return n;
}

static void test_launches(void **state)
{
    const ChainCase *c = *state;
    g_autoptr(Graph) graph = layer_graph(c->ep_size);
    RowCounts rows = {.seq_len = 4096,
                      .rows = {[ROWS_ONE] = 1,
                               [ROWS_TOKENS] = TOKENS,
                               [ROWS_SLOTS] = TOKENS * TOP_K,
                               [ROWS_RECEIVED] = TOKENS * TOP_K,
                               [ROWS_EXPERTS] = EXPERTS}};
    ChainCase got = {0};
    for (int i = 0; i < graph_n_ops(graph); i++) {
        OpView view = {graph, graph_op(graph, i), &rows};
        for (int backward = 0; backward < 2; backward++) {
            OpCost cost = {0};
            const OpClass *class = op_class(view.op->kind);
            (backward ? class->backward_cost : class->forward_cost)(&view, &cost);
            got.scatter_add += count(&cost, WORK_SCATTER_ADD, FALSE);
            got.gather += count(&cost, WORK_GATHER, FALSE);
            got.fill += count(&cost, WORK_COPY, TRUE);
            got.grouped_gemm += backward ? 0 : count(&cost, WORK_GROUPED_GEMM, FALSE);
            got.reduce += count(&cost, WORK_REDUCE, FALSE);
            got.topk += count(&cost, WORK_TOPK, FALSE);
            got.sort += count(&cost, WORK_SORT, FALSE);
            got.n_host_syncs += cost.n_host_syncs;
        }
    }
    check_int(got.scatter_add * N_LAYERS, c->scatter_add);
    check_int(got.gather * N_LAYERS, c->gather);
    check_int(got.fill * N_LAYERS, c->fill);
    check_int(got.grouped_gemm * N_LAYERS, c->grouped_gemm);
    check_int(got.reduce * N_LAYERS, c->reduce);
    check_int(got.topk * N_LAYERS, c->topk);
    check_int(got.sort * N_LAYERS, c->sort);
    check_int(got.n_host_syncs, c->n_host_syncs);
}

/* 4096 tokens of width 3584, top 16: bytes allocated after the forward pass alone, its output included. */
static void test_kept(void **state)
{
    enum { N = 4096, L = 3584, K = 16 };
    RowCounts rows = {.seq_len = N,
                      .rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = N, [ROWS_SLOTS] = N * K, [ROWS_RECEIVED] = N * K}};
    int64_t index = (int64_t)N * K * 8; /* made outside the measured function, as is the column of weights */
    int64_t column = (int64_t)N * K * 2;
    OpSaved saved;
    (void)state;
    g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
    graph->eager_default = TRUE;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, L, DTYPE_BF16, TRUE);
    int yp = graph_add_input(graph, "yp", ROWS_SLOTS, L, DTYPE_BF16, TRUE);
    int weights = graph_add_input(graph, "weights", ROWS_TOKENS, K, DTYPE_FP32, FALSE);
    int order = graph_add_input(graph, "order", ROWS_TOKENS, K, DTYPE_INT64, FALSE);
    graph_add_output(graph, permute_add(graph, "permute", x, order));
    graph_add_output(graph, unpermute_add(graph, "unpermute", yp, weights, order));
    graph_finish(graph);
    static const int64_t measured[] = {469762048, 499122176};
    for (int i = 0; i < 2; i++) {
        OpView view = {graph, graph_op(graph, i), &rows};
        int64_t bytes = op_out_bytes(&view, 0) - index - (i == 1 ? column : 0);
        op_class(view.op->kind)->saved(&view, &saved);
        check_int(saved.inputs, 0);
        for (int a = 0; a < saved.n_aux; a++) {
            bytes += op_aux_bytes(&saved.aux[a], &rows);
        }
        check_int(bytes, measured[i]);
    }
}

int main(void)
{
    enum { N = G_N_ELEMENTS(cases) };
    struct CMUnitTest tests[N + 1] = {cmocka_unit_test(test_kept)};
    for (size_t i = 0; i < N; i++) {
        tests[1 + i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_launches, .initial_state = (void *)(guintptr)&cases[i]};
    }
    return _cmocka_run_group_tests("moe-chain", tests, N + 1, NULL, NULL);
}
