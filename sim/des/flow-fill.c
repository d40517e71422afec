/*
 * Rates by progressive filling: the link that gives least per weight fills first and fixes its flows; what they take is
 * taken from their other links; and so on. Keys of links only grow while that goes on, so a heap whose keys are looked
 * at again when they come up is enough.
 *
 * Links that share flows form a component; a change is solved in its component only. A component is taken apart again
 * when half of its flows are gone.
 */
#include <math.h>
#include <string.h>

#include "sim/des/flow-state.h"

void flow_items_add(Items *items, guint32 item)
{
    if (items->n == items->capacity) {
        items->capacity = MAX(8, 2 * items->capacity);
        items->at = g_renew(guint32, items->at, items->capacity);
    }
    items->at[items->n++] = item;
}

void flow_mark_dirty(FlowNet *net, guint32 component)
{
    if (!net->components[component].is_dirty) {
        net->components[component].is_dirty = TRUE;
        flow_items_add(&net->dirty, component);
    }
}

guint32 flow_new_component(FlowNet *net)
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

void flow_drop_component(FlowNet *net, guint32 c)
{
    index_heap_remove(&net->next, net->component_places, net->component_places[c]);
    net->components[c].is_live = FALSE;
    net->components[c].is_dirty = FALSE;
    flow_items_add(&net->free_components, c);
}

void flow_add_to_component(FlowNet *net, guint32 c, guint32 link)
{
    net->links[link].component = c;
    flow_items_add(&net->components[c].links, link);
}

guint32 flow_merge(FlowNet *net, guint32 a, guint32 b)
{
    if (net->components[a].links.n < net->components[b].links.n) {
        guint32 other = a;
        a = b;
        b = other;
    }
    for (guint32 i = 0; i < net->components[b].links.n; i++) {
        flow_add_to_component(net, a, net->components[b].links.at[i]);
    }
    net->components[a].n_flows += net->components[b].n_flows;
    net->components[a].n_flows_built += net->components[b].n_flows_built;
    flow_drop_component(net, b);
    return a;
}

void flow_settle(FlowNet *net, Link *link)
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

double flow_unbind(FlowNet *net, guint32 f)
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
            bind(net, f, l, net->bottleneck[f] != NONE ? flow_unbind(net, f) : net->tags[f]);
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
        flow_settle(net, link);
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

void flow_find_next(FlowNet *net, guint32 c)
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
    guint32 c = flow_new_component(net);
    guint32 n_ends = 0; /* of flows on links seen so far */
    flow_add_to_component(net, c, first);
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
                    flow_add_to_component(net, c, net->path[f][k]);
                }
            }
        }
    }
    net->components[c].n_flows = net->components[c].n_flows_built = n_ends;
    fill_component(net, &net->components[c]);
    flow_find_next(net, c);
}

/* Takes a component apart into what still hangs together, and solves the pieces. */
static void take_apart(FlowNet *net, guint32 c)
{
    net->scratch.n = 0;
    for (guint32 i = 0; i < net->components[c].links.n; i++) {
        guint32 l = net->components[c].links.at[i];
        net->links[l].component = NONE;
        flow_items_add(&net->scratch, l);
    }
    flow_drop_component(net, c);
    for (guint32 i = 0; i < net->scratch.n; i++) {
        Link *link = &net->links[net->scratch.at[i]];
        if (link->component == NONE && link->n_flows > 0) {
            gather(net, net->scratch.at[i]);
        } else if (link->n_flows == 0) {
            link->next_ns = HUGE_VAL;
        }
    }
}

void flow_fill_dirty(FlowNet *net)
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
            flow_find_next(net, c);
        }
    }
    net->dirty.n = 0;
}

