#include "hw/transfers.h"

#include <math.h>
#include <string.h>

#include "sim/des/flow-net.h"

/* A link that transfers use, as far as they have been looked at in order of start. */
typedef struct UsedLink {
    TopologyLink link;
    double bytes;
    int flow_link;       /* in the net; -1 = not there yet */
    gint64 last_private; /* the last transfer that had it for itself, or -1 */
    gboolean is_shared;  /* a flow started on it */
} UsedLink;

typedef struct Run {
    const Topology *topology;
    Transfer *transfers;
    size_t n;
    guint8 *n_links;                   /* by transfer */
    guint32 (*path)[TOPOLOGY_PATH_MAX]; /* by transfer: index in used */
    GArray *used;                      /* UsedLink */
    GHashTable *numbers;               /* number of a link + 1 to its index in used + 1; looked up only */
    size_t *order;                     /* transfers by start */
} Run;

static guint32 use_link(Run *run, TopologyLink link)
{
    gpointer key = GSIZE_TO_POINTER((gsize)topology_number(run->topology, link) + 1);
    gsize at = GPOINTER_TO_SIZE(g_hash_table_lookup(run->numbers, key));
    if (at == 0) {
        UsedLink used = {.link = link, .flow_link = -1, .last_private = -1};
        g_array_append_val(run->used, used);
        at = run->used->len;
        g_hash_table_insert(run->numbers, key, GSIZE_TO_POINTER(at));
    }
    return (guint32)(at - 1);
}

static UsedLink *used_at(const Run *run, guint32 idx)
{
    return &g_array_index(run->used, UsedLink, idx);
}

/* Finds the way of a transfer, and how long it takes alone. */
static gboolean find_path(Run *run, size_t i, GError **error)
{
    Transfer *transfer = &run->transfers[i];
    TopologyLink links[TOPOLOGY_PATH_MAX];
    int n = topology_path(run->topology, transfer->from, transfer->to, links, error);
    double least = HUGE_VAL;
    run->n_links[i] = (guint8)n;
    for (int k = 0; k < n; k++) {
        run->path[i][k] = use_link(run, links[k]);
        used_at(run, run->path[i][k])->bytes += transfer->bytes;
        double capacity = run->topology->capacity[links[k].kind];
        if (capacity < least) {
            least = capacity;
            transfer->slowest = links[k];
        }
    }
    transfer->end_ns = transfer->start_ns + transfer->bytes / (least * 1e-9);
    transfer->is_shared = FALSE;
    return n > 0;
}

static int by_start(const void *a, const void *b, void *data)
{
    const Transfer *transfers = data;
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    if (transfers[i].start_ns < transfers[j].start_ns || transfers[j].start_ns < transfers[i].start_ns) {
        return transfers[i].start_ns < transfers[j].start_ns ? -1 : 1;
    }
    return i < j ? -1 : i > j;
}

/* Whether the transfer meets another on one of its links; that other one is shared then, too. */
static gboolean meets_others(Run *run, size_t i)
{
    Transfer *transfer = &run->transfers[i];
    gboolean meets = transfer->is_shared;
    for (int k = 0; k < run->n_links[i]; k++) {
        const UsedLink *used = used_at(run, run->path[i][k]);
        Transfer *last = used->last_private >= 0 ? &run->transfers[used->last_private] : NULL;
        meets |= used->is_shared;
        if (last != NULL && last->end_ns > transfer->start_ns) {
            meets = last->is_shared = TRUE;
        }
    }
    return meets;
}

/*
 * Finds which transfers share a link with another at some time. A transfer that shares ends later than it would alone,
 * at a time not known yet, so all that start after it on its links count as sharing. Goes over all until nothing changes.
 */
static void find_shared(Run *run)
{
    for (gboolean changed = TRUE; changed;) {
        changed = FALSE;
        for (guint l = 0; l < run->used->len; l++) {
            used_at(run, l)->is_shared = FALSE;
            used_at(run, l)->last_private = -1;
        }
        for (size_t o = 0; o < run->n; o++) {
            size_t i = run->order[o];
            gboolean was_shared = run->transfers[i].is_shared, shared = meets_others(run, i);
            run->transfers[i].is_shared = shared;
            changed |= shared && !was_shared;
            for (int k = 0; k < run->n_links[i]; k++) {
                UsedLink *used = used_at(run, run->path[i][k]);
                used->is_shared |= shared;
                used->last_private = shared ? used->last_private : (gint64)i;
            }
        }
    }
}

static void on_done(void *self, int flow, uint64_t arg, double end_ns)
{
    Run *run = self;
    (void)flow;
    run->transfers[arg].end_ns = end_ns;
}

static uint64_t run_flows(Run *run)
{
    g_autoptr(FlowNet) net = flow_net_new(on_done, run);
    for (size_t o = 0; o < run->n; o++) {
        size_t i = run->order[o];
        const Transfer *transfer = &run->transfers[i];
        if (!transfer->is_shared) {
            continue;
        }
        FlowSpec spec = {.bytes = transfer->bytes, .weight = 1, .n_links = run->n_links[i], .arg = i};
        for (int k = 0; k < spec.n_links; k++) {
            UsedLink *used = used_at(run, run->path[i][k]);
            if (used->flow_link < 0) {
                used->flow_link = flow_net_add_link(net, run->topology->capacity[used->link.kind]);
            }
            spec.links[k] = used->flow_link;
        }
        if (transfer->start_ns > flow_net_now(net)) {
            flow_net_advance(net, transfer->start_ns);
        }
        flow_net_start(net, &spec);
    }
    flow_net_advance(net, HUGE_VAL);
    return flow_net_counts(net).solves;
}

