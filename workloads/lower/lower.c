#include "workloads/lower/lower.h"

#include <string.h>

#include "models/optim.h"
#include "workloads/lower/layer.h"

/* What distinguishes the segments of two layers. */
typedef struct SegmentKey {
    gint32 what; /* SegmentKind */
    gint32 kind; /* graph */
    gint32 loads; /* index of the layer's expert loads; layers of equal loads share it */
    gint32 has_last_flat, reduce_pending, dying_source, first_micro_batch, grads_mask;
    gint32 next; /* identity of the group gathered ahead, -1 = none */
    gint32 rows; /* of a loss chunk */
} SegmentKey;

typedef enum SegmentKind { SEGMENT_FORWARD, SEGMENT_BACKWARD, SEGMENT_CHUNK_FORWARD, SEGMENT_CHUNK_BACKWARD } SegmentKind;

typedef struct CachedSegment {
    SegmentKey key;
    int segment;
} CachedSegment;

/* A group and where its buffers are. */
typedef struct GroupSite {
    FsdpGroup *group; /* geometry, shared by layers of a kind */
    gint32 kind;      /* identity of the geometry */
    gint32 buffer, token;
} GroupSite;

typedef struct Lowering {
    const Plan *plan;
    const ModelGraph *graphs;
    const Routing *routing;
    int64_t ep_rank;
    Program *program;
    Emitter emitter;
    GPtrArray *geometries; /* FsdpGroup, owned */
    GArray *cache;         /* CachedSegment */
    GroupSite root, head;  /* head.group NULL: part of the root group */
    GroupSite *layers, *experts; /* [n_layers]; experts[i].group NULL: part of the layer's group */
    RowCounts *rows;       /* [n_layers] */
    AllToAll *exchanges;   /* [n_layers] */
    gint32 *loads;         /* [n_layers] */
    gint32 boundary;       /* first boundary buffer: value and gradient of each */
    gint32 losses;         /* first loss buffer: value and gradient of each chunk */
    gint32 chunk_sums;     /* gradients summed over loss chunks */
    gint32 inputs;         /* token ids and labels: static, no buffer of the program */
    int cut;               /* first operator of the chunked part of the head, or -1 */
    SaveMode mode;
} Lowering;

ModelGraph *lower_graphs(const Plan *plan)
{
    BlockOptions options = {.compute = plan->compute,
                            .ep_size = plan->ep,
                            .lora = plan->mode == PLAN_LORA,
                            .lora_rank = plan->lora_rank,
                            .lora_attention = plan->lora_attention,
                            .lora_shared = plan->lora_shared,
                            .lora_experts = plan->lora_experts,
                            .lora_shared_a = plan->lora_shared_a,
                            .image_tokens = plan->image_tokens,
                            .chunked_loss_tokens = plan->seq_chunk > 0,
                            .chunked_loss_vocab = plan->vocab_chunk > 0,
                            .vocab_chunk = plan->vocab_chunk};
    for (int i = 0; i < N_OPS; i++) {
        options.eager[i] = plan->eager[i];
    }
    return model_graph_new(plan->model, &options);
}

int64_t lower_n_classes(const Plan *plan, const Routing *routing)
{
    return plan->ep > 1 && routing != NULL ? plan->ep : 1;
}

static gint32 take_buffers(Lowering *lowering, int n)
{
    gint32 first = lowering->program->n_buffers;
    lowering->program->n_buffers += n;
    return first;
}

static gint32 take_token(Lowering *lowering)
{
    return lowering->program->n_tokens++;
}

static const Graph *layer_graph(const Lowering *lowering, int64_t layer)
{
    return g_ptr_array_index(lowering->graphs->kinds, lowering->graphs->layer_kind[layer]);
}

static FsdpGroup *new_geometry(Lowering *lowering, GroupKind mesh)
{
    FsdpGroup *group = fsdp_group_new(lowering->plan, mesh);
    g_ptr_array_add(lowering->geometries, group);
    return group;
}

static GroupSite group_site(Lowering *lowering, FsdpGroup *group, gint32 kind)
{
    GroupSite site = {.kind = kind, .buffer = -1, .token = -1};
    if (group->params->len > 0) {
        site.group = group;
        site.buffer = take_buffers(lowering, fsdp_group_buffers(group));
        site.token = take_token(lowering);
    }
    return site;
}

static gboolean is_head_param(const GraphParam *param)
{
    return param->role == PARAM_HEAD;
}

static gboolean is_no_head_param(const GraphParam *param)
{
    return param->role != PARAM_HEAD;
}

/* Embedding, final norm, and the head unless it is a group of its own. */
static void place_ends(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    const ModelGraph *graphs = lowering->graphs;
    gboolean own_head = plan->seq_chunk == 0;
    FsdpGroup *root = new_geometry(lowering, GROUP_DENSE), *head = new_geometry(lowering, GROUP_DENSE);
    fsdp_group_add(root, plan, graphs->embedding, PARAM_DENSE, NULL);
    fsdp_group_add(root, plan, graphs->head, PARAM_DENSE, own_head ? is_no_head_param : NULL);
    if (own_head) {
        fsdp_group_add(head, plan, graphs->head, PARAM_DENSE, is_head_param);
    }
    fsdp_group_price(root, plan);
    fsdp_group_price(head, plan);
    lowering->root = group_site(lowering, root, -2);
    lowering->head = group_site(lowering, head, -3);
}

