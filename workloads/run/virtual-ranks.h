/*
 * Virtual ranks: the program in values.
 *
 * The ranks of a plan run in one process, each its class's program, with the float64 kernels: what the simulator times
 * and the ledger counts is what computes here. Ranks go on until a collective, where the members of its group meet.
 *
 * Layout of ranks: replica x dp_shard + shard; shard = expert shard x ep + place in the EP group.
 */
#pragma once

#include "models/block.h"
#include "models/optim.h"
#include "models/tensor.h"
#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"
#include "workloads/plan/routing.h"

/* Where whole parameters come from: [layer][param] of the graph; layer -1 = embedding, n_layers = head. */
typedef struct VirtualSource {
    const Tensor *(*param)(void *self, int64_t layer, int param);
    void *self;
} VirtualSource;

typedef struct VirtualOptions {
    OptimSettings optim;
    const Routing *routing; /* where experts are, and capacities that follow loads; or NULL: expert e is slot e. Borrowed */
    const int64_t *const
        *choices;         /* [n_layers] experts of each token of the batch [tokens][top_k], or NULL = routers choose */
    double clip;          /* largest global norm of the gradients, which the update sees; 0 = none. Sharded gradients alone */
    gboolean exact_sizes; /* a value's size must be what its buffer was allocated with */
    gboolean with_ledger; /* after every instruction, the bytes held by tag must be the ledger's */
    gboolean with_order;  /* whether accesses are in order is decided by sets of actions as well (order.h) */
} VirtualOptions;

typedef struct VirtualRanks VirtualRanks;

/*
 * Ranks with their shards; everything is borrowed. programs[n_ranks] may name the same program.
 */
VirtualRanks *virtual_ranks_new(const Plan *plan, const ModelGraph *graphs, Program *const *programs,
                                const VirtualSource *source, const VirtualOptions *options);
void virtual_ranks_free(VirtualRanks *world);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(VirtualRanks, virtual_ranks_free)

int64_t virtual_ranks_n(const VirtualRanks *world);

/*
 * Deals n_sequences of the next steps to the ranks in turn instead: the first ranks may have one more, and some have none. One
 * micro-batch; tokens and labels are then [n_sequences][seq_len], and sizes are not those of the program.
 */
void virtual_ranks_deal(VirtualRanks *world, int64_t n_sequences);

/* Learning rate of the next steps; norm of all gradients of the last one, before clipping (0 without clip). */
void virtual_ranks_set_lr(VirtualRanks *world, double lr);
double virtual_ranks_grad_norm(const VirtualRanks *world);

/*
 * One step. tokens and labels: [ranks][micro-batches][micro_batch x seq_len]. Errors name rank, instruction and operator.
 * The loss is the mean over all valid labels.
 */
gboolean virtual_ranks_step(VirtualRanks *world, const int64_t *tokens, const int64_t *labels, double *ret_loss, GError **error);

/* Losses of the layers in the last step, beside the one that it returned: each the mean over all its tokens. */
double virtual_ranks_extra_loss(const VirtualRanks *world);

/*
 * Whole parameter, or its gradient of the last step, put together from the shards of one replica; caller frees. NULL for a
 * gradient of what does not train, and for buffers. Experts stand by expert, whatever the slots; copies that are not equal to
 * the last bit give NaN.
 */
typedef enum VirtualPart { VIRTUAL_VALUE, VIRTUAL_GRAD } VirtualPart;
Tensor *virtual_ranks_param(const VirtualRanks *world, VirtualPart part, int64_t replica, int64_t layer, int param);

/* Rows that a rank's router sent to each expert in the last step; NULL for a layer without experts. */
const int64_t *virtual_ranks_loads(const VirtualRanks *world, int64_t rank, int64_t layer);

/* How far the last step has moved the selection biases of a layer's experts; NULL where no rule moves them. */
const double *virtual_ranks_biases(const VirtualRanks *world, int64_t rank, int64_t layer);

/* The same of the tokens of a chunk, where the plan's MoE layers run in chunks; else NULL. */
const int64_t *virtual_ranks_chunk_loads(const VirtualRanks *world, int64_t rank, int64_t layer, int64_t chunk);

/* Tokens that its last token dispatch in a layer (of a chunk, 0 without chunks) sent to a member of its EP group; 0 if there was none. */
int64_t virtual_ranks_arrivals(const VirtualRanks *world, int64_t rank, int64_t layer, int64_t chunk, int64_t member);

/* Most bytes that a rank held in the steps so far, blocks of the allocator, static memory included; and when it was. */
typedef struct VirtualPeak {
    int64_t bytes, by_tag[N_MEM_TAGS];
    gint32 call, instr; /* in the list of calls, in the segment; -1 = before the first */
    gint32 op;          /* operator of that call that ran next, or -1 */
} VirtualPeak;
const VirtualPeak *virtual_ranks_peak(const VirtualRanks *world, int64_t rank);

/* Instructions of a rank after which held memory was compared with the ledger's. */
int64_t virtual_ranks_n_followed(const VirtualRanks *world, int64_t rank);

/* Collectives of a rank that moved what they are priced with; their bytes. */
int64_t virtual_ranks_n_exchanged(const VirtualRanks *world, int64_t rank, int64_t *ret_bytes);

/* Pairs of accesses of a rank that exclude one another and are in order (with_order). */
int64_t virtual_ranks_n_ordered(const VirtualRanks *world, int64_t rank);

/* Compares a rank's static memory, parameters and optimizer state, with what its program says; NULL or the difference. */
char *virtual_ranks_static_fault(const VirtualRanks *world, int64_t rank);
