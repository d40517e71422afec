#include "models/delta-rule.h"

#include <string.h>

#include "models/hot.h"
#include "models/vector.h"

/*
 * Written as the rule reads, and as well as that can be: the state passes through twice per row, once to decay and to be
 * read by the key, once to be written and read by the query; everything runs along value columns, which vectors like.
 * Sums along columns (backward) are kept in vectors.
 */

/* to = Diag(w) from, sum = to^T k. `to` may be `from`. */
HOT static void state_decay_read(const DeltaHead *head, int64_t t, const real *from, real *to, real *restrict sum)
{
    int64_t dk = head->dk, dv = head->dv;
    const real *w = head->w + t * dk, *k = head->k + t * dk;
    memset(sum, 0, (size_t)dv * sizeof *sum);
    for (int64_t d = 0; d < dk; d++) {
#pragma GCC ivdep
        for (int64_t j = 0; j < dv; j++) {
            real decayed = w[d] * from[d * dv + j];
            to[d * dv + j] = decayed;
            sum[j] += decayed * k[d];
        }
    }
}

/* state += x y^T, sum = state^T z. */
HOT static void state_write_read(int64_t dk, int64_t dv, const real *x, const real *restrict y, const real *z,
                                 real *restrict state, real *restrict sum)
{
    memset(sum, 0, (size_t)dv * sizeof *sum);
    for (int64_t d = 0; d < dk; d++) {
        real *restrict row = state + d * dv;
        for (int64_t j = 0; j < dv; j++) {
            real written = row[j] + x[d] * y[j];
            row[j] = written;
            sum[j] += written * z[d];
        }
    }
}

/* state += x y^T */
HOT static void state_write(int64_t dk, int64_t dv, const real *x, const real *restrict y, real *restrict state)
{
    for (int64_t d = 0; d < dk; d++) {
        for (int64_t j = 0; j < dv; j++) {
            state[d * dv + j] += x[d] * y[j];
        }
    }
}

/* sum = state^T z */
HOT static void state_read(int64_t dk, int64_t dv, const real *restrict state, const real *z, real *restrict sum)
{
    memset(sum, 0, (size_t)dv * sizeof *sum);
    for (int64_t d = 0; d < dk; d++) {
        for (int64_t j = 0; j < dv; j++) {
            sum[j] += state[d * dv + j] * z[d];
        }
    }
}

/* e = v - e, u = beta e, where e holds what the key reads. */
HOT static void correct(int64_t dv, const real *restrict v, real beta, real *restrict e, real *restrict u)
{
    for (int64_t j = 0; j < dv; j++) {
        e[j] = v[j] - e[j];
        u[j] = beta * e[j];
    }
}

/* One row: `to` becomes S_t from S_{t-1} (which may be the same); e gets v - S~^T k, u gets beta e; o unless NULL. */
static void recurrent_step(const DeltaHead *head, int64_t t, const real *from, real *to, real *e, real *u, real *o)
{
    int64_t dk = head->dk, dv = head->dv;
    const real *k = head->k + t * dk;
    state_decay_read(head, t, from, to, e);
    correct(dv, head->v + t * dv, head->beta[t], e, u);
    if (o != NULL) {
        state_write_read(dk, dv, k, u, head->q + t * dk, to, o);
    } else {
        state_write(dk, dv, k, u, to);
    }
}

static real *recurrent_start(const DeltaHead *head)
{
    real *state = g_new0(real, (gsize)(head->dk * head->dv));
    if (head->state != NULL) {
        memcpy(state, head->state, (size_t)(head->dk * head->dv) * sizeof *state);
    }
    return state;
}

void REAL_NAME(delta_recurrent_forward)(const DeltaHead *head, real *o, real *last_state)
{
    g_autofree real *state = recurrent_start(head);
    g_autofree real *e = g_new(real, (gsize)head->dv), *u = g_new(real, (gsize)head->dv);
    for (int64_t t = 0; t < head->n; t++) {
        recurrent_step(head, t, state, state, e, u, o + t * head->dv);
    }
    if (last_state != NULL) {
        memcpy(last_state, state, (size_t)(head->dk * head->dv) * sizeof *state);
    }
}

/* What the backward pass of one row needs: states before and after it, e and u, dS, one vector of scratch. */
typedef struct RecurrentRow {
    const real *before, *after, *e, *u;
    real *dstate, *de;
} RecurrentRow;

/* Sums over the columns of one channel. */
typedef struct ChannelSums {
    real q, k, g;
} ChannelSums;

