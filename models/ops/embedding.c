#include "models/ops/embedding.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int embedding_add(Graph *graph, const char *name, int ids, int64_t vocab, int64_t hidden)
{
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_EMBEDDING, vocab, hidden, 0);
    int y = graph_add_tensor(graph, name, graph_tensor(graph, ids)->rows, hidden, graph->compute);
    Op *op = op_add(graph, OP_embedding, name, NULL, 0);
    op_input(op, ids);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

static void embedding_saved(const OpView *view, OpSaved *ret_saved)
{
    ret_saved->inputs = op_trains_param(view, 0) ? 1 : 0;
}

static void embedding_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_out_bytes(view, 0);
    op_cost_stream(ret_cost, WORK_GATHER, 0, op_in_bytes(view, 0) + rows, rows);
}

/*
 * Eager: the gradient table is zeroed, the ids are sorted, rows of equal id are added up in fp32 (at most one partial
 * sum per token, or per word if there are fewer) and written to the table.
 */
static void eager_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const GraphParam *weight = op_weight(view, 0);
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t ids = op_in_bytes(view, 0);
    int64_t n_sums = MIN(rows, weight->dims[0]);
    int64_t sums = dtype_bytes(DTYPE_FP32, n_sums * weight->dims[1]);
    int64_t elem = dtype_bytes(op_out(view, 0)->dtype, 1);
    op_cost_stream(ret_cost, WORK_COPY, 0, 0, op_weight_bytes(view, 0));
    Work *sort = op_cost_stream(ret_cost, WORK_SORT, 0, 2 * ids, 2 * ids);
    sort->m = 1;
    sort->n = rows;
    double adds = (double)rows * (double)weight->dims[1];
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, adds, op_out_bytes(view, 0) + 2 * ids, sums);
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, 0, sums, elem * n_sums * weight->dims[1]);
    ret_cost->workspace_bytes = sums + 4 * ids;
}

static void embedding_backward_cost(const OpView *view, OpCost *ret_cost)
{
    if (!op_trains_param(view, 0)) {
        return;
    }
    if (view->op->eager) {
        eager_backward_cost(view, ret_cost);
        return;
    }
    double adds = (double)graph_tensor_numel(op_out(view, 0), view->rows);
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, adds, op_in_bytes(view, 0) + op_out_bytes(view, 0), op_weight_bytes(view, 0));
}

extern const OpClass op_embedding;
const OpClass op_embedding = {
    .id = "embedding",
    .title = "embedding lookup",
    .no_grad_inputs = 1,
    .saved = embedding_saved,
    .forward_cost = embedding_forward_cost,
    .backward_cost = embedding_backward_cost,
};
#endif
