/*
 * Mixture of experts: router, permutation, exchange between expert-parallel ranks, grouped GEMMs and the way back;
 * experts may read a latent of the hidden state; shared experts run after the routed ones and are added.
 *
 * Overlapped chunks. The tokens behind the router are cut into chunks of consecutive tokens (Tutel's and FasterMoE's pipelining;
 * by tokens and not by experts, so that every exchange keeps all ranks and links busy, and every expert's weights are read once a
 * chunk). A chunk has its own permutation, exchanges and grouped GEMMs, whose rows are its own: small ones are less efficient. The
 * order of the operators is that of a pipeline one chunk deep: the rows of chunk i + 1 leave before the experts of chunk i run,
 * its results come back while those of chunk i + 1 do (workloads/lower/walk.h); backward is the same in reverse, and the
 * gradients of the experts' weights add up over the chunks.
 */
#include "models/block.h"

#include "models/op-name.h"
#include "models/ops/combine.h"
#include "models/ops/dispatch.h"
#include "models/ops/expert-bias.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/linear.h"
#include "models/ops/permute.h"
#include "models/ops/residual-add.h"
#include "models/ops/route-chunks.h"
#include "models/ops/router-counts.h"
#include "models/ops/router-loss.h"
#include "models/ops/router.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/token-combine.h"
#include "models/ops/token-dispatch.h"
#include "models/ops/token-join.h"
#include "models/ops/token-split.h"
#include "models/ops/unpermute.h"

/* Experts and their copies, each with a place of its own. */
static int64_t expert_slots(const Model *model, const BlockOptions *options)
{
    return options->expert_slots > 0 ? options->expert_slots : model->n_experts;
}

/* The A step of an adapter of all experts: a matrix each, or one for all of them. */
static int expert_lora_a(Graph *graph, const Model *model, const BlockOptions *options, const char *name, int x)
{
    if (!options->lora_shared_a) {
        return grouped_gemm_add_adapter(graph, name, x, options->lora_rank, expert_slots(model, options), 1.0);
    }
    int u = linear_add(graph, name, x, options->lora_rank, FALSE);
    GraphParam *a = graph_param(graph, graph_op(graph, graph_n_ops(graph) - 1)->params[0]);
    a->trainable = TRUE;
    a->is_adapter = TRUE;
    return u;
}

/* One matrix of every expert, with its bias and its adapter. */
static int expert_linear(Graph *graph, const Model *model, const BlockOptions *options, const char *name, int x,
                         int64_t out)
{
    int y = grouped_gemm_add(graph, name, x, out, expert_slots(model, options));
    if (model->expert_bias) {
        y = expert_bias_add(graph, op_name(name, "bias").text, y, expert_slots(model, options));
    }
    if (options->lora && options->lora_experts) {
        double scale = options->lora_scale > 0 ? options->lora_scale : 1.0;
        int u = expert_lora_a(graph, model, options, op_name(name, "lora_A").text, x);
        int v = grouped_gemm_add_adapter(graph, op_name(name, "lora_B").text, u, out, expert_slots(model, options), scale);
        y = residual_add(graph, op_name(name, "lora").text, y, v, 1.0);
    }
    return y;
}

static int moe_experts(Graph *graph, const Model *model, const BlockOptions *options, int rows)
{
    int up = -1;
    int gate = expert_linear(graph, model, options, "block_sparse_moe.experts.w1", rows, model->expert_width);
    if (!model->ungated_mlp) {
        up = expert_linear(graph, model, options, "block_sparse_moe.experts.w3", rows, model->expert_width);
    }
    int act = block_activation(graph, model, "block_sparse_moe.experts.act", gate, up);
    return expert_linear(graph, model, options, "block_sparse_moe.experts.w2", act, model_expert_input(model));
}

static int moe_balance_loss(Graph *graph, const BlockOptions *options, const RouterTensors *router, RouterLossAttr attr)
{
    attr.per_sequence = options->aux_scope == BALANCE_SEQUENCE;
    attr.scope_tokens = options->aux_tokens;
    if (options->aux_scope != BALANCE_GLOBAL_BATCH) {
        return router_loss_add(graph, "block_sparse_moe.aux_loss", router->logits, router->sel, &attr);
    }
    RouterCountsAttr counts = {attr.experts, attr.top_k, options->aux_tokens, options->aux_passes};
    attr.n_passes = options->aux_passes;
    return router_loss_add_counted(graph, "block_sparse_moe.aux_loss", router->logits,
                                   router_counts_add(graph, "block_sparse_moe.aux_counts", router->sel, &counts), &attr);
}

