#include "workloads/lower/lower.h"

#include "workloads/lower/clock.h"
#include "workloads/lower/copies.h"
#include "workloads/lower/deal.h"
#include "workloads/lower/frame.h"
#include "workloads/lower/interleave.h"

ModelGraph *lower_graphs(const Plan *plan)
{
    BlockOptions options = {.compute = plan->compute,
                            .ep_size = plan->ep,
                            .fp8_align = plan->fp8_align,
                            .fp8_codes = plan->fp8_weights != PLAN_FP8_EACH_PASS,
                            .lora = plan->mode == PLAN_LORA,
                            .lora_rank = plan->lora_rank,
                            .lora_attention = plan->lora_attention,
                            .lora_shared = plan->lora_shared,
                            .lora_experts = plan->lora_experts,
                            .lora_shared_a = plan->lora_shared_a,
                            .image_tokens = plan->image_tokens,
                            .chunked_loss_tokens = plan->seq_chunk > 0,
                            .chunked_loss_vocab = plan->vocab_chunk > 0,
                            .vocab_chunk = plan->vocab_chunk,
                            .capacity = plan->moe.capacity,
                            .capacity_adaptive = plan_capacity_is_measured(plan),
                            .pad_experts = plan->moe.pad,
                            .expert_slots = plan_expert_slots(plan),
                            .drop = plan->moe.drop,
                            .early_shared = plan->moe.shared_overlap,
                            .aux_loss = plan->moe.aux_loss_coeff,
                            .z_loss = plan->moe.z_loss_coeff,
                            .index_loss = plan->index_kl_coeff,
                            .aux_scope = plan->moe.aux_loss_scope,
                            .overlap_chunks = plan->moe.overlap_chunks,
                            .token_dispatch = plan_sends_tokens(plan),
                            .dispatch_to_all = plan->moe.dispatch == PLAN_DISPATCH_ALL_GATHER};
    for (int i = 0; i < N_OPS; i++) {
        options.eager[i] = plan->eager[i];
    }
    return model_graph_new(plan->model, &options);
}

static void gather_root(StepState *state)
{
    Lowering *lowering = state->lowering;
    Emitter *emitter = &lowering->emitter;
    int segment = lowering_start_segment(lowering, NULL, "gather of the root group", NULL);
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    fsdp_start(emitter); /* shards are as the optimizer left them */
    fsdp_unshard(emitter, lowering->root.group, ARG_GROUP, ARG_GROUP_TOKEN);
    fsdp_wait(emitter, lowering->root.group, ARG_GROUP, ARG_GROUP_TOKEN, FALSE, -1);
    lowering_call_group(lowering_add_call(lowering, segment, -1, state->micro_batch), ARG_GROUP, &lowering->root);
    state->last_flat = fsdp_has_flat(lowering->root.group) ? &lowering->root : NULL;
    state->ahead = NULL; /* what the last backward pass gathered ahead it has used */
}

static void forward_embedding(StepState *state)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering->graphs->embedding;
    int segment = lowering_start_segment(lowering, NULL, "embedding", graph);
    LayerPass pass = lowering_pass(lowering, graph, &lowering->rows[0]);
    layer_forward(&pass, SAVE_ALL);
    Call *call = lowering_add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->side.embedding_frame;
    call->args[ARG_SOURCES] = lowering->inputs;
    call->args[ARG_OUTPUT] = lowering_boundary(&state->side, 0);
}

/* Group whose flat buffer a layer's forward pass leaves to the next wait (implicit prefetch): that of its last wait. */
static const GroupSite *left_flat(const Lowering *lowering, int64_t layer)
{
    const GroupSite *last = lowering->experts[layer].group != NULL ? &lowering->experts[layer] : &lowering->layers[layer];
    return lowering->plan->prefetch == PLAN_PREFETCH_IMPLICIT && fsdp_has_flat(last->group) ? last : NULL;
}

