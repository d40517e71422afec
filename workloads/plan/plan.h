/*
 * Plan: one training run as the user asks for it, every default filled in, checked.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "hw/cluster.h"
#include "models/block.h"
#include "models/model.h"
#include "models/moe-tables.h"
#include "models/op.h"
#include "sim/base/dtype.h"
#include "sim/base/json-read.h"

typedef enum PlanMode { PLAN_PRETRAIN, PLAN_FINETUNE, PLAN_LORA } PlanMode;
typedef enum PlanRecompute { PLAN_RECOMPUTE_NONE, PLAN_RECOMPUTE_FULL, PLAN_RECOMPUTE_SELECTIVE } PlanRecompute;
typedef enum PlanRouting {
    PLAN_ROUTING_BALANCED,
    PLAN_ROUTING_ZIPF,
    PLAN_ROUTING_MEASURED,
    PLAN_ROUTING_ROUTER,
    PLAN_ROUTING_CONSECUTIVE,
} PlanRouting;
typedef enum PlanBalance { PLAN_BALANCE_NONE, PLAN_BALANCE_AUX_LOSS, PLAN_BALANCE_BIAS, PLAN_BALANCE_QUANTILE } PlanBalance;
typedef enum PlanPlacement { PLAN_PLACEMENT_LINEAR, PLAN_PLACEMENT_EPLB } PlanPlacement;
/* Who holds what between steps: FSDP shards all; ZeRO-1 the optimizer's states alone; NONE nothing (data parallelism). */
typedef enum PlanSharding { PLAN_SHARDING_FSDP, PLAN_SHARDING_ZERO1, PLAN_SHARDING_NONE } PlanSharding;
typedef enum PlanDispatch {
    PLAN_DISPATCH_ALL_TO_ALL,   /* a row for every choice, straight to the rank of its expert */
    PLAN_DISPATCH_HIERARCHICAL, /* the same by way of the rank in the own node that stands where the target stands in its node */
    PLAN_DISPATCH_ALL_GATHER,   /* all tokens to all ranks */
    PLAN_DISPATCH_DEEPEP,       /* a token once to each rank, over the NIC once to each node */
    PLAN_DISPATCH_HYBRIDEP,
    N_PLAN_DISPATCHES
} PlanDispatch;
/* What collectives that run at once on one network do to each other. */
typedef enum PlanNetwork {
    PLAN_NETWORK_FLOWS,       /* they are flows that share its links, max-min fairly */
    PLAN_NETWORK_CLOSED_FORM, /* nothing: each takes what it takes alone */
} PlanNetwork;
typedef enum PlanOptimizer { PLAN_ADAMW, PLAN_MUON } PlanOptimizer;
typedef enum PlanPrefetch { PLAN_PREFETCH_IMPLICIT, PLAN_PREFETCH_EXPLICIT } PlanPrefetch;

/* The mixture of experts: capacity, drops, balancing, copies of experts. */
typedef struct PlanMoe {
    MoeCapacity capacity; /* factor 0 = dropless */
    double drop_target;   /* >= 0: capacities follow measured loads, so that no more is dropped; < 0: they do not */
    gboolean pad;         /* every expert computes its capacity, whatever it got */
    MoeDrop drop;
    PlanBalance balance;
    int64_t balance_steps; /* steps that the rule has run */
    double balance_rate;
    int64_t redundant_experts; /* slots for copies, beside one for each expert */
    double aux_loss_coeff, z_loss_coeff; /* of a router's balancing loss and of its z-loss; 0 = none */
    BalanceScope aux_loss_scope;
    PlanPlacement placement;
    PlanDispatch dispatch;
    gboolean shared_overlap; /* shared experts run while rows travel to the routed ones */
    int64_t overlap_chunks; /* chunks of tokens that travel and are computed in turn (models/blocks/moe-layer.c); 1 = all at once */
    gboolean overlap_micro_batches; /* forward of the next micro-batch between parts of this one's backward (lower/interleave.h) */
    int64_t replace_every; /* steps between two placements by the loads since; 0 = never moved */
} PlanMoe;

/* Codes of weights are made in each pass; are kept beside the weights; or are all that there is beside the optimizer's copy. */
typedef enum PlanFp8Weights { PLAN_FP8_EACH_PASS, PLAN_FP8_CACHED, PLAN_FP8_PRIMARY } PlanFp8Weights;

