/*
 * Assembly of a model from its blocks.
 *
 * Attention residuals: a layer reads the rows of the bank and the prefix (its last input). A layer that starts a block
 * moves its incoming prefix into the bank (no copy: the tensor is kept), so its second mix reads all inputs and the
 * attention's result alone; other layers add that result to the prefix. Reference: the block schedule of the
 * Attention Residuals paper.
 */
#include "models/block.h"

#include <string.h>

#include "models/op.h"
#include "models/ops/attnres.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/embedding.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"

/* Sources of a layer: the bank and the prefix. */
enum { SOURCES_MAX = ATTNRES_SOURCES_MAX };

/* What two layers must have in common to share a graph. */
typedef struct LayerKind {
    ModelLayer layer;
    int64_t n_sources;
    gboolean starts_block;
    gboolean first;     /* its attention mix is not there */
    guint32 needs_grad; /* bit i: source i */
} LayerKind;

static const BlockKind mixer_blocks[N_MIXER_KINDS] = {
    [MIXER_GQA] = BLOCK_gqa_layer, [MIXER_MLA] = BLOCK_mla_layer,       [MIXER_KDA] = BLOCK_kda_layer,
    [MIXER_GDN] = BLOCK_gdn_layer, [MIXER_MAMBA2] = BLOCK_mamba2_layer, [MIXER_NONE] = N_BLOCKS,
};
static const BlockKind ffn_blocks[N_FFN_KINDS] = {
    [FFN_DENSE] = BLOCK_dense_mlp, [FFN_MOE] = BLOCK_moe_layer, [FFN_NONE] = N_BLOCKS};

static Graph *graph_start(const BlockOptions *options)
{
    Graph *graph = graph_new(options->compute);
    graph->ep_size = MAX(options->ep_size, 1);
    graph->freeze_base = options->lora;
    return graph;
}

/* Products of hidden weights; adapters are small, and LoRA's quality hangs on them. */
static gboolean takes_fp8(const Graph *graph, const Op *op, int64_t align)
{
    gboolean product = op->kind == OP_linear || op->kind == OP_grouped_gemm;
    const GraphParam *weight = product ? graph_param(graph, op->params[0]) : NULL;
    return product && !weight->is_adapter && weight->dims[weight->n_dims - 2] % align == 0 && weight->dims[weight->n_dims - 1] % align == 0;
}

/* Ends construction: which operators are priced as chains or run in FP8 (a layer's), consumers, gradients. */
static Graph *graph_seal(Graph *graph, const BlockOptions *options, gboolean is_layer)
{
    G_STATIC_ASSERT(N_OPS <= G_N_ELEMENTS(((BlockOptions *)0)->eager));
    for (int i = 0; i < graph_n_ops(graph); i++) {
        Op *op = graph_op(graph, i);
        op->eager = options->eager[op->kind];
        op->fp8 = is_layer && options->fp8_align > 0 && takes_fp8(graph, op, options->fp8_align);
        op->fp8_codes = op->fp8 && options->fp8_codes;
    }
    graph_finish(graph);
    return graph;
}

/* Both sublayers of a layer, with their norms and residuals. */
typedef struct LayerBuild {
    Graph *graph;
    const Model *model;
    const BlockOptions *options;
    const LayerKind *kind;
    int sources[SOURCES_MAX];
    int n_sources;
    int prefix; /* running sum, -1 = none yet */
} LayerBuild;

/* One mix; models without attention residuals read the prefix itself. */
static int layer_input(LayerBuild *build, const char *proj, const char *norm)
{
    if (build->model->attnres_block == 0 || build->n_sources == 1) {
        return build->sources[build->n_sources - 1];
    }
    return attnres_add(build->graph, proj, norm, build->sources, build->n_sources, build->model->norm_eps);
}

/* Adds a sublayer's result to the prefix, or makes it the prefix. */
static void layer_output(LayerBuild *build, const char *name, int y, gboolean starts)
{
    if (starts) {
        build->prefix = y;
        build->sources[build->n_sources++] = y;
    } else {
        build->prefix = block_add(build->graph, name, build->prefix, y);
        build->sources[build->n_sources - 1] = build->prefix;
    }
}