static void place_layers(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    guint n_kinds = lowering->graphs->kinds->len;
    g_autofree FsdpGroup **dense = g_new0(FsdpGroup *, n_kinds);
    g_autofree FsdpGroup **experts = g_new0(FsdpGroup *, n_kinds);
    for (guint k = 0; k < n_kinds; k++) {
        const Graph *graph = g_ptr_array_index(lowering->graphs->kinds, k);
        dense[k] = new_geometry(lowering, GROUP_DENSE);
        experts[k] = new_geometry(lowering, GROUP_EXPERT);
        fsdp_group_add(dense[k], plan, graph, PARAM_DENSE, NULL);
        fsdp_group_add(plan->ep > 1 ? experts[k] : dense[k], plan, graph, PARAM_EXPERT, NULL);
        fsdp_group_price(dense[k], plan);
        fsdp_group_price(experts[k], plan);
    }
    lowering->layers = g_new0(GroupSite, lowering->graphs->n_layers);
    lowering->experts = g_new0(GroupSite, lowering->graphs->n_layers);
    for (int64_t i = 0; i < lowering->graphs->n_layers; i++) {
        int k = lowering->graphs->layer_kind[i];
        lowering->layers[i] = group_site(lowering, dense[k], 2 * k);
        lowering->experts[i] = group_site(lowering, experts[k], 2 * k + 1);
    }
}

/* Rows that a rank exchanges in one layer. */
typedef struct Traffic {
    int64_t sent, inside, outside, self;
} Traffic;

/* The busiest rank's traffic: rows it keeps, and rows that it sends or receives, whichever is more. */
static Traffic busiest_traffic(const Lowering *lowering, int table, int64_t per_domain)
{
    const Plan *plan = lowering->plan;
    int64_t slots = plan->seq_len * plan->micro_batch * plan->model->top_k;
    Traffic busiest = {.sent = slots};
    if (lowering->routing == NULL) {
        busiest.self = slots / plan->ep;
        busiest.inside = slots / plan->ep * (per_domain - 1);
        busiest.outside = slots - busiest.self - busiest.inside;
        return busiest;
    }
    for (int64_t r = 0; r < plan->ep; r++) {
        int64_t moved[2][2] = {{0, 0}, {0, 0}}; /* [sent, received][inside, outside the domain] */
        for (int64_t peer = 0; peer < plan->ep; peer++) {
            gboolean outside = peer / per_domain != r / per_domain;
            moved[0][outside] += peer != r ? routing_send_rows(lowering->routing, table, r, peer) : 0;
            moved[1][outside] += peer != r ? routing_send_rows(lowering->routing, table, peer, r) : 0;
        }
        busiest.inside = MAX(busiest.inside, MAX(moved[0][0], moved[1][0]));
        busiest.outside = MAX(busiest.outside, MAX(moved[0][1], moved[1][1]));
        busiest.self = MAX(busiest.self, routing_send_rows(lowering->routing, table, r, r));
    }
    return busiest;
}

/* Time of the exchanges of one layer: the busiest rank's, as all wait for it. */
static AllToAll price_exchange(const Lowering *lowering, int table)
{
    const Plan *plan = lowering->plan;
    const Model *model = plan->model;
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    AllToAll exchange = {0};
    Traffic traffic = busiest_traffic(lowering, table, group.per_domain);
    int64_t row = dtype_bytes(plan->compute, model->latent_width > 0 ? model->latent_width : model->hidden);
    exchange.bytes = traffic.sent * row;
    exchange.rows_ns = coll_all_to_all_ns(plan->cluster, &group, traffic.inside * row, traffic.outside * row, traffic.self * row,
                                          &exchange.evidence);
    exchange.counts_ns = coll_ns(plan->cluster, COLL_all_to_all, &group, model->n_experts * 8, NULL);
    return exchange;
}

