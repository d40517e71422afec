/*
 * Drawn plans in values. With two arguments, the seeds of the first plan and behind the last one: these plans are proven.
 * Without: the table that they are drawn from, and how a plan that fails is made small.
 */
#include "tests/check.h"

#include "sim/base/json-read.h" /* g_autoptr(json_t) */
#include "workloads/draw.h"
#include "workloads/run/drawn.h"

enum { N_PLANS = 200 }; /* as many as the test suite proves (tests/meson.build) */

static uint64_t first_seed, end_seed;

static void test_proven(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < end_seed; seed++) {
        g_autoptr(json_t) plan = draw_plan(seed, NULL);
        PlanProof proof;
        if (!drawn_prove(plan, 1, NULL, &proof, NULL, NULL)) {
            char *message;
            g_autoptr(json_t) smallest = drawn_minimise(plan, 1, NULL, &message);
            char *text = json_dumps(smallest, JSON_INDENT(2));
            fail_msg("seed %d: %s\nThe smallest plan that fails:\n%s", (int)seed, message, text);
        }
        plan_proof_clear(&proof);
    }
}

/* Every value of every field is in some plan that is proven; a line that never comes through is a mistake in the table. */
static void test_covered(void **state)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    (void)state;
    for (uint64_t seed = 1; seed <= N_PLANS; seed++) {
        char **words;
        g_autoptr(json_t) plan = draw_plan(seed, &words);
        for (int i = 0; i < draw_n_fields(); i++) {
            g_hash_table_add(seen, g_strdup_printf("%s=%s", draw_field(i)->path, words[i] != NULL ? words[i] : ""));
        }
        draw_words_free(words);
    }
    for (int i = 0; i < draw_n_fields(); i++) {
        g_auto(GStrv) values = g_strsplit(draw_field(i)->values, "|", -1);
        for (char **value = values; *value != NULL; value++) {
            g_autofree char *key = g_strdup_printf("%s=%s", draw_field(i)->path, *value);
            if (!g_hash_table_contains(seen, key)) {
                fail_msg("no drawn plan has %s", key);
            }
        }
    }
}

static void test_same_twice(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        g_autoptr(json_t) a = draw_plan(seed, NULL);
        g_autoptr(json_t) b = draw_plan(seed, NULL);
        assert_true(json_equal(a, b));
    }
}

/* Removes every reduce-scatter: gradients of several ranks are no longer summed. */
static void skip_reductions(void *self, Program *program)
{
    (void)self;
    for (guint s = 0; s < program->segments->len; s++) {
        GArray *instrs = program_segment(program, (int)s)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            Instr *instr = &g_array_index(instrs, Instr, i);
            if (instr->kind == INSTR_COLLECTIVE && instr->coll == COLL_reduce_scatter) {
                instr->kind = INSTR_HOST;
            }
        }
    }
}

static int count_leaves(json_t *object)
{
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach(object, key, value) {
        n += json_is_object(value) ? count_leaves(value) : 1;
    }
    return n;
}

/* A fault of sharding needs two ranks, one layer of the simplest model, and nothing else. */
static void test_minimised(void **state)
{
    const PlanMutation mutation = {skip_reductions, NULL};
    int n = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        g_autoptr(json_t) plan = draw_plan(seed, NULL);
        PlanProof proof;
        gboolean holds = drawn_prove(plan, 1, &mutation, &proof, NULL, NULL);
        plan_proof_clear(&proof);
        if (holds || n == 3) {
            continue; /* a rank alone reduces nothing */
        }
        g_autofree char *first = NULL, *second = NULL;
        g_autoptr(json_t) smallest = drawn_minimise(plan, 1, &mutation, &first);
        g_autoptr(json_t) again = drawn_minimise(plan, 1, &mutation, &second);
        assert_true(json_equal(smallest, again));
        assert_string_equal(first, second);
        assert_false(drawn_prove(smallest, 1, &mutation, &proof, NULL, NULL));
        plan_proof_clear(&proof);
        assert_true(drawn_prove(smallest, 1, NULL, &proof, NULL, NULL));
        assert_true(proof.n_ranks <= 2);
        plan_proof_clear(&proof);
        assert_true(count_leaves(smallest) <= 6);
        n++;
    }
    check_int(n, 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest proven[] = {cmocka_unit_test(test_proven)};
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(test_covered),
        cmocka_unit_test(test_same_twice),
        cmocka_unit_test(test_minimised),
    };
    if (argc != 3) {
        return cmocka_run_group_tests(rest, NULL, NULL);
    }
    first_seed = g_ascii_strtoull(argv[1], NULL, 10);
    end_seed = g_ascii_strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(proven, NULL, NULL);
}
