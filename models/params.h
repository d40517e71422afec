/*
 * Parameters of a model, counted twice: by closed formula from the sizes (here), and by adding up what the
 * operators of its graphs declare (param_counts_of_graph). Tests hold the two against each other, part by part
 * and layer by layer.
 *
 * Counting rule: every weight of the main model, biases and norms included, also the router's selection bias, which
 * is no trained tensor (`buffers` of the total); multi-token-prediction layers are counted apart.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "models/model.h"

typedef enum ParamPart {
    PARAM_PART_EMBEDDING,
    PARAM_PART_GQA,
    PARAM_PART_MLA,
    PARAM_PART_INDEXER,
    PARAM_PART_KDA,
    PARAM_PART_GDN,
    PARAM_PART_MAMBA2,
    PARAM_PART_NORMS,   /* of layers and the final one */
    PARAM_PART_ATTNRES, /* queries and key norms of the mixes */
    PARAM_PART_DENSE_MLP,
    PARAM_PART_ROUTER,
    PARAM_PART_SHARED_EXPERTS,
    PARAM_PART_LATENT,
    PARAM_PART_ROUTED_EXPERTS,
    PARAM_PART_HEAD,
    PARAM_PART_VISION,
    PARAM_PART_PROJECTOR,
    N_PARAM_PARTS
} ParamPart;

typedef struct ParamCounts {
    int64_t parts[N_PARAM_PARTS];
    int64_t total;                    /* all parts */
    int64_t vision;                   /* of the total: tower and projector */
    int64_t active;                   /* of a text token: no vision, of the routed experts only those chosen */
    int64_t active_without_embedding; /* the input table is a lookup; a tied one stays, it is the head */
    int64_t buffers;                  /* of the total: router selection bias */
    int64_t mtp;                      /* beside the total */
} ParamCounts;

/* Name as reports write it: "routed_experts". Never NULL. */
const char *param_part_name(ParamPart part);

/* Parameters of layer i by part; adds to ret_parts[N_PARAM_PARTS]. */
void param_layer_parts(const Model *model, int64_t layer, int64_t *ret_parts);

/* The closed formula. */
void param_counts(const Model *model, ParamCounts *ret_counts);

/* Fills what follows from the parts (total, vision, active, ...). */
void param_counts_finish(const Model *model, ParamCounts *counts);

/* Part of the parameter of that checkpoint name inside layer i ("self_attn.q_proj.weight"). */
ParamPart param_part_of(const Model *model, int64_t layer, const char *name);

/*
 * Text parameters that one rank holds when only the experts are split, over ep_size ranks; without the
 * selection bias unless with_buffers.
 */
int64_t param_counts_per_ep_rank(const ParamCounts *counts, int64_t ep_size, gboolean with_buffers);

/* What LoRA adapters are made for. */
typedef struct ParamLora {
    int64_t rank;
    gboolean attention; /* mixers: q, k, v, o, low-rank and gate matrices */
    gboolean shared;    /* latent projections and shared experts */
    gboolean experts;   /* routed experts, each by itself */
    gboolean shared_a;  /* experts have one A in common */
} ParamLora;

/* Parameters of the adapters. */
int64_t param_count_lora(const Model *model, const ParamLora *lora);
