#include "workloads/run/groups.h"

#include <math.h>
#include <stdlib.h>

#include "workloads/lower/hottest.h"
#include "workloads/run/footprint.h"
#include "workloads/run/run-cache.h"

/* Sampled groups if the plan does not say; ranks whose memory is looked at for the fullest, and for the mean. */
enum { GROUPS_USUAL = 16, CANDIDATES = 4, MEAN_RANKS = 8 };

static void destroy_program(void *program)
{
    program_free(program);
}

static int64_t n_sampled(const Plan *plan, int64_t n_all)
{
    return plan->routing_replicas > 0 ? plan->routing_replicas : MIN(n_all, GROUPS_USUAL);
}

/* Groups drawn for the plan before may be those of this one. */
static gboolean sample_groups(RunGroups *groups, GError **error)
{
    const Plan *plan = groups->plan;
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    RunCache *cache = groups->cache;
    GPtrArray *known = cache != NULL ? run_cache_routings(cache, &spec, (guint)groups->n_sampled) : NULL;
    if (known != NULL) {
        groups->routings = g_ptr_array_ref(known);
        return TRUE;
    }
    RoutingSpec named = spec;
    groups->routings = run_routings_new();
    g_autofree double *popularity = g_new(double, spec.experts);
    if (spec.kind == PLAN_ROUTING_BALANCED || spec.kind == PLAN_ROUTING_ZIPF) {
        routing_popularity(&spec, popularity);
        spec.popularity = popularity;
    }
    g_autofree double *shares = spec.kind == PLAN_ROUTING_ROUTER ? routing_router_shares(&spec) : NULL;
    spec.shares = shares;
    for (int64_t g = 0; g < groups->n_sampled; g++) {
        spec.group = g;
        Routing *routing = routing_new(&spec, error);
        if (routing == NULL) {
            return FALSE;
        }
        g_ptr_array_add(groups->routings, routing);
    }
    if (cache != NULL) {
        run_cache_keep_routings(cache, plan, &named, groups->routings);
    }
    return TRUE;
}

GPtrArray *run_groups_routings(RunCache *cache, const Plan *plan, GError **error)
{
    RunGroups groups = {.cache = cache, .plan = plan, .n_all = plan->dp_replicate * plan->efsdp};
    groups.n_sampled = n_sampled(plan, groups.n_all);
    if (!routing_is_needed(plan)) {
        return run_routings_new();
    }
    if (!sample_groups(&groups, error)) {
        run_groups_clear(&groups);
        return NULL;
    }
    return groups.routings;
}

/* Time of all instructions of a program one after the other. */
static SimTime serial_ns(const Program *program)
{
    SimTime sum = 0;
    for (guint c = 0; c < program->calls->len; c++) {
        const GArray *instrs = program_segment(program, g_array_index(program->calls, Call, c).segment)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            sum += program_instr_ns(&program->clock, &g_array_index(instrs, Instr, i));
        }
    }
    return sum;
}

/* Whether an instruction takes no less time, and no less of any link: less of a link leaves more of it to others. */
static gboolean takes_as_much(const Instr *x, const ProgramClock *x_clock, const Instr *y, const ProgramClock *y_clock)
{
    SimTime x_ns = program_instr_ns(x_clock, x), y_ns = program_instr_ns(y_clock, y);
    gboolean as_much = x_ns >= y_ns;
    for (int level = 0; x->load != y->load && level < N_NET_LEVELS; level++) {
        double x_link_ns = (double)link_load_part(x->load, level) * (double)x_ns;
        as_much = as_much && x_link_ns >= (double)link_load_part(y->load, level) * (double)y_ns;
    }
    return as_much;
}

/* Whether every instruction of a takes at least what b's does: then nobody ever waits for b. Both have the same calls. */
static gboolean is_slower(const Program *a, const Program *b)
{
    if (a->segments->len != b->segments->len) {
        return FALSE;
    }
    for (guint s = 0; s < a->segments->len; s++) {
        const GArray *x = program_segment(a, (int)s)->instrs, *y = program_segment(b, (int)s)->instrs;
        if (x->len != y->len) {
            return FALSE;
        }
        for (guint i = 0; i < x->len; i++) {
            if (!takes_as_much(&g_array_index(x, Instr, i), &a->clock, &g_array_index(y, Instr, i), &b->clock)) {
                return FALSE;
            }
        }
    }
    return TRUE;
}

