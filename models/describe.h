/*
 * Description of a model for people and programs: layers, parameters, operators, FLOPs per token.
 */
#pragma once

#include <jansson.h>

#include "models/flops.h"
#include "models/model.h"
#include "models/params.h"

typedef struct ModelFacts {
    ParamCounts params; /* counted from the graphs and by formula alike */
    ModelFlops flops;
    int64_t seq_len;
    int64_t n_kinds; /* distinct layers */
} ModelFacts;

/* Builds the graphs of a model and counts. */
void model_facts(const Model *model, int64_t seq_len, ModelFacts *ret_facts);

/*
 * Layers in one line, repetitions folded: "kda+dense, 22 x (2 x kda+moe, mla+moe, kda+moe), …". A window or an indexer
 * is part of a layer's name: "gqa[128]+moe", "mla[dsa]+moe". Caller frees.
 */
char *model_layer_pattern(const Model *model);

/* Name of one layer as in the pattern; caller frees. */
char *model_layer_name(const Model *model, int64_t layer);

/* All of it as a JSON object (new reference). */
json_t *model_facts_to_json(const Model *model, const ModelFacts *facts);
