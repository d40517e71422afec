/*
 * Traffic of experts: what holds whatever the loads, capacities and placements are.
 *
 * Tokens are conserved by every source, group and layer; drops fall and time rises with the capacity; skew never makes a step
 * faster; copies of hot experts never raise the busiest rank's load; the program that stands for a group takes as long as all
 * its ranks together; memory by lifetimes is the ledger's for every rank.
 */
#include "tests/property/random-plan.h"

#include "models/moe-tables.h"
#include "workloads/lower/lower.h"
#include "workloads/run/footprint.h"
#include "workloads/run/groups.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/run.h"
#include "workloads/run/shrink.h"
#include "workloads/run/step.h"

#define MACHINES "cluster.preset=h200-sxm cluster.nodes=2 cluster.gpus_per_node=8 "
#define FLEET MACHINES "workload.seq_len=512 "
#define QWEN_MODEL "model.config=qwen3-30b-a3b model.overrides.num_hidden_layers=4 model.overrides.n_routed_experts=64 "
#define QWEN QWEN_MODEL FLEET
#define QWEN_LONG QWEN_MODEL MACHINES "workload.seq_len=16384 "
#define KIMI "model.config=kimi-linear-48b-a3b model.overrides.num_hidden_layers=4 model.overrides.num_experts=64 " FLEET

static Plan *plan_for(const char *base, const char *fields)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *words = g_strconcat(base, fields, NULL);
    Plan *plan = plan_of_words(words, &error);
    if (error != NULL) {
        print_error("%s\n", words);
    }
    check_no_error(error);
    return plan;
}

static Result *result_of(const char *base, const char *fields)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_for(base, fields);
    Result *result = run_plan(plan, NULL, &error);
    check_no_error(error);
    return result;
}

/* ---- conservation ---- */

static RoutingSpec random_spec(uint64_t seed, const Model *model, JsonDoc **ret_loads)
{
    static const int64_t experts[] = {8, 16, 64, 96}, ranks[] = {1, 2, 4, 8};
    static const double factors[] = {0, 0.4, 1, 1.25, 3};
    RoutingSpec spec = {.model = model, .drop_target = -1, .nodes = 1, .router_groups = 1, .sequences = 1 + (int64_t)random_below(seed, 0, 12)};
    spec.kind = (PlanRouting)random_below(seed, 1, 4);
    spec.experts = experts[random_below(seed, 2, 4)];
    spec.top_k = 1 + (int64_t)random_below(seed, 3, MIN((uint64_t)spec.experts, 9));
    spec.n_ranks = ranks[random_below(seed, 4, 4)];
    spec.tokens = (int64_t)random_below(seed, 5, 400);
    spec.n_layers = 1 + (int64_t)random_below(seed, 6, 4);
    spec.layer_draws = 1 + (int64_t)random_below(seed, 7, 4);
    spec.exponent = (double)random_below(seed, 8, 30) / 10;
    spec.seed = seed;
    spec.draws = random_below(seed, 9, 4) > 0;
    spec.group = (int64_t)random_below(seed, 10, 5);
    spec.capacity = (MoeCapacity){.rule = (MoeCapacityRule)random_below(seed, 11, 3), .factor = factors[random_below(seed, 12, 5)], .least = 4,
                                  .multiple = 1 + (int64_t)random_below(seed, 13, 4)};
    spec.measured_capacity = random_below(seed, 14, 4) == 0;
    spec.drop_target = spec.measured_capacity ? (double)random_below(seed, 15, 10) / 20 : -1;
    spec.slots = spec.experts + spec.n_ranks * (int64_t)random_below(seed, 16, 3);
    spec.placement = (PlanPlacement)random_below(seed, 17, 2);
    spec.padded = spec.slots == spec.experts && (spec.capacity.factor > 0 || spec.measured_capacity) && random_below(seed, 18, 3) == 0;
    spec.drop = (MoeDrop)random_below(seed, 19, 2);
    spec.chunks = spec.padded ? 1 : 1 + (int64_t)random_below(seed, 20, TOKEN_CHUNKS_MAX);
    spec.sample_tokens = 64;
    if (spec.kind == PLAN_ROUTING_MEASURED) {
        json_t *layer = json_array();
        for (int64_t e = 0; e < spec.experts; e++) {
            json_array_append_new(layer, json_integer(1 + (json_int_t)random_below(seed, 100 + (uint64_t)e, 50)));
        }
        g_autoptr(json_t) layers = json_pack("[o]", layer);
        *ret_loads = json_doc_from_value(layers, "loads");
        spec.loads = *ret_loads;
    }
    return spec;
}

