/*
 * Exchanges of a layer: rows that go to their experts and come back, on a stream of their own.
 *
 * Each exchange waits for the compute stream where it starts, and the compute stream for the exchange where its rows are read; in
 * between both run. Without chunks only a dispatch has something to run beside: what stands between the makers of what it reads
 * and itself (shared experts). The operators of chunks are ordered so that each exchange has the experts of another chunk.
 */
#include "models/ops/dispatch.h"
#include "models/ops/token-dispatch.h"
#include "workloads/lower/walk.h"

enum { TO_EXPERTS, TO_EXPERTS_AFTER, FROM_EXPERTS };

static gboolean goes_to_experts(const Graph *graph, int op)
{
    return op_class(graph_op(graph, op)->kind)->to_experts;
}

gboolean walk_op_exchanges(const Graph *graph, int op)
{
    return op_class(graph_op(graph, op)->kind)->collective == OP_COLLECTIVE_ALL_TO_ALL && graph->ep_size > 1;
}

gboolean layer_ends_part(const Graph *graph, int op)
{
    return walk_op_exchanges(graph, op) && !token_dispatch_follows(graph_op(graph, op));
}

gint32 walk_exchange_slot(const Graph *graph, int op)
{
    const Op *info = graph_op(graph, op);
    int kind = !goes_to_experts(graph, op) ? FROM_EXPERTS : token_dispatch_follows(info) ? TO_EXPERTS_AFTER : TO_EXPERTS;
    return N_EXCHANGE_KINDS * info->chunk + kind;
}

gint32 walk_n_exchange_slots(const Graph *graph)
{
    return N_EXCHANGE_KINDS * (graph->n_chunks + 1);
}

/* The operator that a chunk's rows go to their experts by, or come back by; -1: no such chunk. */
static int exchange_of_chunk(const Graph *graph, int chunk, gboolean to_experts)
{
    for (int o = 0; chunk > 0 && chunk <= graph->n_chunks && o < graph_n_ops(graph); o++) {
        const Op *op = graph_op(graph, o);
        if (op->chunk == chunk && walk_op_exchanges(graph, o) && goes_to_experts(graph, o) == to_experts && !token_dispatch_follows(op)) {
            return o;
        }
    }
    return -1;
}

int layer_exchange_leader(const Graph *graph, int op)
{
    const Op *info = graph_op(graph, op);
    for (int o = op - 1; token_dispatch_follows(info) && o >= 0; o--) {
        const Op *other = graph_op(graph, o);
        if (other->kind == info->kind && other->chunk == info->chunk && !token_dispatch_follows(other)) {
            return o;
        }
    }
    return -1;
}

int layer_exchange_start(const Graph *graph, int op)
{
    const Op *info = graph_op(graph, op);
    int start = 0, leader = layer_exchange_leader(graph, op);
    if (leader >= 0) {
        return layer_exchange_start(graph, leader);
    }
    for (int i = 0; i < info->n_inputs; i++) {
        int tensor = info->inputs[i];
        start = tensor >= 0 ? MAX(start, graph_tensor(graph, tensor)->producer + 1) : start;
    }
    return MAX(start, exchange_of_chunk(graph, info->chunk - 2, FALSE) + 1);
}

int layer_exchange_end(const Graph *graph, int op)
{
    const Op *info = graph_op(graph, op);
    if (info->chunk == 0) {
        return op + 1;
    }
    int end = exchange_of_chunk(graph, info->chunk + 2, TRUE);
    end = end < 0 ? graph_n_ops(graph) : end;
    for (int o = op + 1; o < end; o++) {
        for (int i = 0; i < graph_op(graph, o)->n_inputs; i++) {
            end = graph_op(graph, o)->inputs[i] == info->outputs[0] ? o : end;
        }
    }
    return end;
}

gboolean layer_exchange_is_early(const Graph *graph, int op)
{
    gboolean chunk = graph_op(graph, op)->chunk > 0;
    return chunk || (goes_to_experts(graph, op) && layer_exchange_start(graph, op) < op);
}

