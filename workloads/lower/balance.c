/*
 * What loss-free balancing costs a step (reference: DeepSeek-V3's sign rule, quantile balancing): before routers' selection biases
 * move, what the ranks have counted of all MoE layers is stacked into one table, which is summed over all data-parallel ranks; then
 * one kernel moves the biases. The sign rule counts the rows of each expert, the quantile rule a histogram of each expert's scores.
 */
#include "workloads/lower/lowering.h"

void lowering_balance(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    Emitter *emitter = &lowering->emitter;
    int64_t bytes = plan_balance_bytes(plan), n_ranks = plan->dp_replicate * plan->dp_shard * plan->cp;
    int64_t biases = dtype_bytes(DTYPE_FP32, plan_n_moe_layers(plan) * plan->model->n_experts);
    Place table = {ARG_FRAME, 0};
    if (bytes == 0) {
        return;
    }
    int segment = lowering_start_segment(lowering, NULL, "balancing of experts", NULL);
    emit_alloc(emitter, STREAM_COMPUTE, table, bytes, MEM_WORKSPACE);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, bytes, bytes, 1, LABEL_BALANCE);
    emit_value(emitter, STREAM_COMPUTE, VALUE_LOADS, -1);
    emit_operand(emitter, table);
    if (n_ranks > 1) {
        CollPrice price = emit_world_sum_price(plan, bytes);
        emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_READY});
        emit_wait(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_READY});
        emit_collective(emitter, STREAM_ALL_TO_ALL, COLL_all_reduce, GROUP_WORLD, bytes, &price)->op = -1;
        emit_operand(emitter, table);
        emit_record(emitter, STREAM_ALL_TO_ALL, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
        emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_EP_DONE});
    }
    emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, bytes + biases, biases, 1, LABEL_BALANCE);
    emit_value(emitter, STREAM_COMPUTE, VALUE_BIASES, -1);
    emit_operand(emitter, table);
    emit_free(emitter, table);
    lowering_add_call(lowering, segment, -1, 0)->frame = lowering->balance_table;
}
