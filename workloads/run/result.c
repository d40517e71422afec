/*
 * Results as plain data and as JSON.
 *
 * One function says what a result holds, in the order of the schema (result-tell.c); whatever else wants a value (JSON, columns
 * of a table, a dotted path) gets it from there, so no second list of names exists. A number that is not finite is null:
 * JSON has no other word for "unknown", and no report may print NaN.
 */
#include "workloads/run/result.h"

#include <math.h>
#include <string.h>

#include "sim/base/json-read.h"

static const char *const mem_tag_names[] = {
    [MEM_PARAMETERS] = "parameters",   [MEM_GRADIENTS] = "gradients", [MEM_OPTIMIZER] = "optimizer",
    [MEM_ACTIVATIONS] = "activations", [MEM_UNSHARDED] = "unsharded", [MEM_DISPATCH] = "dispatch",
    [MEM_LOGITS] = "logits",           [MEM_CACHE] = "cache",         [MEM_WORKSPACE] = "workspace",
};
G_STATIC_ASSERT(G_N_ELEMENTS(mem_tag_names) == N_MEM_TAGS);

const char *result_mem_tag_name(MemTag tag)
{
    g_assert(tag >= 0 && tag < N_MEM_TAGS);
    return mem_tag_names[tag];
}

const char *result_moment_name(MemoryMoment moment)
{
    static const char *const names[N_MOMENTS] = {"between_steps", "after_forward", "peak", "after_backward"};
    g_assert(moment < N_MOMENTS);
    return names[moment];
}

static void operator_free(gpointer data)
{
    ResultOperator *entry = data;
    g_free(entry->name);
    g_free(entry);
}

static void collective_free(gpointer data)
{
    ResultCollective *collective = data;
    g_free(collective->name);
    g_free(collective->tier);
    g_free(collective);
}

static void kept_free(gpointer data)
{
    ResultKept *kept = data;
    g_free(kept->name);
    g_free(kept);
}

static ResultTiers *result_tiers_new(void)
{
    ResultTiers *tiers = g_new0(ResultTiers, 1);
    tiers->kept = g_ptr_array_new_with_free_func(kept_free);
    return tiers;
}

static void tiers_free(ResultTiers *tiers)
{
    g_ptr_array_unref(tiers->kept);
    g_free(tiers->policy);
    g_free(tiers);
}

const char *result_network_name(guint32 meets)
{
    return meets != 0 ? "flows" : "closed_form";
}

Result *result_new(void)
{
    Result *result = g_new0(Result, 1);
    result->mfu = result->hfu = result->peak_time_s = (double)NAN;
    result->tiers = result_tiers_new();
    result->operators = g_ptr_array_new_with_free_func(operator_free);
    result->collectives = g_ptr_array_new_with_free_func(collective_free);
    result->warnings = g_ptr_array_new_with_free_func(g_free);
    result->advice = g_ptr_array_new_with_free_func(g_free);
    result->group_growth = g_array_new(FALSE, TRUE, sizeof(ResultGrowth));
    return result;
}

void result_free(Result *result)
{
    if (result == NULL) {
        return;
    }
    g_ptr_array_unref(result->operators);
    g_ptr_array_unref(result->collectives);
    g_ptr_array_unref(result->warnings);
    g_ptr_array_unref(result->advice);
    g_array_unref(result->group_growth);
    tiers_free(result->tiers);
    g_free(result->peak_place);
    g_free(result->phases);
    g_free(result);
}

/* ---- JSON ---- */

enum { DEPTH_MAX = 8 };

typedef struct JsonSink {
    json_t *open[DEPTH_MAX]; /* objects and lists that are not ended yet, the innermost last */
    int n_open;
} JsonSink;

static void put(JsonSink *sink, const char *key, json_t *value)
{
    json_t *inner = sink->open[sink->n_open - 1];
    if (key != NULL) {
        json_object_set_new(inner, key, value);
    } else {
        json_array_append_new(inner, value);
    }
}

static gboolean json_begin(void *self, const char *key, gboolean is_list)
{
    JsonSink *sink = self;
    g_assert(sink->n_open < DEPTH_MAX);
    json_t *value = is_list ? json_array() : json_object();
    put(sink, key, value);
    sink->open[sink->n_open++] = value;
    return TRUE;
}

static void json_end(void *self)
{
    ((JsonSink *)self)->n_open--;
}

static void json_number(void *self, const char *key, double value)
{
    put(self, key, json_real(value));
}

static void json_whole(void *self, const char *key, int64_t value)
{
    put(self, key, json_integer((json_int_t)value));
}

static void json_truth(void *self, const char *key, gboolean value)
{
    put(self, key, json_boolean(value));
}

static void json_text(void *self, const char *key, const char *value)
{
    put(self, key, value != NULL ? json_string(value) : json_null());
}

json_t *result_to_json(const Result *result)
{
    static const ResultSink sink = {json_begin, json_end, json_number, json_whole, json_truth, json_text};
    JsonSink json = {{json_object()}, 1};
    result_tell(result, &sink, &json);
    return json.open[0];
}

json_t *result_value_at(json_t *object, const char *path)
{
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    json_t *value = object;
    for (char **key = keys; *key != NULL && value != NULL; key++) {
        value = json_object_get(value, *key); /* NULL too when value is no object */
    }
    return json_is_object(value) || json_is_array(value) ? NULL : value;
}

json_t *result_get(const Result *result, const char *path)
{
    g_autoptr(json_t) object = result_to_json(result);
    return json_incref(result_value_at(object, path));
}

double result_number_at(json_t *object, const char *path)
{
    json_t *value = result_value_at(object, path);
    if (json_is_boolean(value)) {
        return json_is_true(value) ? 1 : 0;
    }
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
