#include "workloads/plan/plan-check.h"

#include "hw/timing.h"
#include "workloads/plan/routing.h"

/* A step is simulated pass by pass, and the loss chunk by chunk: more of them than this is a slip of the pen. */
enum { LOSS_CHUNKS_MAX = 1 << 13 };

static void check_ranks(Plan *plan, JsonObject *root)
{
    int64_t n_ranks = plan->cluster->n_ranks;
    int64_t others = plan->dp_replicate * plan->tp * plan->cp * plan->pp;
    if (plan->dp_shard < 0) {
        if (n_ranks % others != 0) {
            json_object_fail(root, "parallel.dp_replicate", "%" G_GINT64_FORMAT " does not divide the %" G_GINT64_FORMAT " ranks",
                             plan->dp_replicate, n_ranks);
            return;
        }
        plan->dp_shard = n_ranks / others;
    }
    if (others > n_ranks || plan->dp_shard > n_ranks || plan->dp_shard * others != n_ranks) {
        json_object_fail(root, "parallel",
                         "dp_replicate %" G_GINT64_FORMAT " x dp_shard %" G_GINT64_FORMAT " make %" G_GINT64_FORMAT
                         " ranks, the cluster has %" G_GINT64_FORMAT "; set dp_shard to -1 to fill it",
                         plan->dp_replicate, plan->dp_shard, plan->dp_shard * others, n_ranks);
    }
}

/* Where nothing is sharded, replicas and shards are one thing: ranks that hold the same, and one all-reduce sums over all of them. */
static void merge_replicas(Plan *plan)
{
    if (plan->sharding == PLAN_SHARDING_NONE) {
        plan->dp_shard *= plan->dp_replicate;
        plan->dp_replicate = 1;
    }
}

/* The legal degree nearest to the one asked for: divides both numbers. */
static int64_t nearest_divisor(int64_t wanted, int64_t a, int64_t b)
{
    int64_t best = 1;
    for (int64_t d = 1; d <= a; d++) {
        gboolean nearer = ABS(d - wanted) < ABS(best - wanted);
        if (a % d == 0 && b % d == 0 && nearer) {
            best = d;
        }
    }
    return best;
}

static void check_experts(Plan *plan, JsonObject *root)
{
    int64_t ranks = plan->dp_shard * plan->cp * plan->tp;
    int64_t experts = plan->model->n_experts;
    if (plan->ep > 1 && experts == 0) {
        json_object_fail(root, "parallel.ep", "%" G_GINT64_FORMAT " needs a model with experts; %s has none, use 1", plan->ep,
                         plan->model->name);
        return;
    }
    if (ranks % (plan->ep * plan->etp) != 0) {
        json_object_fail(root, "parallel.ep",
                         "%" G_GINT64_FORMAT " does not divide dp_shard x cp x tp = %" G_GINT64_FORMAT
                         "; the nearest legal ep is %" G_GINT64_FORMAT,
                         plan->ep, ranks, nearest_divisor(plan->ep, ranks, MAX(experts, 1)));
        return;
    }
    if (plan->moe.redundant_experts == 0 && experts % plan->ep != 0) {
        json_object_fail(root, "parallel.ep",
                         "%" G_GINT64_FORMAT " does not divide the model's %" G_GINT64_FORMAT
                         " experts; the nearest legal ep is %" G_GINT64_FORMAT,
                         plan->ep, experts, nearest_divisor(plan->ep, experts, ranks));
        return;
    }
    plan->efsdp = ranks / (plan->ep * plan->etp);
}

