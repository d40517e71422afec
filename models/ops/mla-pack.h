/*
 * MLA key assembly: the keys and values of multi-head latent attention as two dense tensors.
 *
 * Every head's key is its own part of the up-projected latent, followed by the key that all heads share:
 * k = [k_nope; k_rope], v as it is.
 */
#pragma once

#include "models/graph.h"

typedef struct MlaPackAttr {
    int64_t heads;
    int64_t nope_dim, rope_dim, v_dim;
} MlaPackAttr;

typedef struct MlaPackTensors {
    int k; /* [rows, heads x (nope_dim + rope_dim)] */
    int v; /* [rows, heads x v_dim] */
} MlaPackTensors;

/* Adds the assembly of kv [rows, heads x (nope_dim + v_dim)] and the shared key k_rope [rows, rope_dim]. */
MlaPackTensors mla_pack_add(Graph *graph, const char *name, int kv, int k_rope, const MlaPackAttr *attr);
