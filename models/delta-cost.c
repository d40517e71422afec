#include "models/delta-cost.h"

#include "models/sequences.h"
#include "sim/base/quantity.h"

/* One chunk of c tokens. */
static void sums_add(DeltaSums *sums, int64_t c, int64_t n)
{
    int64_t n_full = c / DELTA_BLOCK, rest = c % DELTA_BLOCK;
    sums->n_chunks += n;
    sums->n_tokens += n * c;
    sums->squares += n * c * c;
    sums->block_pairs += n * (n_full * DELTA_BLOCK * (DELTA_BLOCK - 1) / 2 + rest * (rest - 1) / 2);
    sums->block_reach += n * (DELTA_BLOCK * n_full * (n_full - 1) / 2 + (rest > 0 ? n_full * DELTA_BLOCK : 0));
    sums->late_rows += n * (c - MIN(c, DELTA_BLOCK));
    int64_t n_early = (c - 1) / DELTA_BLOCK;
    sums->early_rows += n * n_early * DELTA_BLOCK;
    sums->early_reach += n * DELTA_BLOCK * n_early * (n_early - 1) / 2;
}

DeltaSums delta_sums(const RowCounts *rows, int64_t chunk)
{
    DeltaSums sums = {.n_sequences = sequences_count(rows, ROWS_TOKENS)};
    for (int64_t i = 0; i < sums.n_sequences; i++) {
        int64_t length = sequences_start(rows, ROWS_TOKENS, i + 1) - sequences_start(rows, ROWS_TOKENS, i);
        sums_add(&sums, chunk, length / chunk);
        if (length % chunk > 0) {
            sums_add(&sums, length % chunk, 1);
        }
    }
    return sums;
}

int64_t delta_work_numel(const DeltaShape *shape, int64_t n_rows)
{
    int64_t size = shape->key_dim * shape->value_dim, n_chunks = quantity_div_up(n_rows, shape->chunk);
    int64_t chunk = shape->chunk * (8 * shape->key_dim + 2 * shape->value_dim) + shape->key_dim;
    int64_t pairs = (6 * DELTA_BLOCK + 3 * shape->chunk) * shape->key_dim;
    return (n_chunks + 2) * size + 2 * n_rows * shape->value_dim + MAX(chunk, pairs);
}

/* Sums as doubles, for FLOPs. */
typedef struct FlopSums {
    double dk, dv, n_chunks, tokens, squares, block_pairs, reach, late, early, strict_pairs;
} FlopSums;

static FlopSums flop_sums(const DeltaShape *shape, const DeltaSums *sums)
{
    return (FlopSums){
        .dk = (double)shape->key_dim,
        .dv = (double)shape->value_dim,
        .n_chunks = (double)sums->n_chunks,
        .tokens = (double)sums->n_tokens,
        .squares = (double)sums->squares,
        .block_pairs = (double)sums->block_pairs,
        .reach = (double)sums->block_reach,
        .late = (double)sums->late_rows,
        .early = (double)(sums->early_rows + sums->early_reach),
        .strict_pairs = (double)((sums->squares - sums->n_tokens) / 2),
    };
}

/*
 * delta-chunk.c: three products with the state; the solve and the read-out over pairs (2 c^2 dv together); decays and
 * scaling (5 per key element), beta, the state's decay. Pairs: two dot products (2 c^2 dk together) and, where decays
 * differ by channel, the decays between rows (delta-pairs.c); else one decay and two products per pair (gdn.c).
 */
double delta_forward_flops(const DeltaShape *shape, const DeltaSums *sums)
{
    FlopSums s = flop_sums(shape, sums);
    double heads = (double)shape->heads, value_heads = (double)shape->value_heads;
    double core = 6 * s.tokens * s.dk * s.dv + 2 * s.squares * s.dv;
    core += 5 * s.tokens * s.dk + s.tokens * s.dv + s.n_chunks * s.dk * s.dv;
    double dots = 2 * s.squares * s.dk;
    double decays = s.dk * (s.block_pairs + 3 * s.late + s.reach + s.early);
    return shape->per_channel ? value_heads * (core + dots + decays)
                              : value_heads * (core + 3 * s.strict_pairs) + heads * dots;
}

