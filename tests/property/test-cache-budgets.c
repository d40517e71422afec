/*
 * Budgets of caches: what they gain, that more is never slower, whatever else a plan has, that no rank holds more than was given, and what
 * a plan leaves open.
 */
#include "tests/property/random-plan.h"

#include <math.h>

#include "workloads/run/run.h"
#include "workloads/run/trials.h"

static Plan *plan_of(const char *memory, const char *rest)
{
    GError *error = NULL;
    g_autofree char *words = g_strconcat(memory, " ", rest, NULL);
    Plan *plan = plan_of_words(words, &error);
    check_no_error(error);
    return plan;
}

static Result *result_of(const char *memory, const char *rest)
{
    GError *error = NULL;
    g_autoptr(Plan) plan = plan_of(memory, rest);
    Result *result = run_plan(plan, NULL, &error);
    check_no_error(error);
    return result;
}

#define K3 "model.config=kimi-k3 parallel.ep=64 workload.seq_len=8192 loss.seq_chunk=2048 "
#define K3_LORA K3 "workload.mode=lora precision.parameters=bf16 precision.reduce=fp32 "
static const char K3_H200[] = K3_LORA "cluster.preset=h200-sxm cluster.nodes=16 cluster.gpus_per_node=8";
static const char K3_GB200[] = K3_LORA "cluster.preset=gb200 cluster.nodes=32 cluster.gpus_per_node=4";
static const char K3_GB200_512[] = K3 "cluster.preset=gb200 cluster.nodes=128 cluster.gpus_per_node=4";
static const char K3_H200_512[] = K3 "cluster.preset=h200-sxm cluster.nodes=64 cluster.gpus_per_node=8";
static const char K3_GB300_256[] = K3 "cluster.preset=gb300 cluster.nodes=64 cluster.gpus_per_node=4";

/*
 * K3-shaped plans on 128 to 512 GPUs: the budgeted choice against full recomputation, in the memory that there is; where DDR alone
 * does it, in 4 % more HBM than full recomputation needs, for what is on its way.
 */
static void test_k3_gain(void **state)
{
    static const struct {
        const char *plan, *budgets;
        double gain_frac, hbm_frac;
    } rows[] = {
        {K3_H200, "memory.cache.hbm_bytes=60GiB memory.cache.ddr_bytes=100GiB", 0.10, HUGE_VAL},
        {K3_GB200, "memory.cache.ddr_bytes=200GiB", 0.15, 1.04},
        {K3_GB200_512, "memory.cache.ddr_bytes=200GiB", 0.10, 1.04},
        {K3_GB300_256, "memory.cache.ddr_bytes=200GiB", 0.10, 1.04},
        {K3_H200_512, "memory.cache.ddr_bytes=200GiB memory.host_copies=yield", 0.11, 1.01}, /* a NIC on the link */
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *memory = g_strconcat("memory.recompute=selective ", rows[i].budgets, NULL);
        g_autoptr(Result) full = result_of("memory.recompute=full", rows[i].plan), kept = result_of(memory, rows[i].plan);
        assert_true(kept->fits && kept->step_time_s < (1 - rows[i].gain_frac) * full->step_time_s);
        assert_true((double)kept->peak_memory_bytes < rows[i].hbm_frac * (double)full->peak_memory_bytes);
        assert_true(kept->tiers->ddr_hits > 0 && kept->tiers->moved_out_bytes == kept->tiers->ddr_bytes);
        assert_true(kept->tiers->next_ddr_gib_s >= 0 && kept->tiers->kept->len > 10);
    }
}

/* Copies that wait for the NIC on their link leave its traffic its pace, and pay where that is what a step waits for. */
static void test_yielding(void **state)
{
    (void)state;
    static const char budgets[] = "memory.recompute=selective memory.cache.ddr_bytes=200GiB memory.host_copies=";
    g_autofree char *share = g_strconcat(budgets, "share", NULL), *yield = g_strconcat(budgets, "yield", NULL);
    g_autoptr(Result) shared = result_of(share, K3_H200_512), yielded = result_of(yield, K3_H200_512);
    assert_true(yielded->step_time_s < 0.95 * shared->step_time_s);
    assert_true(yielded->tiers->moved_in_bytes == yielded->tiers->ddr_bytes && yielded->tiers->ddr_hits > 0);
}

