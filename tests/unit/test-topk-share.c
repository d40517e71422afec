/* Shares of the top k of noisy scores: against drawing, and in the limits. */
#include "workloads/plan/topk-share.h"

#include "sim/base/rng.h"
#include "tests/check.h"

typedef struct ShareCase {
    const char *name;
    int64_t n, k;
    double exponent;
} ShareCase;

static const ShareCase cases[] = {
    {"far steeper than the noise is wide", 64, 4, 100},
    {"64 experts, top 6, exponent 1", 64, 6, 1.0},
    {"64 experts, top 6, exponent 0.5", 64, 6, 0.5},
    {"8 experts, top 2, exponent 1", 8, 2, 1.0},
    {"4 experts, top 1, exponent 1", 4, 1, 1.0},
    {"6 experts, top 5, exponent 2", 6, 5, 2.0},
    {"3 experts, top 3", 3, 3, 1.0},
    {"1 expert", 1, 1, 1.0},
    {"64 experts, top 6, no skew", 64, 6, 0.0},
};

/* The same by drawing: the first item's share of n_tokens top-k lists. */
static double drawn_share(const ShareCase *c, int64_t n_tokens)
{
    int64_t n_first = 0;
    for (int64_t t = 0; t < n_tokens; t++) {
        double first = 0;
        int64_t n_above = 0;
        for (int64_t r = 0; r < c->n; r++) {
            uint64_t idx = (uint64_t)(t * c->n + r);
            double key =
                0.7 * rng_normal(5, RNG_TEST, idx) + rng_gumbel(6, RNG_TEST, idx) - c->exponent * log((double)(r + 1));
            first = r == 0 ? key : first;
            n_above += key > first ? 1 : 0;
        }
        n_first += n_above < c->k ? 1 : 0;
    }
    return (double)n_first / (double)n_tokens;
}

static void test_share(void **state)
{
    const ShareCase *c = *state;
    double share[64];
    double sum = 0;
    topk_share_zipf(c->n, c->k, c->exponent, share);
    for (int64_t r = 0; r < c->n; r++) {
        assert_true(share[r] >= 0 && share[r] <= 1);
        assert_true(c->exponent < 50 || r >= c->k || share[r] > 0.99); /* noise no longer matters */
        assert_true(r == 0 || share[r] <= share[r - 1] + 1e-12);
        sum += share[r];
    }
    check_close(sum, (double)c->k, 1e-9);
    int64_t n_tokens = 20000; /* standard error under 0.0036 */
    assert_true(fabs(share[0] - drawn_share(c, n_tokens)) < 0.012);
}

int main(void)
{
    return check_run_cases("topk-share", test_share, cases, G_N_ELEMENTS(cases), sizeof cases[0]);
}
