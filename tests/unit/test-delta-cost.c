/*
 * Costs of the chunked delta rule: published counts, and bytes measured on an H200.
 */
#include "tests/check.h"

#include "models/delta-cost.h"
#include "models/op.h"
#include "models/ops/kda.h"

/* A KDA operator over bf16 tensors. */
static Graph *kda_graph(int64_t heads, int64_t dim, gboolean eager)
{
    static const char *const names[] = {"q", "k", "v", "z", "beta"};
    KdaAttr attr = {.heads = heads,
                    .value_heads = heads,
                    .key_dim = dim,
                    .value_dim = dim,
                    .gate = KDA_GATE_BOUNDED,
                    .lower_bound = -5};
    Graph *graph = graph_new(DTYPE_BF16);
    int inputs[5];
    graph->eager_default = eager;
    for (int i = 0; i < 5; i++) {
        inputs[i] = graph_add_input(graph, names[i], ROWS_TOKENS, i < 4 ? heads * dim : heads, DTYPE_BF16, TRUE);
    }
    graph_add_output(graph, kda_add(graph, "attn", inputs, &attr));
    graph_finish(graph);
    return graph;
}

static RowCounts tokens(int64_t n_sequences, int64_t seq_len)
{
    return (RowCounts){.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n_sequences * seq_len, [ROWS_SEQUENCES] = n_sequences},
                       .seq_len = seq_len};
}

static int64_t aux_bytes(const OpView *view)
{
    OpSaved saved;
    int64_t bytes = 0;
    op_class(view->op->kind)->saved(view, &saved);
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

/* Kept and peak bytes of chunk_kda, 32 heads of 128: what is new after forward (o included), and the most in backward.
 */
static void test_measured_bytes(void **state)
{
    static const struct {
        int64_t seq_len, kept, peak;
    } measured[] = {{4096, 135266304, 0}, {8192, 270532608, 2088763392}, {32768, 1082130432, 8355053568}};
    (void)state;
    g_autoptr(Graph) graph = kda_graph(32, 128, FALSE);
    for (guint i = 0; i < G_N_ELEMENTS(measured); i++) {
        RowCounts rows = tokens(1, measured[i].seq_len);
        OpView view = {graph, graph_op(graph, 0), &rows};
        OpCost cost;
        int64_t kept = aux_bytes(&view) + op_out_bytes(&view, 0);
        check_int(kept, measured[i].kept);
        op_class(OP_kda)->backward_cost(&view, &cost);
        int64_t peak = kept + op_out_bytes(&view, 0) + cost.workspace_bytes;
        for (int in = 0; in < 5; in++) {
            peak += op_in_bytes(&view, in);
        }
        if (measured[i].peak > 0) {
            check_close((double)peak, (double)measured[i].peak, 1e-4);
        }
    }
}

/* kernels.md 2.5: 6 d^2 + 4 C d per token and head, and what decays and scaling add to it. */
static void test_flops(void **state)
{
    (void)state;
    DeltaShape k3 = {96, 96, 128, 128, 64, TRUE};
    RowCounts rows = tokens(1, 4096);
    DeltaSums sums = delta_sums(&rows, 64);
    check_int(sums.n_chunks, 64);
    check_int(sums.squares, 4096 * 64);
    double core = 12582912.0 * 4096, forward = delta_forward_flops(&k3, &sums),
           backward = delta_backward_flops(&k3, &sums);
    assert_true(forward > core && forward < 1.05 * core);
    /* twice, and the states once more: E and the update 4 d^2, the solve C d */
    double again = 96.0 * 4096 * (4 * 128 * 128 + 64 * 128);
    assert_true(backward > 2 * core + again && backward < 1.08 * (2 * core + again));
    /* grouped heads share their products where the decay is one per head (section 3) */
    DeltaShape gdn = {16, 32, 128, 128, 64, FALSE};
    double shared = 4096.0 * (32 * (6 * 128 * 128 + 2 * 64 * 128) + 16 * 2 * 64 * 128);
    assert_true(delta_forward_flops(&gdn, &sums) > shared && delta_forward_flops(&gdn, &sums) < 1.02 * shared);
}

static void test_sums(void **state)
{
    (void)state;
    RowCounts rows = tokens(2, 37);
    DeltaSums sums = delta_sums(&rows, 32); /* chunks of 32 and 5, twice */
    check_int(sums.n_sequences, 2);
    check_int(sums.n_chunks, 4);
    check_int(sums.n_tokens, 74);
    check_int(sums.squares, 2 * (32 * 32 + 25));
    check_int(sums.block_pairs, 2 * (120 + 120 + 10));
    check_int(sums.block_reach, 2 * 16);
    check_int(sums.late_rows, 2 * 16);
    check_int(sums.early_rows, 2 * 16);
    check_int(sums.early_reach, 0);
    RowCounts none = tokens(1, 0);
    check_int(delta_sums(&none, 64).n_chunks, 0);
    int64_t starts[] = {0, 3, 3, 67};
    RowCounts packed = tokens(3, 67);
    packed.rows[ROWS_TOKENS] = 67;
    packed.doc_starts = starts;
    check_int(delta_sums(&packed, 64).n_chunks, 2);
}

/* The naive chain moves far more than the fused kernel and keeps far more. */
static void test_eager(void **state)
{
    (void)state;
    g_autoptr(Graph) fused = kda_graph(4, 64, FALSE), eager = kda_graph(4, 64, TRUE);
    RowCounts rows = tokens(1, 512);
    OpView a = {fused, graph_op(fused, 0), &rows}, b = {eager, graph_op(eager, 0), &rows};
    OpCost cost_a, cost_b;
    op_class(OP_kda)->forward_cost(&a, &cost_a);
    op_class(OP_kda)->forward_cost(&b, &cost_b);
    assert_true(op_cost_bytes(&cost_b) > 20 * op_cost_bytes(&cost_a));
    assert_true(op_cost_launches(&cost_b) > 500);
    assert_true(aux_bytes(&b) > 20 * aux_bytes(&a));
    op_class(OP_kda)->backward_cost(&b, &cost_a);
    check_int(op_cost_launches(&cost_a), 2 * op_cost_launches(&cost_b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_measured_bytes),
        cmocka_unit_test(test_eager),
    };
    return cmocka_run_group_tests_name("delta-cost", tests, NULL, NULL);
}
