#include "workloads/sweep/search-objective.h"

#include <string.h>

#include "sim/base/error.h"

static double step_value(const Result *result)
{
    return result->step_time_s;
}

static double step_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)plan;
    (void)peak_bytes;
    (void)flops_per_token;
    return step_s;
}

static double rate_value(const Result *result)
{
    return result->tokens_per_s;
}

static double rate_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)peak_bytes;
    (void)flops_per_token;
    return (double)plan->global_batch * (double)plan->seq_len / step_s;
}

static double gpu_rate_value(const Result *result)
{
    return result->tokens_per_s_per_gpu;
}

static double gpu_rate_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    return rate_bound(plan, step_s, peak_bytes, flops_per_token) / (double)plan->cluster->n_ranks;
}

static double useful_rate_value(const Result *result)
{
    return result->useful_tokens_per_s_per_gpu;
}

static double tflops_value(const Result *result)
{
    return result->tflops_per_gpu;
}

static double tflops_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    return flops_per_token * gpu_rate_bound(plan, step_s, peak_bytes, flops_per_token) * 1e-12;
}

static double mfu_value(const Result *result)
{
    return result->mfu;
}

static double mfu_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    double peak = plan->cluster->device->peak_flops_per_s[plan->compute];
    return flops_per_token * gpu_rate_bound(plan, step_s, peak_bytes, flops_per_token) / peak;
}

static double peak_value(const Result *result)
{
    return (double)result->peak_memory_bytes;
}

static double peak_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)plan;
    (void)step_s;
    (void)flops_per_token;
    return (double)peak_bytes;
}

static const SearchObjective objectives[] = {
    {"step_time_s", FALSE, TRUE, FALSE, step_value, step_bound},
    {"tokens_per_s", TRUE, TRUE, FALSE, rate_value, rate_bound},
    {"tokens_per_s_per_gpu", TRUE, TRUE, FALSE, gpu_rate_value, gpu_rate_bound},
    {"useful_tokens_per_s_per_gpu", TRUE, TRUE, FALSE, useful_rate_value, gpu_rate_bound},
    {"tflops_per_gpu", TRUE, TRUE, TRUE, tflops_value, tflops_bound},
    {"mfu", TRUE, TRUE, TRUE, mfu_value, mfu_bound},
    {"peak_memory_bytes", FALSE, FALSE, FALSE, peak_value, peak_bound},
};

const SearchObjective *search_objective_find(const Sweep *sweep, GError **error)
{
    g_autoptr(GString) known = g_string_new(NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(objectives); i++) {
        if (strcmp(objectives[i].path, sweep->objective.path) == 0 && objectives[i].maximize == sweep->objective.maximize) {
            return &objectives[i];
        }
        g_string_append_printf(known, "%s%s", i > 0 ? ", " : "", objectives[i].path);
    }
    sweep_fail(sweep, "objective", -1, error, "%s \"%s\" has no bound, so a search could prove nothing; use one of %s, or a sweep",
               sweep->objective.maximize ? "maximize" : "minimize", sweep->objective.path, known->str);
    return NULL;
}
