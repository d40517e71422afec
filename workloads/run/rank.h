/*
 * Rank: one virtual rank's state while a program runs in values: shards, buffers, streams.
 *
 * A buffer holds a float64 (or int64) tensor from its first write to its FREE. Instructions are carried out in host order;
 * whether the streams would have done so, too, is known from vector clocks: every stream counts its actions and what it
 * has seen of the others through RECORD and WAIT. A read that has not seen the last write, a write that has not seen all
 * reads, and a use of memory whose former owner is not done are errors, as a missing WAIT makes them on a device. On demand the
 * same is decided by sets of actions (order.h) besides, and both must agree on every access.
 *
 * Invariants: (1) clocks never go back; (2) a buffer that is not alive has no tensor; (3) shards are padded with zeros to
 * the fullest rank's size, as the program counts them.
 */
#pragma once

#include "models/block.h"
#include "models/optim.h"
#include "sim/mem/alloc-model.h"
#include "workloads/lower/deal.h"
#include "workloads/lower/whole.h"
#include "workloads/run/ledger.h"
#include "workloads/run/order.h"
#include "workloads/run/virtual-ranks.h"

/* How many actions of each stream are known to be done. */
typedef struct Clock {
    guint32 at[N_STREAMS];
} Clock;

enum { RANK_OP_NEXT = -2 }; /* the peak's operator is the one that runs next */

typedef struct RankBuffer {
    gboolean alive;
    gboolean resident; /* outlives the step */
    guint8 tag, pool, tier;
    int64_t bytes;
    AllocBlock block;
    Tensor *value;
    Dtype dtype; /* what the value is stored in */
    Clock born, written, read;
    guint call;  /* that allocated it */
    gint32 life; /* its number in the order of sets; 0 = none yet */
} RankBuffer;

/* The shards of one group of parameters. */
typedef struct RankSite {
    Tensor *shard; /* of all parameters, one behind the other */
    Tensor *grad;  /* of the last update, trainable ones */
    OptimState *states;
    RankBuffer guard; /* clocks of the shard */
} RankSite;

/* Sizes of the last routing of a layer, of all its tokens or of a chunk of them; where passes of two micro-batches interleave, each has its own. */
typedef struct RankRouting {
    int64_t slots, received;
    int64_t arrived_tokens; /* of a token dispatch */
    Tensor *sent_to;        /* [member, token]: 1 if the token goes there */
    Tensor *choices;        /* [arrived token, k]: local slot of each choice, or -1 */
    int64_t *expert_rows; /* local experts; those of the chunks stand one behind the other */
    Tensor *sent;         /* rows to each expert */
    Tensor *arrived;      /* rows by (source, local expert) */
    int64_t *loads;       /* rows to each expert, summed over the step: of the whole layer in its first part */
    int64_t *chunk_loads; /* the same of the chunk, or NULL */
    Tensor *choices_made; /* of each expert on all ranks, in the micro-batches so far; NULL where nobody counts them */
    gboolean has_counts;  /* exchanged since the last dispatch, or fixed */
    Clock counted;        /* when the counts were there */
    gint32 counting;      /* the action of the order of sets that brought them; -1 = none */
} RankRouting;

/* Kernels and host synchronisations since the last value. */
typedef struct RankPrice {
    int n_works, n_syncs;
    guint8 stream; /* of the last kernel */
    int n_count_syncs; /* of them for the sizes of exchanges */
    double flops;
    int64_t moved_bytes; /* over the host link */
    gint32 op, sync_op; /* of the kernels; of the synchronisations, which may stand further ahead; -1 = unknown */
    gint32 sync_frame;  /* of the call that has these */
} RankPrice;

typedef struct Rank {
    const VirtualRanks *world;
    const Program *program;
    int64_t idx, shard, replica, ep_rank, expert_shard;
    int64_t n_sequences; /* of its micro-batch, at the moment */
    guint call, instr;   /* next */
    gboolean waits;      /* for the norm of all gradients */
    int64_t n_repeats; /* times that the repeated calls have been run through */
    gint32 op;         /* last operator */
    RankBuffer *buffers;
    RankBuffer nothing; /* what a place outside of the buffers names: never alive */
    Clock *tokens;
    Clock now[N_STREAMS], pools[N_STREAMS];
    RankSite *sites;
    RankRouting *routing; /* [side][layer][chunk] */
    Tensor **ids, **labels; /* by micro-batch */
    AllocModel *alloc;
    int64_t held[N_MEM_TAGS], held_sum;
    VirtualPeak peak;
    LedgerWalk *ledger; /* goes along, or NULL */
    Order *order;       /* the same by sets, or NULL */
    int64_t n_followed;
    int64_t n_exchanged, exchanged_bytes; /* collectives whose bytes were compared with the priced ones */
    int64_t host_held, host_peak; /* pinned host memory */
    int64_t n_streamed; /* elements of optimizer states that have come from there and not gone back */
    RankPrice price;
    int64_t n_marks[N_PHASES]; /* in this step */
    double *biases; /* [MoE layer][expert]: how far balancing has moved them in this step, or NULL */
    Clock host;                /* what the host knows to be done */
    double loss, extra_loss;
} Rank;

