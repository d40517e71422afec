/*
 * Ways of rows to their experts, in whole steps: sending tokens once is never slower than a row per choice between nodes, a
 * fabric with fewer uplinks never faster, and the closed form of an exchange lies at, or little above, what max-min fair
 * flows of the same messages take.
 */
#include "tests/check.h"

#include "hw/transfers.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"
#include "workloads/plan/routing.h"
#include "workloads/run/run.h"

#define MODEL "model.config=deepseek-v3 model.overrides.num_hidden_layers=5 workload.seq_len=2048 memory.recompute=full "

static Plan *plan_of(const char *text)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) value = json_object();
    g_auto(GStrv) words = g_strsplit(text, " ", -1);
    for (char **word = words; *word != NULL; word++) {
        char *equals = strchr(*word, '=');
        if (equals != NULL) {
            *equals = '\0';
            json_t *cell = cases_cell_value(*word, equals + 1, &error);
            assert_true(cell != NULL && cases_set(value, *word, cell, &error));
        }
    }
    Plan *plan = plan_from_json(value, "plan", NULL, &error);
    check_no_error(error);
    return plan;
}

static double step_s(const char *words)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of(words);
    g_autoptr(Result) result = run_plan(plan, NULL, &error);
    check_no_error(error);
    return result->step_time_s;
}

static void test_tokens_once(void **state)
{
    static const char *const base = MODEL "cluster.preset=h100-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=32";
    static const char *const loads[] = {"", " workload.routing.kind=zipf workload.routing.exponent=0.6"};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(loads); i++) {
        g_autofree char *rows = g_strconcat(base, loads[i], NULL);
        g_autofree char *tokens = g_strconcat(rows, " moe.dispatch=deepep", NULL);
        g_autofree char *hybrid = g_strconcat(rows, " moe.dispatch=hybridep", NULL);
        g_autofree char *early = g_strconcat(tokens, " moe.shared_overlap=true", NULL);
        assert_true(step_s(tokens) < step_s(rows));
        assert_true(step_s(hybrid) < step_s(rows));
        assert_true(step_s(early) < step_s(tokens));
    }
}

/*
 * Chunks hide exchanges behind experts: where exchanges take long, a step in chunks is no slower, and less of it waits for the
 * network. Where experts have few rows, each chunk's GEMMs take about as long as the whole's, and a step in chunks is slower.
 */
static void test_chunks(void **state)
{
    static const char *const ways[] = {"all_to_all", "hierarchical", "deepep"};
    (void)state;
    for (size_t w = 0; w < G_N_ELEMENTS(ways); w++) {
        g_autofree char *large = g_strdup_printf(MODEL "cluster.preset=h100-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=32 "
                                                 "workload.seq_len=16384 moe.dispatch=%s", ways[w]);
        g_autofree char *small = g_strdup_printf(MODEL "cluster.preset=h100-sxm cluster.nodes=1 cluster.gpus_per_node=8 parallel.ep=8 "
                                                 "workload.seq_len=128 moe.dispatch=%s", ways[w]);
        double whole = step_s(large), tiny = step_s(small);
        for (int chunks = 2; chunks <= 4; chunks += 2) {
            g_autofree char *cut = g_strdup_printf("%s moe.overlap_chunks=%d", large, chunks);
            g_autofree char *cut_small = g_strdup_printf("%s moe.overlap_chunks=%d", small, 2 * chunks);
            double now = step_s(cut), now_small = step_s(cut_small);
            if (now > whole || now_small <= tiny) {
                print_error("%s in %d chunks: %g s, whole %g s; small %g s, whole %g s\n", ways[w], chunks, now, whole, now_small, tiny);
            }
            assert_true(now <= whole);
            assert_true(now_small > tiny);
        }
    }
}

/*
 * Two micro-batches side by side hide exchanges whichever way rows travel: less waits for the network, no kernel is another one, and
 * hardly more is alive, for backward frees while forward makes.
 */
static void test_side_by_side(void **state)
{
    static const char *const ways[] = {"all_to_all", "hierarchical", "all_gather", "deepep", "hybridep"};
    static const char *const kept[] = {"none", "selective"};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(ways) * G_N_ELEMENTS(kept); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *alone = g_strdup_printf(MODEL "cluster.preset=h100-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=32 "
                                                 "parallel.sharding=zero1 precision.parameters=bf16 workload.global_batch=256 "
                                                 "memory.recompute=%s moe.dispatch=%s", kept[i % 2], ways[i / 2]);
        g_autofree char *words = g_strconcat(alone, " moe.overlap_micro_batches=true", NULL);
        g_autoptr(Plan) plan = plan_of(alone), beside = plan_of(words);
        g_autoptr(Result) result = run_plan(plan, NULL, &error), interleaved = run_plan(beside, NULL, &error);
        check_no_error(error);
        assert_true(interleaved->step_time_s < result->step_time_s);
        assert_true(interleaved->exposed_comm_s < result->exposed_comm_s);
        assert_true(fabs(interleaved->hfu * interleaved->step_time_s - result->hfu * result->step_time_s) < 1e-9 * result->step_time_s);
        double layer_bytes = (double)(result->peak_memory_bytes - result->static_memory_bytes) / 5;
        assert_true((double)interleaved->peak_memory_bytes < (double)result->peak_memory_bytes + layer_bytes);
    }
}

