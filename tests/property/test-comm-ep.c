/*
 * Published dispatch and combine measurements (tests/reference/comm-ep.csv) against what each stack's one set of
 * parameters says: mean absolute error of bandwidth within 12 % a stack. NCCL's all-to-all has no stack of its own: it
 * goes by the law that was fitted on H200, carried over to H100 and GB200.
 *
 * A published bandwidth counts the rank's own part (its own node, for the NIC); rows without one have a latency.
 */
#include "tests/check.h"
#include "tests/csv-row.h"

#include <stdio.h>

#include "hw/exchange.h"
#include "models/moe-spread.h"

static const double mean_error_max = 0.12;

/* Where a stack is tested: rows whose library is this, on a device that names this. */
static const struct Library {
    const char *name;
    const char *library, *gpu; /* gpu NULL: any */
    const char *stack;         /* NULL: NCCL */
    double dispatch_bytes;     /* of an element sent: fp8 with a scale for 128, or bf16; combine is bf16 */
    /*
     * Groups of experts open to a token: DeepSeek-V3's 4 of 8; DeepEP's test takes a group a node, at most 4 of them
     * (0). Low-latency rows and NCCL send a row for every expert.
     */
    int64_t groups;
} libraries[] = {
    {"DeepEP V1", "DeepEP V1 normal kernels", NULL, "deepep", 1.03125, 0},
    {"DeepEP V1 low latency", "DeepEP V1 low latency", NULL, "deepep-low-latency", 1.03125, 0},
    {"DeepEP V2", "DeepEP V2", NULL, "deepep-v2", 1.03125, 0},
    {"DeepEP on NVL72", "DeepEP", "GB200", "deepep-nvl72", 2, 0},
    {"HybridEP", "HybridEP", NULL, "hybridep", 2, 8},
    {"NCCL", "NCCL all-to-all", NULL, NULL, 2, 0},
};

static const struct {
    const char *gpu, *preset;
} presets[] = {{"H800", "h800-sxm"}, {"H100", "h100-sxm"}, {"GB200", "gb200"}, {"SM100", "b200"}, {"SM90", "h100-sxm"}};

static Cluster *cluster_of(CsvRow row)
{
    g_autoptr(GError) error = NULL;
    for (size_t i = 0; i < G_N_ELEMENTS(presets); i++) {
        if (strstr(csv_row_text(row, "gpu"), presets[i].gpu) != NULL) {
            g_autoptr(Cluster) node = cluster_load(presets[i].preset, 1, 0, &error);
            check_no_error(error);
            /* a source may call a part of a super-node a node */
            int64_t per_node = MIN((int64_t)csv_row_number(row, "ranks_per_node", 8), node->gpus_per_node);
            int64_t ranks = (int64_t)csv_row_number(row, "ep_ranks", 8);
            Cluster *cluster = cluster_load(presets[i].preset, quantity_div_up(ranks, per_node), per_node, &error);
            check_no_error(error);
            return cluster;
        }
    }
    print_error("no preset for %s\n", csv_row_text(row, "gpu"));
    fail();
    return NULL;
}

/* Rows that a rank moves for each of its tokens: to other ranks inside, outside, and as the source counts them. */
typedef struct Moved {
    double inside, outside, counted_inside, counted_outside;
} Moved;

static Moved moved(CsvRow row, const struct Library *library, const CollGroup *group, gboolean once)
{
    int64_t nodes = group->n_ranks / group->per_domain, k = (int64_t)csv_row_number(row, "topk", 8);
    double others_inside = (double)(group->per_domain - 1), others = (double)(group->n_ranks - group->per_domain);
    if (!once) {
        double share = (double)k / (double)group->n_ranks;
        return (Moved){share * others_inside, share * others, (double)k, (double)k};
    }
    MoeSpread spread = {.experts = 256, .top_k = k, .groups = library->groups, .topk_groups = 4};
    if (library->groups == 0) {
        spread.groups = nodes;
    }
    double ranks = moe_spread_parts(&spread, group->n_ranks), domains = moe_spread_parts(&spread, nodes);
    return (Moved){ranks * others_inside / (double)group->per_domain, domains * (double)(nodes - 1) / (double)nodes, ranks,
                   domains};
}

/* Published bandwidth over predicted, less one. */
static double row_error(CsvRow row, const struct Library *library, const ExchangeStack *stack)
{
    g_autoptr(Cluster) cluster = cluster_of(row);
    gboolean is_combine = strcmp(csv_row_text(row, "operation"), "combine") == 0;
    CollGroup group = cluster_group(cluster, 0, 1, (int64_t)csv_row_number(row, "ep_ranks", 0));
    Moved rows = moved(row, library, &group, stack != NULL && stack->once_per_rank);
    double bytes = csv_row_number(row, "tokens_per_rank", 8192) * csv_row_number(row, "hidden", 7168) *
                   (is_combine ? 2.0 : library->dispatch_bytes);
    double seconds;
    if (stack != NULL) {
        ExchangeBytes sent = {.inside = rows.inside * bytes, .outside = rows.outside * bytes};
        seconds = exchange_seconds(cluster, stack, &sent, is_combine);
    } else {
        seconds = 1e-9 * (double)coll_all_to_all_ns(cluster, &group, (int64_t)(rows.inside * bytes),
                                                    (int64_t)(rows.outside * bytes),
                                                    (int64_t)(rows.counted_inside / (double)group.n_ranks * bytes), NULL);
    }
    double latency_s = csv_row_number(row, "latency_us", 0) * 1e-6;
    gboolean is_nic = strstr(csv_row_text(row, "bandwidth_kind"), "RDMA") != NULL;
    double counted = (is_nic ? rows.counted_outside : rows.counted_inside) * bytes;
    double predicted = counted / seconds;
    double published = latency_s > 0 ? counted / latency_s : csv_row_number(row, "bandwidth_GBps", 0) * 1e9;
    assert_true(published > 0 && seconds > 0);
    return predicted / published - 1.0;
}

static void test_stacks(void **state)
{
    const struct Library *library = *state;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/comm-ep.csv");
    g_autoptr(CsvTable) table = csv_table_load(path, &error);
    check_no_error(error);
    g_autoptr(ExchangeStack) stack = library->stack != NULL ? exchange_stack_load(library->stack, &error) : NULL;
    check_no_error(error);
    double sum = 0, worst = 0;
    int n = 0;
    for (size_t i = 0; i < csv_table_n_rows(table); i++) {
        CsvRow row = {table, i};
        if (strcmp(csv_row_text(row, "library"), library->library) != 0 ||
            (library->gpu != NULL && strstr(csv_row_text(row, "gpu"), library->gpu) == NULL)) {
            continue;
        }
        double off = row_error(row, library, stack);
        if (g_getenv("MOESIM_TEST_VERBOSE") != NULL) {
            fprintf(stderr, "%s %s %s %s: %+.1f %%\n", csv_row_text(row, "id"), csv_row_text(row, "operation"), csv_row_text(row, "gpu"),
                    csv_row_text(row, "ep_ranks"), 100 * off);
        }
        sum += fabs(off);
        worst = MAX(worst, fabs(off));
        n++;
    }
    assert_true(n >= 2);
    fprintf(stderr, "# %s: %d rows, mean %.1f %%, worst %.1f %%\n", library->name, n, 100 * sum / n, 100 * worst);
    assert_true(sum / n <= mean_error_max);
}

int main(void)
{
    return check_run_cases("comm-ep", test_stacks, libraries, G_N_ELEMENTS(libraries), sizeof libraries[0]);
}
