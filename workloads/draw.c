#include "workloads/draw.h"

#include <string.h>

#include "sim/base/json-read.h"
#include "sim/base/rng.h"
#include "workloads/cases.h"

/* Fields that others depend on stand before them. Sizes are small ones: what is larger is cut down by shrink_plan(). */
static const DrawField fields[] = {
    {"cluster.preset", "h200-sxm"},
    {"cluster.gpus_per_node", "1|2|3|4|4|6|8|8"},
    {"model.config", "llama-3.1-8b|mixtral-8x7b|qwen3-30b-a3b|deepseek-v3|deepseek-v3.2-exp|kimi-k3|kimi-k3|kimi-k3.1-pro|"
                     "kimi-k3.1-pro|kimi-k3-mini|kimi-linear-48b-a3b|olmoe-1b-7b|glm-4.5|glm-5|qwen3-next-80b-a3b|gpt-oss-120b|"
                     "kimi-k2-instruct|minimax-m2"},
    {"model.overrides.num_hidden_layers", "|||1|2|5"},
    {"model.overrides.vocab_size", "|||3|37|50"},
    {"model.overrides.n_routed_experts", "||4|6|12|24"},
    {"model.overrides.num_experts_per_tok", "|||1|2|3"},
    {"parallel.dp_replicate", "|||2|4"},
    {"parallel.ep", "|2|2|3|4|4|8"},
    {"precision.parameters", "|fp32|bf16|bf16"},
    {"parallel.sharding", "||fsdp|zero1|zero1|none|none"},
    {"parallel.gradient_buffers", "false"},
    {"parallel.fsdp.reshard_after_forward", "||false"},
    {"parallel.fsdp.prefetch", "|implicit|explicit"},
    {"workload.mode", "||pretrain|finetune|lora|lora"},
    {"workload.lora.rank", "|1|2|3"},
    {"workload.lora.targets", "|attention|shared|experts|attention shared experts|attention experts"},
    {"workload.lora.shared_a", "||true"},
    {"workload.seq_len", "1|2|5|6|6"},
    {"workload.micro_batch", "||2"},
    {"workload.global_batch", "|x1|x2|x2|x3|x6"},
    {"workload.routing.kind", "||balanced|zipf|router|consecutive"},
    {"workload.routing.exponent", "|0.5|3"},
    {"workload.routing.order", "|sorted|shuffled"},
    {"workload.routing.seed", "|1|7"},
    {"workload.routing.layer_draws", "||2|3"},
    {"moe.capacity_factor", "|||0.5|0.8|1|1.25|2"},
    {"moe.capacity_rule", "||megatron|deepspeed|tutel|switch|gshard"},
    {"moe.capacity_min", "||1|2"},
    {"moe.capacity_drop_target", "||||0|0.2"},
    {"moe.pad_to_capacity", "|||true"},
    {"moe.capacity_multiple", "||2|3"},
    {"moe.drop", "||position|probability|position_choice"},
    {"moe.redundant_experts", "|||2|4|8"},
    {"moe.placement", "||linear|eplb"},
    {"moe.dispatch", "|||all_to_all|hierarchical|all_gather|deepep|hybridep|deepep"},
    {"moe.balance", "||aux_loss|bias|quantile"},
    {"moe.aux_loss_coeff", "||0.02|0.5"},
    {"moe.aux_loss_scope", "|micro_batch|sequence|global_batch|global_batch"},
    {"moe.z_loss_coeff", "|||0.001|0.1"},
    {"moe.overlap_micro_batches", "|true|true"},
    {"moe.shared_overlap", "||true|true"},
    {"moe.overlap_chunks", "|||2|3|5"},
    {"memory.recompute", "none|full|selective|selective"},
    {"memory.keep", "|attention|matmul|grouped_matmul|all_to_all|attention all_to_all|matmul grouped_matmul"},
    {"memory.cache.hbm_bytes", "||||0|700|3000|12000|100000"},
    {"memory.cache.ddr_bytes", "|0|700|3000|12000|100000"},
    {"memory.cache.policy", "|lru|cost_benefit|belady|choice"},
    {"memory.cache.window", "||1|2"},
    {"memory.offload_fraction", "||0.3|0.5|1"},
    {"memory.offload_min_bytes", "1|1|600"},
    {"memory.offload_layers", "|||1|2"},
    {"memory.expandable_segments", "||true"},
    {"memory.host_keeps_pages", "||true"},
    {"memory.host_copies", "||yield"},
    {"loss.seq_chunk", "||1|2|4"},
    {"loss.vocab_chunk", "||7|20"},
    {"loss.index_kl_coeff", "||1|0.3"},
    {"precision.reduce", "||fp32|bf16"},
    {"precision.gemm", "||fp8"},
    {"optimizer.kind", "||adamw|muon|muon"},
    {"optimizer.offload", "||true"},
    {"optimizer.sharding", "|layer_wise|layer_wise"},
    {"optimizer.per_head", "||true"},
    {"optimizer.master_weights", "||true"},
    {"optimizer.moments", "||fp32|bf16|int8"},
    {"network.level", "||flows|closed_form"},
    {"precision.fp8_weights", "|cached|primary|primary|cached"},
    {"kernels.default", "|fused|eager"},
    {"kernels.kda", "|||fused|eager"},
    {"kernels.rmsnorm", "|||fused|eager"},
    {"kernels.router", "|||fused|eager"},
    {"kernels.cross_entropy", "|||fused|eager"},
};