static void count_rows(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    const Model *model = plan->model;
    int64_t tokens = plan->seq_len * plan->micro_batch;
    RowCounts base = {.seq_len = plan->seq_len};
    base.rows[ROWS_ONE] = 1;
    base.rows[ROWS_TOKENS] = tokens;
    base.rows[ROWS_SLOTS] = base.rows[ROWS_RECEIVED] = tokens * model->top_k;
    base.rows[ROWS_EXPERTS] = model->n_experts;
    base.rows[ROWS_LOCAL_EXPERTS] = model->n_experts / plan->ep;
    base.rows[ROWS_PAIRS] = tokens * plan->seq_len;
    base.rows[ROWS_SEQUENCES] = plan->micro_batch;
    lowering->rows = g_new0(RowCounts, model->n_layers);
    lowering->exchanges = g_new0(AllToAll, model->n_layers);
    lowering->loads = g_new0(gint32, model->n_layers);
    int64_t moe_layer = 0;
    for (int64_t i = 0; i < model->n_layers; i++) {
        lowering->rows[i] = base;
        if (model->layers[i].ffn != FFN_MOE) {
            continue;
        }
        if (lowering->routing != NULL) {
            RoutingRows rows;
            lowering->loads[i] = routing_table(lowering->routing, moe_layer);
            routing_rows(lowering->routing, lowering->loads[i], lowering->ep_rank, &rows);
            lowering->rows[i].local_expert_rows = rows.local_expert_rows;
            lowering->rows[i].rows[ROWS_RECEIVED] = rows.n_received;
            lowering->rows[i].rows[ROWS_SLOTS] = rows.n_sent;
        }
        if (plan->ep > 1) {
            lowering->exchanges[i] = price_exchange(lowering, lowering->loads[i]);
        }
        moe_layer++;
    }
}

static int find_segment(const Lowering *lowering, const SegmentKey *key)
{
    for (guint i = 0; i < lowering->cache->len; i++) {
        const CachedSegment *cached = &g_array_index(lowering->cache, CachedSegment, i);
        if (memcmp(&cached->key, key, sizeof *key) == 0) {
            return cached->segment;
        }
    }
    return -1;
}

/* Starts a segment for a key; the emitter then writes into it. */
static int start_segment(Lowering *lowering, const SegmentKey *key, const char *name, const Graph *graph)
{
    int segment = program_add_segment(lowering->program, name, graph);
    if (key != NULL) {
        CachedSegment cached = {*key, segment};
        g_array_append_val(lowering->cache, cached);
    }
    lowering->emitter.segment = program_segment(lowering->program, segment);
    return segment;
}

static Call *add_call(Lowering *lowering, int segment, int64_t layer, int64_t micro_batch)
{
    Call call = {.segment = segment, .layer = (gint32)layer, .micro_batch = (gint32)micro_batch};
    g_array_append_val(lowering->program->calls, call);
    return &g_array_index(lowering->program->calls, Call, lowering->program->calls->len - 1);
}

static void call_group(Call *call, int arg, const GroupSite *site)
{
    call->args[arg] = site->buffer;
    call->args[arg + 1] = site->token;
}

static gint32 boundary_buffer(const Lowering *lowering, int64_t value)
{
    return lowering->boundary + (gint32)(value * N_BOUNDARY);
}

/*
 * Boundary values that layer i reads (n_layers: the head): without attention residuals the one before it; with them the
 * value at the start of every block so far, then the running prefix. Value 0 is the embedding, value i + 1 layer i's
 * output.
 */
static int layer_sources(const Lowering *lowering, int64_t layer, int64_t *ret_values)
{
    int64_t block = lowering->plan->model->attnres_block;
    int n = 0;
    for (int64_t start = 0; block > 0 && start < layer; start += block) {
        ret_values[n++] = start;
    }
    ret_values[n++] = layer;
    return n;
}

static void call_sources(const Lowering *lowering, Call *call, const Graph *graph, int64_t layer)
{
    int64_t values[CALL_ARGS_MAX];
    int n = layer_sources(lowering, layer, values), source = 0;
    for (guint i = 0; i < graph->inputs->len; i++) {
        const GraphTensor *input = graph_tensor(graph, g_array_index(graph->inputs, int, i));
        gboolean is_data = input->dtype == DTYPE_INT64;
        g_assert(is_data || source < n);
        call->args[ARG_SOURCES + i] = is_data ? lowering->inputs : boundary_buffer(lowering, values[source++]);
    }
}

/* Input of the graph that dies in its backward: the last boundary value it reads. */
static int dying_source(const Graph *graph)
{
    int last = -1;
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (graph_tensor(graph, g_array_index(graph->inputs, int, i))->dtype != DTYPE_INT64) {
            last = (int)i;
        }
    }
    return last;
}

static LayerPass base_pass(Lowering *lowering, const Graph *graph, const RowCounts *rows)
{
    return (LayerPass){.emitter = &lowering->emitter,
                       .graph = graph,
                       .rows = rows,
                       .keep = lowering->plan->keep,
                       .free_flat = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT,
                       .reshard = lowering->plan->reshard_after_forward,
                       .first_micro_batch = TRUE,
                       .dying_source = -1,
                       .last_flat = -1,
                       .cut_tensor = -1};
}

/* Rows of one chunk of the loss. */
static RowCounts chunk_rows(const Lowering *lowering, int64_t n_tokens)
{
    RowCounts rows = lowering->rows[0];
    rows.rows[ROWS_TOKENS] = n_tokens;
    return rows;
}

/* The operator at which a chunked loss starts: the one that reads the head's matrix. */
static int find_cut(const Graph *head, int *ret_tensor)
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

static int64_t n_chunks(const Lowering *lowering)
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

