#include "models/moe-spread.h"

/* C(n - m, k) / C(n, k): that k of n, drawn without replacement, hit none of m. */
static double none_of(int64_t n, int64_t m, int64_t k)
{
    double share = 1.0;
    for (int64_t j = 0; j < k; j++) {
        share *= (double)MAX(n - m - j, 0) / (double)(n - j);
    }
    return share;
}

/* That a draw of `drawn` out of n holds exactly j of m marked ones. */
static double exactly(int64_t n, int64_t m, int64_t drawn, int64_t j)
{
    double share = 1.0;
    if (j > m || j > drawn || drawn - j > n - m) {
        return 0.0;
    }
    for (int64_t i = 0; i < j; i++) { /* the marked ones first, in one order … */
        share *= (double)(m - i) / (double)(n - i);
    }
    for (int64_t i = 0; i < drawn - j; i++) {
        share *= (double)(n - m - i) / (double)(n - j - i);
    }
    for (int64_t i = 0; i < j; i++) { /* … times the number of orders */
        share *= (double)(drawn - i) / (double)(i + 1);
    }
    return share;
}

/* Experts are handed out in turn: mean over the runs of k that tokens get until the first comes back. */
static double consecutive_parts(const MoeSpread *spread, int64_t n_parts)
{
    int64_t part = spread->experts / n_parts, first = 0, n_tokens = 0, sum = 0;
    do {
        int64_t last = first + spread->top_k - 1; /* around the ring */
        sum += MIN(last / part - first / part + 1, n_parts);
        n_tokens++;
        first = (last + 1) % spread->experts;
    } while (first != 0);
    return (double)sum / (double)n_tokens;
}

double moe_spread_parts(const MoeSpread *spread, int64_t n_parts)
{
    int64_t part = spread->experts / n_parts, k = spread->top_k;
    g_assert(n_parts >= 1 && spread->experts % n_parts == 0);
    if (spread->consecutive) {
        return consecutive_parts(spread, n_parts);
    }
    if (spread->groups <= 1 || spread->topk_groups >= spread->groups) {
        return (double)n_parts * (1.0 - none_of(spread->experts, part, k));
    }
    int64_t group = spread->experts / spread->groups, open = spread->topk_groups * group;
    if (part <= group) { /* the part is open with its group */
        double is_open = (double)spread->topk_groups / (double)spread->groups;
        return (double)n_parts * is_open * (1.0 - none_of(open, part, k));
    }
    double hit = 0.0;
    for (int64_t j = 1; j <= part / group; j++) { /* open groups of the part */
        hit += exactly(spread->groups, part / group, spread->topk_groups, j) * (1.0 - none_of(open, j * group, k));
    }
    return (double)n_parts * hit;
}
