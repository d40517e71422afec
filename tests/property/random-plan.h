/*
 * Seeded random plans over small models of every family, for property tests: same seed, same plan.
 */
#pragma once

#include "tests/check.h"

#include "sim/base/json-read.h"
#include "sim/base/rng.h"
#include "tests/property/plan-words.h"
#include "workloads/plan/plan.h"

static const char *const random_models[] = {
    "model.config=llama-3.1-8b model.overrides.hidden_size=256 model.overrides.intermediate_size=704 model.overrides.vocab_size=2003 "
    "model.overrides.num_attention_heads=4 model.overrides.num_key_value_heads=2 model.overrides.num_hidden_layers=3",
    "model.config=mixtral-8x7b model.overrides.hidden_size=128 model.overrides.intermediate_size=352 model.overrides.vocab_size=1000 "
    "model.overrides.num_attention_heads=4 model.overrides.num_key_value_heads=2 model.overrides.num_hidden_layers=3",
    "model.config=qwen3-30b-a3b model.overrides.hidden_size=192 model.overrides.moe_intermediate_size=80 model.overrides.vocab_size=1500 "
    "model.overrides.num_attention_heads=4 model.overrides.num_key_value_heads=2 model.overrides.head_dim=32 "
    "model.overrides.n_routed_experts=16 model.overrides.num_experts_per_tok=4 model.overrides.num_hidden_layers=4",
    "model.config=deepseek-v3 model.overrides.hidden_size=256 model.overrides.intermediate_size=640 model.overrides.vocab_size=3000 "
    "model.overrides.num_attention_heads=4 model.overrides.q_lora_rank=96 model.overrides.kv_lora_rank=64 "
    "model.overrides.qk_nope_head_dim=32 model.overrides.qk_rope_head_dim=16 model.overrides.v_head_dim=32 "
    "model.overrides.n_routed_experts=16 model.overrides.num_experts_per_tok=4 model.overrides.n_group=4 model.overrides.topk_group=2 "
    "model.overrides.moe_intermediate_size=96 model.overrides.first_k_dense_replace=1 model.overrides.num_hidden_layers=4 "
    "model.overrides.num_nextn_predict_layers=0",
    "model.config=kimi-k3-mini",
};

/* One of n, by the seed and the number of the draw. */
static inline uint64_t random_below(uint64_t seed, uint64_t draw, uint64_t n)
{
    return rng_below(seed, RNG_TEST, draw, n);
}

/* Caches and offload. */
static inline void random_tier_words(uint64_t seed, uint64_t recompute, GString *words)
{
    if (recompute == 2 && random_below(seed, 32, 2) == 0) {
        static const char *const policies[] = {"lru", "cost_benefit", "belady", "choice"};
        g_string_append_printf(words, " memory.cache.hbm_bytes=%d memory.cache.ddr_bytes=%d memory.cache.policy=%s memory.cache.window=%d",
                               (int)random_below(seed, 33, 1 << 23), (int)random_below(seed, 34, 1 << 24),
                               policies[random_below(seed, 35, 4)], (int)(1 + random_below(seed, 36, 2)));
    } else if (recompute == 0 && random_below(seed, 32, 2) == 0) {
        g_string_append_printf(words, " memory.offload_fraction=0.%d memory.offload_min_bytes=%d", (int)(1 + random_below(seed, 33, 9)),
                               (int)random_below(seed, 34, 1 << 18));
        g_string_append(words, random_below(seed, 35, 2) == 0 ? " memory.offload_layers=2" : "");
    }
}