static void check_batch(Plan *plan, JsonObject *root)
{
    int64_t replicas = plan->dp_replicate * plan->dp_shard;
    int64_t per_pass = plan->micro_batch * replicas;
    if (plan->global_batch == 0) {
        plan->global_batch = per_pass;
    }
    if (plan->global_batch % per_pass != 0) {
        json_object_fail(root, "workload.global_batch",
                         "%" G_GINT64_FORMAT " is no multiple of micro_batch %" G_GINT64_FORMAT
                         " x data-parallel degree %" G_GINT64_FORMAT " = %" G_GINT64_FORMAT "; the nearest is %" G_GINT64_FORMAT,
                         plan->global_batch, plan->micro_batch, replicas, per_pass,
                         MAX(per_pass, (plan->global_batch + per_pass / 2) / per_pass * per_pass));
        return;
    }
    plan->n_micro_batches = plan->global_batch / per_pass;
    int64_t tokens;
    if (!quantity_mul(plan->seq_len, plan->micro_batch, &tokens) || tokens > (int64_t)1 << 31) {
        json_object_fail(root, "workload", "seq_len x micro_batch exceeds 2^31 tokens per rank; lower one of them");
    }
}

static int64_t n_chunks(int64_t whole, int64_t chunk)
{
    return chunk > 0 ? quantity_div_up(whole, chunk) : 1;
}

static void check_loss(Plan *plan, JsonObject *root)
{
    int64_t n_tokens = n_chunks(plan->seq_len * plan->micro_batch, plan->seq_chunk);
    int64_t n_columns = n_chunks(plan->model->vocab, plan->vocab_chunk);
    if (n_tokens > LOSS_CHUNKS_MAX || n_columns > LOSS_CHUNKS_MAX || n_tokens * n_columns > LOSS_CHUNKS_MAX) {
        json_object_fail(root, "loss",
                         "seq_chunk %" G_GINT64_FORMAT " and vocab_chunk %" G_GINT64_FORMAT " make %" G_GINT64_FORMAT
                         " x %" G_GINT64_FORMAT " chunks; at most %d are simulated: raise them",
                         plan->seq_chunk, plan->vocab_chunk, n_tokens, n_columns, LOSS_CHUNKS_MAX);
    }
}

static void check_routing(Plan *plan, JsonObject *root)
{
    if (plan->routing != PLAN_ROUTING_BALANCED && plan->model->n_experts == 0) {
        json_object_fail(root, "workload.routing", "has no effect: %s has no experts; leave it out", plan->model->name);
    }
    if (plan->routing_loads != NULL && plan->model->n_experts > 0) {
        RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
        GError *error = NULL;
        if (!routing_check_measured(&spec, &error)) {
            json_object_adopt(root, "workload.routing.load_file", error);
        }
    }
    if (plan->routing_order != NULL) {
        int64_t n = plan->model->n_experts;
        g_autofree gboolean *seen = g_new0(gboolean, n + 1);
        gboolean ok = (int64_t)plan->routing_order->len == n;
        for (guint i = 0; ok && i < plan->routing_order->len; i++) {
            int64_t expert = g_array_index(plan->routing_order, int64_t, i);
            ok = expert >= 0 && expert < n && !seen[expert];
            if (ok) {
                seen[expert] = TRUE;
            }
        }
        if (!ok) {
            json_object_fail(root, "workload.routing.order", "must hold each of the %" G_GINT64_FORMAT " experts once", n);
        }
    }
}

/* Slots that shards split unevenly are padded on every rank. */
static void warn_of_padding(Plan *plan)
{
    int64_t local = plan_expert_slots(plan) / plan->ep, shards = plan->efsdp;
    if (plan->moe.redundant_experts > 0 && shards <= local && local % shards != 0) {
        g_ptr_array_add(plan->warnings,
                        g_strdup_printf("moe.redundant_experts %" G_GINT64_FORMAT " makes %" G_GINT64_FORMAT
                                        " slots per rank, which %" G_GINT64_FORMAT " expert-FSDP shards pad to %" G_GINT64_FORMAT,
                                        plan->moe.redundant_experts, local, shards, quantity_round_up(local, shards)));
    }
}

