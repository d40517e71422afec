#include "models/delta-eager.h"

#include <string.h>

#include "models/delta-op.h"
#include "models/real-math.h"

enum { AUX_FACTORS, AUX_ROWS, AUX_INVERSE, AUX_PAIRS };
enum { KEYS = 8, VALUES = 4, MATRICES = 4 }; /* vectors of a row: of a key's size, of a value's; rows of matrices */

/* What is kept of one row and value head in an auxiliary tensor, and how much that is. */
static real *kept_row(const OpRun *run, const DeltaShape *shape, int aux, int64_t row, int64_t head, int64_t *ret_n)
{
    *ret_n = tensor_numel(run->aux[aux]) / MAX(op_rows(run->view, ROWS_TOKENS), 1) / shape->value_heads;
    return real_data(run->aux[aux]) + (row * shape->value_heads + head) * *ret_n;
}

/* Decays from every earlier row of the chunk to row r, and k and q times them. */
static void keep_factors(const DeltaHead *rule, int64_t t, real *kept)
{
    int64_t dk = rule->dk, r = t % rule->chunk, part = rule->chunk * dk;
    memset(kept, 0, (size_t)(4 * part) * sizeof *kept);
    for (int64_t d = 0; d < dk; d++) {
        real decay = 1;
        for (int64_t j = r; j >= 0; j--) {
            kept[j * dk + d] = kept[2 * part + j * dk + d] = decay;
            kept[part + j * dk + d] = rule->k[t * dk + d] * decay;
            kept[3 * part + j * dk + d] = rule->q[t * dk + d] * decay;
            decay *= rule->w[(t - r + j) * dk + d];
        }
    }
}

/* Product of the decays of rows first ... last of a channel. */
static real decay_over(const DeltaHead *rule, int64_t first, int64_t last, int64_t d)
{
    real product = 1;
    for (int64_t t = first; t <= last; t++) {
        product *= rule->w[t * rule->dk + d];
    }
    return product;
}

static void keep_row(const DeltaArrays *arrays, int64_t t, real *kept)
{
    const DeltaHead *rule = &arrays->rule;
    int64_t dk = rule->dk, dv = rule->dv, first = t - t % rule->chunk, end = MIN(first + rule->chunk, rule->n);
    for (int64_t d = 0; d < dk; d++) {
        real q = rule->q[t * dk + d], k = rule->k[t * dk + d], since = decay_over(rule, first, t, d);
        const real vectors[KEYS] = {q,
                                    k,
                                    rule->w[t * dk + d],
                                    since,
                                    q * since,
                                    k * since,
                                    k * decay_over(rule, t + 1, end - 1, d),
                                    k * rule->beta[t]};
        for (int64_t i = 0; i < KEYS; i++) {
            kept[i * dk + d] = vectors[i];
        }
    }
    for (int64_t d = 0; d < dv; d++) {
        const real vectors[VALUES] = {rule->v[t * dv + d], rule->v[t * dv + d] * rule->beta[t], arrays->o[t * dv + d],
                                      rule->beta[t]};
        for (int64_t i = 0; i < VALUES; i++) {
            kept[KEYS * dk + i * dv + d] = vectors[i];
        }
    }
}

/* Rows of the pair matrices, of beta a, and of the inverse of 1 + beta a, whose earlier rows lie in `inverse` [chunk,
 * chunk]. */
static void keep_pairs(const DeltaHead *rule, int64_t t, real *inverse, real *kept)
{
    int64_t n = rule->chunk, r = t % n;
    real *row = inverse + r * n;
    memcpy(kept, rule->a + t * n, (size_t)n * sizeof *kept);
    memcpy(kept + n, rule->p + t * n, (size_t)n * sizeof *kept);
    memset(row, 0, (size_t)n * sizeof *row);
    row[r] = 1;
    for (int64_t i = 0; i < n; i++) {
        kept[2 * n + i] = rule->beta[t] * rule->a[t * n + i];
        for (int64_t j = 0; i < r && j <= i; j++) {
            row[j] -= kept[2 * n + i] * inverse[i * n + j];
        }
    }
    memcpy(kept + 3 * n, row, (size_t)n * sizeof *kept);
}

void REAL_NAME(delta_eager_keep)(const OpRun *run, const DeltaShape *shape, const DeltaArrays *arrays, int64_t start,
                                 int64_t value_head)
{
    const DeltaHead *rule = &arrays->rule;
    g_autofree real *inverse = g_new0(real, (gsize)(rule->chunk * rule->chunk));
    for (int64_t t = 0; t < rule->n; t++) {
        int64_t n;
        keep_factors(rule, t, kept_row(run, shape, AUX_FACTORS, start + t, value_head, &n));
        keep_row(arrays, t, kept_row(run, shape, AUX_ROWS, start + t, value_head, &n));
        keep_pairs(rule, t, inverse, kept_row(run, shape, AUX_PAIRS, start + t, value_head, &n));
        real *rows = kept_row(run, shape, AUX_INVERSE, start + t, value_head, &n);
        for (int64_t i = 0; i < n; i++) {
            rows[i] = inverse[t % rule->chunk * rule->chunk + i % rule->chunk];
        }
    }
}

void REAL_NAME(delta_eager_pairs)(const OpRun *run, const DeltaShape *shape, int64_t start, int64_t value_head,
                                  DeltaArrays *arrays)
{
    int64_t n, chunk = shape->chunk;
    for (int64_t t = 0; t < arrays->rule.n; t++) {
        const real *kept = kept_row(run, shape, AUX_PAIRS, start + t, value_head, &n);
        memcpy(arrays->a + t * chunk, kept, (size_t)chunk * sizeof *kept);
        memcpy(arrays->p + t * chunk, kept + chunk, (size_t)chunk * sizeof *kept);
    }
}

void REAL_NAME(delta_eager_enter)(const OpRun *run, const DeltaShape *shape, const OpSaved *fused,
                                  DeltaEager *ret_eager)
{
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), dv = shape->value_dim, n;
    *ret_eager = (DeltaEager){.run = *run};
    for (int i = 0; i < OP_AUX_MAX; i++) {
        ret_eager->own[i] =
            i < fused->n_aux ? tensor_new_2d(REAL_TENSOR, op_rows(run->view, fused->aux[i].rows), fused->aux[i].width)
                             : NULL;
        ret_eager->run.aux[i] = ret_eager->own[i];
    }
    if (run->in[DELTA_IN_V] != NULL) {
        return;
    }
    Tensor *v = tensor_new_2d(REAL_TENSOR, tokens, shape->value_heads * dv);
    for (int64_t i = 0; i < tokens * shape->value_heads; i++) {
        const real *kept = kept_row(run, shape, AUX_ROWS, i / shape->value_heads, i % shape->value_heads, &n);
        memcpy(real_data(v) + i * dv, kept + KEYS * shape->key_dim, (size_t)dv * sizeof *kept);
    }
    ret_eager->own[OP_AUX_MAX] = v;
    ret_eager->run.in[DELTA_IN_V] = v;
}

void REAL_NAME(delta_eager_leave)(DeltaEager *eager)
{
    for (guint i = 0; i < G_N_ELEMENTS(eager->own); i++) {
        tensor_free(eager->own[i]);
    }
}