/* Optimizer, its states, and who holds what between steps. */
static inline void random_state_words(uint64_t seed, gboolean plain, GString *words)
{
    if (random_below(seed, 22, 3) == 0) {
        g_string_append(words, " optimizer.kind=muon");
        g_string_append(words, random_below(seed, 23, 2) == 0 ? " optimizer.per_head=true" : "");
    }
    if (strstr(words->str, "precision.parameters=bf16") != NULL && random_below(seed, 24, 2) == 0) {
        g_string_append(words, " optimizer.master_weights=true");
    }
    if (!plain && random_below(seed, 27, 4) == 0) {
        g_string_append(words, " optimizer.offload=true");
    }
    if (!plain && strstr(words->str, "precision.parameters=bf16") != NULL && strstr(words->str, "parallel.fsdp") == NULL) {
        static const char *const shardings[] = {"fsdp", "zero1", "none"};
        g_string_append_printf(words, " parallel.sharding=%s", shardings[random_below(seed, 26, 3)]);
        gboolean deals = strstr(words->str, "zero1") != NULL && strstr(words->str, "offload=true") == NULL && random_below(seed, 44, 2) == 0;
        g_string_append(words, deals ? " optimizer.sharding=layer_wise" : "");
    }
    gboolean is_whole = strstr(words->str, "=zero1") != NULL || (!plain && strstr(words->str, "sharding=none") != NULL);
    if (is_whole && strstr(words->str, "gemm=fp8") != NULL && random_below(seed, 45, 3) > 0) {
        gboolean primary = strstr(words->str, "master_weights=true") != NULL && random_below(seed, 45, 3) == 1;
        g_string_append_printf(words, " precision.fp8_weights=%s", primary ? "primary" : "cached");
    }
    static const char *const moments[] = {"", "", " optimizer.moments=bf16", " optimizer.moments=int8"};
    g_string_append(words, moments[random_below(seed, 25, 4)]);
}

/* How rows travel to experts. Draws 22, 23 and 38. */
static inline void random_exchange_words(GString *words, uint64_t seed, gboolean has_shared)
{
    static const char *const dispatches[] = {"all_to_all", "hierarchical", "all_gather", "deepep", "hybridep"};
    g_string_append_printf(words, " moe.dispatch=%s", dispatches[random_below(seed, 22, G_N_ELEMENTS(dispatches))]);
    g_string_append(words, has_shared && random_below(seed, 23, 2) == 0 ? " moe.shared_overlap=true" : "");
    uint64_t chunks = random_below(seed, 38, 10);
    if (chunks > 1 && chunks <= 5) {
        g_string_append_printf(words, " moe.overlap_chunks=%d", (int)chunks);
    }
}

/* Losses beside the main one. Draws 38 to 42. */
static inline void random_loss_words(GString *words, uint64_t seed, gboolean has_experts, gboolean has_indexer)
{
    static const char *const scopes[] = {"micro_batch", "sequence", "global_batch"};
    if (has_experts && random_below(seed, 38, 2) == 0) {
        g_string_append_printf(words, " moe.aux_loss_coeff=0.02 moe.aux_loss_scope=%s", scopes[random_below(seed, 39, 3)]);
    }
    g_string_append(words, has_experts && random_below(seed, 40, 4) == 0 ? " moe.z_loss_coeff=0.001" : "");
    g_string_append(words, has_indexer && random_below(seed, 41, 2) == 0 ? " loss.index_kl_coeff=0.5" : "");
}

/* Passes of two micro-batches side by side, where nothing else stands in their way. Draws 46 and 47. */
static inline void random_interleaved_words(GString *words, uint64_t seed, int per_pass)
{
    static const char *const others[] = {"parallel.fsdp", "memory.cache", "memory.offload", "recompute=full", "overlap_chunks"};
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        if (strstr(words->str, others[i]) != NULL) {
            return;
        }
    }
    if (strstr(words->str, "recompute=selective") != NULL && strstr(words->str, "scope=global_batch") != NULL) {
        return;
    }
    g_string_append_printf(words,
                           " moe.overlap_micro_batches=true moe.shared_overlap=false precision.parameters=bf16 parallel.sharding=%s "
                           "workload.global_batch=%d",
                           strstr(words->str, "layer_wise") != NULL || random_below(seed, 46, 2) == 0 ? "zero1" : "none", per_pass * (int)(2 + random_below(seed, 47, 7)));
}

