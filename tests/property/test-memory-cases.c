/*
 * What users of planners stumbled over in memory estimates: states of experts, shards that do not divide, losses,
 * copies to the host. Each test names the kind of complaint; what can be computed by hand is, and must be met to the
 * byte.
 */
#include "tests/check.h"

#include "models/block.h"
#include "tests/property/plan-words.h"
#include "workloads/lower/lower.h"
#include "workloads/run/run.h"

static Result *predict(const char *common, const char *fields)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *all = g_strdup_printf("%s %s", common, fields);
    g_autoptr(Plan) plan = plan_of_words(all, &error);
    check_no_error(error);
    Result *result = run_plan(plan, NULL, &error);
    check_no_error(error);
    assert_non_null(result);
    return result;
}

static const char moe[] = "model.config=qwen3-30b-a3b model.overrides.num_hidden_layers=4 cluster.preset=h200-sxm "
                          "cluster.nodes=1 cluster.gpus_per_node=8 workload.seq_len=4096";

/* Bytes between steps of one rank by tag. */
static void static_bytes(const char *common, const char *fields, int64_t bytes[N_MEM_TAGS])
{
    g_autoptr(GError) error = NULL;
    g_autofree char *all = g_strdup_printf("%s %s", common, fields);
    g_autoptr(Plan) plan = plan_of_words(all, &error);
    check_no_error(error);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
    memcpy(bytes, program->static_bytes, sizeof program->static_bytes);
}

/* Bytes of parameters in `dtype_size` bytes, of matrices of experts alone or of all others. */
static int64_t parameters(const char *common, gboolean experts, int64_t dtype_size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words(common, &error);
    check_no_error(error);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    int64_t n = 0;
    for (int64_t l = -2; l < graphs->n_layers; l++) {
        const Graph *graph = l == -2   ? graphs->embedding
                             : l == -1 ? graphs->head
                                       : (const Graph *)g_ptr_array_index(graphs->kinds, (guint)graphs->layer_kind[l]);
        for (guint p = 0; p < graph->params->len; p++) {
            const GraphParam *param = &g_array_index(graph->params, GraphParam, p);
            int64_t numel = 1;
            for (int d = 0; d < param->n_dims; d++) {
                numel *= param->dims[d];
            }
            n += (param->split == PARAM_EXPERT) == experts ? numel : 0;
        }
    }
    return n * dtype_size;
}

/*
 * Weights of experts divided by something else than the ranks that hold them, or their optimizer by all ranks: EP
 * divides what a rank holds of experts and nothing else; their states are sharded over the ranks that hold the same
 * experts, and not at all where there is one.
 */
static void test_states_of_experts(void **state)
{
    static const int64_t eps[] = {1, 2, 4, 8};
    int64_t others = parameters(moe, FALSE, 2), experts = parameters(moe, TRUE, 2);
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(eps); i++) {
        int64_t whole[N_MEM_TAGS], sharded[N_MEM_TAGS];
        g_autofree char *ep = g_strdup_printf("parallel.ep=%d precision.parameters=bf16", (int)eps[i]);
        g_autofree char *none = g_strdup_printf("%s parallel.sharding=none", ep),
                        *zero1 = g_strdup_printf("%s parallel.sharding=zero1", ep);
        static_bytes(moe, none, whole);
        static_bytes(moe, zero1, sharded);
        check_int(whole[MEM_PARAMETERS], others + experts / eps[i]);
        check_int(sharded[MEM_PARAMETERS], whole[MEM_PARAMETERS]);
        check_int(sharded[MEM_GRADIENTS], whole[MEM_GRADIENTS]);
        check_int(whole[MEM_GRADIENTS], 2 * whole[MEM_PARAMETERS]); /* fp32 */
        /* moments and master copies: of a rank's experts over 8 / EP ranks, of all else over 8 */
        int64_t per_parameter = whole[MEM_OPTIMIZER] / (whole[MEM_PARAMETERS] / 2);
        check_int(whole[MEM_OPTIMIZER], per_parameter * (whole[MEM_PARAMETERS] / 2));
        check_int(sharded[MEM_OPTIMIZER], per_parameter * (others / 2 + experts / 2) / 8);
    }
}

