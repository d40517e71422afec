#include "workloads/plan/topk-share.h"

#include <glib.h>
#include <math.h>
#include <string.h>

/*
 * Spread of a token's log-scores over the experts, one value for all models. Random router weights of 0.02 on 2048
 * normalised inputs would give 0.9; the norm's epsilon shrinks the first layers' inputs, and 0.7 is what the measured
 * Zipf runs show on the whole (busiest expert 7.5 and 7.9 times the mean at exponent 1, 64 experts, top 6; here 7.6).
 */
static const double score_spread = 0.7;

/* The tail of X on a grid; beyond it 1 and 0. */
enum { N_TAIL = 512, N_NORMAL = 41 };
static const double tail_first = -7.0;
static const double tail_step = 0.05;

static void tail_fill(double *tail)
{
    double sum = 0;
    double weights[N_NORMAL];
    for (int j = 0; j < N_NORMAL; j++) {
        double z = ((double)j - (N_NORMAL - 1) / 2.0) * 0.25;
        weights[j] = exp(-z * z / 2);
        sum += weights[j];
    }
    for (int i = 0; i < N_TAIL; i++) {
        double x = tail_first + tail_step * i;
        tail[i] = 0;
        for (int j = 0; j < N_NORMAL; j++) {
            double z = ((double)j - (N_NORMAL - 1) / 2.0) * 0.25;
            tail[i] += weights[j] / sum * -expm1(-exp(-(x - score_spread * z)));
        }
    }
}

static double tail_at(const double *tail, double x)
{
    double place = (x - tail_first) / tail_step;
    if (place <= 0) {
        return 1;
    }
    if (place >= N_TAIL - 1) {
        return tail[N_TAIL - 1] * exp((double)(N_TAIL - 1) * tail_step + tail_first - x);
    }
    int i = (int)place;
    double part = place - i;
    return tail[i] + part * (tail[i + 1] - tail[i]);
}

/* poly[0 … k - 1] (probabilities of a count) times (1 - p + p t), cut above k - 1. */
static void poly_multiply(double *poly, int64_t k, double p)
{
    for (int64_t j = k - 1; j > 0; j--) {
        poly[j] = poly[j] * (1 - p) + poly[j - 1] * p;
    }
    poly[0] *= 1 - p;
}

/* Sum of the coefficients of poly / (1 - p + p t) below k; for p <= 1/2. */
static double poly_sum_without(const double *poly, int64_t k, double p)
{
    double last = 0;
    double sum = 0;
    double scale = 1 / (1 - p);
    for (int64_t j = 0; j < k; j++) {
        last = (poly[j] - p * last) * scale;
        sum += last;
    }
    return CLAMP(sum, 0, 1);
}

/*
 * The unlikely items from first on. Their result is a smooth function of p alone, so that a few places of the falling
 * list are computed and those between them interpolated in p.
 */
static void others_below_unlikely(const double *poly, int64_t k, const double *p, int64_t first, int64_t n,
                                  double *ret_below)
{
    int64_t from = first;
    if (first >= n) {
        return;
    }
    ret_below[from] = poly_sum_without(poly, k, p[from]);
    while (from < n - 1) {
        int64_t to = MIN(from + 1 + (from - first) / 4, n - 1);
        ret_below[to] = poly_sum_without(poly, k, p[to]);
        for (int64_t r = from + 1; r < to; r++) {
            double part = p[from] > p[to] ? (p[from] - p[r]) / (p[from] - p[to]) : 0;
            ret_below[r] = ret_below[from] + part * (ret_below[to] - ret_below[from]);
        }
        from = to;
    }
}

/* Probability, for each item, that fewer than k others are above a point where item r is with probability p[r]. */
static void others_below(const double *p, int64_t n, int64_t k, double *poly, double *ret_below)
{
    int64_t n_likely = 0; /* p falls with r: the likely ones come first */
    double *rest = poly + k;
    memset(rest, 0, (size_t)k * sizeof *rest);
    rest[0] = 1;
    while (n_likely < n && p[n_likely] > 0.5) {
        n_likely++;
    }
    for (int64_t r = n_likely; r < n; r++) {
        poly_multiply(rest, k, p[r]);
    }
    memcpy(poly, rest, (size_t)k * sizeof *poly);
    for (int64_t r = 0; r < n_likely; r++) {
        poly_multiply(poly, k, p[r]);
    }
    others_below_unlikely(poly, k, p, n_likely, n, ret_below);
    for (int64_t r = 0; r < n_likely; r++) {
        memcpy(poly, rest, (size_t)k * sizeof *poly);
        for (int64_t other = 0; other < n_likely; other++) {
            if (other != r) {
                poly_multiply(poly, k, p[other]);
            }
        }
        ret_below[r] = 0;
        for (int64_t j = 0; j < k; j++) {
            ret_below[r] += poly[j];
        }
    }
}

/* Grid of thresholds: from where k + 7 sqrt(k) + 4 items are expected above, up to where hardly one is. */
static void threshold_range(const double *tail, const double *shift, int64_t n, int64_t k, double *ret_low,
                            double *ret_high)
{
    double most = (double)k + 7 * sqrt((double)k) + 4;
    double x = 14;
    double expected = 0;
    *ret_high = 14;
    while (x > tail_first - 10 + shift[n - 1] && expected < most) { /* shifts fall */
        expected = 0;
        for (int64_t r = 0; r < n && expected < most; r++) {
            expected += tail_at(tail, x - shift[r]);
        }
        if (expected < 1e-2) {
            *ret_high = x;
        }
        x -= 0.25;
        if (n <= (int64_t)most && expected > (double)n * (1 - 1e-9)) {
            break;
        }
    }
    *ret_low = x;
}

void topk_share_zipf(int64_t n, int64_t k, double exponent, double *ret_share)
{
    enum { POINTS_LEAST = 80, POINTS_MOST = 4000 };
    const double step_most = 0.35; /* a third of the noise's width */
    double tail[N_TAIL];
    double low;
    double high;
    g_autofree double *work = g_new0(double, 5 * n + 2 * k);
    double *shift = work;
    double *above = work + n; /* tails at this point and the one before (higher) */
    double *above_last = work + 2 * n;
    double *below = work + 3 * n;
    double *below_last = work + 4 * n;
    double sum = 0;
    tail_fill(tail);
    for (int64_t r = 0; r < n; r++) {
        shift[r] = -exponent * log((double)(r + 1));
        ret_share[r] = 0;
        below_last[r] = 1;
    }
    threshold_range(tail, shift, n, k, &low, &high);
    int n_points = (int)CLAMP(ceil((high - low) / step_most), POINTS_LEAST, POINTS_MOST);
    for (int i = 0; i <= n_points && k < n; i++) {
        double x = high - (high - low) * i / n_points;
        for (int64_t r = 0; r < n; r++) {
            above[r] = tail_at(tail, x - shift[r]);
        }
        others_below(above, n, k, work + 5 * n, below);
        for (int64_t r = 0; r < n; r++) {
            ret_share[r] += (above[r] - above_last[r]) * (below[r] + below_last[r]) / 2;
            above_last[r] = above[r];
            below_last[r] = below[r];
        }
    }
    for (int64_t r = 0; r < n; r++) {
        sum += ret_share[r];
    }
    for (int64_t r = 0; r < n; r++) { /* what the grid misses */
        ret_share[r] = k < n ? MIN(ret_share[r] * (double)k / sum, 1) : 1;
    }
}
