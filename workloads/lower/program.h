/*
 * Program: what one class of ranks does in a training step, as instructions for streams.
 *
 * A program is a list of calls. A call runs a segment (the forward pass of one kind of layer, its backward pass, the
 * optimizer step, …) on a frame (the buffers of one layer and micro-batch). Layers of a kind share their segments, so
 * a program is small whatever the depth of the model, and equal calls can be folded.
 *
 * The host reads the instructions in order and issues them to in-order streams; streams wait for one another only
 * through tokens (CUDA events): RECORD notes a point of a stream, WAIT makes a stream wait for the latest note, in host
 * order. ALLOC and FREE take effect in host order, as a caching allocator hands out memory. The same instructions are
 * run in time (workloads/run/step), in memory (workloads/run/ledger) and in values (virtual ranks).
 *
 * Invariants: (1) a buffer is allocated, used and freed in that order, in host order, and never freed twice; (2) a WAIT
 * on a token that was never recorded is free; (3) members of a group run the same collectives in the same order;
 * (4) after the last call every buffer is free again.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "hw/cluster.h"
#include "models/graph.h"
#include "models/op.h"
#include "sim/base/quantity.h"
#include "sim/base/work.h"

typedef enum StreamId {
    STREAM_COMPUTE,
    STREAM_GATHER_IN,  /* casts of shards into the all-gather buffer */
    STREAM_GATHER,     /* FSDP all-gathers */
    STREAM_REDUCE,     /* FSDP reduce-scatters, and all-reduces over replicas */
    STREAM_ALL_TO_ALL, /* expert dispatch and combine */
    STREAM_COPY_OUT,   /* HBM to DDR */
    STREAM_COPY_IN,    /* DDR to HBM */
    N_STREAMS
} StreamId;

typedef enum InstrKind {
    INSTR_COMPUTE,    /* kernels on a stream */
    INSTR_COLLECTIVE, /* all members of a group meet */
    INSTR_ALLOC,
    INSTR_FREE,
    INSTR_MOVE,       /* a buffer goes on under another name: no copy, no time */
    INSTR_RECORD,
    INSTR_WAIT,
    INSTR_HOST_SYNC, /* the host waits until the stream is done */
    INSTR_HOST,      /* host work alone */
    INSTR_MARK,      /* end of a phase */
    INSTR_VALUE,     /* what the kernels before it have computed, for interpreters of values: no time, no memory */
} InstrKind;

/* What an INSTR_VALUE does, and the buffers that it names (operands). */
typedef enum ValueAction {
    VALUE_FORWARD,     /* operator: inputs, outputs, auxiliary tensors */
    VALUE_BACKWARD,    /* operator: the same, then gradients of outputs, gradients of inputs to make */
    VALUE_COPY,        /* from, to */
    VALUE_ADD,         /* a, b, sum (may be a) */
    VALUE_LOSS_SUM,    /* a sum of losses, which joins those of the step */
    VALUE_LOSS_GRAD,   /* the gradient of a sum of losses: 1 / valid labels of the whole batch */
    VALUE_LAYER_LOSS,  /* a loss of a layer, the mean of its rows: joins those of the step by the rows' share of its tokens */
    VALUE_LAYER_LOSS_GRAD, /* its gradient: that share */
    VALUE_PASS_COUNTS, /* counts of choices, which become those of all micro-batches so far */
    VALUE_PLACE_ROWS,  /* rows of a loss chunk, whole tensor: zeros around them */
    VALUE_SHARD_CAST,  /* cast shard of the group */
    VALUE_SHARD_PLACE, /* cast shard (or none: the stored one), flat buffer: the rank's own part of it */
    VALUE_PARAM_CAST,  /* parameter `op` of a group of one rank */
    VALUE_COPY_OUT,    /* flat buffer, one buffer per parameter */
    VALUE_GRAD_IN,     /* reduce buffer, gradients of the trainable parameters in the order of the group */
    VALUE_UPDATE,      /* gradient shard: the optimizer's update of the group's shards, matrices of Muon excepted */
    VALUE_SUM_COPIES,  /* no VALUE of its own but a COLLECTIVE: gradient shards of an expert's copies become their sum */
    VALUE_EXCHANGE_COUNTS, /* the same: rows for each expert (and, for tokens, the order of their slots), chunk by chunk */
    VALUE_LOADS,  /* table: rows of the step to each expert of each MoE layer */
    VALUE_BIASES, /* table, summed over the ranks: selection biases move by it */
    VALUE_DIRECTION,     /* slices of a round: momentum step, direction of descent; `op` is added to the call's round */
    VALUE_ORTHOGONALIZE, /* whole matrices of a round */
    VALUE_DESCEND,       /* slices of a round: the shards go along them */
    VALUE_STATES_IN,     /* states (moments, master copies) of what AdamW updates in a group, come from DDR; ... */
    VALUE_STATES_OUT,    /* ... and go back; VALUE_UPDATE names them after its gradient */
    VALUE_MOMENTUM_IN,   /* the same of Muon's momentum of a round, which VALUE_DIRECTION names after its slices; ... */
    VALUE_MOMENTUM_OUT,
    VALUE_MASTER_IN,     /* ... and of its master copies, which VALUE_DESCEND names after its slices */
    VALUE_MASTER_OUT,
    VALUE_WEIGHT_CODES,  /* parameter `op` of a group: its FP8 codes, which products read in its place */
    VALUE_DEAL_PLACE,    /* all dealt tensors of the mesh `op`: those that this rank has updated, in their places */
    VALUE_DEAL_TAKE,     /* the same once all ranks have theirs there: the others' become this rank's */
    VALUE_DEAL_GATHER,   /* no VALUE of its own but a COLLECTIVE: every owner's part to all */
    N_VALUE_ACTIONS
} ValueAction;

