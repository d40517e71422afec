/*
 * Results as plain data and as JSON.
 *
 * One function writes the object, in the order of the schema; whatever else wants a value (columns of a
 * table, a dotted path) reads it from there, so no second list of names exists. A number that is not finite
 * is null: JSON has no other word for "unknown", and no report may print NaN.
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
    result->mfu = result->hfu = (double)NAN;
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
    g_free(result);
}

/* ---- JSON ---- */

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *text(const char *value)
{
    return value != NULL ? json_string(value) : json_null();
}

static void set_number(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, number(value));
}

static void set_int(json_t *object, const char *key, int64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *strings_to_json(const GPtrArray *strings)
{
    json_t *array = json_array();
    for (guint i = 0; i < strings->len; i++) {
        json_array_append_new(array, text(g_ptr_array_index(strings, i)));
    }
    return array;
}

static json_t *time_to_json(const Result *result)
{
    json_t *time = json_object();
    set_number(time, "forward_s", result->forward_s);
    set_number(time, "backward_s", result->backward_s);
    set_number(time, "optimizer_s", result->optimizer_s);
    set_number(time, "exposed_comm_s", result->exposed_comm_s);
    set_number(time, "bubble_s", result->bubble_s);
    json_t *by_operator = json_object();
    for (guint i = 0; i < result->operators->len; i++) {
        const ResultOperator *entry = g_ptr_array_index(result->operators, i);
        set_number(by_operator, entry->name, entry->seconds);
    }
    json_object_set_new(time, "by_operator", by_operator);
    set_number(time, "exposed_host_s", result->exposed_host_s);
    set_number(time, "network_shared_s", result->crowded_s);
    if (result->matrix_max_over_mean > 0) {
        set_number(time, "matrix_max_over_mean", result->matrix_max_over_mean);
    }
    return time;
}

static json_t *kept_to_json(const GPtrArray *kept)
{
    json_t *array = json_array();
    for (guint i = 0; i < kept->len; i++) {
        const ResultKept *entry = g_ptr_array_index(kept, i);
        json_t *item = json_object();
        json_object_set_new(item, "operator", text(entry->name));
        set_int(item, "bytes", entry->bytes);
        set_number(item, "recompute_s", entry->seconds);
        set_int(item, "hbm_layers", entry->hbm_layers);
        set_int(item, "ddr_layers", entry->ddr_layers);
        set_int(item, "recomputed_layers", entry->recomputed_layers);
        json_array_append_new(array, item);
    }
    return array;
}

static json_t *tiers_to_json(const ResultTiers *tiers)
{
    json_t *object = json_object();
    json_object_set_new(object, "policy", text(tiers->policy));
    set_int(object, "entries", tiers->entries);
    set_int(object, "hbm_hits", tiers->hbm_hits);
    set_int(object, "ddr_hits", tiers->ddr_hits);
    set_int(object, "misses", tiers->misses);
    set_int(object, "evictions", tiers->evictions);
    set_int(object, "hit_bytes", tiers->hit_bytes);
    set_int(object, "miss_bytes", tiers->miss_bytes);
    set_int(object, "hbm_bytes", tiers->hbm_bytes);
    set_int(object, "ddr_bytes", tiers->ddr_bytes);
    set_number(object, "saved_s", tiers->saved_s);
    set_number(object, "recomputed_s", tiers->recomputed_s);
    set_number(object, "next_hbm_gib_s", tiers->next_hbm_gib_s);
    set_number(object, "next_ddr_gib_s", tiers->next_ddr_gib_s);
    set_int(object, "moved_out_bytes", tiers->moved_out_bytes);
    set_int(object, "moved_in_bytes", tiers->moved_in_bytes);
    set_number(object, "stall_s", tiers->stall_s);
    set_int(object, "host_peak_bytes", tiers->host_peak_bytes);
    set_int(object, "host_capacity_bytes", tiers->host_capacity_bytes);
    set_int(object, "hbm_budget_bytes", tiers->hbm_budget_bytes);
    set_int(object, "ddr_budget_bytes", tiers->ddr_budget_bytes);
    json_object_set_new(object, "kept", kept_to_json(tiers->kept));
    return object;
}

static json_t *memory_to_json(const Result *result)
{
    json_t *memory = json_object();
    set_int(memory, "capacity_bytes", result->capacity_bytes);
    set_int(memory, "non_framework_bytes", result->non_framework_bytes);
    json_t *at_peak = json_object();
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        set_int(at_peak, mem_tag_names[tag], result->at_peak[tag]);
    }
    json_object_set_new(memory, "at_peak", at_peak);
    set_int(memory, "mean_rank_peak_bytes", result->mean_rank_peak_bytes);
    set_int(memory, "context_bytes", result->context_bytes);
    set_int(memory, "communicators_bytes", result->communicators_bytes);
    set_int(memory, "seq_chunk", result->seq_chunk);
    if (result->largest_seq_chunk > 0) {
        set_int(memory, "largest_seq_chunk", result->largest_seq_chunk);
    }
    set_int(memory, "cached_bytes", MAX(0, result->reserved_memory_bytes - result->peak_memory_bytes));
    json_object_set_new(memory, "peak_place", text(result->peak_place));
    json_object_set_new(memory, "tiers", tiers_to_json(result->tiers));
    return memory;
}

static json_t *parameters_to_json(const Result *result)
{
    json_t *parameters = json_object();
    set_int(parameters, "total", result->params_total);
    set_int(parameters, "active", result->params_active);
    set_int(parameters, "trainable", result->params_trainable);
    set_int(parameters, "per_rank", result->params_per_rank);
    return parameters;
}