/* Chunks of tokens that travel while others are computed. */
static void check_chunks(const Plan *plan, JsonObject *root)
{
    int64_t chunks = plan->moe.overlap_chunks, tokens = plan->seq_len * plan->micro_batch;
    if (chunks == 1) {
        return;
    }
    if (plan->ep == 1) {
        json_object_fail(root, "moe.overlap_chunks", "%" G_GINT64_FORMAT " has no effect: without expert parallelism no rows travel; leave it out",
                         chunks);
    } else if (plan->moe.pad) {
        json_object_fail(root, "moe.overlap_chunks",
                         "%" G_GINT64_FORMAT " cuts the tokens, but pad_to_capacity sizes experts for all tokens of a "
                         "micro-batch together; leave one of them out",
                         chunks);
    } else if (chunks > tokens) {
        json_object_fail(root, "moe.overlap_chunks",
                         "%" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT " tokens of a micro-batch; use at most that",
                         chunks, tokens);
    }
}

/* Passes of two micro-batches side by side: what else would move, or make again, what is alive of both. */
static void check_interleaved(const Plan *plan, JsonObject *root)
{
    const PlanMoe *moe = &plan->moe;
    const char *why = NULL;
    if (!moe->overlap_micro_batches) {
        return;
    }
    if (plan->ep == 1) {
        why = "has no effect: without expert parallelism no rows travel; leave it out";
    } else if (plan->n_micro_batches == 1) {
        why = "has no effect: a step has one micro-batch; raise workload.global_batch or leave it out";
    } else if (moe->overlap_chunks > 1 || moe->shared_overlap) {
        why = "hides the exchanges that overlap_chunks and shared_overlap hide, too; leave the others out";
    } else if (plan->sharding == PLAN_SHARDING_FSDP) {
        why = "needs parameters that stay: two passes would gather and free those of one layer; set parallel.sharding to \"zero1\" or "
              "\"none\"";
    } else if (plan->recompute == PLAN_RECOMPUTE_FULL) {
        why = "does not hide the exchanges that a full recomputation makes again; set memory.recompute to \"none\" or \"selective\"";
    } else if (plan->cache_has_ddr || plan->offload_fraction > 0) {
        why = "has no places for copies between HBM and DDR yet; leave memory.cache.ddr_bytes and memory.offload_fraction out";
    } else if (plan->has_cache) {
        why = "holds results of two micro-batches at a time, and the budgets of memory.cache are filled with those of one; leave "
              "memory.cache out";
    } else if (plan->recompute == PLAN_RECOMPUTE_SELECTIVE && moe->aux_loss_scope == BALANCE_GLOBAL_BATCH && moe->aux_loss_coeff > 0) {
        why = "counts the next micro-batch before a recomputation asks for the counts so far; set moe.aux_loss_scope to \"micro_batch\" or "
              "memory.recompute to \"none\"";
    }
    if (why != NULL) {
        json_object_fail(root, "moe.overlap_micro_batches", "%s", why);
    }
}