/* Kept and dropped slots of a table, and what reaches the ranks, source by source. */
static void check_table(const Routing *routing, const RoutingSpec *spec, int table)
{
    RoutingStats stats;
    RoutingRows rows;
    int64_t kept = 0, computed = 0, sent = 0;
    const int64_t *splits = routing_splits(routing, table);
    routing_stats(routing, table, &stats);
    routing_rows(routing, table, 0, &rows);
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        int64_t own = 0;
        for (int64_t e = 0; e < spec->experts; e++) {
            int64_t tokens = routing_tokens(routing, table, source, e);
            assert_true(tokens >= 0 && tokens <= spec->tokens && (rows.capacity == 0 || tokens <= rows.capacity));
            own += tokens;
        }
        assert_true(rows.capacity > 0 || own == spec->tokens * spec->top_k); /* dropless keeps every token */
        kept += own;
        for (int64_t dest = 0; dest < spec->n_ranks; dest++) {
            assert_true(splits[source * spec->n_ranks + dest] >= 0);
            check_int(splits[source * spec->n_ranks + dest], routing_send_rows(routing, table, source, dest));
            sent += splits[source * spec->n_ranks + dest];
        }
    }
    for (int64_t rank = 0; rank < spec->n_ranks; rank++) {
        int64_t local = 0;
        routing_rows(routing, table, rank, &rows);
        for (int64_t s = 0; s < spec->slots / spec->n_ranks; s++) {
            local += rows.local_expert_rows[s];
            assert_true(!spec->padded || rows.local_expert_rows[s] == rows.capacity * spec->n_ranks);
        }
        check_int(local, rows.n_received);
        computed += local;
    }
    check_int(stats.n_kept, kept);
    check_int(stats.n_kept + stats.n_dropped, stats.n_routed);
    check_int(stats.n_routed, spec->tokens * spec->top_k * spec->n_ranks);
    check_int(computed, sent);
    assert_true(spec->padded ? computed >= kept : computed == kept);
    double distinct = routing_distinct_parts(routing, table, spec->n_ranks);
    assert_true(distinct >= -1e-9 && distinct <= (double)MIN(spec->n_ranks, spec->padded ? spec->n_ranks : spec->top_k) + 1e-9);
}

/* No chunk loses a token: rows over the chunks are those of the whole, and each chunk's tokens have all their choices. */
static void check_chunks(const Routing *routing, const RoutingSpec *spec, int table)
{
    int64_t n = spec->n_ranks, local = spec->slots / n;
    const int64_t *whole = routing_splits(routing, table);
    g_autofree int64_t *splits = g_new0(int64_t, n * n), *slots = g_new0(int64_t, spec->slots);
    for (int64_t c = 0; c < spec->chunks; c++) {
        int64_t tokens = token_chunk_start(spec->tokens, spec->chunks, c + 1) - token_chunk_start(spec->tokens, spec->chunks, c);
        const int64_t *part = routing_chunk_splits(routing, table, c);
        for (int64_t rank = 0; rank < n; rank++) {
            RoutingRows rows;
            int64_t computed = 0;
            routing_chunk_rows(routing, table, rank, c, &rows);
            for (int64_t s = 0; s < local; s++) {
                slots[rank * local + s] += rows.local_expert_rows[s];
                computed += rows.local_expert_rows[s];
                assert_true(rows.local_expert_rows[s] >= 0 && (spec->padded || rows.local_expert_rows[s] <= tokens * n));
            }
            check_int(computed, rows.n_received);
            assert_true(spec->padded || (rows.capacity > 0 ? rows.n_sent <= tokens * spec->top_k : rows.n_sent == tokens * spec->top_k));
        }
        for (int64_t i = 0; i < n * n; i++) {
            assert_true(part[i] >= 0);
            splits[i] += part[i];
        }
    }
    assert_memory_equal(splits, whole, (size_t)(n * n) * sizeof *splits);
    for (int64_t rank = 0; rank < n; rank++) {
        RoutingRows rows;
        routing_rows(routing, table, rank, &rows);
        assert_memory_equal(slots + rank * local, rows.local_expert_rows, (size_t)local * sizeof *slots);
    }
}

