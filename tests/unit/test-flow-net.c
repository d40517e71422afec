/*
 * Flow net: known completion times (tests/reference/flows, solved by hand and by SimGrid 3.32 in pure max-min form),
 * whole all-to-alls among them; weights, capacities that change, flows that callbacks start.
 */
#include "sim/des/flow-net.h"
#include "tests/check.h"

#include <stdlib.h>

#include "sim/base/csv-read.h"
#include "tests/flow-sizes.h"

enum { FLOWS_MAX = 64 * 64 };

typedef struct Ends {
    double ns[FLOWS_MAX];
    int order[FLOWS_MAX], n;
} Ends;

static void on_done(void *self, int flow, uint64_t arg, double end_ns)
{
    Ends *ends = self;
    (void)flow;
    ends->ns[arg] = end_ns;
    ends->order[ends->n++] = (int)arg;
}

static CsvTable *load(const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/flows");
    g_autofree char *file = g_build_filename(path, name, NULL);
    CsvTable *table = csv_table_load(file, &error);
    check_no_error(error);
    return table;
}

static double number(const CsvTable *table, size_t row, const char *column)
{
    double value = 0;
    assert_true(csv_table_number(table, row, (size_t)csv_table_find(table, column), &value, NULL));
    return value;
}

static const char *text(const CsvTable *table, size_t row, const char *column)
{
    return csv_table_cell(table, row, (size_t)csv_table_find(table, column));
}

/* Index of a link of that name, added when new. */
static int find_link(FlowNet *net, GPtrArray *names, const char *name, double bytes_per_s)
{
    for (guint i = 0; i < names->len; i++) {
        if (strcmp(g_ptr_array_index(names, i), name) == 0) {
            return (int)i;
        }
    }
    g_ptr_array_add(names, g_strdup(name));
    return flow_net_add_link(net, bytes_per_s);
}

static void start_row(FlowNet *net, GPtrArray *names, const CsvTable *table, size_t row)
{
    g_auto(GStrv) links = g_strsplit(text(table, row, "links"), "+", -1);
    g_auto(GStrv) rates = g_strsplit(text(table, row, "link_bytes_per_s"), "+", -1);
    FlowSpec spec = {.bytes = number(table, row, "bytes"), .weight = 1, .arg = row};
    for (; links[spec.n_links] != NULL; spec.n_links++) {
        spec.links[spec.n_links] =
            find_link(net, names, links[spec.n_links], g_ascii_strtod(rates[spec.n_links], NULL));
    }
    flow_net_start(net, &spec);
}

static void test_known_cases(void **state)
{
    (void)state;
    g_autoptr(CsvTable) table = load("cases.csv");
    static Ends ends;
    size_t n = csv_table_n_rows(table), n_cases = 0;
    for (size_t first = 0, last; first < n; first = last, n_cases++) {
        last = first;
        ends.n = 0;
        g_autoptr(FlowNet) net = flow_net_new(on_done, &ends);
        g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
        for (; last < n && strcmp(text(table, first, "case"), text(table, last, "case")) == 0; last++) {
            double start_ns = number(table, last, "start_s") * 1e9;
            assert_true(start_ns >= flow_net_now(net)); /* rows of a case stand in order of start */
            flow_net_advance(net, start_ns);
            start_row(net, names, table, last);
        }
        flow_net_advance(net, HUGE_VAL);
        check_int(ends.n, last - first);
        for (size_t row = first; row < last; row++) {
            check_close(ends.ns[row] * 1e-9, number(table, row, "finish_s"), 1e-9);
        }
    }
    assert_true(n_cases >= 7);
}

static void check_all_to_all(const char *file, int n, int64_t *sizes)
{
    g_autoptr(CsvTable) table = load(file);
    static Ends ends;
    ends.n = 0;
    g_autoptr(FlowNet) net = flow_net_new(on_done, &ends);
    flow_all_to_all_start(net, n, sizes, NULL);
    flow_net_advance(net, HUGE_VAL);
    check_int(csv_table_n_rows(table), n * (n - 1));
    for (size_t row = 0; row < csv_table_n_rows(table); row++) {
        int pair = (int)number(table, row, "src") * n + (int)number(table, row, "dst");
        check_int(sizes[pair], number(table, row, "bytes"));
        check_close(ends.ns[pair] * 1e-9, number(table, row, "finish_s"), 1e-8); /* the file's own accuracy is 2e-9 */
    }
    g_free(sizes);
}

static void test_all_to_all(void **state)
{
    (void)state;
    int64_t *uniform = g_new(int64_t, 16 * 16);
    for (int i = 0; i < 16 * 16; i++) {
        uniform[i] = 1048576;
    }
    check_all_to_all("all_to_all_n16_uniform.csv", 16, uniform);
    check_all_to_all("all_to_all_n16_zipfdst.csv", 16, flow_sizes_zipfdst(16));
    check_all_to_all("all_to_all_n64_zipfpair.csv", 64, flow_sizes_zipfpair(64));
}

