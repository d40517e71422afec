/*
 * Muon in the Moonlight form, for every hidden matrix; other parameters take AdamW.
 *
 * Symbols: a x b a matrix (or one head's rows of it), m = min(a, b), n = max(a, b).
 *
 *     M = mu M + g    G = g + mu M    X = G / (|G| + 1e-7), transposed if a > b
 *     five times: A = X Xt, X = 3.4445 X + (-4.7750 A + 2.0315 A^2) X
 *     p -= lr (0.2 sqrt(n) X + decay p)
 *
 * On several ranks the lowering gathers G (bf16) so that some rank has the whole matrix; `n_matrices` of a piece says
 * how many of them this rank then orthogonalises.
 */
#include <math.h>
#include <string.h>

#include "models/matmul.h"
#include "models/optim.h"
#include "models/optim/adamw.h"
#include "models/real.h"

static const double newton_schulz[3] = {3.4445, -4.7750, 2.0315};

void muon_step_f64(const OptimSettings *s, int64_t a, int64_t b, void *param, const void *grad, void *momentum);
void muon_step_f32(const OptimSettings *s, int64_t a, int64_t b, void *param, const void *grad, void *momentum);

/* Five steps on x [m, n], m <= n. */
static void orthogonalize(real *x, int64_t m, int64_t n)
{
    g_autofree real *gram = g_new(real, (gsize)(m * m)), *poly = g_new(real, (gsize)(m * m)),
                    *next = g_new(real, (gsize)(m * n));
    const Matmul gram_of = {.m = m, .n = m, .k = n, .trans_b = TRUE, .lda = n, .ldb = n, .ldc = m, .alpha = 1};
    const Matmul poly_of = {
        .m = m, .n = m, .k = m, .lda = m, .ldb = m, .ldc = m, .alpha = newton_schulz[2], .beta = newton_schulz[1]};
    const Matmul next_of = {.m = m, .n = n, .k = m, .lda = m, .ldb = n, .ldc = n, .alpha = 1, .beta = newton_schulz[0]};
    for (int step = 0; step < OPTIM_MUON_STEPS; step++) {
        REAL_NAME(matmul)(&gram_of, x, x, gram);
        memcpy(poly, gram, (size_t)(m * m) * sizeof *poly);
        REAL_NAME(matmul)(&poly_of, gram, gram, poly);
        memcpy(next, x, (size_t)(m * n) * sizeof *next);
        REAL_NAME(matmul)(&next_of, poly, x, next);
        memcpy(x, next, (size_t)(m * n) * sizeof *x);
    }
}

/* One matrix [a, b], contiguous. */
static void muon_matrix(const OptimSettings *s, int64_t a, int64_t b, real *p, const real *g, real *momentum)
{
    int64_t numel = a * b, m = MIN(a, b), n = MAX(a, b);
    g_autofree real *x = g_new(real, (gsize)numel);
    real mu = (real)s->momentum, norm = 0;
    for (int64_t i = 0; i < a; i++) {
        for (int64_t j = 0; j < b; j++) {
            int64_t at = i * b + j;
            momentum[at] = mu * momentum[at] + g[at];
            real v = g[at] + mu * momentum[at];
            norm += v * v;
            x[a > b ? j * a + i : at] = v;
        }
    }
    real unit = 1 / ((real)sqrt((double)norm) + (real)1e-7);
    for (int64_t i = 0; i < numel; i++) {
        x[i] *= unit;
    }
    orthogonalize(x, m, n);
    real lr = (real)s->lr, decay = (real)(s->no_decay ? 0 : s->weight_decay), scale = (real)(0.2 * sqrt((double)n));
    for (int64_t i = 0; i < a; i++) {
        for (int64_t j = 0; j < b; j++) {
            int64_t at = i * b + j;
            p[at] -= lr * (scale * x[a > b ? j * a + i : at] + decay * p[at]);
        }
    }
}

void REAL_NAME(muon_step)(const OptimSettings *s, int64_t a, int64_t b, void *param, const void *grad, void *momentum)
{
    int64_t heads = MAX(s->n_heads, 1), rows = a / heads;
    g_assert(rows * heads == a);
    for (int64_t h = 0; h < heads; h++) {
        int64_t at = h * rows * b;
        muon_matrix(s, rows, b, (real *)param + at, (const real *)grad + at, (real *)momentum + at);
    }
}