static void emit_forward(const LayerPass *pass, const SegmentKey *key)
{
    Emitter *emitter = pass->emitter;
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    if (!key->first_micro_batch) { /* of the layers that are gathered ahead: this one is not */
        fsdp_unshard(emitter, pass->group, ARG_GROUP, ARG_GROUP_TOKEN);
    }
    fsdp_wait(emitter, pass->group, ARG_GROUP, ARG_GROUP_TOKEN, pass->free_flat, key->has_last_flat ? ARG_LAST_FLAT : -1);
    if (pass->next != NULL) {
        fsdp_unshard(emitter, pass->next, ARG_NEXT, ARG_NEXT_TOKEN);
    }
    layer_forward(pass, pass->retention->mode);
    if (pass->reshard) {
        fsdp_reshard(emitter, pass->group, ARG_GROUP);
    }
}

static int forward_segment(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering_layer_graph(lowering, layer);
    const GroupSite *site = &lowering->layers[layer];
    gboolean explicit_prefetch = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT;
    gboolean gathers_next = explicit_prefetch && layer + 1 < lowering->graphs->n_layers;
    SegmentKey key = {.what = SEGMENT_FORWARD,
                      .kind = lowering->graphs->layer_kind[layer],
                      .loads = lowering->loads[layer],
                      .has_last_flat = state->last_flat != NULL,
                      .first_micro_batch = state->ahead == site,
                      .next = gathers_next ? lowering->layers[layer + 1].kind : -1,
                      .retention = lowering->retention->made[layer]->id};
    int segment = lowering_find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    g_autofree char *name = g_strdup_printf("forward of layer kind %d", key.kind);
    segment = lowering_start_segment(lowering, &key, name, graph);
    LayerPass pass = lowering_pass(lowering, graph, &lowering->rows[layer]);
    pass.group = site->group;
    pass.experts = lowering->experts[layer].group;
    pass.next = gathers_next ? lowering->layers[layer + 1].group : NULL;
    pass.dying_source = lowering_dying_source(graph);
    pass.own_flat = !explicit_prefetch && fsdp_has_flat(site->group);
    pass.exchanges = lowering_layer_exchanges(lowering, layer);
    pass.retention = lowering->retention->made[layer];
    pass.hooks = lowering->retention->hooks;
    lowering_cut_pass(lowering, &pass);
    lowering_emit_pass(lowering, &key, &pass, emit_forward);
    return segment;
}

Call lowering_forward_layer(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    gboolean explicit_prefetch = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT;
    gboolean gathers_next = explicit_prefetch && layer + 1 < lowering->graphs->n_layers;
    Call made = lowering_new_call(forward_segment(state, layer), layer, state->micro_batch), *call = &made;
    call->frame = state->side.frames[layer];
    lowering_call_group(call, ARG_GROUP, &lowering->layers[layer]);
    lowering_call_group(call, ARG_EXPERTS, &lowering->experts[layer]);
    if (gathers_next) {
        lowering_call_group(call, ARG_NEXT, &lowering->layers[layer + 1]);
    }
    if (state->last_flat != NULL) {
        call->args[ARG_LAST_FLAT] = state->last_flat->buffer;
    }
    call->args[ARG_OUTPUT] = lowering_boundary(&state->side, layer + 1);
    call->args[ARG_SWAP] = lowering->swap_tokens[layer];
    lowering_call_sources(state, call, lowering_layer_graph(lowering, layer), layer);
    state->last_flat = left_flat(lowering, layer);
    state->ahead = gathers_next ? &lowering->layers[layer + 1] : NULL;
    return made;
}

/* Ends the forward pass: everything is issued, activations for backward are alive. */
static void mark(Lowering *lowering, Phase phase, int64_t micro_batch)
{
    int segment = lowering_start_segment(lowering, NULL, program_phase_name(phase), NULL);
    lowering->emitter.phase = phase;
    emit(&lowering->emitter, INSTR_MARK, STREAM_COMPUTE);
    lowering_add_call(lowering, segment, -1, micro_batch);
}

