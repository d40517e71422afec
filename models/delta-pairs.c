#include "models/delta-rule.h"

#include <string.h>

#include "models/hot.h"
#include "models/matmul.h"
#include "models/vector.h"

/*
 * Pair terms where decays differ by channel. Pairs of different sub-chunks factor at the start of the later one: the
 * row's side is decayed from there, the other side up to there, and a matrix product does the rest. Pairs inside a
 * sub-chunk are formed one by one, the decay between them carried along.
 */
typedef struct PairScratch {
    real *keys, *queries;  /* [B, dk] rows of the sub-chunk, decayed from its start */
    real *decay;           /* [B, dk] that decay */
    real *reach, *reached; /* [C, dk] earlier rows: decay up to the sub-chunk's start, and keys times it */
    real *inner;           /* [dk, B] or [B, dk] decays (times keys) inside the sub-chunk */
    real *sum_q, *sum_k;   /* [B, dk] */
    real *back;            /* [C, dk] */
} PairScratch;

static void pair_scratch_init(PairScratch *scratch, const DeltaHead *head)
{
    int64_t small = DELTA_BLOCK * head->dk, large = head->chunk * head->dk;
    real **blocks[] = {&scratch->keys,  &scratch->queries, &scratch->decay,
                       &scratch->inner, &scratch->sum_q,   &scratch->sum_k};
    int64_t n_blocks = G_N_ELEMENTS(blocks);
    for (int64_t i = 0; i < n_blocks; i++) {
        *blocks[i] = head->work + i * small;
    }
    scratch->reach = head->work + n_blocks * small;
    scratch->reached = scratch->reach + large;
    scratch->back = scratch->reached + large;
}

/* A sub-chunk: rows [i0, i0 + b) of the chunk that begins at row `start` and has c rows. */
typedef struct SubChunk {
    int64_t start, c, i0, b;
} SubChunk;

typedef double (*SubChunkVisit)(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, void *data);

/* Visits every sub-chunk in order; adds up their FLOPs. */
static double each_sub_chunk(const DeltaHead *head, SubChunkVisit visit, void *data)
{
    PairScratch scratch;
    double flops = 0;
    pair_scratch_init(&scratch, head);
    for (int64_t start = 0; start < head->n; start += head->chunk) {
        int64_t c = MIN(head->chunk, head->n - start);
        for (int64_t i0 = 0; i0 < c; i0 += DELTA_BLOCK) {
            SubChunk sub = {start, c, i0, MIN(DELTA_BLOCK, c - i0)};
            flops += visit(head, &sub, &scratch, data);
        }
    }
    return flops;
}

