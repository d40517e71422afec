/*
 * Rates by progressive filling: the link that gives least per weight fills first and fixes its flows; what they take is
 * taken from their other links; and so on. Keys of links only grow while that goes on, so a heap whose keys are looked
 * at again when they come up is enough.
 *
 * What makes it fast:
 * - Links that share flows form a component; a change is solved in its component only. A component is taken apart
 *   again when half of its flows are gone.
 * - Flows that have one bottleneck get the same rate per weight. So a link counts the bytes per weight that it has given
 *   (`given`), and a flow ends when that reaches its tag. A new rate touches links, not flows; a flow is touched only
 *   when its bottleneck becomes another link.
 * - When flows end on links that are nobody else's bottleneck, all other rates stay, and nothing is solved.
 * - Ends at one time, and all changes of one time, are solved once.
 *
 * Invariants, between calls: (1) a flow is in the list of each of its links, and knows its places there; (2) after
 * flush() a flow is in the heap of its bottleneck, by tag, and in the first part of its list: filling meets the flows
 * that it will fix before those that others have fixed, which processors can foresee; (3) a component holds exactly the links that its flows use,
 * or used since it was last taken apart; (4) sums run in the order of lists, which depend only on the calls made.
 */
#include "sim/des/flow-net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void items_add(Items *items, guint32 item)
{
    if (items->n == items->capacity) {
        items->capacity = MAX(8, 2 * items->capacity);
        items->at = g_renew(guint32, items->at, items->capacity);
    }
    items->at[items->n++] = item;
}

FlowNet *flow_net_new(FlowDone done, void *self)
{
    FlowNet *net = g_new0(FlowNet, 1);
    net->done = done;
    net->self = self;
    return net;
}

void flow_net_free(FlowNet *net)
{
    if (net == NULL) {
        return;
    }
    for (guint32 l = 0; l < net->n_links; l++) {
        index_heap_clear(&net->links[l].bounded);
        g_free(net->links[l].flows);
    }
    for (guint32 c = 0; c < net->n_components; c++) {
        g_free(net->components[c].links.at);
    }
    g_free(net->links);
    g_free(net->filling);
    g_free(net->path);
    g_free(net->places);
    g_free(net->bottleneck);
    g_free(net->fixed_in);
    g_free(net->heap_places);
    g_free(net->weights);
    g_free(net->tags);
    g_free(net->args);
    g_free(net->free_flows.at);
    g_free(net->components);
    g_free(net->free_components.at);
    g_free(net->dirty.at);
    g_free(net->component_places);
    index_heap_clear(&net->next);
    g_free(net->fill);
    g_free(net->ended.at);
    g_free(net->scratch.at);
    g_free(net);
}

int flow_net_add_link(FlowNet *net, double bytes_per_s)
{
    g_assert(bytes_per_s > 0.0 && isfinite(bytes_per_s));
    if (net->n_links == net->links_capacity) {
        net->links_capacity = MAX(16, 2 * net->links_capacity);
        net->links = g_renew(Link, net->links, net->links_capacity);
        net->filling = g_renew(Filling, net->filling, net->links_capacity);
    }
    net->links[net->n_links] = (Link){
        .capacity = bytes_per_s * 1e-9, .since_ns = net->now_ns, .next_ns = HUGE_VAL, .component = NONE};
    return (int)net->n_links++;
}

static void mark_dirty(FlowNet *net, guint32 component)
{
    if (!net->components[component].is_dirty) {
        net->components[component].is_dirty = TRUE;
        items_add(&net->dirty, component);
    }
}

void flow_net_set_capacity(FlowNet *net, int link, double bytes_per_s)
{
    g_assert(bytes_per_s > 0.0 && isfinite(bytes_per_s) && (guint32)link < net->n_links);
    net->links[link].capacity = bytes_per_s * 1e-9;
    if (net->links[link].component != NONE) {
        mark_dirty(net, net->links[link].component);
    }
}

static guint32 new_component(FlowNet *net)
{
    guint32 c;
    if (net->free_components.n > 0) {
        c = net->free_components.at[--net->free_components.n];
    } else {
        if (net->n_components == net->components_capacity) {
            net->components_capacity = MAX(16, 2 * net->components_capacity);
            net->components = g_renew(Component, net->components, net->components_capacity);
            net->component_places = g_renew(guint32, net->component_places, net->components_capacity);
        }
        c = net->n_components++;
        net->components[c] = (Component){0};
    }
    Component *component = &net->components[c];
    component->links.n = 0;
    component->n_flows = component->n_flows_built = 0;
    component->is_dirty = FALSE;
    component->is_live = TRUE;
    index_heap_add(&net->next, net->component_places, HUGE_VAL, c);
    return c;
}