/* Buffers that loss chunks share, from the base in argument ARG_EXPERTS: gradient of the normed stream being summed, one
 * chunk's part of it, then a sum and its successor per parameter. */
enum { CHUNK_SUM_X, CHUNK_FULL_X, CHUNK_PARAMS };

static void start_program(Lowering *lowering, gint32 *frames, gint32 *head_frame, gint32 *embedding_frame)
{
    const ModelGraph *graphs = lowering->graphs;
    lowering->program->n_tokens = N_GLOBAL_TOKENS;
    lowering->inputs = take_buffers(lowering, 1);
    lowering->boundary = take_buffers(lowering, (int)(graphs->n_layers + 1) * N_BOUNDARY);
    place_ends(lowering);
    place_layers(lowering);
    count_rows(lowering);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        frames[i] = take_buffers(lowering, layer_frame_buffers(layer_graph(lowering, i)));
    }
    lowering->losses = take_buffers(lowering, (int)n_chunks(lowering) * N_BOUNDARY);
    lowering->chunk_sums = take_buffers(lowering, CHUNK_PARAMS + 2 * (int)graphs->head->params->len);
    *head_frame = take_buffers(lowering, layer_frame_buffers(graphs->head));
    *embedding_frame = take_buffers(lowering, layer_frame_buffers(graphs->embedding));
}

/* Everything that a micro-batch needs to know. */
typedef struct StepState {
    Lowering *lowering;
    gint32 *frames;
    gint32 head_frame, embedding_frame;
    int64_t micro_batch;
    const GroupSite *last_flat;   /* group whose flat buffer is still alive (implicit prefetch) */
    const GroupSite *last_reduce; /* group whose reduce buffer is pending */
    const GroupSite *ahead;       /* group gathered ahead */
} StepState;

static void gather_root(StepState *state)
{
    Lowering *lowering = state->lowering;
    Emitter *emitter = &lowering->emitter;
    int segment = start_segment(lowering, NULL, "gather of the root group", NULL);
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    fsdp_unshard(emitter, lowering->root.group, ARG_GROUP, ARG_GROUP_TOKEN);
    fsdp_wait(emitter, lowering->root.group, ARG_GROUP, ARG_GROUP_TOKEN, FALSE, -1);
    call_group(add_call(lowering, segment, -1, state->micro_batch), ARG_GROUP, &lowering->root);
    state->last_flat = &lowering->root;
}

static void forward_embedding(StepState *state)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = lowering->graphs->embedding;
    int segment = start_segment(lowering, NULL, "embedding", graph);
    LayerPass pass = base_pass(lowering, graph, &lowering->rows[0]);
    layer_forward(&pass, SAVE_ALL);
    Call *call = add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->embedding_frame;
    call->args[ARG_SOURCES] = lowering->inputs;
    call->args[ARG_OUTPUT] = boundary_buffer(lowering, 0);
}

static int forward_segment(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = layer_graph(lowering, layer);
    const GroupSite *site = &lowering->layers[layer];
    gboolean explicit_prefetch = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT;
    gboolean gathers_next = explicit_prefetch && layer + 1 < lowering->graphs->n_layers;
    SegmentKey key = {.what = SEGMENT_FORWARD,
                      .kind = lowering->graphs->layer_kind[layer],
                      .loads = lowering->loads[layer],
                      .has_last_flat = state->last_flat != NULL,
                      .first_micro_batch = state->ahead == site,
                      .next = gathers_next ? lowering->layers[layer + 1].kind : -1};
    int segment = find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    g_autofree char *name = g_strdup_printf("forward of layer kind %d", key.kind);
    segment = start_segment(lowering, &key, name, graph);
    Emitter *emitter = &lowering->emitter;
    LayerPass pass = base_pass(lowering, graph, &lowering->rows[layer]);
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    if (state->ahead != site) {
        fsdp_unshard(emitter, site->group, ARG_GROUP, ARG_GROUP_TOKEN);
    }
    fsdp_wait(emitter, site->group, ARG_GROUP, ARG_GROUP_TOKEN, explicit_prefetch,
              state->last_flat != NULL ? ARG_LAST_FLAT : -1);
    if (gathers_next) {
        fsdp_unshard(emitter, lowering->layers[layer + 1].group, ARG_NEXT, ARG_NEXT_TOKEN);
    }
    pass.experts = lowering->experts[layer].group;
    pass.exchange = lowering->exchanges[layer];
    layer_forward(&pass, lowering->mode);
    if (pass.reshard) {
        fsdp_reshard(emitter, site->group, ARG_GROUP);
    }
    return segment;
}

