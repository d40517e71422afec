/* Integer tables of an independent implementation: capacity and drop rules, dispatch tables, expert placement. */
#include <jansson.h>

#include "models/moe-tables.h"
#include "models/placement.h"
#include "tests/check.h"

G_DEFINE_AUTOPTR_CLEANUP_FUNC(json_t, json_decref)

static json_t *load(const char *name)
{
    g_autofree char *relative = g_build_filename("models/golden/cases", name, NULL);
    g_autofree char *path = check_source_path(relative);
    json_t *value = json_load_file(path, 0, NULL);
    assert_non_null(value);
    return value;
}

static int64_t get_int(json_t *object, const char *key)
{
    return (int64_t)json_number_value(json_object_get(object, key));
}

/* A list of numbers, lists inside it laid end to end; caller frees. */
static GArray *flatten(json_t *list)
{
    GArray *values = g_array_new(FALSE, FALSE, sizeof(double));
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        if (json_is_array(item)) {
            g_autoptr(GArray) inner = flatten(item);
            g_array_append_vals(values, inner->data, inner->len);
        } else {
            double number = json_number_value(item);
            g_array_append_val(values, number);
        }
    }
    return values;
}

static int64_t *ints(json_t *list)
{
    g_autoptr(GArray) values = flatten(list);
    int64_t *out = g_new0(int64_t, values->len + 1);
    for (guint i = 0; i < values->len; i++) {
        out[i] = (int64_t)g_array_index(values, double, i);
    }
    return out;
}

static void check_list(const int64_t *got, json_t *want)
{
    g_autoptr(GArray) values = flatten(want);
    for (guint i = 0; i < values->len; i++) {
        check_int(got[i], (int64_t)g_array_index(values, double, i));
    }
}

static void test_capacity(void **state)
{
    g_autoptr(json_t) all = load("capacity.json");
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach (json_object_get(all, "capacity"), i, c) {
        MoeShape shape = {get_int(c, "tokens"), get_int(c, "topk"), get_int(c, "experts")};
        double f = json_number_value(json_object_get(c, "capacity_factor"));
        check_int(moe_capacity(MOE_CAPACITY_MEGATRON, &shape, f, 0), get_int(c, "megatron"));
        check_int(moe_capacity(MOE_CAPACITY_DEEPSPEED, &shape, f, 4), get_int(c, "deepspeed_min4"));
        check_int(moe_capacity(MOE_CAPACITY_TUTEL, &shape, f, 1), get_int(c, "tutel_align1"));
        check_int(moe_capacity(MOE_CAPACITY_TUTEL, &shape, f, 8), get_int(c, "tutel_align8"));
    }
    json_array_foreach (json_object_get(all, "distinct_ranks_uniform"), i, c) {
        check_close(moe_expected_ranks(get_int(c, "experts"), get_int(c, "topk"), get_int(c, "ranks")),
                    json_number_value(json_object_get(c, "distinct_ranks")), 1e-12);
    }
}

static void test_drop(void **state)
{
    static const char *const keys[N_MOE_DROPS] = {
        [MOE_DROP_POSITION] = "keep_position",
        [MOE_DROP_POSITION_CHOICE] = "keep_position_choice",
        [MOE_DROP_PROBS] = "keep_probs",
    };
    g_autoptr(json_t) all = load("capacity.json");
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach (json_object_get(all, "drop_examples"), i, c) {
        int64_t n = get_int(c, "tokens");
        int64_t k = get_int(c, "topk");
        MoeShape shape = {n, k, get_int(c, "experts")};
        g_autofree int64_t *sel = ints(json_object_get(c, "sel"));
        g_autoptr(GArray) weights = flatten(json_object_get(c, "weights"));
        g_autofree guint8 *keep = g_new(guint8, (gsize)(n * k));
        for (int drop = 0; drop < N_MOE_DROPS; drop++) {
            g_autofree int64_t *want = ints(json_object_get(c, keys[drop]));
            moe_keep((MoeDrop)drop, &shape, get_int(c, "capacity"), sel, (const double *)(const void *)weights->data,
                     keep);
            for (int64_t s = 0; s < n * k; s++) {
                check_int(keep[s], want[s]);
            }
        }
    }
}

/* Counts of each source rank by expert: [ranks, experts]. */
static int64_t *counts_by_source(json_t *c, const int64_t *sel)
{
    int64_t ranks = get_int(c, "ranks");
    int64_t n = get_int(c, "tokens_per_rank");
    int64_t k = get_int(c, "topk");
    int64_t experts = get_int(c, "experts");
    int64_t *counts = g_new(int64_t, (gsize)(ranks * experts));
    g_autofree int64_t *order = g_new(int64_t, (gsize)(n * k));
    for (int64_t rank = 0; rank < ranks; rank++) {
        moe_order(&(MoeShape){n, k, experts}, sel + rank * n * k, NULL, order, counts + rank * experts);
    }
    return counts;
}