int *walk_exchange_places(const Graph *graph)
{
    int *places = g_new(int, graph_n_ops(graph));
    for (int o = 0; o < graph_n_ops(graph); o++) {
        places[o] = !walk_op_exchanges(graph, o)  ? -1
                    : goes_to_experts(graph, o) ? layer_exchange_start(graph, o)
                                                : layer_exchange_end(graph, o);
    }
    return places;
}

static Place done_token(const Walk *walk, int op)
{
    return (Place){ARG_GLOBAL, TOKEN_EP_DONE + walk_exchange_slot(walk->graph, op) + (walk->in_backward ? N_EXCHANGE_TOKENS : 0)};
}

SimTime walk_intercept_ns(const Device *device, const Op *exchange)
{
    return exchange->eager ? device->selective_collective_ns : 0;
}

/* The rows change ranks: the exchange waits for compute, and compute, later, for it. */
static void emit_exchange(const Walk *walk, int op, gboolean backward, Place from, Place to)
{
    const LayerPass *pass = walk->pass;
    Emitter *emitter = pass->emitter;
    const AllToAll *exchange = &pass->exchanges[op_part(graph_op(pass->graph, op))];
    gboolean follows = token_dispatch_follows(graph_op(pass->graph, op));
    gboolean to_experts = goes_to_experts(pass->graph, op) != backward;
    const CollPrice *price = follows ? &exchange->weights : to_experts ? &exchange->dispatch : &exchange->combine;
    if (emitter->is_selective && !emitter->is_backward) {
        emit_host(emitter, walk_intercept_ns(emitter->device, graph_op(pass->graph, op)));
    }
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_collective(emitter, STREAM_ALL_TO_ALL, to_experts ? exchange->dispatch_coll : exchange->combine_coll, GROUP_EP,
                    follows ? exchange->weights_bytes : exchange->bytes, price)
        ->op = op;
    emit_operand(emitter, from);
    emit_operand(emitter, to);
    if (!walk->goes_along[op]) {
        emit_record(emitter, STREAM_ALL_TO_ALL, done_token(walk, op));
    }
}

/* Rows of a whole micro-batch are on their way: another micro-batch may compute. */
static void begin_part(const Walk *walk, int op)
{
    const LayerPass *pass = walk->pass;
    if (pass->next_part != NULL && pass->emitter->phase != PHASE_RECOMPUTE && layer_ends_part(walk->graph, op)) {
        pass->next_part(pass->owner);
    }
}

static void emit_exchange_wait(const Walk *walk, int op)
{
    emit_wait(walk->pass->emitter, STREAM_COMPUTE, done_token(walk, op));
}

/* Whether an exchange has sizes that ranks have to tell one another. */
static gboolean has_counts(const Op *op)
{
    return !dispatch_is_padded(op) && !token_dispatch_follows(op);
}

/*
 * Counts go first, those of all chunks together, and for tokens the order of their slots; the host must know them before it can
 * size the exchange.
 */
static void emit_counts_exchange(Walk *walk, int op, int n_host_syncs)
{
    Emitter *emitter = walk->pass->emitter;
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
    const AllToAll *exchange = walk->pass->exchanges;
    Instr *counts = emit_collective(emitter, STREAM_ALL_TO_ALL, COLL_all_to_all, GROUP_EP, exchange->counts_bytes, &exchange->counts);
    counts->op = op;
    counts->action = VALUE_EXCHANGE_COUNTS;
    for (int part = 0; part < MAX(walk->graph->n_chunks, 1); part++) {
        const Op *info = graph_op(walk->graph, walk->graph->n_chunks == 0 ? op : exchange_of_chunk(walk->graph, part + 1, TRUE));
        gboolean tokens = info->kind == OP_token_dispatch;
        emit_operand(emitter, walk_tensor(walk, info->inputs[tokens ? 2 : 1]));
        if (tokens) {
            emit_operand(emitter, walk_tensor(walk, info->inputs[1]));
        }
    }
    emit_record(emitter, STREAM_ALL_TO_ALL, done_token(walk, op));
    emit_exchange_wait(walk, op);
    for (int i = 0; i < n_host_syncs; i++) {
        Instr *sync = emit(emitter, INSTR_HOST_SYNC, STREAM_COMPUTE);
        sync->host_ns = emitter->device->host_sync_ns;
        sync->op = op;
        sync->action = VALUE_EXCHANGE_COUNTS;
    }
    walk->has_counts = walk->graph->n_chunks > 0;
}

