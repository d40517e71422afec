/*
 * Choice: which results to keep in HBM, which in DDR, when the whole step is known.
 *
 * The step loses the recomputation of what is kept. With D bytes in DDR the link carries D out during the forward and D in
 * during the backward pass; as long as both fit beside them, it costs no time. So for a step of forward time F and
 * backward time B(K), K what is kept:
 *
 *     maximise  sum over K of t(e)   subject to   bytes(K) <= H + D,   D <= min(DDR, rate_out x F, rate_in x B(K))
 *
 * where it lies does not matter to the sum, only to the two limits. Layers of a kind are alike, so K is a number of layers
 * for each operator: a bounded knapsack. An exchange argument gives its shape: if e has more seconds per byte than e', and
 * e' is kept somewhere and e is not, swapping as many bytes gains; so operators fill up in the order of seconds per byte, and
 * at most one is kept in part, but for the remainder that is smaller than an entry. The remainder is filled exactly by
 * branch and bound over the numbers (cache_knapsack), for kinds of few distinct sizes; what is left is less than the smallest
 * entry that pays.
 *
 * Of K the entries of the first layers go to DDR: they wait longest, so that copies out have the whole forward pass and
 * fetches the whole backward pass before them; the last layers' stay in HBM.
 */
#pragma once

#include "workloads/lower/cache-fill.h"

/* Where each item goes; ret_place[n items] gets KEEP_NOT, KEEP_HBM or KEEP_DDR. */
void cache_choose(const Plan *plan, const GArray *items, int64_t n_layers, double forward_s, double backward_s, guint8 *ret_place);

/* Seconds of recomputation that budgets save by the closed form; passes as for cache_choose(). */
double cache_worth(const Plan *plan, const GArray *items, double forward_s, double backward_s, int64_t hbm_bytes, int64_t ddr_bytes);

/* One kind of thing to keep: n of them, all alike. */
typedef struct KnapsackKind {
    int64_t bytes, n;
    double worth;
} KnapsackKind;

/*
 * Numbers of each kind that are worth most within `budget` bytes: exact, by branch and bound with the fractional bound, as long
 * as n_steps branches do (0 = no limit); else the best found so far, never less than the greedy fill. Returns the worth.
 */
double cache_knapsack(const KnapsackKind *kinds, int n_kinds, int64_t budget, int64_t n_steps, int64_t *ret_n);
