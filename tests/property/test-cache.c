/*
 * Caches of results: tiers keep their budgets, the cut is the best set by brute force, and values do not depend on any of it, to
 * the last bit.
 */
#include "tests/property/random-plan.h"

#include <math.h>

#include "models/ops/cross-entropy.h"
#include "workloads/lower/cache-choice.h"
#include "workloads/lower/lower.h"
#include "workloads/lower/tier-cache.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/run.h"
#include "workloads/run/shrink.h"
#include "workloads/run/virtual-ranks.h"

/* ---- tiers ---- */

typedef struct Outcome {
    int64_t hits, hit_bytes;
} Outcome;

/* A random sequence: entries come, and are used in the reverse order, as layers are. */
static Outcome play(CachePolicyKind policy, uint64_t seed, gboolean equal)
{
    int64_t n = 4 + (int64_t)rng_below(seed, RNG_TEST, 0, 40), hbm = (int64_t)rng_below(seed, RNG_TEST, 1, 4000);
    int64_t ddr = (int64_t)rng_below(seed, RNG_TEST, 2, 6000), most;
    g_autoptr(TierCache) cache = tier_cache_new(policy, hbm, ddr);
    Outcome outcome = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = equal ? 400 : 1 + (int64_t)rng_below(seed, RNG_TEST, 10 + 2 * (uint64_t)i, 900);
        CacheEntry entry = {bytes, rng_uniform(seed, RNG_TEST, 11 + 2 * (uint64_t)i), i, 2 * n - i};
        check_int(tier_cache_put(cache, &entry), i);
        assert_true(tier_cache_bytes(cache, CACHE_HBM, &most) <= hbm && most <= hbm);
        assert_true(tier_cache_bytes(cache, CACHE_DDR, &most) <= ddr && most <= ddr);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        int place = tier_cache_place(cache, (int)i);
        assert_int_equal(tier_cache_take(cache, (int)i), place);
        assert_int_equal(tier_cache_place(cache, (int)i), CACHE_NOWHERE);
        outcome.hits += place != CACHE_NOWHERE;
    }
    check_int(tier_cache_bytes(cache, CACHE_HBM, &most), 0);
    check_int(tier_cache_bytes(cache, CACHE_DDR, &most), 0);
    return outcome;
}

static void test_tiers(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        gboolean equal = seed % 2 == 0;
        int64_t bound = play(CACHE_POLICY_belady, seed, equal).hits;
        for (int policy = 0; policy < N_CACHE_POLICIES; policy++) {
            int64_t hits = play((CachePolicyKind)policy, seed, equal).hits;
            assert_true(!equal || hits <= bound);
        }
    }
}

static void test_policies(void **state)
{
    (void)state;
    const CacheEntry dear = {10, 5, 0, 9}, cheap = {10, 1, 1, 8};
    assert_true(cache_policy(CACHE_POLICY_lru)->worth(&dear) < cache_policy(CACHE_POLICY_lru)->worth(&cheap));
    assert_true(cache_policy(CACHE_POLICY_cost_benefit)->worth(&dear) > cache_policy(CACHE_POLICY_cost_benefit)->worth(&cheap));
    assert_true(cache_policy(CACHE_POLICY_belady)->worth(&dear) < cache_policy(CACHE_POLICY_belady)->worth(&cheap));
    check_string(cache_policy(CACHE_POLICY_lru)->id, "lru");
}

/* ---- the cut ---- */

enum { CUT_OPS = 9 };

static CutLayer *random_layer(uint64_t seed)
{
    CutLayer *layer = g_new0(CutLayer, 1);
    uint64_t at = 100;
    layer->n_ops = CUT_OPS;
    layer->bytes = g_new0(int64_t, CUT_OPS);
    layer->seconds = g_new0(double, CUT_OPS);
    layer->needed = g_new0(guint8, CUT_OPS);
    layer->experts = g_new0(guint8, CUT_OPS);
    layer->inputs = g_new0(guint8, CUT_OPS * CUT_OPS);
    layer->gather_seconds = (double)rng_below(seed, RNG_TEST, at++, 30) * 1e-3;
    for (int o = 0; o < CUT_OPS; o++) {
        layer->bytes[o] = (int64_t)rng_below(seed, RNG_TEST, at++, 50);
        layer->seconds[o] = (double)rng_below(seed, RNG_TEST, at++, 40) * 1e-3;
        layer->needed[o] = rng_below(seed, RNG_TEST, at++, 2) == 0;
        layer->experts[o] = rng_below(seed, RNG_TEST, at++, 3) == 0;
        for (int p = 0; p < o; p++) {
            layer->inputs[o * CUT_OPS + p] = rng_below(seed, RNG_TEST, at++, 3) == 0;
        }
    }
    return layer;
}

