/* What has to hold between the results of random plans, whatever the model and the layout. */
#include "tests/property/random-plan.h"

#include "workloads/lower/fsdp.h"
#include "workloads/lower/lower.h"
#include "workloads/run/run.h"

enum { N_PLANS = 60 };

/* Runs a plan (a deadlock or a buffer never freed is an error); further words override earlier ones. */
static Result *run_words(const char *words, const char *more)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *all = g_strdup_printf("%s %s", words, more);
    g_autoptr(Plan) plan = plan_of_words(all, &error);
    check_no_error(error);
    Result *result = run_plan(plan, NULL, &error);
    if (error != NULL) {
        print_error("%s\n", all);
    }
    check_no_error(error);
    return result;
}

/* Kernels of that name in a step. */
static int64_t launches_of(const Result *result, const char *name)
{
    for (guint i = 0; i < result->operators->len; i++) {
        const ResultOperator *entry = g_ptr_array_index(result->operators, i);
        if (strcmp(entry->name, name) == 0) {
            return entry->launches;
        }
    }
    return 0;
}

static void test_same_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1000; seed < 1000 + N_PLANS; seed++) {
        g_autofree char *words = random_plan_words(seed);
        g_autoptr(Result) first = run_words(words, ""), second = run_words(words, "");
        g_autoptr(json_t) a = result_to_json(first), b = result_to_json(second);
        assert_true(json_equal(a, b));
    }
}

/* The more is made again, the less is kept. */
static void test_recompute(void **state)
{
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=1024 "
                                                 "workload.micro_batch=4",
                                                 random_models[m]);
        g_autoptr(Result) none = run_words(words, "memory.recompute=none"), full = run_words(words, "memory.recompute=full");
        g_autoptr(Result) some = run_words(words, "memory.recompute=selective");
        assert_true(none->after_forward_memory_bytes >= some->after_forward_memory_bytes);
        assert_true(some->after_forward_memory_bytes >= full->after_forward_memory_bytes);
        assert_true(full->step_time_s >= none->step_time_s);
    }
}

/* Bytes that a step reads and writes to make one whole gradient of those of its passes. */
static void count_joined(const Program *program, int64_t *ret_copied, int64_t *ret_added)
{
    int64_t n_done = 0;
    *ret_copied = *ret_added = 0;
    for (guint c = 0; c < program->calls->len; c = program_next_call(program, c, program->repeat.times, &n_done)) {
        const Segment *segment = program_segment(program, g_array_index(program->calls, Call, c).segment);
        for (guint i = 0; i < segment->instrs->len; i++) {
            const Instr *instr = &g_array_index(segment->instrs, Instr, i);
            if (instr->kind != INSTR_COMPUTE || instr->label != LABEL_GRAD_ACCUMULATE) {
                continue;
            }
            const Work *work = &g_array_index(segment->works, Work, instr->work);
            int64_t bytes = work->n_launches * (work->read_bytes + work->write_bytes);
            *ret_copied += work->law == WORK_COPY ? bytes : 0;
            *ret_added += 2 * work->read_bytes == 3 * work->write_bytes ? bytes : 0; /* else: parts of one pass */
        }
    }
}

/* Elements of the parameters of a graph that get a gradient. */
static int64_t graph_grads(const Graph *graph)
{
    int64_t sum = 0;
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        sum += fsdp_has_grad(param) ? graph_param_numel(param) : 0;
    }
    return sum;
}

/* Whole gradients in fp32 are made of every bf16 gradient of the passes once. */
static void test_whole_gradients(void **state)
{
    static const char *const shardings[] = {"none", "zero1"};
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        for (size_t s = 0; s < G_N_ELEMENTS(shardings); s++) {
            g_autoptr(GError) error = NULL;
            g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=256 "
                                                     "workload.global_batch=24 precision.parameters=bf16 parallel.sharding=%s",
                                                     random_models[m], shardings[s]);
            g_autoptr(Plan) plan = plan_of_words(words, &error);
            check_no_error(error);
            g_autoptr(ModelGraph) graphs = lower_graphs(plan);
            g_autoptr(Program) program = lower_plan_described(plan, graphs, NULL, 0);
            int64_t copied, added, n_params = graph_grads(graphs->embedding) + graph_grads(graphs->head);
            for (int64_t i = 0; i < graphs->n_layers; i++) {
                n_params += graph_grads(model_graph_layer(graphs, i));
            }
            count_joined(program, &copied, &added);
            check_int(plan->n_micro_batches, 3);
            check_int(copied, n_params * (2 + 4));
            check_int(added, 2 * n_params * (2 + 4 + 4));
        }
    }
}

