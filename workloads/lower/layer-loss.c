/*
 * Losses of layers beside the main one: where they join it, where their gradients begin, and the counts that a balancing loss
 * over a whole batch needs of all ranks.
 */
#include "workloads/lower/walk.h"

gboolean walk_is_summed(const Graph *graph, int op)
{
    return op_class(graph_op(graph, op)->kind)->collective == OP_COLLECTIVE_ALL_REDUCE;
}

/*
 * Counts of all ranks join those of the micro-batches before, which stay until the step's end. A recomputation comes before the
 * next micro-batch counts, so it finds there what it needs and asks nobody.
 */
void walk_sum_counts(const Walk *walk, int op)
{
    const Op *info = graph_op(walk->graph, op);
    Emitter *emitter = walk->pass->emitter;
    OpView view = walk_view(walk, op);
    int64_t bytes = op_out_bytes(&view, 0), n_ranks = emitter->plan->dp_replicate * emitter->plan->dp_shard * emitter->plan->cp;
    Place counts = walk_tensor(walk, info->outputs[0]);
    if (n_ranks > 1 && !walk->in_recompute) {
        CollPrice price = emit_world_sum_price(emitter->plan, bytes);
        emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
        emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
        emit_collective(emitter, STREAM_ALL_TO_ALL, COLL_all_reduce, GROUP_WORLD, bytes, &price)->op = op;
        emit_operand(emitter, counts);
        emit_record(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
        emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
    }
    emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, 2 * bytes, 1, LABEL_LAYER_LOSS);
    emit_value(emitter, STREAM_COMPUTE, VALUE_PASS_COUNTS, op);
    emit_operand(emitter, counts);
}

void walk_add_loss(const Walk *walk, int op)
{
    int tensor = graph_op(walk->graph, op)->outputs[0];
    Emitter *emitter = walk->pass->emitter;
    if (graph_is_loss(walk->graph, tensor) && !walk->in_recompute) {
        emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 8, 4, 1, LABEL_LAYER_LOSS);
        emit_value(emitter, STREAM_COMPUTE, VALUE_LAYER_LOSS, -1);
        emit_operand(emitter, walk_tensor(walk, tensor));
    }
}

gboolean walk_start_loss_grad(Walk *walk, int op, Place *ret_grad)
{
    const Op *info = graph_op(walk->graph, op);
    Emitter *emitter = walk->pass->emitter;
    const GraphTensor *loss = graph_tensor(walk->graph, info->outputs[0]);
    if (!graph_is_loss(walk->graph, info->outputs[0]) || !loss->needs_grad) {
        return FALSE;
    }
    int64_t bytes = graph_tensor_bytes(loss, walk->pass->rows);
    *ret_grad = (Place){ARG_FRAME, frame_loss_grad(walk->graph)};
    emit_alloc(emitter, STREAM_COMPUTE, *ret_grad, bytes, loss->tag);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, 0, bytes, 1, LABEL_LAYER_LOSS);
    emit_value(emitter, STREAM_COMPUTE, VALUE_LAYER_LOSS_GRAD, -1);
    emit_operand(emitter, *ret_grad);
    return TRUE;
}
