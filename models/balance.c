#include "models/balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void balance_sign(const int64_t *counts, int64_t experts, double rate, double *bias)
{
    double mean = 0;
    for (int64_t e = 0; e < experts; e++) {
        mean += (double)counts[e] / (double)experts;
    }
    for (int64_t e = 0; e < experts; e++) {
        double below = mean - (double)counts[e];
        /* Counts are whole: a difference smaller than a fraction of 1/E is rounding. */
        double sign = fabs(below) * (double)experts < 0.5 ? 0 : below > 0 ? 1 : -1;
        bias[e] += rate * sign;
    }
}

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x > y ? -1 : x < y ? 1 : 0;
}

void balance_cutoffs(const MoeShape *shape, const double *scores, const double *bias, double *ret_alpha)
{
    int64_t experts = shape->experts, n_best = shape->top_k + 1;
    g_autofree double *best = g_new(double, (gsize)n_best); /* falling */
    g_assert(shape->top_k < experts);
    for (int64_t t = 0; t < shape->n_tokens; t++) {
        int64_t n = 0;
        for (int64_t e = 0; e < experts; e++) {
            double key = scores[t * experts + e] + bias[e];
            if (n == n_best && key <= best[n - 1]) {
                continue;
            }
            int64_t place = n < n_best ? n++ : n - 1;
            for (; place > 0 && key > best[place - 1]; place--) {
                best[place] = best[place - 1];
            }
            best[place] = key;
        }
        ret_alpha[t] = best[n_best - 1];
    }
}

static void subtract_mean(double *bias, int64_t experts)
{
    double mean = 0;
    for (int64_t e = 0; e < experts; e++) {
        mean += bias[e] / (double)experts;
    }
    for (int64_t e = 0; e < experts; e++) {
        bias[e] -= mean;
    }
}

/* Quantile of values sorted in falling order, counted from the smallest. */
static double quantile_of_falling(const double *values, int64_t n, double part)
{
    double place = part * (double)(n - 1);
    int64_t below = MIN((int64_t)floor(place), n - 1);
    int64_t above = MIN(below + 1, n - 1);
    double low = values[n - 1 - below];
    double high = values[n - 1 - above];
    return low + (place - (double)below) * (high - low);
}

void balance_quantile(const MoeShape *shape, const double *scores, double *bias)
{
    int64_t n_tokens = shape->n_tokens;
    int64_t experts = shape->experts;
    if (n_tokens == 0 || shape->top_k >= experts) {
        return;
    }
    g_autofree double *alpha = g_new(double, (gsize)n_tokens);
    g_autofree double *column = g_new(double, (gsize)n_tokens);
    balance_cutoffs(shape, scores, bias, alpha);
    for (int64_t e = 0; e < experts; e++) {
        for (int64_t t = 0; t < n_tokens; t++) {
            column[t] = alpha[t] - scores[t * experts + e];
        }
        qsort(column, (size_t)n_tokens, sizeof *column, compare_falling);
        bias[e] = quantile_of_falling(column, n_tokens, (double)shape->top_k / (double)experts);
    }
    subtract_mean(bias, experts);
}

BalanceHistogram *balance_histogram_new(const double *bias, int64_t experts, int64_t top_k, int64_t n_bins)
{
    BalanceHistogram *histogram = g_new0(BalanceHistogram, 1);
    double least = bias[0];
    double most = bias[0];
    g_assert(experts > 0 && n_bins > 0);
    for (int64_t e = 1; e < experts; e++) {
        least = MIN(least, bias[e]);
        most = MAX(most, bias[e]);
    }
    histogram->experts = experts;
    histogram->top_k = top_k;
    histogram->n_bins = n_bins;
    histogram->low = least - 1;
    histogram->bin_width = (most + 1 - histogram->low) / (double)n_bins;
    histogram->bias = g_memdup2(bias, (gsize)experts * sizeof *bias);
    histogram->counts = g_new0(int64_t, (gsize)(experts * n_bins));
    return histogram;
}

void balance_histogram_free(BalanceHistogram *histogram)
{
    if (histogram != NULL) {
        g_free(histogram->bias);
        g_free(histogram->counts);
        g_free(histogram);
    }
}

void balance_histogram_add(BalanceHistogram *histogram, const double *scores, int64_t n_tokens)
{
    int64_t experts = histogram->experts;
    if (histogram->top_k >= experts) {
        return;
    }
    g_autofree double *alpha = g_new(double, (gsize)n_tokens);
    balance_cutoffs(&(MoeShape){n_tokens, histogram->top_k, experts}, scores, histogram->bias, alpha);
    for (int64_t i = 0; i < n_tokens * experts; i++) {
        double place = floor((alpha[i / experts] - scores[i] - histogram->low) / histogram->bin_width);
        int64_t bin = (int64_t)CLAMP(place, 0, (double)(histogram->n_bins - 1));
        histogram->counts[i % experts * histogram->n_bins + bin]++;
    }
    histogram->n_tokens += n_tokens;
}

void balance_histogram_merge(BalanceHistogram *histogram, const BalanceHistogram *other)
{
    g_assert(histogram->experts == other->experts && histogram->n_bins == other->n_bins);
    for (int64_t i = 0; i < histogram->experts * histogram->n_bins; i++) {
        histogram->counts[i] += other->counts[i];
    }
    histogram->n_tokens += other->n_tokens;
}

void balance_histogram_update(const BalanceHistogram *histogram, double *ret_bias)
{
    double wanted = (double)histogram->top_k / (double)histogram->experts * (double)histogram->n_tokens;
    memcpy(ret_bias, histogram->bias, (size_t)histogram->experts * sizeof *ret_bias);
    if (histogram->n_tokens == 0) { /* also when k = E: nothing was counted */
        return;
    }
    for (int64_t e = 0; e < histogram->experts; e++) {
        const int64_t *counts = histogram->counts + e * histogram->n_bins;
        int64_t bin = 0;
        double before = 0;
        while (bin < histogram->n_bins - 1 && before + (double)counts[bin] < wanted) {
            before += (double)counts[bin];
            bin++;
        }
        double part = counts[bin] > 0 ? (wanted - before) / (double)counts[bin] : 0;
        ret_bias[e] = histogram->low + ((double)bin + part) * histogram->bin_width;
    }
    subtract_mean(ret_bias, histogram->experts);
}