/* A flow of weight w moves as w flows of a w-th of its bytes do. */
static void test_weight(void **state)
{
    (void)state;
    static Ends ends;
    ends.n = 0;
    g_autoptr(FlowNet) net = flow_net_new(on_done, &ends);
    int shared = flow_net_add_link(net, 4e9), own = flow_net_add_link(net, 1e9);
    flow_net_start(net, &(FlowSpec){.bytes = 3e3, .weight = 3, .n_links = 1, .links = {shared}, .arg = 0});
    flow_net_start(net, &(FlowSpec){.bytes = 5e2, .weight = 1, .n_links = 2, .links = {shared, own}, .arg = 1});
    check_close(flow_net_rate(net, 0), 3e9, 1e-12);
    check_close(flow_net_rate(net, 1), 1e9, 1e-12);
    flow_net_advance(net, HUGE_VAL);
    check_close(ends.ns[1], 500, 1e-12);
    check_close(ends.ns[0], 875, 1e-12); /* 1500 bytes at 3, then 1500 at 4 bytes per ns */
}

static void test_capacity(void **state)
{
    (void)state;
    static Ends ends;
    ends.n = 0;
    g_autoptr(FlowNet) net = flow_net_new(on_done, &ends);
    int link = flow_net_add_link(net, 1e9);
    flow_net_set_capacity(net, link, 2e9);
    flow_net_start(net, &(FlowSpec){.bytes = 1000, .weight = 1, .n_links = 1, .links = {link}, .arg = 0});
    check_int(flow_net_next_ns(net), 500);
    flow_net_advance(net, 250);
    flow_net_set_capacity(net, link, 3e9);
    check_int(flow_net_next_ns(net), 417); /* rounded up */
    check_close(flow_net_next(net), 250.0 + 500.0 / 3.0, 1e-12);
    flow_net_advance(net, 1000);
    check_close(flow_net_now(net), 1000, 0);
    check_int(flow_net_next_ns(net), G_MAXINT64);
    check_int(ends.n, 1);
}

/* Flows that end together are told in order of their indices; one without bytes ends where it starts. */
static void test_order(void **state)
{
    (void)state;
    static Ends ends;
    ends.n = 0;
    g_autoptr(FlowNet) net = flow_net_new(on_done, &ends);
    int a = flow_net_add_link(net, 1e9), b = flow_net_add_link(net, 1e9);
    flow_net_advance(net, 10);
    for (int i = 0; i < 6; i++) {
        flow_net_start(net, &(FlowSpec){.bytes = 100, .weight = 1, .n_links = 1, .links = {i % 2 != 0 ? a : b},
                                        .arg = (uint64_t)i});
    }
    flow_net_start(net, &(FlowSpec){.weight = 1, .n_links = 2, .links = {a, b}, .arg = 6});
    flow_net_advance(net, HUGE_VAL);
    check_int(ends.n, 7);
    check_int(ends.order[0], 6);
    check_close(ends.ns[6], 10, 0);
    for (int i = 0; i < 6; i++) {
        check_int(ends.order[i + 1], i);
        check_close(ends.ns[i], 310, 1e-12);
    }
}

/* A relay: every end starts the next flow, in the place of the one that ended. */
typedef struct Relay {
    FlowNet *net;
    int n_left, link;
    double end_ns;
} Relay;

static void on_relay(void *self, int flow, uint64_t arg, double end_ns)
{
    Relay *relay = self;
    relay->end_ns = end_ns;
    if (relay->n_left-- > 0) {
        FlowSpec spec = {.bytes = 10, .weight = 1, .n_links = 1, .links = {relay->link}, .arg = arg + 1};
        check_int(flow_net_start(relay->net, &spec), flow);
    }
}

static void test_relay(void **state)
{
    (void)state;
    Relay relay = {.n_left = 9};
    g_autoptr(FlowNet) net = relay.net = flow_net_new(on_relay, &relay);
    relay.link = flow_net_add_link(net, 1e9);
    flow_net_start(net, &(FlowSpec){.bytes = 10, .weight = 1, .n_links = 1, .links = {relay.link}});
    flow_net_advance(net, HUGE_VAL);
    check_close(relay.end_ns, 100, 1e-12);
    check_int(flow_net_counts(net).ended, 10);
}

/* Alike flows of a whole all-to-all are solved together; ends of flows that bound nobody are not solved at all. */
static void test_few_solves(void **state)
{
    (void)state;
    g_autofree int64_t *sizes = flow_sizes_zipfdst(64);
    g_autoptr(FlowNet) net = flow_net_new(NULL, NULL);
    flow_all_to_all_start(net, 64, sizes, NULL);
    flow_net_advance(net, HUGE_VAL);
    check_int(flow_net_counts(net).ended, 64 * 63);
    assert_true(flow_net_counts(net).solves < 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_cases), cmocka_unit_test(test_all_to_all), cmocka_unit_test(test_weight),
        cmocka_unit_test(test_capacity),    cmocka_unit_test(test_order),      cmocka_unit_test(test_relay),
        cmocka_unit_test(test_few_solves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
