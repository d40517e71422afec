/*
 * FSDP: where parameters are gathered, freed and their gradients reduced.
 *
 * A group is the parameters of one fully_shard call: they are gathered by one all-gather and reduced by one
 * reduce-scatter. The instructions follow torch's fully_shard (reference/fsdp_memory.md section 1):
 *   unshard  cast the shard into the flat buffer, all-gather (gather streams);
 *   wait     compute waits for it, copies out to one buffer per parameter; the flat buffer dies at once (backward,
 *            explicit prefetch) or at the next wait (forward, implicit prefetch);
 *   reshard  the parameters' buffers are freed;
 *   reduce   gradients go into one flat buffer of the reduce type, which lives until the next group's reduce, then
 *            reduce-scatter, all-reduce over replicas, cast or sum into the gradient shard.
 *
 * A group of one rank gathers nothing ahead: its wait casts and copies parameter by parameter on the compute stream, and
 * its reduce is a copy.
 *
 * Resident groups (ZeRO-1 and no sharding) gather nothing in a pass: their parameters' buffers, one flat buffer of whole
 * gradients (FSDP_REDUCE_IN) and, as parts of these, FSDP_FLAT and FSDP_GRAD are always there, without ALLOC or FREE. A pass
 * adds its gradients; once a step, gradients are reduced before the optimizer and parameters gathered after it.
 *
 * Plain groups (no gradient buffers, one rank) have views of the stored parameters, and each gradient stays where backward made
 * it until the optimizer has used it.
 *
 * FP8 codes of weights that outlive a pass (precision.fp8_weights) are resident, too: buffers of their own, which products read, made
 * anew when the optimizer has changed a weight. Where they are primary nothing else is stored of these weights.
 *
 * Buffers of a group, from the base that a call argument gives: FSDP_FLAT…, then one per parameter, then one per gradient that
 * stays, then one per parameter for codes. One token each:
 * its all-gather is done.
 */
#pragma once

#include "workloads/lower/copy-in.h"
#include "workloads/lower/emit.h"

enum { FSDP_FLAT, FSDP_CAST, FSDP_REDUCE_IN, FSDP_REDUCE_OUT, FSDP_GRAD, FSDP_HOST_GRAD, FSDP_STATES, FSDP_PARAMS };

/* Tokens that all groups share, from the base in call argument ARG_GLOBAL. */
enum { TOKEN_COPY_OUT, TOKEN_REDUCED, TOKEN_CAST, TOKEN_GRADS_IN, TOKEN_EP_READY, TOKEN_HOST, TOKEN_HOST_DONE, TOKEN_SWAP_READY,
       TOKEN_EP_DONE, /* one for each kind of exchange of a layer (walk_exchange_slot), then one for each of a backward pass */
       N_EXCHANGE_KINDS = 3, N_EXCHANGE_TOKENS = N_EXCHANGE_KINDS * (TOKEN_CHUNKS_MAX + 1),
       N_GLOBAL_TOKENS = TOKEN_EP_DONE + 2 * N_EXCHANGE_TOKENS };

/* Call arguments with a fixed meaning. */
enum { ARG_GLOBAL, ARG_GROUP, ARG_GROUP_TOKEN, ARG_EXPERTS, ARG_EXPERTS_TOKEN, ARG_NEXT, ARG_NEXT_TOKEN, ARG_LAST_FLAT,
       ARG_LAST_REDUCE, ARG_SWAP, ARG_OUTPUT, ARG_SOURCES };

typedef struct FsdpParam {
    const Graph *graph;
    int param;
} FsdpParam;

/* struct FsdpGroup is named in program.h, too */
typedef struct FsdpGroup {
    GArray *params; /* FsdpParam */
    GroupKind mesh;
    int64_t n_shards;
    int64_t n_ranks;            /* of the mesh: n_shards, or all that hold the same where nothing is sharded */
    gboolean resident;          /* whole parameters and gradients outlive the step: ZeRO-1, or no sharding */
    int64_t n_trainable;        /* parameters (tensors) with a gradient */
    int64_t numel;              /* whole parameters of this rank, after EP */
    int64_t shard_numel;        /* of the fullest rank, without padding of the last dimension */
    int64_t padded_numel;       /* shard_numel x n_shards */
    int64_t trainable_shard_numel;
    int64_t trainable_padded_numel;
    int64_t trainable_numel;
    CopyInTable copy_in;  /* of the gradients */
    SimTime copy_in_ns;   /* host time that its table takes … */
    SimTime fresh_ns;     /* … and of that, fresh pages */
    int64_t gather_bytes;       /* that an all-gather brings */
    CollPrice gather, reduce, replica;
} FsdpGroup;

