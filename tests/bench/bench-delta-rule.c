/*
 * KDA's core at T = 4096, d = 128, one head: the chunked form against the recurrent one, forward, backward and both
 * (target: 10 times as fast), in float32. The recurrent form is plain loops over the state, row after row, as the
 * compiler vectorises them; it reads the same arrays. Least CPU time of several runs each.
 */
#define MOESIM_REAL_F32

#include <math.h>
#include <stdlib.h>

#include "models/delta-heads.h"
#include "sim/base/rng.h"
#include "tests/bench/bench.h"

enum { N = 4096, D = 128, REPEATS = 5 };

static float draw(int64_t i, int stream)
{
    return (float)rng_uniform((uint64_t)stream, RNG_TEST, (uint64_t)i) - 0.5f;
}

/* Unit keys, decays between exp(-5) and 1 as the bounded gate makes them. */
static void fill(DeltaArrays *arrays)
{
    for (int64_t i = 0; i < N * D; i++) {
        arrays->q[i] = draw(i, 1) / sqrtf(D / 12.0f);
        arrays->k[i] = draw(i, 2) / sqrtf(D / 12.0f);
        arrays->v[i] = draw(i, 3);
        arrays->w[i] = expf(-5 / (1 + expf(8 * draw(i, 4) + 2)));
    }
    for (int64_t t = 0; t < N; t++) {
        arrays->beta[t] = 0.5f + draw(t, 5);
    }
}

typedef struct Times {
    double forward, backward;
} Times;

static Times run_once(DeltaArrays *arrays, const DeltaUpstream *up, const DeltaGradients *grads, gboolean chunked)
{
    double start = bench_cpu_s();
    if (chunked) {
        delta_pairs_forward_f32(&arrays->rule, arrays->a, arrays->p);
        delta_chunk_forward_f32(&arrays->rule, arrays->o, NULL);
    } else {
        delta_recurrent_forward_f32(&arrays->rule, arrays->o, NULL);
    }
    double middle = bench_cpu_s();
    if (chunked) {
        delta_chunk_backward_f32(&arrays->rule, up, grads);
        delta_pairs_backward_f32(&arrays->rule, grads);
        delta_decay_finish_f32(&arrays->rule, grads->g);
    } else {
        delta_recurrent_backward_f32(&arrays->rule, up, grads);
    }
    return (Times){middle - start, bench_cpu_s() - middle};
}

static void print_ratio(const char *what, double recurrent, double chunked)
{
    printf("KDA %-9s recurrent %7.1f ms, chunked %6.1f ms: %5.1f times (target 10)\n", what, recurrent * 1e3,
           chunked * 1e3, recurrent / chunked);
}

int main(void)
{
    DeltaShape shape = {1, 1, D, D, DELTA_CHUNK, TRUE};
    DeltaArrays arrays, out;
    Times best[2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};
    delta_arrays_init_f32(&arrays, &shape, N);
    delta_arrays_init_f32(&out, &shape, N);
    fill(&arrays);
    DeltaUpstream up = {arrays.v, NULL};
    DeltaGradients grads = {out.q, out.k, out.w, out.v, out.beta, NULL, out.a, out.p};
    for (int i = 0; i < 2 * REPEATS; i++) {
        Times times = run_once(&arrays, &up, &grads, i % 2);
        best[i % 2].forward = MIN(best[i % 2].forward, times.forward);
        best[i % 2].backward = MIN(best[i % 2].backward, times.backward);
    }
    print_ratio("forward", best[0].forward, best[1].forward);
    print_ratio("backward", best[0].backward, best[1].backward);
    print_ratio("both", best[0].forward + best[0].backward, best[1].forward + best[1].backward);
    delta_arrays_clear_f32(&arrays);
    delta_arrays_clear_f32(&out);
    return 0;
}