/* The words of a random plan; caller frees. Draws 0 to 47 of the seed. */
static inline char *random_plan_words(uint64_t seed)
{
    static const int64_t eps[] = {1, 2, 4, 8};
    static const char *const recomputes[] = {"none", "full", "selective"};
    static const int64_t seqs[] = {64, 100, 257, 1024};
    static const char *const keeps[] = {"", " memory.keep=matmul", " memory.keep=attention", " memory.keep=grouped_matmul"};
    uint64_t model = random_below(seed, 0, G_N_ELEMENTS(random_models));
    gboolean is_dense = model == 0, is_lora = random_below(seed, 1, 4) == 0;
    uint64_t nodes = 1 + random_below(seed, 2, 2), recompute = random_below(seed, 5, 3);
    uint64_t replicas = random_below(seed, 4, 4) == 0 ? 2 : 1;
    int64_t ep = is_dense ? 1 : eps[random_below(seed, 3, replicas == 2 && nodes == 1 ? 3 : 4)];
    gboolean alone = random_below(seed, 17, 8) == 0; /* one rank */
    gboolean plain = alone && random_below(seed, 37, 2) == 0;
    int64_t micro_batch = 1 + (int64_t)random_below(seed, 11, 3), n_micro_batches = 1 + (int64_t)random_below(seed, 12, 3);
    GString *words = g_string_new(random_models[model]);
    int64_t gpus = alone ? 1 : 8;
    nodes = alone ? 1 : nodes;
    g_string_append_printf(words, " cluster.preset=h200-sxm cluster.nodes=%d cluster.gpus_per_node=%d", (int)nodes, (int)gpus);
    if (!alone) {
        g_string_append_printf(words, " parallel.ep=%d parallel.dp_replicate=%d", (int)ep, (int)replicas);
    }
    g_string_append_printf(words, " memory.recompute=%s", recomputes[recompute]);
    g_string_append(words, recompute == 2 ? keeps[random_below(seed, 6, 4)] : "");
    random_tier_words(seed, recompute, words);
    g_string_append(words, plain ? " parallel.sharding=none parallel.gradient_buffers=false" : random_below(seed, 7, 2) == 0 ? " parallel.fsdp.prefetch=explicit" : "");
    g_string_append(words, !plain && random_below(seed, 8, 3) == 0 ? " parallel.fsdp.reshard_after_forward=false" : "");
    g_string_append_printf(words, " workload.seq_len=%d workload.micro_batch=%d workload.global_batch=%d",
                           (int)seqs[random_below(seed, 9, 4)], (int)micro_batch,
                           (int)(micro_batch * n_micro_batches * (int64_t)nodes * gpus));
    if (random_below(seed, 10, 2) == 0) {
        g_string_append_printf(words, " loss.seq_chunk=%d", (int)(32 + random_below(seed, 13, 200)));
    } else if (random_below(seed, 10, 4) == 1) {
        g_string_append_printf(words, " loss.vocab_chunk=%d", (int)(200 + random_below(seed, 13, 500)));
    }
    g_string_append(words, random_below(seed, 14, 2) == 0 ? " kernels=eager" : "");
    if (is_lora) {
        g_string_append_printf(words, " workload.mode=lora workload.lora.rank=%d", (int)(1 + random_below(seed, 15, 32)));
        g_string_append(words, !is_dense && random_below(seed, 16, 2) == 0 ? " workload.lora.targets=experts" : "");
    } else if (plain || random_below(seed, 18, 4) == 0) {
        g_string_append(words, " precision.parameters=bf16");
    }
    g_string_append(words, random_below(seed, 19, 4) == 0 ? " precision.reduce=bf16" : "");
    g_string_append(words, random_below(seed, 43, 4) == 0 ? " precision.gemm=fp8" : "");
    random_state_words(seed, plain, words);
    if (!is_dense && random_below(seed, 20, 2) == 0) {
        g_string_append_printf(words, " workload.routing.kind=zipf workload.routing.exponent=0.6 workload.routing.seed=%d",
                               (int)random_below(seed, 21, 100));
    }
    if (!is_dense && !alone && ep > 1) {
        random_exchange_words(words, seed, model >= 3);
    }
    random_loss_words(words, seed, !is_dense, !is_lora && model + 1 == G_N_ELEMENTS(random_models));
    if (!is_dense && !alone && ep > 1 && random_below(seed, 45, 2) == 0) {
        random_interleaved_words(words, seed, (int)(micro_batch * (int64_t)nodes * gpus));
    }
    return g_string_free(words, FALSE);
}
