/* Loss-free balancing: both rules even out a skewed router; the histogram comes close to the exact quantile. */
#include "models/balance.h"

#include "sim/base/rng.h"
#include "tests/check.h"

enum { N = 2000, E = 16, K = 3 };

/* Scores of tokens with preferences: expert e is liked more the higher its number. */
static double *skewed_scores(void)
{
    double *scores = g_new(double, N *E);
    for (int i = 0; i < N * E; i++) {
        scores[i] = 1 / (1 + exp(-rng_normal(3, RNG_TEST, (uint64_t)i) - 0.1 * (i % E)));
    }
    return scores;
}

/* Largest load over the mean under a bias; counts may be NULL. */
static double imbalance(const double *scores, const double *bias, int64_t *counts)
{
    g_autofree double *alpha = g_new(double, N);
    int64_t own[E] = {0};
    int64_t most = 0;
    balance_cutoffs(&(MoeShape){N, K, E}, scores, bias, alpha);
    for (int i = 0; i < N * E; i++) {
        own[i % E] += scores[i] + bias[i % E] > alpha[i / E] ? 1 : 0;
    }
    for (int e = 0; e < E; e++) {
        most = MAX(most, own[e]);
    }
    if (counts != NULL) {
        memcpy(counts, own, sizeof own);
    }
    return (double)most * E / (N * K);
}

static void test_sign(void **state)
{
    g_autofree double *scores = skewed_scores();
    double bias[E] = {0};
    int64_t counts[E];
    (void)state;
    double before = imbalance(scores, bias, counts);
    for (int step = 0; step < 300; step++) {
        balance_sign(counts, E, 2e-3, bias);
        imbalance(scores, bias, counts);
    }
    assert_true(before > 1.8);
    assert_true(imbalance(scores, bias, NULL) < 1.1);
    int64_t even[3] = {7, 7, 7};
    double still[3] = {0.5, 0.25, 0};
    balance_sign(even, 3, 1e-3, still);
    check_close(still[0], 0.5, 1e-15);
    check_close(still[2], 0, 1e-15);
}

static void test_quantile(void **state)
{
    g_autofree double *scores = skewed_scores();
    double exact[E] = {0};
    double sum = 0;
    (void)state;
    for (int step = 0; step < 7; step++) {
        double binned[E];
        g_autoptr(BalanceHistogram) histogram = balance_histogram_new(exact, E, K, 1000);
        balance_histogram_add(histogram, scores, N);
        balance_histogram_update(histogram, binned);
        balance_quantile(&(MoeShape){N, K, E}, scores, exact);
        for (int e = 0; e < E; e++) {
            assert_true(fabs(binned[e] - exact[e]) < 2 * histogram->bin_width);
        }
    }
    assert_true(imbalance(scores, exact, NULL) < 1.05);
    for (int e = 0; e < E; e++) {
        sum += exact[e];
    }
    assert_true(fabs(sum) < 1e-12);
}

/* Nothing to balance: no tokens, or every expert chosen. */
static void test_edges(void **state)
{
    double bias[2] = {0.25, -0.25};
    double out[2];
    double scores[4] = {0.5, 0.25, 0.75, 0.5};
    (void)state;
    balance_quantile(&(MoeShape){0, 1, 2}, scores, bias);
    balance_quantile(&(MoeShape){2, 2, 2}, scores, bias);
    check_close(bias[0], 0.25, 1e-15);
    g_autoptr(BalanceHistogram) all = balance_histogram_new(bias, 2, 2, 10);
    balance_histogram_add(all, scores, 2);
    balance_histogram_update(all, out);
    check_close(out[1], -0.25, 1e-15);
    balance_quantile(&(MoeShape){1, 1, 2}, scores, bias); /* one token: its single value is every quantile */
    check_close(bias[0] + bias[1], 0, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sign), cmocka_unit_test(test_quantile),
                                       cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests_name("balance", tests, NULL, NULL);
}
