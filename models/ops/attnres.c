#include "models/ops/attnres.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int attnres_add(Graph *graph, const char *proj, const char *norm, const int *sources, int n, double eps)
{
    AttnresAttr attr = {eps};
    char name[GRAPH_NAME_MAX];
    g_assert(n >= 1 && n <= ATTNRES_SOURCES_MAX);
    GraphTensor in = *graph_tensor(graph, sources[0]);
    g_snprintf(name, sizeof name, "%s.weight", proj);
    int query = graph_add_param(graph, name, PARAM_VECTOR, 1, in.width, 0);
    g_snprintf(name, sizeof name, "%s.weight", norm);
    int key_norm = graph_add_param(graph, name, PARAM_VECTOR, in.width, 0, 0);
    int y = graph_add_tensor(graph, proj, in.rows, in.width, graph->compute);
    Op *op = op_add(graph, OP_attnres, proj, &attr, sizeof attr);
    for (int i = 0; i < n; i++) {
        op_input(op, sources[i]);
    }
    op_param(graph, op, query);
    op_param(graph, op, key_norm);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_attnres;
const OpClass op_attnres = {.id = "attnres", .title = "AttnRes mix"};
#endif
