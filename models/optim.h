/*
 * Optimizers: what they keep per parameter, what a step costs on a rank, and the update in values.
 *
 * One class per file in models/optim, one line each in optim.def. A class never sees how a parameter is sharded: the
 * cost takes the pieces that a rank holds, the update takes tensors.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "models/tensor.h"
#include "sim/base/dtype.h"
#include "sim/base/work.h"

typedef enum OptimKind {
#define OPTIM(id, title) OPTIM_##id,
#include "models/optim.def"
#undef OPTIM
    N_OPTIMS
} OptimKind;

/* What a rank holds of one parameter. */
typedef struct OptimPiece {
    int64_t numel;      /* elements of its shard */
    gboolean by_matrix; /* Muon takes it (2-D, or a stack of matrices; no embedding, head or vector) */
    int64_t rows, cols; /* by_matrix: of one whole matrix (of one head when split by heads) */
    int64_t n_matrices; /* by_matrix: whole matrices that this rank orthogonalises after the gather */
    Dtype param;        /* stored type of parameter and gradient */
    gboolean grad_fp32;  /* the gradient is in fp32, whatever the parameter */
    gboolean has_master; /* an fp32 copy stands beside it, which is what the optimizer updates */
} OptimPiece;

typedef struct OptimSettings {
    double lr, beta1, beta2, eps, weight_decay, momentum;
    int64_t step;    /* 1 for the first */
    int64_t n_heads; /* Muon: row blocks that are orthogonalised one by one; 1 = the whole matrix */
    double norm_floor; /* Muon: added to the norm that a matrix is divided by; 0 = 1e-7 */
    gboolean no_decay;
} OptimSettings;

/* State of one parameter; unused parts are NULL. Zero at first. */
typedef struct OptimState {
    Tensor *m; /* first moment, or momentum */
    Tensor *v;
} OptimState;

typedef struct OptimClass {
    const char *id;    /* "adamw" */
    const char *title; /* "AdamW" */
    /* Bytes of state for a piece, a master copy included, moments in that type (INT8: with one fp32 scale per 256 elements). */
    int64_t (*state_bytes)(const OptimPiece *piece, Dtype moments);
    /* Most that the step allocates at once on this rank beyond parameters, gradients and state. */
    int64_t (*workspace_bytes)(const OptimPiece *pieces, int n, Dtype moments);
    /* Appends the kernels of one step over n pieces, in the order in which the optimizer holds them. */
    void (*cost)(const OptimPiece *pieces, int n, Dtype moments, GArray *works);
    /* One update in values: param and state change; types are equal, F64 or F32. */
    void (*update)(const OptimSettings *settings, Tensor *param, const Tensor *grad, OptimState *state);
} OptimClass;

const OptimClass *optim_class(OptimKind kind);
gboolean optim_kind_from_id(const char *id, OptimKind *ret_kind);

/* Steps of Newton-Schulz that Muon takes. */
enum { OPTIM_MUON_STEPS = 5 };

/*
 * Launches of a fused multi-tensor kernel over tensors of these sizes: blocks of 65,536 elements, at most 320 blocks
 * and max_tensors tensors a launch. The rule of PyTorch's multi_tensor_apply.
 */
int64_t optim_launches(const OptimPiece *pieces, int n, int max_tensors);

/* Appends one kernel; the pointer allows details to be set and is valid until the next call. */
Work *optim_work(GArray *works, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes);

/* Appends launches kernels that share this work evenly (the last takes the rest of the division). */
void optim_work_split(GArray *works, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes,
                      int64_t launches);

/*
 * The three parts of a Muon step on sharded matrices, for lowerings that move whole matrices between ranks.
 * Their kernels: momentum and the direction of descent in bf16 on the shard; orthogonalisation of the piece's n_matrices
 * whole matrices; the update of the shard. Their values: direction = momentum step of the shard (state changes);
 * a whole matrix, or stack, or heads' rows, becomes its scaled orthogonal factor; the shard goes along it.
 */
void optim_muon_momentum_cost(const OptimPiece *piece, Dtype moments, GArray *works);
void optim_muon_orthogonal_cost(const OptimPiece *piece, GArray *works);
void optim_muon_apply_cost(const OptimPiece *piece, GArray *works);
/* Bytes that orthogonalisation holds beside the matrices themselves: the next X and two Gram matrices each. */
int64_t optim_muon_orthogonal_bytes(const OptimPiece *piece);
void optim_muon_momentum(const OptimSettings *settings, const Tensor *grad, OptimState *state, Tensor *ret_direction);
void optim_muon_orthogonalize(const OptimSettings *settings, Tensor *whole);
void optim_muon_apply(const OptimSettings *settings, const Tensor *direction, Tensor *param);

/* Bytes of a piece's gradient. */
int64_t optim_grad_bytes(const OptimPiece *piece);

/* Bytes of the fp32 master copy of a piece; 0 without one. */
int64_t optim_master_bytes(const OptimPiece *piece);

/* Bytes of one moment of numel elements. */
int64_t optim_moment_bytes(int64_t numel, Dtype moments);

/* Frees the tensors of a state. */
void optim_state_clear(OptimState *state);

/* Factor that clips gradients of that global norm: min(1, clip / norm); 1 when clip is 0. */
double optim_clip_factor(double norm, double clip);
