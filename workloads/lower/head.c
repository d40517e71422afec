#include "workloads/lower/lowering.h"

/* Rows of one chunk of the loss. */
static RowCounts chunk_rows(const Lowering *lowering, int64_t n_tokens)
{
    RowCounts rows = lowering->rows[0];
    rows.rows[ROWS_TOKENS] = n_tokens;
    return rows;
}

int head_find_cut(const Graph *head, int *ret_tensor)
{
    for (int o = 0; o < graph_n_ops(head); o++) {
        const Op *op = graph_op(head, o);
        for (int i = 0; i < op->n_params; i++) {
            if (op->params[i] >= 0 && graph_param(head, op->params[i])->role == PARAM_HEAD) {
                *ret_tensor = op->inputs[0];
                return o;
            }
        }
    }
    g_assert_not_reached();
}

int64_t head_n_chunks(const Lowering *lowering)
{
    int64_t tokens = lowering->rows[0].rows[ROWS_TOKENS];
    int64_t chunk = lowering->plan->seq_chunk;
    return chunk > 0 ? quantity_div_up(tokens, chunk) : 1;
}

static int64_t chunk_tokens(const Lowering *lowering, int64_t i)
{
    int64_t tokens = lowering->rows[0].rows[ROWS_TOKENS];
    int64_t chunk = MIN(lowering->plan->seq_chunk, tokens);
    return MIN(chunk, tokens - i * chunk);
}

static Call *add_head_call(StepState *state, int segment, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    Call *call = lowering_add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->head_frame;
    lowering_call_group(call, ARG_GROUP, &lowering->head);
    call->args[ARG_OUTPUT] = lowering->losses + (gint32)chunk * N_BOUNDARY;
    lowering_call_sources(state, call, lowering->graphs->head, lowering->graphs->n_layers);
    return call;
}

static Place chunk_param_sum(int param)
{
    return (Place){ARG_EXPERTS, CHUNK_PARAMS + 2 * param};
}

static Place chunk_param_new_sum(int param)
{
    return (Place){ARG_EXPERTS, CHUNK_PARAMS + 2 * param + 1};
}

/* A loss joins those of the step. */
static void emit_loss_sum(Emitter *emitter)
{
    emit_value(emitter, STREAM_COMPUTE, VALUE_LOSS_SUM, -1);
    emit_operand(emitter, (Place){ARG_OUTPUT, BOUNDARY_VALUE});
}

static void add_chunk_call(StepState *state, int segment, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    Call *call = add_head_call(state, segment, chunk);
    call->args[ARG_EXPERTS] = lowering->chunk_sums;
    call->n_rows = (gint32)chunk_tokens(lowering, chunk);
    call->first_row = (gint32)(chunk * chunk_tokens(lowering, 0));
}

/* A loss chunk's own tensors are checkpointed, so one frame serves all chunks in turn; each has its own loss. */
void head_forward_chunk(StepState *state, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    int64_t tokens = chunk_tokens(lowering, chunk);
    SegmentKey key = lowering_loss_key(lowering, SEGMENT_CHUNK_FORWARD);
    key.rows = (gint32)tokens;
    int segment = lowering_find_segment(lowering, &key);
    if (segment < 0) {
        RowCounts rows = chunk_rows(lowering, tokens);
        segment = lowering_start_segment(lowering, &key, "loss chunk", lowering->graphs->head);
        LayerPass pass = lowering_pass(lowering, lowering->graphs->head, &rows);
        pass.first_op = lowering->cut;
        lowering->emitter.phase = PHASE_FORWARD;
        lowering->emitter.is_backward = FALSE;
        emit_host(&lowering->emitter, 2 * lowering->emitter.device->eager_op_ns); /* slices of rows and labels: views */
        layer_forward(&pass, SAVE_NONE);
        emit_bytes(&lowering->emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 8, 4, 1, LABEL_LOSS_CHUNK); /* joins the sum of losses */
        emit_loss_sum(&lowering->emitter);
    }
    add_chunk_call(state, segment, chunk);
}

static int forward_segment(StepState *state, int last_flat)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    Emitter *emitter = &lowering->emitter;
    SegmentKey key = lowering_loss_key(lowering, SEGMENT_HEAD_FORWARD);
    key.has_last_flat = last_flat >= 0;
    int segment = lowering_find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    segment = lowering_start_segment(lowering, &key, "head", head);
    LayerPass pass = lowering_pass(lowering, head, &lowering->rows[0]);
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    if (lowering->head.group != NULL) {
        fsdp_unshard(emitter, lowering->head.group, ARG_GROUP, ARG_GROUP_TOKEN);
        fsdp_wait(emitter, lowering->head.group, ARG_GROUP, ARG_GROUP_TOKEN, TRUE, last_flat);
    } else if (last_flat >= 0) {
        fsdp_release_flat(emitter, ARG_LAST_FLAT);
    }
    pass.end_op = lowering->cut > 0 ? lowering->cut : 0;
    pass.dying_source = lowering_dying_source(head);
    if (lowering->cut >= 0) {
        head_find_cut(head, &pass.cut_tensor);
    }
    layer_forward(&pass, SAVE_ALL);
    if (lowering->cut < 0) {
        emit_loss_sum(emitter);
    }
    return segment;
}