/* Rows of the sub-chunk decayed from its start. 3 operations per element. */
HOT static double decay_rows(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
{
    int64_t dk = head->dk, offset = (sub->start + sub->i0) * dk;
    const real *w = head->w + offset, *k = head->k + offset, *q = head->q + offset;
    for (int64_t i = 0; i < sub->b * dk; i++) {
        real decay = i < dk ? w[i] : scratch->decay[i - dk] * w[i];
        scratch->decay[i] = decay;
        scratch->keys[i] = decay * k[i];
        scratch->queries[i] = decay * q[i];
    }
    return 3.0 * (double)(sub->b * dk);
}

/* Moves the point that earlier rows are decayed to from this sub-chunk's start to the next one's. */
HOT static double advance_reach(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
{
    int64_t dk = head->dk, end = sub->i0 + sub->b;
    if (end >= sub->c) {
        return 0;
    }
    const real *w = head->w + sub->start * dk;
    for (int64_t d = 0; d < dk; d++) {
        real behind = 1;
        for (int64_t r = end - 1; r >= sub->i0; r--) {
            scratch->reach[r * dk + d] = behind;
            behind *= w[r * dk + d];
        }
        scratch->sum_q[d] = behind;
    }
    for (int64_t i = 0; i < sub->i0; i++) {
        for (int64_t d = 0; d < dk; d++) {
            scratch->reach[i * dk + d] *= scratch->sum_q[d];
        }
    }
    return (double)(sub->b * dk) + (double)(sub->i0 * dk);
}

/* Keys of earlier rows, decayed to the sub-chunk's start. */
HOT static double reach_keys(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
{
    const real *k = head->k + sub->start * head->dk;
    for (int64_t i = 0; i < sub->i0 * head->dk; i++) {
        scratch->reached[i] = scratch->reach[i] * k[i];
    }
    return (double)(sub->i0 * head->dk);
}

/* Pair matrices being written. */
typedef struct PairMatrices {
    real *a, *p;
} PairMatrices;

/*
 * Dot products of row r with the rows of its sub-chunk, which `inner` ([dk, B]) holds decayed to row r - 1 and gets decayed
 * to row r. Sums run along d, so the rows are the lanes.
 */
HOT static void inner_row(int64_t dk, const real *restrict w, const real *restrict k, const real *restrict q,
                          real *restrict inner, real *restrict key_sums, real *restrict query_sums)
{
    enum { N_VECTORS = DELTA_BLOCK / VECTOR };
    Vector keys[N_VECTORS] = {{0}}, queries[N_VECTORS] = {{0}};
    for (int64_t d = 0; d < dk; d++) {
#pragma GCC unroll 4
        for (int v = 0; v < N_VECTORS; v++) {
            Vector decayed;
            vector_load(&decayed, inner + d * DELTA_BLOCK + v * VECTOR);
            decayed *= w[d];
            vector_store(&decayed, inner + d * DELTA_BLOCK + v * VECTOR);
            keys[v] += k[d] * decayed;
            queries[v] += q[d] * decayed;
        }
    }
    memcpy(key_sums, keys, sizeof keys);
    memcpy(query_sums, queries, sizeof queries);
}

/*
 * Pairs inside a sub-chunk: inner[d, i] = k_i[d] decayed to row r, for all rows of the sub-chunk at once (zeros where
 * i > r). Sums run along d, so the rows i are the lanes.
 */
static double inner_pairs(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, real *a, real *p)
{
    int64_t dk = head->dk, offset = (sub->start + sub->i0) * dk;
    memset(scratch->inner, 0, (size_t)(DELTA_BLOCK * dk) * sizeof *scratch->inner);
    for (int64_t r = 0; r < sub->b; r++) {
        const real *w = head->w + offset + r * dk, *k = head->k + offset + r * dk, *q = head->q + offset + r * dk;
        real key_sums[DELTA_BLOCK], query_sums[DELTA_BLOCK], self = 0;
        inner_row(dk, w, k, q, scratch->inner, key_sums, query_sums);
        for (int64_t d = 0; d < dk; d++) {
            scratch->inner[d * DELTA_BLOCK + r] = k[d];
            self += q[d] * k[d];
        }
        query_sums[r] = self;
        memcpy(a + r * head->chunk, key_sums, (size_t)r * sizeof *a);
        memcpy(p + r * head->chunk, query_sums, (size_t)(r + 1) * sizeof *p);
    }
    /* strict pairs: decay 1, two products 4; the diagonal of p: 2 */
    return (double)dk * (5.0 * (double)(sub->b * (sub->b - 1) / 2) + 2.0 * (double)sub->b);
}

static double pairs_forward_visit(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, void *data)
{
    const PairMatrices *to = data;
    int64_t dk = head->dk, ld = head->chunk, first = (sub->start + sub->i0) * ld;
    double flops = 0;
    for (int64_t r = 0; r < sub->b; r++) {
        memset(to->a + first + r * ld, 0, (size_t)ld * sizeof *to->a);
        memset(to->p + first + r * ld, 0, (size_t)ld * sizeof *to->p);
    }
    if (sub->i0 > 0) {
        Matmul shape = {
            .m = sub->b, .n = sub->i0, .k = dk, .trans_b = TRUE, .lda = dk, .ldb = dk, .ldc = ld, .alpha = 1};
        flops += decay_rows(head, sub, scratch) + reach_keys(head, sub, scratch);
        REAL_NAME(matmul)(&shape, scratch->keys, scratch->reached, to->a + first);
        REAL_NAME(matmul)(&shape, scratch->queries, scratch->reached, to->p + first);
        flops += 4.0 * (double)(sub->b * sub->i0 * dk);
    }
    flops += inner_pairs(head, sub, scratch, to->a + first + sub->i0, to->p + first + sub->i0);
    return flops + advance_reach(head, sub, scratch);
}

double REAL_NAME(delta_pairs_forward)(const DeltaHead *head, real *a, real *p)
{
    PairMatrices to = {a, p};
    return each_sub_chunk(head, pairs_forward_visit, &to);
}

/* Gradients at a row: what came back along the row's side, as x times sum and a share of the log decay. */
HOT static void finish_row(int64_t dk, const real *x, const real *sum, const real *decay, real *dx, real *dg)
{
    for (int64_t d = 0; d < dk; d++) {
        real share = decay != NULL ? decay[d] * sum[d] : sum[d];
        dx[d] += share;
        dg[d] += x[d] * share;
    }
}

/* And at earlier rows: what came back along the columns. */
HOT static void finish_columns(int64_t n, const real *k, const real *back, real *dkey, real *dg)
{
    for (int64_t i = 0; i < n; i++) {
        dkey[i] += back[i];
        dg[i] -= k[i] * back[i];
    }
}

HOT static void multiply_by(int64_t n, const real *restrict x, real *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] *= x[i];
    }
}

/* Pairs with earlier sub-chunks, both directions. */
static double outer_pairs_backward(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch,
                                   const DeltaGradients *grads)
{
    int64_t dk = head->dk, ld = head->chunk, first = sub->start + sub->i0;
    const real *da = grads->a + first * ld, *dp = grads->p + first * ld;
    Matmul rows = {.m = sub->b, .n = dk, .k = sub->i0, .lda = ld, .ldb = dk, .ldc = dk, .alpha = 1};
    Matmul back = {.m = sub->i0, .n = dk, .k = sub->b, .trans_a = TRUE, .lda = ld, .ldb = dk, .ldc = dk, .alpha = 1};
    double flops = decay_rows(head, sub, scratch) + reach_keys(head, sub, scratch);
    REAL_NAME(matmul)(&rows, dp, scratch->reached, scratch->sum_q);
    REAL_NAME(matmul)(&rows, da, scratch->reached, scratch->sum_k);
    for (int64_t r = 0; r < sub->b; r++) {
        int64_t at = (first + r) * dk;
        finish_row(dk, head->q + at, scratch->sum_q + r * dk, scratch->decay + r * dk, grads->q + at, grads->g + at);
        finish_row(dk, head->k + at, scratch->sum_k + r * dk, scratch->decay + r * dk, grads->k + at, grads->g + at);
    }
    REAL_NAME(matmul)(&back, dp, scratch->queries, scratch->back);
    back.beta = 1;
    REAL_NAME(matmul)(&back, da, scratch->keys, scratch->back);
    int64_t at = sub->start * dk;
    multiply_by(sub->i0 * dk, scratch->reach, scratch->back);
    finish_columns(sub->i0 * dk, head->k + at, scratch->back, grads->k + at, grads->g + at);
    return flops + 8.0 * (double)(sub->b * sub->i0 * dk) + 8.0 * (double)(sub->b * dk) + 4.0 * (double)(sub->i0 * dk);
}

/* Row r of a sub-chunk and the rows i < r before it. */
typedef struct InnerRow {
    int64_t r, dk;
    const real *dp, *da;   /* [r + 1] gradients of the pair matrices' row */
    const real *w, *q, *k; /* of row r */
    const real *keys;      /* [B, dk] of the sub-chunk */
    real *inner;           /* [B, dk] decay from row i to row r */
    real *back;            /* [B, dk] what comes back to rows i */
    real *sum_q, *sum_k;   /* what comes to row r */
} InnerRow;

enum { LANES = 16 };

/* LANES channels from d on, for all rows i: sums stay in registers. */
static inline __attribute__((always_inline)) void inner_lanes_backward(const InnerRow *row, int64_t d, int n)
{
    real sum_q[LANES], sum_k[LANES], q[LANES], k[LANES], w[LANES];
    real dp = row->dp[row->r];
    for (int j = 0; j < n; j++) {
        q[j] = row->q[d + j];
        k[j] = row->k[d + j];
        w[j] = row->w[d + j];
        sum_q[j] = dp * k[j];
        sum_k[j] = 0;
        row->back[row->r * row->dk + d + j] += dp * q[j];
        row->inner[row->r * row->dk + d + j] = 1;
    }
    for (int64_t i = 0; i < row->r; i++) {
        int64_t at = i * row->dk + d;
        real *restrict inner = row->inner + at, *restrict back = row->back + at;
        const real *restrict keys = row->keys + at;
        real dpi = row->dp[i], dai = row->da[i];
        for (int j = 0; j < n; j++) {
            real decay = inner[j] * w[j], decayed = decay * keys[j];
            inner[j] = decay;
            sum_q[j] += dpi * decayed;
            sum_k[j] += dai * decayed;
            back[j] += decay * (dpi * q[j] + dai * k[j]);
        }
    }
    for (int j = 0; j < n; j++) {
        row->sum_q[d + j] = sum_q[j];
        row->sum_k[d + j] = sum_k[j];
    }
}

HOT static void inner_row_backward(const InnerRow *row)
{
    int64_t d = 0;
    for (; d + LANES <= row->dk; d += LANES) {
        inner_lanes_backward(row, d, LANES);
    }
    if (d < row->dk) {
        inner_lanes_backward(row, d, (int)(row->dk - d));
    }
}

/* Pairs inside the sub-chunk: inner[i] = decay from row i to row r. sum_k and sum_q gather row r; back gathers rows i.
 */
static double inner_pairs_backward(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch,
                                   const DeltaGradients *grads)
{
    int64_t dk = head->dk, ld = head->chunk, first = sub->start + sub->i0;
    memset(scratch->back, 0, (size_t)(sub->b * dk) * sizeof *scratch->back);
    for (int64_t r = 0; r < sub->b; r++) {
        int64_t at = (first + r) * dk;
        const real *w = head->w + at, *k = head->k + at, *q = head->q + at;
        const real *da = grads->a + (first + r) * ld + sub->i0, *dp = grads->p + (first + r) * ld + sub->i0;
        InnerRow row = {r,
                        dk,
                        dp,
                        da,
                        w,
                        q,
                        k,
                        head->k + first * dk,
                        scratch->inner,
                        scratch->back,
                        scratch->sum_q,
                        scratch->sum_k};
        inner_row_backward(&row);
        finish_row(dk, q, scratch->sum_q, NULL, grads->q + at, grads->g + at);
        finish_row(dk, k, scratch->sum_k, NULL, grads->k + at, grads->g + at);
    }
    int64_t at = first * dk;
    finish_columns(sub->b * dk, head->k + at, scratch->back, grads->k + at, grads->g + at);
    /* strict pairs 11; per row: the diagonal 3, both sides 6, the column 3 */
    return (double)dk * (11.0 * (double)(sub->b * (sub->b - 1) / 2) + 12.0 * (double)sub->b);
}

static double pairs_backward_visit(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, void *data)
{
    const DeltaGradients *grads = data;
    double flops = sub->i0 > 0 ? outer_pairs_backward(head, sub, scratch, grads) : 0;
    flops += inner_pairs_backward(head, sub, scratch, grads);
    return flops + advance_reach(head, sub, scratch);
}

double REAL_NAME(delta_pairs_backward)(const DeltaHead *head, const DeltaGradients *grads)
{
    DeltaGradients copy = *grads;
    return each_sub_chunk(head, pairs_backward_visit, &copy);
}
