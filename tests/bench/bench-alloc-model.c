/* Takes and gives of the sizes of a training step, 400 blocks alive. */
#include "tests/bench/bench.h"

#include "sim/base/rng.h"
#include "sim/mem/alloc-model.h"

int main(void)
{
    enum { N_LIVE = 400, N_DRAWS = 1 << 16, N_ROUNDS = 2000000 };
    g_autoptr(AllocModel) model = alloc_model_new(1, 0);
    AllocBlock live[N_LIVE] = {0};
    int64_t *sizes = g_new(int64_t, N_DRAWS);
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        int64_t order = (int64_t)1 << rng_below(1, RNG_TEST, i, 28);
        sizes[i] = order + (int64_t)rng_below(2, RNG_TEST, i, (uint64_t)order);
    }
    double start_s = bench_cpu_s();
    for (int i = 0; i < N_ROUNDS; i++) {
        AllocBlock *block = &live[sizes[i % N_DRAWS] % N_LIVE];
        alloc_model_give(model, *block);
        *block = alloc_model_take(model, 0, sizes[i % N_DRAWS]);
    }
    bench_print("allocation model, takes and gives", 2.0 * N_ROUNDS, bench_cpu_s() - start_s, 2e6);
    g_free(sizes);
    return 0;
}
