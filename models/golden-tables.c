#include "models/golden-tables.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "models/moe-tables.h"
#include "models/placement.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h" /* g_autoptr(json_t) */

/* Larger examples are not what these files are for; the bound keeps products of sizes small. */
enum { SIZE_MAX_TABLE = 4096 };

/* One entry of a table under comparison. The first mistake sticks. */
typedef struct Entry {
    const char *file;
    json_t *object;
    int64_t n_compared;
    GError *error;
} Entry;

static void fail(Entry *e, int code, const char *key, const char *what)
{
    if (e->error == NULL) {
        g_set_error(&e->error, MOESIM_ERROR, code, "%s: %s: %s", e->file, key, what);
    }
}

/* A size of the entry, 1 ... SIZE_MAX_TABLE; 1 after a mistake. */
static int64_t size(Entry *e, const char *key)
{
    const json_t *value = json_object_get(e->object, key);
    int64_t n = json_is_integer(value) ? json_integer_value(value) : 0;
    if (n < 1 || n > SIZE_MAX_TABLE) {
        fail(e, MOESIM_ERROR_INPUT, key, "must be a whole number from 1 to 4096");
        return 1;
    }
    return n;
}

static double number(Entry *e, const char *key)
{
    const json_t *value = json_object_get(e->object, key);
    if (!json_is_number(value)) {
        fail(e, MOESIM_ERROR_INPUT, key, "must be a number");
        return 0;
    }
    return json_number_value(value);
}

static void append_numbers(GArray *values, json_t *list)
{
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        if (json_is_array(item)) {
            append_numbers(values, item);
        } else {
            double value = json_is_number(item) ? json_number_value(item) : (double)NAN;
            g_array_append_val(values, value);
        }
    }
}

/* The numbers of a list, lists inside it laid end to end; exactly n of them (n < 0: any), or zeros and a mistake. */
static GArray *numbers_of(Entry *e, json_t *list, const char *key, int64_t n)
{
    GArray *values = g_array_new(FALSE, TRUE, sizeof(double));
    append_numbers(values, list);
    gboolean good = n < 0 || values->len == n;
    for (guint i = 0; i < values->len; i++) {
        good = good && isfinite(g_array_index(values, double, i));
    }
    if (!good) {
        fail(e, MOESIM_ERROR_INPUT, key, "must be a list of as many numbers as the sizes ask for");
        g_array_set_size(values, 0);
        g_array_set_size(values, (guint)MAX(n, 0));
    }
    return values;
}

static GArray *numbers(Entry *e, const char *key, int64_t n)
{
    return numbers_of(e, json_object_get(e->object, key), key, n);
}

/* The same as whole numbers in [low, high]. */
static int64_t *integers(Entry *e, const char *key, int64_t n, int64_t low, int64_t high)
{
    g_autoptr(GArray) values = numbers(e, key, n);
    int64_t *whole = g_new0(int64_t, values->len + 1);
    for (guint i = 0; i < values->len; i++) {
        double value = g_array_index(values, double, i);
        if (!(value >= (double)low && value <= (double)high)) {
            fail(e, MOESIM_ERROR_INPUT, key, "holds a number outside its range");
            value = (double)low;
        }
        whole[i] = (int64_t)value;
    }
    return whole;
}

static void compare(Entry *e, const char *key, double got, double want, double rel)
{
    if (!(fabs(got - want) <= rel * fabs(want))) {
        g_autofree char *what = g_strdup_printf("is %.12g, ours %.12g", want, got);
        fail(e, MOESIM_ERROR_FAILED, key, what);
    }
    e->n_compared++;
}

/* Our n integers against a list. */
static void compare_list(Entry *e, const char *key, const int64_t *got, json_t *want, int64_t n)
{
    g_autoptr(GArray) values = numbers_of(e, want, key, n);
    for (int64_t i = 0; i < n && e->error == NULL; i++) {
        compare(e, key, (double)got[i], g_array_index(values, double, i), 0);
    }
}

static void compare_key(Entry *e, const char *key, const int64_t *got, int64_t n)
{
    compare_list(e, key, got, json_object_get(e->object, key), n);
}