/* A loss in slices of the vocabulary makes products again: work of the hardware, not of the model. */
static void test_cut_loss(void **state)
{
    static const char *const kernels[] = {"fused", "eager"};
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        for (size_t k = 0; k < G_N_ELEMENTS(kernels); k++) {
            g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=256 kernels=%s",
                                                     random_models[m], kernels[k]);
            g_autoptr(Result) whole = run_words(words, ""), cut = run_words(words, "loss.vocab_chunk=256");
            check_close(cut->model_flops_per_token, whole->model_flops_per_token, 1e-12);
            check_close(cut->mfu * cut->step_time_s, whole->mfu * whole->step_time_s, 1e-9);
            assert_true(cut->hfu * cut->step_time_s > whole->hfu * whole->step_time_s);
        }
    }
}

/* What the model computes does not depend on how many parts of the tokens travel apart. */
static void test_chunked_flops(void **state)
{
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=257", random_models[m]);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        if (plan->model->n_experts == 0) {
            continue;
        }
        g_autoptr(Result) whole = run_words(words, "parallel.ep=2"), cut = run_words(words, "parallel.ep=2 moe.overlap_chunks=3");
        check_close(cut->model_flops_per_token, whole->model_flops_per_token, 1e-12);
    }
}

static int64_t n_host_works(const Program *program, SimTime host_ns)
{
    int64_t n = 0;
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, (gint32)s);
        for (guint i = 0; i < segment->instrs->len; i++) {
            const Instr *instr = &g_array_index(segment->instrs, Instr, i);
            n += instr->kind == INSTR_HOST && instr->host_ns == host_ns;
        }
    }
    return n;
}

/* What selective checkpointing costs beside a collective was measured of framework collectives; those of kernels do without. */
static void test_intercepted_exchanges(void **state)
{
    static const char *const kernels[] = {"fused", "eager"};
    (void)state;
    for (size_t k = 0; k < G_N_ELEMENTS(kernels); k++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=256 parallel.ep=4 "
                                                 "memory.recompute=selective kernels=%s", random_models[2], kernels[k]);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        g_autoptr(ModelGraph) graphs = lower_graphs(plan);
        g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
        assert_true((n_host_works(program, plan->cluster->device->selective_collective_ns) > 0) == (k == 1));
    }
}

/*
 * A plan split into replicas and shards in every way, through one cache that forgets layouts in between: its programs are those
 * made from scratch. Budgets differ from split to split.
 */
static void check_splits(const char *words, LowerCache *cache, int64_t *n_same)
{
    g_autoptr(Plan) plan = plan_of_words(words, NULL);
    int64_t n_ranks = plan != NULL ? plan->dp_replicate * plan->dp_shard : 0;
    for (int64_t n_shards = n_ranks; n_shards >= 1; n_shards /= 2) {
        if (n_shards * plan->cp % plan->ep != 0) {
            continue;
        }
        plan->dp_shard = n_shards;
        plan->dp_replicate = n_ranks / n_shards;
        plan->efsdp = n_shards * plan->cp / plan->ep;
        plan->cache_hbm_bytes = plan->has_cache ? n_shards << 16 : 0;
        lower_cache_forget_layouts(cache);
        g_autoptr(Program) cached = lower_plan_cached(cache, plan, lower_cache_graphs(cache, plan), NULL, 0);
        g_autoptr(ModelGraph) graphs = lower_graphs(plan);
        g_autoptr(Program) alone = lower_plan(plan, graphs, NULL, 0);
        if (!program_equal(cached, alone)) {
            fail_msg("%d replicas of %d shards: %s", (int)plan->dp_replicate, (int)n_shards, words);
        }
        ++*n_same;
    }
}

