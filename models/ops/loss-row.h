/*
 * One row of logits: what the two loss operators share, in the precision of the file that includes it.
 *
 * A row may come in slices. The state after a slice is the running maximum m, the sum a of exp(z - m), the logit of
 * the label and the sum of all logits; so the log-sum-exp of the row is m + log a whatever the slices were.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "models/op.h"
#include "models/ops/cross-entropy.h"
#include "models/real-math.h"
#include "models/real.h"
#include "sim/base/error.h"

/* FLOPs per logit and per row; each is what the loop of the same name does. */
typedef struct LossFlops {
    double cap, scan, grad;               /* per logit */
    double scan_row, value_row, grad_row; /* per row (scan_row, grad_row: per row and slice) */
    double scale_row;                     /* per row of backward */
} LossFlops;

static inline LossFlops loss_flops(const CrossEntropyAttr *attr)
{
    gboolean smooth = attr->label_smoothing > 0, z_loss = attr->z_loss > 0, cap = attr->softcap > 0;
    return (LossFlops){
        .cap = cap ? 3 : 0,
        .scan = 4 + (smooth ? 1 : 0),
        .scan_row = 3,
        .value_row = 3 + (smooth ? 5 : 0) + (z_loss ? 3 : 0) + (attr->reduction == LOSS_NONE ? 0 : 1),
        .grad = 3 + (smooth ? 1 : 0) + (cap ? 4 : 0),
        .grad_row = 1,
        .scale_row = (smooth ? 4 : 0) + (z_loss ? 3 : 0),
    };
}

typedef struct LossState {
    real max, sum, label_z, sum_z;
} LossState;

static inline LossState loss_state_start(void)
{
    return (LossState){.max = (real)-INFINITY};
}

static inline void loss_cap(real *z, int64_t n, real cap)
{
    for (int64_t v = 0; v < n; v++) {
        z[v] = cap * real_tanh(z[v] / cap);
    }
}

/* Takes in a slice z[n] that begins at column `first`. label_col is negative for an ignored row. */
static inline void loss_scan(LossState *state, const real *z, int64_t n, int64_t first, int64_t label, gboolean smooth)
{
    real max = state->max;
    for (int64_t v = 0; v < n; v++) {
        max = z[v] > max ? z[v] : max;
    }
    real sum = state->sum * (isinf((double)state->max) ? 0 : real_exp(state->max - max));
    for (int64_t v = 0; v < n; v++) {
        sum += real_exp(z[v] - max);
    }
    if (smooth) {
        for (int64_t v = 0; v < n; v++) {
            state->sum_z += z[v];
        }
    }
    if (label >= first && label < first + n) {
        state->label_z = z[label - first];
    }
    state->max = max;
    state->sum = sum;
}

static inline real loss_lse(const LossState *state)
{
    return state->max + real_log(state->sum);
}

/* Loss of a row with a valid label. */
static inline real loss_value(const CrossEntropyAttr *attr, const LossState *state, real lse, int64_t vocab)
{
    real l = (real)attr->label_smoothing;
    real loss = lse - state->label_z;
    if (attr->label_smoothing > 0) {
        loss = (1 - l) * loss + l * (lse - state->sum_z / (real)vocab);
    }
    if (attr->z_loss > 0) {
        loss += (real)attr->z_loss * lse * lse;
    }
    return loss;
}

/* What the gradient of a row is made of: g = p_scale p - label_scale [v = y] - smooth_scale. */
typedef struct LossScale {
    real p, label, smooth;
} LossScale;

static inline LossScale loss_scale(const CrossEntropyAttr *attr, real upstream, real lse, int64_t vocab)
{
    LossScale scale = {upstream, upstream, 0};
    real l = (real)attr->label_smoothing;
    if (attr->z_loss > 0) {
        scale.p = upstream * (1 + 2 * (real)attr->z_loss * lse);
    }
    if (attr->label_smoothing > 0) {
        scale.label = upstream * (1 - l);
        scale.smooth = upstream * l / (real)vocab;
    }
    return scale;
}

/* Turns a slice of (capped) logits into their gradient, in place. */
static inline void loss_grad(real *z, int64_t n, int64_t label_at, real lse, const LossScale *scale, real cap)
{
    for (int64_t v = 0; v < n; v++) {
        real slope = 1;
        if (cap > 0) {
            real t = z[v] / cap;
            slope = 1 - t * t;
        }
        real g = scale->p * real_exp(z[v] - lse) - scale->smooth;
        g -= v == label_at ? scale->label : 0;
        z[v] = cap > 0 ? g * slope : g;
    }
}

/* FALSE and an error when a label is neither ignored nor a column. ret_n_valid: labels that count. */
static inline gboolean loss_check_labels(const CrossEntropyAttr *attr, const Tensor *labels, int64_t vocab,
                                         int64_t *ret_n_valid, GError **error)
{
    const int64_t *label = labels->data;
    int64_t n = tensor_numel(labels), n_valid = 0;
    for (int64_t t = 0; t < n; t++) {
        if (label[t] == attr->ignore_index) {
            continue;
        }
        if (label[t] < 0 || label[t] >= vocab) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "label of token %" G_GINT64_FORMAT " is %" G_GINT64_FORMAT ", outside 0 ... %" G_GINT64_FORMAT
                        " and not the ignored %" G_GINT64_FORMAT,
                        t, label[t], vocab - 1, attr->ignore_index);
            return FALSE;
        }
        n_valid++;
    }
    *ret_n_valid = n_valid;
    return TRUE;
}