static void test_conservation(void **state)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("deepseek-v3", NULL, &error);
    (void)state;
    check_no_error(error);
    model->router_groups = 1;
    for (uint64_t seed = 0; seed < 400; seed++) {
        g_autoptr(JsonDoc) loads = NULL;
        RoutingSpec spec = random_spec(seed, model, &loads);
        g_autoptr(Routing) routing = routing_new(&spec, &error), again = routing_new(&spec, &error);
        check_no_error(error);
        for (int table = 0; table < routing_n_tables(routing); table++) {
            check_table(routing, &spec, table);
            check_chunks(routing, &spec, table);
            assert_memory_equal(routing_splits(routing, table), routing_splits(again, table),
                                (size_t)(spec.n_ranks * spec.n_ranks) * sizeof(int64_t));
        }
    }
}

/* ---- capacity ---- */

typedef struct CapacityCase {
    const char *name, *base, *fields;
} CapacityCase;

static const CapacityCase capacity_cases[] = {
    {"capacity: kept rows", QWEN, "parallel.ep=8 memory.recompute=full"},
    {"capacity: padded", QWEN, "parallel.ep=8 moe.pad_to_capacity=true"},
    {"capacity: skew, by probability", QWEN, "parallel.ep=4 workload.routing.kind=zipf workload.routing.exponent=0.8 moe.drop=probability"},
    {"capacity: one rank per group", QWEN, "parallel.ep=1 workload.routing.kind=zipf"},
    {"capacity: Tutel, in eights", KIMI, "parallel.ep=8 moe.capacity_rule=tutel moe.capacity_multiple=8 moe.pad_to_capacity=true"},
    {"capacity: chunks", QWEN, "parallel.ep=8 moe.overlap_chunks=2 workload.routing.kind=zipf workload.routing.exponent=0.5"},
    {"capacity: DeepSpeed", KIMI, "parallel.ep=8 moe.capacity_rule=deepspeed workload.routing.kind=router workload.routing.sample_tokens=256"},
};

/* Drops fall and time rises with the factor; what is useful is what was not dropped. */
static void test_capacity(void **state)
{
    static const double factors[] = {0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 6};
    const CapacityCase *c = *state;
    double dropped = 1, step = 0;
    gboolean falls = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(factors); i++) {
        g_autofree char *fields = g_strdup_printf("%s moe.capacity_factor=%g", c->fields, factors[i]);
        g_autoptr(Result) result = result_of(c->base, fields);
        assert_true(result->dropped_fraction <= dropped && result->dropped_fraction >= 0);
        assert_true(result->step_time_s >= step);
        falls = falls || result->dropped_fraction < dropped;
        dropped = result->dropped_fraction;
        step = result->step_time_s;
        check_close(result->useful_tokens_per_s_per_gpu, result->tokens_per_s_per_gpu * (1 - dropped), 1e-12);
    }
    assert_true(falls && dropped < 0.05);
}

/* A capacity that follows the loads drops no more than it may, and no capacity below it would do. */
static void test_fitted_capacity(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++) {
        MoeShape shape = {100, 4, 16};
        MoeCapacity capacity = {.multiple = 1 + (int64_t)random_below(seed, 1, 5)};
        double target = (double)random_below(seed, 2, 20) / 40;
        int64_t counts[32], sum = 0, above = 0, below = 0;
        for (int i = 0; i < 32; i++) {
            counts[i] = (int64_t)random_below(seed, 3 + (uint64_t)i, 100);
            sum += counts[i];
        }
        int64_t fitted = moe_capacity_measured(&capacity, &shape, counts, 2, target);
        for (int i = 0; i < 32; i++) {
            above += MAX(counts[i] - fitted, 0);
            below += MAX(counts[i] - (fitted - capacity.multiple), 0);
        }
        check_int(fitted % capacity.multiple, 0);
        assert_true((double)above <= target * (double)sum);
        assert_true(fitted == capacity.multiple || (double)below > target * (double)sum);
        capacity.factor = 0.5;
        assert_true(moe_capacity_measured(&capacity, &shape, counts, 2, target) <= moe_capacity_rows(&capacity, &shape));
    }
}

/* ---- skew ---- */

static const CapacityCase skew_cases[] = {
    {"skew: recomputed", QWEN, "parallel.ep=8 memory.recompute=full"},
    {"skew: nothing recomputed", QWEN, "parallel.ep=8"},
    {"skew: half a node", QWEN, "parallel.ep=4"},
    {"skew: latent attention", KIMI, "parallel.ep=16"},
    {"skew: eager", KIMI, "parallel.ep=8 kernels=eager workload.micro_batch=4"},
    {"skew: chunks", QWEN, "parallel.ep=8 moe.overlap_chunks=3"},
};

