/*
 * Plans read from the draft of the plan before: the same plan, or the same mistake, as reading all of it gives. Plans follow
 * one another as in a sweep, some members at a time those of another drawn plan, legal together or not.
 */
#include "tests/check.h"

#include <string.h>

#include "sim/base/json-read.h"
#include "sim/base/rng.h"
#include "workloads/draw.h"
#include "workloads/plan/plan.h"
#include "workloads/sweep/sweep.h"

enum { SEEDS = 20, STEPS = 16, OTHERS = 24 };

static const char *const members[] = {"$schema", "model",     "cluster",   "parallel", "workload", "moe",
                                      "memory",  "precision", "optimizer", "kernels",  "loss",     "lost"};

/* What a plan says, without what it points at. */
static Plan bare(const Plan *plan)
{
    Plan copy;
    memcpy(&copy, plan, sizeof copy);
    copy.extra_refs = 0;
    copy.owner = NULL;
    copy.name = NULL;
    copy.model = NULL;
    copy.cluster = NULL;
    copy.routing_order = NULL;
    copy.routing_loads = NULL;
    copy.warnings = NULL;
    return copy;
}

static void check_same(const Plan *drafted, const Plan *whole)
{
    Plan a = bare(drafted), b = bare(whole);
    assert_memory_equal(&a, &b, sizeof a);
    check_string(drafted->model->name, whole->model->name);
    check_int(drafted->model->n_layers, whole->model->n_layers);
    check_string(drafted->cluster->device->name, whole->cluster->device->name);
    check_int(drafted->cluster->n_ranks, whole->cluster->n_ranks);
    assert_true((drafted->routing_order != NULL) == (whole->routing_order != NULL));
    assert_true((drafted->routing_loads != NULL) == (whole->routing_loads != NULL));
    check_int(drafted->warnings->len, whole->warnings->len);
}

/* Sets or removes some members of the plan; values are handed on as they are, as a sweep hands them on. */
static void turn(json_t *plan, json_t *const *others, uint64_t seed, uint64_t step)
{
    json_t *other = others[rng_below(seed, RNG_TEST, 4 * step, OTHERS)];
    uint64_t n = 1 + rng_below(seed, RNG_TEST, 4 * step + 1, 3);
    for (uint64_t i = 0; i < n; i++) {
        const char *key = members[rng_below(seed, RNG_TEST, 1000 * (i + 1) + step, G_N_ELEMENTS(members))];
        json_t *value = json_object_get(other, key);
        if (value != NULL) {
            json_object_set(plan, key, value);
        } else if (strcmp(key, "lost") == 0 && rng_below(seed, RNG_TEST, 4 * step + 2, 4) == 0) {
            json_object_set_new(plan, key, json_true()); /* an unknown member */
        } else if (strcmp(key, "model") != 0 && strcmp(key, "cluster") != 0) {
            json_object_del(plan, key);
        }
    }
}

static void test_drafts(void **state)
{
    (void)state;
    int n_legal = 0, n_refused = 0;
    json_t *others[OTHERS];
    for (uint64_t i = 0; i < OTHERS; i++) {
        others[i] = draw_plan(101 + i, NULL);
    }
    g_autoptr(PlanCache) cache = plan_cache_new();
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        g_autoptr(json_t) value = draw_plan(seed, NULL);
        for (uint64_t step = 0; step < STEPS; step++) {
            g_autoptr(GError) error = NULL, want_error = NULL;
            g_autoptr(Plan) drafted = plan_from_json_cached(cache, value, "plan", NULL, &error);
            g_autoptr(Plan) whole = plan_from_json(value, "plan", NULL, &want_error);
            if (whole != NULL) {
                check_no_error(error);
                check_same(drafted, whole);
                n_legal++;
            } else {
                assert_null(drafted);
                check_string(error->message, want_error->message);
                n_refused++;
            }
            turn(value, others, seed, step);
        }
    }
    for (uint64_t i = 0; i < OTHERS; i++) {
        json_decref(others[i]);
    }
    assert_true(n_legal > SEEDS && n_refused > SEEDS);
}

static json_t *plan_schema(void)
{
    g_autofree char *path = check_source_path("reports/schema/plan.schema.json");
    json_t *schema = json_load_file(path, 0, NULL);
    assert_non_null(schema);
    return schema;
}

/* Points of a sweep in any order: the object, or the contradiction, that sweep_plan() gives for each. */
static void test_points(void **state)
{
    (void)state;
    static const char text[] =
        "{\"base\": {\"model\": \"kimi-k3-mini\", \"cluster\": {\"preset\": \"h200-sxm\"}, \"loss\": {\"seq_chunk\": 8},"
        " \"kernels\": \"fused\"},"
        " \"grid\": {\"parallel.ep\": [1, null, 2], \"loss.seq_chunk\": [null, 64], \"moe\": [null, {\"capacity_factor\": 1}, 3],"
        " \"model.overrides.num_hidden_layers\": [null, 4],"
        " \"kernels.linear\": [null, \"eager\"], \"workload.lora.rank\": [null, 8], \"workload.mode\": [\"lora\", null]}}";
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) schema = plan_schema();
    g_autoptr(Sweep) sweep = sweep_parse(text, "s.json", schema, &error);
    check_no_error(error);
    SweepPlans *plans = sweep_plans_new(sweep);
    int n_contradictions = 0;
    for (int64_t i = 0; i < 2 * sweep->n_points; i++) {
        int64_t point = i < sweep->n_points ? i : (int64_t)rng_below(1, RNG_TEST, (uint64_t)i, (uint64_t)sweep->n_points);
        g_autoptr(GError) have_error = NULL, want_error = NULL;
        g_autoptr(json_t) want = sweep_plan(sweep, point, &want_error);
        const json_t *have = sweep_plans_get(plans, point, &have_error);
        if (want != NULL) {
            check_no_error(have_error);
            assert_true(json_equal(have, want));
        } else {
            assert_null(have);
            check_string(have_error->message, want_error->message);
            n_contradictions++;
        }
    }
    assert_true(n_contradictions > 0);
    sweep_plans_free(plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_points),
    };
    return cmocka_run_group_tests_name("plan-drafts", tests, NULL, NULL);
}
