/*
 * KDA's core at T = 4096, d = 128, one head: the chunked form against the recurrent one, forward, backward and both, in
 * float32. Least CPU time of several runs each, and the rate of each form's own FLOPs.
 *
 * The recurrent form is written as well as the chunked one: two passes over the state per row, vectors along columns.
 * It does 7 operations per element of the state and row; chunks of 64 do 8, as matrix products. So on a processor that
 * keeps the state (64 KiB) in its caches, chunks gain what products gain over passes through the second-level cache,
 * and no more: the rates say how much is left. Ten times, which is what a GPU gains that would go through memory for
 * every row, would ask of products several times this processor's peak.
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

/* Seconds and FLOPs of both forms in one direction. */
typedef struct Forms {
    double recurrent_s, recurrent_flops, chunked_s, chunked_flops;
} Forms;

static void print_ratio(const char *what, const Forms *forms)
{
    printf("KDA %-9s recurrent %6.1f ms (%4.1f GFLOP/s), chunked %6.1f ms (%4.1f GFLOP/s): %4.1f times\n", what,
           forms->recurrent_s * 1e3, forms->recurrent_flops / forms->recurrent_s * 1e-9, forms->chunked_s * 1e3,
           forms->chunked_flops / forms->chunked_s * 1e-9, forms->recurrent_s / forms->chunked_s);
}

/* Per row and element of the state: decay 1, read 2, write 2, read 2; backward 10 to replay twice, and 16. */
static void print_all(const Times *recurrent, const Times *chunked, const DeltaShape *shape)
{
    RowCounts rows = {.rows = {[ROWS_TOKENS] = N, [ROWS_SEQUENCES] = 1}, .seq_len = N};
    DeltaSums sums = delta_sums(&rows, DELTA_CHUNK);
    double elements = (double)N * D * D;
    Forms forward = {recurrent->forward, 7 * elements, chunked->forward, delta_forward_flops(shape, &sums)};
    Forms backward = {recurrent->backward, 26 * elements, chunked->backward, delta_backward_flops(shape, &sums)};
    Forms both = {forward.recurrent_s + backward.recurrent_s, forward.recurrent_flops + backward.recurrent_flops,
                  forward.chunked_s + backward.chunked_s, forward.chunked_flops + backward.chunked_flops};
    print_ratio("forward", &forward);
    print_ratio("backward", &backward);
    print_ratio("both", &both);
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
    print_all(&best[0], &best[1], &shape);
    delta_arrays_clear_f32(&arrays);
    delta_arrays_clear_f32(&out);
    return 0;
}