/* The component's links must be nobody's or another's by now. */
static void drop_component(FlowNet *net, guint32 c)
{
    index_heap_remove(&net->next, net->component_places, net->component_places[c]);
    net->components[c].is_live = FALSE;
    net->components[c].is_dirty = FALSE;
    items_add(&net->free_components, c);
}

static void add_to_component(FlowNet *net, guint32 c, guint32 link)
{
    net->links[link].component = c;
    items_add(&net->components[c].links, link);
}

/* One component of two; the larger one's number stays. */
static guint32 merge(FlowNet *net, guint32 a, guint32 b)
{
    if (net->components[a].links.n < net->components[b].links.n) {
        guint32 other = a;
        a = b;
        b = other;
    }
    for (guint32 i = 0; i < net->components[b].links.n; i++) {
        add_to_component(net, a, net->components[b].links.at[i]);
    }
    net->components[a].n_flows += net->components[b].n_flows;
    net->components[a].n_flows_built += net->components[b].n_flows_built;
    drop_component(net, b);
    return a;
}

static guint32 new_flow(FlowNet *net)
{
    if (net->free_flows.n > 0) {
        return net->free_flows.at[--net->free_flows.n];
    }
    if (net->n_flows == net->flows_capacity) {
        guint32 n = net->flows_capacity = MAX(64, 2 * net->flows_capacity);
        net->path = g_realloc_n(net->path, n, sizeof *net->path);
        net->places = g_realloc_n(net->places, n, sizeof *net->places);
        net->bottleneck = g_renew(guint32, net->bottleneck, n);
        net->fixed_in = g_renew(guint32, net->fixed_in, n);
        net->heap_places = g_renew(guint32, net->heap_places, n);
        net->weights = g_renew(double, net->weights, n);
        net->tags = g_renew(double, net->tags, n);
        net->args = g_renew(uint64_t, net->args, n);
    }
    g_assert(net->n_flows < NONE >> SLOT_BITS);
    net->fixed_in[net->n_flows] = 0;
    return net->n_flows++;
}

static void add_member(Link *link, const Member *member)
{
    if (link->n_flows == link->flows_capacity) {
        link->flows_capacity = MAX(8, 2 * link->flows_capacity);
        link->flows = g_renew(Member, link->flows, link->flows_capacity);
    }
    link->flows[link->n_flows++] = *member;
    link->weight += (double)member->weight;
}

int flow_net_start(FlowNet *net, const FlowSpec *spec)
{
    g_assert(spec->bytes >= 0.0 && isfinite(spec->bytes) && spec->weight >= 1 && spec->weight <= FLOW_WEIGHT_MAX);
    g_assert(spec->n_links >= 1 && spec->n_links <= FLOW_LINKS_MAX);
    guint32 f = new_flow(net), component = NONE;
    net->weights[f] = (double)spec->weight;
    net->tags[f] = spec->bytes / (double)spec->weight;
    net->args[f] = spec->arg;
    net->bottleneck[f] = NONE;
    for (int k = 0; k < FLOW_LINKS_MAX; k++) {
        net->path[f][k] = k < spec->n_links ? (guint32)spec->links[k] : NONE;
    }
    for (int k = 0; k < spec->n_links; k++) {
        g_assert(net->path[f][k] < net->n_links);
        Link *link = &net->links[net->path[f][k]];
        Member member = {.flow = f << SLOT_BITS | (guint32)k,
                         .other = spec->n_links > 2 ? MANY : spec->n_links == 2 ? net->path[f][1 - k] : NONE,
                         .weight = (float)spec->weight};
        net->places[f][k] = link->n_flows;
        add_member(link, &member);
        if (link->component == NONE) {
            component = component == NONE ? new_component(net) : component;
            add_to_component(net, component, net->path[f][k]);
        } else if (component == NONE) {
            component = link->component;
        } else if (component != link->component) {
            component = merge(net, component, link->component);
        }
    }
    net->components[component].n_flows++;
    net->components[component].n_flows_built++;
    net->n_running++;
    mark_dirty(net, component);
    return (int)f;
}

double flow_net_now(const FlowNet *net)
{
    return net->now_ns;
}

/* Counts what a link has given up to now. */
static void settle(FlowNet *net, Link *link)
{
    link->given = link->bounded.n > 0 ? link->given + link->level * (net->now_ns - link->since_ns) : 0.0;
    link->since_ns = net->now_ns;
}