/* A steeper popularity makes the busiest rank busier, and no step faster than balanced loads do. */
static void test_skew(void **state)
{
    static const double exponents[] = {0, 0.25, 0.5, 0.75, 1, 1.5, 2.5};
    const CapacityCase *c = *state;
    g_autoptr(Result) balanced = result_of(c->base, c->fields);
    double load = 0, step = balanced->step_time_s;
    for (size_t i = 0; i < G_N_ELEMENTS(exponents); i++) {
        g_autofree char *fields =
            g_strdup_printf("%s workload.routing.kind=zipf workload.routing.exponent=%g", c->fields, exponents[i]);
        g_autoptr(Result) result = result_of(c->base, fields);
        assert_true(result->step_time_s >= balanced->step_time_s * (1 - 1e-3));
        assert_true(exponents[i] <= 0.25 || result->step_time_s >= step * (1 - 2e-3));
        assert_true(exponents[i] <= 0.5 || result->rank_load_max_over_mean >= load * (1 - 0.02));
        assert_true(result->peak_memory_bytes >= result->mean_rank_peak_bytes);
        step = MAX(step, result->step_time_s);
        load = result->rank_load_max_over_mean;
    }
    assert_true(load > 1.3 && step > balanced->step_time_s);
}

/* ---- copies ---- */

static double busiest_load(const RoutingSpec *spec)
{
    RoutingStats stats;
    g_autoptr(Routing) routing = routing_new(spec, NULL);
    routing_stats(routing, 0, &stats);
    return (double)stats.busiest_rows;
}

/* On expected loads of any shape, EPLB's copies never raise the busiest rank's load, nor does its placement. */
static void test_copies(void **state)
{
    static const int64_t ranks[] = {2, 4, 8};
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        RoutingSpec spec = {.kind = PLAN_ROUTING_ZIPF, .seed = seed, .experts = 32, .top_k = 4, .tokens = 20000, .sequences = 1, .n_layers = 1,
                            .drop_target = -1, .router_groups = 1, .nodes = 1};
        spec.n_ranks = ranks[random_below(seed, 0, 3)];
        spec.exponent = (double)random_below(seed, 1, 25) / 10;
        spec.nodes = random_below(seed, 2, 2) == 0 ? 1 : 2;
        spec.router_groups = random_below(seed, 3, 2) == 0 ? 1 : 8;
        double before = busiest_load(&spec);
        spec.placement = PLAN_PLACEMENT_EPLB;
        double placed = busiest_load(&spec), slack = 2.0 * (double)(spec.n_ranks * spec.experts); /* whole rows */
        assert_true(placed <= before + slack);
        for (int64_t per_rank = 1; per_rank <= 4; per_rank++) {
            spec.slots = spec.experts + per_rank * spec.n_ranks;
            double copied = busiest_load(&spec);
            if (copied > placed + slack) {
                print_error("seed %d, %d copies per rank: %g, without %g\n", (int)seed, (int)per_rank, copied, placed);
            }
            assert_true(copied <= placed + slack);
        }
    }
}

/* In a whole plan with hot experts copies make the busiest rank less busy and the step faster, and take memory. */
static void test_copies_in_plan(void **state)
{
    (void)state;
    const char *skew = "parallel.ep=8 workload.routing.kind=zipf workload.routing.exponent=1 memory.recompute=full";
    g_autofree char *more = g_strconcat(skew, " moe.placement=eplb moe.redundant_experts=16", NULL);
    g_autofree char *eplb = g_strconcat(skew, " moe.placement=eplb", NULL);
    g_autoptr(Result) plain = result_of(QWEN_LONG, skew), placed = result_of(QWEN_LONG, eplb), copied = result_of(QWEN_LONG, more);
    assert_true(placed->rank_load_max_over_mean < plain->rank_load_max_over_mean);
    assert_true(copied->rank_load_max_over_mean <= placed->rank_load_max_over_mean);
    assert_true(copied->step_time_s < plain->step_time_s);
    assert_true(copied->static_memory_bytes > placed->static_memory_bytes);
    check_int(copied->params_trainable, plain->params_trainable);
    check_int(copied->params_total, plain->params_total);
}

/* ---- one program for a group ---- */

