#include "workloads/run/budget-search.h"

#include <math.h>

/* A value, and the candidate whose time it is; point.ddr -1 = none. */
typedef struct Value {
    double s;
    BudgetPoint point;
} Value;

typedef struct Search {
    const BudgetSpace *space;
    gboolean failed;
} Search;

static gboolean measure(Search *search, BudgetPoint point, double *ret_s)
{
    gboolean has_room = FALSE;
    *ret_s = HUGE_VAL;
    search->failed = search->failed || !search->space->measure(search->space->self, point, ret_s, &has_room);
    return has_room && !search->failed;
}

/* Whether the budget admits any cut that is left if all turn left: else lo it is, whatever the times are. */
static gboolean admits_any(const BudgetSpace *space, int ddr, int lo, int hi)
{
    while (hi - lo > 1) {
        hi = lo + (hi - lo) / 2;
        if (space->admits(space->self, (BudgetPoint){ddr, hi})) {
            return TRUE;
        }
    }
    return FALSE;
}

/*
 * The value of the budget along x at one d, no less than `floor`; what is not below `cap` is not of interest, and the return
 * value is then `none`.
 */
static Value search_hbm(Search *search, int ddr, double floor, double cap, Value none)
{
    const BudgetSpace *space = search->space;
    int lo = 0, hi = space->n_hbm;
    Value found = {.point = {ddr, lo}};
    double hi_s;
    if (!measure(search, found.point, &found.s) || !space->admits(space->self, found.point) || found.s < floor) {
        return none;
    }
    BudgetPoint last = {ddr, hi};
    if (!space->admits(space->self, last) && !admits_any(space, ddr, lo, hi)) {
        return found.s < cap ? found : none;
    }
    gboolean has_room = measure(search, last, &hi_s);
    if (has_room && space->admits(space->self, last) && hi_s <= found.s && hi_s >= floor) {
        return hi_s < cap ? (Value){hi_s, last} : none;
    }
    hi_s = fmin(hi_s, found.s); /* where the last has no room this only narrows what is looked for */
    while (hi - lo > 1 && hi_s < fmin(found.s, cap) && !search->failed && admits_any(space, ddr, lo, hi)) {
        BudgetPoint middle = {ddr, lo + (hi - lo) / 2};
        double s;
        has_room = measure(search, middle, &s);
        gboolean between = s >= hi_s && s <= found.s;
        Value value = has_room && between ? (Value){s, middle} : found;
        if (has_room && value.s >= floor && space->admits(space->self, middle)) {
            lo = middle.hbm;
            found = value;
        } else {
            hi = middle.hbm;
            hi_s = has_room ? value.s : between ? s : hi_s;
        }
    }
    return found.s < cap && !search->failed ? found : none;
}

static Value lesser(Value a, Value b)
{
    return b.s < a.s ? b : a;
}

gboolean budget_search(const BudgetSpace *space, int last_ddr, double cap, BudgetPoint *ret_point, double *ret_s, gboolean *ret_failed)
{
    Search search = {space, FALSE};
    int stride = space->stride, lo = space->n_ddr > 0 ? last_ddr / stride * stride : 0, hi = lo + stride;
    Value at_lo = {cap, {-1, -1}}, at_hi;
    for (int d = lo; d >= 0; d -= stride) { /* the largest first: mostly the others need not be looked at closely */
        at_lo = lesser(at_lo, search_hbm(&search, d, 0, at_lo.s, at_lo));
    }
    at_hi = at_lo;
    if (hi <= space->n_ddr && last_ddr > lo) {
        at_hi = lesser(at_lo, search_hbm(&search, hi, 0, at_lo.s, at_lo));
    }
    while (hi - lo > 1 && last_ddr > lo && at_hi.s < at_lo.s && !search.failed) {
        int middle = lo + (hi - lo) / 2;
        Value value = lesser(at_lo, search_hbm(&search, middle, at_hi.s, at_lo.s, at_lo));
        if (middle <= last_ddr) {
            lo = middle;
            at_lo = value;
        } else {
            hi = middle;
            at_hi = value;
        }
    }
    *ret_point = at_lo.point;
    *ret_s = at_lo.s;
    *ret_failed = search.failed;
    return !search.failed && at_lo.point.ddr >= 0;
}