struct VirtualRanks {
    const Plan *plan;
    const ModelGraph *graphs;
    const VirtualSource *source;
    VirtualOptions options;
    Rank *ranks;
    int64_t n_ranks;
    int64_t n_valid; /* labels that count, whole batch */
    int64_t n_tokens; /* of the whole batch */
    int64_t n_steps;
    gboolean is_clipped; /* in this step */
    double grad_norm;
};

/* What an instruction works with. */
typedef struct RankAt {
    Rank *rank;
    const Call *call;
    const Segment *segment;
    const Instr *instr;
} RankAt;

/* Losses of layers: VALUE_LAYER_LOSS, …_GRAD and …_PASS_COUNTS, and the sum of counts over ranks (rank-loss.c). */
gboolean rank_layer_loss(const RankAt *at, GError **error);
/* A step begins: nothing is counted. */
void rank_forget_counts(Rank *rank);
gboolean rank_sum_counts(const RankAt *ats, int64_t n, GError **error);

/* An error with rank, segment, instruction and operator; returns FALSE. */
gboolean rank_fail(const RankAt *at, GError **error, const char *format, ...) G_GNUC_PRINTF(3, 4);

/* Buffers: ALLOC, FREE, MOVE as instructions. */
gboolean rank_alloc(const RankAt *at, GError **error);
gboolean rank_free(const RankAt *at, GError **error);
gboolean rank_move(const RankAt *at, GError **error);

/* Streams: one more action; RECORD, WAIT, HOST_SYNC. */
void rank_tick(const RankAt *at);
void rank_record(const RankAt *at);
void rank_wait(const RankAt *at);
void rank_host_sync(const RankAt *at);

/* Type in which the i-th operand is stored: that of a group's flat buffers, or else or_else. */
Dtype rank_operand_dtype(const RankAt *at, int i, Dtype or_else);

/* The ledger takes the same instruction: what is held must be what it says. */
gboolean rank_follow_ledger(const RankAt *at, GError **error);

/* Routing of a layer: its first part, which has what is summed over the step, too. */
RankRouting *rank_layer_routing(const Rank *rank, int64_t layer);

/* Routings of a layer that are in use at once, those of one micro-batch after the other. */
int rank_n_sides(const Plan *plan);

/* Routing of the tokens that an instruction's operator works on; of a part (op_part) of its layer. */
RankRouting *rank_routing(const RankAt *at);
RankRouting *rank_part_routing(const RankAt *at, int part);

/* The sizes of a layer's exchanges have come, and the host, which needs them, knows. */
void rank_note_counts(const RankAt *at, RankRouting *routing);
gboolean rank_knows_counts(const RankAt *at, const RankRouting *routing);

/* Whether the host may read a buffer: it knows all writes to be done. */
gboolean rank_host_sees(const RankAt *at, const RankBuffer *buffer);

/* The MemTag of what an instruction writes into a buffer, or any. */
enum { RANK_ANY_TAG = -1 };
int rank_tag(const RankAt *at, const RankBuffer *buffer);

/* COMPUTE and HOST_SYNC are noted, and are those of the VALUE that follows. */
void rank_note_work(const RankAt *at);
gboolean rank_check_price(const RankAt *at, GError **error);

/* The i-th operand's buffer; NULL = absent. */
RankBuffer *rank_operand(const RankAt *at, int i);

/* Value to read, borrowed; NULL and an error when there is none or the streams do not order it. */
const Tensor *rank_read(const RankAt *at, RankBuffer *buffer, GError **error);

/* The same, which must be of so many elements (-1: any number) of that type. */
const Tensor *rank_read_as(const RankAt *at, RankBuffer *buffer, TensorType type, int64_t numel, GError **error);

/* Gives a buffer its value (taken over, freed on failure); the dtype is what it would be stored in. */
gboolean rank_write(const RankAt *at, RankBuffer *buffer, Tensor *value, Dtype dtype, GError **error);

/* The same of what is stored in several types, or with scales, in so many bytes. */
gboolean rank_write_sized(const RankAt *at, RankBuffer *buffer, Tensor *value, Dtype dtype, int64_t bytes, GError **error);

/* The same to change in place: read and written. */
Tensor *rank_change(const RankAt *at, RankBuffer *buffer, TensorType type, int64_t numel, GError **error);

/* Order of accesses to what lies outside the buffers. */
gboolean rank_note_read(const RankAt *at, RankBuffer *buffer, GError **error);
gboolean rank_note_write(const RankAt *at, RankBuffer *buffer, GError **error);

/* Nothing is alive after a step, and every phase has been marked. */
gboolean rank_check_empty(Rank *rank, GError **error);
void rank_clear(Rank *rank);

