#include "workloads/lower/retention.h"

#include <string.h>

#include "workloads/lower/cache-cut.h"
#include "workloads/lower/cache-fill.h"

static void table_free(void *data)
{
    Retention *table = data;
    g_free(table->of_op);
    g_free(table->runs);
    g_free(table->moved);
    g_free(table);
}

static void event_clear(void *data)
{
    g_free(((SwapEvent *)data)->ops);
}

Retention *retention_new(SaveMode mode, int n_ops)
{
    Retention *table = g_new0(Retention, 1);
    table->mode = mode;
    table->n_ops = n_ops;
    table->of_op = g_new0(guint8, n_ops);
    table->moved = g_new0(guint64, n_ops);
    return table;
}

const Retention *retention_plan_share(RetentionPlan *plan, Retention *table)
{
    size_t n = (size_t)table->n_ops;
    for (int o = 0; o < table->n_ops; o++) {
        table->has_ddr = table->has_ddr || table->of_op[o] == KEEP_DDR || table->moved[o] != 0;
    }
    plan->has_ddr = plan->has_ddr || table->has_ddr;
    for (guint i = 0; i < plan->tables->len; i++) {
        const Retention *other = g_ptr_array_index(plan->tables, i);
        gboolean same_runs = (other->runs == NULL) == (table->runs == NULL) && other->n_ops == table->n_ops &&
                             (table->runs == NULL || memcmp(other->runs, table->runs, n) == 0);
        gboolean same_kind = same_runs && other->mode == table->mode && other->intercepts == table->intercepts && other->n_ops == table->n_ops;
        if (same_kind && memcmp(other->of_op, table->of_op, n) == 0 && memcmp(other->moved, table->moved, n * sizeof(guint64)) == 0) {
            table_free(table);
            return other;
        }
    }
    table->id = (gint32)plan->tables->len;
    g_ptr_array_add(plan->tables, table);
    return table;
}

void retention_prune(Retention *table, const Graph *graph)
{
    const RowCounts rows = {.seq_len = 1}; /* what an operator needs does not depend on how many rows it has */
    CutLayer *layer = cut_layer_new(graph, &rows);
    g_autofree guint8 *keep = g_new0(guint8, table->n_ops + 1);
    table->runs = g_new0(guint8, table->n_ops + 1);
    for (int o = 0; o < table->n_ops; o++) {
        keep[o] = table->of_op[o] != KEEP_NOT;
    }
    (void)cut_runs(layer, keep, table->runs);
    for (int o = 0; o < table->n_ops; o++) {
        table->runs_experts = table->runs_experts || (table->runs[o] && layer->experts[o]);
    }
    cut_layer_free(layer);
}

gboolean retention_runs(const Retention *table, int op)
{
    return table == NULL || table->runs == NULL || table->runs[op];
}

gboolean retention_runs_experts(const Retention *table)
{
    return table == NULL || table->runs == NULL || table->runs_experts;
}

RetentionPlan *retention_plan_ref(RetentionPlan *plan)
{
    plan->n_refs++;
    return plan;
}

void retention_plan_free(RetentionPlan *plan)
{
    if (plan != NULL && --plan->n_refs == 0) {
        g_ptr_array_unref(plan->tables);
        g_array_unref(plan->events);
        g_free(plan->made);
        g_free(plan->found);
        g_free(plan);
    }
}

gint32 retention_before_forward(const RetentionPlan *plan, int64_t layer)
{
    return (gint32)MIN(layer, plan->n_layers);
}

gint32 retention_before_head_backward(const RetentionPlan *plan)
{
    return (gint32)plan->n_layers + 1;
}

gint32 retention_before_backward(const RetentionPlan *plan, int64_t layer)
{
    return (gint32)(plan->n_layers + 2 + (plan->n_layers - 1 - layer));
}