/* A channel whose decay is w and key k; d_o may be NULL. dstate moves before the row. */
HOT static ChannelSums channel_backward(const RecurrentRow *row, const real *d_o, int64_t d, int64_t dv, real w, real k)
{
    const real *restrict before = row->before + d * dv, *restrict after = row->after + d * dv;
    const real *restrict u = row->u, *restrict de = row->de;
    real *restrict dstate = row->dstate + d * dv;
    Vector q_sums = {0}, k_sums = {0}, g_sums = {0};
    int64_t j = 0;
    for (; j + VECTOR <= dv; j += VECTOR) {
        Vector decayed, ds, uj, dej, dj, oj;
        vector_load(&decayed, before + j);
        vector_load(&ds, dstate + j);
        vector_load(&uj, u + j);
        vector_load(&dej, de + j);
        decayed *= w;
        k_sums += ds * uj - decayed * dej;
        ds -= k * dej;
        g_sums += decayed * ds;
        ds *= w;
        vector_store(&ds, dstate + j);
        if (d_o != NULL) {
            vector_load(&dj, d_o + j);
            vector_load(&oj, after + j);
            q_sums += oj * dj;
        }
    }
    ChannelSums sums = {vector_sum(&q_sums), vector_sum(&k_sums), vector_sum(&g_sums)};
    for (; j < dv; j++) {
        real decayed = w * before[j], ds = dstate[j];
        sums.k += ds * u[j] - decayed * de[j];
        ds -= k * de[j];
        sums.g += decayed * ds;
        dstate[j] = w * ds;
        sums.q += d_o != NULL ? after[j] * d_o[j] : 0;
    }
    return sums;
}

/* Gradients of one row (kernels.md 2.2), and dS from behind the row to before it. */
static void recurrent_row_backward(const DeltaHead *head, int64_t t, const real *d_o, const RecurrentRow *row,
                                   const DeltaGradients *grads)
{
    int64_t dk = head->dk, dv = head->dv;
    const real *q = head->q + t * dk, *k = head->k + t * dk, *w = head->w + t * dk;
    if (d_o != NULL) {
        state_write_read(dk, dv, q, d_o, k, row->dstate, row->de);
    } else {
        state_read(dk, dv, row->dstate, k, row->de);
    }
    real dbeta = 0;
    for (int64_t j = 0; j < dv; j++) {
        dbeta += row->de[j] * row->e[j];
        row->de[j] *= head->beta[t];
        grads->v[t * dv + j] = row->de[j];
    }
    grads->beta[t] = dbeta;
    for (int64_t d = 0; d < dk; d++) {
        ChannelSums sums = channel_backward(row, d_o, d, dv, w[d], k[d]);
        grads->q[t * dk + d] = sums.q;
        grads->k[t * dk + d] = sums.k;
        grads->g[t * dk + d] = sums.g;
    }
}

/* Rows [start, end): replays the states from the one before `start`, then walks back. */
static void recurrent_span_backward(const DeltaHead *head, int64_t start, int64_t end, const real *first,
                                    const DeltaUpstream *up, real *states, real *dstate, const DeltaGradients *grads)
{
    int64_t size = head->dk * head->dv, n = end - start;
    g_autofree real *e = g_new(real, (gsize)(n * head->dv + 1)), *u = g_new(real, (gsize)(n * head->dv + 1));
    g_autofree real *de = g_new(real, (gsize)head->dv);
    memcpy(states, first, (size_t)size * sizeof *states);
    for (int64_t i = 0; i < n; i++) {
        real *state = states + i * size;
        recurrent_step(head, start + i, state, state + size, e + i * head->dv, u + i * head->dv, NULL);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        int64_t t = start + i;
        const RecurrentRow row = {
            states + i * size, states + (i + 1) * size, e + i * head->dv, u + i * head->dv, dstate, de};
        recurrent_row_backward(head, t, up->o != NULL ? up->o + t * head->dv : NULL, &row, grads);
    }
}

void REAL_NAME(delta_recurrent_backward)(const DeltaHead *head, const DeltaUpstream *up, const DeltaGradients *grads)
{
    int64_t size = head->dk * head->dv, n_spans = (head->n + head->chunk - 1) / head->chunk;
    g_autofree real *starts = g_new(real, (gsize)(n_spans * size + 1));
    g_autofree real *states = g_new(real, (gsize)((head->chunk + 1) * size));
    g_autofree real *state = recurrent_start(head), *dstate = g_new0(real, (gsize)size);
    g_autofree real *e = g_new(real, (gsize)head->dv), *u = g_new(real, (gsize)head->dv);
    for (int64_t t = 0; t < head->n; t++) {
        if (t % head->chunk == 0) {
            memcpy(starts + t / head->chunk * size, state, (size_t)size * sizeof *state);
        }
        recurrent_step(head, t, state, state, e, u, NULL);
    }
    if (up->state != NULL) {
        memcpy(dstate, up->state, (size_t)size * sizeof *dstate);
    }
    for (int64_t s = n_spans - 1; s >= 0; s--) {
        int64_t end = MIN(head->n, (s + 1) * head->chunk);
        recurrent_span_backward(head, s * head->chunk, end, starts + s * size, up, states, dstate, grads);
    }
    if (grads->state != NULL) {
        memcpy(grads->state, dstate, (size_t)size * sizeof *dstate);
    }
}