/* Sources of a layer whose gradient exists before its backward: rows that later layers have read too. */
static int source_grads(const Lowering *lowering, int64_t layer, gboolean *ret_grads)
{
    const Graph *graph = lowering_layer_graph(lowering, layer);
    int64_t block = lowering->plan->model->attnres_block;
    int64_t values[CALL_ARGS_MAX];
    int n = lowering_layer_sources(lowering, layer, values), source = 0, mask = 0;
    for (guint i = 0; i < graph->inputs->len; i++) {
        const GraphTensor *input = graph_tensor(graph, g_array_index(graph->inputs, int, i));
        if (input->dtype == DTYPE_INT64) {
            continue;
        }
        /* a finished block's row, or the prefix that this layer turns into one */
        gboolean is_bank = block > 0 && (source + 1 < n || layer % block == 0);
        ret_grads[i] = is_bank && input->needs_grad;
        mask |= ret_grads[i] ? 1 << i : 0;
        source++;
    }
    return mask;
}

static void emit_backward(const LayerPass *pass, const SegmentKey *key)
{
    (void)key;
    layer_backward(pass, pass->retention->mode, NULL);
}

static int backward_segment(StepState *state, int64_t layer, const GroupSite *next)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering_layer_graph(lowering, layer);
    LayerPass pass = lowering_pass(lowering, graph, &lowering->rows[layer]);
    SegmentKey key = {.what = SEGMENT_BACKWARD,
                      .kind = lowering->graphs->layer_kind[layer],
                      .loads = lowering->loads[layer],
                      .reduce_pending = state->last_reduce != NULL,
                      .dying_source = lowering_dying_source(graph),
                      .first_micro_batch = state->micro_batch == 0,
                      .grads_mask = source_grads(lowering, layer, pass.source_grads),
                      .next = next != NULL ? next->kind : -1,
                      .retention = lowering->retention->found[layer]->id};
    int segment = lowering_find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    g_autofree char *name = g_strdup_printf("backward of layer kind %d", key.kind);
    segment = lowering_start_segment(lowering, &key, name, graph);
    pass.group = lowering->layers[layer].group;
    pass.experts = lowering->experts[layer].group;
    pass.next = next != NULL ? next->group : NULL;
    pass.exchanges = lowering_layer_exchanges(lowering, layer);
    pass.first_micro_batch = key.first_micro_batch;
    pass.reduce_pending = key.reduce_pending;
    pass.dying_source = key.dying_source;
    pass.retention = lowering->retention->found[layer];
    pass.hooks = lowering->retention->hooks;
    lowering_cut_pass(lowering, &pass);
    lowering_emit_pass(lowering, &key, &pass, emit_backward);
    return segment;
}

Call lowering_backward_layer(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    const GroupSite *next = lowering->plan->reshard_after_forward && layer > 0 ? &lowering->layers[layer - 1] : NULL;
    Call made = lowering_new_call(backward_segment(state, layer, next), layer, state->micro_batch), *call = &made;
    call->frame = state->side.frames[layer];
    lowering_call_group(call, ARG_GROUP, &lowering->layers[layer]);
    lowering_call_group(call, ARG_EXPERTS, &lowering->experts[layer]);
    if (next != NULL) {
        lowering_call_group(call, ARG_NEXT, next);
    }
    if (state->last_reduce != NULL) {
        call->args[ARG_LAST_REDUCE] = state->last_reduce->buffer;
    }
    call->args[ARG_OUTPUT] = lowering_boundary(&state->side, layer + 1);
    call->args[ARG_SWAP] = lowering->swap_tokens[layer];
    lowering_call_sources(state, call, lowering_layer_graph(lowering, layer), layer);
    for (int i = 0; i < 2; i++) {
        const GroupSite *site = i == 0 ? &lowering->experts[layer] : &lowering->layers[layer];
        if (site->group != NULL && fsdp_leaves_reduce(site->group)) {
            state->last_reduce = site;
        }
    }
    return made;
}

