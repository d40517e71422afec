#include "workloads/run/run.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "workloads/lower/lower.h"
#include "workloads/lower/tier-cache.h"
#include "workloads/lower/whole.h"
#include "workloads/run/groups.h"
#include "workloads/run/moments.h"
#include "workloads/run/peak-time.h"
#include "workloads/run/run-cache.h"
#include "workloads/run/run-moe.h"
#include "workloads/run/step.h"
#include "workloads/run/tiers.h"
#include "workloads/run/trials.h"

/* Everything that a run makes on the way to its result. */
typedef struct Run {
    const Plan *plan;
    const ModelGraph *graphs;
    RunGroups groups;
    GroupMemory memory;
    StepTimes times;
    const PlanFacts *facts;
} Run;

static double seconds(SimTime ns)
{
    return (double)ns * 1e-9;
}

static void fill_memory(const Run *run, Result *result)
{
    const Device *device = run->plan->cluster->device;
    const Ledger *ledger = &run->memory.ledger;
    result->peak_memory_bytes = ledger->peak_bytes;
    result->reserved_memory_bytes = ledger->reserved_bytes;
    result->static_memory_bytes = lower_static_bytes(run->memory.program);
    result->matrix_max_over_mean = run->plan->optimizer == PLAN_MUON ? whole_max_over_mean(run->memory.program) : 0;
    result->after_forward_memory_bytes = ledger->after_forward_bytes;
    result->peak_rank = run->memory.rank;
    result->peak_place = ledger_peak_place(ledger);
    memcpy(result->at_peak, ledger->at_peak, sizeof result->at_peak);
    result->mean_rank_peak_bytes = run->memory.mean_peak_bytes;
    result->capacity_bytes = device->usable_bytes;
    result->non_framework_bytes = plan_outside_bytes(run->plan);
    result->context_bytes = device->non_framework_bytes;
    result->communicators_bytes = result->non_framework_bytes - device->non_framework_bytes;
    result->fits = ledger->peak_bytes + result->non_framework_bytes <= device->usable_bytes;
}

static gboolean fill_peak_time(const Run *run, Result *result, GError **error)
{
    PeakTime time;
    GPtrArray *programs = run->groups.programs;
    if (!peak_time_find(run->plan, (Program *const *)(void *)programs->pdata, programs->len, 0, run->memory.program,
                        &time, error)) {
        return FALSE;
    }
    result->peak_time_s = time.seconds;
    return TRUE;
}

/*
 * Where the cache is larger than the device, the allocator gives segments back in between; expandable ones are not known to. Of a
 * plan that does not fit, what a device would hold that is large enough.
 */
static void fill_phases(const Run *run, Result *result)
{
    g_autoptr(GError) error = NULL;
    const Program *program = run->memory.program;
    ResultPhases phases;
    int64_t capacity_bytes = result->capacity_bytes - result->non_framework_bytes;
    gboolean bounded = result->fits && !program->expandable_segments;
    if (!moments_find(run->plan, program, bounded ? capacity_bytes : 0, &phases, &error)) {
        g_autofree char *text = g_strdup_printf("memory suffices, but not in one piece: %s; memory.expandable_segments joins free blocks", error->message);
        g_ptr_array_add(result->warnings, g_steal_pointer(&text));
        return;
    }
    result->phases = g_memdup2(&phases, sizeof phases);
}

static int by_seconds(gconstpointer a, gconstpointer b)
{
    const ResultOperator *x = *(ResultOperator *const *)a, *y = *(ResultOperator *const *)b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : strcmp(x->name, y->name);
}

static void fill_operators(const Run *run, Result *result)
{
    const StepTimes *times = &run->times;
    for (int label = 0; label < N_LABELS; label++) {
        if (times->launches[label] == 0) {
            continue;
        }
        ResultOperator *entry = g_new0(ResultOperator, 1);
        entry->name = g_strdup(program_label_name(label));
        entry->seconds = seconds(times->busy_ns[label]);
        entry->recomputed_s = seconds(times->recomputed_ns[label]);
        result->recompute_s += entry->recomputed_s;
        entry->launches = times->launches[label];
        entry->flops = times->flops[label];
        g_ptr_array_add(result->operators, entry);
    }
    g_ptr_array_sort(result->operators, by_seconds);
}

