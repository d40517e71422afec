/*
 * Measured loads: token counts of a file, made whole tokens of the plan.
 */
#pragma once

#include "workloads/plan/routing.h"

/* Number of layers in spec->loads: 1 (all are alike) or spec->n_layers. 0 and a message that names the file if neither. */
int64_t routing_read_shape(const RoutingSpec *spec, GError **error);

/*
 * Tokens of the table-th layer's [expert] or [source rank][expert] counts: ret_tokens[n_ranks * experts]. FALSE and a message with
 * the place in the file when they are no such counts.
 */
gboolean routing_read_layer(const RoutingSpec *spec, int64_t table, int64_t *ret_tokens, GError **error);

/*
 * A CSV table as such loads: columns layer, expert, tokens and, for each source rank, source; missing experts have no tokens.
 * NULL and a message with FILE:LINE for anything else. Caller frees.
 */
JsonDoc *routing_read_csv(const char *path, int64_t experts, GError **error);