static double cost_of(const CutLayer *layer, const guint8 *keep, double price)
{
    guint8 runs[CUT_OPS];
    double cost = cut_runs(layer, keep, runs);
    for (int o = 0; o < CUT_OPS; o++) {
        cost += keep[o] ? price * (double)layer->bytes[o] : 0;
    }
    return cost;
}

/* Every set of operators against the cut's, at several prices; and the hull holds the cut's points. */
static void test_cut(void **state)
{
    static const double prices[] = {0, 1e-5, 1e-4, 4e-4, 1e-3, 5e-3};
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        CutLayer *layer = random_layer(seed);
        for (size_t k = 0; k < G_N_ELEMENTS(prices); k++) {
            CutPoint point;
            double best = HUGE_VAL;
            cut_solve(layer, prices[k], &point);
            for (unsigned set = 0; set < 1u << CUT_OPS; set++) {
                guint8 keep[CUT_OPS];
                gboolean legal = TRUE;
                for (int o = 0; o < CUT_OPS; o++) {
                    keep[o] = set >> o & 1u;
                    legal = legal && (!keep[o] || layer->bytes[o] > 0);
                }
                best = legal ? fmin(best, cost_of(layer, keep, prices[k])) : best;
            }
            check_close(cost_of(layer, point.keep, prices[k]), best, 1e-9);
            g_free(point.keep);
        }
        GArray *hull = cut_hull(layer);
        for (guint i = 1; i < hull->len; i++) {
            const CutPoint *a = &g_array_index(hull, CutPoint, i - 1), *b = a + 1;
            assert_true(b->bytes > a->bytes && b->seconds < a->seconds);
        }
        g_array_unref(hull);
        cut_layer_free(layer);
    }
}

/* ---- values ---- */

static Plan *plan_of(const char *memory, const char *rest)
{
    GError *error = NULL;
    g_autofree char *words = g_strconcat(memory, " ", rest, NULL);
    Plan *plan = plan_of_words(words, &error);
    check_no_error(error);
    return plan;
}

/* Parameters of a reduced model, by layer. */
typedef struct Values {
    const ModelGraph *graphs;
    GPtrArray **params;
} Values;

static const Graph *graph_of(const ModelGraph *graphs, int64_t layer)
{
    return layer < 0 ? graphs->embedding : layer == graphs->n_layers ? graphs->head : model_graph_layer(graphs, layer);
}

static void free_tensor(void *tensor)
{
    tensor_free(tensor);
}

static void values_init(Values *values, const ModelGraph *graphs)
{
    uint64_t draw = 0;
    *values = (Values){graphs, g_new0(GPtrArray *, graphs->n_layers + 2)};
    for (int64_t layer = -1; layer <= graphs->n_layers; layer++) {
        const Graph *graph = graph_of(graphs, layer);
        values->params[layer + 1] = g_ptr_array_new_with_free_func(free_tensor);
        for (guint p = 0; p < graph->params->len; p++) {
            const GraphParam *param = graph_param(graph, (int)p);
            Tensor *tensor = tensor_new(TENSOR_F64, param->n_dims, param->dims);
            for (int64_t i = 0; i < tensor_numel(tensor); i++) {
                tensor_set(tensor, i, 0.3 * rng_normal(7, RNG_VALUES, draw++) + (param->role == PARAM_VECTOR ? 0.5 : 0));
            }
            g_ptr_array_add(values->params[layer + 1], tensor);
        }
    }
}

static void values_clear(Values *values)
{
    for (int64_t i = 0; i < values->graphs->n_layers + 2; i++) {
        g_ptr_array_unref(values->params[i]);
    }
    g_free(values->params);
}

static const Tensor *source_param(void *self, int64_t layer, int param)
{
    const Values *values = self;
    return g_ptr_array_index(values->params[layer + 1], (guint)param);
}

static void collect(const VirtualRanks *world, const ModelGraph *graphs, GArray *numbers)
{
    for (int64_t layer = -1; layer <= graphs->n_layers; layer++) {
        for (guint p = 0; p < graph_of(graphs, layer)->params->len; p++) {
            for (int part = VIRTUAL_VALUE; part <= VIRTUAL_GRAD; part++) {
                g_autoptr(Tensor) tensor = virtual_ranks_param(world, (VirtualPart)part, 0, layer, (int)p);
                if (tensor != NULL) {
                    g_array_append_vals(numbers, tensor->data, (guint)tensor_numel(tensor));
                }
            }
        }
    }
}