static void layer_sublayer(LayerBuild *build, BlockKind block, gboolean second, const char *norm)
{
    const Model *model = build->model;
    int x = second ? layer_input(build, "mlp_res_proj", "mlp_res_norm")
                   : layer_input(build, "self_attention_res_proj", "self_attention_res_norm");
    int n = block_norm(build->graph, norm, x, model->hidden, model->norm_eps, model->norm_zero_centered);
    int y = block_class(block)->build(build->graph, model, &build->kind->layer, build->options, n);
    layer_output(build, second ? "mlp_add" : "self_attn_add", y, !second && build->kind->starts_block);
}

static Graph *layer_build(const Model *model, const BlockOptions *options, const LayerKind *kind)
{
    Graph *graph = graph_start(options);
    LayerBuild build = {
        .graph = graph, .model = model, .options = options, .kind = kind, .n_sources = (int)kind->n_sources};
    for (int i = 0; i < build.n_sources; i++) {
        gboolean last = i == build.n_sources - 1;
        g_autofree char *name = last ? g_strdup("prefix") : g_strdup_printf("bank.%d", i);
        build.sources[i] =
            graph_add_input(graph, name, ROWS_TOKENS, model->hidden, options->compute, kind->needs_grad >> i & 1u);
    }
    build.prefix = build.sources[build.n_sources - 1];
    if (kind->first && model->attnres_block > 0) { /* in the checkpoint, but there is nothing to mix yet */
        graph_add_param(graph, "self_attention_res_proj.weight", PARAM_VECTOR, 1, model->hidden, 0);
        graph_add_param(graph, "self_attention_res_norm.weight", PARAM_VECTOR, model->hidden, 0, 0);
    }
    graph_add_output(graph, build.prefix); /* its place is the first; the tensor is known at the end */
    if (kind->layer.mixer != MIXER_NONE) {
        layer_sublayer(&build, mixer_blocks[kind->layer.mixer], FALSE, "input_layernorm");
    }
    if (kind->layer.ffn != FFN_NONE) {
        gboolean alone = model->norms_per_layer == 1;
        layer_sublayer(&build, ffn_blocks[kind->layer.ffn], TRUE,
                       alone ? "input_layernorm" : "post_attention_layernorm");
    }
    g_array_index(graph->outputs, int, 0) = build.prefix;
    return graph_seal(graph, options, TRUE);
}

static Graph *embedding_build(const Model *model, const BlockOptions *options)
{
    Graph *graph = graph_start(options);
    g_autofree char *name = g_strconcat(model->prefix, "embed_tokens", NULL);
    int ids = graph_add_input(graph, "token_ids", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, embedding_add(graph, name, ids, model->vocab, model->hidden));
    return graph_seal(graph, options, FALSE);
}

static Graph *vision_build(const Model *model, const BlockOptions *options)
{
    if (model->vision_layers == 0 || options->image_tokens == 0) {
        return NULL;
    }
    Graph *graph = graph_start(options);
    int64_t width = 3 * model->vision_patch * model->vision_patch;
    int pixels = graph_add_input(graph, "pixels", ROWS_PATCHES, width, options->compute, FALSE);
    graph_add_output(graph, block_class(BLOCK_vision_tower)->build(graph, model, NULL, options, pixels));
    return graph_seal(graph, options, FALSE);
}

/* Name of the head: beside the decoder, not inside it. */
static char *head_name(const Model *model)
{
    g_assert(g_str_has_suffix(model->prefix, "model."));
    return g_strdup_printf("%.*slm_head", (int)(strlen(model->prefix) - strlen("model.")), model->prefix);
}

static int head_loss(Graph *graph, const Model *model, const BlockOptions *options, int x, int labels)
{
    CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_SUM};
    g_autofree char *name = head_name(model);
    if (options->chunked_loss_vocab) {
        return head_loss_add(graph, name, x, labels, model->vocab, options->vocab_chunk, &attr);
    }
    guint first = graph->params->len;
    int logits = linear_add(graph, name, x, model->vocab, FALSE);
    graph_param(graph, (int)first)->role = PARAM_HEAD;
    return cross_entropy_add(graph, "loss", logits, labels, &attr);
}

