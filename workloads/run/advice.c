#include "workloads/run/advice.h"

#include <string.h>

#include "sim/base/json-read.h"
#include "workloads/cases.h"
#include "workloads/run/run.h"
#include "workloads/run/trials.h"

/* Changes by a value of their own, the gentlest first. Those marked cost time alone and are also tried together. */
static const struct {
    const char *path, *value;
    gboolean is_default; /* a plan without the field has that value */
    gboolean combines;
} settings[] = {
    {"parallel.fsdp.reshard_after_forward", "true", TRUE, TRUE},
    {"loss.seq_chunk", "1024", FALSE, TRUE},
    {"memory.cache.hbm_bytes", "\"fit\"", TRUE, FALSE}, /* of plans that have a budget */
    {"memory.offload_fraction", "0.5", TRUE, FALSE},
    {"optimizer.offload", "false", TRUE, FALSE},
    {"memory.recompute", "\"selective\"", FALSE, FALSE},
    {"memory.recompute", "\"full\"", FALSE, TRUE},
    {"optimizer.moments", "\"bf16\"", FALSE, FALSE},
    {"optimizer.moments", "\"int8\"", FALSE, FALSE},
};

/* Numbers of the plan that are halved or doubled until it fits, a few times at most: each try is a prediction. */
static const struct {
    const char *path;
    gboolean doubles;
    int64_t last; /* not beyond it */
} numbers[] = {
    {"workload.micro_batch", FALSE, 1},
    {"cluster.nodes", TRUE, 1 << 12},
    {"workload.seq_len", FALSE, 1024},
};

enum { TRIES_MAX = 3 };

/* Of the step: less is no reason to change a plan. */
static const double WORTH_SAYING_FRAC = 1e-3;

typedef struct Search {
    Result *result;
    json_t *plan;
    const char *name, *base_dir;
} Search;

/* The prediction of a changed plan, or NULL when it is not legal. */
static Result *predict(const Search *search, json_t *changed)
{
    g_autoptr(Plan) plan = plan_from_json(changed, search->name, search->base_dir, NULL);
    return plan != NULL ? run_plan(plan, NULL, NULL) : NULL;
}

static gboolean set(json_t *plan, const char *path, json_t *value)
{
    if (strcmp(path, "memory.recompute") == 0) {
        static const char *const of_one_kind[] = {"keep", "cache", "offload_fraction"};
        for (size_t i = 0; i < G_N_ELEMENTS(of_one_kind); i++) {
            json_object_del(json_object_get(plan, "memory"), of_one_kind[i]);
        }
    }
    return cases_set(plan, path, value, NULL);
}

static double needed_gib(const Result *result)
{
    return (double)(result->peak_memory_bytes + result->non_framework_bytes) / (1024.0 * 1024 * 1024);
}

static void tell(const Search *search, const char *change, const Result *changed)
{
    double rate = changed->tokens_per_s_per_gpu / search->result->tokens_per_s_per_gpu;
    g_ptr_array_add(search->result->advice, g_strdup_printf("%s: %.2f GiB, %.2f x the tokens/s per GPU", change,
                                                            needed_gib(changed), rate));
}

/* Whether the changed plan fits; says so if it does. */
static gboolean fits(const Search *search, json_t *changed, const char *change)
{
    g_autoptr(Result) result = predict(search, changed);
    if (result == NULL || !result->fits) {
        return FALSE;
    }
    tell(search, change, result);
    return TRUE;
}

static json_t *value_at(json_t *plan, const char *path)
{
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    json_t *value = plan;
    for (char **key = keys; *key != NULL; key++) {
        value = json_object_get(value, *key);
    }
    return value;
}

/* The value of a setting; NULL when the plan has it already. New reference. */
static json_t *new_value(json_t *plan, size_t setting)
{
    g_autoptr(json_t) value = json_loads(settings[setting].value, JSON_DECODE_ANY, NULL);
    json_t *before = value_at(plan, settings[setting].path);
    gboolean same = before == NULL ? settings[setting].is_default : json_equal(before, value);
    return same ? NULL : g_steal_pointer(&value);
}

