/*
 * Flow net: transfers that share links, at max-min fair rates.
 *
 * A flow moves bytes over a set of links. At every moment rates are max-min fair: no link carries more than its
 * capacity, and every flow has a bottleneck, a full link on which no flow gets more per weight than it does. A flow of
 * weight w stands for w alike ones: it gets w shares of what its bottleneck gives.
 *
 * Between two changes nothing happens, so the net only moves from one end of a flow to the next. It has a clock of its
 * own, in nanoseconds and real, so that ends are exact to the rounding of doubles; whoever lives by whole nanoseconds
 * rounds up (flow_net_next_ns).
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/quantity.h"

enum { FLOW_LINKS_MAX = 8, FLOW_WEIGHT_MAX = 1 << 24 };

typedef struct FlowNet FlowNet;

/* What a flow is. Links are all different, one at least. */
typedef struct FlowSpec {
    double bytes;   /* >= 0, of all that it stands for */
    guint32 weight; /* 1 to FLOW_WEIGHT_MAX */
    int n_links;
    int links[FLOW_LINKS_MAX];
    uint64_t arg; /* the caller's; comes back in the callback */
} FlowSpec;

/* A flow ended; `flow` is free to be used again. May start flows. Flows that end together come in order of index. */
typedef void (*FlowDone)(void *self, int flow, uint64_t arg, double end_ns);

/* An empty net at time 0. done may be NULL. */
FlowNet *flow_net_new(FlowDone done, void *self);
void flow_net_free(FlowNet *net);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(FlowNet, flow_net_free)

/* Adds a link; returns its index. bytes_per_s > 0. */
int flow_net_add_link(FlowNet *net, double bytes_per_s);

/* Changes a link's capacity from now on. bytes_per_s > 0. */
void flow_net_set_capacity(FlowNet *net, int link, double bytes_per_s);

/* Starts a flow now; returns its index. */
int flow_net_start(FlowNet *net, const FlowSpec *spec);

/* The clock. */
double flow_net_now(const FlowNet *net);

/* When the next flow ends if nothing starts before; HUGE_VAL when none runs. */
double flow_net_next(FlowNet *net);

/* The same in whole nanoseconds, rounded up; G_MAXINT64 when none runs. */
SimTime flow_net_next_ns(FlowNet *net);

/* Moves the clock to to_ns >= now, and ends what is due on the way. */
void flow_net_advance(FlowNet *net, double to_ns);

/* Rate of a running flow in bytes per second, and the link that bounds it. */
double flow_net_rate(FlowNet *net, int flow);
int flow_net_bottleneck(FlowNet *net, int flow);

size_t flow_net_n_running(const FlowNet *net);

/* Flows ended, and solves, so far; and flows that took part in these solves. */
typedef struct FlowNetCounts {
    uint64_t ended, solves, solved_flows;
} FlowNetCounts;

FlowNetCounts flow_net_counts(const FlowNet *net);
