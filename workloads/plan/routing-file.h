/*
 * Measured loads: token counts of a file, made whole tokens of the plan.
 */
#pragma once

#include "workloads/plan/routing.h"

/* Number of layers in spec->loads: 1 (all are alike) or spec->n_layers. 0 and a message (place names the file) if neither. */
int64_t routing_read_shape(const RoutingSpec *spec, const char *place, GError **error);

/* Tokens of a layer's [expert] or [source rank][expert] counts: ret_tokens[n_ranks * experts]. `where` is for messages. */
gboolean routing_read_layer(json_t *value, const RoutingSpec *spec, const char *where, int64_t *ret_tokens, GError **error);

/*
 * A CSV table as such loads: columns layer, expert, tokens and, for each source rank, source; missing experts have no tokens.
 * NULL and a message with FILE:LINE for anything else. Caller owns the value.
 */
json_t *routing_read_csv(const char *path, int64_t experts, GError **error);
