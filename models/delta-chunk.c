#include "models/delta-rule.h"

#include <string.h>

#include "models/matmul.h"

/* Scratch of one head: what every chunk needs, [C, dk] and [C, dv] unless said otherwise. */
typedef struct ChunkScratch {
    real *block;             /* owns the rest */
    real *before, *behind;   /* products of decays: from the chunk's start through row r; from behind r to its end */
    real *kg, *qg, *kd;      /* k and q decayed from the start, k decayed to the end */
    real *du, *de;
    real *dqg, *dkg, *dkd;
    real *dend;              /* [dk] gradient at the log of the chunk's whole decay */
    const real *whole;       /* [dk] the chunk's whole decay: the last row of `before` */
} ChunkScratch;

static void scratch_init(ChunkScratch *scratch, const DeltaHead *head)
{
    int64_t key = head->chunk * head->dk, value = head->chunk * head->dv;
    real **key_arrays[] = {&scratch->before, &scratch->behind, &scratch->kg, &scratch->qg, &scratch->kd,
                           &scratch->dqg, &scratch->dkg, &scratch->dkd};
    int64_t n_keys = G_N_ELEMENTS(key_arrays);
    scratch->block = g_new(real, (gsize)(n_keys * key + 2 * value + head->dk));
    for (int64_t i = 0; i < n_keys; i++) {
        *key_arrays[i] = scratch->block + i * key;
    }
    scratch->du = scratch->block + n_keys * key;
    scratch->de = scratch->du + value;
    scratch->dend = scratch->de + value;
}

static void scratch_clear(ChunkScratch *scratch)
{
    g_free(scratch->block);
}

/* One chunk of a head. */
typedef struct Chunk {
    int64_t start, c;
    const real *a, *p; /* [c, C] */
} Chunk;

static Chunk chunk_at(const DeltaHead *head, int64_t idx)
{
    int64_t start = idx * head->chunk;
    return (Chunk){start, MIN(head->chunk, head->n - start), head->a + start * head->chunk, head->p + start * head->chunk};
}

static int64_t n_chunks_of(const DeltaHead *head)
{
    return (head->n + head->chunk - 1) / head->chunk;
}

/* c (+)= alpha a b, or with transposed operands. Returns its FLOPs. */
static double product(Matmul shape, const real *a, const real *b, real *c)
{
    REAL_NAME(matmul)(&shape, a, b, c);
    return 2.0 * (double)shape.m * (double)shape.n * (double)shape.k;
}

/* Cumulative decays, and the keys and queries scaled by them. Queries only on demand. 5 (or 4) operations each. */
static double chunk_scale(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch, gboolean queries)
{
    int64_t dk = head->dk, c = chunk->c;
    const real *w = head->w + chunk->start * dk, *k = head->k + chunk->start * dk, *q = head->q + chunk->start * dk;
    for (int64_t r = 0; r < c; r++) {
        real *before = scratch->before + r * dk, *behind = scratch->behind + (c - 1 - r) * dk;
        const real *next = w + (c - r) * dk; /* of the row behind `behind` */
        for (int64_t d = 0; d < dk; d++) {
            before[d] = r > 0 ? before[d - dk] * w[r * dk + d] : w[d];
            behind[d] = r > 0 ? behind[d + dk] * next[d] : 1;
        }
    }
    for (int64_t i = 0; i < c * dk; i++) {
        scratch->kg[i] = scratch->before[i] * k[i];
        scratch->kd[i] = scratch->behind[i] * k[i];
    }
    for (int64_t i = 0; queries && i < c * dk; i++) {
        scratch->qg[i] = scratch->before[i] * q[i];
    }
    scratch->whole = scratch->before + (c - 1) * dk;
    return (queries ? 5.0 : 4.0) * (double)(c * dk);
}

/*
 * Forward substitution: x holds E and becomes E - a U; u = beta x, so that (I + Diag(beta) a) U = Diag(beta) E. By
 * blocks of rows: products for the blocks before, then row by row.
 */
