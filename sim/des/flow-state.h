/*
 * State of a flow net, for the two files that work on it: flow-net.c (flows start and end) and flow-fill.c (rates).
 *
 * Invariants, between calls: (1) a flow is in the list of each of its links, and knows its places there; (2) after
 * flow_fill_dirty() a flow is in the heap of its bottleneck, by tag, and in the first part of its list: filling meets
 * the flows that it will fix before those that others have fixed, which processors can foresee; (3) a component holds
 * exactly the links that its flows use, or used since it was last taken apart; (4) sums run in the order of lists, which
 * depend only on the calls made.
 */
#pragma once

#include "sim/des/flow-net.h"
#include "sim/des/index-heap.h"

enum { SLOT_BITS = 3 };
#define NONE G_MAXUINT32
#define MANY (G_MAXUINT32 - 1)

G_STATIC_ASSERT(FLOW_LINKS_MAX == 1 << SLOT_BITS);

/* Growing array of indices. */
typedef struct Items {
    guint32 *at;
    guint32 n, capacity;
} Items;

/* A flow in the list of a link. */
typedef struct Member {
    guint32 flow;  /* << SLOT_BITS | which of its links this is */
    guint32 other; /* the flow's other link if it has two, NONE if it has one, MANY if more: look at its path */
    float weight;
} Member;

/* While a component is solved: what is not fixed yet of a link. */
typedef struct Filling {
    double left, weight;
} Filling;

typedef struct Link {
    double capacity; /* bytes per ns */
    double level;    /* bytes per ns and weight that flows bounded here get */
    double given;    /* bytes per weight given up to since_ns */
    double since_ns;
    double next_ns;  /* when the first of the flows bounded here ends */
    double weight;   /* of all flows */
    IndexHeap bounded; /* flows that have their bottleneck here, by tag */
    Member *flows; /* [n_flows]; those bounded here come first */
    guint32 n_flows, flows_capacity;
    guint32 component;
} Link;

typedef struct Component {
    Items links;
    guint32 n_flows, n_flows_built; /* now, and when it was put together */
    gboolean is_dirty, is_live;
} Component;

struct FlowNet {
    FlowDone done;
    void *self;
    double now_ns;
    Link *links;
    Filling *filling; /* by link */
    guint32 n_links, links_capacity;
    /* by flow */
    guint32 n_flows, flows_capacity;
    guint32 (*path)[FLOW_LINKS_MAX];   /* links, NONE after the last */
    guint32 (*places)[FLOW_LINKS_MAX]; /* in the lists of these links */
    guint32 *bottleneck, *fixed_in, *heap_places;
    double *weights, *tags; /* of a flow not solved yet: bytes per weight left */
    uint64_t *args;
    Items free_flows;
    size_t n_running;
    Component *components;
    guint32 n_components, components_capacity;
    Items free_components, dirty;
    guint32 *component_places;
    IndexHeap next; /* components by their next end */
    guint32 stamp;  /* of the solve going on */
    IndexHeapEntry *fill;
    guint32 fill_capacity;
    Items ended, scratch;
    FlowNetCounts counts;
};

/* Appends an index. */
void flow_items_add(Items *items, guint32 item);

/* The component is to be solved. */
void flow_mark_dirty(FlowNet *net, guint32 component);

/* A component without links; one of no links or whose links are another's by now ends. */
guint32 flow_new_component(FlowNet *net);
void flow_drop_component(FlowNet *net, guint32 c);
void flow_add_to_component(FlowNet *net, guint32 c, guint32 link);

/* One component of two; the larger one's number stays. Returns it. */
guint32 flow_merge(FlowNet *net, guint32 a, guint32 b);

/* Counts what a link has given up to now. */
void flow_settle(FlowNet *net, Link *link);

/* The flow has no bottleneck any more. Returns the bytes per weight that it has left. */
double flow_unbind(FlowNet *net, guint32 f);

/* Next end of every link of a component, and of the component. */
void flow_find_next(FlowNet *net, guint32 c);

/* Solves what has changed. */
void flow_fill_dirty(FlowNet *net);
