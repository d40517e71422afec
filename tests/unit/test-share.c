#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/des/share.h"

enum { COMPUTE, COMM, COPY, N_CLASSES };

/* Computing goes at 3/4 beside communication, 7/8 beside a copy; those two halve each other. */
static double rate(const void *data, guint32 running, int cls)
{
    (void)data;
    gboolean comm = running >> COMM & 1, copy = running >> COPY & 1;
    if (cls == COMPUTE) {
        return (comm ? 0.75 : 1) * (copy ? 0.875 : 1);
    }
    return comm && copy ? 0.5 : 1;
}

enum { JOBS_MAX = 12 };

typedef struct Job {
    int cls;
    SimTime start_ns, duration_ns;
    SimTime end_ns;  /* as simulated */
    SimTime free_ns; /* leaves the device this long after its end */
    LinkLoad load;
    int place;
} Job;

typedef struct Bench {
    SimEngine *engine;
    Share *share;
    Job jobs[JOBS_MAX];
    int n_jobs;
} Bench;

static void leave(void *self, uint64_t arg)
{
    Bench *bench = self;
    share_stop(bench->share, bench->jobs[arg].place);
}

static void on_done(void *self, uint64_t arg)
{
    Bench *bench = self;
    Job *job = &bench->jobs[arg];
    job->end_ns = sim_engine_now(bench->engine);
    if (job->free_ns == 0) {
        leave(self, arg);
    } else {
        sim_engine_at(bench->engine, job->end_ns + job->free_ns, leave, bench, arg);
    }
}

static void start(void *self, uint64_t arg)
{
    Bench *bench = self;
    Job *job = &bench->jobs[arg];
    ShareWork work = {job->cls, job->duration_ns, job->load};
    job->place = share_start(bench->share, &work, arg);
}

static void run(Bench *bench)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(ShareLaw) law = share_law_new(N_CLASSES, rate, NULL);
    g_autoptr(Share) share = share_new(engine, law, on_done, bench);
    g_autoptr(GError) error = NULL;
    bench->engine = engine;
    bench->share = share;
    for (int i = 0; i < bench->n_jobs; i++) {
        bench->jobs[i].end_ns = -1;
        sim_engine_at(engine, bench->jobs[i].start_ns, start, bench, (uint64_t)i);
    }
    assert_true(sim_engine_run(engine, &error));
    check_no_error(error);
}

static void test_alone(void **state)
{
    (void)state;
    Bench bench = {.n_jobs = 3,
                   .jobs = {{COMPUTE, 10, 1000000007, 0, 0, 0, 0}, {COMM, 2000000000, 1, 0, 0, 0, 0}, {COPY, 5, 0, 0, 0, 0, 0}}};
    run(&bench);
    check_int(bench.jobs[0].end_ns, 1000000017);
    check_int(bench.jobs[1].end_ns, 2000000001);
    check_int(bench.jobs[2].end_ns, 5);
}

static void test_overlap(void **state)
{
    (void)state;
    /* 100 ns alone, then 200 ns at 3/4 during the communication, then the rest of 400 - 100 - 150. */
    Bench bench = {.n_jobs = 2, .jobs = {{COMPUTE, 0, 400, 0, 0, 0, 0}, {COMM, 100, 200, 0, 0, 0, 0}}};
    run(&bench);
    check_int(bench.jobs[1].end_ns, 300);
    check_int(bench.jobs[0].end_ns, 450);
}

static void test_same_class(void **state)
{
    (void)state;
    /* Two of a class halve each other: 100 alone, then both until the second is through, then alone again. */
    Bench bench = {.n_jobs = 2, .jobs = {{COMM, 0, 300, 0, 0, 0, 0}, {COMM, 100, 50, 0, 0, 0, 0}}};
    run(&bench);
    check_int(bench.jobs[1].end_ns, 200);
    check_int(bench.jobs[0].end_ns, 350);
}

static void test_held(void **state)
{
    (void)state;
    /* An ended communication stays for 100 ns more and goes on slowing the computation. */
    Bench bench = {.n_jobs = 2, .jobs = {{COMPUTE, 0, 300, 0, 0, 0, 0}, {COMM, 0, 100, 0, 100, 0, 0}}};
    run(&bench);
    check_int(bench.jobs[1].end_ns, 100);
    check_int(bench.jobs[0].end_ns, 350);
}

/* The same by steps of a 64th of a nanosecond. */
static void brute_force(const Bench *bench, double *ends)
{
    double remaining[JOBS_MAX];
    double now = 0, step = 1.0 / 64;
    int n_left = bench->n_jobs;
    for (int i = 0; i < bench->n_jobs; i++) {
        remaining[i] = (double)bench->jobs[i].duration_ns;
        ends[i] = -1;
    }
    while (n_left > 0) {
        guint32 running = 0;
        int n[N_CLASSES] = {0};
        for (int i = 0; i < bench->n_jobs; i++) {
            if ((double)bench->jobs[i].start_ns <= now && ends[i] < 0) {
                running |= 1u << bench->jobs[i].cls;
                n[bench->jobs[i].cls]++;
            }
        }
        now += step;
        for (int i = 0; i < bench->n_jobs; i++) {
            int cls = bench->jobs[i].cls;
            if ((double)bench->jobs[i].start_ns <= now - step && ends[i] < 0) {
                remaining[i] -= step * rate(NULL, running, cls) / n[cls];
                if (remaining[i] <= 1e-9) {
                    ends[i] = now;
                    n_left--;
                }
            }
        }
    }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        Bench bench = {.n_jobs = 2 + (int)rng_below(1, RNG_TEST, round, JOBS_MAX - 1)};
        double ends[JOBS_MAX];
        for (int i = 0; i < bench.n_jobs; i++) {
            uint64_t draw = round * 100 + (uint64_t)i;
            bench.jobs[i].cls = (int)rng_below(2, RNG_TEST, draw, N_CLASSES);
            bench.jobs[i].start_ns = (SimTime)rng_below(3, RNG_TEST, draw, 300);
            bench.jobs[i].duration_ns = 1 + (SimTime)rng_below(4, RNG_TEST, draw, 200);
        }
        run(&bench);
        brute_force(&bench, ends);
        for (int i = 0; i < bench.n_jobs; i++) {
            if (fabs((double)bench.jobs[i].end_ns - ends[i]) > bench.n_jobs) {
                fail_msg("round %d, job %d: ends at %d, by brute force at %f", (int)round, i, (int)bench.jobs[i].end_ns,
                         ends[i]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone), cmocka_unit_test(test_overlap), cmocka_unit_test(test_same_class),
        cmocka_unit_test(test_held),  cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