static void sift_fill(IndexHeapEntry *fill, guint32 n, guint32 place)
{
    IndexHeapEntry entry = fill[place];
    for (;;) {
        guint32 child = 2 * place + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && (fill[child + 1].key < fill[child].key ||
                              (!(fill[child].key < fill[child + 1].key) && fill[child + 1].item < fill[child].item))) {
            child++;
        }
        if (entry.key < fill[child].key || (!(fill[child].key < entry.key) && entry.item < fill[child].item)) {
            break;
        }
        fill[place] = fill[child];
        place = child;
    }
    fill[place] = entry;
}

/* Puts a flow at a place of a link's list; the flow there changes with it. */
static void swap_in_list(FlowNet *net, guint32 f, guint32 l, guint32 place)
{
    int slot = 0;
    while (net->path[f][slot] != l) {
        slot++;
    }
    Member *list = net->links[l].flows;
    guint32 from = net->places[f][slot];
    Member other = list[place];
    list[place] = list[from];
    list[from] = other;
    net->places[other.flow >> SLOT_BITS][other.flow & (FLOW_LINKS_MAX - 1)] = from;
    net->places[f][slot] = place;
}

/* The flow, which has no bottleneck, is bounded by link l from now on. */
static void bind(FlowNet *net, guint32 f, guint32 l, double left)
{
    Link *link = &net->links[l];
    net->bottleneck[f] = l;
    net->tags[f] = link->given + left;
    swap_in_list(net, f, l, link->bounded.n);
    index_heap_add(&link->bounded, net->heap_places, net->tags[f], f);
}

/* The flow has no bottleneck. Returns the bytes per weight that it has left. */
static double unbind(FlowNet *net, guint32 f)
{
    Link *link = &net->links[net->bottleneck[f]];
    swap_in_list(net, f, net->bottleneck[f], link->bounded.n - 1);
    index_heap_remove(&link->bounded, net->heap_places, net->heap_places[f]);
    net->bottleneck[f] = NONE;
    return MAX(net->tags[f] - link->given, 0.0);
}

/* A flow of link l is fixed at a rate: its other links have that much less. */
static inline void take_from_others(FlowNet *net, const Member *member, guint32 l, double rate)
{
    double weight = (double)member->weight;
    if (member->other < MANY) {
        net->filling[member->other].left -= rate;
        net->filling[member->other].weight -= weight;
    } else if (member->other == MANY) {
        const guint32 *path = net->path[member->flow >> SLOT_BITS];
        for (int k = 0; k < FLOW_LINKS_MAX && path[k] != NONE; k++) {
            if (path[k] != l) {
                net->filling[path[k]].left -= rate;
                net->filling[path[k]].weight -= weight;
            }
        }
    }
}

/* Link l is full at a level: it fixes the flows that no other link has fixed. */
static void fix_flows(FlowNet *net, guint32 l, double level)
{
    Link *link = &net->links[l];
    guint32 stamp = net->stamp;
    double to_fix = net->filling[l].weight; /* weights are whole numbers: exact */
    link->level = level;
    for (guint32 i = 0; to_fix > 0.5; i++) {
        const Member *member = &link->flows[i];
        guint32 f = member->flow >> SLOT_BITS;
        if (net->fixed_in[f] == stamp) {
            continue;
        }
        net->fixed_in[f] = stamp;
        to_fix -= (double)member->weight;
        take_from_others(net, member, l, (double)member->weight * level);
        if (i >= link->bounded.n) { /* bounded elsewhere before; changes places with one that was looked at */
            bind(net, f, l, net->bottleneck[f] != NONE ? unbind(net, f) : net->tags[f]);
        }
    }
}

/* A new stamp; flows that were fixed under an old one of the same number must not pass as fixed. */
static void new_stamp(FlowNet *net)
{
    if (++net->stamp == 0) {
        memset(net->fixed_in, 0, net->n_flows * sizeof *net->fixed_in);
        net->stamp = 1;
    }
}

