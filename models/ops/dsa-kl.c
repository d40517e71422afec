#include "models/ops/dsa-kl.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int dsa_kl_add(Graph *graph, const char *name, const DsaIndexerTensors *indexer, gboolean dense, const DsaKlTarget *target, const DsaKlAttr *attr)
{
    DsaKlAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, target->q)->width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, target->k)->width == full.kv_heads * (full.head_dim - full.tail_dim));
    g_assert((full.tail_dim > 0) == (target->k_tail >= 0));
    int loss = graph_add_tensor(graph, name, ROWS_ONE, 1, DTYPE_FP32);
    Op *op = op_add(graph, OP_dsa_kl, name, &full, sizeof full);
    op_input(op, indexer->q);
    op_input(op, indexer->k);
    op_input(op, indexer->w);
    op_input(op, dense ? -1 : indexer->sel);
    op_input(op, target->q);
    op_input(op, target->k);
    op_input(op, target->k_tail);
    op_input(op, target->lse);
    op_output(graph, op, loss);
    return loss;
}

extern const OpClass op_dsa_kl;
const OpClass op_dsa_kl = {.id = "dsa_kl", .title = "DSA indexer KL loss", .no_grad_inputs = 0xf8};
#endif