static ExchangePlaces exchange_places(const Walk *walk, int op, gboolean backward, Place dout)
{
    const Op *info = graph_op(walk->graph, op);
    ExchangePlaces places = {.arrived = {ARG_FRAME, frame_exchange(walk->graph, op)}};
    if (goes_to_experts(walk->graph, op)) {
        places.own = backward ? (Place){ARG_FRAME, frame_grad(walk->graph, op, 0)} : walk_tensor(walk, walk->storage[info->inputs[0]]);
    } else {
        places.own = backward ? dout : walk_tensor(walk, info->outputs[0]);
    }
    return places;
}

static void start_exchange(Walk *walk, int d, gboolean backward);

/* Sends rows to the experts, their counts before them, and what goes along with them; cost loses the host synchronisations that this takes. */
static void send_to_experts(Walk *walk, int op, OpCost *cost, gboolean backward, Place dout)
{
    ExchangePlaces places = exchange_places(walk, op, backward, dout);
    emit_alloc(walk->pass->emitter, STREAM_COMPUTE, places.arrived, cost->workspace_bytes, MEM_WORKSPACE);
    const Op *info = graph_op(walk->graph, op);
    if (!backward && has_counts(info) && !walk->has_counts) { /* a later chunk's, too, where the first does not run again */
        emit_counts_exchange(walk, op, info->chunk > 1 ? dispatch_count_syncs(info) : cost->n_host_syncs);
        cost->n_host_syncs = info->chunk > 1 ? cost->n_host_syncs : 0;
    }
    emit_exchange(walk, op, backward, places.own, places.arrived);
    walk->under_way[op] = TRUE;
    int end = walk->stop_op >= 0 ? walk->stop_op + 1 : walk->end_op;
    for (int i = 0; !backward && i < walk->n_exchanges; i++) {
        int f = walk->exchanges[i];
        if (f < end && layer_exchange_leader(walk->graph, f) == op) {
            start_exchange(walk, f, FALSE);
        }
    }
}

/* The rows are back, and with them what goes along. */
static void end_exchange(Walk *walk, int op)
{
    if (!walk->goes_along[op]) {
        emit_exchange_wait(walk, op);
    }
    emit_free(walk->pass->emitter, (Place){ARG_FRAME, frame_exchange(walk->graph, op)});
    walk->under_way[op] = FALSE;
    for (int i = walk->n_exchanges - 1; i >= 0; i--) {
        int f = walk->exchanges[i];
        if (walk->under_way[f] && walk->goes_along[f] && layer_exchange_leader(walk->graph, f) == op) {
            end_exchange(walk, f);
        }
    }
}

/* Whether the gradients of tokens will return right behind those of what follows them: then one wait is enough. */
static gboolean returns_along(const Walk *walk, int op)
{
    int leader = layer_exchange_leader(walk->graph, op);
    return leader >= walk->first_op && walk->saves[leader] && walk->grad[graph_op(walk->graph, leader)->outputs[0]].idx >= 0;
}