static double chunk_solve(const DeltaHead *head, const Chunk *chunk, real *x, real *u)
{
    int64_t dv = head->dv, c = chunk->c, ld = head->chunk;
    const real *beta = head->beta + chunk->start;
    for (int64_t i0 = 0; i0 < c; i0 += DELTA_BLOCK) {
        int64_t b = MIN(DELTA_BLOCK, c - i0);
        if (i0 > 0) {
            Matmul shape = {.m = b, .n = dv, .k = i0, .lda = ld, .ldb = dv, .ldc = dv, .alpha = -1, .beta = 1};
            REAL_NAME(matmul)(&shape, chunk->a + i0 * ld, u, x + i0 * dv);
        }
        for (int64_t r = i0; r < i0 + b; r++) {
            for (int64_t i = i0; i < r; i++) {
                real pair = chunk->a[r * ld + i];
                for (int64_t j = 0; j < dv; j++) {
                    x[r * dv + j] -= pair * u[i * dv + j];
                }
            }
            for (int64_t j = 0; j < dv; j++) {
                u[r * dv + j] = beta[r] * x[r * dv + j];
            }
        }
    }
    return (double)(c * (c - 1) * dv) + (double)(c * dv);
}

/* state = Diag(whole) state + kd^T u. */
static double chunk_advance(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *u, real *state)
{
    int64_t dk = head->dk, dv = head->dv;
    for (int64_t d = 0; d < dk; d++) {
        for (int64_t j = 0; j < dv; j++) {
            state[d * dv + j] *= scratch->whole[d];
        }
    }
    Matmul shape = {.m = dk, .n = dv, .k = chunk->c, .trans_a = TRUE, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
    return (double)(dk * dv) + product(shape, scratch->kd, u, state);
}

/* x = v - kg S, then the solution u. */
static double chunk_deltas(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *state, real *x, real *u)
{
    int64_t dk = head->dk, dv = head->dv;
    memcpy(x, head->v + chunk->start * dv, (size_t)(chunk->c * dv) * sizeof *x);
    Matmul shape = {.m = chunk->c, .n = dv, .k = dk, .lda = dk, .ldb = dv, .ldc = dv, .alpha = -1, .beta = 1};
    double flops = product(shape, scratch->kg, state, x);
    return flops + chunk_solve(head, chunk, x, u);
}

/* o = qg S + p U; causal pairs of p count. */
static double chunk_output(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *state, const real *u, real *o)
{
    int64_t dk = head->dk, dv = head->dv, c = chunk->c;
    Matmul read = {.m = c, .n = dv, .k = dk, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1};
    Matmul pairs = {.m = c, .n = dv, .k = c, .lda = head->chunk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
    double flops = product(read, scratch->qg, state, o);
    product(pairs, chunk->p, u, o);
    return flops + (double)(c * (c + 1) * dv);
}

static void state_start(const DeltaHead *head, real *state)
{
    size_t bytes = (size_t)(head->dk * head->dv) * sizeof *state;
    if (head->state != NULL) {
        memcpy(state, head->state, bytes);
    } else {
        memset(state, 0, bytes);
    }
}

double REAL_NAME(delta_chunk_forward)(const DeltaHead *head, real *o, real *last_state)
{
    ChunkScratch scratch;
    double flops = 0;
    g_autofree real *state = g_new(real, (gsize)(head->dk * head->dv));
    scratch_init(&scratch, head);
    state_start(head, state);
    for (int64_t i = 0; i < n_chunks_of(head); i++) {
        Chunk chunk = chunk_at(head, i);
        flops += chunk_scale(head, &chunk, &scratch, TRUE);
        flops += chunk_deltas(head, &chunk, &scratch, state, scratch.de, scratch.du);
        flops += chunk_output(head, &chunk, &scratch, state, scratch.du, o + chunk.start * head->dv);
        flops += chunk_advance(head, &chunk, &scratch, scratch.du, state);
    }
    if (last_state != NULL) {
        memcpy(last_state, state, (size_t)(head->dk * head->dv) * sizeof *state);
    }
    scratch_clear(&scratch);
    return flops;
}

/*
 * Back substitution: du holds the gradient of U and becomes dR with (I + Diag(beta) a)^T dR = dU; de = beta dR. Blocks
 * from the last to the first.
 */
static double chunk_solve_backward(const DeltaHead *head, const Chunk *chunk, real *du, real *de)
{
    int64_t dv = head->dv, c = chunk->c, ld = head->chunk;
    const real *beta = head->beta + chunk->start;
    for (int64_t i0 = (c - 1) / DELTA_BLOCK * DELTA_BLOCK; i0 >= 0; i0 -= DELTA_BLOCK) {
        int64_t end = MIN(c, i0 + DELTA_BLOCK);
        if (end < c) {
            Matmul shape = {.m = end - i0, .n = dv, .k = c - end, .trans_a = TRUE, .lda = ld, .ldb = dv, .ldc = dv, .alpha = -1, .beta = 1};
            REAL_NAME(matmul)(&shape, chunk->a + end * ld + i0, de + end * dv, du + i0 * dv);
        }
        for (int64_t i = end - 1; i >= i0; i--) {
            for (int64_t r = i + 1; r < end; r++) {
                real pair = chunk->a[r * ld + i];
                for (int64_t j = 0; j < dv; j++) {
                    du[i * dv + j] -= pair * de[r * dv + j];
                }
            }
            for (int64_t j = 0; j < dv; j++) {
                de[i * dv + j] = beta[i] * du[i * dv + j];
            }
        }
    }
    return (double)(c * (c - 1) * dv) + (double)(c * dv);
}

/* Values of a chunk's forward pass that its backward reads. */
typedef struct ChunkReplay {
    const real *state; /* before the chunk */
    const real *x, *u;
} ChunkReplay;

/* What arrives at U and at the pair matrices: dU = p^T dO + kd dS', then dR, dE, dv and dbeta. */
static double chunk_deltas_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch, const ChunkReplay *replay,
                                    const real *d_o, const real *dstate, const DeltaGradients *grads)
{
    int64_t dk = head->dk, dv = head->dv, c = chunk->c;
    Matmul states = {.m = c, .n = dv, .k = dk, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1};
    double flops = product(states, scratch->kd, dstate, scratch->du);
    if (d_o != NULL) {
        Matmul pairs = {.m = c, .n = dv, .k = c, .trans_a = TRUE, .lda = head->chunk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
        product(pairs, chunk->p, d_o, scratch->du);
    }
    flops += (double)(c * (c + 1) * dv);
    flops += chunk_solve_backward(head, chunk, scratch->du, scratch->de);
    memcpy(grads->v + chunk->start * dv, scratch->de, (size_t)(c * dv) * sizeof *scratch->de);
    for (int64_t r = 0; r < c; r++) {
        real sum = 0;
        for (int64_t j = 0; j < dv; j++) {
            sum += scratch->du[r * dv + j] * replay->x[r * dv + j];
        }
        grads->beta[chunk->start + r] = sum;
    }
    return flops + 2.0 * (double)(c * dv);
}

/* dp = tril(dO U^T), da = -strict_tril(dE U^T). */
static double chunk_pair_gradients(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *u, const real *d_o,
                                   const DeltaGradients *grads)
{
    int64_t dv = head->dv, c = chunk->c, ld = head->chunk;
    real *da = grads->a + chunk->start * ld, *dp = grads->p + chunk->start * ld;
    Matmul shape = {.m = c, .n = c, .k = dv, .trans_b = TRUE, .lda = dv, .ldb = dv, .ldc = ld, .alpha = 1};
    if (d_o != NULL) {
        product(shape, d_o, u, dp);
    } else {
        memset(dp, 0, (size_t)(c * ld) * sizeof *dp);
    }
    shape.alpha = -1;
    product(shape, scratch->de, u, da);
    for (int64_t r = 0; r < c; r++) {
        memset(dp + r * ld + r + 1, 0, (size_t)(ld - r - 1) * sizeof *dp);
        memset(da + r * ld + r, 0, (size_t)(ld - r) * sizeof *da);
    }
    return (double)(c * (c + 1) * dv) + (double)(c * (c - 1) * dv);
}

/* Through the states: gradients of the scaled keys and queries and of the chunk's decay; dstate moves before the chunk. */
static double chunk_states_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch, const ChunkReplay *replay,
                                    const real *d_o, real *dstate)
{
    int64_t dk = head->dk, dv = head->dv, c = chunk->c;
    Matmul rows = {.m = c, .n = dk, .k = dv, .trans_b = TRUE, .lda = dv, .ldb = dv, .ldc = dk, .alpha = 1};
    Matmul into = {.m = dk, .n = dv, .k = c, .trans_a = TRUE, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
    double flops = product(rows, replay->u, dstate, scratch->dkd);
    for (int64_t d = 0; d < dk; d++) {
        real sum = 0;
        for (int64_t j = 0; j < dv; j++) {
            sum += replay->state[d * dv + j] * dstate[d * dv + j];
            dstate[d * dv + j] *= scratch->whole[d];
        }
        scratch->dend[d] = scratch->whole[d] * sum;
    }
    flops += 3.0 * (double)(dk * dv) + (double)dk;
    if (d_o != NULL) {
        product(rows, d_o, replay->state, scratch->dqg);
        product(into, scratch->qg, d_o, dstate);
    } else {
        memset(scratch->dqg, 0, (size_t)(c * dk) * sizeof *scratch->dqg);
    }
    flops += 4.0 * (double)(c * dk * dv);
    rows.alpha = into.alpha = -1;
    flops += product(rows, scratch->de, replay->state, scratch->dkg);
    return flops + product(into, scratch->kg, scratch->de, dstate);
}

/* Back from the scaled keys and queries; 13 operations per element (the last of the 14 is in delta_decay_finish). */
static double chunk_scale_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch, const DeltaGradients *grads)
{
    int64_t dk = head->dk, c = chunk->c, offset = chunk->start * dk;
    for (int64_t r = 0; r < c; r++) {
        for (int64_t d = 0; d < dk; d++) {
            int64_t i = r * dk + d;
            real dq = scratch->before[i] * scratch->dqg[i];
            real early = scratch->before[i] * scratch->dkg[i], late = scratch->behind[i] * scratch->dkd[i];
            real k = head->k[offset + i], through_end = k * late;
            grads->q[offset + i] = dq;
            grads->k[offset + i] = early + late;
            grads->g[offset + i] = head->q[offset + i] * dq + k * early - through_end;
            scratch->dend[d] += through_end;
        }
    }
    for (int64_t d = 0; d < dk; d++) {
        grads->g[offset + (c - 1) * dk + d] += scratch->dend[d];
    }
    return 10.0 * (double)(c * dk) + (double)dk;
}

/* Runs the forward recursion over chunks again: the state before every chunk, x and u of all rows. */
static double replay_all(const DeltaHead *head, ChunkScratch *scratch, real *states, real *x, real *u)
{
    int64_t size = head->dk * head->dv, n_chunks = n_chunks_of(head);
    double flops = 0;
    state_start(head, states);
    for (int64_t i = 0; i < n_chunks; i++) {
        Chunk chunk = chunk_at(head, i);
        real *state = states + i * size;
        flops += chunk_scale(head, &chunk, scratch, FALSE);
        flops += chunk_deltas(head, &chunk, scratch, state, x + chunk.start * head->dv, u + chunk.start * head->dv);
        memcpy(state + size, state, (size_t)size * sizeof *state);
        flops += chunk_advance(head, &chunk, scratch, u + chunk.start * head->dv, state + size);
    }
    return flops;
}

double REAL_NAME(delta_chunk_backward)(const DeltaHead *head, const DeltaUpstream *up, const DeltaGradients *grads)
{
    int64_t size = head->dk * head->dv, n_chunks = n_chunks_of(head);
    ChunkScratch scratch;
    g_autofree real *states = g_new(real, (gsize)((n_chunks + 1) * size)), *dstate = g_new0(real, (gsize)size);
    g_autofree real *x = g_new(real, (gsize)(head->n * head->dv + 1)), *u = g_new(real, (gsize)(head->n * head->dv + 1));
    scratch_init(&scratch, head);
    double flops = replay_all(head, &scratch, states, x, u);
    if (up->state != NULL) {
        memcpy(dstate, up->state, (size_t)size * sizeof *dstate);
    }
    for (int64_t i = n_chunks - 1; i >= 0; i--) {
        Chunk chunk = chunk_at(head, i);
        int64_t offset = chunk.start * head->dv;
        ChunkReplay replay = {states + i * size, x + offset, u + offset};
        const real *d_o = up->o != NULL ? up->o + offset : NULL;
        flops += chunk_scale(head, &chunk, &scratch, TRUE);
        flops += chunk_deltas_backward(head, &chunk, &scratch, &replay, d_o, dstate, grads);
        flops += chunk_pair_gradients(head, &chunk, &scratch, replay.u, d_o, grads);
        flops += chunk_states_backward(head, &chunk, &scratch, &replay, d_o, dstate);
        flops += chunk_scale_backward(head, &chunk, &scratch, grads);
    }
    if (grads->state != NULL) {
        memcpy(grads->state, dstate, (size_t)size * sizeof *dstate);
    }
    scratch_clear(&scratch);
    return flops;
}

/* dg_t = sum of dG_r over the rows r >= t of the chunk. */
double REAL_NAME(delta_decay_finish)(const DeltaHead *head, real *dg)
{
    int64_t dk = head->dk;
    for (int64_t t = head->n - 2; t >= 0; t--) {
        if ((t + 1) % head->chunk == 0) {
            continue;
        }
        for (int64_t d = 0; d < dk; d++) {
            dg[t * dk + d] += dg[(t + 1) * dk + d];
        }
    }
    return (double)((head->n - n_chunks_of(head)) * dk);
}
