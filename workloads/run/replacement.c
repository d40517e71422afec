#include "workloads/run/replacement.h"

#include <math.h>
#include <string.h>

#include "models/placement.h"
#include "workloads/lower/copies.h"
#include "workloads/plan/routing.h"

/* Loads of a window: tokens that each expert of a table got. */
static void window_loads(const Plan *plan, const RoutingSpec *spec, int table, int window, double *ret_loads)
{
    g_autofree double *share = g_new(double, spec->experts);
    double steps = (double)plan->moe.replace_every * (double)plan->n_micro_batches;
    double ranks = (double)(plan->dp_replicate * plan->dp_shard);
    double tokens = (double)spec->tokens * ranks * steps, sequences = (double)spec->sequences * ranks * steps;
    routing_table_shares(spec, table, share);
    for (int64_t e = 0; e < spec->experts; e++) {
        ret_loads[e] = routing_scattered(spec, table, window, e, share[e], tokens, sequences);
    }
}

static double busiest_over_mean(const PlacementShape *shape, const double *loads, const int64_t *expert, const int64_t *copies)
{
    g_autofree double *gpu = g_new(double, shape->gpus);
    double most = 0, sum = 0;
    placement_gpu_loads(shape, loads, expert, copies, gpu);
    for (int64_t i = 0; i < shape->gpus; i++) {
        most = fmax(most, gpu[i]);
        sum += gpu[i];
    }
    return sum > 0 ? most * (double)shape->gpus / sum : 1;
}

/* Adds a table's moves, n_layers times, to bytes[source * gpus + dest]. Returns how many slots change. */
static int64_t add_moves(const PlacementShape *shape, const int64_t *from, const int64_t *to, int64_t slot_bytes, int64_t n_layers,
                         int64_t *bytes)
{
    int64_t per_gpu = shape->slots / shape->gpus;
    for (int64_t slot = 0; slot < shape->slots; slot++) {
        int64_t source = 0;
        while (from[source] != to[slot]) {
            source++;
        }
        if (from[slot] != to[slot]) {
            bytes[source / per_gpu * shape->gpus + slot / per_gpu] += slot_bytes * n_layers;
        }
    }
    return placement_n_moves(from, to, shape->slots) * n_layers;
}

/* The busiest rank's exchange. */
static void price_moves(const Plan *plan, const int64_t *bytes, Replacement *replacement)
{
    g_autofree int64_t *row = g_new(int64_t, plan->ep);
    for (int64_t rank = 0; rank < plan->ep; rank++) {
        for (int received = 0; received < 2; received++) {
            int64_t sum = 0;
            for (int64_t peer = 0; peer < plan->ep; peer++) {
                row[peer] = peer == rank ? 0 : received ? bytes[peer * plan->ep + rank] : bytes[rank * plan->ep + peer];
                sum += row[peer];
            }
            SimTime ns = sum > 0 ? copies_exchange_price(plan, row, rank).ns : 0;
            replacement->bytes_per_rank = MAX(replacement->bytes_per_rank, sum);
            replacement->move_ns = MAX(replacement->move_ns, ns);
        }
    }
}

void replacement_estimate(const Plan *plan, const ModelGraph *graphs, Replacement *ret_replacement)
{
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    PlacementShape shape = {spec.experts, spec.slots, spec.router_groups, MAX(spec.nodes, 1), spec.n_ranks};
    g_autofree double *loads = g_new(double, 2 * shape.experts);
    g_autofree int64_t *expert = g_new(int64_t, 2 * shape.slots), *copies = g_new(int64_t, 2 * shape.experts);
    g_autofree int64_t *bytes = g_new0(int64_t, plan->ep * plan->ep);
    int n_tables = routing_spec_tables(&spec);
    *ret_replacement = (Replacement){0};
    for (int t = 0; t < n_tables; t++) {
        int64_t n_layers = spec.n_layers / n_tables + (t < spec.n_layers % n_tables ? 1 : 0);
        for (int w = 0; w < 2; w++) {
            window_loads(plan, &spec, t, w, loads + w * shape.experts);
            gboolean ok = placement_eplb(&shape, loads + w * shape.experts, expert + w * shape.slots, copies + w * shape.experts, NULL);
            g_assert(ok);
        }
        const double *last = loads + shape.experts;
        double part = (double)n_layers / (double)spec.n_layers;
        ret_replacement->load_before += part * busiest_over_mean(&shape, last, expert, copies);
        ret_replacement->load_after += part * busiest_over_mean(&shape, last, expert + shape.slots, copies + shape.experts);
        ret_replacement->n_moved +=
            add_moves(&shape, expert, expert + shape.slots, copies_slot_bytes(plan, graphs), n_layers, bytes);
    }
    price_moves(plan, bytes, ret_replacement);
}