static void check_capacity(Entry *e)
{
    MoeShape shape = {size(e, "tokens"), size(e, "topk"), size(e, "experts")};
    double factor = number(e, "capacity_factor");
    compare(e, "megatron", (double)moe_capacity(MOE_CAPACITY_MEGATRON, &shape, factor, 0), number(e, "megatron"), 0);
    compare(e, "deepspeed_min4", (double)moe_capacity(MOE_CAPACITY_DEEPSPEED, &shape, factor, 4),
            number(e, "deepspeed_min4"), 0);
    compare(e, "tutel_align1", (double)moe_capacity(MOE_CAPACITY_TUTEL, &shape, factor, 1), number(e, "tutel_align1"),
            0);
    compare(e, "tutel_align8", (double)moe_capacity(MOE_CAPACITY_TUTEL, &shape, factor, 8), number(e, "tutel_align8"),
            0);
}

static void check_distinct(Entry *e)
{
    double got = moe_expected_ranks(size(e, "experts"), size(e, "topk"), size(e, "ranks"));
    compare(e, "distinct_ranks", got, number(e, "distinct_ranks"), 1e-12);
}

static void check_drop(Entry *e)
{
    static const char *const keys[N_MOE_DROPS] = {
        [MOE_DROP_POSITION] = "keep_position",
        [MOE_DROP_POSITION_CHOICE] = "keep_position_choice",
        [MOE_DROP_PROBS] = "keep_probs",
    };
    MoeShape shape = {size(e, "tokens"), size(e, "topk"), size(e, "experts")};
    int64_t capacity = size(e, "capacity"), n = shape.n_tokens * shape.top_k;
    g_autofree int64_t *sel = integers(e, "sel", n, 0, shape.experts - 1);
    g_autoptr(GArray) weights = numbers(e, "weights", n);
    g_autofree guint8 *keep = g_new0(guint8, (gsize)n);
    for (int drop = 0; drop < N_MOE_DROPS && e->error == NULL; drop++) {
        g_autofree int64_t *want = integers(e, keys[drop], n, 0, 1);
        moe_keep((MoeDrop)drop, &shape, capacity, sel, (const double *)(const void *)weights->data, keep);
        for (int64_t s = 0; s < n; s++) {
            compare(e, keys[drop], keep[s], (double)want[s], 0);
        }
    }
}

/* Sizes of a dispatch example: tokens of a rank, choices, experts, ranks. */
typedef struct Dispatch {
    int64_t n, k, experts, ranks;
} Dispatch;

static void check_receiver(Entry *e, const Dispatch *d, const int64_t *counts, int64_t rank)
{
    int64_t local = d->experts / d->ranks;
    json_t *receiver = json_array_get(json_object_get(e->object, "receivers"), (size_t)rank);
    g_autofree int64_t *received = g_new0(int64_t, (gsize)d->experts),
                       *rows = g_new0(int64_t, (gsize)local); /* by (source, local expert) */
    for (int64_t i = 0; i < d->experts; i++) {
        received[i] = counts[i / local * d->experts + rank * local + i % local];
    }
    int64_t n_rows = moe_arrival(received, d->ranks, local, NULL, rows);
    g_autofree int64_t *arrival = g_new0(int64_t, (gsize)n_rows + 1);
    moe_arrival(received, d->ranks, local, arrival, NULL);
    compare(e, "receivers", (double)n_rows,
            (double)json_array_size(json_object_get(receiver, "arriving_source_localexpert_token_k")), 0);
    compare_list(e, "permutation_to_expert_major", arrival, json_object_get(receiver, "permutation_to_expert_major"),
                 n_rows);
    compare_list(e, "rows_per_local_expert", rows, json_object_get(receiver, "rows_per_local_expert"), local);
}

static void check_slots(Entry *e, const Dispatch *d, const int64_t *sel)
{
    int64_t n = d->n * d->ranks, slots = n * d->k;
    g_autofree int64_t *order = g_new0(int64_t, (gsize)slots), *counts = g_new0(int64_t, (gsize)d->experts);
    compare(e, "sel", (double)moe_order(&(MoeShape){n, d->k, d->experts}, sel, NULL, order, counts), (double)slots, 0);
    compare_key(e, "counts", counts, d->experts);
    g_autofree int64_t *token = g_new0(int64_t, (gsize)slots), *choice = g_new0(int64_t, (gsize)slots);
    for (int64_t s = 0; s < slots; s++) {
        token[s] = order[s] / d->k;
        choice[s] = order[s] % d->k;
    }
    compare_key(e, "slot_token", token, slots);
    compare_key(e, "slot_k", choice, slots);
}