/* Gathers of experts per rank and step. */
static int64_t n_expert_gathers(const Result *result)
{
    int64_t n = 0;
    for (guint i = 0; i < result->collectives->len; i++) {
        const ResultCollective *entry = g_ptr_array_index(result->collectives, i);
        n += g_str_equal(entry->name, "all_gather (expert FSDP)") ? entry->count : 0;
    }
    return n;
}

/* A recomputation gathers experts if it runs an operator that reads them, and not for the sake of what stands between such. */
static void test_expert_gathers(void **state)
{
    (void)state;
    g_autoptr(Result) full = result_of("memory.recompute=full", K3_GB200_512), none = result_of("memory.recompute=none", K3_GB200_512);
    g_autoptr(Result) kept = result_of("memory.recompute=selective memory.cache.hbm_bytes=240GiB", K3_GB200_512);
    int64_t n_again = n_expert_gathers(full) - n_expert_gathers(none), n_whole = 0, n_acts = 0;
    for (guint i = 0; i < kept->tiers->kept->len; i++) {
        const ResultKept *entry = g_ptr_array_index(kept->tiers->kept, i);
        n_whole += g_str_equal(entry->name, "block_sparse_moe.experts.w1") ? entry->hbm_layers : 0;
        n_acts += g_str_equal(entry->name, "block_sparse_moe.experts.act") ? entry->recomputed_layers : 0;
    }
    assert_true(n_whole > 0 && n_acts > 0);
    check_int(n_expert_gathers(kept), n_expert_gathers(full) - n_whole);
    check_int(n_again, 92); /* once in every layer of experts */
}

/* Plans whose budgets are drawn: even and drawn loads, several micro-batches, links of all kinds, the chunk of the loss given or open. */
static const struct {
    const char *plan;
    int n_draws;
} budgeted[] = {
    {"model.config=qwen3-30b-a3b model.overrides.num_hidden_layers=12 cluster.preset=h200-sxm cluster.gpus_per_node=8 parallel.ep=8 "
     "workload.seq_len=8192 workload.micro_batch=2 workload.global_batch=48",
     8},
    {"model.config=kimi-k3 model.overrides.num_hidden_layers=9 cluster.preset=gb200 cluster.nodes=8 cluster.gpus_per_node=4 parallel.ep=32 "
     "workload.seq_len=8192 workload.mode=lora precision.parameters=bf16",
     8},
    {"model.config=deepseek-v3 model.overrides.num_hidden_layers=6 cluster.preset=h200-sxm cluster.nodes=2 cluster.gpus_per_node=8 parallel.ep=16 "
     "workload.seq_len=4096 workload.mode=lora precision.parameters=bf16 workload.routing.kind=zipf workload.routing.exponent=0.8",
     3},
    {"model.config=deepseek-v3 model.overrides.num_hidden_layers=5 cluster.preset=ascend-910c cluster.nodes=2 cluster.gpus_per_node=8 "
     "parallel.ep=16 workload.seq_len=4096 workload.mode=lora precision.parameters=bf16 workload.routing.kind=zipf moe.capacity_factor=1.25",
     2},
    {"model.config=llama-3.1-8b cluster.preset=a100-sxm-40 cluster.gpus_per_node=8 workload.seq_len=16384 precision.parameters=bf16 "
     "loss.seq_chunk=fit",
     4},
};

/* Bytes of all sizes. */
static int64_t draw_bytes(uint64_t seed, uint64_t at, int least_bit, int most_bit)
{
    int64_t power = (int64_t)1 << (least_bit + (int)rng_below(seed, RNG_TEST, at, (uint64_t)(most_bit - least_bit)));
    return power + (int64_t)rng_below(seed, RNG_TEST, at + 1, (uint64_t)power);
}

