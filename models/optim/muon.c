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
 * how many of them this rank then orthogonalises. Momentum, orthogonalisation and update stand apart for that.
 */
#include <math.h>
#include <string.h>

#include "models/matmul.h"
#include "models/optim.h"
#include "models/optim/adamw.h"
#include "models/real.h"

static const double newton_schulz[3] = {3.4445, -4.7750, 2.0315};

void muon_orthogonal_f64(const OptimSettings *s, int64_t a, int64_t b, void *whole);
void muon_orthogonal_f32(const OptimSettings *s, int64_t a, int64_t b, void *whole);
void muon_momentum_f64(const OptimSettings *s, int64_t n, const void *grad, void *momentum, void *direction);
void muon_momentum_f32(const OptimSettings *s, int64_t n, const void *grad, void *momentum, void *direction);
void muon_apply_f64(const OptimSettings *s, int64_t n, const void *direction, void *param);
void muon_apply_f32(const OptimSettings *s, int64_t n, const void *direction, void *param);

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

/* One matrix [a, b], contiguous, becomes 0.2 sqrt(n) X. */
static void orthogonal_matrix(int64_t a, int64_t b, real floor, real *g)
{
    int64_t numel = a * b, m = MIN(a, b), n = MAX(a, b);
    g_autofree real *x = g_new(real, (gsize)numel);
    real norm = 0;
    for (int64_t i = 0; i < a; i++) {
        for (int64_t j = 0; j < b; j++) {
            real v = g[i * b + j];
            norm += v * v;
            x[a > b ? j * a + i : i * b + j] = v;
        }
    }
    real unit = 1 / ((real)sqrt((double)norm) + floor), scale = (real)(0.2 * sqrt((double)n));
    for (int64_t i = 0; i < numel; i++) {
        x[i] *= unit;
    }
    orthogonalize(x, m, n);
    for (int64_t i = 0; i < a; i++) {
        for (int64_t j = 0; j < b; j++) {
            g[i * b + j] = scale * x[a > b ? j * a + i : i * b + j];
        }
    }
}

void REAL_NAME(muon_orthogonal)(const OptimSettings *s, int64_t a, int64_t b, void *whole)
{
    int64_t heads = MAX(s->n_heads, 1), rows = a / heads;
    g_assert(rows * heads == a);
    for (int64_t h = 0; h < heads; h++) {
        orthogonal_matrix(rows, b, (real)(s->norm_floor > 0 ? s->norm_floor : 1e-7), (real *)whole + h * rows * b);
    }
}

void REAL_NAME(muon_momentum)(const OptimSettings *s, int64_t n, const void *grad, void *momentum, void *direction)
{
    const real *g = grad;
    real *m = momentum, *d = direction, mu = (real)s->momentum;
    for (int64_t i = 0; i < n; i++) {
        m[i] = mu * m[i] + g[i];
        d[i] = g[i] + mu * m[i];
    }
}

void REAL_NAME(muon_apply)(const OptimSettings *s, int64_t n, const void *direction, void *param)
{
    const real *d = direction;
    real *p = param, lr = (real)s->lr, decay = (real)(s->no_decay ? 0 : s->weight_decay);
    for (int64_t i = 0; i < n; i++) {
        p[i] -= lr * (d[i] + decay * p[i]);
    }
}

#if REAL_HAS_CLASS
void optim_muon_momentum(const OptimSettings *settings, const Tensor *grad, OptimState *state, Tensor *ret_direction)
{
    int64_t n = tensor_numel(grad);
    g_assert(tensor_numel(ret_direction) == n && ret_direction->type == grad->type);
    if (state->m == NULL) {
        state->m = tensor_new(grad->type, grad->n_dims, grad->dims);
    }
    (grad->type == TENSOR_F64 ? muon_momentum_f64 : muon_momentum_f32)(settings, n, grad->data, state->m->data, ret_direction->data);
}