/* Carries out a VALUE (rank-ops.c: operators; rank-shards.c: everything about parameters). */
gboolean rank_op(const RankAt *at, GError **error);
gboolean rank_shard_value(const RankAt *at, GError **error);

/*
 * What a collective is priced with must be what it moves. Of an exchange of rows, whose sizes only exact ones are those
 * of the program: bytes of each member's own rows, there or back, of which the most are priced.
 */
gboolean rank_check_bytes(const RankAt *at, int64_t bytes, GError **error);
gboolean rank_check_moved(const RankAt *at, int64_t n, int64_t bytes, GError **error); /* and that it takes as long between n ranks */
gboolean rank_check_busiest(const RankAt *ats, int64_t n, const int64_t *bytes, GError **error);

/* A collective of all members; ats[i] is the i-th's, in the order of the group. */
gboolean rank_collective(const RankAt *ats, int64_t n, GError **error);

/* The same of a token dispatch: where the tokens of a part go, and what choices come with them (orders in that operand); then
 * their rows, there or back. */
gboolean rank_token_ids(const RankAt *ats, int64_t n, int part, int order, GError **error);
gboolean rank_token_rows(const RankAt *ats, int64_t n, GError **error);

/* Loss-free balancing: VALUE_LOADS, VALUE_BIASES (rank-balance.c). */
gboolean rank_balance(const RankAt *at, GError **error);

/* Rows of the pass that an instruction belongs to. */
RowCounts rank_rows(const RankAt *at);

/* The gathered buffer of a parameter of the segment's graph, or NULL. */
RankBuffer *rank_param_buffer(const RankAt *at, int param);

/* Where a parameter's shard lies in the local parameter [outer, split, inner]: chunk of each of the outer parts. */
typedef struct ShardShape {
    int64_t outer, split, inner, chunk;
} ShardShape;

ShardShape shard_shape(const Plan *plan, const GraphParam *param);
int64_t shard_numel(const ShardShape *shape);

/* Copies between a local parameter and the shard of one rank; padding becomes zero. */
void shard_take(const ShardShape *shape, int64_t idx, const double *whole, double *part);
void shard_put(const ShardShape *shape, int64_t idx, const double *part, double *whole);

/* Gradient shards of all members of the dense group: those of an expert's copies become their sum. */
gboolean rank_sum_copies(const RankAt *ats, int64_t n, GError **error);

/* Where the i-th parameter of a group begins in a rank's shards, and among its gradients. */
void rank_part_offset(const Plan *plan, const FsdpGroup *group, gint32 i, int64_t *ret_shard, int64_t *ret_grad);

/* A rank's place among those of a mesh, and whether it updates a dealt tensor. */
int64_t rank_mesh_index(const Rank *rank, GroupKind mesh);
gboolean rank_owns(const Rank *rank, const DealTensor *tensor);

/* Dealt tensors: VALUE_DEAL_PLACE, …_TAKE, and their gathering (rank-deal.c). */
gboolean rank_deal_value(const RankAt *at, GError **error);
gboolean rank_deal_gather(const RankAt *ats, int64_t n, GError **error);

/* Optimizer states of the rank that holds most: of its own tensors, and of others that it has updated, too. */
int64_t rank_deal_state_bytes(const VirtualRanks *world);

/* A unit of a round as a rank holds it. */
typedef struct UnitAt {
    const WholeUnit *unit;
    const ProgramSite *site;
    RankSite *own;
    const GraphParam *param;
    int64_t shard, grad, state; /* first element among the shards, the gradients, the parameter's state */
    int64_t slice;              /* among the slices of the round */
} UnitAt;

/* The round that an instruction's `op` names, or NULL; the k-th unit of a round; its momentum, which is made. */
const WholeRound *rank_round(const RankAt *at);
UnitAt rank_unit_at(const Rank *rank, const WholeRound *round, gint32 k);
double *rank_momentum(const Rank *rank, const UnitAt *u);

/* States that pass through HBM: VALUE_STATES_IN to …_MASTER_OUT (rank-states.c). Around an update with the states of its second
 * operand: these take the place of the host's, and have what became of them. */
gboolean rank_states_value(const RankAt *at, GError **error);
gboolean rank_use_states(const RankAt *at, GError **error);
void rank_used_states(const RankAt *at);

/* Whole matrices of Muon: VALUE_DIRECTION, …_ORTHOGONALIZE, …_DESCEND, and their exchange (rank-optim.c). */
gboolean rank_whole_value(const RankAt *at, GError **error);
gboolean rank_whole_exchange(const RankAt *ats, int64_t n, GError **error);

/* Fills a rank's shards from whole parameters. */
void rank_load_shards(Rank *rank);

/* Expert in a slot of a layer; first element of a rank's slots of a parameter in all of them. */
int64_t rank_expert_in_slot(const VirtualRanks *world, int64_t layer, int64_t slot);
int64_t rank_slot_offset(const Rank *rank, const GraphParam *param);

/* A rank's index in the group that shards a site. */
int64_t rank_shard_index(const Rank *rank, const FsdpGroup *group);