/* Backward of the embedding; then the root group is freed and reduced, and the last reduce buffer waited for. */
static void backward_embedding(StepState *state)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering->graphs->embedding;
    const FsdpGroup *root = lowering->root.group;
    Emitter *emitter = &lowering->emitter;
    g_autofree Place *unused = g_new0(Place, graph->params->len + 1);
    g_autofree Place *grads = g_new0(Place, root->params->len + 1);
    int segment = lowering_start_segment(lowering, NULL, "backward of the embedding", graph);
    gboolean layer_needs = graph_tensor(lowering_layer_graph(lowering, 0),
                                        g_array_index(lowering_layer_graph(lowering, 0)->inputs, int, lowering_dying_source(lowering_layer_graph(lowering, 0))))
                               ->needs_grad;
    emitter->phase = PHASE_BACKWARD;
    emitter->is_backward = TRUE;
    if (graph_tensor(graph, g_array_index(graph->outputs, int, 0))->needs_grad) {
        LayerPass pass = lowering_pass(lowering, graph, &lowering->rows[0]);
        layer_backward(&pass, SAVE_ALL, unused);
    } else if (layer_needs) {
        emit_free(emitter, (Place){ARG_OUTPUT, BOUNDARY_GRAD});
    }
    int last_reduce = state->last_reduce != NULL ? ARG_LAST_REDUCE : -1;
    fsdp_reshard(emitter, root, ARG_GROUP);
    head_end_grads(lowering, root, ARG_EXPERTS, grads);
    fsdp_reduce(emitter, root, ARG_GROUP, grads, last_reduce, state->micro_batch == 0);
    if (fsdp_leaves_reduce(root)) {
        last_reduce = ARG_GROUP;
    }
    if (last_reduce >= 0) {
        fsdp_finish(emitter); /* replicas and sums over micro-batches, too */
        fsdp_release_reduce(emitter, last_reduce);
    }
    Call *call = lowering_add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->side.embedding_frame;
    lowering_call_group(call, ARG_GROUP, &lowering->root);
    call->args[ARG_EXPERTS] = state->head_frame;
    call->args[ARG_LAST_REDUCE] = state->last_reduce != NULL ? state->last_reduce->buffer : -1;
    call->args[ARG_SOURCES] = lowering->inputs;
    call->args[ARG_OUTPUT] = lowering_boundary(&state->side, 0);
    state->last_reduce = NULL;
}

static void swap(StepState *state, const SwapEvent *event)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering_layer_graph(lowering, event->layer);
    const RetentionPlan *retention = lowering->retention;
    const Retention *table = event->action == SWAP_FETCH ? retention->found[event->layer] : retention->made[event->layer];
    SegmentKey key = {.what = SEGMENT_SWAP,
                      .kind = lowering->graphs->layer_kind[event->layer],
                      .loads = lowering->loads[event->layer],
                      .retention = table->id,
                      .event = event->id};
    int segment = lowering_find_segment(lowering, &key);
    if (segment < 0) {
        static const char *const names[] = {"copied activations freed", "activations on host dropped", "cached activations dropped", "activations to host",
                                            "activations from host"};
        segment = lowering_start_segment(lowering, &key, names[event->action], graph);
        LayerPass pass = lowering_pass(lowering, graph, &lowering->rows[event->layer]);
        pass.retention = table;
        pass.hooks = retention->hooks;
        pass.dying_source = lowering_dying_source(graph);
        layer_swap(&pass, event->action, event->ops);
    }
    Call *call = lowering_add_call(lowering, segment, event->layer, state->micro_batch);
    call->frame = state->side.frames[event->layer];
    call->args[ARG_SWAP] = lowering->swap_tokens[event->layer];
    call->args[ARG_OUTPUT] = lowering_boundary(&state->side, event->layer + 1);
    lowering_call_sources(state, call, graph, event->layer);
}

/* Everything that moves between the tiers at one place of the step. */
static void swap_at(StepState *state, gint32 at)
{
    const RetentionPlan *retention = state->lowering->retention;
    for (guint i = retention_first_event(retention, at); i < retention->events->len; i++) {
        const SwapEvent *event = &g_array_index(retention->events, SwapEvent, i);
        if (event->at != at) {
            break;
        }
        swap(state, event);
    }
}

void lowering_begin_forward(StepState *state)
{
    gather_root(state);
    forward_embedding(state);
}

void lowering_end_backward(StepState *state)
{
    backward_embedding(state);
    mark(state->lowering, PHASE_BACKWARD, state->micro_batch);
}

