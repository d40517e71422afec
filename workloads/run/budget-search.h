/*
 * Budget search: which of many candidates a budget of HBM and one of DDR may use, so that more of either is never slower.
 *
 * Candidates stand on a grid that knows no budget: [d][x], d = 0 ... n_ddr by what they take of DDR, x = 0 ... n_hbm of HBM. A step's
 * time hardly ever grows with x, and mostly falls and then rises with d, but neither exactly: what leaves one queue earlier may
 * meet another. So the fastest candidate that a budget admits is not good enough unless all are tried, and trying all is too
 * dear. Instead each budget gets a value v that is the time of a candidate which it admits, by a rule that looks at few:
 *
 *  - Along x, between lo and hi with v(hi) <= v(lo): the middle's time is its value if it lies between these two, else lo's
 *    candidate stands for it. Halves are cut until the budget's place is found. So the value of a place depends on the places at
 *    which the halves were cut, which are the same for every budget, and values never rise from left to right. What a budget
 *    admits is asked at each cut (a larger one admits whatever a smaller one does); candidates that no budget may use, because
 *    the device or the host has no room, turn everyone to the left.
 *  - Along d first every stride-th: V(d) is the least value of these up to d. Between two of them, lo and hi, halves are
 *    cut again, and V(mid) is the lesser of V(lo) and the value of mid's x with a floor V(hi): a place whose value is below
 *    the floor is not admitted.
 *
 * Monotone in HBM: of two budgets that part at a cut, the smaller one turns left and ends at or above the cut's value, the larger one
 * at or below it. A floor that falls with the budget admits more, so this holds with floors, too, and for the least of several
 * values. Monotone in DDR: likewise, since V(lo) >= V(mid) >= V(hi) by the floor. Both hold to the last bit, for any times.
 */
#pragma once

#include <glib.h>

typedef struct BudgetPoint {
    int ddr, hbm;
} BudgetPoint;

typedef struct BudgetSpace {
    int n_hbm, n_ddr; /* last places; powers of two, n_ddr 0 or a multiple of stride */
    int stride;       /* a power of two */
    /* Whether the budget of HBM admits a candidate; must not be asked for what is measured. */
    gboolean (*admits)(void *self, BudgetPoint point);
    /* Time of a candidate, and whether there is room for it at all, in the device and within what its d stands for. FALSE: failed. */
    gboolean (*measure)(void *self, BudgetPoint point, double *ret_s, gboolean *ret_has_room);
    void *self;
} BudgetSpace;

/*
 * Finds the value of a budget of HBM (admits) and DDR (last_ddr: the last place along d that it pays for), if it is below `cap`.
 * *ret_s gets it, or cap when there is none. FALSE: something failed, or nothing is below cap (*ret_failed says which).
 */
gboolean budget_search(const BudgetSpace *space, int last_ddr, double cap, BudgetPoint *ret_point, double *ret_s, gboolean *ret_failed);
