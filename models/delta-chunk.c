#include "models/delta-rule.h"

#include <string.h>

#include "models/hot.h"
#include "models/matmul.h"

/* Scratch of one head: what every chunk needs, [C, dk] and [C, dv] unless said otherwise. */
typedef struct ChunkScratch {
    real *before, *behind; /* products of decays: from the chunk's start through row r; from behind r to its end */
    real *kg, *qg, *kd;    /* k and q decayed from the start, k decayed to the end */
    real *du, *de;
    real *dqg, *dkg, *dkd;
    real *dend;        /* [dk] gradient at the log of the chunk's whole decay */
    const real *whole; /* [dk] the chunk's whole decay: the last row of `before` */
} ChunkScratch;

/* Lays the arrays out over the head's scratch; returns what is behind them. */
static real *scratch_init(ChunkScratch *scratch, const DeltaHead *head)
{
    int64_t key = head->chunk * head->dk, value = head->chunk * head->dv;
    real **key_arrays[] = {&scratch->before, &scratch->behind, &scratch->kg,  &scratch->qg,
                           &scratch->kd,     &scratch->dqg,    &scratch->dkg, &scratch->dkd};
    int64_t n_keys = G_N_ELEMENTS(key_arrays);
    for (int64_t i = 0; i < n_keys; i++) {
        *key_arrays[i] = head->work + i * key;
    }
    scratch->du = head->work + n_keys * key;
    scratch->de = scratch->du + value;
    scratch->dend = scratch->de + value;
    return scratch->dend + head->dk;
}

/* One chunk of a head. */
typedef struct Chunk {
    int64_t start, c;
    const real *a, *p; /* [c, C] */
} Chunk;

static Chunk chunk_at(const DeltaHead *head, int64_t idx)
{
    int64_t start = idx * head->chunk;
    return (Chunk){start, MIN(head->chunk, head->n - start), head->a + start * head->chunk,
                   head->p + start * head->chunk};
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

/* z = x y, element by element. */
HOT static void multiply(int64_t n, const real *restrict x, const real *restrict y, real *restrict z)
{
    for (int64_t i = 0; i < n; i++) {
        z[i] = x[i] * y[i];
    }
}

/* y -= factor x. */
HOT static void subtract_scaled(int64_t n, real factor, const real *restrict x, real *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] -= factor * x[i];
    }
}

HOT static void scale_into(int64_t n, real factor, const real *restrict x, real *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] = factor * x[i];
    }
}

HOT static void scale_in_place(int64_t n, real factor, real *x)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

/* Sum of x y, in LANES sums side by side. */
enum { LANES = 16 };

HOT static real dot(int64_t n, const real *restrict x, const real *restrict y)
{
    real lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lanes[j] += x[i + j] * y[i + j];
        }
    }
    for (; i < n; i++) {
        sum += x[i] * y[i];
    }
    for (int j = 0; j < LANES; j++) {
        sum += lanes[j];
    }
    return sum;
}

/* A row's cumulative decay from that of its neighbour, and a vector scaled by it. */
HOT static void decay_row(int64_t dk, const real *restrict neighbour, const real *restrict w, const real *restrict x,
                          real *restrict decay, real *restrict scaled)
{
    for (int64_t d = 0; d < dk; d++) {
        real product = neighbour[d] * w[d];
        decay[d] = product;
        scaled[d] = product * x[d];
    }
}

HOT static void fill_ones(int64_t n, real *x)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = 1;
    }
}