typedef enum Phase { PHASE_FORWARD, PHASE_RECOMPUTE, PHASE_BACKWARD, PHASE_OPTIMIZER, N_PHASES } Phase;

/* How kernels that run at once slow each other down. */
typedef enum ShareClass {
    SHARE_DENSE,      /* tensor-core work */
    SHARE_GROUPED,    /* the same by persistent blocks that share out their tiles beforehand */
    SHARE_ATTENTION,
    SHARE_STREAM,     /* memory-bound kernels of the compute stream */
    SHARE_COMM,       /* collectives inside a scale-up domain */
    SHARE_NET,        /* collectives between domains */
    SHARE_SIDE,       /* copies and casts beside the compute stream */
    SHARE_HOST_OUT,   /* HBM to DDR */
    SHARE_HOST_IN,    /* DDR to HBM */
    SHARE_COMMS,      /* no kernel's own: stands for several collectives at once */
    N_SHARE_CLASSES
} ShareClass;

/* Where a buffer lies. */
typedef enum MemTier {
    TIER_HBM,
    TIER_DDR,  /* pinned host memory */
    TIER_VIEW, /* another name of memory that is counted elsewhere */
    N_MEM_TIERS
} MemTier;

/* Who takes part in a collective. */
typedef enum GroupKind {
    GROUP_DENSE,   /* FSDP of dense parameters: dp_shard x cp ranks */
    GROUP_EXPERT,  /* FSDP of expert parameters: efsdp ranks with the same experts */
    GROUP_REPLICA, /* HSDP replicas */
    GROUP_EP,      /* expert parallelism: ep ranks */
    GROUP_WORLD,   /* all data-parallel ranks: replicas x dp_shard x cp */
    N_GROUP_KINDS
} GroupKind;

/* What an instruction is called in reports: an operator's kind, or one of these. */
enum {
    LABEL_SHARD_CAST = N_OPS, /* FSDP copy-in: cast of the shard */
    LABEL_WEIGHT_CODES,       /* FP8 codes of weights that have changed */
    LABEL_COPY_OUT,           /* FSDP copy-out of the gathered buffer */
    LABEL_GRAD_COPY_IN,       /* gradients into the reduce-scatter buffer; of the host: the table for that … */
    LABEL_GRAD_PAGES,         /* … and of it, fresh pages */
    LABEL_GRAD_ACCUMULATE,    /* sum of gradients that meet in one tensor */
    LABEL_SHARD_ACCUMULATE,   /* gradient shards: cast, and sum over micro-batches */
    LABEL_LAYER_LOSS,         /* sums of losses of layers, their first gradients, and counts that such a loss needs */
    LABEL_BALANCE,            /* counts of loss-free balancing, and the biases that they move */
    LABEL_LOSS_CHUNK,         /* slices of a chunked loss and of their gradients */
    LABEL_OPTIMIZER,
    LABEL_ORTHOGONALIZE,      /* Newton-Schulz steps of Muon */
    LABEL_COLLECTIVE,
    LABEL_SWAP_OUT, /* copy to pinned host memory */
    LABEL_SWAP_IN,  /* copy back */
    LABEL_HOST,
    N_LABELS
};