void lowering_part(StepState *state, StepPart part)
{
    Lowering *lowering = state->lowering;
    int64_t n_layers = lowering->graphs->n_layers;
    switch (part) {
    case PART_TO_HEAD:
        lowering_begin_forward(state);
        for (int64_t i = 0; i < n_layers; i++) {
            swap_at(state, retention_before_forward(lowering->retention, i));
            lowering_append_pass(lowering, lowering_forward_layer(state, i));
        }
        swap_at(state, retention_before_forward(lowering->retention, n_layers));
        return;
    case PART_HEAD_FORWARD:
        head_forward(state);
        for (int64_t chunk = 0; lowering->cut >= 0 && chunk < head_n_chunks(lowering); chunk++) {
            head_forward_chunk(state, chunk);
        }
        return;
    case PART_BETWEEN:
        mark(lowering, PHASE_FORWARD, state->micro_batch);
        swap_at(state, retention_before_head_backward(lowering->retention));
        return;
    case PART_HEAD_BACKWARD:
        head_backward(state);
        return;
    case PART_FROM_HEAD:
        for (int64_t i = n_layers - 1; i >= 0; i--) {
            swap_at(state, retention_before_backward(lowering->retention, i));
            lowering_append_pass(lowering, lowering_backward_layer(state, i));
        }
        lowering_end_backward(state);
        return;
    case N_BATCH_PARTS:
    default:
        g_assert_not_reached();
    }
}

int64_t lower_static_bytes(const Program *program)
{
    int64_t sum = 0;
    for (int i = 0; i < N_MEM_TAGS; i++) {
        sum += program->static_bytes[i];
    }
    return sum;
}

void lowering_clear(Lowering *lowering)
{
    g_hash_table_unref(lowering->segments);
    g_free(lowering->layers);
    g_free(lowering->experts);
    g_free(lowering->rows);
    g_free(lowering->exchanges);
    g_free(lowering->loads);
    g_free(lowering->swap_tokens);
    g_free(lowering->sides[0].frames);
    if (lowering->sides[1].frames != lowering->sides[0].frames) {
        g_free(lowering->sides[1].frames);
    }
    g_array_unref(lowering->n_parts);
    retention_plan_free(lowering->retention);
    if (lowering->cache == NULL) {
        price_list_free(lowering->emitter.prices);
    }
    g_array_unref(lowering->retention_numbers);
}

/*
 * Every part of the step; of a frame (or NULL) those that are not the head's are there already. The second micro-batch adds to
 * gradients that the first made; all later ones are like it.
 */
static void lower_parts(StepState *state, const LowerFrame *frame, StepParts *ret_parts)
{
    Lowering *lowering = state->lowering;
    CallRepeat *repeat = &lowering->program->repeat;
    const GArray *calls = lowering->program->calls;
    gboolean repeats = lowering->plan->n_micro_batches > 1;
    for (int p = 0; p < N_STEP_PARTS; p++) {
        ret_parts->first[p] = calls->len;
        ret_parts->states[p] = *state;
        if (p == N_BATCH_PARTS && repeats) {
            state->micro_batch = 1;
            repeat->first = calls->len;
            repeat->times = lowering->plan->n_micro_batches - 1;
            repeat->micro_batches = 1;
        }
        if (frame != NULL && !step_part_is_head(p)) {
            lower_frame_add_run(frame, p, lowering->program);
        } else if (p == PART_OPTIMIZER) {
            lowering_optimizer(lowering);
        } else if (p < N_BATCH_PARTS || repeats) {
            StepState own = frame != NULL ? lower_frame_state(frame, p, lowering) : *state;
            lowering_part(&own, (StepPart)(p % N_BATCH_PARTS));
            *state = own;
        }
        repeat->n = repeats && p >= N_BATCH_PARTS && p < PART_OPTIMIZER ? calls->len - repeat->first : repeat->n;
    }
    ret_parts->first[N_STEP_PARTS] = calls->len;
}