/* A tensor of three dimensions is a stack of matrices, each on its own. */
void optim_muon_orthogonalize(const OptimSettings *settings, Tensor *whole)
{
    g_assert(whole->n_dims >= 2 && whole->n_dims <= 3);
    int64_t stack = whole->n_dims == 3 ? whole->dims[0] : 1;
    int64_t a = whole->dims[whole->n_dims - 2], b = whole->dims[whole->n_dims - 1];
    for (int64_t i = 0; i < stack; i++) {
        if (whole->type == TENSOR_F64) {
            muon_orthogonal_f64(settings, a, b, (double *)whole->data + i * a * b);
        } else {
            muon_orthogonal_f32(settings, a, b, (float *)whole->data + i * a * b);
        }
    }
}

void optim_muon_apply(const OptimSettings *settings, const Tensor *direction, Tensor *param)
{
    int64_t n = tensor_numel(param);
    g_assert(tensor_numel(direction) == n && direction->type == param->type);
    (param->type == TENSOR_F64 ? muon_apply_f64 : muon_apply_f32)(settings, n, direction->data, param->data);
}

static void muon_update(const OptimSettings *settings, Tensor *param, const Tensor *grad, OptimState *state)
{
    g_autoptr(Tensor) direction = tensor_new(param->type, param->n_dims, param->dims);
    optim_muon_momentum(settings, grad, state, direction);
    optim_muon_orthogonalize(settings, direction);
    optim_muon_apply(settings, direction, param);
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
        if (i > 0) { /* addmm: the second and third product add to copies of A and X */
            optim_work(works, WORK_COPY, 0, count * write * b, count * write * b)->n_launches = OPTIM_MUON_STEPS;
            read += write;
        }
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

void optim_muon_momentum_cost(const OptimPiece *piece, Dtype moments, GArray *works)
{
    int64_t grad = optim_grad_bytes(piece), moment = optim_moment_bytes(piece->numel, moments);
    if (piece->numel > 0) {
        optim_work(works, WORK_OPTIMIZER, 4 * (double)piece->numel, grad + moment, moment + dtype_bytes(DTYPE_BF16, piece->numel));
    }
}

void optim_muon_orthogonal_cost(const OptimPiece *piece, GArray *works)
{
    if (piece->n_matrices > 0) {
        newton_schulz_cost(piece, works);
    }
}

void optim_muon_apply_cost(const OptimPiece *piece, GArray *works)
{
    int64_t param = dtype_bytes(piece->param, piece->numel), master = optim_master_bytes(piece);
    if (piece->numel > 0) {
        optim_work(works, WORK_OPTIMIZER, 5 * (double)piece->numel, dtype_bytes(DTYPE_BF16, piece->numel) + (master > 0 ? master : param),
                   param + master);
    }
}

int64_t optim_muon_orthogonal_bytes(const OptimPiece *piece)
{
    int64_t m = MIN(piece->rows, piece->cols);
    return dtype_bytes(DTYPE_BF16, piece->n_matrices * (piece->rows * piece->cols + 2 * m * m));
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
        optim_muon_momentum_cost(piece, moments, works); /* and the direction, in bf16 for the gather */
        optim_muon_orthogonal_cost(piece, works);
        optim_muon_apply_cost(piece, works);
    }
    adamw_cost((const OptimPiece *)(const void *)others->data, (int)others->len, moments, works);
}

static int64_t muon_state_bytes(const OptimPiece *piece, Dtype moments)
{
    return (piece->by_matrix ? 1 : 2) * optim_moment_bytes(piece->numel, moments) + optim_master_bytes(piece);
}

/* One piece at a time, in bf16: the shard's direction, the whole matrices, and what orthogonalising them takes. */
static int64_t muon_workspace_bytes(const OptimPiece *pieces, int n, Dtype moments)
{
    int64_t most = 0;
    (void)moments;
    for (int i = 0; i < n; i++) {
        if (pieces[i].by_matrix) {
            int64_t whole = pieces[i].n_matrices * pieces[i].rows * pieces[i].cols;
            most = MAX(most, dtype_bytes(DTYPE_BF16, pieces[i].numel + whole) + optim_muon_orthogonal_bytes(&pieces[i]));
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
