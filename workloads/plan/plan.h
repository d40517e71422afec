/*
 * Plan: one training run as the user asks for it, every default filled in, checked.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "hw/cluster.h"
#include "models/model.h"
#include "models/op.h"
#include "sim/base/dtype.h"

typedef enum PlanMode { PLAN_PRETRAIN, PLAN_FINETUNE, PLAN_LORA } PlanMode;
typedef enum PlanRecompute { PLAN_RECOMPUTE_NONE, PLAN_RECOMPUTE_FULL, PLAN_RECOMPUTE_SELECTIVE } PlanRecompute;
typedef enum PlanRouting { PLAN_ROUTING_BALANCED, PLAN_ROUTING_ZIPF, PLAN_ROUTING_MEASURED, PLAN_ROUTING_ROUTER } PlanRouting;
typedef enum PlanOptimizer { PLAN_ADAMW, PLAN_MUON } PlanOptimizer;
typedef enum PlanPrefetch { PLAN_PREFETCH_IMPLICIT, PLAN_PREFETCH_EXPLICIT } PlanPrefetch;

typedef struct Plan {
    char *name; /* file, for messages */
    Model *model;
    Cluster *cluster;
    int64_t dp_replicate, dp_shard, ep, etp, tp, cp, pp; /* dp_shard filled in */
    int64_t efsdp;                                       /* dp_shard x cp x tp / (ep x etp) */
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
    json_t *routing_loads;   /* content of load_file, or NULL */
    PlanRecompute recompute;
    gboolean keep[N_OP_KEEPS];
    int64_t seq_chunk, vocab_chunk; /* 0 = not chunked */
    PlanOptimizer optimizer;
    Dtype moments;
    Dtype parameters, compute, reduce, gemm;
    gboolean eager[N_OPS]; /* by operator kind */
    int64_t image_tokens;
    GPtrArray *warnings; /* char *: legal, but worth knowing */
} Plan;

/* Reads and checks a plan file. */
Plan *plan_load(const char *path, GError **error);

/* The same from a value; base_dir (may be NULL) is what paths are relative to, name is for messages. */
Plan *plan_from_json(json_t *value, const char *name, const char *base_dir, GError **error);
void plan_free(Plan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Plan, plan_free)
