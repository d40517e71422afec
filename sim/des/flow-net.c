/*
 * Flows that have one bottleneck get the same rate per weight. So a link counts the bytes per weight that it has given
 * (`given`), and a flow ends when that reaches its tag. A new rate touches links, not flows; a flow is touched only when
 * its bottleneck becomes another link.
 *
 * When flows end on links that are nobody else's bottleneck, all other rates stay, and nothing is solved. Ends at one
 * time, and all changes of one time, are solved once (flow-fill.c).
 */
#include <math.h>
#include <stdlib.h>

#include "sim/des/flow-state.h"

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

void flow_net_set_capacity(FlowNet *net, int link, double bytes_per_s)
{
    g_assert(bytes_per_s > 0.0 && isfinite(bytes_per_s) && (guint32)link < net->n_links);
    net->links[link].capacity = bytes_per_s * 1e-9;
    if (net->links[link].component != NONE) {
        flow_mark_dirty(net, net->links[link].component);
    }
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
            component = component == NONE ? flow_new_component(net) : component;
            flow_add_to_component(net, component, net->path[f][k]);
        } else if (component == NONE) {
            component = link->component;
        } else if (component != link->component) {
            component = flow_merge(net, component, link->component);
        }
    }
    net->components[component].n_flows++;
    net->components[component].n_flows_built++;
    net->n_running++;
    flow_mark_dirty(net, component);
    return (int)f;
}

double flow_net_now(const FlowNet *net)
{
    return net->now_ns;
}

double flow_net_next(FlowNet *net)
{
    flow_fill_dirty(net);
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
        flow_settle(net, link);
        double up_to = link->given + link->level * slack_ns;
        do {
            guint32 f = link->bounded.entries[0].item;
            (void)flow_unbind(net, f);
            flow_items_add(&net->ended, f);
        } while (link->bounded.n > 0 && link->bounded.entries[0].key <= up_to);
        link->next_ns = HUGE_VAL; /* until flow_find_next() */
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
    flow_drop_component(net, c);
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
        flow_items_add(&net->scratch, c);
        index_heap_move(&net->next, net->component_places, 0, HUGE_VAL);
    }
    qsort(net->ended.at, net->ended.n, sizeof *net->ended.at, by_number);
    for (guint32 i = 0; i < net->ended.n; i++) {
        if (remove_flow(net, net->ended.at[i])) {
            flow_mark_dirty(net, net->links[net->path[net->ended.at[i]][0]].component);
        }
    }
    for (guint32 i = 0; i < net->scratch.n; i++) {
        guint32 c = net->scratch.at[i];
        if (net->components[c].n_flows == 0) {
            drop_empty(net, c);
        } else if (!net->components[c].is_dirty) {
            flow_find_next(net, c);
        }
    }
    net->counts.ended += net->ended.n;
    for (guint32 i = 0; i < net->ended.n; i++) {
        guint32 f = net->ended.at[i];
        uint64_t arg = net->args[f];
        flow_items_add(&net->free_flows, f); /* a callback may start a flow under this number */
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
    flow_fill_dirty(net);
    return net->weights[flow] * net->links[net->bottleneck[flow]].level * 1e9;
}

int flow_net_bottleneck(FlowNet *net, int flow)
{
    flow_fill_dirty(net);
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
