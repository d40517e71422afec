#include "workloads/lower/cache-cut.h"

#include <math.h>
#include <string.h>

#include "models/op.h"

/* Capacities are whole picoseconds, so that sums are exact. */
static const double PICOSECONDS = 1e12;
static const int64_t UNBOUNDED = (int64_t)1 << 60;

typedef struct Edge {
    int to;
    int64_t left;
} Edge;

/* A flow network: edge i and i ^ 1 are each other's reverse. */
typedef struct Net {
    GArray *edges;  /* Edge */
    GArray **of;    /* int, by node */
    int n, source, sink;
    int *level, *next;
} Net;

static void net_init(Net *net, int n)
{
    *net = (Net){.edges = g_array_new(FALSE, FALSE, sizeof(Edge)), .of = g_new(GArray *, n), .n = n, .source = n - 2, .sink = n - 1};
    net->level = g_new(int, n);
    net->next = g_new(int, n);
    for (int i = 0; i < n; i++) {
        net->of[i] = g_array_new(FALSE, FALSE, sizeof(int));
    }
}

static void net_clear(Net *net)
{
    for (int i = 0; i < net->n; i++) {
        g_array_unref(net->of[i]);
    }
    g_array_unref(net->edges);
    g_free(net->of);
    g_free(net->level);
    g_free(net->next);
}

static void net_add(Net *net, int from, int to, int64_t capacity)
{
    Edge edges[] = {{to, capacity}, {from, 0}};
    for (int i = 0; i < 2; i++) {
        int idx = (int)net->edges->len;
        g_array_append_val(net->edges, edges[i]);
        g_array_append_val(net->of[i == 0 ? from : to], idx);
    }
}

/* Distances from the source over edges with room; FALSE when the sink is cut off. */
static gboolean net_levels(Net *net)
{
    g_autofree int *queue = g_new(int, net->n);
    int head = 0, tail = 0;
    for (int i = 0; i < net->n; i++) {
        net->level[i] = -1;
        net->next[i] = 0;
    }
    net->level[net->source] = 0;
    queue[tail++] = net->source;
    while (head < tail) {
        int at = queue[head++];
        for (guint i = 0; i < net->of[at]->len; i++) {
            const Edge *edge = &g_array_index(net->edges, Edge, g_array_index(net->of[at], int, i));
            if (edge->left > 0 && net->level[edge->to] < 0) {
                net->level[edge->to] = net->level[at] + 1;
                queue[tail++] = edge->to;
            }
        }
    }
    return net->level[net->sink] >= 0;
}

static int64_t net_push(Net *net, int at, int64_t amount)
{
    if (at == net->sink) {
        return amount;
    }
    for (; net->next[at] < (int)net->of[at]->len; net->next[at]++) {
        int idx = g_array_index(net->of[at], int, net->next[at]);
        Edge *edge = &g_array_index(net->edges, Edge, idx);
        if (edge->left > 0 && net->level[edge->to] == net->level[at] + 1) {
            int64_t pushed = net_push(net, edge->to, MIN(amount, edge->left));
            if (pushed > 0) {
                g_array_index(net->edges, Edge, idx).left -= pushed;
                g_array_index(net->edges, Edge, idx ^ 1).left += pushed;
                return pushed;
            }
        }
    }
    return 0;
}

/* Saturates the network: afterwards level >= 0 marks the source's side of a minimum cut. */
static void net_solve(Net *net)
{
    while (net_levels(net)) {
        while (net_push(net, net->source, UNBOUNDED) > 0) {
        }
    }
}

static int storage_producer(const Graph *graph, int tensor)
{
    int producer = graph_tensor(graph, tensor)->producer;
    while (producer >= 0 && op_class(graph_op(graph, producer)->kind)->views_input) {
        producer = graph_tensor(graph, graph_op(graph, producer)->inputs[0])->producer;
    }
    return producer;
}

static void note_needs(CutLayer *layer, const Graph *graph, const RowCounts *rows, int o)
{
    OpView view = {graph, graph_op(graph, o), rows};
    OpSaved saved = {0};
    if (op_has_backward(&view)) {
        op_class(view.op->kind)->saved(&view, &saved);
    }
    layer->needed[o] = layer->needed[o] || saved.n_aux > 0;
    for (int i = 0; i < view.op->n_inputs; i++) {
        int p = view.op->inputs[i] >= 0 ? storage_producer(graph, view.op->inputs[i]) : -1;
        if (p >= 0) {
            layer->inputs[o * layer->n_ops + p] = 1;
            layer->needed[p] = layer->needed[p] || (saved.inputs >> i & 1u);
        }
    }
    for (int i = 0; i < view.op->n_outputs; i++) {
        int p = storage_producer(graph, view.op->outputs[i]);
        if (p >= 0 && (saved.outputs >> i & 1u)) {
            layer->needed[p] = 1;
        }
    }
    for (int i = 0; i < view.op->n_params; i++) {
        gboolean expert = view.op->params[i] >= 0 && graph_param(graph, view.op->params[i])->split == PARAM_EXPERT;
        layer->experts[o] = layer->experts[o] || expert;
    }
}