/* hbm -1: "fit". What entries take on any rank is within the budgets, and all of it fits. */
static double budgeted_step_s(RunCache *cache, const char *rest, int64_t hbm, int64_t ddr)
{
    GError *error = NULL;
    g_autofree char *given = hbm < 0 ? g_strdup("fit") : g_strdup_printf("%" G_GINT64_FORMAT, hbm);
    g_autofree char *memory = g_strdup_printf("memory.recompute=selective memory.cache.hbm_bytes=%s memory.cache.ddr_bytes=%" G_GINT64_FORMAT, given, ddr);
    g_autoptr(Plan) plan = plan_of(memory, rest);
    g_autoptr(Result) result = run_plan_cached(cache, plan, NULL, &error);
    check_no_error(error);
    assert_true(result->fits && (hbm < 0 || result->tiers->hbm_held_bytes <= hbm) && result->tiers->ddr_held_bytes <= ddr);
    return result->step_time_s;
}

/* More budget of either kind, or of both, a byte or a lot, never makes the step slower. */
static void test_monotone(void **state)
{
    enum { BYTE = 1, MIB = 1 << 20, GIB = 1 << 30 };
    static const int64_t more[] = {BYTE, MIB, GIB, -1}; /* -1: drawn */
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(budgeted); m++) {
        g_autoptr(RunCache) cache = run_cache_new();
        for (uint64_t seed = 0; seed < (uint64_t)budgeted[m].n_draws; seed++) {
            const char *rest = budgeted[m].plan;
            int64_t hbm = seed % 4 == 3 ? 0 : draw_bytes(seed, 0, 20, 36), ddr = seed % 4 == 2 ? 0 : draw_bytes(seed, 2, 20, 38);
            int64_t step = more[seed % G_N_ELEMENTS(more)], add = step < 0 ? draw_bytes(seed, 4, 24, 36) : step;
            double base = budgeted_step_s(cache, rest, hbm, ddr), hbm_more = budgeted_step_s(cache, rest, hbm + add, ddr);
            double ddr_more = budgeted_step_s(cache, rest, hbm, ddr + add), both = budgeted_step_s(cache, rest, hbm + add, ddr + add);
            double fit = budgeted_step_s(cache, rest, -1, ddr), fit_more = budgeted_step_s(cache, rest, -1, ddr + add);
            assert_true(hbm_more <= base && ddr_more <= base && both <= hbm_more && both <= ddr_more);
            assert_true(fit <= hbm_more && fit_more <= both && fit_more <= fit);
        }
    }
}

/* Loads that are drawn fill budgets on the rank that holds most, which ran over them when even loads were counted; little stays unused. */
static void test_skewed_budgets(void **state)
{
    static const char rest[] = "model.config=deepseek-v3 model.overrides.num_hidden_layers=6 cluster.preset=gb200 cluster.nodes=4 "
                               "cluster.gpus_per_node=4 parallel.ep=16 workload.seq_len=4096 workload.micro_batch=2 workload.mode=lora "
                               "precision.parameters=bf16 workload.routing.kind=zipf workload.routing.exponent=0.8";
    const double gib = 1 << 30;
    (void)state;
    for (int i = 0; i < 2; i++) {
        g_autoptr(Result) result = result_of(i == 0 ? "memory.recompute=selective memory.cache.hbm_bytes=12GiB"
                                                    : "memory.recompute=selective memory.cache.ddr_bytes=8GiB",
                                             rest);
        const ResultTiers *tiers = result->tiers;
        double held = (double)(i == 0 ? tiers->hbm_held_bytes : tiers->ddr_held_bytes);
        double even = (double)(i == 0 ? tiers->hbm_bytes : tiers->ddr_bytes), budget = i == 0 ? 12 * gib : 8 * gib;
        assert_true(result->fits && held <= budget && held > 0.85 * budget && held > 1.1 * even);
        assert_true(tiers->host_peak_bytes <= tiers->ddr_held_bytes);
        assert_true(i == 1 || result->at_peak[MEM_CACHE] <= tiers->hbm_held_bytes + 512 * tiers->entries); /* blocks */
        assert_int_equal(result->warnings->len, 0);
    }
    g_autoptr(Result) played = result_of("memory.recompute=selective memory.cache.policy=lru memory.cache.hbm_bytes=12GiB", rest);
    assert_true((double)played->tiers->hbm_held_bytes > 12 * gib && played->warnings->len == 1);
    assert_non_null(strstr(g_ptr_array_index(played->warnings, 0), "memory.cache.hbm_bytes 12 GiB is what a policy fills at even loads"));
}