/* Names for reports. */
const char *program_label_name(int label);
const char *program_group_name(GroupKind group);
const char *program_phase_name(Phase phase);
const char *program_stream_name(StreamId stream);

enum { ARG_FRAME = -1 };

/* A buffer or token as a segment names it: the idx-th of an argument of the call, or of the frame. */
typedef struct Place {
    gint32 arg;
    gint32 idx;
} Place;

typedef struct Instr {
    guint8 kind;   /* InstrKind */
    guint8 stream; /* StreamId */
    guint8 phase;  /* Phase */
    guint8 group;  /* COLLECTIVE: GroupKind */
    guint8 coll;   /* COLLECTIVE: CollKind */
    guint8 tag;    /* ALLOC: MemTag */
    guint8 tier;   /* ALLOC: MemTier */
    gboolean recorded; /* FREE: the allocator itself waits for the streams that still use the memory (record_stream) */
    guint8 evidence;
    guint8 action; /* VALUE: ValueAction; COLLECTIVE, HOST_SYNC: one of those that are none, or 0 */
    guint8 n_operands;
    gint32 first_operand; /* VALUE, COLLECTIVE: in the segment's list; see program_operand() */
    Place place;   /* ALLOC, FREE, MOVE: buffer; RECORD, WAIT: token */
    Place to;      /* MOVE: the new name */
    gint32 label;
    gint32 op;     /* operator of the segment's graph, or -1 */
    gint32 n_launches;
    guint8 share;      /* COMPUTE, COLLECTIVE: ShareClass */
    LinkLoad load;     /* COLLECTIVE: of the network, by NetLevel */
    SimTime device_ns; /* COMPUTE, COLLECTIVE: duration alone on device and network, at the usual clock */
    float power_share; /* COMPUTE: timing_power_share() of its kernels; COLLECTIVE: what it draws beside them */
    gint32 work;        /* COMPUTE: in the segment's list of works, or -1 */
    gint32 clock_ns[2]; /* COMPUTE: what device_ns gains or loses at the least and the highest step share of clock.h */
    SimTime host_ns;   /* host time to issue it */
    int64_t bytes; /* ALLOC: size; COLLECTIVE: whole tensor per rank, of an exchange of rows the busiest one's; copies
                      between tiers: what moves */
    double flops, repeated_flops; /* Work.repeated_flops of all launches */
} Instr;

/* "all_gather (dense FSDP)"; caller frees. */
char *program_collective_name(const Instr *instr);

/* Interpreters that keep a form of their own of a segment. */
typedef enum SegmentView { VIEW_MEMORY, VIEW_BOUND, N_SEGMENT_VIEWS } SegmentView;

/* Time of kernels on the compute stream, at the usual clock, and the same weighed with their power; the same of collectives. */
typedef struct PowerSums {
    double busy_ns, power_ns;
    double comm_ns, comm_power_ns;
} PowerSums;

/* Segments are shared between programs; once lowered, they do not change. */
typedef struct Segment {
    gint n_refs;
    char *name;         /* "backward of KDA + MoE layer" */
    const Graph *graph; /* borrowed, or NULL */
    GArray *instrs;     /* Instr */
    GArray *operands;   /* Place; idx -1 = absent */
    GArray *works;      /* Work: what its kernels ask for, without group_rows; NULL unless the program keeps them */
    GArray *hooks, *grads; /* Hook, Place: of a body (workloads/lower/body.h), which is in no program; else NULL */
    PowerSums power; /* once settled */
    gboolean is_settled;
    void *views[N_SEGMENT_VIEWS]; /* what interpreters made of it for their own use; each with its destructor */
    GDestroyNotify free_view[N_SEGMENT_VIEWS];
} Segment;

/* What prices a COMPUTE of a program that keeps works: the name of a law, or "host link". */
const char *program_law_name(const Segment *segment, const Instr *instr);

enum { CALL_ARGS_MAX = 26 };

/* One run of a segment. */
typedef struct Call {
    gint32 segment;
    gint32 frame; /* first buffer of its frame */
    gint32 layer; /* for reports; -1 = none */
    gint32 micro_batch;
    gint32 round;     /* of whole matrices (whole.h) */
    gint32 first_row, n_rows; /* tokens of a loss chunk; n_rows 0 = all of the micro-batch */
    gint32 args[CALL_ARGS_MAX]; /* first buffer or token of what each argument names */
} Call;

