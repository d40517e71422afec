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

extern const OpClass op_embedding;
const OpClass op_embedding = {.id = "embedding", .title = "embedding lookup", .no_grad_inputs = 1};
#endif