/* Adds a group's program unless (keeps_all FALSE) it cannot decide; drops those that cannot beside it. */
static void add_program(RunGroups *groups, Program *program, gboolean keeps_all)
{
    for (guint i = 0; !keeps_all && i < groups->programs->len; i++) {
        if (is_slower(g_ptr_array_index(groups->programs, i), program)) {
            program_free(program);
            return;
        }
    }
    for (guint i = groups->programs->len; !keeps_all && i-- > 0;) {
        if (is_slower(program, g_ptr_array_index(groups->programs, i))) {
            g_ptr_array_remove_index(groups->programs, i);
        }
    }
    g_ptr_array_add(groups->programs, program);
}

typedef struct Serial {
    Program *program;
    SimTime ns;
} Serial;

static int by_serial(const void *a, const void *b)
{
    const Serial *x = a, *y = b;
    return x->ns != y->ns ? (x->ns < y->ns ? 1 : -1) : x->program->ep_group < y->program->ep_group ? -1 : 1;
}

/* The slowest alone comes first, the earlier group of equal ones. */
static void sort_programs(GPtrArray *programs)
{
    g_autofree Serial *serials = g_new(Serial, programs->len + 1);
    for (guint i = 0; i < programs->len; i++) {
        Program *program = g_ptr_array_index(programs, i);
        serials[i] = (Serial){program, serial_ns(program)};
    }
    qsort(serials, programs->len, sizeof *serials, by_serial);
    for (guint i = 0; i < programs->len; i++) {
        g_ptr_array_index(programs, i) = serials[i].program;
    }
}

static gboolean groups_init(RunGroups *groups, RunCache *cache, const Plan *plan, const ModelGraph *graphs, int64_t n_at_most,
                            gboolean keeps_all, GError **error)
{
    *groups = (RunGroups){.cache = cache, .plan = plan, .graphs = graphs, .n_all = plan->dp_replicate * plan->efsdp};
    groups->n_sampled = MIN(n_sampled(plan, groups->n_all), n_at_most);
    groups->programs = g_ptr_array_new_with_free_func(destroy_program);
    if (!routing_is_needed(plan)) {
        groups->routings = run_routings_new();
        g_ptr_array_add(groups->programs, run_cache_lower(cache, plan, graphs, NULL, 0));
        return TRUE;
    }
    if (!sample_groups(groups, error)) {
        run_groups_clear(groups);
        return FALSE;
    }
    for (guint g = 0; g < groups->routings->len; g++) {
        Program *program = run_cache_lower(cache, plan, graphs, g_ptr_array_index(groups->routings, g), LOWER_HOTTEST);
        program->ep_group = (gint32)g;
        add_program(groups, program, keeps_all);
    }
    sort_programs(groups->programs);
    return TRUE;
}

gboolean run_groups_init(RunGroups *groups, RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error)
{
    return groups_init(groups, cache, plan, graphs, G_MAXINT64, FALSE, error);
}

gboolean run_groups_init_all(RunGroups *groups, RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error)
{
    return groups_init(groups, cache, plan, graphs, G_MAXINT64, TRUE, error);
}

gboolean run_groups_init_first(RunGroups *groups, RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error)
{
    return groups_init(groups, cache, plan, graphs, 1, FALSE, error);
}

void run_groups_clear(RunGroups *groups)
{
    g_clear_pointer(&groups->routings, g_ptr_array_unref);
    g_clear_pointer(&groups->programs, g_ptr_array_unref);
}

const Routing *run_groups_slowest(const RunGroups *groups, int64_t *ret_rank)
{
    const Plan *plan = groups->plan;
    int64_t layer = 0;
    *ret_rank = 0;
    if (groups->routings->len == 0) {
        return NULL;
    }
    gint32 group = ((const Program *)g_ptr_array_index(groups->programs, 0))->ep_group;
    const Routing *routing = g_ptr_array_index(groups->routings, group);
    while (plan_moe_layer(plan, layer) != 0) {
        layer++;
    }
    *ret_rank = group * plan->ep + hottest_rank(plan, model_graph_layer(groups->graphs, layer), routing, 0, NULL).rank;
    return routing;
}

/* The busiest rank's load of a group, mean over the MoE layers: what its step waits for. */
static double group_load(const RunGroups *groups, guint g)
{
    const Routing *routing = g_ptr_array_index(groups->routings, g);
    double sum = 0;
    int64_t n = 0;
    for (int64_t layer = 0; layer < groups->plan->model->n_layers; layer++) {
        int64_t moe_layer = plan_moe_layer(groups->plan, layer);
        if (moe_layer >= 0) {
            RoutingStats stats;
            routing_stats(routing, routing_table(routing, moe_layer), &stats);
            sum += stats.rank_max_over_mean;
            n++;
        }
    }
    return n > 0 ? sum / (double)n : 1;
}