/* More DDR than the host has is said, and is used no further. */
static void test_beyond_host(void **state)
{
    static const char rest[] = K3_LORA "cluster.preset=gb200 cluster.nodes=32 cluster.gpus_per_node=4";
    (void)state;
    g_autoptr(Result) result = result_of("memory.recompute=selective memory.cache.ddr_bytes=5000GiB", rest);
    g_autoptr(GString) warnings = g_string_new(NULL);
    for (guint i = 0; i < result->warnings->len; i++) {
        g_string_append(warnings, g_ptr_array_index(result->warnings, i));
    }
    assert_non_null(strstr(warnings->str, "memory.cache.ddr_bytes 4.88 TiB is more than"));
    assert_true(result->fits && result->tiers->ddr_held_bytes <= result->tiers->host_capacity_bytes);
}

/* ---- what a plan leaves open ---- */

/* A budget that fits is as large as there is room, or holds everything, and no pure mode and no smaller budget that fits is faster. */
static void test_fit(void **state)
{
    static const char *const plans[] = {
        K3_H200,
        K3_GB200_512,
        "model.config=qwen3-30b-a3b cluster.preset=h100-sxm cluster.gpus_per_node=8 parallel.ep=8 workload.seq_len=16384 workload.micro_batch=2",
        "model.config=llama-3.1-8b cluster.preset=h100-sxm cluster.gpus_per_node=8 workload.seq_len=32768 precision.parameters=bf16",
    };
    static const char *const others[] = {
        "memory.recompute=full",
        "memory.recompute=none",
        "memory.recompute=selective memory.cache.hbm_bytes=0",
        "memory.recompute=selective memory.cache.hbm_bytes=4GiB",
        "memory.recompute=selective memory.cache.hbm_bytes=20GiB",
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(plans); i++) {
        g_autoptr(Result) fit = result_of("memory.recompute=selective memory.cache.hbm_bytes=fit", plans[i]);
        int64_t left = fit->capacity_bytes - fit->non_framework_bytes - fit->peak_memory_bytes;
        assert_true(fit->fits && left >= 0);
        assert_true(left < (int64_t)2 << 30 || fit->tiers->hbm_bytes == fit->tiers->hit_bytes);
        for (size_t k = 0; k < G_N_ELEMENTS(others); k++) {
            g_autoptr(Result) other = result_of(others[k], plans[i]);
            assert_true(!other->fits || fit->step_time_s <= other->step_time_s * 1.002);
        }
    }
}

/* The chunk of the loss that is found is as fast, with what it leaves to the cache, as any that is given. */
static void test_fit_chunk(void **state)
{
    static const char rest[] =
        "model.config=llama-3.1-8b cluster.preset=a100-sxm-40 cluster.gpus_per_node=8 workload.seq_len=32768 precision.parameters=bf16";
    static const char cache[] = "memory.recompute=selective memory.cache.hbm_bytes=fit loss.seq_chunk=";
    (void)state;
    g_autofree char *open = g_strconcat(cache, "fit", NULL);
    g_autoptr(Result) found = result_of(open, rest);
    assert_true(found->fits && found->seq_chunk > 0);
    for (int chunk = 0; chunk <= 32768; chunk = chunk > 0 ? 2 * chunk : 1024) {
        g_autofree char *memory = g_strdup_printf("%s%d", cache, chunk);
        g_autoptr(Result) given = result_of(memory, rest);
        assert_true(!given->fits || found->step_time_s <= given->step_time_s * 1.0001);
        assert_true(chunk != found->seq_chunk || given->tiers->hbm_budget_bytes > 0);
    }
}