static int64_t rows_of_largest_shard(int64_t rows, int64_t ranks)
{
    return (rows + ranks - 1) / ranks;
}

/* Shards that do not divide: a rank holds whole rows, and it is the one that holds most that must fit. */
static void test_uneven_shards(void **state)
{
    static const int ranks[] = {3, 5, 7, 11};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(ranks); i++) {
        g_autofree char *fields =
            g_strdup_printf("model.config=llama-3.1-8b model.overrides.num_hidden_layers=3 cluster.preset=h200-sxm "
                            "cluster.nodes=%d cluster.gpus_per_node=1 workload.seq_len=256",
                            ranks[i]);
        int64_t bytes[N_MEM_TAGS], want = 0;
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_of_words(fields, &error);
        check_no_error(error);
        g_autoptr(ModelGraph) graphs = lower_graphs(plan);
        for (int64_t l = -2; l < graphs->n_layers; l++) {
            const Graph *graph = l == -2 ? graphs->embedding
                                 : l == -1
                                     ? graphs->head
                                     : (const Graph *)g_ptr_array_index(graphs->kinds, (guint)graphs->layer_kind[l]);
            for (guint p = 0; p < graph->params->len; p++) {
                const GraphParam *param = &g_array_index(graph->params, GraphParam, p);
                want += 4 * rows_of_largest_shard(param->dims[0], ranks[i]) * (param->n_dims > 1 ? param->dims[1] : 1);
            }
        }
        static_bytes(fields, "", bytes);
        check_int(bytes[MEM_PARAMETERS], want);
        check_int(bytes[MEM_OPTIMIZER], 2 * want);
    }
}

static const char head[] =
    "model.config=llama-3.1-8b model.overrides.num_hidden_layers=2 model.overrides.vocab_size=151936 "
    "cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=8 workload.seq_len=8192 memory.recompute=full";

static Result *with_chunk(const char *common, const char *field, int64_t tokens)
{
    g_autofree char *fields = g_strdup_printf("loss.%s=%" G_GINT64_FORMAT, field, tokens);
    return predict(common, fields);
}

/* 8,192 tokens x 151,936 words in fp32 are 4.64 GiB: a loss in one chunk holds them at the peak. */
static void test_logits(void **state)
{
    (void)state;
    g_autoptr(Result) whole = with_chunk(head, "seq_chunk", 8192);
    int64_t logits = INT64_C(8192) * 151936 * 4;
    check_int(whole->at_peak[MEM_LOGITS] >> 20, logits >> 20);
    check_contains(whole->peak_place, "loss");
}

/*
 * A loss in chunks sold as always saving and always cheap: smaller chunks never take more memory and never less time;
 * the peak falls only while the loss makes it, and then stays where something else does.
 */
static void test_chunks(void **state)
{
    int64_t before = INT64_MAX;
    double before_s = 0;
    int n_falls = 0, n_stays = 0;
    (void)state;
    for (int64_t tokens = 8192; tokens >= 128; tokens /= 2) {
        g_autoptr(Result) result = with_chunk(head, "seq_chunk", tokens);
        assert_true(result->peak_memory_bytes <= before && result->step_time_s >= before_s);
        if (result->peak_memory_bytes < before && before != INT64_MAX) {
            n_falls++;
        }
        if (result->peak_memory_bytes == before) {
            n_stays++;
            assert_null(strstr(result->peak_place, "loss"));
        }
        before = result->peak_memory_bytes;
        before_s = result->step_time_s;
    }
    assert_true(n_falls > 0 && n_stays > 0);
}

/* Full logits in memory whatever the loss: what is alive at its end goes by its form. A plan without layers to speak
 * of. */
