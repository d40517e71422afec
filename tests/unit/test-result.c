/* Results: the schema's names and order, dotted paths, and no NaN in any of it. */
#include "tests/check.h"

#include "sim/base/json-read.h"
#include "workloads/run/result.h"

/* Every name of the contract, in its order; what comes after them is of our own. */
static const char *const top_level[] = {
    "schema",
    "ranks",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "useful_tokens_per_s_per_gpu",
    "model_flops_per_token",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "time",
    "peak_memory_bytes",
    "reserved_memory_bytes",
    "static_memory_bytes",
    "after_forward_memory_bytes",
    "peak_rank",
    "fits",
    "memory",
    "parameters",
    "moe",
    "warnings",
    "evidence",
};

static const char *const inner[][12] = {
    {"time", "forward_s", "backward_s", "optimizer_s", "exposed_comm_s", "bubble_s", "by_operator"},
    {"memory", "capacity_bytes", "non_framework_bytes", "at_peak", "mean_rank_peak_bytes"},
    {"parameters", "total", "active", "trainable", "per_rank"},
    {"moe", "dropped_fraction", "expert_load_max_over_mean", "rank_load_max_over_mean", "all_to_all_bytes_per_rank"},
    {"evidence", "measured", "fitted", "datasheet", "assumed"},
};

static void check_order(json_t *object, const char *const *names, size_t n)
{
    void *at = json_object_iter(object);
    for (size_t i = 0; i < n && names[i] != NULL; i++) {
        check_string(json_object_iter_key(at), names[i]);
        at = json_object_iter_next(object, at);
    }
}

static Result *example(void)
{
    Result *result = result_new();
    result->ranks = 128;
    result->step_time_s = 1.5;
    result->forward_s = 0.5;
    result->fits = TRUE;
    result->at_peak[MEM_UNSHARDED] = 77;
    result->phases = g_new0(ResultPhases, 1);
    result->phases->moments[MOMENT_AFTER_BACKWARD] = (ResultMoment){10, 17, 3, 2};
    result->evidence[EVIDENCE_FITTED] = 0.25;
    ResultOperator *entry = g_new0(ResultOperator, 1);
    entry->name = g_strdup("RMSNorm");
    entry->seconds = 0.125;
    g_ptr_array_add(result->operators, entry);
    ResultCollective *collective = g_new0(ResultCollective, 1);
    collective->name = g_strdup("all_gather (dense FSDP)");
    collective->tier = g_strdup("scale-out");
    collective->group_size = 128;
    g_ptr_array_add(result->collectives, collective);
    g_ptr_array_add(result->warnings, g_strdup("beware"));
    return result;
}

static void test_schema(void **state)
{
    (void)state;
    g_autoptr(Result) result = example();
    g_autoptr(json_t) object = result_to_json(result);
    check_order(object, top_level, G_N_ELEMENTS(top_level));
    for (size_t i = 0; i < G_N_ELEMENTS(inner); i++) {
        check_order(json_object_get(object, inner[i][0]), inner[i] + 1, G_N_ELEMENTS(inner[i]) - 1);
    }
    static const char *const parts[] = {"parameters", "gradients", "optimizer", "activations", "unsharded",
                                        "dispatch",   "logits",    "cache",     "workspace"};
    json_t *at_peak = json_object_get(json_object_get(object, "memory"), "at_peak");
    check_int(json_object_size(at_peak), G_N_ELEMENTS(parts));
    check_order(at_peak, parts, G_N_ELEMENTS(parts));
    /* A collective says which group, how large, over which links. */
    json_t *collective = json_array_get(json_object_get(object, "collectives"), 0);
    check_string(json_string_value(json_object_get(collective, "tier")), "scale-out");
    check_int(json_integer_value(json_object_get(collective, "group_size")), 128);
}

static void test_paths(void **state)
{
    (void)state;
    g_autoptr(Result) result = example();
    g_autoptr(json_t) step = result_get(result, "step_time_s");
    check_close(json_real_value(step), 1.5, 0);
    g_autoptr(json_t) forward = result_get(result, "time.forward_s");
    check_close(json_real_value(forward), 0.5, 0);
    g_autoptr(json_t) norm = result_get(result, "time.by_operator.RMSNorm");
    check_close(json_real_value(norm), 0.125, 0);
    g_autoptr(json_t) object = result_to_json(result);
    static const char *const moments[] = {"between_steps", "after_forward", "peak", "after_backward"};
    check_order(json_object_get(json_object_get(object, "memory"), "phases"), moments, G_N_ELEMENTS(moments));
    g_autoptr(json_t) cached = result_get(result, "memory.phases.after_backward.cached_bytes");
    check_int(json_integer_value(cached), 7);
    g_autoptr(json_t) unsharded = result_get(result, "memory.at_peak.unsharded");
    check_int(json_integer_value(unsharded), 77);
    g_autoptr(json_t) fits = result_get(result, "fits");
    assert_true(json_is_true(fits));
    static const char *const nothing[] = {"",     "time", "warnings",       "time.forward", "step_time_s.x",
                                          "nope", ".",    "memory.at_peak."};
    for (size_t i = 0; i < G_N_ELEMENTS(nothing); i++) {
        assert_null(result_get(result, nothing[i]));
    }
}

/* A device without a peak for the format has no MFU; it is null, and never a default. */
static void test_no_nan(void **state)
{
    (void)state;
    g_autoptr(Result) result = example();
    result->tokens_per_s = (double)INFINITY;
    g_autoptr(json_t) mfu = result_get(result, "mfu");
    assert_true(json_is_null(mfu));
    g_autoptr(json_t) object = result_to_json(result);
    g_autofree char *text = json_dumps(object, 0);
    assert_non_null(text);
    check_contains(text, "\"mfu\": null, \"hfu\": null");
    check_contains(text, "\"tokens_per_s\": null");
    result_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_no_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