/* Progressive filling of one component. */
static void fill_component(FlowNet *net, const Component *component)
{
    guint32 n = 0;
    if (component->links.n > net->fill_capacity) {
        net->fill_capacity = 2 * component->links.n;
        net->fill = g_renew(IndexHeapEntry, net->fill, net->fill_capacity);
    }
    for (guint32 i = 0; i < component->links.n; i++) {
        Link *link = &net->links[component->links.at[i]];
        settle(net, link);
        link->level = 0.0;
        net->filling[component->links.at[i]] = (Filling){link->capacity, link->weight};
        if (link->n_flows > 0) {
            net->fill[n++] = (IndexHeapEntry){link->capacity / link->weight, component->links.at[i]};
        }
    }
    for (guint32 i = n / 2; i-- > 0;) {
        sift_fill(net->fill, n, i);
    }
    new_stamp(net);
    double level = 0.0;
    while (n > 0) {
        guint32 l = net->fill[0].item;
        const Filling *filling = &net->filling[l];
        double key = filling->left / filling->weight;
        if (filling->weight < 0.5) { /* all of its flows are fixed */
            net->fill[0] = net->fill[--n];
        } else if (key > net->fill[0].key) {
            net->fill[0].key = key;
        } else {
            level = MAX(level, key);
            net->fill[0] = net->fill[--n];
            fix_flows(net, l, level);
        }
        sift_fill(net->fill, n, 0);
    }
    net->counts.solves++;
    net->counts.solved_flows += component->n_flows;
}

/* Next end of every link of a component, and of the component. */
static void find_next(FlowNet *net, guint32 c)
{
    const Component *component = &net->components[c];
    double next_ns = HUGE_VAL;
    for (guint32 i = 0; i < component->links.n; i++) {
        Link *link = &net->links[component->links.at[i]];
        if (link->bounded.n == 0) {
            link->next_ns = HUGE_VAL;
            continue;
        }
        double left = MAX(link->bounded.entries[0].key - link->given, 0.0);
        link->next_ns = link->since_ns + left / link->level;
        next_ns = MIN(next_ns, link->next_ns);
    }
    index_heap_move(&net->next, net->component_places, net->component_places[c], next_ns);
}

/* Everything that hangs together with a link becomes a component of its own. */
static void gather(FlowNet *net, guint32 first)
{
    guint32 c = new_component(net);
    guint32 n_ends = 0; /* of flows on links seen so far */
    add_to_component(net, c, first);
    new_stamp(net);
    for (guint32 i = 0; i < net->components[c].links.n; i++) {
        const Link *link = &net->links[net->components[c].links.at[i]];
        for (guint32 j = 0; j < link->n_flows; j++) {
            guint32 f = link->flows[j].flow >> SLOT_BITS;
            if (net->fixed_in[f] == net->stamp) {
                continue;
            }
            net->fixed_in[f] = net->stamp;
            n_ends++;
            for (int k = 0; k < FLOW_LINKS_MAX && net->path[f][k] != NONE; k++) {
                if (net->links[net->path[f][k]].component == NONE) {
                    add_to_component(net, c, net->path[f][k]);
                }
            }
        }
    }
    net->components[c].n_flows = net->components[c].n_flows_built = n_ends;
    fill_component(net, &net->components[c]);
    find_next(net, c);
}

/* Takes a component apart into what still hangs together, and solves the pieces. */
static void take_apart(FlowNet *net, guint32 c)
{
    net->scratch.n = 0;
    for (guint32 i = 0; i < net->components[c].links.n; i++) {
        guint32 l = net->components[c].links.at[i];
        net->links[l].component = NONE;
        items_add(&net->scratch, l);
    }
    drop_component(net, c);
    for (guint32 i = 0; i < net->scratch.n; i++) {
        Link *link = &net->links[net->scratch.at[i]];
        if (link->component == NONE && link->n_flows > 0) {
            gather(net, net->scratch.at[i]);
        } else if (link->n_flows == 0) {
            link->next_ns = HUGE_VAL;
        }
    }
}

/* Solves what has changed. */
static void flush(FlowNet *net)
{
    for (guint32 i = 0; i < net->dirty.n; i++) {
        guint32 c = net->dirty.at[i];
        Component *component = &net->components[c];
        if (!component->is_live || !component->is_dirty) {
            continue; /* merged into another since */
        }
        component->is_dirty = FALSE;
        if (2 * component->n_flows <= component->n_flows_built) {
            take_apart(net, c);
        } else {
            fill_component(net, component);
            find_next(net, c);
        }
    }
    net->dirty.n = 0;
}

double flow_net_next(FlowNet *net)
{
    flush(net);
    return net->next.n > 0 ? net->next.entries[0].key : HUGE_VAL;
}

SimTime flow_net_next_ns(FlowNet *net)
{
    double next_ns = flow_net_next(net);
    return next_ns < 9e18 ? (SimTime)ceil(next_ns) : G_MAXINT64;
}

/*
 * Ends this close together are one: alike flows whose rates came from sums in different orders. Far below a nanosecond,
 * far above the rounding of doubles.
 */
static double same_time_ns(double now_ns)
{
    return 1e-6 + 1e-12 * now_ns;
}