/* More skew, more time, whichever way rows travel; where tokens travel once, too, though fewer of them do. */
static void test_skew(void **state)
{
    static const char *const ways[] = {"all_to_all", "hierarchical", "all_gather", "deepep", "hybridep"};
    static const char *const exponents[] = {"0.1", "0.3", "0.6", "1", "2"};
    (void)state;
    for (size_t w = 0; w < G_N_ELEMENTS(ways); w++) {
        g_autofree char *even = g_strdup_printf(
            MODEL "cluster.preset=h100-sxm cluster.nodes=2 cluster.gpus_per_node=8 parallel.ep=16 moe.dispatch=%s", ways[w]);
        double last = step_s(even);
        for (size_t i = 0; i < G_N_ELEMENTS(exponents); i++) {
            g_autofree char *words = g_strdup_printf("%s workload.routing.kind=zipf workload.routing.exponent=%s", even, exponents[i]);
            double now = step_s(words);
            assert_true(now > last);
            last = now;
        }
    }
}

/* A descriptor like the H100's whose leaves of two nodes have that share of uplinks. */
static char *write_fabric(const char *dir, const char *frac)
{
    static const char *const form =
        "{\"name\": \"fabric\", \"like\": \"h100-sxm\", \"values\": {"
        "\"peak_bf16\": {\"value\": \"989 TFLOP/s\", \"source\": \"s\"}, \"hbm_bytes\": {\"value\": \"80 GB\", \"source\": \"s\"}, "
        "\"hbm_bytes_per_s\": {\"value\": \"3.35 TB/s\", \"source\": \"s\"}, \"n_sms\": {\"value\": 132, \"source\": \"s\"}, "
        "\"host_link_bytes_per_s\": {\"value\": \"63 GB/s\", \"source\": \"s\"}, \"gpus_per_node\": {\"value\": 8, \"source\": \"s\"}, "
        "\"domain_gpus\": {\"value\": 8, \"source\": \"s\"}, \"scale_up_bytes_per_s\": {\"value\": \"450 GB/s\", \"source\": \"s\"}, "
        "\"scale_out_bytes_per_s\": {\"value\": \"50 GB/s\", \"source\": \"s\"}, "
        "\"nodes_per_leaf\": {\"value\": 2, \"source\": \"s\"}, \"leaf_uplink_frac\": {\"value\": %s, \"source\": \"s\"}}}";
    g_autofree char *name = g_strdup_printf("%s.json", frac);
    g_autofree char *text = g_strdup_printf(form, frac);
    return check_write_file(dir, name, text);
}

static void test_oversubscribed(void **state)
{
    static const char *const fracs[] = {"1", "0.5", "0.25", "0.125"};
    static const char *const ways[] = {"all_to_all", "hierarchical", "deepep"};
    (void)state;
    char *dir = check_make_dir();
    for (size_t w = 0; w < G_N_ELEMENTS(ways); w++) {
        double last = 0, first = 0;
        for (size_t i = 0; i < G_N_ELEMENTS(fracs); i++) {
            g_autofree char *path = write_fabric(dir, fracs[i]);
            g_autofree char *words = g_strdup_printf(
                MODEL "cluster.file=%s cluster.nodes=8 cluster.gpus_per_node=8 parallel.ep=64 moe.dispatch=%s", path, ways[w]);
            double now = step_s(words);
            assert_true(now >= last);
            first = i == 0 ? now : first;
            last = now;
        }
        assert_true(last > 1.2 * first); /* an eighth of the uplinks is felt */
    }
    check_remove_dir(dir);
}

/* Split matrices as flows at the rates of the descriptor, against bytes over capacity of the busiest link. */
static void test_closed_form(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of(MODEL "cluster.preset=h100-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=32 "
                                         "workload.routing.kind=zipf workload.routing.exponent=0.8");
    RoutingSpec spec = routing_spec(plan, 2048, 1);
    g_autoptr(Routing) routing = routing_new(&spec, &error);
    check_no_error(error);
    const int64_t *splits = routing_splits(routing, 0);
    g_autofree Transfer *transfers = g_new0(Transfer, 32 * 32);
    size_t n = 0, bad;
    for (int64_t i = 0; i < 32 * 32; i++) {
        if (i / 32 != i % 32) {
            transfers[n++] = (Transfer){.from = i / 32, .to = i % 32, .bytes = (double)splits[i] * 14336.0};
        }
    }
    Topology topology;
    TransfersSummary summary;
    topology_init(&topology, plan->cluster);
    assert_true(transfers_run(&topology, transfers, n, &summary, &bad, &error));
    check_int(summary.n_flows, n);
    assert_true(summary.last_end_ns >= summary.busiest_ns * (1 - 1e-12));
    assert_true(summary.last_end_ns <= summary.busiest_ns * 1.03);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens_once),
        cmocka_unit_test(test_chunks), cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_skew), cmocka_unit_test(test_oversubscribed),
                                       cmocka_unit_test(test_closed_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