/* A lowering that knows nothing yet but where it may look. */
static Lowering new_lowering(LowerCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    Lowering lowering = {.plan = plan, .graphs = graphs, .routing = routing, .ep_rank = ep_rank, .cut = -1, .cache = cache, .scope = -1,
                         .loss_scope = -1, .body_scope = -1};
    g_assert(!plan_is_open(plan));
    lowering.program = program_new();
    lowering.program->expandable_segments = plan->expandable_segments;
    lowering.emitter = (Emitter){.plan = plan, .device = plan->cluster->device, .prices = cache != NULL ? lower_cache_prices(cache, plan) : price_list_new()};
    /* loads have no name of their own; where passes interleave, a step has no parts */
    if (cache != NULL && routing == NULL && !plan->moe.overlap_micro_batches) {
        lowering.scope = lower_cache_scope(cache, plan);
        lowering.loss_scope = lower_cache_loss_scope(cache, plan);
        lowering.body_scope = lower_cache_body_scope(cache, plan);
    }
    return lowering;
}

static void lower_all(Lowering *lowering, StepParts *ret_parts)
{
    StepState state = {.lowering = lowering};
    int cut_tensor;
    lowering->segments = segment_table_new();
    lowering->retention = lowering->cache != NULL
                              ? retention_plan_ref(lower_cache_retention(lowering->cache, lowering->plan, lowering->graphs))
                              : retention_plan_new(lowering->plan, lowering->graphs, NULL);
    lowering->retention_numbers = g_array_new(FALSE, TRUE, sizeof(gint32));
    lowering->n_parts = g_array_new(FALSE, TRUE, sizeof(gint32));
    lowering_start(lowering, &state.head_frame);
    state.side = lowering->sides[0];
    if (lowering->plan->seq_chunk > 0) {
        lowering->cut = head_find_cut(lowering->graphs->head, &cut_tensor);
    }
    if (lowering->plan->moe.overlap_micro_batches) {
        lower_interleaved(&state);
        lowering_optimizer(lowering);
    } else {
        lower_parts(&state, NULL, ret_parts);
    }
    lowering_count_static(lowering);
}

static Program *lower(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank, gboolean keeps_works)
{
    StepParts parts;
    Lowering lowering = new_lowering(NULL, plan, graphs, routing, ep_rank);
    lowering.program->keeps_works = keeps_works;
    lower_all(&lowering, &parts);
    clock_settle(lowering.program);
    lowering_clear(&lowering);
    return lowering.program;
}

Program *lower_plan(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    return lower(plan, graphs, routing, ep_rank, FALSE);
}

Program *lower_plan_described(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    return lower(plan, graphs, routing, ep_rank, TRUE);
}

/* The program of a plan as its frame has it, which is made from the first plan of its kind. */
static Program *lower_in_frame(Lowering *lowering)
{
    const LowerFrame *frame = lower_frame_find(lowering);
    Lowering own = *lowering;
    StepParts parts;
    if (frame == NULL) {
        Lowering first = *lowering;
        lower_all(&first, &parts);
        frame = lower_frame_keep(&first, &parts);
        program_free(first.program);
        own.program = program_new();
        own.program->expandable_segments = lowering->plan->expandable_segments;
    }
    lower_frame_start(frame, &own);
    StepState state = lower_frame_state(frame, 0, &own);
    lower_parts(&state, frame, &parts);
    clock_settle(own.program);
    g_hash_table_unref(own.segments);
    return own.program;
}

Program *lower_plan_cached(LowerCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    StepParts parts;
    if (cache == NULL) {
        return lower(plan, graphs, routing, ep_rank, FALSE);
    }
    Lowering lowering = new_lowering(cache, plan, graphs, routing, ep_rank);
    if (lowering.scope >= 0) {
        return lower_in_frame(&lowering);
    }
    lower_all(&lowering, &parts);
    clock_settle(lowering.program);
    lowering_clear(&lowering);
    return lowering.program;
}

int64_t lower_plan_static_bytes(LowerCache *cache, const Plan *plan, const ModelGraph *graphs)
{
    Lowering lowering = new_lowering(cache, plan, graphs, NULL, 0);
    lowering_place_groups(&lowering);
    deal_plan(lowering.program, plan);
    lowering_count_static(&lowering);
    int64_t bytes = lower_static_bytes(lowering.program);
    g_free(lowering.layers);
    g_free(lowering.experts);
    program_free(lowering.program);
    return bytes;
}
