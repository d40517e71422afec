#include <string.h>

#include "sim/base/error.h"
#include "workloads/plan/plan-read.h"
#include "workloads/plan/plan.h"

static char *join_names(const char *const *names, int n_names)
{
    GString *text = g_string_new(names[0]);
    for (int i = 1; i < n_names; i++) {
        g_string_append_printf(text, ", %s", names[i]);
    }
    return g_string_free(text, FALSE);
}

void plan_read_flags(JsonObject *object, const char *key, const char *const *names, int n_names, gboolean *ret_flags)
{
    json_t *value = json_object_raw(object, key);
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (value == NULL || json_is_null(value)) {
        return;
    }
    memset(ret_flags, 0, sizeof(gboolean) * (size_t)n_names);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        int found = -1;
        for (int k = 0; text != NULL && k < n_names; k++) {
            found = strcmp(text, names[k]) == 0 ? k : found;
        }
        if (found < 0) {
            const char *near = text != NULL ? error_nearest_name(text, names, (size_t)n_names) : NULL;
            g_autofree char *all = join_names(names, n_names);
            json_object_fail(object, key, "\"%s\" is none of %s%s%s%s", text != NULL ? text : "(not a string)", all,
                             near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
            return;
        }
        if (ret_flags[found]) {
            json_object_fail(object, key, "names \"%s\" twice; leave one out", text);
            return;
        }
        ret_flags[found] = TRUE;
    }
}

gboolean plan_says_fit(JsonObject *object, const char *key, const char *what)
{
    json_t *value = json_object_raw(object, key);
    const char *text = json_string_value(value);
    gboolean is_quantity = value == NULL || json_is_number(value) || (text != NULL && (g_ascii_isdigit(text[0]) || text[0] == '.'));
    if (!is_quantity && g_strcmp0(text, "fit") != 0) {
        json_object_fail_type(object, key, value, what);
    }
    return g_strcmp0(text, "fit") == 0;
}

/* In the order of CachePolicyKind, the choice last (workloads/lower/tier-cache.h). */
static const char *const cache_policies[] = {"lru", "cost_benefit", "belady", "choice"};

/* Hooks leave smaller tensors where they are: a copy of them costs more than it frees. */
enum { OFFLOAD_BYTES_MIN = 1 << 20 };

static void read_cache(Plan *plan, JsonObject *memory)
{
    JsonObject *object = json_object_child(memory, "cache");
    if (object == NULL) {
        return;
    }
    const int choice = G_N_ELEMENTS(cache_policies) - 1;
    plan->has_cache = TRUE;
    plan->cache_has_keep = json_object_has(memory, "keep");
    plan->cache_fits = plan_says_fit(object, "hbm_bytes", "a number of bytes, a size such as \"8 GiB\", or \"fit\"");
    plan->cache_hbm_bytes = plan->cache_fits ? 0 : json_object_bytes(object, "hbm_bytes", 0);
    plan->cache_ddr_bytes = json_object_bytes(object, "ddr_bytes", 0);
    plan->cache_policy = json_object_choice(object, "policy", cache_policies, G_N_ELEMENTS(cache_policies), choice);
    plan->cache_window = json_object_int(object, "window", 1, 1024, 1);
    gboolean has_ddr = plan->cache_has_ddr = json_object_has(object, "ddr_bytes"), has_budget = has_ddr || json_object_has(object, "hbm_bytes");
    if (!has_budget && json_object_has(object, "policy")) {
        json_object_fail(object, "policy", "has no effect without a budget; give memory.cache.hbm_bytes or memory.cache.ddr_bytes");
    } else if (!has_ddr && json_object_has(object, "window")) {
        json_object_fail(object, "window", "has no effect without memory.cache.ddr_bytes: nothing is copied");
    } else if (!has_budget) {
        json_object_fail(memory, "cache", "has no budget; give memory.cache.hbm_bytes or memory.cache.ddr_bytes, or leave it out");
    }
    json_object_end(object);
    if (plan->recompute != PLAN_RECOMPUTE_SELECTIVE) {
        json_object_fail(memory, "cache", "caches what recomputation would make again; set memory.recompute to \"selective\"");
    }
}

static void read_offload(Plan *plan, JsonObject *memory)
{
    plan->offload_fraction = json_object_number(memory, "offload_fraction", 0, 1, 0);
    plan->offload_layers = json_object_int(memory, "offload_layers", 1, PLAN_COUNT_MAX, 0);
    plan->offload_min_bytes = json_object_bytes(memory, "offload_min_bytes", OFFLOAD_BYTES_MIN);
    if (plan->offload_fraction > 0 && plan->recompute != PLAN_RECOMPUTE_NONE) {
        json_object_fail(memory, "offload_fraction",
                         "moves what autograd saves; set memory.recompute to \"none\", or give memory.cache.ddr_bytes to move what "
                         "selective recomputation keeps");
    }
    static const char *const details[] = {"offload_layers", "offload_min_bytes"};
    for (size_t i = 0; i < G_N_ELEMENTS(details) && !(plan->offload_fraction > 0); i++) {
        if (json_object_has(memory, details[i])) {
            json_object_fail(memory, details[i], "has no effect without memory.offload_fraction above 0");
        }
    }
}

void plan_read_memory(Plan *plan, JsonObject *root)
{
    static const char *const copies[] = {"share", "yield"};
    static const char *const recomputes[] = {"none", "full", "selective"};
    static const char *const keeps[] = {"matmul", "grouped_matmul", "attention", "all_to_all", NULL};
    gboolean keep[4] = {TRUE, TRUE, TRUE, TRUE};
    JsonObject *object = json_object_child(root, "memory");
    if (object == NULL) {
        return;
    }
    plan->recompute = (PlanRecompute)json_object_choice(object, "recompute", recomputes, 3, PLAN_RECOMPUTE_NONE);
    if (plan->recompute == PLAN_RECOMPUTE_SELECTIVE) {
        plan_read_flags(object, "keep", keeps, 4, keep);
        for (int i = 0; i < 4; i++) {
            plan->keep[OP_KEEP_MATMUL + i] = keep[i];
        }
    } else if (json_object_has(object, "keep")) {
        json_object_fail(object, "keep", "has no effect unless memory.recompute is \"selective\"");
    }
    read_cache(plan, object);
    read_offload(plan, object);
    plan->copies_yield = json_object_choice(object, "host_copies", copies, 2, 0) == 1;
    plan->expandable_segments = json_object_bool(object, "expandable_segments", FALSE);
    plan->host_keeps_pages = json_object_bool(object, "host_keeps_pages", FALSE);
    json_object_end(object);
}
