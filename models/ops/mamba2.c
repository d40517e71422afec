#include "models/ops/mamba2.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int64_t mamba2_in_width(const Mamba2Attr *attr)
{
    return 2 * attr->heads * attr->head_dim + 2 * attr->groups * attr->state + attr->heads;
}

int mamba2_add(Graph *graph, const char *prefix, int zxbcdt, const Mamba2Attr *attr)
{
    static const char *const suffixes[] = {"conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias", "norm.weight"};
    int64_t width = attr->heads * attr->head_dim;
    int64_t channels = width + 2 * attr->groups * attr->state;
    const int64_t sizes[] = {channels, channels, attr->heads, attr->heads, attr->heads, width};
    char name[GRAPH_NAME_MAX];
    int params[G_N_ELEMENTS(suffixes)];
    g_assert(graph_tensor(graph, zxbcdt)->width == mamba2_in_width(attr));
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        gboolean taps = i == 0;
        g_snprintf(name, sizeof name, "%s.%s", prefix, suffixes[i]);
        params[i] = graph_add_param(graph, name, PARAM_VECTOR, sizes[i], taps ? 1 : 0, taps ? attr->kernel : 0);
        graph_param(graph, params[i])->always_fp32 = i >= 2 && i <= 4;
    }
    g_snprintf(name, sizeof name, "%s.scan", prefix);
    int y = graph_add_tensor(graph, name, ROWS_TOKENS, width, graph->compute);
    Op *op = op_add(graph, OP_mamba2, name, attr, sizeof *attr);
    op_input(op, zxbcdt);
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        op_param(graph, op, params[i]);
    }
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_mamba2;
const OpClass op_mamba2 = {.id = "mamba2", .title = "Mamba-2"};
#endif