static void test_forms_of_loss(void **state)
{
    static const char small[] =
        "model.config=llama-3.1-8b model.overrides.num_hidden_layers=1 model.overrides.vocab_size=262144 "
        "cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=8 workload.seq_len=8192 "
        "workload.micro_batch=4 memory.recompute=full";
    (void)state;
    g_autoptr(Result) full = predict(small, ""), chunks = with_chunk(small, "seq_chunk", 1024),
                      cut = with_chunk(small, "vocab_chunk", 4096);
    int64_t logits = INT64_C(4) * 8192 * 262144 * 4;
    const Result *const less[] = {chunks, cut};
    check_int(full->at_peak[MEM_LOGITS] >> 20, logits >> 20);
    for (size_t i = 0; i < G_N_ELEMENTS(less); i++) {
        /* the peak is now a layer's */
        assert_true(less[i]->at_peak[MEM_LOGITS] <= logits / 16);
        assert_true(full->peak_memory_bytes - less[i]->peak_memory_bytes > logits / 2);
    }
    assert_true(full->step_time_s < chunks->step_time_s && full->step_time_s < cut->step_time_s);
}

/* A kernel that keeps a state for every token of linear attention, ten times the memory: it is a choice, not the
 * default. */
static void test_linear_attention_states(void **state)
{
    static const char linear[] =
        "model.config=kimi-linear-48b-a3b model.overrides.num_hidden_layers=4 cluster.preset=h200-sxm "
        "cluster.nodes=1 cluster.gpus_per_node=8 workload.seq_len=8192";
    (void)state;
    g_autoptr(Result) usual = predict(linear, ""), fused = predict(linear, "kernels=fused"),
                      eager = predict(linear, "kernels=eager");
    check_int(usual->peak_memory_bytes, fused->peak_memory_bytes);
    assert_true(eager->at_peak[MEM_ACTIVATIONS] > 10 * fused->at_peak[MEM_ACTIVATIONS]);
}

/*
 * MB taken for GB between device and host: what leaves is what the device no longer holds, and once more what several
 * operators of a layer save, as hooks see each: the normed rows that q, k and v read, those that gate and up read,
 * attention's output.
 */
static void test_offload_units(void **state)
{
    static const char dense[] =
        "model.config=llama-3.1-8b model.overrides.num_hidden_layers=8 cluster.preset=gh200 cluster.nodes=8 "
        "cluster.gpus_per_node=1 workload.seq_len=8192";
    (void)state;
    g_autoptr(Result) kept = predict(dense, ""), moved = predict(dense, "memory.offload_fraction=1");
    int64_t freed = kept->after_forward_memory_bytes - moved->after_forward_memory_bytes;
    int64_t out = moved->tiers->moved_out_bytes;
    check_int(out, moved->tiers->moved_in_bytes);
    check_int(out, moved->tiers->host_peak_bytes);
    check_int(out - freed, INT64_C(8) * (2 + 1 + 1) * 8192 * 4096 * 2);
}

/* Experts of two ranks with two choices a token: weights halve, what travels and is kept does not. */
static void test_choices(void **state)
{
    static const char two[] =
        "model.config=mixtral-8x7b model.overrides.num_hidden_layers=2 model.overrides.num_local_experts=2 "
        "cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=2 parallel.ep=2 workload.seq_len=4096 "
        "parallel.sharding=none precision.parameters=bf16";
    (void)state;
    g_autoptr(Result) one = predict(two, "model.overrides.num_experts_per_tok=1"),
                      both = predict(two, "model.overrides.num_experts_per_tok=2");
    check_int(one->static_memory_bytes, both->static_memory_bytes);
    int64_t counts = 2 * 2 * 8; /* of tokens, from two ranks in two layers */
    check_int(2 * (one->all_to_all_bytes_per_rank - counts), both->all_to_all_bytes_per_rank - counts);
    assert_true(both->after_forward_memory_bytes > one->after_forward_memory_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_of_experts),
        cmocka_unit_test(test_uneven_shards),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_forms_of_loss),
        cmocka_unit_test(test_linear_attention_states),
        cmocka_unit_test(test_offload_units),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests_name("memory-cases", tests, NULL, NULL);
}