/* Calls that run several times in a row: micro-batches after the first are alike. */
typedef struct CallRepeat {
    guint first, n;
    int64_t times;         /* in all; 0 = there is no such block */
    int64_t micro_batches; /* that a run of the block is ahead of the run before */
} CallRepeat;

/*
 * Calls in a row that other programs have, too. Equal ids: equal calls of equal segments, byte by byte. A run lies inside of the
 * repeated block or outside of it.
 */
typedef struct ProgramRun {
    guint first, n;
    guint32 id;
    PowerSums power; /* of its calls, each once */
} ProgramRun;

/* Parameters that are gathered and reduced together, and where their buffers are. */
typedef struct ProgramSite {
    const struct FsdpGroup *group; /* workloads/lower/fsdp.h; owned by the program */
    gint32 buffer;                 /* first of its buffers */
    gint32 layer;                  /* -1 = outside the layers */
} ProgramSite;

/* The clock that the step's own load leaves: kernels last device_ns + part x clock_ns[side]. See clock.h. */
typedef struct ProgramClock {
    gint32 side;
    double part;
} ProgramClock;

typedef struct Program {
    GPtrArray *segments; /* Segment, with a reference */
    GArray *calls;       /* Call; a repeated block stands here once */
    CallRepeat repeat;
    GArray *runs;        /* ProgramRun: known ones, in the order of the calls */
    GArray *sites;       /* ProgramSite */
    GPtrArray *groups;   /* struct FsdpGroup, owned */
    GArray *whole_units, *whole_rounds; /* WholeUnit, WholeRound: matrices that Muon orthogonalises (whole.h) */
    GArray *dealt;       /* DealTensor: tensors that ranks update for one another (deal.h) */
    gint32 ep_group;     /* of the sampled expert-parallel groups: classes of one group meet in its exchanges */
    gint32 inputs;       /* the static buffer of token ids and labels */
    gint32 n_buffers, n_tokens;
    gboolean expandable_segments; /* of the allocator that hands out the memory */
    gboolean keeps_works; /* segments list the works of their kernels, for reports */
    int64_t host_static_bytes; /* the same in pinned host memory */
    ProgramClock clock;
    int64_t static_bytes[N_MEM_TAGS]; /* alive before the step and after it; of the optimizer, on the fullest rank */
    int64_t uneven_state_bytes; /* how many of these the mean rank does not have */
    int64_t fullest_rank;       /* by optimizer states, where ranks differ in them; else 0 */
} Program;

Program *program_new(void);
void program_free(Program *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Program, program_free)

/* An empty segment of no program; the reference is the caller's. */
Segment *segment_new(const char *name, const Graph *graph, gboolean keeps_works);

/* Makes room for so many calls and segments; of a program that has none yet. */
void program_reserve(Program *program, guint n_calls, guint n_segments);

/* Adds an empty segment, or one that another program has too. Returns its index. */
int program_add_segment(Program *program, const char *name, const Graph *graph);
int program_share_segment(Program *program, Segment *segment);
Segment *segment_ref(Segment *segment);
void segment_unref(Segment *segment);
Segment *program_segment(const Program *program, int idx);

/* Memory that a segment takes, with the forms that interpreters may make of it. */
size_t segment_size_bytes(const Segment *segment);

/* Times that a call of the list runs: 1, or those of the repeated block. */
int64_t program_call_times(const Program *program, guint call);

/* The micro-batch of a call, when the repeated block has been run n_done times through so far. */
int64_t program_micro_batch(const Program *program, guint call, int64_t n_done);

/* The call to run after `call`, when the repeated block has been run n_done times through so far; updates n_done. */
guint program_next_call(const Program *program, guint call, int64_t n_times, int64_t *n_done);

/* Whether two programs are the same, instruction by instruction and call by call. */
gboolean program_equal(const Program *a, const Program *b);

/* Duration of an instruction alone on device and network, at the clock of the step. */
SimTime program_instr_ns(const ProgramClock *clock, const Instr *instr);

/* The i-th buffer that a VALUE or COLLECTIVE names; idx -1 = absent. */
Place program_operand(const Segment *segment, const Instr *instr, int i);

/* The site whose first buffer that is, or NULL. */
const ProgramSite *program_site(const Program *program, gint32 buffer);

/* Buffer or token that a place of a call names. */
gint32 program_resolve(const Call *call, Place place);