void head_forward(StepState *state)
{
    int last_flat = state->last_flat != NULL ? ARG_LAST_FLAT : -1;
    Call *call = add_head_call(state, forward_segment(state, last_flat), 0);
    if (last_flat >= 0) {
        call->args[ARG_LAST_FLAT] = state->last_flat->buffer;
    }
    state->last_flat = NULL;
}

static void start_loss_grad(Emitter *emitter)
{
    emitter->phase = PHASE_BACKWARD;
    emitter->is_backward = TRUE;
    emit_alloc(emitter, STREAM_COMPUTE, (Place){ARG_OUTPUT, BOUNDARY_GRAD}, 4, MEM_ACTIVATIONS);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, 0, 4, 1, LABEL_LOSS_CHUNK);
    emit_value(emitter, STREAM_COMPUTE, VALUE_LOSS_GRAD, -1);
    emit_operand(emitter, (Place){ARG_OUTPUT, BOUNDARY_GRAD});
}

/* Weight gradients of a chunk join the sum: a view that autograd cannot add to in place, so a new sum is made. */
static void sum_chunk_params(Lowering *lowering, gboolean first)
{
    const Graph *head = lowering->graphs->head;
    Emitter *emitter = &lowering->emitter;
    for (guint p = 0; p < head->params->len; p++) {
        const GraphParam *param = graph_param(head, (int)p);
        if (!param->trainable || param->op < lowering->cut) {
            continue;
        }
        int64_t bytes = dtype_bytes(head->compute, fsdp_local_numel(lowering->plan, param));
        Place grad = layer_param_grad(head, (int)p), sum = chunk_param_sum((int)p), new_sum = chunk_param_new_sum((int)p);
        if (first) {
            emit_move(emitter, grad, sum);
            continue;
        }
        emit_alloc(emitter, STREAM_COMPUTE, new_sum, bytes, MEM_GRADIENTS);
        emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * bytes, bytes, 1, LABEL_LOSS_CHUNK);
        emit_value(emitter, STREAM_COMPUTE, VALUE_ADD, -1);
        emit_operand(emitter, sum);
        emit_operand(emitter, grad);
        emit_operand(emitter, new_sum);
        emit_free(emitter, sum);
        emit_free(emitter, grad);
        emit_move(emitter, new_sum, sum);
    }
}

/* The gradient of a slice is a whole tensor of zeros around it; the wholes are added. */
static void sum_chunk_stream(Lowering *lowering, int64_t tokens, gboolean first)
{
    Emitter *emitter = &lowering->emitter;
    const Graph *head = lowering->graphs->head;
    int tensor = -1;
    head_find_cut(head, &tensor);
    const GraphTensor *info = graph_tensor(head, tensor);
    int64_t whole = graph_tensor_bytes(info, &lowering->rows[0]), part = dtype_bytes(info->dtype, tokens * info->width);
    Place full = {ARG_EXPERTS, CHUNK_FULL_X}, sum = {ARG_EXPERTS, CHUNK_SUM_X};
    if (!info->needs_grad) {
        return;
    }
    emit_alloc(emitter, STREAM_COMPUTE, full, whole, MEM_ACTIVATIONS);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, 0, whole, 1, LABEL_LOSS_CHUNK);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, part, part, 1, LABEL_LOSS_CHUNK);
    emit_value(emitter, STREAM_COMPUTE, VALUE_PLACE_ROWS, -1);
    emit_operand(emitter, layer_cut_grad(head));
    emit_operand(emitter, full);
    emit_free(emitter, layer_cut_grad(head));
    if (first) {
        emit_move(emitter, full, sum);
    } else {
        emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * whole, whole, 1, LABEL_LOSS_CHUNK);
        emit_value(emitter, STREAM_COMPUTE, VALUE_ADD, -1);
        emit_operand(emitter, sum);
        emit_operand(emitter, full);
        emit_operand(emitter, sum);
        emit_free(emitter, full);
    }
}

