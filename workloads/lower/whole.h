/*
 * Whole matrices: which rank orthogonalises which matrix when Muon meets shards.
 *
 * Orthogonalisation needs a matrix as a whole. Shards that already hold whole matrices (experts split by number, heads split
 * by head, a group of one rank) are done where they are, one parameter at a time. The others travel: the matrices of a
 * mesh, the costliest first, go out in rounds of one per rank; every rank sends its slices of all matrices of the round, one
 * all-to-all makes rank j the owner of the j-th, and a second one brings the slices of the result back. So no rank holds
 * more than one whole matrix a round, and the matrices of a round cost about the same.
 *
 * Units that are dealt to ranks as wholes (deal.h) stay, too: a round is what one turn gives to every rank.
 *
 * States in DDR are streamed (state-stream.h): the momentum of round r + 2 and the master copies of r are fetched beside r.
 *
 * Rounds overlap: while round r is orthogonalised, the slices of r + 1 are on their way, and those of r - 1 on theirs back.
 *
 * Invariants: (1) every trained hidden matrix is in one unit of one round; (2) a round's units lie on one mesh; (3) a round
 * that travels or is dealt has at most as many units as its mesh has ranks, no two of one owner.
 */
#pragma once

#include "workloads/lower/fsdp.h"

/* A matrix that travels, or the matrices of one parameter that stay. */
typedef struct WholeUnit {
    gint32 site, param;   /* of the program; of its group */
    gint32 matrix;        /* of a stack of experts that travels; else 0 */
    int64_t rows, cols;   /* of one block: a matrix, or one head's rows */
    int64_t n_blocks;     /* on the rank that has most */
    int64_t shard_numel;  /* of this unit on one rank, padding included */
    int64_t whole_numel;  /* all blocks */
    gint32 owner;         /* rank of the mesh that orthogonalises it; -1: every rank its own shard of it */
} WholeUnit;

/* What one rank does in a round, at most. */
typedef struct WholeRound {
    gint32 first, n;      /* units */
    gint32 travels, dealt; /* booleans; dealt: whole units, of which a rank has its own alone (deal.h) */
    gint32 mesh;          /* GroupKind */
    int64_t slices;       /* elements of its shards of all units; dealt: of the largest unit */
    int64_t whole;        /* elements of the largest unit */
    int64_t rows, cols, n_blocks; /* of the costliest unit */
} WholeRound;

/* Buffers of a round, from the base of its argument. WHOLE_SLICES is the whole where nothing travels. */
enum { WHOLE_SLICES, WHOLE_OWNED, WHOLE_WORK, WHOLE_BACK, WHOLE_MOMENTUM, WHOLE_MASTER, N_WHOLE_BUFFERS };
/* Tokens of a round, from the base of its argument. */
enum { WHOLE_READY, WHOLE_ARRIVED, WHOLE_DONE, WHOLE_RETURNED, WHOLE_MOMENTUM_THERE, WHOLE_MASTER_THERE, N_WHOLE_TOKENS };

/*
 * Call arguments of a segment that orthogonalises round call->round: the round before it, itself, the one after, the one after that (whose
 * momentum comes from DDR); then the tokens of the four. A VALUE's or COLLECTIVE's `op` is -1 to 2 for them.
 */
enum { ARG_WHOLE_LAST = 1, ARG_WHOLE_NOW, ARG_WHOLE_NEXT, WHOLE_STAGE_AHEAD = 3, N_WHOLE_STAGES, ARG_WHOLE_TOKENS = ARG_WHOLE_LAST + N_WHOLE_STAGES };

/* Fills units and rounds of a program whose sites, and deal, are known. Nothing under AdamW. */
void whole_plan(Program *program, const Plan *plan);

/* Whether Muon takes a parameter in this plan. */
gboolean whole_takes(const Plan *plan, const GraphParam *param);

/* Rows of the blocks that are orthogonalised one by one: heads of a parameter, or 1. */
int64_t whole_heads(const Plan *plan, const GraphParam *param);

/* FLOPs of the products that orthogonalise a round's costliest unit. */
double whole_round_flops(const WholeRound *round);

/* Sum over rounds, of the costliest rank and of the mean one: how far whole matrices unbalance the ranks. */
double whole_max_over_mean(const Program *program);