typedef struct Plan {
    gint extra_refs; /* beside the first; see plan_ref() */
    const struct Plan *owner; /* of a copy that borrows all of it; else NULL */
    char *name; /* file, for messages */
    JsonDoc *doc; /* the file, for their places; NULL = made from a value */
    Model *model;
    Cluster *cluster;
    int64_t dp_replicate, dp_shard, ep, etp, tp, cp, pp; /* dp_shard filled in */
    int64_t efsdp;                                       /* dp_shard x cp x tp / (ep x etp) */
    PlanSharding sharding;
    gboolean plain; /* sharding none without gradient buffers, on one rank: lowered as FSDP of one rank that copies nothing */
    PlanNetwork network;
    gboolean reshard_after_forward;
    PlanPrefetch prefetch;
    PlanMode mode;
    int64_t lora_rank;
    gboolean lora_attention, lora_shared, lora_experts, lora_shared_a;
    int64_t seq_len, micro_batch, global_batch, n_micro_batches;
    PlanRouting routing;
    double routing_exponent;
    uint64_t routing_seed;
    gboolean routing_sorted;
    GArray *routing_order;   /* int64_t: expert of each rank of the popularity order, or NULL */
    JsonDoc *routing_loads;  /* content of load_file, or NULL */
    int64_t routing_replicas;      /* sampled expert-parallel groups; 0 = a usual number */
    int64_t routing_layer_draws;   /* different loads, dealt to the layers in turn */
    int64_t routing_sample_tokens; /* of a router; 0 = a usual number */
    PlanMoe moe;
    PlanRecompute recompute;
    gboolean keep[N_OP_KEEPS];
    double offload_fraction;     /* of the tensors that autograd saves; by hooks */
    int64_t offload_layers;      /* the first so many layers; 0 = all */
    int64_t offload_min_bytes;   /* smaller tensors stay */
    gboolean copies_yield;       /* copies between HBM and DDR wait for traffic between nodes on the same link */
    gboolean has_cache;          /* memory.cache: budgets fill the tables */
    gboolean cache_has_keep;     /* memory.keep names what may be cached; else everything may */
    gboolean cache_has_ddr;      /* ddr_bytes is given, be it 0 */
    int64_t cache_hbm_bytes, cache_ddr_bytes;
    gboolean cache_fits;         /* hbm_bytes "fit": what the device has left; a run finds out (run/trials.h) */
    int cache_policy;            /* CachePolicyKind of workloads/lower/cache-policy.h */
    int64_t cache_window;        /* layers between a copy and the use of what it frees or brings */
    int64_t seq_chunk, vocab_chunk; /* 0 = not chunked */
    double index_kl_coeff;          /* of the KL loss that trains indexers; 0 = they are frozen */
    gboolean seq_chunk_fits; /* "fit": the chunk with which the step is fastest; a run finds out */
    gboolean expandable_segments; /* of the caching allocator */
    gboolean host_keeps_pages;    /* freed host memory stays with the process, whatever glibc's thresholds start at */
    PlanOptimizer optimizer;
    gboolean muon_per_head;  /* rows of q, k and v are orthogonalised head by head */
    gboolean layer_wise;     /* with ZeRO-1: whole tensors are dealt to ranks (lower/deal.h), not elements of each */
    gboolean optimizer_offload; /* states live in DDR; the host makes AdamW's step, for Muon's they are streamed through HBM */
    gboolean master_weights; /* an fp32 copy beside bf16 parameters, which the optimizer updates */
    Dtype moments;
    Dtype parameters, compute, reduce, gemm;
    PlanFp8Weights fp8_weights; /* gemm fp8: how long codes of weights live */
    int64_t fp8_align;     /* gemm fp8: sizes that such products take are multiples of it; else 0 */
    gboolean eager[N_OPS]; /* by operator kind */
    int64_t image_tokens;
    GPtrArray *warnings; /* char *: legal, but worth knowing */
} Plan;

/* Slots for experts in an expert-parallel group: the model's experts and copies of some. */
int64_t plan_expert_slots(const Plan *plan);

/* Whether the plan leaves sizes to the run: it has no program before these are found. */
static inline gboolean plan_is_open(const Plan *plan)
{
    return plan->cache_fits || plan->seq_chunk_fits;
}

/* Tokens of a rank's micro-batch in a chunk of those that MoE layers cut them into (moe.overlap_chunks). */
int64_t plan_chunk_tokens(const Plan *plan, int64_t chunk);

/* Whether tokens travel as they are, and slots are made at the ranks of the experts. */
gboolean plan_sends_tokens(const Plan *plan);

/* MoE layers of the model. */
int64_t plan_n_moe_layers(const Plan *plan);

/*
 * What loss-free balancing sums over all ranks once a step: rows of each expert (sign rule), or a histogram of each expert's scores
 * (quantile rule), which takes memory all the time. 0: the plan has no such rule.
 */
int64_t plan_balance_bytes(const Plan *plan);
int64_t plan_balance_static_bytes(const Plan *plan);

/* Which of the MoE layers a layer is, counted from 0; -1: none. */
int64_t plan_moe_layer(const Plan *plan, int64_t layer);

/* Whether capacities follow the loads of a layer, instead of the number of tokens alone. */
gboolean plan_capacity_is_measured(const Plan *plan);

/* Fails at a field of a plan, for what shows only when it is run: printf form. */
void plan_fail(const Plan *plan, const char *path, GError **error, const char *format, ...) G_GNUC_PRINTF(4, 5);

/* Reads and checks a plan file. */
Plan *plan_load(const char *path, GError **error);

/* The same from a value; base_dir (may be NULL) is what paths are relative to, name is for messages. */
Plan *plan_from_json(json_t *value, const char *name, const char *base_dir, GError **error);
/* Communicators of more than one rank, and those of them that exchange all to all: one per dimension of the meshes that is used. */
int64_t plan_n_communicators(const Plan *plan, int64_t *ret_n_exchanging);

/* Memory of the device outside the framework's allocator: context, kernels, communicators. */
int64_t plan_outside_bytes(const Plan *plan);

/* Parts that a dense parameter, or an expert (under EP), is cut into: 1 where nothing is sharded, or tensors whole. */
int64_t plan_n_shards(const Plan *plan, gboolean expert);

/*
 * What plans loaded, for those that come later: equal models and clusters are one. A file is read once. Serves one thread;
 * plans made with it may outlive it.
 */
typedef struct PlanCache PlanCache;
PlanCache *plan_cache_new(void);
void plan_cache_free(PlanCache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanCache, plan_cache_free)

/*
 * plan_from_json() with a cache. Parts of the value (its members) that are those of the call before are not read again: as
 * long as the cache lives, nobody may change what was handed in.
 */
Plan *plan_from_json_cached(PlanCache *cache, json_t *value, const char *name, const char *base_dir, GError **error);

/* One more owner of a plan (of a copy's owner), which must not be changed from then on; returns what is to be freed once more. */
const Plan *plan_ref(const Plan *plan);
void plan_free(Plan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Plan, plan_free)
