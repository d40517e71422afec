/*
 * Placement: which copy of which expert stands in which slot of which GPU.
 *
 * The rule (EPLB): experts with much load get copies, and copies are packed so that the GPUs' loads are even. If the
 * nodes divide the expert groups, whole groups stay on a node (a token that is limited to few groups then reaches few
 * nodes): groups are packed to nodes, copies made within the node, slots packed to its GPUs. Otherwise the same with
 * one group and one node.
 *
 * Slots are numbered GPU by GPU; every expert has at least one.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct PlacementShape {
    int64_t experts, slots, groups, nodes, gpus; /* gpus divide the slots, nodes the GPUs, groups the experts */
} PlacementShape;

/*
 * Expert of each slot, ret_expert[slots], and copies of each expert, ret_copies[experts], for loads[experts] >= 0.
 * FALSE and a message if the shape does not divide.
 */
gboolean placement_eplb(const PlacementShape *shape, const double *loads, int64_t *ret_expert, int64_t *ret_copies,
                        GError **error);

/*
 * Balanced packing: n items into m bins of n / m each; items by falling weight (ties: the first), each to the lightest
 * bin with room (ties: the first). ret_bin[n] and ret_place[n], the place within the bin. n / m = 1: identity.
 */
void placement_pack(const double *weights, int64_t n, int64_t m, int64_t *ret_bin, int64_t *ret_place);

/* Load of each GPU when an expert's load is shared evenly by its copies: ret_load[gpus]. */
void placement_gpu_loads(const PlacementShape *shape, const double *loads, const int64_t *expert, const int64_t *copies,
                         double *ret_load);

/*
 * Which slots an expert has, for dispatch: a source's i-th row of an expert goes to the copy (i + source) mod copies, so that
 * each source, and all of them, share an expert's rows evenly among its copies.
 */
typedef struct Placement {
    int64_t experts, slots;
    int64_t *expert; /* [slots] */
    int64_t *first;  /* [experts + 1]: where an expert's slots begin in slot */
    int64_t *slot;   /* [slots]: by expert, ascending */
} Placement;

/* From the expert of each slot; every expert must have one. */
Placement *placement_new(int64_t experts, int64_t slots, const int64_t *expert);
void placement_free(Placement *placement);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Placement, placement_free)

/* Expert of each slot without any knowledge of loads: slot s holds expert s mod experts. */
void placement_linear(int64_t experts, int64_t slots, int64_t *ret_expert);

int64_t placement_copies(const Placement *placement, int64_t expert);

/* Slot to which a source's i-th row of an expert goes. */
int64_t placement_slot(const Placement *placement, int64_t expert, int64_t source, int64_t i);

/* Rows that the slot gets of `count` rows that a source has for the slot's expert. */
int64_t placement_rows(const Placement *placement, int64_t slot, int64_t source, int64_t count);

/* Slot of each choice sel[n], in order; keep (may be NULL) marks those that count. Dropped ones get the expert's first slot. */
void placement_choose(const Placement *placement, int64_t source, const int64_t *sel, const guint8 *keep, int64_t n,
                      int64_t *ret_slot);

/* Slots whose expert differs: the copies that have to be moved, weights and optimizer state. */
int64_t placement_n_moves(const int64_t *from, const int64_t *to, int64_t n_slots);
