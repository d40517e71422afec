#include "workloads/run/shrink.h"

#include <string.h>

#include "workloads/lower/cache-fill.h"
#include "workloads/lower/lower.h"

enum { HIDDEN = 24, HEAD = 8, VOCAB = 50, TOKENS = 6, LAYERS_MAX = 6, WIDTH = 20, EP_MAX = 16 };

static int64_t at_most(int64_t value, int64_t bound)
{
    return MIN(value, bound);
}

static gboolean same_layer(const ModelLayer *a, const ModelLayer *b)
{
    return a->mixer == b->mixer && a->ffn == b->ffn && a->has_indexer == b->has_indexer &&
           (a->sliding_window > 0) == (b->sliding_window > 0);
}

/*
 * The shortest beginning with every kind of layer in it and at least two layers; else the first of each kind. ret_from:
 * what each layer was.
 */
static void shrink_layers(Model *model, int64_t *ret_from)
{
    g_autofree int64_t *kinds = g_new0(int64_t, model->n_layers);
    int64_t n = 0, end = 0;
    for (int64_t i = 0; i < model->n_layers; i++) {
        gboolean known = FALSE;
        for (int64_t k = 0; k < n; k++) {
            known = known || same_layer(&model->layers[kinds[k]], &model->layers[i]);
        }
        if (!known) {
            kinds[n++] = i;
            end = i + 1;
        }
    }
    if (end <= LAYERS_MAX) {
        model->n_layers = at_most(model->n_layers, MAX(end, 3));
        for (int64_t i = 0; i < model->n_layers; i++) {
            ret_from[i] = i;
        }
    } else {
        for (int64_t k = 0; k < n; k++) {
            model->layers[k] = model->layers[kinds[k]];
            ret_from[k] = kinds[k];
        }
        model->n_layers = n;
    }
    for (int64_t i = 0; i < model->n_layers; i++) {
        ModelLayer *layer = &model->layers[i];
        layer->ffn_width = at_most(layer->ffn_width, WIDTH);
        layer->sliding_window = at_most(layer->sliding_window, 3);
    }
}

static void shrink_mixers(Model *model)
{
    gboolean grouped = model->n_kv_heads < model->n_heads;
    gboolean whole_rope = model->rotary_dim == model->head_dim;
    model->n_heads = at_most(model->n_heads, 4);
    model->n_kv_heads = at_most(model->n_kv_heads, grouped ? 2 : 4);
    model->head_dim = at_most(model->head_dim, HEAD);
    model->rotary_dim = at_most(model->rotary_dim, whole_rope ? HEAD : HEAD / 2);
    model->q_lora_rank = at_most(model->q_lora_rank, 10);
    model->kv_lora_rank = at_most(model->kv_lora_rank, 10);
    model->nope_dim = at_most(model->nope_dim, HEAD);
    model->rope_dim = at_most(model->rope_dim, 4);
    model->v_dim = at_most(model->v_dim, HEAD);
    model->index_heads = at_most(model->index_heads, 2);
    model->index_dim = at_most(model->index_dim, HEAD);
    model->index_topk = at_most(model->index_topk, 4);
    gboolean more_values = model->lin_value_heads > model->lin_heads;
    model->lin_heads = at_most(model->lin_heads, 2);
    model->lin_value_heads = at_most(model->lin_value_heads, more_values ? 4 : 2);
    model->lin_key_dim = at_most(model->lin_key_dim, HEAD);
    model->lin_value_dim = at_most(model->lin_value_dim, HEAD);
    model->mamba_heads = at_most(model->mamba_heads, 4);
    model->mamba_head_dim = at_most(model->mamba_head_dim, 4);
    model->mamba_groups = at_most(model->mamba_groups, 2);
    model->mamba_state = at_most(model->mamba_state, 4);
}

static void shrink_experts(Model *model, int64_t ep)
{
    if (model->n_experts == 0) {
        return;
    }
    int64_t per_rank = MAX(1, at_most(model->n_experts, MAX(2 * ep, 8)) / ep);
    model->n_experts = per_rank * ep;
    model->top_k = at_most(model->top_k, MAX(1, at_most(3, model->n_experts - 1)));
    if (model->router_groups > 1) {
        model->router_groups = model->n_experts % 4 == 0 ? 4 : 1;
        model->router_topk_groups = at_most(model->router_topk_groups, model->router_groups);
    }
    model->expert_width = at_most(model->expert_width, 12);
    model->shared_width = at_most(model->shared_width, 12);
    model->latent_width = at_most(model->latent_width, 16);
}