static void backward_chunk(StepState *state, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    int64_t tokens = chunk_tokens(lowering, chunk);
    gboolean first = chunk == head_n_chunks(lowering) - 1;
    SegmentKey key = lowering_loss_key(lowering, SEGMENT_CHUNK_BACKWARD);
    key.rows = (gint32)tokens;
    key.first_micro_batch = first;
    int segment = lowering_find_segment(lowering, &key);
    if (segment < 0) {
        RowCounts rows = chunk_rows(lowering, tokens);
        g_autofree Place *grads = g_new0(Place, head->params->len + 1);
        segment = lowering_start_segment(lowering, &key, "backward of a loss chunk", head);
        LayerPass pass = lowering_pass(lowering, head, &rows);
        pass.first_op = lowering->cut;
        start_loss_grad(&lowering->emitter);
        layer_backward(&pass, SAVE_NONE, grads);
        sum_chunk_params(lowering, first);
        sum_chunk_stream(lowering, tokens, first);
        emit_free(&lowering->emitter, (Place){ARG_OUTPUT, BOUNDARY_VALUE});
    }
    add_chunk_call(state, segment, chunk);
}

/* The sums over chunks become the gradients of the rest of the head. */
static void finish_chunks(Lowering *lowering, int tensor)
{
    const Graph *head = lowering->graphs->head;
    for (guint p = 0; p < head->params->len; p++) {
        const GraphParam *param = graph_param(head, (int)p);
        if (param->trainable && param->op >= lowering->cut) {
            emit_move(&lowering->emitter, chunk_param_sum((int)p), layer_param_grad(head, (int)p));
        }
    }
    if (graph_tensor(head, tensor)->needs_grad) {
        emit_move(&lowering->emitter, (Place){ARG_EXPERTS, CHUNK_SUM_X}, layer_cut_grad(head));
    }
}

void head_end_grads(const Lowering *lowering, const FsdpGroup *group, int head_arg, Place *ret_grads)
{
    int64_t n = 0;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        if (fsdp_has_grad(graph_param(entry->graph, entry->param))) {
            ret_grads[n] = layer_param_grad(entry->graph, entry->param);
            ret_grads[n].arg = graph_is_variant(entry->graph, lowering->graphs->head) ? head_arg : ARG_FRAME;
            n++;
        }
    }
}

static int backward_segment(StepState *state, const GroupSite *next)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    Emitter *emitter = &lowering->emitter;
    g_autofree Place *grads = g_new0(Place, head->params->len + 1);
    SegmentKey key = lowering_loss_key(lowering, SEGMENT_HEAD_BACKWARD);
    key.first_micro_batch = state->micro_batch == 0;
    int segment = lowering_find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    segment = lowering_start_segment(lowering, &key, "backward of the head", head);
    LayerPass pass = lowering_pass(lowering, head, &lowering->rows[0]);
    pass.end_op = lowering->cut > 0 ? lowering->cut : 0;
    pass.next = next != NULL ? next->group : NULL;
    emitter->phase = PHASE_BACKWARD;
    emitter->is_backward = TRUE;
    pass.dying_source = lowering_dying_source(head);
    int cut_tensor = -1;
    if (lowering->cut >= 0) {
        head_find_cut(head, &cut_tensor);
        pass.cut_tensor = cut_tensor;
        finish_chunks(lowering, cut_tensor);
    } else {
        int head_input;
        pass.next_op = head_find_cut(head, &head_input); /* the hook of the head's own group */
        start_loss_grad(emitter);
    }
    layer_backward(&pass, SAVE_ALL, grads);
    if (cut_tensor >= 0) {
        emit_free(emitter, layer_tensor(head, cut_tensor));
    } else {
        emit_free(emitter, (Place){ARG_OUTPUT, BOUNDARY_VALUE});
    }
    if (lowering->head.group != NULL) {
        g_autofree Place *own = g_new0(Place, lowering->head.group->params->len + 1);
        head_end_grads(lowering, lowering->head.group, ARG_FRAME, own);
        fsdp_reshard(emitter, lowering->head.group, ARG_GROUP);
        fsdp_reduce(emitter, lowering->head.group, ARG_GROUP, own, -1, state->micro_batch == 0);
    }
    return segment;
}

void head_backward(StepState *state)
{
    Lowering *lowering = state->lowering;
    const GroupSite *last_layer = &lowering->layers[lowering->graphs->n_layers - 1];
    const GroupSite *next = lowering->plan->reshard_after_forward ? last_layer : NULL;
    for (int64_t chunk = head_n_chunks(lowering) - 1; lowering->cut >= 0 && chunk >= 0; chunk--) {
        backward_chunk(state, chunk);
    }
    Call *call = add_head_call(state, backward_segment(state, next), 0);
    call->args[ARG_EXPERTS] = lowering->chunk_sums;
    lowering_call_group(call, ARG_NEXT, last_layer);
    state->ahead = next;
    if (lowering->head.group != NULL) {
        state->last_reduce = fsdp_leaves_reduce(lowering->head.group) ? &lowering->head : NULL;
    }
}