/* Cumulative decays, and the keys and queries scaled by them. Queries only on demand. 5 (or 4) operations each. */
static double chunk_scale(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch, gboolean queries)
{
    int64_t dk = head->dk, c = chunk->c, last = (c - 1) * dk;
    const real *w = head->w + chunk->start * dk, *k = head->k + chunk->start * dk, *q = head->q + chunk->start * dk;
    real *before = scratch->before, *behind = scratch->behind;
    fill_ones(dk, behind + last);
    memcpy(scratch->kd + last, k + last, (size_t)dk * sizeof *k);
    for (int64_t at = 0; at <= last; at += dk) {
        const real *neighbour = at > 0 ? before + at - dk : behind + last;
        decay_row(dk, neighbour, w + at, k + at, before + at, scratch->kg + at);
        if (queries) {
            multiply(dk, before + at, q + at, scratch->qg + at);
        }
    }
    for (int64_t at = last - dk; at >= 0; at -= dk) {
        decay_row(dk, behind + at + dk, w + at + dk, k + at, behind + at, scratch->kd + at);
    }
    scratch->whole = before + last;
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
                subtract_scaled(dv, chunk->a[r * ld + i], u + i * dv, x + r * dv);
            }
            scale_into(dv, beta[r], x + r * dv, u + r * dv);
        }
    }
    return (double)(c * (c - 1) * dv) + (double)(c * dv);
}

