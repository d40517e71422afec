/* Footprint of what leaves HBM between the passes and comes back. */
#include "workloads/run/footprint-pass.h"

/* Storage that a tensor is a part of. */
static int storage_of(const Graph *graph, int tensor)
{
    int producer = graph_tensor(graph, tensor)->producer;
    while (producer >= 0 && op_class(graph_op(graph, producer)->kind)->views_input) {
        tensor = graph_op(graph, producer)->inputs[0];
        producer = graph_tensor(graph, tensor)->producer;
    }
    return tensor;
}

int64_t pass_slot_bytes(const Retention *retention, const Graph *graph, const RowCounts *rows, const guint8 *ops)
{
    int64_t sum = 0;
    for (int o = 0; o < retention->n_ops; o++) {
        OpView view = {graph, graph_op(graph, o), rows};
        guint64 slots = retention->moved[o];
        OpSaved saved = {0};
        if (retention->mode != SAVE_ALL) {
            retention_entry(graph, rows, o, &slots);
        }
        if (op_has_backward(&view)) {
            op_class(view.op->kind)->saved(&view, &saved);
        }
        for (int slot = 0; ops[o] && slot < N_SLOTS; slot++) {
            if (!(slots >> slot & 1u)) {
                continue;
            }
            int tensor = slot < SLOT_OUTPUT ? view.op->inputs[slot] : slot < SLOT_AUX ? view.op->outputs[slot - SLOT_OUTPUT] : -1;
            sum += pass_round(tensor < 0 ? op_aux_bytes(&saved.aux[slot - SLOT_AUX], rows)
                                         : graph_tensor_bytes(graph_tensor(graph, storage_of(graph, tensor)), rows));
        }
    }
    return sum;
}