double delta_backward_flops(const DeltaShape *shape, const DeltaSums *sums)
{
    FlopSums s = flop_sums(shape, sums);
    double heads = (double)shape->heads, value_heads = (double)shape->value_heads;
    double core = 16 * s.tokens * s.dk * s.dv + 5 * s.squares * s.dv;
    core += 3 * s.tokens * s.dv + s.dk * (20 * s.tokens + s.n_chunks) + 4 * s.n_chunks * s.dk * s.dv;
    double dots = 4 * s.squares * s.dk;
    double decays = s.dk * (8 * s.tokens + 3 * s.block_pairs + 11 * s.late + 5 * s.reach + s.early);
    return shape->per_channel ? value_heads * (core + dots + decays)
                              : value_heads * (core + 12 * s.strict_pairs + s.tokens) + heads * dots;
}

/* Bytes of one bf16 state per chunk and head. */
static int64_t states_bytes(const DeltaShape *shape, const DeltaSums *sums)
{
    return 2 * sums->n_chunks * shape->value_heads * shape->key_dim * shape->value_dim;
}

/* Cumulative decays in fp32; W, scaled keys, U and new values in bf16; chunk states. */
int64_t delta_forward_workspace(const DeltaShape *shape, const DeltaSums *sums)
{
    int64_t dk = shape->key_dim, dv = shape->value_dim;
    int64_t decay = 4 * (shape->per_channel ? dk : 1);
    return sums->n_tokens * shape->value_heads * (decay + 4 * dk + 4 * dv) + states_bytes(shape, sums);
}

/*
 * At the pair stage: decays; W, U, scaled q and k, new values; states and their gradients; fp32 gradients of both
 * pair matrices; fp32 gradients of q, k and g twice (before and after the pair terms), of beta with its partial
 * sums; less the bf16 gradients of q, k, z and beta, which exist later.
 */
int64_t delta_backward_workspace(const DeltaShape *shape, const DeltaSums *sums)
{
    int64_t dk = shape->key_dim, dv = shape->value_dim, gate = shape->per_channel ? dk : 1;
    int64_t kept_forward = 4 * gate + 6 * dk + 4 * dv;
    int64_t pairs = 8 * shape->chunk;
    int64_t gradients = 2 * 4 * (2 * dk + gate) + 24;
    int64_t final = 4 * dk + 2 * gate + 2;
    int64_t per_token = kept_forward + pairs + gradients - final;
    return sums->n_tokens * shape->value_heads * per_token + 2 * states_bytes(shape, sums);
}

/* Elements over all tokens and value heads, in fp32: key side, value side, pair matrices, one per token. */
typedef struct EagerSizes {
    int64_t key, value, pair, one;
    int n_steps; /* chunks of a sequence, one after the other */
    int chunk;
} EagerSizes;

static EagerSizes eager_sizes(const DeltaShape *shape, const DeltaSums *sums)
{
    int64_t n = sums->n_tokens * shape->value_heads;
    int64_t steps = MAX(1, quantity_div_up(sums->n_chunks, MAX(1, sums->n_sequences)));
    return (EagerSizes){
        .key = 4 * n * shape->key_dim,
        .value = 4 * n * shape->value_dim,
        .pair = 4 * n * shape->chunk,
        .one = 4 * n,
        .n_steps = (int)MIN(steps, G_MAXINT16),
        .chunk = (int)shape->chunk,
    };
}

/* A kernel of the chain, `launches` times over these bytes each. */
static void eager_kernel(OpCost *cost, WorkLaw law, int64_t read, int64_t written, int launches)
{
    op_cost_stream(cost, law, (double)(written / 4), read, written)->n_launches = launches;
}

/* A batched fp32 product over all tokens: rows x n results of inner size k, both operands per token. */
static void eager_product(OpCost *cost, int64_t rows, int64_t n, int64_t k, int64_t other, int launches)
{
    Work *work = op_cost_gemm(cost, WORK_GEMM_NN, DTYPE_FP32, rows / launches, n, k);
    work->read_bytes = 4 * (rows * k) / launches + other / launches;
    work->n_launches = launches;
}

/* One pair matrix, column by column: decay differences, exponentials, products, dot products. */
static void eager_pair_matrix(OpCost *cost, const EagerSizes *size, int n_steps)
{
    int launches = size->chunk * n_steps;
    int64_t key = size->key / n_steps, one = size->one / n_steps;
    eager_kernel(cost, WORK_ELEMENTWISE, key + key / size->chunk, key, launches);
    eager_kernel(cost, WORK_ELEMENTWISE, key, key, launches);
    eager_kernel(cost, WORK_ELEMENTWISE, 2 * key, key, launches);
    eager_kernel(cost, WORK_REDUCE, key + key / size->chunk, one, launches);
    eager_kernel(cost, WORK_STRIDED, one, one, launches);
}