/* A change of what a link carries: rates of flows are their means over their lives. */
typedef struct Change {
    double ns, bytes_per_ns; /* what begins then, or ends (less than 0) */
    double carried_bytes;    /* of all flows before */
} Change;

static int by_ns(const void *a, const void *b)
{
    double x = ((const Change *)a)->ns, y = ((const Change *)b)->ns;
    return x < y ? -1 : x > y;
}

/* Makes the bytes that have been carried before each change, and leaves the rate after it in its place. */
static void add_up(Change *changes, guint n)
{
    double rate = 0, carried = 0;
    qsort(changes, n, sizeof *changes, by_ns);
    for (guint i = 0; i < n; i++) {
        carried += i > 0 ? rate * (changes[i].ns - changes[i - 1].ns) : 0;
        rate += changes[i].bytes_per_ns;
        changes[i].bytes_per_ns = rate;
        changes[i].carried_bytes = carried;
    }
}

/* Bytes carried until then. */
static double carried_until(const Change *changes, guint n, double ns)
{
    guint first = 0; /* later than ns are all changes from here on */
    for (guint end = n; first < end;) {
        guint middle = first + (end - first) / 2;
        if (changes[middle].ns <= ns) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    const Change *last = first > 0 ? &changes[first - 1] : NULL;
    return last != NULL ? last->carried_bytes + last->bytes_per_ns * (ns - last->ns) : 0;
}

/*
 * Which link bounds a flow: the one on its way that is used most while it runs, since max-min fair rates leave that full.
 * Where several are, the one of the least capacity, which comes first.
 */
static void find_bounds(Run *run)
{
    g_autofree GArray **changes = g_new0(GArray *, run->used->len + 1);
    for (size_t i = 0; i < run->n; i++) {
        const Transfer *transfer = &run->transfers[i];
        double rate = transfer->bytes / (transfer->end_ns - transfer->start_ns);
        const Change ends[] = {{.ns = transfer->start_ns, .bytes_per_ns = rate}, {.ns = transfer->end_ns, .bytes_per_ns = -rate}};
        for (int k = 0; transfer->is_shared && isfinite(rate) && k < run->n_links[i]; k++) {
            GArray **of_link = &changes[run->path[i][k]];
            *of_link = *of_link != NULL ? *of_link : g_array_new(FALSE, FALSE, sizeof(Change));
            g_array_append_vals(*of_link, ends, 2);
        }
    }
    for (guint l = 0; l < run->used->len; l++) {
        if (changes[l] != NULL) {
            add_up((Change *)(void *)changes[l]->data, changes[l]->len);
        }
    }
    for (size_t i = 0; i < run->n; i++) {
        Transfer *transfer = &run->transfers[i];
        double most = 0;
        for (int k = 0; transfer->is_shared && transfer->end_ns > transfer->start_ns && k < run->n_links[i]; k++) {
            const GArray *of_link = changes[run->path[i][k]];
            const Change *data = (const Change *)(const void *)of_link->data;
            TopologyLink link = used_at(run, run->path[i][k])->link;
            double bytes = carried_until(data, of_link->len, transfer->end_ns) - carried_until(data, of_link->len, transfer->start_ns);
            double share = bytes / run->topology->capacity[link.kind], slack = 1e-6 * most;
            gboolean is_narrower = run->topology->capacity[link.kind] < run->topology->capacity[transfer->slowest.kind];
            if (share > most + slack || (share > most - slack && is_narrower)) {
                most = MAX(most, share);
                transfer->slowest = link;
            }
        }
    }
    for (guint l = 0; l < run->used->len; l++) {
        g_clear_pointer(&changes[l], g_array_unref);
    }
}

static void summarise(const Run *run, TransfersSummary *ret_summary)
{
    for (size_t i = 0; i < run->n; i++) {
        ret_summary->last_end_ns = MAX(ret_summary->last_end_ns, run->transfers[i].end_ns);
        ret_summary->n_flows += run->transfers[i].is_shared ? 1 : 0;
        ret_summary->n_closed += run->transfers[i].is_shared ? 0 : 1;
    }
    for (guint l = 0; l < run->used->len; l++) {
        const UsedLink *used = used_at(run, l);
        double ns = used->bytes / (run->topology->capacity[used->link.kind] * 1e-9);
        if (ns > ret_summary->busiest_ns) {
            ret_summary->busiest_ns = ns;
            ret_summary->busiest = used->link;
        }
    }
}

gboolean transfers_run(const Topology *topology, Transfer *transfers, size_t n, TransfersSummary *ret_summary,
                       size_t *ret_bad, GError **error)
{
    g_assert(n <= G_MAXINT);
    Run run = {.topology = topology, .transfers = transfers, .n = n};
    g_autofree guint8 *n_links = run.n_links = g_new0(guint8, MAX(n, 1));
    g_autofree void *path = run.path = g_malloc_n(MAX(n, 1), sizeof *run.path);
    g_autofree size_t *order = run.order = g_new0(size_t, MAX(n, 1));
    g_autoptr(GArray) used = run.used = g_array_new(FALSE, FALSE, sizeof(UsedLink));
    g_autoptr(GHashTable) numbers = run.numbers = g_hash_table_new(NULL, NULL);
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
        if (!find_path(&run, i, error)) {
            *ret_bad = i;
            return FALSE;
        }
    }
    if (n > 0) {
        g_qsort_with_data(order, (gint)n, sizeof *order, by_start, transfers);
    }
    find_shared(&run);
    TransfersSummary summary = {.n_solves = run_flows(&run)};
    find_bounds(&run);
    if (ret_summary != NULL) {
        summarise(&run, &summary);
        *ret_summary = summary;
    }
    return TRUE;
}