static gboolean try_settings(const Search *search)
{
    gboolean found = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(settings); i++) {
        json_t *value = new_value(search->plan, i);
        g_autoptr(json_t) changed = json_deep_copy(search->plan);
        if (value == NULL || !set(changed, settings[i].path, value)) {
            continue;
        }
        g_autofree char *change = g_strdup_printf("%s %s", settings[i].path, settings[i].value);
        found = fits(search, changed, change) || found;
    }
    return found;
}

/* A plan with every change that costs nothing but time. */
static json_t *combine(const Search *search, GString *change)
{
    json_t *changed = json_deep_copy(search->plan);
    for (size_t i = 0; i < G_N_ELEMENTS(settings); i++) {
        json_t *value = settings[i].combines ? new_value(changed, i) : NULL;
        if (value != NULL && set(changed, settings[i].path, value)) {
            g_string_append_printf(change, "%s%s %s", change->len > 0 ? " with " : "", settings[i].path,
                                   settings[i].value);
        }
    }
    return changed;
}

/* More ranks share the states at best: with fewer than this the states alone are too large. */
static gboolean is_hopeless(const Result *result, int64_t factor)
{
    return result->static_memory_bytes / factor > result->capacity_bytes;
}

static gboolean try_number(const Search *search, json_t *base, const char *with, size_t idx)
{
    json_t *field = value_at(base, numbers[idx].path);
    gboolean doubles = numbers[idx].doubles;
    int64_t number = json_is_integer(field) ? json_integer_value(field) : doubles ? 1 : 0;
    int64_t factor = 1;
    for (int tries = 0; tries < TRIES_MAX && number > 0;) {
        int64_t next = doubles ? 2 * number : number / 2;
        factor *= 2;
        number = next;
        if (doubles ? next > numbers[idx].last : next < numbers[idx].last) {
            return FALSE;
        }
        if (doubles && is_hopeless(search->result, factor)) {
            continue;
        }
        g_autoptr(json_t) changed = json_deep_copy(base);
        set(changed, numbers[idx].path, json_integer((json_int_t)number));
        if (doubles) {
            json_object_del(json_object_get(changed, "workload"), "global_batch"); /* keeps to the ranks */
        }
        g_autofree char *change = g_strdup_printf("%s %" G_GINT64_FORMAT "%s%s", numbers[idx].path, number,
                                                  with[0] != '\0' ? " with " : "", with);
        if (fits(search, changed, change)) {
            return TRUE;
        }
        tries++;
    }
    return FALSE;
}

static gboolean try_numbers(const Search *search, json_t *base, const char *with)
{
    gboolean found = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++) {
        found = try_number(search, base, with, i) || found;
    }
    return found;
}

void advice_warn_cache(Result *result, const Plan *plan)
{
    if (!plan->has_cache || !result->fits) {
        return;
    }
    const Plan settled = trials_settle(plan, result), view = trials_recomputing(&settled, PLAN_RECOMPUTE_NONE);
    g_autoptr(Result) none = run_plan(&view, NULL, NULL);
    if (none != NULL && none->fits && none->step_time_s < (1 - WORTH_SAYING_FRAC) * result->step_time_s) {
        g_ptr_array_add(result->warnings,
                        g_strdup_printf("memory.recompute \"none\" without memory.cache fits and is faster: %.4f s a step in %.2f GiB, against "
                                        "%.4f s in %.2f GiB",
                                        none->step_time_s, needed_gib(none), result->step_time_s, needed_gib(result)));
    }
}

void advice_find(Result *result, json_t *plan, const char *name, const char *base_dir)
{
    const Search search = {.result = result, .plan = plan, .name = name, .base_dir = base_dir};
    g_autoptr(GString) change = g_string_new(NULL);
    if (result->fits || try_settings(&search)) {
        return;
    }
    g_autoptr(json_t) combined = combine(&search, change);
    if ((change->len > 0 && fits(&search, combined, change->str)) || try_numbers(&search, combined, change->str)) {
        return;
    }
    g_ptr_array_add(result->advice,
                    g_strdup("no single change of the plan was found that fits; use a device with more memory"));
}