/* Capacities, copies and rules of balancing that do not fit the model or each other. */
static void check_moe(Plan *plan, JsonObject *root)
{
    const PlanMoe *moe = &plan->moe;
    const Model *model = plan->model;
    int64_t slots = plan_expert_slots(plan), groups = plan->ep > 0 ? plan->dp_replicate * plan->efsdp : 1;
    int64_t rule_k = moe_capacity_rule_top_k(moe->capacity.rule);
    gboolean asks = moe->capacity.factor > 0 || moe->drop_target >= 0 || moe->pad || moe->balance != PLAN_BALANCE_NONE ||
                    moe->redundant_experts > 0 || moe->placement != PLAN_PLACEMENT_LINEAR ||
                    moe->dispatch != PLAN_DISPATCH_ALL_TO_ALL || moe->shared_overlap || moe->overlap_chunks > 1 ||
                    moe->overlap_micro_batches ||
                    moe->aux_loss_coeff > 0 || moe->z_loss_coeff > 0;
    if (model->n_experts == 0) {
        if (asks) {
            json_object_fail(root, "moe", "has no effect: %s has no experts; leave it out", model->name);
        }
        return;
    }
    if (moe->capacity.factor > 0 && rule_k > 0 && rule_k != model->top_k) {
        json_object_fail(root, "moe.capacity_rule",
                         "\"%s\" is defined for %" G_GINT64_FORMAT " experts per token, %s takes %" G_GINT64_FORMAT
                         "; use megatron, deepspeed or tutel",
                         moe_capacity_rule_name(moe->capacity.rule), rule_k, model->name, model->top_k);
    } else if (moe->dispatch != PLAN_DISPATCH_ALL_TO_ALL && plan->ep == 1) {
        json_object_fail(root, "moe.dispatch", "has no effect without expert parallelism; set parallel.ep or leave it out");
    } else if (moe->shared_overlap && (plan->ep == 1 || model->shared_width == 0)) {
        json_object_fail(root, "moe.shared_overlap", "has no effect: %s; leave it out",
                         plan->ep == 1 ? "without expert parallelism no rows travel" : "the model has no shared experts");
    } else if (plan_sends_tokens(plan) && moe->pad) {
        json_object_fail(root, "moe.pad_to_capacity", "is defined for a row per choice; use dispatch \"all_to_all\" or \"hierarchical\"");
    } else if (moe->pad && moe->redundant_experts > 0) {
        json_object_fail(root, "moe.pad_to_capacity", "true sizes every expert's slots for the rows that the router gives it, and no rule says how its copies divide "
                         "them; leave it or redundant_experts out");
    } else if (slots % plan->ep != 0) {
        json_object_fail(root, "moe.redundant_experts",
                         "%" G_GINT64_FORMAT " makes %" G_GINT64_FORMAT " slots, which ep %" G_GINT64_FORMAT
                         " does not divide; the nearest legal number is %" G_GINT64_FORMAT,
                         moe->redundant_experts, slots, plan->ep, quantity_round_up(slots, plan->ep) - model->n_experts);
    } else if (moe->redundant_experts > model->n_experts * (plan->ep - 1)) {
        json_object_fail(root, "moe.redundant_experts", "%" G_GINT64_FORMAT " is more than one copy of each expert on each of %" G_GINT64_FORMAT " ranks",
                         moe->redundant_experts, plan->ep);
    } else if (moe->balance != PLAN_BALANCE_NONE && plan->routing != PLAN_ROUTING_BALANCED && plan->routing != PLAN_ROUTING_ZIPF) {
        json_object_fail(root, "moe.balance", "works on drawn loads; use it with workload.routing.kind \"balanced\" or \"zipf\" (the loss alone is moe.aux_loss_coeff)");
    } else if ((moe->balance == PLAN_BALANCE_BIAS || moe->balance == PLAN_BALANCE_QUANTILE) && !model->router_bias_buffer) {
        json_object_fail(root, "moe.balance", "\"%s\" moves a selection bias, which the router of %s does not have; use \"aux_loss\"",
                         moe->balance == PLAN_BALANCE_BIAS ? "bias" : "quantile", model->name);
    } else if (plan->routing_replicas > groups) {
        json_object_fail(root, "workload.routing.replicas",
                         "%" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT " expert-parallel groups of the cluster",
                         plan->routing_replicas, groups);
    }
    if (json_object_ok(root)) {
        check_chunks(plan, root);
        check_interleaved(plan, root);
        warn_of_padding(plan);
    }
}

/* The loss of indexers needs one, and one that may learn. */
static void check_index_loss(Plan *plan, JsonObject *root)
{
    if (plan->index_kl_coeff > 0 && !model_has_indexer(plan->model)) {
        json_object_fail(root, "loss.index_kl_coeff", "has no effect: %s has no indexer; leave it out", plan->model->name);
    } else if (plan->index_kl_coeff > 0 && plan->mode == PLAN_LORA) {
        json_object_fail(root, "loss.index_kl_coeff", "has no effect: workload.mode \"lora\" freezes indexers; leave it out");
    }
}