void retention_add_event(RetentionPlan *plan, gint32 at, SwapAction action, int64_t layer, const guint8 *ops, int n_ops)
{
    SwapEvent event = {.at = at, .action = action, .layer = (gint32)layer, .id = (gint32)plan->events->len};
    event.ops = g_memdup2(ops, (gsize)n_ops);
    for (guint i = 0; i < plan->events->len; i++) {
        const SwapEvent *other = &g_array_index(plan->events, SwapEvent, i);
        gboolean same_graph = plan->made[other->layer]->n_ops == n_ops;
        if (other->action == action && same_graph && memcmp(other->ops, ops, (size_t)n_ops) == 0) {
            event.id = other->id;
            break;
        }
    }
    plan->has_ddr = plan->has_ddr || action == SWAP_OUT;
    g_array_append_val(plan->events, event);
}

static int by_place(gconstpointer a, gconstpointer b)
{
    const SwapEvent *x = a, *y = b;
    if (x->at != y->at) {
        return x->at < y->at ? -1 : 1;
    }
    if (x->action != y->action) {
        return x->action < y->action ? -1 : 1;
    }
    /* what is needed first comes first: the last layer of a fetch */
    return x->action == SWAP_FETCH ? y->layer - x->layer : x->layer - y->layer;
}

void retention_plan_sort(RetentionPlan *plan)
{
    g_array_sort(plan->events, by_place);
}

guint retention_first_event(const RetentionPlan *plan, gint32 at)
{
    guint low = 0, high = plan->events->len;
    while (low < high) {
        guint middle = (low + high) / 2;
        if (g_array_index(plan->events, SwapEvent, middle).at < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Operators of a table that have something in DDR. */
static gboolean ops_in_ddr(const Retention *table, guint8 *ret_ops)
{
    gboolean any = FALSE;
    for (int o = 0; o < table->n_ops; o++) {
        ret_ops[o] = table->of_op[o] == KEEP_DDR || table->moved[o] != 0;
        any = any || ret_ops[o];
    }
    return any;
}

void retention_add_traffic(RetentionPlan *plan, int64_t layer, int64_t window)
{
    const Retention *made = plan->made[layer], *found = plan->found[layer];
    g_autofree guint8 *ops = g_new0(guint8, made->n_ops);
    int64_t last = plan->n_layers - 1;
    if (!plan->hooks && ops_in_ddr(made, ops)) {
        gint32 at = layer + window <= last ? retention_before_forward(plan, layer + window + 1) : retention_before_head_backward(plan);
        retention_add_event(plan, at, SWAP_RELEASE, layer, ops, made->n_ops);
    }
    if (ops_in_ddr(found, ops)) {
        gint32 at = layer + window <= last ? retention_before_backward(plan, layer + window)
                    : plan->hooks          ? retention_before_backward(plan, last)
                                           : retention_before_head_backward(plan);
        retention_add_event(plan, at, SWAP_FETCH, layer, ops, found->n_ops);
    }
}

RowCounts retention_rows(const Plan *plan, const Routing *routing, int64_t layer)
{
    const Model *model = plan->model;
    int64_t moe_layer = 0;
    if (model->layers[layer].ffn != FFN_MOE) {
        return routing_row_counts(plan, routing, -1, 0);
    }
    for (int64_t i = 0; i < layer; i++) {
        moe_layer += model->layers[i].ffn == FFN_MOE;
    }
    RowCounts most = routing_row_counts(plan, routing, moe_layer, 0);
    for (int64_t r = 1; routing != NULL && r < plan->ep; r++) {
        RowCounts rows = routing_row_counts(plan, routing, moe_layer, r), other = most;
        most = rows.rows[ROWS_RECEIVED] > most.rows[ROWS_RECEIVED] ? rows : most;
        for (int c = 0; c <= plan->moe.overlap_chunks; c++) {
            RowSpace slots = row_space_of_chunk(ROWS_SLOTS, c);
            most.rows[slots] = MAX(other.rows[slots], rows.rows[slots]);
        }
    }
    return most;
}

static OpSaved saved_of(const OpView *view)
{
    OpSaved saved = {0};
    if (op_has_backward(view)) {
        op_class(view->op->kind)->saved(view, &saved);
    }
    return saved;
}

int64_t retention_entry(const Graph *graph, const RowCounts *rows, int op, guint64 *ret_slots)
{
    OpView view = {graph, graph_op(graph, op), rows};
    const OpClass *class = op_class(view.op->kind);
    OpSaved saved = saved_of(&view);
    int64_t bytes = 0;
    *ret_slots = 0;
    for (int i = 0; i < view.op->n_outputs && !class->views_input; i++) {
        if (!(saved.copied_outputs >> i & 1u) && !graph_is_result(graph, view.op->outputs[i])) {
            *ret_slots |= (guint64)1 << (SLOT_OUTPUT + i);
            bytes += op_out_bytes(&view, i);
        }
    }
    for (int i = 0; i < saved.n_aux; i++) {
        *ret_slots |= (guint64)1 << (SLOT_AUX + i);
        bytes += op_aux_bytes(&saved.aux[i], rows);
    }
    return bytes;
}

int64_t retention_saved_bytes(const Graph *graph, const RowCounts *rows, int op, guint8 *seen)
{
    OpView view = {graph, graph_op(graph, op), rows};
    OpSaved saved = saved_of(&view);
    int64_t bytes = 0;
    for (int k = 0; k < view.op->n_inputs + view.op->n_outputs; k++) {
        gboolean is_input = k < view.op->n_inputs;
        int i = is_input ? k : k - view.op->n_inputs, tensor = is_input ? view.op->inputs[i] : view.op->outputs[i];
        gboolean is_saved = (is_input ? saved.inputs : saved.outputs) >> i & 1u;
        if (tensor >= 0 && is_saved && !seen[tensor] && graph_tensor(graph, tensor)->producer >= 0) {
            seen[tensor] = 1;
            bytes += graph_tensor_bytes(graph_tensor(graph, tensor), rows);
        }
    }
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], rows);
    }
    return bytes;
}