const Routing *run_groups_busiest(const RunGroups *groups, RoutingStats *ret_stats)
{
    const Routing *busiest = NULL;
    *ret_stats = (RoutingStats){.busiest_rows = -1};
    for (guint g = 0; g < groups->routings->len; g++) {
        const Routing *routing = g_ptr_array_index(groups->routings, g);
        for (int t = 0; t < routing_n_tables(routing); t++) {
            RoutingStats stats;
            routing_stats(routing, t, &stats);
            if (stats.busiest_rows > ret_stats->busiest_rows) {
                *ret_stats = stats;
                ret_stats->busiest_rank += (int64_t)g * groups->plan->ep;
                busiest = routing;
            }
        }
    }
    return busiest;
}

void run_groups_totals(const RunGroups *groups, GroupTotals *ret_totals)
{
    *ret_totals = (GroupTotals){0};
    for (guint g = 0; g < groups->routings->len; g++) {
        const Routing *routing = g_ptr_array_index(groups->routings, g);
        for (int64_t layer = 0; layer < groups->plan->model->n_layers; layer++) {
            int64_t moe_layer = plan_moe_layer(groups->plan, layer);
            RoutingStats stats;
            if (moe_layer < 0) {
                continue;
            }
            routing_stats(routing, routing_table(routing, moe_layer), &stats);
            ret_totals->n_routed += stats.n_routed;
            ret_totals->n_kept += stats.n_kept;
            ret_totals->n_dropped += stats.n_dropped;
            ret_totals->n_computed += (int64_t)llround(stats.rank_mean_rows * (double)groups->plan->ep);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Expected largest of n out of k sorted values: each is the largest with probability C(i, n - 1) / C(k, n). */
static double expected_largest(const double *sorted, int64_t k, int64_t n)
{
    double sum = 0;
    for (int64_t i = n - 1; i < k; i++) { /* i values lie below */
        double part = (double)n / (double)(i + 1);
        for (int64_t j = i + 1; j < k; j++) { /* C(i, n - 1) / C(k, n), factor by factor */
            part *= (double)(j + 1 - n) / (double)(j + 1);
        }
        sum += part * sorted[i];
    }
    return sum;
}

/* Largest of n_all by a Gumbel law with the mean and deviation of the values: mean + beta ln n, beta = s sqrt(6) / pi. */
static double fitted_largest(const double *values, int64_t k, int64_t n_all)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < k; i++) {
        mean += values[i] / (double)k;
    }
    for (int64_t i = 0; i < k; i++) {
        square += (values[i] - mean) * (values[i] - mean) / (double)MAX(k - 1, 1);
    }
    return fmax(values[k - 1], mean + sqrt(6 * square) / G_PI * log((double)n_all));
}

GArray *run_groups_growth(const RunGroups *groups)
{
    GArray *growth = g_array_new(FALSE, TRUE, sizeof(GroupGrowth));
    int64_t k = groups->routings->len;
    g_autofree double *loads = g_new(double, k + 1);
    for (int64_t g = 0; g < k; g++) {
        loads[g] = group_load(groups, (guint)g);
    }
    qsort(loads, (size_t)k, sizeof *loads, by_value);
    for (int64_t n = 1; n <= k; n = n < k ? MIN(2 * n, k) : k + 1) {
        GroupGrowth entry = {n, expected_largest(loads, k, n)};
        g_array_append_val(growth, entry);
    }
    if (k > 1 && groups->n_all > k) {
        GroupGrowth all = {groups->n_all, fitted_largest(loads, k, groups->n_all)};
        g_array_append_val(growth, all);
    }
    return growth;
}

/* A rank of a sampled group by what its memory grows with. */
typedef struct RankRows {
    guint group;
    int64_t rank, sum, most;
} RankRows;

static int by_sum(const void *a, const void *b)
{
    const RankRows *x = a, *y = b;
    int64_t p = x->sum - y->sum, q = (int64_t)x->group - (int64_t)y->group, r = x->rank - y->rank;
    return p != 0 ? (p < 0 ? 1 : -1) : q != 0 ? (q < 0 ? -1 : 1) : r < 0 ? -1 : 1;
}

static int by_most(const void *a, const void *b)
{
    const RankRows *x = a, *y = b;
    return x->most != y->most ? (x->most < y->most ? 1 : -1) : by_sum(a, b);
}

/* Rows of all ranks of all sampled groups: over the MoE layers, and in the fullest of them. */
static RankRows *rank_rows_of(const RunGroups *groups)
{
    const Plan *plan = groups->plan;
    RankRows *all = g_new0(RankRows, groups->routings->len * (gsize)plan->ep);
    for (guint g = 0; g < groups->routings->len; g++) {
        const Routing *routing = g_ptr_array_index(groups->routings, g);
        for (int64_t r = 0; r < plan->ep; r++) {
            RankRows *rows = &all[(int64_t)g * plan->ep + r];
            *rows = (RankRows){.group = g, .rank = r};
            for (int64_t layer = 0; layer < plan->model->n_layers; layer++) {
                RoutingRows seen;
                if (plan->model->layers[layer].ffn != FFN_MOE) {
                    continue;
                }
                routing_rows(routing, routing_table(routing, plan_moe_layer(plan, layer)), r, &seen);
                rows->sum += seen.n_received + seen.n_sent;
                rows->most = MAX(rows->most, seen.n_received + seen.n_sent);
            }
        }
    }
    return all;
}

static int64_t foot_of(const RunGroups *groups, const RankRows *rows)
{
    Footprint foot;
    RetentionPlan *retention = groups->cache != NULL ? lower_cache_retention(groups->cache->lowered, groups->plan, groups->graphs) : NULL;
    footprint_compute(groups->plan, groups->graphs, retention, g_ptr_array_index(groups->routings, rows->group), rows->rank, &foot);
    return foot.peak_bytes;
}

/* The fullest of some ranks. */
static RankRows fullest(const RunGroups *groups, const RankRows *ranks, int64_t n, RankRows best, int64_t *best_bytes)
{
    for (int64_t i = 0; i < MIN(n, CANDIDATES); i++) {
        int64_t bytes = foot_of(groups, &ranks[i]);
        if (bytes > *best_bytes) {
            *best_bytes = bytes;
            best = ranks[i];
        }
    }
    return best;
}

static gboolean run_rank(const RunGroups *groups, const Routing *routing, int64_t rank, GroupMemory *memory, GError **error)
{
    const Device *device = groups->plan->cluster->device;
    memory->owns_program = routing != NULL;
    memory->program = routing != NULL ? run_cache_lower(groups->cache, groups->plan, groups->graphs, routing, rank)
                                      : g_ptr_array_index(groups->programs, 0);
    int64_t capacity_bytes = device->usable_bytes - plan_outside_bytes(groups->plan);
    if (run_cache_ledger(groups->cache, memory->program, capacity_bytes, &memory->ledger, error)) {
        memory->mean_peak_bytes = memory->ledger.peak_bytes - memory->program->uneven_state_bytes;
        return TRUE;
    }
    group_memory_clear(memory);
    return FALSE;
}

gboolean run_groups_memory(const RunGroups *groups, int64_t rank, GroupMemory *ret_memory, GError **error)
{
    int64_t n = (int64_t)groups->routings->len * groups->plan->ep, most = -1;
    *ret_memory = (GroupMemory){0};
    if (n == 0) {
        if (!run_rank(groups, NULL, 0, ret_memory, error)) {
            return FALSE;
        }
        ret_memory->rank = ret_memory->program->fullest_rank;
        return TRUE;
    }
    g_autofree RankRows *all = rank_rows_of(groups);
    RankRows chosen = all[rank >= 0 ? rank % groups->plan->ep : 0];
    qsort(all, (size_t)n, sizeof *all, by_most);
    RankRows best = fullest(groups, all, n, all[0], &most);
    qsort(all, (size_t)n, sizeof *all, by_sum);
    best = fullest(groups, all, n, best, &most);
    chosen = rank >= 0 ? chosen : best;
    if (!run_rank(groups, g_ptr_array_index(groups->routings, chosen.group), chosen.rank, ret_memory, error)) {
        return FALSE;
    }
    ret_memory->rank = (int64_t)chosen.group * groups->plan->ep + chosen.rank;
    int64_t n_mean = MIN(n, MEAN_RANKS), own = foot_of(groups, &chosen);
    double less = 0;
    for (int64_t i = 0; i < n_mean; i++) {
        less += (double)(own - foot_of(groups, &all[(2 * i + 1) * n / (2 * n_mean)])) / (double)n_mean;
    }
    ret_memory->mean_peak_bytes -= (int64_t)llround(less);
    return TRUE;
}

void group_memory_clear(GroupMemory *memory)
{
    if (memory->owns_program) {
        program_free(memory->program);
    }
    memory->program = NULL;
}