static Graph *head_build(const Model *model, const BlockOptions *options, guint32 needs_grad, int *ret_chunk_op)
{
    Graph *graph = graph_start(options);
    int sources[SOURCES_MAX];
    int n = (int)model_n_sources(model, model->n_layers);
    for (int i = 0; i < n; i++) {
        g_autofree char *name = i == n - 1 ? g_strdup("prefix") : g_strdup_printf("bank.%d", i);
        sources[i] = graph_add_input(graph, name, ROWS_TOKENS, model->hidden, options->compute, needs_grad >> i & 1u);
    }
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    int x = sources[n - 1];
    if (model->attnres_block > 0) {
        g_autofree char *proj = g_strconcat(model->prefix, "output_attn_res_proj", NULL);
        g_autofree char *norm = g_strconcat(model->prefix, "output_attn_res_norm", NULL);
        x = attnres_add(graph, proj, norm, sources, n, model->norm_eps);
    }
    g_autofree char *name = g_strconcat(model->prefix, "norm", NULL);
    x = block_norm(graph, name, x, model->hidden, model->norm_eps, model->norm_zero_centered);
    *ret_chunk_op = graph_n_ops(graph);
    graph_add_output(graph, head_loss(graph, model, options, x, labels));
    return graph_seal(graph, options, FALSE);
}

static gboolean output_needs_grad(const Graph *graph)
{
    return graph_tensor(graph, g_array_index(graph->outputs, int, 0))->needs_grad;
}

/* Index of the kind's graph, built if it is new. */
static int kind_index(ModelGraph *graph, GArray *known, const Model *model, const BlockOptions *options,
                      const LayerKind *kind)
{
    for (guint i = 0; i < known->len; i++) {
        if (memcmp(&g_array_index(known, LayerKind, i), kind, sizeof *kind) == 0) {
            return (int)i;
        }
    }
    g_array_append_val(known, *kind);
    g_ptr_array_add(graph->kinds, layer_build(model, options, kind));
    return (int)known->len - 1;
}

/* Builds the layers; returns which sources of the head need a gradient. */
static guint32 layers_build(ModelGraph *graph, const Model *model, const BlockOptions *options)
{
    g_autoptr(GArray) known = g_array_new(FALSE, FALSE, sizeof(LayerKind));
    guint32 needs = output_needs_grad(graph->embedding) ? 1 : 0;
    for (int64_t i = 0; i < model->n_layers; i++) {
        LayerKind kind;
        memset(&kind, 0, sizeof kind); /* compared byte by byte */
        kind.layer = model->layers[i];
        kind.n_sources = model_n_sources(model, i);
        kind.starts_block = model_starts_block(model, i);
        kind.first = i == 0 && model->attnres_block > 0;
        kind.needs_grad = needs;
        graph->layer_kind[i] = kind_index(graph, known, model, options, &kind);
        guint32 last = 1u << (model_n_sources(model, i + 1) - 1);
        gboolean flows = output_needs_grad(g_ptr_array_index(graph->kinds, graph->layer_kind[i]));
        needs = (needs & ~last) | (flows ? last : 0);
    }
    return needs;
}

ModelGraph *model_graph_new(const Model *model, const BlockOptions *options)
{
    ModelGraph *graph = g_new0(ModelGraph, 1);
    graph->n_layers = model->n_layers;
    graph->tied = model->tied_embeddings;
    graph->kinds = g_ptr_array_new_with_free_func((GDestroyNotify)graph_free);
    graph->layer_kind = g_new0(int, model->n_layers);
    graph->embedding = embedding_build(model, options);
    graph->vision = vision_build(model, options);
    guint32 needs = layers_build(graph, model, options);
    graph->head = head_build(model, options, needs, &graph->head_chunk_op);
    return graph;
}

void model_graph_free(ModelGraph *graph)
{
    if (graph != NULL && graph->is_variant) {
        graph_free(graph->head);
        g_free(graph);
    } else if (graph != NULL) {
        graph_free(graph->embedding);
        graph_free(graph->head);
        graph_free(graph->vision);
        g_ptr_array_unref(graph->kinds);
        g_free(graph->layer_kind);
        g_free(graph);
    }
}