static void test_splits(void **state)
{
    static const char *const ways[] = {"",
                                       "parallel.ep=2 memory.recompute=full",
                                       "parallel.ep=4 memory.recompute=selective parallel.fsdp.prefetch=explicit",
                                       "parallel.ep=2 parallel.fsdp.prefetch=explicit workload.micro_batch=1 workload.global_batch=48",
                                       "parallel.ep=4 memory.recompute=full parallel.fsdp.reshard_after_forward=false",
                                       "parallel.ep=2 parallel.sharding=zero1 workload.global_batch=48 precision.parameters=bf16",
                                       "parallel.ep=2 parallel.sharding=zero1 precision.parameters=bf16 optimizer.kind=muon optimizer.sharding=layer_wise",
                                       "parallel.ep=2 precision.parameters=bf16 optimizer.kind=muon optimizer.offload=true optimizer.master_weights=true",
                                       "parallel.ep=4 parallel.sharding=zero1 precision.parameters=bf16 precision.gemm=fp8 precision.fp8_weights=primary "
                                       "optimizer.master_weights=true",
                                       "parallel.ep=2 moe.aux_loss_coeff=0.01 moe.aux_loss_scope=global_batch precision.parameters=bf16",
                                       "memory.recompute=selective memory.cache.hbm_bytes=1 memory.cache.ddr_bytes=2097152",
                                       "parallel.ep=4 moe.overlap_chunks=2 memory.recompute=selective precision.parameters=bf16"};
    int64_t n_same = 0;
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        for (size_t w = 0; w < G_N_ELEMENTS(ways); w++) {
            g_autoptr(LowerCache) cache = lower_cache_new();
            g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 cluster.nodes=2 "
                                                     "workload.seq_len=256 %s", random_models[m], ways[w]);
            check_splits(words, cache, &n_same);
        }
    }
    assert_true(n_same > 100);
}

/*
 * What it saves to keep no bf16 weights beside their FP8 codes: Qwen3-32B cut to two layers on one device goes from 55.964 to 54.148
 * GiB (Ascend/MindSpeed, docs/zh/features, "release BF16 weights after quantisation"). Codes for both sides are two bytes a
 * weight, and a scale for each block of them.
 */
static void test_fp8_weights(void **state)
{
    static const char words[] = "model.config=llama-3.1-8b model.overrides.num_hidden_layers=2 model.overrides.hidden_size=5120 "
                                "model.overrides.num_attention_heads=64 model.overrides.head_dim=128 model.overrides.intermediate_size=25600 "
                                "cluster.preset=h200-sxm cluster.gpus_per_node=1 parallel.sharding=none precision.parameters=bf16 "
                                "precision.gemm=fp8 optimizer.master_weights=true workload.seq_len=1024";
    const double layer = 2.0 * 5120 * (64 + 8) * 128 + 3.0 * 5120 * 25600, gib = 1 << 30;
    (void)state;
    g_autoptr(Result) each = run_words(words, ""), cached = run_words(words, "precision.fp8_weights=cached"),
                      primary = run_words(words, "precision.fp8_weights=primary");
    check_close((double)(cached->static_memory_bytes - primary->static_memory_bytes) / gib, 55.964 - 54.148, 2e-3);
    check_close((double)(cached->static_memory_bytes - each->static_memory_bytes), 2 * layer * 2 * (1 + 4.0 / 128 / 128), 1e-9);
}

/* Weights become codes as often as they change, however many passes read them. */
static void test_fp8_casts(void **state)
{
    static const char *const kept[] = {"precision.fp8_weights=cached", "precision.fp8_weights=primary"};
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        int64_t once = -1;
        for (int passes = 1; passes <= 3; passes++) {
            for (size_t k = 0; k < G_N_ELEMENTS(kept); k++) {
                g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=256 parallel.sharding=zero1 "
                                                         "precision.parameters=bf16 precision.gemm=fp8 optimizer.master_weights=true "
                                                         "workload.global_batch=%d", random_models[m], 8 * passes);
                g_autoptr(Result) each = run_words(words, ""), result = run_words(words, kept[k]);
                int64_t casts = launches_of(result, "weights to FP8");
                once = once < 0 ? casts : once;
                check_int(casts, once);
                assert_true(casts > 0 && launches_of(each, "weights to FP8") == 0);
                assert_true(result->forward_s + result->backward_s < each->forward_s + each->backward_s);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_recompute),
                                       cmocka_unit_test(test_whole_gradients), cmocka_unit_test(test_cut_loss), cmocka_unit_test(test_chunked_flops),
                                       cmocka_unit_test(test_intercepted_exchanges), cmocka_unit_test(test_splits), cmocka_unit_test(test_fp8_weights),
                                       cmocka_unit_test(test_fp8_casts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
