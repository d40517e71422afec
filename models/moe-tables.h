/*
 * MoE tables: who goes where, as integers. Capacity of an expert, which slots are dropped, the slot order of a rank,
 * and how rows travel between the ranks of an expert-parallel group.
 *
 * Used by the router (values), by virtual ranks (exchange of rows) and by the planner (loads). Symbols: N tokens, E
 * experts, k choices per token, R ranks, E_l = E / R experts per rank; expert e lives on rank e / E_l.
 *
 * Invariants: slots stand by (expert, token, choice); a slot is token * k + choice; ties are kept by the lower token.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Sizes of a rank's routing. */
typedef struct MoeShape {
    int64_t n_tokens, top_k, experts;
} MoeShape;

/* Which slots are dropped when an expert has more than its capacity. */
typedef enum MoeDrop {
    MOE_DROP_POSITION,        /* keep the first C in token order (all choices of a token together) */
    MOE_DROP_POSITION_CHOICE, /* all first choices before any second choice (GShard, Tutel) */
    MOE_DROP_PROBS,           /* keep the C largest weights; ties (to 2^-40): the lower token (Megatron) */
    N_MOE_DROPS
} MoeDrop;

/* Name as plans write it ("position"); kind of a name, or FALSE. */
const char *moe_drop_name(MoeDrop drop);
gboolean moe_drop_from_name(const char *name, MoeDrop *ret_drop);

/* Capacity rules of the field. */
typedef enum MoeCapacityRule {
    MOE_CAPACITY_MEGATRON,  /* ceil(N k / E * factor) */
    MOE_CAPACITY_DEEPSPEED, /* max(least, ceil(N k / E * factor)) */
    MOE_CAPACITY_TUTEL,     /* k floor(factor ceil(N / E)), rounded up to a multiple of align */
    MOE_CAPACITY_SWITCH,    /* floor(N / E * factor), for k = 1 */
    MOE_CAPACITY_GSHARD,    /* floor(2 N / E * factor), for k = 2 */
    N_MOE_CAPACITY_RULES
} MoeCapacityRule;

/* Name as plans write it ("megatron"); rule of a name, or FALSE. Choices of which a rule was made: 0 = any. */
const char *moe_capacity_rule_name(MoeCapacityRule rule);
gboolean moe_capacity_rule_from_name(const char *name, MoeCapacityRule *ret_rule);
int64_t moe_capacity_rule_top_k(MoeCapacityRule rule);

/* A capacity as it is asked for. factor 0 = none: nothing is dropped. */
typedef struct MoeCapacity {
    MoeCapacityRule rule;
    double factor;
    int64_t least;    /* rows that an expert takes at least (DEEPSPEED) */
    int64_t multiple; /* rows are rounded up to a multiple of it; 0 counts as 1 */
} MoeCapacity;

/* Rows that one expert takes of one rank's N tokens, at least 1; 0 without a factor. May exceed N. */
int64_t moe_capacity_rows(const MoeCapacity *capacity, const MoeShape *shape);

/*
 * The same fitted to measured loads (Tutel's measured maximum, with a target): the least multiple of capacity->multiple
 * with which at most drop_target of the slots in counts[n_sources * E] are dropped, but no more than the factor allows
 * (factor 0: no bound). At least one row. With a target of 0 and no factor it is the largest count.
 */
int64_t moe_capacity_measured(const MoeCapacity *capacity, const MoeShape *shape, const int64_t *counts, int64_t n_sources,
                              double drop_target);

/*
 * Rows that one expert takes of N tokens. extra = least rows (DEEPSPEED), alignment (TUTEL), unused else. May exceed N.
 */
int64_t moe_capacity(MoeCapacityRule rule, const MoeShape *shape, double factor, int64_t extra);

/*
 * Marks in keep[N * k] (1 or 0) the slots that stay under a capacity. weights[N * k] is read by MOE_DROP_PROBS alone.
 */
void moe_keep(MoeDrop drop, const MoeShape *shape, int64_t capacity, const int64_t *sel, const double *weights,
              guint8 *keep);

/*
 * Slot order: order[s] = token * k + choice of the s-th slot, -1 past the last; counts[E] the slots of each expert.
 * keep NULL = nothing is dropped. Returns the number of slots.
 */
int64_t moe_order(const MoeShape *shape, const int64_t *sel, const guint8 *keep, int64_t *order, int64_t *counts);

/*
 * Padded slots: every expert has `capacity` of them, of which its counts[e] first are taken. Slot of each token * k + choice
 * (n_choices of them), -1 where it was dropped; caller frees.
 */
int64_t *moe_padded_slot_of(const int64_t *order, const int64_t *counts, int64_t experts, int64_t capacity, int64_t n_choices);

/* Inverse of an order: slot of each token * k + choice (n_choices of them), -1 where it was dropped; caller frees. */
int64_t *moe_slot_of(const int64_t *order, int64_t n_slots, int64_t n_choices);

/* Rows that source sends to dest: the sum of its counts over dest's experts. */
int64_t moe_send_rows(const int64_t *counts, int64_t experts, int64_t n_ranks, int64_t dest);

/*
 * Order of a receiver. counts[R * E_l] are the received rows by (source, local expert), the order of arrival.
 * arrival[i] = place in order of arrival of the i-th row in order of (local expert, source); rows[E_l] = rows of each
 * local expert. Returns the number of rows. arrival or rows may be NULL.
 */
int64_t moe_arrival(const int64_t *counts, int64_t n_ranks, int64_t local_experts, int64_t *arrival, int64_t *rows);

/* Different ranks among a token's choices. */
int64_t moe_distinct_ranks(const int64_t *sel, int64_t top_k, int64_t experts, int64_t n_ranks);

/* Expected number of different ranks for uniform choices: R (1 - C(E - E_l, k) / C(E, k)). */
double moe_expected_ranks(int64_t experts, int64_t top_k, int64_t n_ranks);