static void check_receiver(json_t *c, const int64_t *counts, int64_t rank)
{
    int64_t ranks = get_int(c, "ranks");
    int64_t experts = get_int(c, "experts");
    int64_t local = experts / ranks;
    json_t *receiver = json_array_get(json_object_get(c, "receivers"), (size_t)rank);
    g_autofree int64_t *received = g_new(int64_t, (gsize)experts); /* by (source, local expert) */
    g_autofree int64_t *rows = g_new(int64_t, (gsize)local);
    for (int64_t i = 0; i < experts; i++) {
        received[i] = counts[i / local * experts + rank * local + i % local];
    }
    int64_t n_rows = moe_arrival(received, ranks, local, NULL, rows);
    g_autofree int64_t *arrival = g_new(int64_t, (gsize)n_rows);
    moe_arrival(received, ranks, local, arrival, NULL);
    check_int(n_rows, json_array_size(json_object_get(receiver, "arriving_source_localexpert_token_k")));
    check_list(arrival, json_object_get(receiver, "permutation_to_expert_major"));
    check_list(rows, json_object_get(receiver, "rows_per_local_expert"));
}

static void test_dispatch(void **state)
{
    g_autoptr(json_t) all = load("dispatch.json");
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach (all, i, c) {
        int64_t ranks = get_int(c, "ranks");
        int64_t k = get_int(c, "topk");
        int64_t experts = get_int(c, "experts");
        int64_t n = get_int(c, "tokens_per_rank") * ranks;
        g_autofree int64_t *sel = ints(json_object_get(c, "sel"));
        g_autofree int64_t *order = g_new(int64_t, (gsize)(2 * n * k + experts));
        int64_t *counts = order + n * k;
        check_int(moe_order(&(MoeShape){n, k, experts}, sel, NULL, order, counts), n * k);
        check_list(counts, json_object_get(c, "counts"));
        for (int64_t s = 0; s < n * k; s++) {
            check_int(order[s] / k,
                      (int64_t)json_number_value(json_array_get(json_object_get(c, "slot_token"), (size_t)s)));
            check_int(order[s] % k,
                      (int64_t)json_number_value(json_array_get(json_object_get(c, "slot_k"), (size_t)s)));
        }
        g_autofree int64_t *by_source = counts_by_source(c, sel);
        check_list(by_source, json_object_get(c, "counts_per_source"));
        g_autofree int64_t *send = ints(json_object_get(c, "send_rows"));
        g_autofree int64_t *distinct = ints(json_object_get(c, "distinct_ranks_per_token"));
        for (int64_t p = 0; p < ranks * ranks; p++) {
            check_int(moe_send_rows(by_source + p / ranks * experts, experts, ranks, p % ranks), send[p]);
        }
        for (int64_t t = 0; t < n; t++) {
            check_int(moe_distinct_ranks(sel + t * k, k, experts, ranks), distinct[t]);
        }
        for (int64_t rank = 0; rank < ranks; rank++) {
            check_receiver(c, by_source, rank);
        }
    }
}

static void test_eplb(void **state)
{
    g_autoptr(json_t) all = load("eplb.json");
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach (all, i, c) {
        g_autoptr(GArray) loads = flatten(json_object_get(c, "loads"));
        g_autoptr(GArray) want_loads = flatten(json_object_get(c, "gpu_loads"));
        const double *load_of = (const double *)(const void *)loads->data;
        PlacementShape shape = {.experts = loads->len,
                                .slots = get_int(c, "slots"),
                                .groups = get_int(c, "groups_in"),
                                .nodes = get_int(c, "nodes"),
                                .gpus = get_int(c, "gpus")};
        g_autofree int64_t *expert = g_new(int64_t, (gsize)shape.slots);
        g_autofree int64_t *copies = g_new(int64_t, (gsize)shape.experts);
        g_autofree double *gpu_load = g_new(double, (gsize)shape.gpus);
        GError *error = NULL;
        assert_true(placement_eplb(&shape, load_of, expert, copies, &error));
        check_list(expert, json_object_get(c, "slot_to_expert"));
        check_list(copies, json_object_get(c, "copies"));
        placement_gpu_loads(&shape, load_of, expert, copies, gpu_load);
        for (int64_t gpu = 0; gpu < shape.gpus; gpu++) {
            check_close(gpu_load[gpu], g_array_index(want_loads, double, gpu), 1e-9);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_eplb),
    };
    return cmocka_run_group_tests_name("moe-golden", tests, NULL, NULL);
}