/* A copy out must end, and a fetch begin, between two passes of the model's layers. */
static void check_cache(Plan *plan, JsonObject *root)
{
    int64_t n_layers = plan->model->n_layers;
    if (plan->has_cache && plan->cache_window >= n_layers && n_layers > 1) {
        json_object_fail(root, "memory.cache.window",
                         "%" G_GINT64_FORMAT " layers between a copy and its use leave nothing to move in %" G_GINT64_FORMAT
                         " layers; at most %" G_GINT64_FORMAT " make sense",
                         plan->cache_window, n_layers, n_layers - 1);
    }
}

/* Chains of delta-rule operators multiply in fp32. */
static void check_eager(Plan *plan, JsonObject *root)
{
    static const struct {
        MixerKind mixer;
        OpKind op;
    } kinds[] = {{MIXER_KDA, OP_kda}, {MIXER_GDN, OP_gdn}};
    for (size_t i = 0; i < G_N_ELEMENTS(kinds) && !timing_supports(plan->cluster->device, DTYPE_FP32); i++) {
        if (plan->eager[kinds[i].op] && model_has_mixer(plan->model, kinds[i].mixer)) {
            json_object_fail(root, "kernels", "an eager \"%s\" multiplies in fp32, of which %s has no peak in its descriptor; leave it fused",
                             op_class(kinds[i].op)->id, plan->cluster->device->name);
        }
    }
}

/* The lowering shards, reduces and steps the head's matrix as its own. */
static void check_ties(Plan *plan, JsonObject *root)
{
    if (plan->model->tied_embeddings) {
        json_object_fail(root, "model",
                         "%s ties the head to the embedding, which is not modelled yet; set model.overrides.tie_word_embeddings to "
                         "false to count both",
                         plan->model->name);
    }
}

/* Whether any layer has parts that "shared" names: shared experts, and the projections of latent experts. */
static gboolean has_shared_parts(const Model *model)
{
    return model_has_ffn(model, FFN_MOE) && (model->shared_width > 0 || model->latent_width > 0);
}

static void check_lora(Plan *plan, JsonObject *root)
{
    if (plan->mode != PLAN_LORA) {
        return;
    }
    if (plan->lora_experts && plan->model->n_experts == 0) {
        json_object_fail(root, "workload.lora.targets", "names experts, but %s has none", plan->model->name);
    } else if (!plan->lora_attention && !plan->lora_experts && !has_shared_parts(plan->model)) {
        json_object_fail(root, "workload.lora.targets", "%s has none of these parts, so nothing would train", plan->model->name);
    }
}

/* Without FSDP parameters lie whole in the type that they are computed with. */
static void check_sharding(Plan *plan, JsonObject *root)
{
    const char *name = plan->sharding == PLAN_SHARDING_ZERO1 ? "zero1" : "none";
    if (plan->layer_wise && plan->sharding != PLAN_SHARDING_ZERO1) {
        json_object_fail(root, "optimizer.sharding", "\"layer_wise\" has no effect unless parallel.sharding is \"zero1\"");
    }
    if (plan->sharding == PLAN_SHARDING_FSDP) {
        return;
    }
    if (plan->parameters != plan->compute) {
        json_object_fail(root, "parallel.sharding",
                         "\"%s\" keeps whole parameters in the compute type; set precision.parameters to \"bf16\", and "
                         "optimizer.master_weights to true for an fp32 copy",
                         name);
    } else if (plan->moe.redundant_experts > 0) {
        json_object_fail(root, "moe.redundant_experts", "with parallel.sharding \"%s\" is not modelled yet; use \"fsdp\"", name);
    }
}

