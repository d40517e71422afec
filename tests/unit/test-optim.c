/*
 * Optimizers: launches of fused kernels against counts of real runs, bytes, and that a stateful update is what its
 * formula says. (Updates are compared step by step with golden cases in test-golden.)
 */
#include "tests/check.h"

#include "models/optim.h"

enum { PIECES_MAX = 256 };

typedef struct Shapes {
    int64_t hidden, layers, heads, kv_heads, width, vocab; /* width: of the dense MLP, or of the shared expert */
    int64_t experts, expert_width;
    int64_t shards, ep;
} Shapes;

typedef struct LaunchCase {
    const char *name;
    Shapes shapes;
    int64_t launches;
} LaunchCase;

/* Launches of the fused AdamW kernel in profiled steps of these models (heads of 128), in order of their parameters. */
static const LaunchCase launch_cases[] = {
    {"llama 16 layers", {2048, 16, 16, 4, 8192, 32000, 0, 0, 1, 1}, 53},
    {"llama 16 layers, 2 ranks", {2048, 16, 16, 4, 8192, 32000, 0, 0, 2, 1}, 27},
    {"llama 8 wide layers", {4096, 8, 32, 8, 14336, 128256, 0, 0, 1, 1}, 134},
    {"llama 8 wide layers, 2 ranks", {4096, 8, 32, 8, 14336, 128256, 0, 0, 2, 1}, 67},
    {"llama 16 wide layers, 2 ranks", {4096, 16, 32, 8, 14336, 128256, 0, 0, 2, 1}, 109},
    {"64 experts and a shared one", {2048, 8, 16, 16, 2816, 102400, 64, 1408, 1, 1}, 245},
    {"64 experts, 2 ranks", {2048, 8, 16, 16, 2816, 102400, 64, 1408, 2, 1}, 123},
    {"64 experts, 2 ranks, EP 2", {2048, 8, 16, 16, 2816, 102400, 64, 1408, 2, 2}, 123},
    {"64 experts, 16 layers, EP 2", {2048, 16, 16, 16, 2816, 102400, 64, 1408, 2, 2}, 235},
    {"8 large experts", {4096, 3, 32, 8, 0, 32000, 8, 14336, 1, 1}, 221},
    {"8 large experts, 2 ranks", {4096, 3, 32, 8, 0, 32000, 8, 14336, 2, 1}, 111},
    {"8 large experts, EP 2", {4096, 6, 32, 8, 0, 32000, 8, 14336, 2, 2}, 214},
};

static void add(OptimPiece *pieces, int *n, int64_t numel, int64_t shards)
{
    assert_true(*n < PIECES_MAX);
    pieces[(*n)++] = (OptimPiece){.numel = (numel + shards - 1) / shards, .param = DTYPE_FP32};
}

static int model_pieces(const Shapes *s, OptimPiece *pieces)
{
    int n = 0;
    int64_t q = s->heads * 128 * s->hidden, k = s->kv_heads * 128 * s->hidden;
    add(pieces, &n, s->vocab * s->hidden, s->shards);
    for (int64_t i = 0; i < s->layers; i++) {
        const int64_t dense[] = {s->hidden, s->hidden, q, k, k, q, s->experts * s->hidden};
        for (size_t d = 0; d < G_N_ELEMENTS(dense); d++) {
            if (dense[d] > 0) {
                add(pieces, &n, dense[d], s->shards);
            }
        }
        for (int m = 0; m < 3 && s->experts > 0; m++) {
            add(pieces, &n, s->experts / s->ep * s->hidden * s->expert_width, s->ep > 1 ? 1 : s->shards);
        }
        for (int m = 0; m < 3 && s->width > 0; m++) {
            add(pieces, &n, s->width * s->hidden, s->shards);
        }
    }
    add(pieces, &n, s->hidden, s->shards);
    add(pieces, &n, s->vocab * s->hidden, s->shards);
    return n;
}

static void test_launches(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(launch_cases); i++) {
        OptimPiece pieces[PIECES_MAX];
        int n = model_pieces(&launch_cases[i].shapes, pieces);
        print_message("# %s\n", launch_cases[i].name);
        check_int(optim_launches(pieces, n, 36), launch_cases[i].launches);
    }
}

