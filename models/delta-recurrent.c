#include "models/delta-rule.h"

#include <string.h>

/* S = Diag(w) S. */
static void state_decay(const DeltaHead *head, int64_t t, real *state)
{
    for (int64_t d = 0; d < head->dk; d++) {
        for (int64_t j = 0; j < head->dv; j++) {
            state[d * head->dv + j] *= head->w[t * head->dk + d];
        }
    }
}

/* to = S^T x */
static void state_read(const DeltaHead *head, const real *state, const real *x, real *to)
{
    memset(to, 0, (size_t)head->dv * sizeof *to);
    for (int64_t d = 0; d < head->dk; d++) {
        for (int64_t j = 0; j < head->dv; j++) {
            to[j] += state[d * head->dv + j] * x[d];
        }
    }
}

/* S += x y^T */
static void state_write(const DeltaHead *head, real *state, const real *x, const real *y)
{
    for (int64_t d = 0; d < head->dk; d++) {
        for (int64_t j = 0; j < head->dv; j++) {
            state[d * head->dv + j] += x[d] * y[j];
        }
    }
}

/* One row: state becomes S_t; e gets v - S~^T k, u gets beta e. */
static void recurrent_step(const DeltaHead *head, int64_t t, real *state, real *e, real *u)
{
    const real *k = head->k + t * head->dk, *v = head->v + t * head->dv;
    state_decay(head, t, state);
    state_read(head, state, k, e);
    for (int64_t j = 0; j < head->dv; j++) {
        e[j] = v[j] - e[j];
        u[j] = head->beta[t] * e[j];
    }
    state_write(head, state, k, u);
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
        recurrent_step(head, t, state, e, u);
        state_read(head, state, head->q + t * head->dk, o + t * head->dv);
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

/* Gradients of one row (kernels.md 2.2), and dS from behind the row to before it. */
static void recurrent_row_backward(const DeltaHead *head, int64_t t, const real *d_o, const RecurrentRow *row,
                                   const DeltaGradients *grads)
{
    int64_t dk = head->dk, dv = head->dv;
    const real *q = head->q + t * dk, *k = head->k + t * dk, *w = head->w + t * dk;
    real *dq = grads->q + t * dk, *dkey = grads->k + t * dk, *dg = grads->g + t * dk;
    if (d_o != NULL) {
        state_write(head, row->dstate, q, d_o);
    }
    state_read(head, row->dstate, k, row->de);
    grads->beta[t] = 0;
    for (int64_t j = 0; j < dv; j++) {
        grads->beta[t] += row->de[j] * row->e[j];
        row->de[j] *= head->beta[t];
        grads->v[t * dv + j] = row->de[j];
    }
    for (int64_t d = 0; d < dk; d++) {
        const real *before = row->before + d * dv, *after = row->after + d * dv;
        real *dstate = row->dstate + d * dv;
        dq[d] = dkey[d] = dg[d] = 0;
        for (int64_t j = 0; j < dv; j++) {
            real decayed = w[d] * before[j];
            dq[d] += d_o != NULL ? after[j] * d_o[j] : 0;
            dkey[d] += dstate[j] * row->u[j] - decayed * row->de[j];
            dstate[j] -= k[d] * row->de[j];
            dg[d] += decayed * dstate[j];
            dstate[j] *= w[d];
        }
    }
}

/* Rows [start, end): replays the states from the one before `start`, then walks back. */
static void recurrent_span_backward(const DeltaHead *head, int64_t start, int64_t end, const real *first,
                                    const DeltaUpstream *up, real *dstate, const DeltaGradients *grads)
{
    int64_t size = head->dk * head->dv, n = end - start;
    g_autofree real *states = g_new(real, (gsize)((n + 1) * size));
    g_autofree real *e = g_new(real, (gsize)(n * head->dv + 1)), *u = g_new(real, (gsize)(n * head->dv + 1));
    g_autofree real *de = g_new(real, (gsize)head->dv);
    memcpy(states, first, (size_t)size * sizeof *states);
    for (int64_t i = 0; i < n; i++) {
        real *state = states + (i + 1) * size;
        memcpy(state, state - size, (size_t)size * sizeof *state);
        recurrent_step(head, start + i, state, e + i * head->dv, u + i * head->dv);
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
    g_autofree real *state = recurrent_start(head), *dstate = g_new0(real, (gsize)size);
    g_autofree real *e = g_new(real, (gsize)head->dv), *u = g_new(real, (gsize)head->dv);
    for (int64_t t = 0; t < head->n; t++) {
        if (t % head->chunk == 0) {
            memcpy(starts + t / head->chunk * size, state, (size_t)size * sizeof *state);
        }
        recurrent_step(head, t, state, e, u);
    }
    if (up->state != NULL) {
        memcpy(dstate, up->state, (size_t)size * sizeof *dstate);
    }
    for (int64_t s = n_spans - 1; s >= 0; s--) {
        int64_t end = MIN(head->n, (s + 1) * head->chunk);
        recurrent_span_backward(head, s * head->chunk, end, starts + s * size, up, dstate, grads);
    }
    if (grads->state != NULL) {
        memcpy(grads->state, dstate, (size_t)size * sizeof *dstate);
    }
}
