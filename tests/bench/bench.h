/*
 * Benchmarks print one line each: rate, unit and target, in CPU seconds of this process. They do not fail
 * when slow: on a shared machine seconds vary by a factor of two.
 */
#pragma once

#include <stdio.h>
#include <time.h>

static inline double bench_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n things in so many seconds, against a target per second. */
static inline void bench_print(const char *what, double n, double seconds, double target_per_s)
{
    printf("%-40s %8.2f M/s in %.2f s (target %.2f M/s)\n", what, n / seconds * 1e-6, seconds, target_per_s * 1e-6);
}
