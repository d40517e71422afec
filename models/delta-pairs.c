#include "models/delta-rule.h"

#include <string.h>

#include "models/matmul.h"

/*
 * Pair terms where decays differ by channel. Pairs of different sub-chunks factor at the start of the later one: the
 * row's side is decayed from there, the other side up to there, and a matrix product does the rest. Pairs inside a
 * sub-chunk are formed one by one, the decay between them carried along.
 */
typedef struct PairScratch {
    real *block;            /* owns the rest */
    real *keys, *queries;   /* [B, dk] rows of the sub-chunk, decayed from its start */
    real *decay;            /* [B, dk] that decay */
    real *reach, *reached;  /* [C, dk] earlier rows: decay up to the sub-chunk's start, and keys times it */
    real *inner;            /* [dk, B] or [B, dk] decays (times keys) inside the sub-chunk */
    real *sum_q, *sum_k;    /* [B, dk] */
    real *back;             /* [C, dk] */
} PairScratch;

static void pair_scratch_init(PairScratch *scratch, const DeltaHead *head)
{
    int64_t small = DELTA_BLOCK * head->dk, large = head->chunk * head->dk;
    real **blocks[] = {&scratch->keys, &scratch->queries, &scratch->decay, &scratch->inner, &scratch->sum_q, &scratch->sum_k};
    int64_t n_blocks = G_N_ELEMENTS(blocks);
    scratch->block = g_new(real, (gsize)(n_blocks * small + 3 * large));
    for (int64_t i = 0; i < n_blocks; i++) {
        *blocks[i] = scratch->block + i * small;
    }
    scratch->reach = scratch->block + n_blocks * small;
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
    g_free(scratch.block);
    return flops;
}

/* Rows of the sub-chunk decayed from its start. 3 operations per element. */
static double decay_rows(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
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
static double advance_reach(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
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
static double reach_keys(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch)
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
 * Pairs inside a sub-chunk: inner[d, i] = k_i[d] decayed to row r, for all rows of the sub-chunk at once (zeros where
 * i > r). Sums run along d, so the rows i are the lanes.
 */
static double inner_pairs(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, real *a, real *p)
{
    int64_t dk = head->dk, offset = (sub->start + sub->i0) * dk;
    memset(scratch->inner, 0, (size_t)(DELTA_BLOCK * dk) * sizeof *scratch->inner);
    for (int64_t r = 0; r < sub->b; r++) {
        const real *w = head->w + offset + r * dk, *k = head->k + offset + r * dk, *q = head->q + offset + r * dk;
        real key_sums[DELTA_BLOCK] = {0}, query_sums[DELTA_BLOCK] = {0}, self = 0;
        for (int64_t d = 0; d < dk; d++) {
            real *lanes = scratch->inner + d * DELTA_BLOCK;
            for (int i = 0; i < DELTA_BLOCK; i++) {
                lanes[i] *= w[d];
                key_sums[i] += k[d] * lanes[i];
                query_sums[i] += q[d] * lanes[i];
            }
            lanes[r] = k[d];
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
        Matmul shape = {.m = sub->b, .n = sub->i0, .k = dk, .trans_b = TRUE, .lda = dk, .ldb = dk, .ldc = ld, .alpha = 1};
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
static void finish_row(int64_t dk, const real *x, const real *sum, const real *decay, real *dx, real *dg)
{
    for (int64_t d = 0; d < dk; d++) {
        real share = decay != NULL ? decay[d] * sum[d] : sum[d];
        dx[d] += share;
        dg[d] += x[d] * share;
    }
}

/* Pairs with earlier sub-chunks, both directions. */
static double outer_pairs_backward(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, const DeltaGradients *grads)
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
    for (int64_t i = 0; i < sub->i0 * dk; i++) {
        int64_t at = sub->start * dk + i;
        real share = scratch->reach[i] * scratch->back[i];
        grads->k[at] += share;
        grads->g[at] -= head->k[at] * share;
    }
    return flops + 8.0 * (double)(sub->b * sub->i0 * dk) + 8.0 * (double)(sub->b * dk) + 4.0 * (double)(sub->i0 * dk);
}

/* Pairs inside the sub-chunk: inner[i] = decay from row i to row r. sum_k and sum_q gather row r; back gathers rows i. */
static double inner_pairs_backward(const DeltaHead *head, const SubChunk *sub, PairScratch *scratch, const DeltaGradients *grads)
{
    int64_t dk = head->dk, ld = head->chunk, first = sub->start + sub->i0;
    memset(scratch->back, 0, (size_t)(sub->b * dk) * sizeof *scratch->back);
    for (int64_t r = 0; r < sub->b; r++) {
        int64_t at = (first + r) * dk;
        const real *w = head->w + at, *k = head->k + at, *q = head->q + at;
        const real *da = grads->a + (first + r) * ld + sub->i0, *dp = grads->p + (first + r) * ld + sub->i0;
        real *sum_q = scratch->sum_q, *sum_k = scratch->sum_k, *own = scratch->back + r * dk;
        for (int64_t d = 0; d < dk; d++) {
            sum_q[d] = dp[r] * k[d];
            sum_k[d] = 0;
            own[d] += dp[r] * q[d];
        }
        for (int64_t i = 0; i < r; i++) {
            real *inner = scratch->inner + i * dk, *back = scratch->back + i * dk;
            const real *ki = head->k + (first + i) * dk;
            for (int64_t d = 0; d < dk; d++) {
                inner[d] = i == r - 1 ? w[d] : inner[d] * w[d];
                real decayed = inner[d] * ki[d];
                sum_q[d] += dp[i] * decayed;
                sum_k[d] += da[i] * decayed;
                back[d] += inner[d] * (dp[i] * q[d] + da[i] * k[d]);
            }
        }
        finish_row(dk, q, sum_q, NULL, grads->q + at, grads->g + at);
        finish_row(dk, k, sum_k, NULL, grads->k + at, grads->g + at);
    }
    for (int64_t i = 0; i < sub->b * dk; i++) {
        int64_t at = first * dk + i;
        grads->k[at] += scratch->back[i];
        grads->g[at] -= head->k[at] * scratch->back[i];
    }
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