int draw_n_fields(void)
{
    return (int)G_N_ELEMENTS(fields);
}

const DrawField *draw_field(int idx)
{
    return &fields[idx];
}

char *draw_choice(const DrawField *field, uint64_t seed)
{
    g_auto(GStrv) values = g_strsplit(field->values, "|", -1);
    return g_strdup(values[rng_below(seed, RNG_PLANS, g_str_hash(field->path), g_strv_length(values))]);
}

static gboolean is_legal(json_t *object)
{
    g_autoptr(Plan) plan = plan_from_json(object, "drawn plan", NULL, NULL);
    return plan != NULL;
}

/* Sequences of n passes over all ranks. */
static json_t *batch_value(const json_t *object, const char *passes)
{
    int64_t ranks = json_integer_value(json_object_get(json_object_get(object, "cluster"), "gpus_per_node"));
    const json_t *micro_batch = json_object_get(json_object_get(object, "workload"), "micro_batch");
    int64_t n = g_ascii_strtoll(passes + 1, NULL, 10);
    return json_integer((json_int_t)(n * ranks * (micro_batch != NULL ? json_integer_value(micro_batch) : 1)));
}

static void set_field(json_t *object, const char *path, const char *word)
{
    json_t *value = word[0] == 'x' && strcmp(path, "workload.global_batch") == 0 ? batch_value(object, word)
                                                                               : cases_cell_value(path, word, NULL);
    gboolean ok = value != NULL && cases_set(object, path, value, NULL);
    g_assert(ok);
}

json_t *draw_plan(uint64_t seed, char ***ret_words)
{
    json_t *object = json_object();
    char **words = g_new0(char *, G_N_ELEMENTS(fields));
    for (size_t i = 0; i < G_N_ELEMENTS(fields); i++) {
        g_autofree char *word = draw_choice(&fields[i], seed);
        if (word[0] == '\0') {
            continue;
        }
        json_t *with = json_deep_copy(object);
        set_field(with, fields[i].path, word);
        gboolean is_start = json_object_get(with, "model") == NULL; /* nothing is a plan without a model */
        if (is_start || is_legal(with)) {
            json_decref(object);
            object = with;
            words[i] = g_steal_pointer(&word);
        } else {
            json_decref(with);
        }
    }
    if (ret_words != NULL) {
        *ret_words = words;
    } else {
        draw_words_free(words);
    }
    return object;
}

void draw_words_free(char **words)
{
    for (size_t i = 0; words != NULL && i < G_N_ELEMENTS(fields); i++) {
        g_free(words[i]);
    }
    g_free(words);
}