static void check_dispatch(Entry *e)
{
    Dispatch d = {size(e, "tokens_per_rank"), size(e, "topk"), size(e, "experts"), size(e, "ranks")};
    if (d.experts % d.ranks != 0) {
        fail(e, MOESIM_ERROR_INPUT, "ranks", "must divide the experts");
    }
    int64_t n = d.n * d.ranks;
    g_autofree int64_t *sel = integers(e, "sel", n * d.k, 0, d.experts - 1);
    if (e->error != NULL) {
        return;
    }
    check_slots(e, &d, sel);
    g_autofree int64_t *by_source = g_new0(int64_t, (gsize)(d.ranks * d.experts)),
                       *order = g_new0(int64_t, (gsize)(d.n * d.k));
    g_autofree int64_t *send = g_new0(int64_t, (gsize)(d.ranks * d.ranks)), *distinct = g_new0(int64_t, (gsize)n);
    for (int64_t rank = 0; rank < d.ranks; rank++) {
        moe_order(&(MoeShape){d.n, d.k, d.experts}, sel + rank * d.n * d.k, NULL, order, by_source + rank * d.experts);
    }
    for (int64_t p = 0; p < d.ranks * d.ranks; p++) {
        send[p] = moe_send_rows(by_source + p / d.ranks * d.experts, d.experts, d.ranks, p % d.ranks);
    }
    for (int64_t t = 0; t < n; t++) {
        distinct[t] = moe_distinct_ranks(sel + t * d.k, d.k, d.experts, d.ranks);
    }
    compare_key(e, "counts_per_source", by_source, d.ranks * d.experts);
    compare_key(e, "send_rows", send, d.ranks * d.ranks);
    compare_key(e, "distinct_ranks_per_token", distinct, n);
    for (int64_t rank = 0; rank < d.ranks; rank++) {
        check_receiver(e, &d, by_source, rank);
    }
}

static void check_placement(Entry *e)
{
    g_autoptr(GArray) loads = numbers(e, "loads", -1);
    const double *load_of = (const double *)(const void *)loads->data;
    PlacementShape shape = {loads->len, size(e, "slots"), size(e, "groups_in"), size(e, "nodes"), size(e, "gpus")};
    g_autofree int64_t *expert = g_new0(int64_t, (gsize)shape.slots),
                       *copies = g_new0(int64_t, (gsize)shape.experts + 1);
    g_autofree double *gpu_load = g_new0(double, (gsize)shape.gpus);
    if (e->error != NULL || !placement_eplb(&shape, load_of, expert, copies, &e->error)) {
        return;
    }
    compare_key(e, "slot_to_expert", expert, shape.slots);
    compare_key(e, "copies", copies, shape.experts);
    placement_gpu_loads(&shape, load_of, expert, copies, gpu_load);
    g_autoptr(GArray) want = numbers(e, "gpu_loads", shape.gpus);
    for (int64_t gpu = 0; gpu < shape.gpus; gpu++) {
        compare(e, "gpu_loads", gpu_load[gpu], g_array_index(want, double, gpu), 1e-9);
    }
}

/* Lists of a file: the key in the top object, or NULL where the file is the list. */
static const struct {
    const char *file, *key;
    void (*check)(Entry *entry);
} tables[] = {
    {"capacity.json", "capacity", check_capacity},  {"capacity.json", "distinct_ranks_uniform", check_distinct},
    {"capacity.json", "drop_examples", check_drop}, {"dispatch.json", NULL, check_dispatch},
    {"eplb.json", NULL, check_placement},
};

gboolean golden_table_knows(const char *file_name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++) {
        if (strcmp(tables[i].file, file_name) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean golden_table_check(const char *file_name, const char *text, size_t length, int64_t *ret_n_compared,
                            GError **error)
{
    json_error_t json_error;
    g_autoptr(json_t) root = json_loadb(text, length, 0, &json_error);
    if (root == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%d:%d: %s", file_name, json_error.line,
                    json_error.column, json_error.text);
        return FALSE;
    }
    Entry e = {.file = file_name};
    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++) {
        if (strcmp(tables[i].file, file_name) != 0) {
            continue;
        }
        json_t *list = tables[i].key != NULL ? json_object_get(root, tables[i].key) : root;
        if (json_array_size(list) == 0) {
            fail(&e, MOESIM_ERROR_INPUT, tables[i].key != NULL ? tables[i].key : "top level",
                 "must be a list of examples");
        }
        for (size_t k = 0; k < json_array_size(list) && e.error == NULL; k++) {
            e.object = json_array_get(list, k);
            tables[i].check(&e);
        }
    }
    *ret_n_compared = e.n_compared;
    if (e.error != NULL) {
        g_propagate_error(error, e.error);
        return FALSE;
    }
    return TRUE;
}