int retention_recompute_end(const Graph *graph, const RowCounts *rows)
{
    int end = 0;
    for (int o = 0; o < graph_n_ops(graph); o++) {
        OpView view = {graph, graph_op(graph, o), rows};
        OpSaved saved = saved_of(&view);
        if (saved.outputs != 0 || saved.n_aux > 0) {
            end = o + 1;
        } else if (saved.inputs != 0) {
            end = o;
        }
    }
    return end;
}

/* What memory.keep names stays in HBM, as selective checkpointing keeps it: whether or not anyone reads it. */
static const Retention *table_of_keep(RetentionPlan *plan, const Plan *of, const Graph *graph)
{
    static const SaveMode modes[] = {
        [PLAN_RECOMPUTE_NONE] = SAVE_ALL, [PLAN_RECOMPUTE_FULL] = SAVE_NONE, [PLAN_RECOMPUTE_SELECTIVE] = SAVE_SELECTED};
    Retention *table = retention_new(modes[of->recompute], graph_n_ops(graph));
    table->intercepts = table->mode == SAVE_SELECTED;
    for (int o = 0; o < table->n_ops && table->mode == SAVE_SELECTED; o++) {
        table->of_op[o] = of->keep[op_class(graph_op(graph, o)->kind)->keep] ? KEEP_HBM : KEEP_NOT;
    }
    return retention_plan_share(plan, table);
}