static void forward_layer(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    gboolean explicit_prefetch = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT;
    gboolean gathers_next = explicit_prefetch && layer + 1 < lowering->graphs->n_layers;
    int segment = forward_segment(state, layer);
    Call *call = add_call(lowering, segment, layer, state->micro_batch);
    call->frame = state->frames[layer];
    call_group(call, ARG_GROUP, &lowering->layers[layer]);
    call_group(call, ARG_EXPERTS, &lowering->experts[layer]);
    if (gathers_next) {
        call_group(call, ARG_NEXT, &lowering->layers[layer + 1]);
    }
    if (state->last_flat != NULL) {
        call->args[ARG_LAST_FLAT] = state->last_flat->buffer;
    }
    call->args[ARG_OUTPUT] = boundary_buffer(lowering, layer + 1);
    call_sources(lowering, call, layer_graph(lowering, layer), layer);
    state->last_flat = explicit_prefetch ? NULL : &lowering->layers[layer];
    state->ahead = gathers_next ? &lowering->layers[layer + 1] : NULL;
}

static Call *add_head_call(StepState *state, int segment, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    Call *call = add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->head_frame;
    call_group(call, ARG_GROUP, &lowering->head);
    call->args[ARG_OUTPUT] = lowering->losses + (gint32)chunk * N_BOUNDARY;
    call_sources(lowering, call, lowering->graphs->head, lowering->graphs->n_layers);
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

static void add_chunk_call(StepState *state, int segment, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    Call *call = add_head_call(state, segment, chunk);
    call->args[ARG_EXPERTS] = lowering->chunk_sums;
}

/* A loss chunk's own tensors are checkpointed, so one frame serves all chunks in turn; each has its own loss. */
static void forward_chunk(StepState *state, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    int64_t tokens = chunk_tokens(lowering, chunk);
    SegmentKey key = {.what = SEGMENT_CHUNK_FORWARD, .rows = (gint32)tokens};
    int segment = find_segment(lowering, &key);
    if (segment < 0) {
        RowCounts rows = chunk_rows(lowering, tokens);
        segment = start_segment(lowering, &key, "loss chunk", lowering->graphs->head);
        LayerPass pass = base_pass(lowering, lowering->graphs->head, &rows);
        pass.first_op = lowering->cut;
        layer_forward(&pass, SAVE_NONE);
    }
    add_chunk_call(state, segment, chunk);
}

static void forward_head(StepState *state)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    Emitter *emitter = &lowering->emitter;
    int segment = start_segment(lowering, NULL, "head", head);
    LayerPass pass = base_pass(lowering, head, &lowering->rows[0]);
    emitter->phase = PHASE_FORWARD;
    emitter->is_backward = FALSE;
    int last_flat = state->last_flat != NULL ? ARG_LAST_FLAT : -1;
    if (lowering->head.group != NULL) {
        fsdp_unshard(emitter, lowering->head.group, ARG_GROUP, ARG_GROUP_TOKEN);
        fsdp_wait(emitter, lowering->head.group, ARG_GROUP, ARG_GROUP_TOKEN, TRUE, last_flat);
    } else if (last_flat >= 0) {
        emit_free(emitter, (Place){ARG_LAST_FLAT, FSDP_FLAT});
    }
    pass.end_op = lowering->cut;
    if (lowering->cut >= 0) {
        find_cut(head, &pass.cut_tensor);
    }
    layer_forward(&pass, SAVE_ALL);
    Call *call = add_head_call(state, segment, 0);
    if (last_flat >= 0) {
        call->args[ARG_LAST_FLAT] = state->last_flat->buffer;
    }
    state->last_flat = NULL;
}

/* Ends the forward pass: everything is issued, activations for backward are alive. */
static void mark(Lowering *lowering, Phase phase, int64_t micro_batch)
{
    int segment = start_segment(lowering, NULL, program_phase_name(phase), NULL);
    lowering->emitter.phase = phase;
    emit(&lowering->emitter, INSTR_MARK, STREAM_COMPUTE);
    add_call(lowering, segment, -1, micro_batch);
}

static void start_loss_grad(Emitter *emitter)
{
    emitter->phase = PHASE_BACKWARD;
    emitter->is_backward = TRUE;
    emit_alloc(emitter, STREAM_COMPUTE, (Place){ARG_OUTPUT, BOUNDARY_GRAD}, 4, MEM_ACTIVATIONS);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, 0, 4, 1, LABEL_LOSS_CHUNK);
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
    find_cut(head, &tensor);
    const GraphTensor *info = graph_tensor(head, tensor);
    int64_t whole = graph_tensor_bytes(info, &lowering->rows[0]), part = dtype_bytes(info->dtype, tokens * info->width);
    Place full = {ARG_EXPERTS, CHUNK_FULL_X}, sum = {ARG_EXPERTS, CHUNK_SUM_X};
    if (!info->needs_grad) {
        return;
    }
    emit_alloc(emitter, STREAM_COMPUTE, full, whole, MEM_ACTIVATIONS);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, 0, whole, 1, LABEL_LOSS_CHUNK);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, part, part, 1, LABEL_LOSS_CHUNK);
    emit_free(emitter, layer_cut_grad(head));
    if (first) {
        emit_move(emitter, full, sum);
    } else {
        emit_bytes(emitter, STREAM_COMPUTE, WORK_ELEMENTWISE, 2 * whole, whole, 1, LABEL_LOSS_CHUNK);
        emit_free(emitter, full);
    }
}