/* Sampled groups, and how the busiest rank's load grows with their number. */
static json_t *replicas_to_json(const Result *result)
{
    json_t *replicas = json_object();
    json_t *growth = json_array();
    set_int(replicas, "in_all", result->groups_in_all);
    set_int(replicas, "sampled", result->groups_sampled);
    set_int(replicas, "simulated", result->groups_simulated);
    for (guint i = 0; i < result->group_growth->len; i++) {
        const ResultGrowth *entry = &g_array_index(result->group_growth, ResultGrowth, i);
        json_t *row = json_object();
        set_int(row, "replicas", entry->n);
        set_number(row, "rank_load_max_over_mean", entry->rank_load_max_over_mean);
        json_array_append_new(growth, row);
    }
    json_object_set_new(replicas, "growth", growth);
    return replicas;
}

static json_t *replacement_to_json(const Result *result)
{
    json_t *replacement = json_object();
    set_int(replacement, "moved_experts", result->replacement_moved_experts);
    set_int(replacement, "bytes_per_rank", result->replacement_bytes_per_rank);
    set_number(replacement, "move_s", result->replacement_s);
    set_number(replacement, "s_per_step", result->replacement_s_per_step);
    set_number(replacement, "rank_load_before", result->replacement_load_before);
    set_number(replacement, "rank_load_after", result->replacement_load_after);
    return replacement;
}

static json_t *moe_to_json(const Result *result)
{
    json_t *moe = json_object();
    set_number(moe, "dropped_fraction", result->dropped_fraction);
    set_number(moe, "expert_load_max_over_mean", result->expert_load_max_over_mean);
    set_number(moe, "rank_load_max_over_mean", result->rank_load_max_over_mean);
    set_int(moe, "all_to_all_bytes_per_rank", result->all_to_all_bytes_per_rank);
    set_number(moe, "padding_fraction", result->padding_fraction);
    set_int(moe, "expert_capacity", result->expert_capacity);
    set_int(moe, "busiest_rank", result->busiest_rank);
    json_object_set_new(moe, "replicas", replicas_to_json(result));
    json_object_set_new(moe, "replacement", replacement_to_json(result));
    return moe;
}

static json_t *evidence_to_json(const Result *result)
{
    json_t *evidence = json_object();
    for (int i = 0; i < N_EVIDENCES; i++) {
        set_number(evidence, evidence_name((Evidence)i), result->evidence[i]);
    }
    return evidence;
}

static json_t *operators_to_json(const Result *result)
{
    json_t *array = json_array();
    for (guint i = 0; i < result->operators->len; i++) {
        const ResultOperator *entry = g_ptr_array_index(result->operators, i);
        json_t *item = json_object();
        json_object_set_new(item, "name", text(entry->name));
        set_number(item, "time_s", entry->seconds);
        set_int(item, "launches", entry->launches);
        set_number(item, "flops", entry->flops);
        json_array_append_new(array, item);
    }
    return array;
}

static json_t *levels_to_json(guint32 levels)
{
    json_t *array = json_array();
    for (int level = 0; level < N_NET_LEVELS; level++) {
        if (levels >> level & 1u) {
            json_array_append_new(array, json_string(net_level_name((NetLevel)level)));
        }
    }
    return array;
}

static json_t *collectives_to_json(const Result *result)
{
    json_t *array = json_array();
    for (guint i = 0; i < result->collectives->len; i++) {
        const ResultCollective *collective = g_ptr_array_index(result->collectives, i);
        json_t *item = json_object();
        json_object_set_new(item, "name", text(collective->name));
        json_object_set_new(item, "tier", text(collective->tier));
        set_int(item, "group_size", collective->group_size);
        set_int(item, "count", collective->count);
        set_int(item, "bytes", collective->bytes);
        set_number(item, "time_s", collective->seconds);
        json_object_set_new(item, "network", text(result_network_name(collective->meets)));
        json_object_set_new(item, "shared_links", levels_to_json(collective->meets));
        json_array_append_new(array, item);
    }
    return array;
}

json_t *result_to_json(const Result *result)
{
    json_t *object = json_object();
    json_object_set_new(object, "schema", json_string("moesim.result/1"));
    set_int(object, "ranks", result->ranks);
    set_number(object, "step_time_s", result->step_time_s);
    set_number(object, "tokens_per_s", result->tokens_per_s);
    set_number(object, "tokens_per_s_per_gpu", result->tokens_per_s_per_gpu);
    set_number(object, "useful_tokens_per_s_per_gpu", result->useful_tokens_per_s_per_gpu);
    set_number(object, "model_flops_per_token", result->model_flops_per_token);
    set_number(object, "tflops_per_gpu", result->tflops_per_gpu);
    set_number(object, "mfu", result->mfu);
    set_number(object, "hfu", result->hfu);
    json_object_set_new(object, "time", time_to_json(result));
    set_int(object, "peak_memory_bytes", result->peak_memory_bytes);
    set_int(object, "reserved_memory_bytes", result->reserved_memory_bytes);
    set_int(object, "static_memory_bytes", result->static_memory_bytes);
    set_int(object, "after_forward_memory_bytes", result->after_forward_memory_bytes);
    set_int(object, "peak_rank", result->peak_rank);
    json_object_set_new(object, "fits", json_boolean(result->fits));
    json_object_set_new(object, "memory", memory_to_json(result));
    json_object_set_new(object, "parameters", parameters_to_json(result));
    json_object_set_new(object, "moe", moe_to_json(result));
    json_object_set_new(object, "warnings", strings_to_json(result->warnings));
    json_object_set_new(object, "evidence", evidence_to_json(result));
    json_object_set_new(object, "operators", operators_to_json(result));
    json_object_set_new(object, "collectives", collectives_to_json(result));
    json_object_set_new(object, "advice", strings_to_json(result->advice));
    return object;
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
