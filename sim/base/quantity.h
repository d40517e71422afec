/*
 * Quantities: text with units in and out, and integer arithmetic that cannot overflow silently.
 *
 * Time is int64_t nanoseconds, memory int64_t bytes, rates double per second, FLOPs double.
 * Decimal prefixes (kB, MB, GB) are powers of 1000, binary ones (KiB, MiB, GiB) powers of 1024.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef int64_t SimTime; /* nanoseconds */

/* "80 GiB", "141 GB", "4096": bytes. FALSE and a message (no file, no path) when it is not a size. */
gboolean quantity_parse_bytes(const char *text, int64_t *ret_bytes, GError **error);

/* "4.8 TB/s", "400 Gb/s" (bits), "450 GB/s": bytes per second. */
gboolean quantity_parse_rate(const char *text, double *ret_bytes_per_s, GError **error);

/* "989 TFLOP/s", "1.98 PFLOP/s": FLOPs per second. */
gboolean quantity_parse_flops_rate(const char *text, double *ret_flops_per_s, GError **error);

/* "1.2 ms", "11 us", "5 s": nanoseconds, rounded half up. */
gboolean quantity_parse_time(const char *text, SimTime *ret_ns, GError **error);

/* "43.4 GiB"; caller frees. Three significant decimals at most, unit chosen by size. */
char *quantity_format_bytes(int64_t bytes);

/* "450 GB/s" (10^9); caller frees. */
char *quantity_format_rate(double bytes_per_s);

/* "1.234 ms"; caller frees. */
char *quantity_format_time(SimTime ns);

/* Product or sum of non-negative numbers; FALSE when it does not fit in int64_t. */
gboolean quantity_mul(int64_t a, int64_t b, int64_t *ret_product);
gboolean quantity_add(int64_t a, int64_t b, int64_t *ret_sum);

/*
 * Nanoseconds of a duration in seconds (>= 0), rounded half up; what is longer than 2^50 ns, 13 days, counts as that, so that sums
 * fit: whoever prices such a thing refuses it (workloads/run/step.c).
 */
SimTime quantity_ns(double seconds);

/* ceil(a / b) for a >= 0, b > 0. */
int64_t quantity_div_up(int64_t a, int64_t b);

/* a rounded up to a multiple of b. */
int64_t quantity_round_up(int64_t a, int64_t b);
