/*
 * KDA, Kimi delta attention: linear attention whose state decays per key channel and is corrected by the delta
 * rule. The operator covers all between the projections: L2 norm of q and k, decay gate, write strength, chunks.
 */
#pragma once

#include "models/graph.h"
#include "models/real.h"
#include "models/tensor.h"

/* How the log decay g comes from the decay input z. */
typedef enum KdaGate {
    KDA_GATE_SOFTPLUS, /* -exp(A_log) softplus(z + dt_bias) */
    KDA_GATE_BOUNDED,  /* lower_bound sigmoid(exp(A_log) (z + dt_bias)) */
    KDA_GATE_NONE,     /* z is g; beta_logit is beta; q and k are taken as they are */
} KdaGate;

typedef struct KdaAttr {
    int64_t heads;       /* of q and k */
    int64_t value_heads; /* of v, z, beta, o: a multiple of heads */
    int64_t key_dim;
    int64_t value_dim;
    int64_t chunk; /* tokens per chunk; 0 = 64 */
    KdaGate gate;
    double lower_bound; /* of the bounded gate: -5 */
    double beta_scale;  /* 1, or 2 to allow negative eigenvalues; 0 = 1 */
    gboolean recurrent; /* values by the token-by-token form, which judges the chunked one */
} KdaAttr;

/*
 * Adds the operator PREFIX.kda with parameters PREFIX.A_log [value_heads] and PREFIX.dt_bias
 * [value_heads x key_dim], fp32 and without weight decay. q, k: [TOKENS, heads x key_dim]; v: [TOKENS,
 * value_heads x value_dim]; z: [TOKENS, value_heads x key_dim], raw decay logits; beta_logit: [TOKENS,
 * value_heads]. Without a gate there are no parameters. Returns o: [TOKENS, value_heads x value_dim].
 */
int kda_add(Graph *graph, const char *prefix, const int qkvzb[5], const KdaAttr *attr);

/* The gate at x = z + dt_bias: g, its slope in z and in A_log. exp_a = exp(A_log). */
typedef struct KdaGatePoint {
    real g, slope_z, slope_a;
} KdaGatePoint;

KdaGatePoint REAL_NAME(kda_gate_at)(const KdaAttr *attr, real exp_a, real x);

/* The gate over rows ([rows, value_heads, key_dim]): value, and gradients from that of g. */
typedef struct KdaGateTensors {
    const Tensor *z, *a_log, *dt_bias, *dg;
    Tensor *g, *dz, *da_log, *ddt_bias; /* written */
} KdaGateTensors;

void kda_gate_run_f64(const KdaAttr *attr, const KdaGateTensors *tensors);
void kda_gate_run_f32(const KdaAttr *attr, const KdaGateTensors *tensors);