void delta_eager_forward(const DeltaShape *shape, const DeltaSums *sums, OpCost *cost)
{
    EagerSizes size = eager_sizes(shape, sums);
    int64_t rows = size.one / 4, third = size.pair / 3;
    eager_kernel(cost, WORK_COPY, size.key / 2, size.key, 3);    /* q, k, z to fp32 */
    eager_kernel(cost, WORK_ELEMENTWISE, size.key, size.key, 4); /* gate */
    eager_kernel(cost, WORK_ELEMENTWISE, size.key, size.key, 4); /* squares, scaled q and k */
    eager_kernel(cost, WORK_REDUCE, size.key, size.one, 2);
    eager_kernel(cost, WORK_ELEMENTWISE, size.one, size.one, 4); /* roots, write strength */
    eager_kernel(cost, WORK_STRIDED, size.key, size.key, 3);     /* chunks to the front */
    eager_kernel(cost, WORK_STRIDED, size.value / 2, size.value, 1);
    eager_kernel(cost, WORK_ELEMENTWISE, size.key, size.key, 1); /* q times scale */
    eager_kernel(cost, WORK_STRIDED, size.key, size.key, 1);     /* cumulative decay */
    eager_pair_matrix(cost, &size, 1);
    eager_kernel(cost, WORK_ELEMENTWISE, size.pair + size.one, size.pair, 3); /* times beta, sign, mask */
    eager_kernel(cost, WORK_COPY, third, third, 2 * (size.chunk - 1));        /* inverse, row by row */
    eager_kernel(cost, WORK_ELEMENTWISE, 2 * third, third, size.chunk - 1);
    eager_kernel(cost, WORK_REDUCE, third, size.one / 2, size.chunk - 1);
    eager_kernel(cost, WORK_ELEMENTWISE, size.pair + size.one, size.pair, 2);
    eager_kernel(cost, WORK_ELEMENTWISE, size.key, size.key, 1);
    eager_kernel(cost, WORK_ELEMENTWISE, 2 * size.key, size.key, 1);
    eager_product(cost, rows, shape->key_dim, shape->chunk, size.key, 1);
    eager_product(cost, rows, shape->value_dim, shape->chunk, size.value, 1);
    eager_pair_matrix(cost, &size, size.n_steps);
    eager_kernel(cost, WORK_ELEMENTWISE, size.pair / size.n_steps, size.pair / size.n_steps, size.n_steps);
    eager_product(cost, rows, shape->value_dim, shape->key_dim, size.value, size.n_steps); /* W S */
    eager_kernel(cost, WORK_ELEMENTWISE, 2 * size.value / size.n_steps, size.value / size.n_steps, 2 * size.n_steps);
    eager_kernel(cost, WORK_ELEMENTWISE, 2 * size.key / size.n_steps, size.key / size.n_steps, 5 * size.n_steps);
    eager_product(cost, rows, shape->value_dim, shape->key_dim, size.value, size.n_steps); /* Q S */
    eager_product(cost, rows, shape->value_dim, shape->chunk, size.value, size.n_steps);   /* A U */
    eager_product(cost, rows, shape->value_dim, shape->key_dim, size.value, size.n_steps); /* K U */
    eager_kernel(cost, WORK_STRIDED, size.value, size.value / 2, 1);
    cost->workspace_bytes = 4 * size.key + 2 * size.value;
}

/* Autograd runs two kernels for each of the forward pass: nearly all of them are products of two tensors. */
void delta_eager_backward(const DeltaShape *shape, const DeltaSums *sums, OpCost *cost)
{
    delta_eager_forward(shape, sums, cost);
    for (int i = 0; i < cost->n_works; i++) {
        cost->works[i].n_launches *= 2;
    }
    cost->workspace_bytes *= 2;
}

/* Both factors of every column of both pair matrices; decays, scaled q and k; the rows of the inverse. */
void delta_eager_saved(const DeltaShape *shape, OpSaved *saved)
{
    int64_t heads = shape->value_heads;
    saved->idle_aux = 1u << 0 | 1u << 2; /* the value kernels derive the pair matrices and the inverse in closed form */
    op_saved_aux(saved, ROWS_TOKENS, heads * 4 * shape->chunk * shape->key_dim, DTYPE_FP32);
    op_saved_aux(saved, ROWS_TOKENS, heads * (8 * shape->key_dim + 4 * shape->value_dim), DTYPE_FP32);
    op_saved_aux(saved, ROWS_TOKENS, heads * 2 * shape->chunk * shape->chunk / 3, DTYPE_FP32);
    op_saved_aux(saved, ROWS_TOKENS, heads * 4 * shape->chunk, DTYPE_FP32);
}