/* Hooks see what each operator saves, in the order in which it does; every 1/fraction-th tensor moves. */
static const Retention *table_of_hooks(RetentionPlan *plan, const Plan *of, const Graph *graph, const RowCounts *rows, double *owed)
{
    Retention *table = retention_new(SAVE_ALL, graph_n_ops(graph));
    for (int o = 0; o < table->n_ops; o++) {
        OpView view = {graph, graph_op(graph, o), rows};
        OpSaved saved = saved_of(&view);
        for (int slot = 0; slot < N_SLOTS; slot++) {
            int64_t bytes = 0;
            if (slot < SLOT_OUTPUT) {
                gboolean is_saved = slot < view.op->n_inputs && view.op->inputs[slot] >= 0 && (saved.inputs >> slot & 1u);
                bytes = is_saved ? op_in_bytes(&view, slot) : 0;
            } else if (slot < SLOT_AUX) {
                gboolean is_saved = slot - SLOT_OUTPUT < view.op->n_outputs && (saved.outputs >> (slot - SLOT_OUTPUT) & 1u);
                bytes = is_saved ? op_out_bytes(&view, slot - SLOT_OUTPUT) : 0;
            } else if (slot - SLOT_AUX < saved.n_aux) {
                bytes = op_aux_bytes(&saved.aux[slot - SLOT_AUX], rows);
            }
            gboolean large = bytes > 0 && bytes >= of->offload_min_bytes;
            *owed += large ? of->offload_fraction : 0;
            if (large && *owed >= 1) {
                *owed -= 1;
                table->moved[o] |= (guint64)1 << slot;
            }
        }
    }
    return retention_plan_share(plan, table);
}

static void fill_static(RetentionPlan *plan, const Plan *of, const ModelGraph *graphs)
{
    double owed = 0;
    plan->hooks = of->offload_fraction > 0;
    for (int64_t i = 0; i < plan->n_layers; i++) {
        const Graph *graph = model_graph_layer(graphs, i);
        if (plan->hooks) {
            RowCounts rows = retention_rows(of, NULL, i);
            gboolean moves = of->offload_layers == 0 || i < of->offload_layers;
            plan->made[i] = moves ? table_of_hooks(plan, of, graph, &rows, &owed) : table_of_keep(plan, of, graph);
        } else {
            plan->made[i] = table_of_keep(plan, of, graph);
        }
        plan->found[i] = plan->made[i];
    }
    for (int64_t i = 0; i < plan->n_layers; i++) {
        retention_add_traffic(plan, i, 1);
    }
}

RetentionPlan *retention_plan_new(const Plan *plan, const ModelGraph *graphs, const CacheStock *stock)
{
    RetentionPlan *tables = g_new0(RetentionPlan, 1);
    tables->n_refs = 1;
    tables->n_layers = graphs->n_layers;
    tables->tables = g_ptr_array_new_with_free_func(table_free);
    tables->made = g_new0(const Retention *, graphs->n_layers);
    tables->found = g_new0(const Retention *, graphs->n_layers);
    tables->events = g_array_new(FALSE, TRUE, sizeof(SwapEvent));
    g_array_set_clear_func(tables->events, event_clear);
    if (plan->has_cache) {
        g_autoptr(CacheStock) own = stock == NULL ? cache_stock_new(plan, graphs) : NULL;
        cache_fill(tables, plan, graphs, stock != NULL ? stock : own);
    } else {
        fill_static(tables, plan, graphs);
    }
    retention_plan_sort(tables);
    return tables;
}

size_t retention_plan_size_bytes(const RetentionPlan *plan)
{
    size_t n_bytes = sizeof *plan + 2 * sizeof(void *) * (size_t)plan->n_layers + plan->events->len * sizeof(SwapEvent);
    for (guint i = 0; i < plan->events->len; i++) {
        n_bytes += (size_t)plan->made[g_array_index(plan->events, SwapEvent, i).layer]->n_ops;
    }
    for (guint i = 0; i < plan->tables->len; i++) {
        n_bytes += sizeof(Retention) + (2 + sizeof(guint64)) * (size_t)((const Retention *)g_ptr_array_index(plan->tables, i))->n_ops;
    }
    return n_bytes;
}