#if REAL_HAS_CLASS
/* A tensor of three dimensions is a stack of matrices, each on its own. */
static void muon_update(const OptimSettings *settings, Tensor *param, const Tensor *grad, OptimState *state)
{
    g_assert(param->type == grad->type && param->n_dims >= 2 && param->n_dims <= 3);
    if (state->m == NULL) {
        state->m = tensor_new(param->type, param->n_dims, param->dims);
    }
    int64_t stack = param->n_dims == 3 ? param->dims[0] : 1;
    int64_t a = param->dims[param->n_dims - 2], b = param->dims[param->n_dims - 1];
    for (int64_t i = 0; i < stack; i++) {
        int64_t at = i * a * b;
        if (param->type == TENSOR_F64) {
            muon_step_f64(settings, a, b, (double *)param->data + at, (const double *)grad->data + at,
                          (double *)state->m->data + at);
        } else {
            muon_step_f32(settings, a, b, (float *)param->data + at, (const float *)grad->data + at,
                          (float *)state->m->data + at);
        }
    }
}

/* Five steps over the matrices of one piece; stacks run as one grouped product. */
static void newton_schulz_cost(const OptimPiece *piece, GArray *works)
{
    int64_t m = MIN(piece->rows, piece->cols), n = MAX(piece->rows, piece->cols), count = piece->n_matrices;
    const struct {
        int64_t m, n, k;
        WorkLaw law;
    } products[] = {{m, m, n, WORK_GEMM_NT}, {m, m, m, WORK_GEMM_NN}, {m, n, m, WORK_GEMM_NN}};
    int64_t elems = count * m * n, b = dtype_bytes(DTYPE_BF16, 1);
    optim_work(works, WORK_REDUCE, 2 * (double)elems, elems * b, count * 4);  /* norm */
    optim_work(works, WORK_ELEMENTWISE, (double)elems, elems * b, elems * b); /* scaled to it */
    for (int i = 0; i < 3; i++) {
        int64_t read = products[i].m * products[i].k + products[i].n * products[i].k,
                write = products[i].m * products[i].n;
        double flops = 2.0 * (double)write * (double)products[i].k;
        read += i > 0 ? write : 0; /* addmm: the second and third product add to A and X */
        Work *work = optim_work(works, count > 1 ? WORK_GROUPED_GEMM : products[i].law, flops * (double)count,
                                count * read * b, count * write * b);
        work->dtype = DTYPE_BF16;
        work->m = count * products[i].m;
        work->n = products[i].n;
        work->k = products[i].k;
        work->n_groups = count > 1 ? count : 0;
        work->n_launches = OPTIM_MUON_STEPS;
    }
}

static void muon_cost(const OptimPiece *pieces, int n, Dtype moments, GArray *works)
{
    g_autoptr(GArray) others = g_array_new(FALSE, FALSE, sizeof(OptimPiece));
    for (int i = 0; i < n; i++) {
        const OptimPiece *piece = &pieces[i];
        if (!piece->by_matrix) {
            g_array_append_val(others, *piece);
            continue;
        }
        int64_t param = dtype_bytes(piece->param, piece->numel), moment = optim_moment_bytes(piece->numel, moments);
        int64_t half = dtype_bytes(DTYPE_BF16, piece->numel);
        double numel = (double)piece->numel;
        if (piece->numel > 0) { /* momentum and the Nesterov gradient, in bf16 for the gather */
            optim_work(works, WORK_OPTIMIZER, 4 * numel, param + moment, moment + half);
        }
        if (piece->n_matrices > 0) {
            newton_schulz_cost(piece, works);
        }
        if (piece->numel > 0) {
            optim_work(works, WORK_OPTIMIZER, 5 * numel, half + param, param);
        }
    }
    adamw_cost((const OptimPiece *)(const void *)others->data, (int)others->len, moments, works);
}

static int64_t muon_state_bytes(const OptimPiece *piece, Dtype moments)
{
    return (piece->by_matrix ? 1 : 2) * optim_moment_bytes(piece->numel, moments);
}

/* One piece at a time, in bf16: the shard's gradient, the whole matrices twice, two Gram matrices each. */
static int64_t muon_workspace_bytes(const OptimPiece *pieces, int n, Dtype moments)
{
    int64_t most = 0;
    (void)moments;
    for (int i = 0; i < n; i++) {
        if (pieces[i].by_matrix) {
            int64_t m = MIN(pieces[i].rows, pieces[i].cols);
            int64_t matrix = 2 * pieces[i].rows * pieces[i].cols + 2 * m * m;
            most = MAX(most, dtype_bytes(DTYPE_BF16, pieces[i].numel + pieces[i].n_matrices * matrix));
        }
    }
    return most;
}

extern const OptimClass optim_muon;
const OptimClass optim_muon = {
    .id = "muon",
    .title = "Muon",
    .state_bytes = muon_state_bytes,
    .workspace_bytes = muon_workspace_bytes,
    .cost = muon_cost,
    .update = muon_update,
};
#endif