FsdpGroup *fsdp_group_new(const Plan *plan, GroupKind mesh);
void fsdp_group_free(FsdpGroup *group);

/* Adds the parameters of a graph that belong to this mesh and that `wanted` accepts (NULL = all). */
typedef gboolean (*FsdpWanted)(const GraphParam *param);
void fsdp_group_add(FsdpGroup *group, const Plan *plan, const Graph *graph, ParamSplit split, FsdpWanted wanted);

/* Prices the collectives; call once, after the last parameter. */
void fsdp_group_price(FsdpGroup *group, const Plan *plan);

/* Whether a gradient of it comes: it trains, and an operator reads it. */
gboolean fsdp_has_grad(const GraphParam *param);

/* Whether shards cut every expert along its rows, as torchtitan has it where there are more shards than experts of a rank.
 * Whoever asks how a stack of experts lies asks here: bytes do not tell, for a slice of each may be as large as one expert. */
gboolean fsdp_cuts_experts(const Plan *plan, const GraphParam *param);

/* Whole elements of a parameter on this rank (after EP), and elements of its shard on the fullest rank. */
int64_t fsdp_local_numel(const Plan *plan, const GraphParam *param);
int64_t fsdp_shard_numel(const Plan *plan, const GraphParam *param);

/* Bytes of a weight's FP8 codes, for both sides, where they outlive a pass; else 0. */
int64_t fsdp_code_bytes(const Plan *plan, const FsdpParam *entry);

/* What is stored of a parameter on this rank where it is whole: 0 where codes are all. */
int64_t fsdp_whole_bytes(const Plan *plan, const FsdpParam *entry);

/* The buffer of a parameter's codes. */
gint32 fsdp_codes_buffer(const FsdpGroup *group, guint i);

/* Number of buffers of a group. */
int fsdp_group_buffers(const FsdpGroup *group);

/* Index of a parameter in the group, or -1. */
int fsdp_group_find(const FsdpGroup *group, const Graph *graph, int param);

/* Before the first gather of a pass: gathers wait for what compute did to the shards. */
void fsdp_start(Emitter *emitter);

/* After the last reduction of a pass: the next wait for a reduction waits for everything that followed it. */
void fsdp_finish(Emitter *emitter);

void fsdp_unshard(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token);

/* Whether unshard leaves a flat buffer behind. */
gboolean fsdp_has_flat(const FsdpGroup *group);

/*
 * free_flat: the group's own flat buffer dies here, too; last_flat: an argument whose group's flat buffer dies here
 * (implicit prefetch in forward), or -1.
 */
void fsdp_wait(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token, gboolean free_flat, int last_flat);

/* Frees the flat buffer of a group whose copy-out has been issued; later gathers wait for that. */
void fsdp_release_flat(Emitter *emitter, int arg);
void fsdp_reshard(Emitter *emitter, const FsdpGroup *group, int arg);

/*
 * Reduces the gradients of a group; grads[i] is the unsharded gradient buffer of trainable parameter i in the order of
 * the group. last_reduce: an argument whose group's reduce buffer dies here, or -1. first: no shard of an earlier
 * micro-batch exists.
 */
void fsdp_reduce(Emitter *emitter, const FsdpGroup *group, int arg, const Place *grads, int last_reduce, gboolean first);

/* Whether a group's reduction leaves a buffer behind, for the next one to free. */
gboolean fsdp_leaves_reduce(const FsdpGroup *group);

/* Resident groups, once a step: gradients of all micro-batches are reduced; what the optimizer left is gathered. */
void fsdp_reduce_resident(Emitter *emitter, const FsdpGroup *group, int arg);
void fsdp_renew_resident(Emitter *emitter, const FsdpGroup *group, int arg, int arg_token);
/* Whether gradients stay whole: then gather_grads names them as one before the optimizer's step, and free_grads ends them. */
gboolean fsdp_is_plain(const Plan *plan);
void fsdp_gather_grads(Emitter *emitter, const FsdpGroup *group, int arg);
void fsdp_free_grads(Emitter *emitter, const FsdpGroup *group, int arg);

/* Frees a reduce buffer whose reduction has been waited for. */
void fsdp_release_reduce(Emitter *emitter, int last_reduce);
