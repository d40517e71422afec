/*
 * Max-min fair flows the slow way, to hold the flow net against: at every start and end all rates anew, by textbook
 * water-filling over all links and flows.
 */
#pragma once

#include <glib.h>
#include <math.h>

enum { BRUTE_LINKS_MAX = 8 };

typedef struct BruteFlow {
    double start_ns, bytes, weight;
    int n_links, links[BRUTE_LINKS_MAX];
    double left, rate, end_ns; /* rate in bytes per ns, weight included */
    gboolean runs, ended;
} BruteFlow;

/* Rates of the running flows. capacities in bytes per ns. */
static inline void brute_rates(BruteFlow *flows, int n_flows, const double *capacities, int n_links)
{
    g_autofree double *left = g_memdup2(capacities, (gsize)n_links * sizeof *left);
    g_autofree gboolean *fixed = g_new0(gboolean, n_flows);
    for (;;) {
        double least = HUGE_VAL;
        int tight = -1;
        for (int l = 0; l < n_links; l++) {
            double weight = 0.0;
            for (int f = 0; f < n_flows; f++) {
                for (int k = 0; flows[f].runs && !fixed[f] && k < flows[f].n_links; k++) {
                    weight += flows[f].links[k] == l ? flows[f].weight : 0.0;
                }
            }
            if (weight > 0.0 && left[l] / weight < least) {
                least = left[l] / weight;
                tight = l;
            }
        }
        if (tight < 0) {
            return;
        }
        for (int f = 0; f < n_flows; f++) {
            gboolean crosses = FALSE;
            for (int k = 0; flows[f].runs && !fixed[f] && k < flows[f].n_links; k++) {
                crosses |= flows[f].links[k] == tight;
            }
            if (crosses) {
                fixed[f] = TRUE;
                flows[f].rate = least * flows[f].weight;
                for (int k = 0; k < flows[f].n_links; k++) {
                    left[flows[f].links[k]] -= flows[f].rate;
                }
            }
        }
    }
}

/* Runs all flows to their ends; fills end_ns. */
static inline void brute_run(BruteFlow *flows, int n_flows, const double *capacities, int n_links)
{
    double now = 0.0;
    for (int n_ended = 0; n_ended < n_flows;) {
        for (int f = 0; f < n_flows; f++) {
            if (!flows[f].runs && !flows[f].ended && flows[f].start_ns <= now) {
                flows[f].runs = TRUE;
                flows[f].left = flows[f].bytes;
            }
        }
        brute_rates(flows, n_flows, capacities, n_links);
        double next = HUGE_VAL;
        for (int f = 0; f < n_flows; f++) {
            if (flows[f].runs) {
                next = MIN(next, now + flows[f].left / flows[f].rate);
            } else if (!flows[f].ended) {
                next = MIN(next, flows[f].start_ns);
            }
        }
        for (int f = 0; f < n_flows; f++) {
            if (!flows[f].runs) {
                continue;
            }
            double end_ns = now + flows[f].left / flows[f].rate;
            flows[f].left -= flows[f].rate * (next - now);
            if (end_ns <= next * (1.0 + 1e-14)) {
                flows[f].runs = FALSE;
                flows[f].ended = TRUE;
                flows[f].end_ns = end_ns;
                n_ended++;
            }
        }
        now = next;
    }
}
