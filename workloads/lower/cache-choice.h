/*
 * Choice: which results to keep in HBM, which in DDR, when the whole step is known.
 *
 * For one layer the best sets are the corners of a convex hull of recomputed seconds over kept bytes (cache-cut.h, exact). Over
 * layers, with H bytes of HBM and D in DDR:
 *
 *     minimise  sum over layers of seconds(set)   subject to   sum of bytes(set) <= H + D,   D <= min(DDR, R F, R B)
 *
 * where R is what the host link carries beside the rest of the step, F and B the times of the forward and the backward pass, B
 * shorter by what is not recomputed: as long as copies fit beside the passes they cost no time, and beyond that they cost more
 * than they save once B / R has been met. Where an entry lies changes the two limits alone, not the sum.
 *
 * Layers of a kind have one hull. Exchange argument: if a layer moves up a corner with fewer seconds per byte than another
 * layer's next corner offers, swapping these bytes gains; so corners fill up in the order of seconds per byte over all kinds, all
 * layers of a kind one corner before the first of them the next. This is exact but for the last corner that does not fit whole:
 * the result is within one corner of one layer of the best.
 *
 * The entries of the first layers go to DDR, as fast as the link takes them: they wait longest. The last layers' stay in HBM.
 */
#pragma once

#include "hw/host-link.h"
#include "workloads/lower/cache-cut.h"

typedef struct CacheItem {
    gint32 layer, op;
    int64_t bytes;
    double cost_s; /* to make it again */
} CacheItem;

/* Layers that are alike to the choice. */
typedef struct ChoiceKind {
    CutLayer *layer;
    GArray *hull; /* CutPoint */
    int64_t n_layers;
} ChoiceKind;

/* What a step offers, whatever the budgets are. */
typedef struct Choice {
    HostLink link;
    ChoiceKind *kinds;        /* by kind of graph */
    int n_kinds;
    const int *layer_kind;    /* [n_layers] */
    int64_t n_layers;
    double forward_s, backward_s; /* passes of the layers, with everything recomputed */
    double net_frac;              /* of the forward pass: traffic between nodes is under way */
} Choice;

/* Budgets, and how many layers lie between a copy and the use of what it frees or brings. */
typedef struct CacheBudget {
    int64_t hbm_bytes, ddr_bytes, window;
} CacheBudget;

/* Where each item goes; ret_place[n items] gets KEEP_NOT, KEEP_HBM or KEEP_DDR. */
void cache_choose(const Choice *choice, const GArray *items, const CacheBudget *budget, guint8 *ret_place);

/* Bytes of everything that is worth keeping at any price. */
int64_t cache_most_kept(const Choice *choice);

/* Most bytes of DDR that any budget uses: what the link carries beside the forward pass. */
int64_t cache_most_ddr(const Choice *choice);

/* Seconds of recomputation that budgets save. */
double cache_worth(const Choice *choice, int64_t hbm_bytes, int64_t ddr_bytes);

/*
 * Fills corners up to a budget: ret_counts[kind's corners, one kind behind the other] gets the layers that are at that corner or
 * above. Returns the seconds saved.
 */
double choice_fill(const Choice *choice, int64_t budget, int64_t *ret_counts);
