#include "models/ops/kda.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
/* Adds a parameter PREFIX.suffix of n values that stays fp32. */
static int kda_add_param(Graph *graph, const char *prefix, const char *suffix, int64_t n)
{
    char name[GRAPH_NAME_MAX];
    g_snprintf(name, sizeof name, "%s.%s", prefix, suffix);
    int param = graph_add_param(graph, name, PARAM_VECTOR, n, 0, 0);
    graph_param(graph, param)->always_fp32 = TRUE;
    return param;
}

int kda_add(Graph *graph, const char *prefix, const int qkvzb[5], const KdaAttr *attr)
{
    char name[GRAPH_NAME_MAX];
    g_snprintf(name, sizeof name, "%s.kda", prefix);
    int a_log = kda_add_param(graph, prefix, "A_log", attr->value_heads);
    int dt_bias = kda_add_param(graph, prefix, "dt_bias", attr->value_heads * attr->key_dim);
    int o = graph_add_tensor(graph, name, ROWS_TOKENS, attr->value_heads * attr->value_dim, graph->compute);
    Op *op = op_add(graph, OP_kda, name, attr, sizeof *attr);
    for (int i = 0; i < 5; i++) {
        op_input(op, qkvzb[i]);
    }
    op_param(graph, op, a_log);
    op_param(graph, op, dt_bias);
    op_output(graph, op, o);
    return o;
}

extern const OpClass op_kda;
const OpClass op_kda = {.id = "kda", .title = "KDA"};
#endif