static void shrink_ranks(Plan *plan)
{
    gboolean sharded_experts = plan->efsdp > 1;
    while (plan->dp_replicate > 2 && plan->dp_replicate % 2 == 0) {
        plan->dp_replicate /= 2;
    }
    while (plan->dp_replicate * plan->dp_shard > SHRINK_RANKS_MAX && plan->dp_shard % 2 == 0) {
        plan->dp_shard /= 2;
    }
    if (plan->dp_replicate * plan->dp_shard > SHRINK_RANKS_MAX) { /* an odd degree: the largest that EP divides */
        while (plan->ep > EP_MAX) {
            plan->ep /= 2;
        }
        plan->dp_shard = MAX(1, SHRINK_RANKS_MAX / plan->dp_replicate);
        plan->dp_shard -= plan->dp_shard % MIN(plan->ep, plan->dp_shard);
    }
    while (plan->ep > 1 && (plan->dp_shard % plan->ep != 0 || (sharded_experts && plan->dp_shard == plan->ep) || plan->ep > EP_MAX)) {
        plan->ep /= 2;
    }
    plan->efsdp = plan->dp_shard / plan->ep;
    plan->cluster->n_ranks = plan->dp_replicate * plan->dp_shard;
}

/* Sizes that a report names; fields of the plan or of its model. */
static void note_sizes(const Plan *plan, int64_t *ret_sizes)
{
    const Model *model = plan->model;
    const int64_t sizes[] = {
        model->n_layers,  plan->cluster->n_ranks, plan->dp_replicate,    plan->dp_shard,      plan->ep,
        model->n_experts, model->top_k,           model->hidden,         model->expert_width, model->vocab,
        plan->seq_len,    plan->micro_batch,      plan->n_micro_batches, plan->seq_chunk,     plan->vocab_chunk,
        plan->lora_rank};
    memcpy(ret_sizes, sizes, sizeof sizes);
}

static const char *const size_names[] = {"layers",
                                         "ranks",
                                         "replicas",
                                         "FSDP degree",
                                         "EP degree",
                                         "experts",
                                         "active experts",
                                         "hidden width",
                                         "expert width",
                                         "vocabulary",
                                         "tokens of a sequence",
                                         "sequences of a micro-batch",
                                         "micro-batches",
                                         "tokens of a loss chunk",
                                         "columns of a loss chunk",
                                         "LoRA rank"};
enum { N_SIZES = G_N_ELEMENTS(size_names) };

static void shrink_options(Plan *plan)
{
    plan->image_tokens = 0;
    plan->fp8_align = plan->fp8_align > 0; /* reduced sizes are multiples of nothing */
    plan->lora_rank = at_most(plan->lora_rank, 3);
    plan->seq_len = at_most(plan->seq_len, TOKENS);
    plan->micro_batch = at_most(plan->micro_batch, 2);
    plan->n_micro_batches = at_most(plan->n_micro_batches, plan->moe.overlap_micro_batches ? 7 : 3); /* alike ones repeat */
    plan->global_batch = plan->n_micro_batches * plan->micro_batch * plan->cluster->n_ranks;
    plan->seq_chunk = at_most(plan->seq_chunk, 4);
    plan->vocab_chunk = at_most(plan->vocab_chunk, 20);
    gboolean stays = plan->routing == PLAN_ROUTING_ZIPF || plan->routing == PLAN_ROUTING_MEASURED;
    plan->routing = stays ? plan->routing : PLAN_ROUTING_BALANCED;
    plan->routing_replicas = 0;
    plan->moe.overlap_chunks = plan->ep > 1 ? at_most(plan->moe.overlap_chunks, plan->seq_len * plan->micro_batch) : 1;
    /* what has a loss has a coefficient of its own; a rule that needs histograms of scores counts rows here */
    plan->moe.balance = plan_balance_bytes(plan) > 0 ? PLAN_BALANCE_BIAS : PLAN_BALANCE_NONE;
    plan->moe.balance_rate = plan->moe.balance_rate > 0 ? plan->moe.balance_rate : 1e-3;
    plan->moe.balance_steps = at_most(plan->moe.balance_steps, 2);
    plan->moe.redundant_experts = plan->moe.redundant_experts > 0 && plan->ep > 1 ? plan->ep : 0;
    plan->moe.capacity.multiple = at_most(plan->moe.capacity.multiple, 2);
}

/* Measured loads as they were: lists of one layer, or of all MoE layers. */
typedef struct OldLoads {
    int64_t experts, ep;
    int64_t *tables; /* of each layer that stays: MoE layers before what it was */
} OldLoads;

/* Counts of one source: neighbouring experts, and sources, become one. */
static json_t *merge_counts(const json_t *table, const Plan *plan, const OldLoads *old, int64_t source)
{
    gboolean by_source = json_is_array(json_array_get(table, 0));
    int64_t n = plan->model->n_experts, n_sources = by_source ? old->ep : 1, of = by_source ? plan->ep : 1;
    g_autofree double *sums = g_new0(double, n);
    json_t *list = json_array();
    double all = 0;
    for (int64_t s = 0; s < n_sources; s++) {
        const json_t *counts = by_source ? json_array_get(table, (size_t)s) : table;
        for (int64_t e = 0; s * of / n_sources == source && e < old->experts; e++) {
            double count = json_number_value(json_array_get(counts, (size_t)e));
            sums[e * n / old->experts] += count;
            all += count;
        }
    }
    for (int64_t e = 0; e < n; e++) {
        json_array_append_new(list, json_real(all > 0 ? sums[e] : 1));
    }
    return list;
}