/* Codes that outlive a pass are of whole weights, which FSDP has no longer than that. */
static void check_fp8_weights(Plan *plan, JsonObject *root)
{
    gboolean gathers = plan->sharding == PLAN_SHARDING_FSDP || plan->plain;
    if (plan->fp8_weights == PLAN_FP8_EACH_PASS) {
        return;
    }
    if (gathers) {
        json_object_fail(root, "precision.fp8_weights",
                         "\"%s\" keeps codes of whole weights, which this plan has only while a layer runs; set parallel.sharding to "
                         "\"zero1\" or \"none\" (with gradient buffers)",
                         plan->fp8_weights == PLAN_FP8_CACHED ? "cached" : "primary");
    } else if (plan->fp8_weights == PLAN_FP8_PRIMARY && !plan->master_weights) {
        json_object_fail(root, "precision.fp8_weights", "\"primary\" leaves no other copy for the optimizer to update; set optimizer.master_weights to true");
    }
}

static void check_offload(Plan *plan, JsonObject *root)
{
    gboolean copies = plan->cache_has_ddr || plan->offload_fraction > 0 || plan->optimizer_offload;
    if (plan->copies_yield && !copies) {
        json_object_fail(root, "memory.host_copies", "has no effect: nothing is copied between HBM and DDR; leave it out");
    } else if (plan->copies_yield && !plan->cluster->device->nic_on_host_link) {
        json_object_fail(root, "memory.host_copies", "has no effect: traffic between nodes of %s takes another way; leave it out",
                         plan->cluster->device->name);
    }
    if (plan->offload_layers > plan->model->n_layers) {
        json_object_fail(root, "memory.offload_layers", "%" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT " layers of %s",
                         plan->offload_layers, plan->model->n_layers, plan->model->name);
    }
    gboolean on_host = plan->optimizer_offload && plan->optimizer != PLAN_MUON;
    if (on_host && plan->cluster->device->host_update_bytes_per_s <= 0) {
        json_object_fail(root, "optimizer.offload", "%s does not say host_update_bytes_per_s; add it to its descriptor",
                         plan->cluster->device->name);
    } else if (plan->optimizer_offload && plan->plain) {
        json_object_fail(root, "optimizer.offload", "needs gradient buffers; leave parallel.gradient_buffers at true");
    } else if (plan->optimizer_offload && plan->layer_wise) {
        json_object_fail(root, "optimizer.offload", "with optimizer.sharding \"layer_wise\" is not modelled yet; use \"element_wise\"");
    }
}

/* Gradients that nobody reduces need no buffer: from here on the plan is one of FSDP on one rank whose groups are plain. */
static void check_plain(Plan *plan, JsonObject *root)
{
    if (plan->plain && plan->dp_replicate * plan->dp_shard > 1) {
        json_object_fail(root, "parallel.gradient_buffers", "false works only on one data-parallel rank: more of them reduce buffers");
    } else if (plan->plain) {
        plan->sharding = PLAN_SHARDING_FSDP;
    }
}

void plan_check(Plan *plan, JsonObject *root)
{
    if (!timing_supports(plan->cluster->device, plan->compute)) {
        json_object_fail(root, "precision", "%s has no %s peak in its descriptor", plan->cluster->device->name,
                         dtype_name(plan->compute));
        return;
    }
    if (!timing_supports(plan->cluster->device, plan->gemm)) {
        json_object_fail(root, "precision.gemm", "%s has no %s peak in its descriptor; leave it at \"%s\"", plan->cluster->device->name,
                         dtype_name(plan->gemm), dtype_name(plan->compute));
    }
    check_ranks(plan, root);
    if (json_object_ok(root)) {
        merge_replicas(plan);
        check_experts(plan, root);
        check_batch(plan, root);
        check_loss(plan, root);
        check_cache(plan, root);
        check_routing(plan, root);
        check_moe(plan, root);
        check_sharding(plan, root);
        check_fp8_weights(plan, root);
        check_offload(plan, root);
        check_ties(plan, root);
        check_lora(plan, root);
        check_index_loss(plan, root);
        check_plain(plan, root);
        check_eager(plan, root);
    }
}