static void moe_losses(Graph *graph, const Model *model, const BlockOptions *options, const RouterTensors *router)
{
    RouterLossAttr attr = {
        .kind = ROUTER_LOSS_AUX, .experts = model->n_experts, .top_k = model->top_k, .score = model->router_score};
    if (options->aux_loss > 0) {
        attr.coeff = options->aux_loss;
        graph_add_output(graph, moe_balance_loss(graph, options, router, attr));
    }
    if (options->z_loss > 0) {
        attr.kind = ROUTER_LOSS_Z;
        attr.coeff = options->z_loss;
        graph_add_output(graph, router_loss_add(graph, "block_sparse_moe.z_loss", router->logits, -1, &attr));
    }
}

static RouterTensors moe_route(Graph *graph, const Model *model, const BlockOptions *options, int x)
{
    RouterAttr attr = router_of_model(model);
    attr.capacity = options->capacity;
    attr.capacity_scope = options->capacity_scope;
    attr.adaptive = options->capacity_adaptive;
    attr.padded = options->pad_experts;
    attr.drop = options->drop;
    attr.emit_logits = options->aux_loss > 0 || options->z_loss > 0;
    RouterTensors router = router_add(graph, "block_sparse_moe.gate", x, &attr);
    moe_losses(graph, model, options, &router);
    return router;
}

static int moe_shared(Graph *graph, const Model *model, const BlockOptions *options, int x)
{
    int y = block_mlp(graph, model, options, "block_sparse_moe.shared_experts", x, model->shared_width,
                      options->lora_shared);
    if (model->shared_gate) {
        int gate = block_linear(graph, options, "block_sparse_moe.shared_expert_gate", x, 1, FALSE, FALSE);
        y = sigmoid_gate_add(graph, "block_sparse_moe.shared_expert_gating", y, gate);
    }
    return y;
}

/* The shared experts stand here instead of behind the routed ones: right before the rows travel. */
static void moe_early_shared(Graph *graph, const Model *model, const BlockOptions *options, int x, int *ret_shared)
{
    if (options->early_shared && model->shared_width > 0) {
        *ret_shared = moe_shared(graph, model, options, x);
    }
}

/* What the parts of a layer read: the tokens, those of the experts, where they go; and the shared experts' sum, once made. */
typedef struct MoeTensors {
    int x, z, shared;
    RouterTensors router;
} MoeTensors;

/* A part of the tokens: all of them, or a chunk. What the next steps make of it, in turn. */
typedef struct MoePart {
    int z, weights, order, counts; /* of the part's tokens */
    int slots;                     /* rows to send, where a row is sent for every choice */
    int rows, arrival;             /* what came; arrival: its order, for the way back */
    int sums, sent_order;          /* tokens sent as they are: their weights, slots at this side */
    int y;                         /* results of the experts; then of the part's tokens */
} MoePart;

static gboolean sends_tokens(const Graph *graph, const BlockOptions *options)
{
    return options->token_dispatch && graph->ep_size > 1;
}

/* Slots of the part's choices; tokens that travel as they are need none here. */
static void part_permute(Graph *graph, const BlockOptions *options, MoePart *part)
{
    if (sends_tokens(graph, options)) {
        return;
    }
    part->slots = options->pad_experts ? permute_add_padded(graph, "block_sparse_moe.permute", part->z, part->order, part->counts)
                                       : permute_add(graph, "block_sparse_moe.permute", part->z, part->order);
}

/* Tokens that travel as they are: slots are made, and weighted sums too, at the ranks of the experts. */
static void part_dispatch_tokens(Graph *graph, const Model *model, const BlockOptions *options, MoePart *part)
{
    TokenDispatchAttr attr = {
        .experts = expert_slots(model, options), .ep_size = graph->ep_size, .to_all = options->dispatch_to_all};
    TokenDispatchTensors sent =
        token_dispatch_add(graph, "block_sparse_moe.dispatch", part->z, part->order, part->counts, &attr);
    attr.follows = TRUE;
    part->sums = token_dispatch_add(graph, "block_sparse_moe.dispatch_weights", part->weights, part->order, part->counts, &attr).rows;
    part->sent_order = sent.order;
    part->rows = permute_add(graph, "block_sparse_moe.permute", sent.rows, sent.order);
}

static void part_dispatch(Graph *graph, const Model *model, const BlockOptions *options, MoePart *part)
{
    int64_t n = expert_slots(model, options);
    if (sends_tokens(graph, options)) {
        part_dispatch_tokens(graph, model, options, part);
        return;
    }
    DispatchTensors sent =
        options->pad_experts ? dispatch_add_padded(graph, "block_sparse_moe.dispatch", part->slots, part->counts, n)
                             : dispatch_add(graph, "block_sparse_moe.dispatch", part->slots, part->counts, n);
    part->rows = sent.rows;
    part->arrival = sent.arrival;
}

static void part_combine(Graph *graph, const BlockOptions *options, MoePart *part)
{
    if (sends_tokens(graph, options)) {
        part->y = unpermute_add(graph, "block_sparse_moe.unpermute", part->y, part->sums, part->sent_order);
        part->y = token_combine_add(graph, "block_sparse_moe.combine", part->y, options->dispatch_to_all);
    } else {
        part->y = combine_add(graph, "block_sparse_moe.combine", part->y, part->arrival);
    }
}