CollGroup run_group_geometry(const Plan *plan, GroupKind group)
{
    const int64_t dense = plan->dp_shard * plan->cp;
    switch (group) {
    case GROUP_EP:
        return cluster_group(plan->cluster, 0, 1, plan->ep);
    case GROUP_EXPERT:
        return cluster_group(plan->cluster, 0, plan->ep, plan->efsdp);
    case GROUP_REPLICA:
        return cluster_group(plan->cluster, 0, dense, plan->dp_replicate);
    case GROUP_WORLD:
        return cluster_group(plan->cluster, 0, 1, dense * plan->dp_replicate);
    case GROUP_DENSE:
    case N_GROUP_KINDS:
    default:
        return cluster_group(plan->cluster, 0, 1, dense);
    }
}

static void fill_collectives(const Run *run, Result *result)
{
    for (int g = 0; g < N_GROUP_KINDS; g++) {
        for (int k = 0; k < N_COLLS; k++) {
            if (run->times.coll_count[g][k] == 0) {
                continue;
            }
            CollGroup geometry = run_group_geometry(run->plan, (GroupKind)g);
            ResultCollective *entry = g_new0(ResultCollective, 1);
            entry->name = program_collective_name(&(Instr){.coll = (guint8)k, .group = (guint8)g});
            entry->tier = g_strdup(geometry.per_domain >= geometry.n_ranks ? "scale-up" : "scale-out");
            entry->group_size = geometry.n_ranks;
            entry->count = run->times.coll_count[g][k];
            entry->bytes = run->times.coll_bytes[g][k];
            entry->seconds = seconds(run->times.coll_ns[g][k]);
            entry->meets = step_network_meets(&run->times, (GroupKind)g, (CollKind)k);
            g_ptr_array_add(result->collectives, entry);
        }
    }
    result->all_to_all_bytes_per_rank = run->times.coll_bytes[GROUP_EP][COLL_all_to_all];
}

static void fill_rates(const Run *run, Result *result)
{
    const Plan *plan = run->plan;
    double tokens = (double)plan->global_batch * (double)plan->seq_len;
    double peak = plan->cluster->device->peak_flops_per_s[plan->compute];
    double per_token = run->facts->flops.forward + run->facts->flops.backward;
    double tokens_per_gpu = tokens / (double)plan->cluster->n_ranks;
    result->step_time_s = seconds(run->times.step_ns) + result->replacement_s_per_step;
    result->tokens_per_s = tokens / result->step_time_s;
    result->tokens_per_s_per_gpu = tokens_per_gpu / result->step_time_s;
    result->useful_tokens_per_s_per_gpu = result->tokens_per_s_per_gpu * (1 - result->dropped_fraction);
    result->model_flops_per_token = per_token;
    result->tflops_per_gpu = per_token * result->tokens_per_s_per_gpu * 1e-12;
    if (peak > 0) {
        result->mfu = per_token * result->tokens_per_s_per_gpu / peak;
        result->hfu = result->mfu + run->times.recomputed_flops / result->step_time_s / peak;
    }
}

static void fill_times(const Run *run, Result *result)
{
    const StepTimes *times = &run->times;
    double all = 0;
    result->forward_s = seconds(times->phase_ns[PHASE_FORWARD]);
    result->backward_s = seconds(times->phase_ns[PHASE_BACKWARD]);
    result->optimizer_s = seconds(times->phase_ns[PHASE_OPTIMIZER]);
    result->exposed_comm_s = seconds(times->exposed_comm_ns);
    result->exposed_host_s = seconds(times->exposed_host_ns);
    result->crowded_s = seconds(times->crowded_ns);
    result->host_s = seconds(times->host_ns);
    result->host_tables_s = seconds(times->table_ns);
    result->host_pages_s = seconds(times->pages_ns);
    for (int i = 0; i < N_EVIDENCES; i++) {
        all += (double)times->evidence_ns[i];
    }
    for (int i = 0; i < N_EVIDENCES; i++) {
        result->evidence[i] = all > 0 ? (double)times->evidence_ns[i] / all : 0;
    }
}