static const CapacityCase group_cases[] = {
    {"group: skew", QWEN, "parallel.ep=8 workload.routing.kind=zipf workload.routing.exponent=1"},
    {"group: recomputed", QWEN, "parallel.ep=8 workload.routing.kind=zipf workload.routing.exponent=0.6 memory.recompute=full"},
    {"group: many loads", QWEN, "parallel.ep=4 workload.routing.kind=zipf workload.routing.exponent=0.8 workload.routing.layer_draws=4"},
    {"group: capacity", KIMI, "parallel.ep=8 workload.routing.kind=zipf moe.capacity_factor=1 memory.recompute=full"},
    {"group: copies", KIMI, "parallel.ep=8 workload.routing.kind=zipf moe.redundant_experts=8 moe.placement=eplb"},
    {"group: chunks", QWEN, "parallel.ep=8 workload.routing.kind=zipf workload.routing.exponent=1 moe.overlap_chunks=4"},
    {"group: chunks of tokens", KIMI, "parallel.ep=16 workload.routing.kind=zipf moe.dispatch=deepep moe.overlap_chunks=2"},
    {"group: router", KIMI, "parallel.ep=8 workload.routing.kind=router workload.routing.sample_tokens=512"},
};

/* All ranks of a group simulated, against the one program that stands for them. */
static void test_group(void **state)
{
    const CapacityCase *c = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_for(c->base, c->fields);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    g_autoptr(Routing) routing = routing_new(&spec, &error);
    g_autofree Program **programs = g_new0(Program *, plan->ep);
    g_autoptr(Program) stand_in = lower_plan(plan, graphs, routing, LOWER_HOTTEST);
    StepTimes all, one;
    for (int64_t r = 0; r < plan->ep; r++) {
        programs[r] = lower_plan(plan, graphs, routing, r);
    }
    assert_true(step_run(plan, programs, plan->ep, &all, &error));
    assert_true(step_run(plan, &stand_in, 1, &one, &error));
    check_close((double)one.step_ns, (double)all.step_ns, 5e-3);
    for (int64_t r = 0; r < plan->ep; r++) {
        program_free(programs[r]);
    }
}

/* The load that a step waits for grows with the groups that are sampled, and the sample is part of a larger one. */
static void test_growth(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_for(QWEN, "parallel.ep=2 workload.routing.kind=zipf workload.routing.exponent=0.5 workload.routing.replicas=6");
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RunGroups groups;
    assert_true(run_groups_init(&groups, NULL, plan, graphs, &error));
    g_autoptr(GArray) growth = run_groups_growth(&groups);
    static const int64_t wanted[] = {1, 2, 4, 6, 8}; /* eight groups in all */
    check_int(growth->len, G_N_ELEMENTS(wanted));
    for (guint i = 0; i < growth->len; i++) {
        const GroupGrowth *entry = &g_array_index(growth, GroupGrowth, i);
        check_int(entry->n, wanted[i]);
        assert_true(i == 0 || entry->rank_load_max_over_mean >= entry[-1].rank_load_max_over_mean);
    }
    assert_true(g_array_index(growth, GroupGrowth, 3).rank_load_max_over_mean > g_array_index(growth, GroupGrowth, 0).rank_load_max_over_mean);
    run_groups_clear(&groups);
}

/* ---- memory ---- */

static const CapacityCase memory_cases[] = {
    {"memory: capacity", QWEN, "parallel.ep=4 moe.capacity_factor=0.7"},
    {"memory: capacity, recomputed", KIMI, "parallel.ep=8 moe.capacity_factor=1 moe.drop=probability memory.recompute=full"},
    {"memory: padded", QWEN, "parallel.ep=4 moe.capacity_factor=1.5 moe.pad_to_capacity=true memory.recompute=selective"},
    {"memory: padded, one rank, eager", QWEN, "parallel.ep=1 moe.capacity_factor=1.5 moe.pad_to_capacity=true kernels=eager"},
    {"memory: fitted", KIMI, "parallel.ep=4 moe.capacity_drop_target=0.1 moe.pad_to_capacity=true memory.recompute=full"},
    {"memory: copies", QWEN, "parallel.ep=8 moe.redundant_experts=8 moe.placement=eplb workload.routing.kind=zipf"},
    {"memory: copies, two micro-batches", KIMI,
     "parallel.ep=8 moe.redundant_experts=16 workload.routing.kind=zipf moe.capacity_factor=1 workload.global_batch=32 memory.recompute=full"},
    {"memory: LoRA on copies", QWEN,
     "parallel.ep=8 moe.redundant_experts=8 moe.placement=eplb workload.mode=lora workload.lora.targets=experts workload.routing.kind=zipf"},
};