CutLayer *cut_layer_new(const Graph *graph, const RowCounts *rows)
{
    CutLayer *layer = g_new0(CutLayer, 1);
    int n = graph_n_ops(graph);
    layer->n_ops = n;
    layer->bytes = g_new0(int64_t, n);
    layer->seconds = g_new0(double, n);
    layer->needed = g_new0(guint8, n);
    layer->experts = g_new0(guint8, n);
    layer->inputs = g_new0(guint8, (gsize)n * (gsize)n);
    for (int o = 0; o < n; o++) {
        note_needs(layer, graph, rows, o);
    }
    return layer;
}

void cut_layer_free(CutLayer *layer)
{
    g_free(layer->bytes);
    g_free(layer->seconds);
    g_free(layer->needed);
    g_free(layer->experts);
    g_free(layer->inputs);
    g_free(layer);
}

double cut_runs(const CutLayer *layer, const guint8 *keep, guint8 *ret_runs)
{
    int n = layer->n_ops;
    g_autofree guint8 *needed = g_memdup2(layer->needed, (gsize)n);
    gboolean experts = FALSE;
    double seconds = 0;
    for (int o = n - 1; o >= 0; o--) {
        ret_runs[o] = needed[o] && !keep[o];
        for (int p = 0; ret_runs[o] && p < o; p++) {
            needed[p] = needed[p] || layer->inputs[o * n + p];
        }
        experts = experts || (ret_runs[o] && layer->experts[o]);
        seconds += ret_runs[o] ? layer->seconds[o] : 0;
    }
    return seconds + (experts ? layer->gather_seconds : 0);
}

void cut_solve(const CutLayer *layer, double price, CutPoint *ret_point)
{
    int n = layer->n_ops, gather = 2 * n;
    Net net;
    net_init(&net, 2 * n + 3); /* needed, runs again, the experts' gather; source and sink */
    for (int o = 0; o < n; o++) {
        double kept = price * (double)layer->bytes[o] * PICOSECONDS;
        int64_t least = price > 0; /* however cheap, nothing is kept for nothing */
        net_add(&net, o, n + o, layer->bytes[o] > 0 && kept < (double)UNBOUNDED ? MAX(least, (int64_t)llround(kept)) : UNBOUNDED);
        net_add(&net, n + o, net.sink, (int64_t)llround(layer->seconds[o] * PICOSECONDS));
        if (layer->needed[o]) {
            net_add(&net, net.source, o, UNBOUNDED);
        }
        if (layer->experts[o]) {
            net_add(&net, n + o, gather, UNBOUNDED);
        }
        for (int p = 0; p < n; p++) {
            if (layer->inputs[o * n + p]) {
                net_add(&net, n + o, p, UNBOUNDED);
            }
        }
    }
    net_add(&net, gather, net.sink, (int64_t)llround(layer->gather_seconds * PICOSECONDS));
    net_solve(&net);
    g_autofree guint8 *runs = g_new0(guint8, n + 1);
    *ret_point = (CutPoint){.keep = g_new0(guint8, n + 1)};
    for (int o = 0; o < n; o++) {
        ret_point->keep[o] = net.level[o] >= 0 && net.level[n + o] < 0 && layer->bytes[o] > 0;
        ret_point->bytes += ret_point->keep[o] ? layer->bytes[o] : 0;
    }
    ret_point->seconds = cut_runs(layer, ret_point->keep, runs);
    net_clear(&net);
}

static void point_clear(void *point)
{
    g_free(((CutPoint *)point)->keep);
}

/* Corners strictly between two. */
static void halve(const CutLayer *layer, const CutPoint *left, const CutPoint *right, GArray *hull)
{
    if (right->bytes <= left->bytes || right->seconds >= left->seconds) {
        return;
    }
    double price = (left->seconds - right->seconds) / (double)(right->bytes - left->bytes);
    CutPoint middle;
    cut_solve(layer, price, &middle);
    double below = left->seconds + price * (double)left->bytes - (middle.seconds + price * (double)middle.bytes);
    gboolean between = middle.bytes > left->bytes && middle.bytes < right->bytes;
    if (!between || below <= 1e-9 * left->seconds) {
        point_clear(&middle);
        return;
    }
    halve(layer, left, &middle, hull);
    g_array_append_val(hull, middle);
    CutPoint kept = middle;
    halve(layer, &kept, right, hull);
}

GArray *cut_hull(const CutLayer *layer)
{
    GArray *hull = g_array_new(FALSE, TRUE, sizeof(CutPoint));
    g_autofree guint8 *runs = g_new0(guint8, layer->n_ops + 1);
    CutPoint none = {.keep = g_new0(guint8, layer->n_ops + 1)}, all;
    g_array_set_clear_func(hull, point_clear);
    none.seconds = cut_runs(layer, none.keep, runs);
    cut_solve(layer, 1e-18, &all); /* a byte costs next to nothing, so that none is kept in vain */
    g_array_append_val(hull, none);
    if (all.bytes == 0 || all.seconds >= none.seconds) {
        point_clear(&all);
        return hull;
    }
    halve(layer, &none, &all, hull);
    g_array_append_val(hull, all);
    return hull;
}