static void backward_chunk(StepState *state, int64_t chunk)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    int64_t tokens = chunk_tokens(lowering, chunk);
    gboolean first = chunk == n_chunks(lowering) - 1;
    SegmentKey key = {.what = SEGMENT_CHUNK_BACKWARD, .rows = (gint32)tokens, .first_micro_batch = first};
    int segment = find_segment(lowering, &key);
    if (segment < 0) {
        RowCounts rows = chunk_rows(lowering, tokens);
        g_autofree Place *grads = g_new0(Place, head->params->len + 1);
        segment = start_segment(lowering, &key, "backward of a loss chunk", head);
        LayerPass pass = base_pass(lowering, head, &rows);
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

/* Places of a group's gradients, in its order, when they lie in the frames of the embedding and the head. */
static void end_grads(const Lowering *lowering, const FsdpGroup *group, int head_arg, Place *ret_grads)
{
    int64_t n = 0;
    for (guint i = 0; i < group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
        if (fsdp_has_grad(graph_param(entry->graph, entry->param))) {
            ret_grads[n] = layer_param_grad(entry->graph, entry->param);
            ret_grads[n].arg = entry->graph == lowering->graphs->head ? head_arg : ARG_FRAME;
            n++;
        }
    }
}

static void backward_head(StepState *state)
{
    Lowering *lowering = state->lowering;
    const Graph *head = lowering->graphs->head;
    Emitter *emitter = &lowering->emitter;
    const GroupSite *last_layer = &lowering->layers[lowering->graphs->n_layers - 1];
    g_autofree Place *grads = g_new0(Place, head->params->len + 1);
    for (int64_t chunk = n_chunks(lowering) - 1; lowering->cut >= 0 && chunk >= 0; chunk--) {
        backward_chunk(state, chunk);
    }
    int segment = start_segment(lowering, NULL, "backward of the head", head);
    LayerPass pass = base_pass(lowering, head, &lowering->rows[0]);
    pass.end_op = lowering->cut > 0 ? lowering->cut : 0;
    pass.next = pass.reshard ? last_layer->group : NULL;
    pass.dying_source = dying_source(head);
    int cut_tensor = -1;
    if (lowering->cut >= 0) {
        find_cut(head, &cut_tensor);
        pass.cut_tensor = cut_tensor;
        finish_chunks(lowering, cut_tensor);
    } else {
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
        end_grads(lowering, lowering->head.group, ARG_FRAME, own);
        fsdp_reshard(emitter, lowering->head.group, ARG_GROUP);
        fsdp_reduce(emitter, lowering->head.group, ARG_GROUP, own, -1, state->micro_batch == 0);
        state->last_reduce = lowering->head.group->n_trainable > 0 ? &lowering->head : NULL;
    }
    Call *call = add_head_call(state, segment, 0);
    call->args[ARG_EXPERTS] = lowering->chunk_sums;
    call_group(call, ARG_NEXT, last_layer);
    state->ahead = pass.next != NULL ? last_layer : NULL;
}

/* Sources of a layer whose gradient exists before its backward: rows that later layers have read too. */
static int source_grads(const Lowering *lowering, int64_t layer, gboolean *ret_grads)
{
    const Graph *graph = layer_graph(lowering, layer);
    int64_t block = lowering->plan->model->attnres_block;
    int64_t values[CALL_ARGS_MAX];
    int n = layer_sources(lowering, layer, values), source = 0, mask = 0;
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

static int backward_segment(StepState *state, int64_t layer, const GroupSite *next)
{
    Lowering *lowering = state->lowering;
    const Graph *graph = layer_graph(lowering, layer);
    LayerPass pass = base_pass(lowering, graph, &lowering->rows[layer]);
    SegmentKey key = {.what = SEGMENT_BACKWARD,
                      .kind = lowering->graphs->layer_kind[layer],
                      .loads = lowering->loads[layer],
                      .reduce_pending = state->last_reduce != NULL,
                      .dying_source = dying_source(graph),
                      .first_micro_batch = state->micro_batch == 0,
                      .grads_mask = source_grads(lowering, layer, pass.source_grads),
                      .next = next != NULL ? next->kind : -1};
    int segment = find_segment(lowering, &key);
    if (segment >= 0) {
        return segment;
    }
    g_autofree char *name = g_strdup_printf("backward of layer kind %d", key.kind);
    segment = start_segment(lowering, &key, name, graph);
    pass.group = lowering->layers[layer].group;
    pass.experts = lowering->experts[layer].group;
    pass.next = next != NULL ? next->group : NULL;
    pass.exchange = lowering->exchanges[layer];
    pass.first_micro_batch = key.first_micro_batch;
    pass.reduce_pending = key.reduce_pending;
    pass.dying_source = key.dying_source;
    layer_backward(&pass, lowering->mode, NULL);
    return segment;
}

static void backward_layer(StepState *state, int64_t layer)
{
    Lowering *lowering = state->lowering;
    const GroupSite *next = lowering->plan->reshard_after_forward && layer > 0 ? &lowering->layers[layer - 1] : NULL;
    int segment = backward_segment(state, layer, next);
    Call *call = add_call(lowering, segment, layer, state->micro_batch);
    call->frame = state->frames[layer];
    call_group(call, ARG_GROUP, &lowering->layers[layer]);
    call_group(call, ARG_EXPERTS, &lowering->experts[layer]);
    if (next != NULL) {
        call_group(call, ARG_NEXT, next);
    }
    if (state->last_reduce != NULL) {
        call->args[ARG_LAST_REDUCE] = state->last_reduce->buffer;
    }
    call->args[ARG_OUTPUT] = boundary_buffer(lowering, layer + 1);
    call_sources(lowering, call, layer_graph(lowering, layer), layer);
    for (int i = 0; i < 2; i++) {
        const GroupSite *site = i == 0 ? &lowering->experts[layer] : &lowering->layers[layer];
        if (site->group != NULL && site->group->n_trainable > 0) {
            state->last_reduce = site;
        }
    }
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
    int segment = start_segment(lowering, NULL, "backward of the embedding", graph);
    gboolean layer_needs = graph_tensor(layer_graph(lowering, 0),
                                        g_array_index(layer_graph(lowering, 0)->inputs, int, dying_source(layer_graph(lowering, 0))))
                               ->needs_grad;
    emitter->phase = PHASE_BACKWARD;
    emitter->is_backward = TRUE;
    if (graph_tensor(graph, g_array_index(graph->outputs, int, 0))->needs_grad) {
        LayerPass pass = base_pass(lowering, graph, &lowering->rows[0]);
        layer_backward(&pass, SAVE_ALL, unused);
    } else if (layer_needs) {
        emit_free(emitter, (Place){ARG_OUTPUT, BOUNDARY_GRAD});
    }
    int last_reduce = state->last_reduce != NULL ? ARG_LAST_REDUCE : -1;
    fsdp_reshard(emitter, root, ARG_GROUP);
    end_grads(lowering, root, ARG_EXPERTS, grads);
    fsdp_reduce(emitter, root, ARG_GROUP, grads, last_reduce, state->micro_batch == 0);
    if (root->n_trainable > 0) {
        last_reduce = ARG_GROUP;
    }
    if (last_reduce >= 0) {
        fsdp_release_reduce(emitter, last_reduce);
    }
    Call *call = add_call(lowering, segment, -1, state->micro_batch);
    call->frame = state->embedding_frame;
    call_group(call, ARG_GROUP, &lowering->root);
    call->args[ARG_EXPERTS] = state->head_frame;
    call->args[ARG_LAST_REDUCE] = state->last_reduce != NULL ? state->last_reduce->buffer : -1;
    call->args[ARG_SOURCES] = lowering->inputs;
    call->args[ARG_OUTPUT] = boundary_buffer(lowering, 0);
    state->last_reduce = NULL;
}

static void lower_micro_batch(StepState *state)
{
    Lowering *lowering = state->lowering;
    int64_t n_layers = lowering->graphs->n_layers;
    gather_root(state);
    forward_embedding(state);
    for (int64_t i = 0; i < n_layers; i++) {
        forward_layer(state, i);
    }
    forward_head(state);
    for (int64_t chunk = 0; lowering->cut >= 0 && chunk < n_chunks(lowering); chunk++) {
        forward_chunk(state, chunk);
    }
    mark(lowering, PHASE_FORWARD, state->micro_batch);
    backward_head(state);
    for (int64_t i = n_layers - 1; i >= 0; i--) {
        backward_layer(state, i);
    }
    backward_embedding(state);
    mark(lowering, PHASE_BACKWARD, state->micro_batch);
}

/* Every group, root first, then layers with their experts, then the head: the order of the parameters. */
static void each_group(Lowering *lowering, void (*visit)(Lowering *lowering, const GroupSite *site, void *data), void *data)
{
    visit(lowering, &lowering->root, data);
    for (int64_t i = 0; i < lowering->graphs->n_layers; i++) {
        visit(lowering, &lowering->layers[i], data);
        if (lowering->experts[i].group != NULL) {
            visit(lowering, &lowering->experts[i], data);
        }
    }
    if (lowering->head.group != NULL) {
        visit(lowering, &lowering->head, data);
    }
}

static OptimPiece optim_piece(const Plan *plan, const GraphParam *param)
{
    return (OptimPiece){.numel = fsdp_shard_numel(plan, param), .param = plan->parameters};
}

static void collect_pieces(Lowering *lowering, const GroupSite *site, void *data)
{
    GArray *pieces = data;
    for (guint i = 0; i < site->group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(site->group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        if (fsdp_has_grad(param)) {
            OptimPiece piece = optim_piece(lowering->plan, param);
            g_array_append_val(pieces, piece);
        }
    }
}

static void free_shard_grads(Lowering *lowering, const GroupSite *site, void *data)
{
    (void)data;
    if (site->group->n_trainable == 0) {
        return;
    }
    int segment = start_segment(lowering, NULL, "gradients freed", NULL);
    emit_free(&lowering->emitter, (Place){ARG_GROUP, FSDP_GRAD});
    call_group(add_call(lowering, segment, -1, 0), ARG_GROUP, site);
}

static void lower_optimizer(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    const OptimClass *class = optim_class(OPTIM_adamw);
    g_autoptr(GArray) pieces = g_array_new(FALSE, TRUE, sizeof(OptimPiece));
    g_autoptr(GArray) works = g_array_new(FALSE, TRUE, sizeof(Work));
    each_group(lowering, collect_pieces, pieces);
    class->cost((const OptimPiece *)(void *)pieces->data, (int)pieces->len, plan->moments, works);
    int segment = start_segment(lowering, NULL, "optimizer", NULL);
    Emitter *emitter = &lowering->emitter;
    emitter->phase = PHASE_OPTIMIZER;
    emitter->is_backward = FALSE;
    for (guint i = 0; i < works->len; i++) {
        emit_work(emitter, STREAM_COMPUTE, &g_array_index(works, Work, i), LABEL_OPTIMIZER, -1);
    }
    emit(emitter, INSTR_MARK, STREAM_COMPUTE);
    add_call(lowering, segment, -1, 0);
    each_group(lowering, free_shard_grads, NULL);
}

static void add_static(Lowering *lowering, const GroupSite *site, void *data)
{
    const Plan *plan = lowering->plan;
    int64_t *bytes = lowering->program->static_bytes;
    (void)data;
    bytes[MEM_PARAMETERS] += dtype_bytes(plan->parameters, site->group->shard_numel);
    for (guint i = 0; i < site->group->params->len; i++) {
        const FsdpParam *entry = &g_array_index(site->group->params, FsdpParam, i);
        const GraphParam *param = graph_param(entry->graph, entry->param);
        if (fsdp_has_grad(param)) {
            OptimPiece piece = optim_piece(plan, param);
            bytes[MEM_OPTIMIZER] += optim_class(OPTIM_adamw)->state_bytes(&piece, plan->moments);
        }
    }
}

static void add_buffers(int64_t *ret_bytes, const Graph *graph)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (param->role == PARAM_BUFFER) {
            *ret_bytes += dtype_bytes(DTYPE_FP32, graph_param_numel(param));
        }
    }
}

static void count_static(Lowering *lowering)
{
    const Plan *plan = lowering->plan;
    int64_t *bytes = lowering->program->static_bytes;
    each_group(lowering, add_static, NULL);
    for (int64_t i = 0; i < lowering->graphs->n_layers; i++) {
        add_buffers(&bytes[MEM_PARAMETERS], layer_graph(lowering, i));
    }
    /* library workspace, and token ids and labels as 64-bit integers */
    bytes[MEM_WORKSPACE] = plan->cluster->device->workspace_bytes + plan->seq_len * plan->micro_batch * 2 * 8;
}

int64_t lower_static_bytes(const Program *program)
{
    int64_t sum = 0;
    for (int i = 0; i < N_MEM_TAGS; i++) {
        sum += program->static_bytes[i];
    }
    return sum;
}

static SaveMode save_mode(const Plan *plan)
{
    static const SaveMode modes[] = {
        [PLAN_RECOMPUTE_NONE] = SAVE_ALL, [PLAN_RECOMPUTE_FULL] = SAVE_NONE, [PLAN_RECOMPUTE_SELECTIVE] = SAVE_SELECTED};
    return modes[plan->recompute];
}

static void lowering_clear(Lowering *lowering)
{
    g_ptr_array_unref(lowering->geometries);
    g_array_unref(lowering->cache);
    g_free(lowering->layers);
    g_free(lowering->experts);
    g_free(lowering->rows);
    g_free(lowering->exchanges);
    g_free(lowering->loads);
}

static void free_group(void *group)
{
    fsdp_group_free(group);
}

Program *lower_plan(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    Lowering lowering = {.plan = plan, .graphs = graphs, .routing = routing, .ep_rank = ep_rank, .cut = -1};
    g_autofree gint32 *frames = g_new0(gint32, graphs->n_layers);
    StepState state = {.lowering = &lowering, .frames = frames};
    int cut_tensor;
    lowering.program = program_new();
    lowering.emitter = (Emitter){.plan = plan, .device = plan->cluster->device, .regime = TIMING_BURST};
    lowering.geometries = g_ptr_array_new_with_free_func(free_group);
    lowering.cache = g_array_new(FALSE, TRUE, sizeof(CachedSegment));
    lowering.mode = save_mode(plan);
    start_program(&lowering, frames, &state.head_frame, &state.embedding_frame);
    if (plan->seq_chunk > 0) {
        lowering.cut = find_cut(graphs->head, &cut_tensor);
    }
    for (state.micro_batch = 0; state.micro_batch < plan->n_micro_batches; state.micro_batch++) {
        lower_micro_batch(&state);
    }
    lower_optimizer(&lowering);
    count_static(&lowering);
    lowering_clear(&lowering);
    return lowering.program;
}