/* Sum over the kernels of a step. */
static void sum(const GArray *works, double *ret_flops, int64_t *ret_bytes)
{
    *ret_flops = 0;
    *ret_bytes = 0;
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        *ret_flops += work->flops * work->n_launches;
        *ret_bytes += (work->read_bytes + work->write_bytes) * work->n_launches;
    }
}

static void test_adamw_bytes(void **state)
{
    (void)state;
    const OptimPiece pieces[] = {{.numel = 100000007, .param = DTYPE_FP32},
                                 {.numel = 0, .param = DTYPE_FP32},
                                 {.numel = 3, .param = DTYPE_FP32}};
    g_autoptr(GArray) works = g_array_new(FALSE, FALSE, sizeof(Work));
    double flops;
    int64_t bytes;
    const OptimClass *adamw = optim_class(OPTIM_adamw);
    adamw->cost(pieces, 3, DTYPE_FP32, works);
    sum(works, &flops, &bytes);
    check_int(bytes, 28 * 100000010LL + 2 * 8); /* and two step counters */
    check_close(flops, 14.0 * 100000010 + 2, 1e-12);
    check_int(adamw->state_bytes(&pieces[0], DTYPE_FP32), 8 * 100000007LL);
    check_int(adamw->state_bytes(&pieces[0], DTYPE_BF16), 4 * 100000007LL);
    check_int(adamw->state_bytes(&pieces[2], DTYPE_INT8), 2 * (3 + 4));
    check_int(adamw->workspace_bytes(pieces, 3, DTYPE_FP32), 0);
}

static void test_muon_cost(void **state)
{
    (void)state;
    const OptimPiece expert = {
        .numel = 3072 * 3584, .by_matrix = TRUE, .rows = 3072, .cols = 3584, .n_matrices = 1, .param = DTYPE_FP32};
    const OptimPiece head = {
        .numel = 128 * 7168, .by_matrix = TRUE, .rows = 128, .cols = 7168, .n_matrices = 1, .param = DTYPE_FP32};
    const OptimClass *muon = optim_class(OPTIM_muon);
    const struct {
        const OptimPiece *piece;
        double products; /* FLOPs of the Newton-Schulz products: 5 (4 m^2 n + 2 m^3) */
    } cases[] = {{&expert, 0.9664e12}, {&head, 2.37e9}};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GArray) works = g_array_new(FALSE, FALSE, sizeof(Work));
        double flops = 0;
        muon->cost(cases[i].piece, 1, DTYPE_FP32, works);
        for (guint w = 0; w < works->len; w++) {
            const Work *work = &g_array_index(works, Work, w);
            flops += work_law_group(work->law) == WORK_GROUP_COMPUTE ? work->flops * work->n_launches : 0;
        }
        check_close(flops, cases[i].products, 3e-3);
    }
    check_int(muon->state_bytes(&expert, DTYPE_FP32), 4 * expert.numel);
}

/* A matrix becomes nearly orthogonal: the update's entries have a root mean square of about 0.2 times lr. */
static void test_muon_update(void **state)
{
    (void)state;
    int64_t dims[] = {24, 40};
    g_autoptr(Tensor) param = tensor_new(TENSOR_F64, 2, dims), grad = tensor_new(TENSOR_F64, 2, dims);
    OptimState moments = {NULL, NULL};
    OptimSettings settings = {.lr = 1, .momentum = 0.95, .step = 1, .n_heads = 1};
    double squares = 0;
    for (int64_t i = 0; i < 960; i++) {
        tensor_set(grad, i, sin(0.37 * (double)i * (double)i));
    }
    optim_class(OPTIM_muon)->update(&settings, param, grad, &moments);
    for (int64_t i = 0; i < 960; i++) {
        squares += tensor_get(param, i) * tensor_get(param, i);
    }
    check_close(sqrt(squares / 960), 0.18, 0.2);
    optim_state_clear(&moments);
}

static void test_names(void **state)
{
    (void)state;
    OptimKind kind;
    assert_true(optim_kind_from_id("muon", &kind));
    check_int(kind, OPTIM_muon);
    assert_false(optim_kind_from_id("sgd", &kind));
    check_close(optim_clip_factor(4, 1), 0.25, 1e-15);
    check_close(optim_clip_factor(0.5, 1), 1, 1e-15);
    check_close(optim_clip_factor(4, 0), 1, 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches),    cmocka_unit_test(test_adamw_bytes), cmocka_unit_test(test_muon_cost),
        cmocka_unit_test(test_muon_update), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("optim", tests, NULL, NULL);
}