/* Collects the flows of a component that end now. */
static void collect(FlowNet *net, guint32 c)
{
    const Component *component = &net->components[c];
    double slack_ns = same_time_ns(net->now_ns);
    for (guint32 i = 0; i < component->links.n; i++) {
        Link *link = &net->links[component->links.at[i]];
        if (link->next_ns > net->now_ns + slack_ns) {
            continue;
        }
        settle(net, link);
        double up_to = link->given + link->level * slack_ns;
        do {
            guint32 f = link->bounded.entries[0].item;
            (void)unbind(net, f);
            items_add(&net->ended, f);
        } while (link->bounded.n > 0 && link->bounded.entries[0].key <= up_to);
        link->next_ns = HUGE_VAL; /* until find_next() */
    }
}

/* Takes an ended flow off its links; TRUE when another flow has its bottleneck on one of them. */
static gboolean remove_flow(FlowNet *net, guint32 f)
{
    gboolean bounds_others = FALSE;
    for (int k = 0; k < FLOW_LINKS_MAX && net->path[f][k] != NONE; k++) {
        Link *link = &net->links[net->path[f][k]];
        guint32 place = net->places[f][k];
        Member moved = link->flows[--link->n_flows];
        link->flows[place] = moved;
        net->places[moved.flow >> SLOT_BITS][moved.flow & (FLOW_LINKS_MAX - 1)] = place;
        link->weight -= net->weights[f];
        bounds_others |= link->bounded.n > 0;
    }
    net->components[net->links[net->path[f][0]].component].n_flows--;
    net->n_running--;
    return bounds_others;
}

static int by_number(const void *a, const void *b)
{
    guint32 x = *(const guint32 *)a, y = *(const guint32 *)b;
    return x < y ? -1 : x > y;
}

static void drop_empty(FlowNet *net, guint32 c)
{
    for (guint32 i = 0; i < net->components[c].links.n; i++) {
        Link *link = &net->links[net->components[c].links.at[i]];
        link->component = NONE;
        link->next_ns = HUGE_VAL;
    }
    drop_component(net, c);
}

/* Ends what is due at the clock, in all components; callbacks come last, when the net is whole again. */
static void end_due(FlowNet *net)
{
    net->ended.n = 0;
    net->scratch.n = 0;
    double last_ns = net->now_ns + same_time_ns(net->now_ns);
    while (net->next.n > 0 && net->next.entries[0].key <= last_ns) {
        guint32 c = net->next.entries[0].item;
        collect(net, c);
        items_add(&net->scratch, c);
        index_heap_move(&net->next, net->component_places, 0, HUGE_VAL);
    }
    qsort(net->ended.at, net->ended.n, sizeof *net->ended.at, by_number);
    for (guint32 i = 0; i < net->ended.n; i++) {
        if (remove_flow(net, net->ended.at[i])) {
            mark_dirty(net, net->links[net->path[net->ended.at[i]][0]].component);
        }
    }
    for (guint32 i = 0; i < net->scratch.n; i++) {
        guint32 c = net->scratch.at[i];
        if (net->components[c].n_flows == 0) {
            drop_empty(net, c);
        } else if (!net->components[c].is_dirty) {
            find_next(net, c);
        }
    }
    net->counts.ended += net->ended.n;
    for (guint32 i = 0; i < net->ended.n; i++) {
        guint32 f = net->ended.at[i];
        uint64_t arg = net->args[f];
        items_add(&net->free_flows, f); /* a callback may start a flow under this number */
        if (net->done != NULL) {
            net->done(net->self, (int)f, arg, net->now_ns);
        }
    }
}

void flow_net_advance(FlowNet *net, double to_ns)
{
    g_assert(to_ns >= net->now_ns);
    double next_ns;
    while ((next_ns = flow_net_next(net)) <= to_ns && next_ns < HUGE_VAL) {
        net->now_ns = MAX(next_ns, net->now_ns);
        end_due(net);
    }
    net->now_ns = MAX(net->now_ns, to_ns < HUGE_VAL ? to_ns : net->now_ns);
}

double flow_net_rate(FlowNet *net, int flow)
{
    flush(net);
    return net->weights[flow] * net->links[net->bottleneck[flow]].level * 1e9;
}

int flow_net_bottleneck(FlowNet *net, int flow)
{
    flush(net);
    return (int)net->bottleneck[flow];
}

size_t flow_net_n_running(const FlowNet *net)
{
    return net->n_running;
}

FlowNetCounts flow_net_counts(const FlowNet *net)
{
    return net->counts;
}