/* next = Diag(whole) state + kd^T u; next may not be state. */
static double chunk_advance(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *u,
                            const real *state, real *next)
{
    int64_t dk = head->dk, dv = head->dv;
    for (int64_t d = 0; d < dk; d++) {
        scale_into(dv, scratch->whole[d], state + d * dv, next + d * dv);
    }
    Matmul shape = {
        .m = dk, .n = dv, .k = chunk->c, .trans_a = TRUE, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
    return (double)(dk * dv) + product(shape, scratch->kd, u, next);
}

/* x = v - kg S, then the solution u. */
static double chunk_deltas(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *state,
                           real *x, real *u)
{
    int64_t dk = head->dk, dv = head->dv;
    memcpy(x, head->v + chunk->start * dv, (size_t)(chunk->c * dv) * sizeof *x);
    Matmul shape = {.m = chunk->c, .n = dv, .k = dk, .lda = dk, .ldb = dv, .ldc = dv, .alpha = -1, .beta = 1};
    double flops = product(shape, scratch->kg, state, x);
    return flops + chunk_solve(head, chunk, x, u);
}

/* o = qg S + p U; causal pairs of p count. */
static double chunk_output(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch, const real *state,
                           const real *u, real *o)
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
    int64_t size = head->dk * head->dv;
    real *state = scratch_init(&scratch, head), *next = state + size;
    state_start(head, state);
    for (int64_t i = 0; i < n_chunks_of(head); i++) {
        Chunk chunk = chunk_at(head, i);
        flops += chunk_scale(head, &chunk, &scratch, TRUE);
        flops += chunk_deltas(head, &chunk, &scratch, state, scratch.de, scratch.du);
        flops += chunk_output(head, &chunk, &scratch, state, scratch.du, o + chunk.start * head->dv);
        flops += chunk_advance(head, &chunk, &scratch, scratch.du, state, next);
        real *swap = state;
        state = next;
        next = swap;
    }
    if (last_state != NULL) {
        memcpy(last_state, state, (size_t)size * sizeof *state);
    }
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
            Matmul shape = {.m = end - i0,
                            .n = dv,
                            .k = c - end,
                            .trans_a = TRUE,
                            .lda = ld,
                            .ldb = dv,
                            .ldc = dv,
                            .alpha = -1,
                            .beta = 1};
            REAL_NAME(matmul)(&shape, chunk->a + end * ld + i0, de + end * dv, du + i0 * dv);
        }
        for (int64_t i = end - 1; i >= i0; i--) {
            for (int64_t r = i + 1; r < end; r++) {
                subtract_scaled(dv, chunk->a[r * ld + i], de + r * dv, du + i * dv);
            }
            scale_into(dv, beta[i], du + i * dv, de + i * dv);
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
static double chunk_deltas_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch,
                                    const ChunkReplay *replay, const real *d_o, const real *dstate,
                                    const DeltaGradients *grads)
{
    int64_t dk = head->dk, dv = head->dv, c = chunk->c;
    Matmul states = {.m = c, .n = dv, .k = dk, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1};
    double flops = product(states, scratch->kd, dstate, scratch->du);
    if (d_o != NULL) {
        Matmul pairs = {
            .m = c, .n = dv, .k = c, .trans_a = TRUE, .lda = head->chunk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
        product(pairs, chunk->p, d_o, scratch->du);
    }
    flops += (double)(c * (c + 1) * dv);
    flops += chunk_solve_backward(head, chunk, scratch->du, scratch->de);
    memcpy(grads->v + chunk->start * dv, scratch->de, (size_t)(c * dv) * sizeof *scratch->de);
    for (int64_t r = 0; r < c; r++) {
        grads->beta[chunk->start + r] = dot(dv, scratch->du + r * dv, replay->x + r * dv);
    }
    return flops + 2.0 * (double)(c * dv);
}

/* dp = tril(dO U^T), da = -strict_tril(dE U^T). */
static double chunk_pair_gradients(const DeltaHead *head, const Chunk *chunk, const ChunkScratch *scratch,
                                   const real *u, const real *d_o, const DeltaGradients *grads)
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

/* Through the states: gradients of the scaled keys and queries and of the chunk's decay; dstate moves before the chunk.
 */
static double chunk_states_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch,
                                    const ChunkReplay *replay, const real *d_o, real *dstate)
{
    int64_t dk = head->dk, dv = head->dv, c = chunk->c;
    Matmul rows = {.m = c, .n = dk, .k = dv, .trans_b = TRUE, .lda = dv, .ldb = dv, .ldc = dk, .alpha = 1};
    Matmul into = {.m = dk, .n = dv, .k = c, .trans_a = TRUE, .lda = dk, .ldb = dv, .ldc = dv, .alpha = 1, .beta = 1};
    double flops = product(rows, replay->u, dstate, scratch->dkd);
    for (int64_t d = 0; d < dk; d++) {
        scratch->dend[d] = scratch->whole[d] * dot(dv, replay->state + d * dv, dstate + d * dv);
        scale_in_place(dv, scratch->whole[d], dstate + d * dv);
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

/* A row of it: where decays and gradients lie; what goes through the end of the chunk is added to dend. */
HOT static void scale_row_backward(int64_t dk, int64_t at, int64_t row, const DeltaHead *head,
                                   const ChunkScratch *scratch, const DeltaGradients *grads)
{
    const real *restrict before = scratch->before + row, *restrict behind = scratch->behind + row;
    const real *restrict dqg = scratch->dqg + row, *restrict dkg = scratch->dkg + row,
                         *restrict dkd = scratch->dkd + row;
    const real *restrict q = head->q + at, *restrict k = head->k + at;
    real *restrict dq = grads->q + at, *restrict dkey = grads->k + at, *restrict dg = grads->g + at,
                   *restrict dend = scratch->dend;
    for (int64_t d = 0; d < dk; d++) {
        real to_q = before[d] * dqg[d], early = before[d] * dkg[d], late = behind[d] * dkd[d],
             through_end = k[d] * late;
        dq[d] = to_q;
        dkey[d] = early + late;
        dg[d] = q[d] * to_q + k[d] * early - through_end;
        dend[d] += through_end;
    }
}

/* Back from the scaled keys and queries. */
static double chunk_scale_backward(const DeltaHead *head, const Chunk *chunk, ChunkScratch *scratch,
                                   const DeltaGradients *grads)
{
    int64_t dk = head->dk, c = chunk->c, offset = chunk->start * dk;
    for (int64_t r = 0; r < c; r++) {
        scale_row_backward(dk, offset + r * dk, r * dk, head, scratch, grads);
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
        flops += chunk_advance(head, &chunk, scratch, u + chunk.start * head->dv, state, state + size);
    }
    return flops;
}

double REAL_NAME(delta_chunk_backward)(const DeltaHead *head, const DeltaUpstream *up, const DeltaGradients *grads)
{
    int64_t size = head->dk * head->dv, n_chunks = n_chunks_of(head);
    ChunkScratch scratch;
    real *states = scratch_init(&scratch, head), *dstate = states + (n_chunks + 1) * size;
    real *x = dstate + size, *u = x + head->n * head->dv;
    double flops = replay_all(head, &scratch, states, x, u);
    if (up->state != NULL) {
        memcpy(dstate, up->state, (size_t)size * sizeof *dstate);
    } else {
        memset(dstate, 0, (size_t)size * sizeof *dstate);
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
