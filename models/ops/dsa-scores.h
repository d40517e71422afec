/*
 * Index scores of DSA, one token and one key at a time: I = sum over index heads of w max(0, q k), and its
 * gradients. Shared by the selection and the loss.
 */
#pragma once

#include "models/ops/dsa-indexer.h"
#include "models/real.h"

/* The scaled weights of a token. */
static inline void index_weights(const DsaIndexerAttr *attr, const real *w, real *ret_weights)
{
    for (int64_t j = 0; j < attr->heads; j++) {
        ret_weights[j] = w[j] * (real)attr->scale;
    }
}

/* Dot product of every head with one key. */
static inline void index_dots(const DsaIndexerAttr *attr, const real *q, const real *k, real *ret_dots)
{
    for (int64_t j = 0; j < attr->heads; j++) {
        real sum = 0;
        for (int64_t d = 0; d < attr->dim; d++) {
            sum += q[j * attr->dim + d] * k[d];
        }
        ret_dots[j] = sum;
    }
}

/* What a head's dot product counts for. */
static inline real index_relu(const DsaIndexerAttr *attr, real dot)
{
    return attr->no_relu || dot > 0 ? dot : 0;
}

static inline real index_score(const DsaIndexerAttr *attr, const real *dots, const real *weights)
{
    real sum = 0;
    for (int64_t j = 0; j < attr->heads; j++) {
        sum += weights[j] * index_relu(attr, dots[j]);
    }
    return sum;
}

/* Tensors that a score's gradient is added to. */
typedef struct IndexGradient {
    real *q, *k, *weights; /* of the token, of the key, of the token (before the scale) */
} IndexGradient;

/* Adds the gradients of one score whose own gradient is dscore. */
static inline void index_score_gradient(const DsaIndexerAttr *attr, const real *q, const real *k, const real *dots,
                                        const real *weights, real dscore, IndexGradient to)
{
    for (int64_t j = 0; j < attr->heads; j++) {
        real ddot = attr->no_relu || dots[j] > 0 ? dscore * weights[j] : 0;
        to.weights[j] += dscore * index_relu(attr, dots[j]);
        for (int64_t d = 0; d < attr->dim; d++) {
            to.q[j * attr->dim + d] += ddot * k[d];
            to.k[d] += ddot * q[j * attr->dim + d];
        }
    }
}