static void shrink_loads(Plan *plan, const OldLoads *old)
{
    const json_t *tables = json_doc_root(plan->routing_loads);
    json_t *loads = json_array();
    for (int64_t i = 0; i < plan->model->n_layers; i++) {
        if (plan->model->layers[i].ffn != FFN_MOE) {
            continue;
        }
        const json_t *table = json_array_get(tables, json_array_size(tables) > 1 ? (size_t)old->tables[i] : 0);
        gboolean by_source = json_is_array(json_array_get(table, 0));
        json_t *sources = json_array();
        for (int64_t s = 0; by_source && s < plan->ep; s++) {
            json_array_append_new(sources, merge_counts(table, plan, old, s));
        }
        json_array_append_new(loads, by_source ? json_incref(sources) : merge_counts(table, plan, old, 0));
        json_decref(sources);
    }
    json_doc_free(plan->routing_loads);
    plan->routing_loads = json_doc_from_value(loads, "reduced loads");
    json_decref(loads);
}

/* Bytes of everything that a cache of the plan may hold. */
static double cache_bytes(const Plan *plan)
{
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(GArray) items = cache_items(plan, graphs);
    double sum = 0;
    for (guint i = 0; i < items->len; i++) {
        sum += (double)g_array_index(items, CacheItem, i).bytes;
    }
    return sum;
}

/* Budgets shrink as what they hold, so that as large a part of it fits. */
static void shrink_cache(Plan *plan, double before)
{
    double ratio = before > 0 ? cache_bytes(plan) / before : 1;
    plan->cache_hbm_bytes = (int64_t)((double)plan->cache_hbm_bytes * ratio);
    plan->cache_ddr_bytes = (int64_t)((double)plan->cache_ddr_bytes * ratio);
}

void shrink_plan(Plan *plan, ShrinkReport *ret_report)
{
    Model *model = plan->model;
    double cached = plan->has_cache ? cache_bytes(plan) : 0;
    int64_t tensor = model->hidden * plan->seq_len * plan->micro_batch;
    int64_t before[N_SIZES], after[N_SIZES];
    G_STATIC_ASSERT((int)N_SIZES <= (int)SHRINK_NOTES_MAX);
    note_sizes(plan, before);
    g_autofree int64_t *from = g_new0(int64_t, MAX(model->n_layers, 1)),
                       *tables = g_new0(int64_t, MAX(model->n_layers, 1));
    for (int64_t i = 1; i < model->n_layers; i++) {
        tables[i] = tables[i - 1] + (model->layers[i - 1].ffn == FFN_MOE ? 1 : 0);
    }
    OldLoads old = {model->n_experts, plan->ep, tables};
    shrink_ranks(plan);
    shrink_layers(model, from);
    for (int64_t i = 0; i < model->n_layers; i++) {
        tables[i] = tables[from[i]]; /* from[i] >= i */
    }
    shrink_mixers(model);
    shrink_experts(model, plan->ep);
    model->hidden = at_most(model->hidden, HIDDEN);
    model->vocab = at_most(model->vocab, VOCAB);
    model->tied_embeddings = FALSE;
    model->attnres_block = at_most(model->attnres_block, 2);
    model->vision_layers = 0;
    shrink_options(plan);
    if (plan->routing == PLAN_ROUTING_MEASURED && plan->routing_loads != NULL && model->n_experts > 0) {
        shrink_loads(plan, &old);
    }
    if (plan->has_cache) {
        shrink_cache(plan, cached);
    }
    if (model->hidden * plan->seq_len * plan->micro_batch < tensor) {
        plan->offload_min_bytes = 1;
    }
    note_sizes(plan, after);
    *ret_report = (ShrinkReport){.n = N_SIZES};
    for (int i = 0; i < N_SIZES; i++) {
        ret_report->notes[i] = (ShrinkNote){size_names[i], before[i], after[i]};
    }
}

char *shrink_text(const ShrinkReport *report)
{
    GString *text = g_string_new(NULL);
    for (int i = 0; i < report->n; i++) {
        const ShrinkNote *note = &report->notes[i];
        if (note->from != note->to) {
            g_string_append_printf(text, "%s%s %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, text->len > 0 ? ", " : "", note->what,
                                   note->from, note->to);
        }
    }
    if (text->len == 0) {
        g_string_assign(text, "nothing");
    }
    return g_string_free(text, FALSE);
}
