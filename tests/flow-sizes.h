/*
 * All-to-alls of n GPUs in islands of 8 with known completion times. Each GPU has four one-way links: NVLink up and down
 * of 400e9 bytes per second, NIC up and down of 50e9. Sizes come from Zipf's law over the places of targets in a
 * permutation, which a linear congruential generator draws.
 */
#pragma once

#include <glib.h>

#include "sim/des/flow-net.h"

static inline uint64_t flow_draw(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return *x >> 33;
}

/* Permutation of 0 … n - 1; caller frees. */
static inline int *flow_permutation(int n, uint64_t seed)
{
    int *p = g_new(int, n);
    for (int i = 0; i < n; i++) {
        p[i] = i;
    }
    for (int k = n - 1; k >= 1; k--) {
        int j = (int)(flow_draw(&seed) % (uint64_t)(k + 1)), kept = p[k];
        p[k] = p[j];
        p[j] = kept;
    }
    return p;
}

/* Bytes of a target whose place is given: its Zipf share of n MiB. */
static inline int64_t flow_zipf_bytes(int n, int place)
{
    double sum = 0.0;
    for (int k = 1; k <= n; k++) {
        sum += 1.0 / k;
    }
    return (int64_t)(1048576.0 * n / (place + 1) / sum);
}

/* [n][n] sizes, from source to target; every source has the same hot targets. Caller frees. */
static inline int64_t *flow_sizes_zipfdst(int n)
{
    int64_t *sizes = g_new(int64_t, n * n);
    g_autofree int *p = flow_permutation(n, 1);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            sizes[i * n + j] = i == 0 ? flow_zipf_bytes(n, p[j]) : sizes[j];
        }
    }
    return sizes;
}

/* The same, each source with its own order of targets. */
static inline int64_t *flow_sizes_zipfpair(int n)
{
    int64_t *sizes = g_new(int64_t, n * n);
    for (int i = 0; i < n; i++) {
        g_autofree int *p = flow_permutation(n, 1000 + (uint64_t)i);
        for (int j = 0; j < n; j++) {
            sizes[i * n + j] = flow_zipf_bytes(n, p[j]);
        }
    }
    return sizes;
}

/* Adds the links and starts all flows but those to oneself; ret_flows[n][n] (may be NULL) gets their indices. */
static inline void flow_all_to_all_start(FlowNet *net, int n, const int64_t *sizes, int *ret_flows)
{
    for (int i = 0; i < n; i++) {
        flow_net_add_link(net, 400e9);
        flow_net_add_link(net, 400e9);
        flow_net_add_link(net, 50e9);
        flow_net_add_link(net, 50e9);
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            int level = i / 8 == j / 8 ? 0 : 2;
            FlowSpec spec = {.bytes = (double)sizes[i * n + j],
                             .weight = 1,
                             .n_links = 2,
                             .links = {4 * i + level, 4 * j + level + 1},
                             .arg = (uint64_t)(i * n + j)};
            if (i != j) {
                int flow = flow_net_start(net, &spec);
                if (ret_flows != NULL) {
                    ret_flows[i * n + j] = flow;
                }
            }
        }
    }
}
