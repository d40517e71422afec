#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/des/engine.h"

typedef struct Diary {
    SimEngine *engine;
    GString *text;
    int n_more; /* events that an event adds at its own time */
} Diary;

static void note(void *self, uint64_t arg)
{
    Diary *diary = self;
    g_string_append_printf(diary->text, "%" G_GINT64_FORMAT ":%c ", sim_engine_now(diary->engine), (char)arg);
}

static void note_and_add(void *self, uint64_t arg)
{
    Diary *diary = self;
    note(self, arg);
    sim_engine_settle(diary->engine, note, diary, 's');
    if (diary->n_more-- > 0) {
        sim_engine_at(diary->engine, sim_engine_now(diary->engine), note_and_add, diary, arg + 1);
    }
}

static void settle_and_add(void *self, uint64_t arg)
{
    Diary *diary = self;
    note(self, arg);
    sim_engine_at(diary->engine, sim_engine_now(diary->engine), note, diary, 'z');
}

static void test_order(void **state)
{
    (void)state;
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    Diary diary = {engine, text, 1};
    sim_engine_at(engine, 5, note, &diary, 'c');
    sim_engine_at(engine, 2, note_and_add, &diary, 'a');
    sim_engine_at(engine, 2, note, &diary, 'x');
    sim_engine_settle(engine, settle_and_add, &diary, 'S');
    assert_true(sim_engine_run(engine, &error));
    check_string(text->str, "0:S 0:z 2:a 2:x 2:b 2:s 2:s 5:c ");
    check_int(sim_engine_n_events(engine), 5);
    check_int(sim_engine_now(engine), 5);
}

static void blocked(void *self, GString *report)
{
    g_string_append(report, self);
}

static void test_deadlock(void **state)
{
    (void)state;
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GError) error = NULL;
    static char quiet[] = "", loud[] = "  nobody comes\n";
    sim_engine_watch(engine, blocked, quiet);
    assert_true(sim_engine_run(engine, &error));
    sim_engine_watch(engine, blocked, loud);
    assert_false(sim_engine_run(engine, &error));
    check_error(&error, MOESIM_ERROR_FAILED, "deadlock: nothing is left to happen at 0 ns, but\n  nobody comes");
}

static void give_up(void *self, uint64_t arg)
{
    sim_engine_fail(self, g_error_new(MOESIM_ERROR, MOESIM_ERROR_INPUT, "reason %d", (int)arg));
}

static void test_failure(void **state)
{
    (void)state;
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(GError) error = NULL;
    sim_engine_at(engine, 1, give_up, engine, 1);
    sim_engine_at(engine, 1, give_up, engine, 2);
    sim_engine_at(engine, 2, give_up, engine, 3);
    assert_false(sim_engine_run(engine, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "reason 1");
    check_int(sim_engine_now(engine), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_failure),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