static void fill_parameters(const Run *run, Result *result)
{
    result->params_total = run->facts->counts.total;
    result->params_active = run->facts->counts.active;
    result->params_trainable = run->facts->trainable;
    result->params_per_rank = run->facts->per_rank;
}

static void advise(Result *result, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void advise(Result *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_ptr_array_add(result->advice, g_strdup_vprintf(format, args));
    va_end(args);
}

/* What would have to change: the largest part at the peak says which knob is worth turning. */
static void fill_advice(const Run *run, Result *result)
{
    const Plan *plan = run->plan;
    int64_t missing = result->peak_memory_bytes + result->non_framework_bytes - result->capacity_bytes;
    int64_t states = result->at_peak[MEM_PARAMETERS] + result->at_peak[MEM_OPTIMIZER] + result->at_peak[MEM_GRADIENTS];
    g_autofree char *over = quantity_format_bytes(MAX(missing, 0));
    if (result->fits || missing <= 0) { /* else the host has too little: the tiers say so */
        return;
    }
    advise(result, "%s too much on rank %" G_GINT64_FORMAT, over, result->peak_rank);
    if (plan->recompute != PLAN_RECOMPUTE_FULL &&
        result->at_peak[MEM_ACTIVATIONS] + result->at_peak[MEM_DISPATCH] > missing) {
        advise(result, "memory.recompute \"full\" keeps layer inputs alone");
    }
    if (plan->micro_batch > 1) {
        advise(result, "micro_batch %" G_GINT64_FORMAT " halves activations", plan->micro_batch / 2);
    }
    if (plan->seq_chunk == 0 && plan->vocab_chunk == 0 && result->at_peak[MEM_LOGITS] > missing / 2) {
        advise(result, "loss.seq_chunk 1024 bounds the logits");
    }
    if (states > result->capacity_bytes / 2) {
        double factor = (double)states / (double)MAX(1, states - missing);
        if (missing < states) {
            advise(result, "about %" G_GINT64_FORMAT " ranks would hold the sharded states",
                   (int64_t)ceil(factor * (double)plan->cluster->n_ranks));
        }
        if (plan->mode != PLAN_LORA) {
            advise(result, "workload.mode \"lora\" needs no optimizer state for the base");
        }
    }
}

static Result *fill_result(const Run *run)
{
    Result *result = result_new();
    int64_t slowest_rank;
    result->ranks = run->plan->cluster->n_ranks;
    run_moe_fill(&run->groups, result);
    fill_rates(run, result);
    fill_times(run, result);
    fill_operators(run, result);
    fill_collectives(run, result);
    fill_memory(run, result);
    tiers_fill(run->groups.cache, run->plan, run->graphs, run_groups_slowest(&run->groups, &slowest_rank), &run->memory.ledger,
               &run->times, result);
    fill_parameters(run, result);
    fill_advice(run, result);
    for (guint i = 0; i < run->plan->warnings->len; i++) {
        g_ptr_array_add(result->warnings, g_strdup(g_ptr_array_index(run->plan->warnings, i)));
    }
    return result;
}

Result *run_settled(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error)
{
    run_cache_trim(cache, plan);
    Run run = {.plan = plan, .graphs = lower_cache_graphs(cache->lowered, plan)};
    Result *result = NULL;
    if (!run_groups_init(&run.groups, cache, plan, run.graphs, error)) {
        return NULL;
    }
    run.facts = run_cache_facts(cache, plan, run.graphs);
    GPtrArray *programs = run.groups.programs;
    if (run_groups_memory(&run.groups, options != NULL ? options->memory_rank : -1, &run.memory, error) &&
        step_run_memo(cache->steps, plan, (Program *const *)(void *)programs->pdata, programs->len, &run.times, error)) {
        result = fill_result(&run);
    }
    if (result != NULL && options != NULL && options->peak_time && !fill_peak_time(&run, result, error)) {
        g_clear_pointer(&result, result_free);
    }
    if (result != NULL && options != NULL && options->phases) {
        fill_phases(&run, result);
    }
    group_memory_clear(&run.memory);
    run_groups_clear(&run.groups);
    return result;
}

Result *run_plan(const Plan *plan, const RunOptions *options, GError **error)
{
    g_autoptr(RunCache) cache = run_cache_new();
    return run_plan_cached(cache, plan, options, error);
}