ModelGraph *model_graph_vary(const ModelGraph *graph, int64_t vocab_chunk)
{
    ModelGraph *variant = g_memdup2(graph, sizeof *graph);
    variant->is_variant = TRUE;
    variant->head = graph_vary(graph->head);
    head_loss_set_chunk(variant->head, graph->head_chunk_op, vocab_chunk);
    return variant;
}

size_t model_graph_size_bytes(const ModelGraph *graph)
{
    if (graph->is_variant) {
        return sizeof *graph + graph_size_bytes(graph->head);
    }
    size_t n_bytes = sizeof *graph + (size_t)graph->n_layers * sizeof(int) + graph_size_bytes(graph->embedding) +
                     graph_size_bytes(graph->head) + graph_size_bytes(graph->vision);
    for (guint i = 0; i < graph->kinds->len; i++) {
        n_bytes += graph_size_bytes(g_ptr_array_index(graph->kinds, i));
    }
    return n_bytes;
}

const Graph *model_graph_layer(const ModelGraph *graph, int64_t layer)
{
    g_assert(layer >= 0 && layer < graph->n_layers);
    return g_ptr_array_index(graph->kinds, graph->layer_kind[layer]);
}

int64_t model_graph_n_layers(const ModelGraph *graph, int kind)
{
    int64_t n = 0;
    for (int64_t i = 0; i < graph->n_layers; i++) {
        n += graph->layer_kind[i] == kind;
    }
    return n;
}

char *model_graph_param_name(const Model *model, int64_t layer, const GraphParam *param)
{
    return layer < 0 ? g_strdup(param->name)
                     : g_strdup_printf("%slayers.%" G_GINT64_FORMAT ".%s", model->prefix, layer, param->name);
}

/* Adds up base parameters, or adapters, of a graph; part < 0: by name, for layer i. */
static void count_graph(const Graph *graph, const Model *model, int64_t layer, int part, int64_t *parts)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        if (!param->is_adapter) {
            parts[part >= 0 ? part : (int)param_part_of(model, layer, param->name)] += graph_param_numel(param);
        }
    }
}

static void count_vision(const Graph *graph, int64_t *parts)
{
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        gboolean tower = g_str_has_prefix(param->name, "vision_tower.");
        parts[tower ? PARAM_PART_VISION : PARAM_PART_PROJECTOR] += param->is_adapter ? 0 : graph_param_numel(param);
    }
}

static void count_head(const ModelGraph *graph, int64_t *parts)
{
    for (guint i = 0; i < graph->head->params->len; i++) {
        const GraphParam *param = graph_param(graph->head, (int)i);
        gboolean mix = strstr(param->name, "_attn_res_") != NULL;
        ParamPart part = param->role == PARAM_HEAD ? PARAM_PART_HEAD : mix ? PARAM_PART_ATTNRES : PARAM_PART_NORMS;
        parts[part] += part == PARAM_PART_HEAD && graph->tied ? 0 : graph_param_numel(param);
    }
}

void model_graph_count(const ModelGraph *graph, const Model *model, ParamCounts *ret_counts)
{
    *ret_counts = (ParamCounts){0};
    count_graph(graph->embedding, model, -1, PARAM_PART_EMBEDDING, ret_counts->parts);
    for (int64_t i = 0; i < graph->n_layers; i++) {
        count_graph(model_graph_layer(graph, i), model, i, -1, ret_counts->parts);
    }
    count_head(graph, ret_counts->parts);
    if (graph->vision != NULL) {
        count_vision(graph->vision, ret_counts->parts);
    }
    param_counts_finish(model, ret_counts);
}

int64_t model_graph_count_adapters(const ModelGraph *graph)
{
    int64_t n = 0;
    for (int64_t i = 0; i < graph->n_layers; i++) {
        const Graph *layer = model_graph_layer(graph, i);
        for (guint p = 0; p < layer->params->len; p++) {
            const GraphParam *param = graph_param(layer, (int)p);
            n += param->is_adapter ? graph_param_numel(param) : 0;
        }
    }
    return n;
}