/* Every rank's peak by lifetimes is the ledger's, and what is named as the fullest rank is the fullest. */
static void test_memory(void **state)
{
    const CapacityCase *c = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_for(c->base, c->fields);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RunGroups groups;
    GroupMemory memory;
    int64_t most = 0;
    assert_true(run_groups_init(&groups, NULL, plan, graphs, &error));
    assert_true(run_groups_memory(&groups, -1, &memory, &error));
    for (guint g = 0; g < groups.routings->len; g++) {
        for (int64_t r = 0; r < plan->ep; r++) {
            const Routing *routing = g_ptr_array_index(groups.routings, g);
            g_autoptr(Program) program = lower_plan(plan, graphs, routing, r);
            Ledger ledger;
            Footprint footprint;
            assert_true(ledger_run(program, 0, &ledger, &error));
            assert_true(footprint_compute(plan, graphs, NULL, routing, r, &footprint));
            check_int(footprint.peak_bytes, ledger.rounded_peak_bytes);
            check_int(footprint.after_forward_bytes, ledger.rounded_after_forward_bytes);
            check_int(footprint.static_bytes, lower_static_bytes(program));
            most = MAX(most, ledger.rounded_peak_bytes);
        }
    }
    check_int(memory.ledger.rounded_peak_bytes, most);
    assert_true(memory.mean_peak_bytes <= memory.ledger.peak_bytes);
    group_memory_clear(&memory);
    run_groups_clear(&groups);
}

/* ---- values ---- */

/* The sum over copies of the first layer that has one is left out, or made twice. */
static void spoil_copies(void *self, Program *program)
{
    gboolean *twice = self;
    for (guint s = 0; s < program->segments->len; s++) {
        GArray *instrs = program_segment(program, (int)s)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            Instr instr = g_array_index(instrs, Instr, i);
            if (instr.kind != INSTR_COLLECTIVE || instr.action != VALUE_SUM_COPIES) {
                continue;
            }
            if (*twice) {
                g_array_insert_val(instrs, i, instr);
            } else {
                g_array_remove_index(instrs, i);
            }
            return;
        }
    }
    fail_msg("no sum over copies in the program");
}

/* Copies get the gradient of all rows of their expert, once: otherwise they drift apart, or learn too fast. */
static void test_spoilt_copies(void **state)
{
    (void)state;
    for (int how = -1; how < 2; how++) {
        gboolean twice = how == 1;
        PlanMutation mutation = {spoil_copies, &twice};
        PlanProof proof;
        ShrinkReport report;
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_for(QWEN, "parallel.ep=4 moe.redundant_experts=8 moe.placement=eplb workload.routing.kind=zipf");
        shrink_plan(plan, &report);
        gboolean passed = plan_proof_run(plan, 2, 1, how < 0 ? NULL : &mutation, &proof, &error);
        if (how < 0) {
            check_no_error(error);
        } else {
            assert_false(passed);
            check_contains(error->message, "experts");
        }
        plan_proof_clear(&proof);
    }
}

static size_t add_cases(struct CMUnitTest *tests, size_t n, const CapacityCase *cases, size_t n_cases, CMUnitTestFunction run)
{
    for (size_t i = 0; i < n_cases; i++) {
        tests[n++] = (struct CMUnitTest){cases[i].name, run, NULL, NULL, (void *)(guintptr)&cases[i]};
    }
    return n;
}

int main(void)
{
    struct CMUnitTest tests[64] = {cmocka_unit_test(test_conservation), cmocka_unit_test(test_fitted_capacity), cmocka_unit_test(test_copies),
                                   cmocka_unit_test(test_copies_in_plan), cmocka_unit_test(test_growth),
                                   cmocka_unit_test(test_spoilt_copies)};
    size_t n = 6;
    n = add_cases(tests, n, capacity_cases, G_N_ELEMENTS(capacity_cases), test_capacity);
    n = add_cases(tests, n, skew_cases, G_N_ELEMENTS(skew_cases), test_skew);
    n = add_cases(tests, n, group_cases, G_N_ELEMENTS(group_cases), test_group);
    n = add_cases(tests, n, memory_cases, G_N_ELEMENTS(memory_cases), test_memory);
    return _cmocka_run_group_tests("MoE traffic", tests, n, NULL, NULL);
}