/* Loss, parameters and gradients after two steps. */
static GArray *run_values(Plan *plan)
{
    GError *error = NULL;
    ShrinkReport report;
    shrink_plan(plan, &report);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
    int64_t n_ranks = plan->dp_replicate * plan->dp_shard, n = plan->global_batch * plan->seq_len;
    g_autofree Program **programs = g_new(Program *, n_ranks);
    g_autofree int64_t *tokens = g_new(int64_t, n), *labels = g_new(int64_t, n);
    Values values;
    GArray *numbers = g_array_new(FALSE, FALSE, sizeof(double));
    values_init(&values, graphs);
    VirtualSource source = {source_param, &values};
    VirtualOptions options = {.optim = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
    for (int64_t r = 0; r < n_ranks; r++) {
        programs[r] = program;
    }
    g_autoptr(VirtualRanks) world = virtual_ranks_new(plan, graphs, programs, &source, &options);
    for (int64_t step = 0; step < 2; step++) {
        double loss;
        for (int64_t i = 0; i < n; i++) {
            tokens[i] = (int64_t)rng_below(3 + (uint64_t)step, RNG_TOKENS, 2 * (uint64_t)i, (uint64_t)plan->model->vocab);
            labels[i] = (int64_t)rng_below(3 + (uint64_t)step, RNG_TOKENS, 2 * (uint64_t)i + 1, (uint64_t)plan->model->vocab);
        }
        virtual_ranks_step(world, tokens, labels, &loss, &error);
        check_no_error(error);
        g_array_append_val(numbers, loss);
    }
    collect(world, graphs, numbers);
    values_clear(&values);
    return numbers;
}

static const char *const value_models[] = {
    "model.config=qwen3-30b-a3b cluster.preset=h200-sxm cluster.gpus_per_node=4 parallel.ep=2 workload.seq_len=6 workload.global_batch=8",
    "model.config=kimi-k3 cluster.preset=h200-sxm cluster.gpus_per_node=4 parallel.ep=4 workload.seq_len=6 workload.mode=lora "
    "workload.lora.targets=experts",
    "model.config=deepseek-v3 cluster.preset=h200-sxm cluster.gpus_per_node=2 parallel.ep=2 workload.seq_len=6 loss.seq_chunk=4 "
    "kernels=eager",
    "model.config=llama-3.1-8b cluster.preset=h200-sxm cluster.gpus_per_node=1 workload.seq_len=6 precision.parameters=bf16 "
    "parallel.sharding=none parallel.gradient_buffers=false",
};

/* Nothing recomputed or moved, against every policy and offload at random budgets: the same bits. */
static void test_same_bits(void **state)
{
    static const char *const policies[] = {"lru", "cost_benefit", "belady", "choice"};
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(value_models); m++) {
        g_autoptr(Plan) plain = plan_of("memory.recompute=none", value_models[m]);
        g_autoptr(GArray) wanted = run_values(plain);
        assert_true(wanted->len > 100);
        for (uint64_t seed = 0; seed < 14; seed++) {
            g_autofree char *memory =
                seed < 12 ? g_strdup_printf("memory.recompute=selective memory.cache.hbm_bytes=%d memory.cache.ddr_bytes=%d "
                                            "memory.cache.policy=%s memory.cache.window=%d",
                                            (int)rng_below(seed, RNG_TEST, 0, 1 << 22), (int)rng_below(seed, RNG_TEST, 1, 1 << 23),
                                            policies[seed % 4], (int)(1 + seed % 3))
                          : g_strdup_printf("memory.recompute=none memory.offload_fraction=%s memory.offload_min_bytes=1",
                                            seed == 12 ? "0.4" : "1");
            g_autoptr(Plan) plan = plan_of(memory, value_models[m]);
            g_autoptr(GArray) found = run_values(plan);
            check_int(found->len, wanted->len);
            if (memcmp(found->data, wanted->data, wanted->len * sizeof(double)) != 0) {
                print_error("%s %s: other bits\n", memory, value_models[m]);
                fail();
            }
        }
    }
}

/* Groups of experts that draw their own loads decide alike: else those that share parameters would gather differently. */
static void test_groups_agree(void **state)
{
    static const char *const policies[] = {"lru", "cost_benefit", "belady", "choice"};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(policies); i++) {
        g_autofree char *memory = g_strdup_printf("memory.recompute=selective memory.cache.hbm_bytes=20MiB memory.cache.ddr_bytes=40MiB "
                                                  "memory.cache.policy=%s",
                                                  policies[i]);
        GError *error = NULL;
        PlanProof proof;
        ShrinkReport report;
        g_autoptr(Plan) plan = plan_of(memory, "model.config=qwen3-30b-a3b model.overrides.num_hidden_layers=3 cluster.preset=h200-sxm "
                                               "cluster.gpus_per_node=4 parallel.ep=2 workload.seq_len=512");
        shrink_plan(plan, &report);
        plan_proof_run(plan, 1, 1, NULL, &proof, &error);
        check_no_error(error);
        plan_proof_clear(&proof);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),     cmocka_unit_test(test_policies),     cmocka_unit_test(test_cut),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_groups_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