/* The report names the budgets of the plan, or what was found, whatever trials went by; seconds are of a step, entries of a micro-batch. */
static void test_report(void **state)
{
    static const char rest[] = "model.config=qwen3-30b-a3b cluster.preset=h200-sxm cluster.gpus_per_node=8 parallel.ep=8 "
                               "workload.routing.kind=zipf workload.routing.exponent=0.5";
    static const struct {
        const char *cache;
        int64_t hbm_bytes, ddr_bytes; /* -1: found */
    } rows[] = {
        {"hbm_bytes=45MiB", 45 << 20, 0},
        {"hbm_bytes=900GiB", (int64_t)900 << 30, 0},
        {"hbm_bytes=1GiB memory.cache.ddr_bytes=4GiB", (int64_t)1 << 30, (int64_t)4 << 30},
        {"hbm_bytes=2GiB memory.cache.policy=belady", (int64_t)2 << 30, 0},
        {"hbm_bytes=fit", -1, 0},
        {"hbm_bytes=fit memory.cache.policy=cost_benefit", -1, 0},
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *once = g_strconcat("memory.recompute=selective workload.global_batch=8 memory.cache.", rows[i].cache, NULL);
        g_autofree char *thrice = g_strconcat("memory.recompute=selective workload.global_batch=24 memory.cache.", rows[i].cache, NULL);
        g_autoptr(Result) one = result_of(once, rest), three = result_of(thrice, rest);
        const ResultTiers *tiers = one->tiers;
        assert_true(rows[i].hbm_bytes < 0 ? tiers->hbm_budget_bytes > 0 : tiers->hbm_budget_bytes == rows[i].hbm_bytes);
        check_int(tiers->ddr_budget_bytes, rows[i].ddr_bytes);
        if (three->tiers->hbm_hits == tiers->hbm_hits && three->tiers->ddr_hits == tiers->ddr_hits) { /* the same is kept */
            check_int(three->tiers->entries, tiers->entries);
            check_close(three->tiers->saved_s, 3 * tiers->saved_s, 1e-12);
            check_close(three->tiers->recomputed_s, 3 * tiers->recomputed_s, 1e-12);
        }
        check_close(three->tiers->saved_s + three->tiers->recomputed_s, 3 * (tiers->saved_s + tiers->recomputed_s), 1e-9);
    }
}

/* Where all of a super-node's DDR is one pool, ranks with hot experts take what others leave; elsewhere each has its own. */
static void test_pooled(void **state)
{
    static const char rest[] = " parallel.ep=64 workload.mode=lora workload.seq_len=8192 memory.recompute=selective "
                               "memory.cache.ddr_bytes=300GiB workload.routing.kind=zipf workload.routing.exponent=1 model.config=kimi-k3";
    (void)state;
    g_autoptr(Result) pool = result_of("cluster.preset=ascend-910c cluster.nodes=48 cluster.gpus_per_node=8", rest);
    g_autoptr(Result) own = result_of("cluster.preset=gb200 cluster.nodes=32 cluster.gpus_per_node=4", rest);
    assert_true(pool->fits && pool->tiers->host_peak_bytes > pool->tiers->host_capacity_bytes);
    assert_true(pool->tiers->host_mean_bytes > 0 && pool->tiers->host_mean_bytes <= pool->tiers->host_capacity_bytes);
    assert_true(own->fits && own->tiers->host_peak_bytes <= own->tiers->host_capacity_bytes);
    check_int(own->tiers->host_mean_bytes, own->tiers->host_peak_bytes);
}

/* What was found makes the plan of a proof: the program that computes the right thing is the one that is timed. */
static void test_close(void **state)
{
    (void)state;
    GError *error = NULL;
    g_autoptr(Plan) plan = plan_of("memory.recompute=selective memory.cache.hbm_bytes=fit memory.cache.ddr_bytes=1GiB loss.seq_chunk=fit",
                                   "model.config=qwen3-30b-a3b cluster.preset=h100-sxm cluster.gpus_per_node=8 parallel.ep=8 "
                                   "workload.seq_len=8192");
    g_autoptr(Result) found = run_plan(plan, NULL, &error);
    assert_true(plan_is_open(plan) && trials_close(plan, &error));
    assert_false(plan_is_open(plan));
    g_autoptr(Result) again = run_plan(plan, NULL, &error);
    check_no_error(error);
    check_close(again->step_time_s, found->step_time_s, 0);
    check_int(again->peak_memory_bytes, found->peak_memory_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_k3_gain),    cmocka_unit_test(test_yielding),       cmocka_unit_test(test_expert_gathers),
        cmocka_unit_test(test_monotone),   cmocka_unit_test(test_skewed_budgets), cmocka_unit_test(test_beyond_host),
        cmocka_unit_test(test_fit),        cmocka_unit_test(test_fit_chunk),      cmocka_unit_test(test_close),
        cmocka_unit_test(test_pooled),     cmocka_unit_test(test_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