static void start_exchange(Walk *walk, int d, gboolean backward)
{
    OpView view = walk_view(walk, d);
    OpCost cost = {0};
    if (backward) {
        Place dout = walk->grad[view.op->outputs[0]];
        if (walk->saves[d] && dout.idx >= 0) {
            op_class(view.op->kind)->backward_cost(&view, &cost);
            send_to_experts(walk, d, &cost, TRUE, dout);
        }
        return;
    }
    gboolean runs = !walk->in_recompute ||
                    (!(walk->mode == SAVE_SELECTED && walk_keeps_op(walk, d)) && retention_runs(walk->pass->retention, d));
    if (runs) {
        op_class(view.op->kind)->forward_cost(&view, &cost);
        send_to_experts(walk, d, &cost, FALSE, (Place){ARG_FRAME, -1});
    }
}

/* In forward rows return by combines, in backward by dispatches. */
static gboolean must_be_back(const Walk *walk, int d, int op, int end_op, gboolean backward)
{
    if (goes_to_experts(walk->graph, d) != backward || walk->goes_along[d]) {
        return FALSE;
    }
    return backward ? op < walk->exchange_at[d] : op >= MIN(walk->exchange_at[d], end_op);
}

void walk_exchanges_before(Walk *walk, int op, int end_op, gboolean backward)
{
    const Graph *graph = walk->graph;
    int n = walk->n_exchanges;
    for (int i = 0; i < n; i++) {
        int d = walk->exchanges[backward ? n - 1 - i : i]; /* in the order in which they were sent */
        if (walk->under_way[d] && must_be_back(walk, d, op, end_op, backward)) {
            end_exchange(walk, d);
        }
    }
    for (int i = 0; i < n; i++) {
        int d = walk->exchanges[backward ? n - 1 - i : i];
        gboolean is_ahead = backward ? d <= op : d >= op && d < end_op;
        gboolean leaves = goes_to_experts(graph, d) != backward && !token_dispatch_follows(graph_op(graph, d));
        gboolean starts = is_ahead && walk->exchange_at[d] == (backward ? op + 1 : op) && leaves;
        if (starts && layer_exchange_is_early(graph, d)) {
            start_exchange(walk, d, backward);
        }
    }
}

void walk_end_exchange_of(Walk *walk, int tensor)
{
    for (int i = 0; i < walk->n_exchanges; i++) {
        int d = walk->exchanges[i];
        if (walk->under_way[d] && goes_to_experts(walk->graph, d) && graph_op(walk->graph, d)->inputs[0] == tensor) {
            end_exchange(walk, walk->goes_along[d] ? layer_exchange_leader(walk->graph, d) : d);
        }
    }
}

void walk_compute_exchanged(Walk *walk, int op, OpCost *cost, const Place *douts)
{
    const Op *info = graph_op(walk->graph, op);
    gboolean backward = douts != NULL, leaves = goes_to_experts(walk->graph, op) != backward;
    Place dout = backward ? douts[0] : (Place){ARG_FRAME, -1};
    ExchangePlaces places = exchange_places(walk, op, backward, dout);
    if (leaves && !walk->under_way[op]) {
        send_to_experts(walk, op, cost, backward, dout);
    } else if (leaves && !backward && has_counts(info) && info->chunk <= 1) {
        cost->n_host_syncs = 0;
    } else if (!leaves) {
        emit_alloc(walk->pass->emitter, STREAM_COMPUTE, places.arrived, cost->workspace_bytes, MEM_WORKSPACE);
    }
    if (leaves) {
        begin_part(walk, op);
        emit_exchange_wait(walk, op);
    }
    emit_cost(walk->pass->emitter, STREAM_COMPUTE, cost, (int)info->kind, op);
    walk_emit_value(walk, op, backward, douts, &places);
    walk->under_way[op] = !leaves;
    walk->goes_along[op] = !leaves && backward && returns_along(walk, op);
    if (leaves) {
        emit_free(walk->pass->emitter, places.arrived);
        return;
    }
    emit_exchange(walk, op, backward, places.arrived, places.own);
    begin_part(walk, op);
    if (walk->exchange_at[op] == (backward ? op : op + 1) || (!backward && walk_swaps_out(walk, op))) { /* nothing can stand between */
        end_exchange(walk, op);
    }
}
