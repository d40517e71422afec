/*
 * Trainer: whole training steps in values on one rank, from the same graphs that plans are lowered from.
 *
 * It is the reference that every sharded, chunked or recomputed run must equal: forward of embedding, layers and head,
 * backward in reverse, gradients of all parameters, global clipping, optimizer, selection bias. Nothing here knows a
 * model: what runs is what model_graph_new() built.
 *
 * Names of parameters are those of checkpoints. An expert parameter [E, ...] of a graph stands for E tensors
 * "....experts.<e>....".
 */
#pragma once

#include "models/block.h"
#include "models/optim.h"
#include "models/safetensors.h"

typedef struct TrainerSettings {
    OptimKind optim;
    gboolean per_head;  /* Muon: matrices of q, k and v head by head */
    double norm_floor;  /* Muon, see OptimSettings */
    double lr;      /* after warm-up */
    int64_t warmup; /* steps over which lr rises: lr min(1, t / warmup) */
    double beta1, beta2, eps, weight_decay, momentum;
    double clip;      /* largest global norm of the gradients; 0 = none */
    const int64_t *capacities; /* [n_layers] of experts whose capacity comes with the rows, borrowed, or NULL */
    const int64_t *const
        *choices; /* [n_layers] experts of each token of the batch [tokens, top_k], borrowed; NULL = routers choose */
    double bias_rate; /* step of the sign update of routers' selection bias */
} TrainerSettings;

/* What a step showed, before its update. */
typedef struct TrainerStep {
    double loss;       /* mean over the valid labels */
    double extra_loss; /* sum of the layers' other losses */
    double grad_norm;  /* before clipping */
    double lr;
} TrainerStep;

typedef struct Trainer Trainer;

/* A trainer with all parameters zero; model and options are borrowed. */
Trainer *trainer_new(const Model *model, const BlockOptions *options, const TrainerSettings *settings, TensorType real);
void trainer_free(Trainer *trainer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Trainer, trainer_free)

/*
 * Takes the values of a file: base parameters, or adapters alone. FALSE when a parameter of that kind is missing in the
 * file or has another size.
 */
typedef enum TrainerPart { TRAINER_BASE, TRAINER_ADAPTERS } TrainerPart;
gboolean trainer_load(Trainer *trainer, TrainerPart part, const Safetensors *weights, GError **error);

/* What a step trains on: n_sequences documents of seq_len tokens each; labels of -100 do not count. */
typedef struct TrainerBatch {
    int64_t n_sequences, seq_len;
    const int64_t *tokens, *labels; /* [n_sequences, seq_len] */
} TrainerBatch;

/* One step. */
gboolean trainer_step(Trainer *trainer, const TrainerBatch *batch, TrainerStep *ret_step, GError **error);

/* Tokens per expert of a layer in the last step (borrowed; int64), or NULL for a layer without experts. */
const Tensor *trainer_loads(const Trainer *trainer, int64_t layer);

/* Parameters: how many tensors of a checkpoint they are, and the i-th's name (caller frees). */
int trainer_n_tensors(const Trainer *trainer);
char *trainer_tensor_name(const Trainer *trainer, int idx);
gboolean trainer_tensor_trains(const Trainer *trainer, int idx);

/* Value, and gradient of the last step (unclipped; zero if none came), of the i-th tensor; caller frees. */
Tensor *trainer_tensor_value(const Trainer *trainer, int idx);
Tensor *trainer_tensor_grad(const Trainer *trainer, int idx);

/*
 * Parameter of one graph as a whole (layer -1: embedding, n_layers: head): its value, which the caller may fill, and the
 * gradient of the last step, NULL if none came. Borrowed.
 */
Tensor *trainer_param_value(const Trainer *trainer, int64_t layer, int param);
const Tensor *trainer_param_grad(const Trainer *trainer, int64_t layer, int param);