/* Results of the slots, summed at the tokens' own rank. */
static void part_unpermute(Graph *graph, const BlockOptions *options, MoePart *part)
{
    if (sends_tokens(graph, options)) {
        return;
    }
    part->y = options->pad_experts ? unpermute_add_padded(graph, "block_sparse_moe.unpermute", part->y, part->weights, part->order, part->counts)
                                   : unpermute_add(graph, "block_sparse_moe.unpermute", part->y, part->weights, part->order);
}

/* From tokens to the experts and back. */
static int moe_routed(Graph *graph, const Model *model, const BlockOptions *options, MoeTensors *t)
{
    MoePart all = {.z = t->z, .weights = t->router.weights, .order = t->router.order, .counts = t->router.counts};
    part_permute(graph, options, &all);
    moe_early_shared(graph, model, options, t->x, &t->shared);
    part_dispatch(graph, model, options, &all);
    all.y = moe_experts(graph, model, options, all.rows);
    part_combine(graph, options, &all);
    part_unpermute(graph, options, &all);
    return all.y;
}

static void cut_parts(Graph *graph, const MoeTensors *t, int n, MoePart *ret_parts)
{
    int order[TOKEN_CHUNKS_MAX], counts[TOKEN_CHUNKS_MAX], z[TOKEN_CHUNKS_MAX], weights[TOKEN_CHUNKS_MAX];
    route_chunks_add(graph, "block_sparse_moe.chunks", t->router.order, t->router.counts, n, order, counts);
    token_split_add(graph, "block_sparse_moe.chunk_weights", t->router.weights, n, weights);
    token_split_add(graph, "block_sparse_moe.chunk_tokens", t->z, n, z);
    for (int c = 0; c < n; c++) {
        ret_parts[c] = (MoePart){.z = z[c], .weights = weights[c], .order = order[c], .counts = counts[c]};
    }
}

/* The same chunk by chunk: chunk i + 1 leaves before the experts of chunk i, and its results come back during those of i + 1. */
static int moe_routed_chunks(Graph *graph, const Model *model, const BlockOptions *options, MoeTensors *t)
{
    int n = (int)options->overlap_chunks, y[TOKEN_CHUNKS_MAX];
    MoePart parts[TOKEN_CHUNKS_MAX];
    cut_parts(graph, t, n, parts);
    for (int c = 0; c < MIN(n, 2); c++) {
        graph->chunk = c + 1;
        part_permute(graph, options, &parts[c]);
    }
    graph->chunk = 0;
    moe_early_shared(graph, model, options, t->x, &t->shared);
    for (int c = 0; c < n; c++) {
        graph->chunk = c + 1;
        part_dispatch(graph, model, options, &parts[c]);
        parts[c].y = moe_experts(graph, model, options, parts[c].rows);
        part_combine(graph, options, &parts[c]);
        if (c + 2 < n) {
            graph->chunk = c + 3;
            part_permute(graph, options, &parts[c + 2]);
        }
        if (c > 0) {
            graph->chunk = c;
            part_unpermute(graph, options, &parts[c - 1]);
        }
    }
    graph->chunk = n;
    part_unpermute(graph, options, &parts[n - 1]);
    graph->chunk = 0;
    for (int c = 0; c < n; c++) {
        y[c] = parts[c].y;
    }
    return token_join_add(graph, "block_sparse_moe.join", y, n);
}

static int moe_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    (void)layer;
    MoeTensors t = {.x = x, .z = x, .shared = -1, .router = moe_route(graph, model, options, x)};
    if (model->latent_width > 0) {
        t.z = block_linear(graph, options, "block_sparse_moe.routed_expert_down_proj", x, model->latent_width, FALSE,
                           options->lora_shared);
    }
    gboolean chunks = options->overlap_chunks > 1 && graph->ep_size > 1;
    int y = chunks ? moe_routed_chunks(graph, model, options, &t) : moe_routed(graph, model, options, &t);
    if (model->latent_norm) {
        y = block_norm(graph, "block_sparse_moe.routed_expert_norm", y, model->latent_width, model->norm_eps, FALSE);
    }
    if (model->latent_width > 0) {
        y = block_linear(graph, options, "block_sparse_moe.routed_expert_up_proj", y, model->hidden, FALSE,
                         options->lora_shared);
    }
    if (model->shared_width > 0) {
        int shared = t.shared >= 0 ? t.shared : moe_shared(graph, model, options, x);
        y = block_add(graph, "block_sparse_moe.shared_add", y, shared);
    }
    return y;
}

extern const BlockClass block_moe_layer;
const BlockClass block_moe_layer = {.title = "mixture of experts", .build = moe_build};
