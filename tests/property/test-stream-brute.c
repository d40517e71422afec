/*
 * Random programs of work, tokens and joins on streams without a device, against the plain recurrence: an
 * item starts when the one before it on its stream, and whatever it waits for, has ended.
 */
#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/des/stream.h"

enum { N_STREAMS = 7, N_ITEMS = 600, N_PROGRAMS = 40 };

typedef struct Program {
    Streams *streams;
    uint64_t seed;
    SimTime free_ns[N_STREAMS]; /* by the recurrence: when the stream is through with what was pushed */
    SimTime token_ns[N_ITEMS];
    int n_tokens;
    SimTime want_ns[N_ITEMS], got_ns[N_ITEMS]; /* end of work and joins, by tag */
} Program;

static void on_done(void *self, int stream, uint64_t tag, SimTime start_ns, SimTime end_ns)
{
    (void)stream;
    (void)start_ns;
    Program *program = self;
    program->got_ns[tag] = MAX(program->got_ns[tag], end_ns);
}

static uint64_t draw(const Program *program, uint64_t item, uint64_t what, uint64_t n)
{
    return rng_below(program->seed, RNG_TEST, item * 16 + what, n);
}

static void add_work(Program *program, uint64_t item, int stream)
{
    StreamWork work = {.duration_ns = (SimTime)draw(program, item, 2, 50),
                       .not_before_ns = (SimTime)draw(program, item, 3, 4000),
                       .tag = item};
    SimTime start_ns = MAX(program->free_ns[stream], work.not_before_ns);
    program->free_ns[stream] = start_ns + work.duration_ns;
    program->want_ns[item] = program->free_ns[stream];
    streams_push_work(program->streams, stream, &work);
}

/* Every stream joins; each brings its own duration and earliest start. */
static void add_join(Program *program, uint64_t item, int group)
{
    SimTime start_ns = 0, longest_ns = 0;
    for (int s = 0; s < N_STREAMS; s++) {
        StreamWork work = {.duration_ns = (SimTime)draw(program, item, 4, 40) + s, .tag = item};
        start_ns = MAX(start_ns, program->free_ns[s]);
        longest_ns = MAX(longest_ns, work.duration_ns);
        streams_push_join(program->streams, s, group, 1, &work);
    }
    for (int s = 0; s < N_STREAMS; s++) {
        program->free_ns[s] = start_ns + longest_ns;
    }
    program->want_ns[item] = start_ns + longest_ns;
}

static void add_item(Program *program, uint64_t item, int group)
{
    int stream = (int)draw(program, item, 0, N_STREAMS);
    uint64_t kind = draw(program, item, 1, 20);
    if (kind < 9) {
        add_work(program, item, stream);
    } else if (kind < 13) {
        streams_push_record(program->streams, stream, streams_add_tokens(program->streams, 1));
        program->token_ns[program->n_tokens++] = program->free_ns[stream];
    } else if (kind < 19 && program->n_tokens > 0) {
        int token = (int)draw(program, item, 5, (uint64_t)program->n_tokens);
        streams_push_wait(program->streams, stream, token);
        program->free_ns[stream] = MAX(program->free_ns[stream], program->token_ns[token]);
    } else if (kind == 19) {
        add_join(program, item, group);
    }
}

static void test_programs(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROGRAMS; seed++) {
        g_autoptr(SimEngine) engine = sim_engine_new();
        g_autoptr(GError) error = NULL;
        Program *program = g_new0(Program, 1);
        StreamCallbacks callbacks = {.done = on_done, .self = program};
        program->streams = streams_new(engine, &callbacks);
        program->seed = seed;
        for (int s = 0; s < N_STREAMS; s++) {
            streams_add(program->streams, "s", -1);
        }
        int group = streams_add_group(program->streams, N_STREAMS);
        for (uint64_t item = 0; item < N_ITEMS; item++) {
            add_item(program, item, group);
        }
        sim_engine_run(engine, &error);
        check_no_error(error);
        for (int item = 0; item < N_ITEMS; item++) {
            check_int(program->got_ns[item], program->want_ns[item]);
        }
        for (int token = 0; token < program->n_tokens; token++) {
            check_int(streams_token_ns(program->streams, token), program->token_ns[token]);
        }
        streams_free(program->streams);
        g_free(program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests_name("stream-brute", tests, NULL, NULL);
}
