/*
 * Deal: which rank updates which tensor when the optimizer's states are sharded by whole tensors (optimizer.sharding
 * "layer_wise", as Megatron's layer-wise distributed optimizer does).
 *
 * The trained tensors of a mesh, of a stack of experts each one's, are dealt to its ranks from the smallest to the largest,
 * there and back: 0, 1, …, n − 1, n − 1, …, 1, 0, 0, 1, … Equal ones come in the order of the program. Gradients are summed whole;
 * a rank has states of its own tensors, updates these, and one all-gather per mesh, whose parts are as uneven as the owners'
 * tensors, brings everybody's to everybody. So no matrix of Muon's is ever cut.
 *
 * Invariants: (1) every trained tensor is dealt once; (2) in a turn no rank gets more than one.
 */
#pragma once

#include "workloads/lower/lowering.h"

/* A tensor in the order in which it is dealt; those of the dense mesh first. */
typedef struct DealTensor {
    gint32 site, param; /* of the program; of its group */
    gint32 matrix;      /* of a stack; else 0 */
    gint32 mesh;        /* GroupKind */
    gint32 turn, owner; /* owner: rank of the mesh */
    int64_t numel;
    int64_t first;      /* element of it in the gathered buffer, where owners stand one behind the other */
} DealTensor;

/* Ranks that the tensors of a program's mesh are dealt to; 0 = the mesh has none. */
int64_t deal_n_owners(const Program *program, GroupKind mesh);

/* Elements of all dealt tensors of a mesh. */
int64_t deal_numel(const Program *program, GroupKind mesh);

/* Tensors that one parameter of a group is dealt as: the matrices of a stack, or 1. */
int64_t deal_n_tensors(const Plan *plan, const GraphParam *param);

/* Fills the deal of a program whose sites are known. Nothing unless the plan deals. */
void deal_plan(Program *program, const Plan *plan);

/* What the optimizer does to a dealt tensor. */
OptimPiece deal_piece(const Program *program, const Plan *plan, const DealTensor *tensor);

/* Optimizer states of the fullest rank go into the program's static bytes, and what the mean rank has less into uneven_state_bytes. */
void deal_count_states(Program *program, const Plan *plan);

/* Appends the OptimPieces that AdamW updates on the rank of each mesh which has most of them. */
void deal_adam_pieces(const Program *program, const Plan *plan, GArray *pieces);

/* After the updates: every owner's tensors to all ranks, mesh by mesh. */
void deal_gather(Lowering *lowering);
