/*
 * What users of planners stumbled over, as relations between predictions: each test names the kind of complaint.
 *
 * Plans are small (few layers, one to eight nodes), so that the whole file runs in a second or two.
 */
#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "tests/property/plan-words.h"
#include "workloads/run/advice.h"
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
static const char dense[] = "model.config=llama-3.1-8b model.overrides.num_hidden_layers=4 cluster.preset=h200-sxm "
                            "cluster.gpus_per_node=8 workload.seq_len=4096";

/* An estimate that ignored how much is recomputed. */
static void test_recompute_order(void **state)
{
    (void)state;
    static const char *const commons[] = {moe, dense};
    for (size_t i = 0; i < G_N_ELEMENTS(commons); i++) {
        g_autoptr(Result) none = predict(commons[i], "memory.recompute=none workload.micro_batch=2");
        g_autoptr(Result) selective = predict(commons[i], "memory.recompute=selective workload.micro_batch=2");
        g_autoptr(Result) full = predict(commons[i], "memory.recompute=full workload.micro_batch=2");
        assert_true(none->peak_memory_bytes > selective->peak_memory_bytes);
        assert_true(selective->peak_memory_bytes > full->peak_memory_bytes);
        assert_true(none->backward_s < full->backward_s);
        /* Recomputation costs hardware FLOPs, not model FLOPs. */
        check_close(none->model_flops_per_token, full->model_flops_per_token, 0);
        assert_true(full->hfu > full->mfu);
        check_close(none->hfu, none->mfu, 1e-9);
    }
}

/* Model states alone sold as "memory needed": the parts at the peak make up the whole, activations included. */
static void test_parts_make_the_whole(void **state)
{
    (void)state;
    static const char *const variants[] = {"", "memory.recompute=full loss.seq_chunk=1024", "parallel.ep=8",
                                           "workload.mode=lora workload.lora.rank=16"};
    for (size_t i = 0; i < G_N_ELEMENTS(variants); i++) {
        g_autoptr(Result) result = predict(moe, variants[i]);
        int64_t sum = 0;
        for (int tag = 0; tag < N_MEM_TAGS; tag++) {
            assert_true(result->at_peak[tag] >= 0);
            sum += result->at_peak[tag];
        }
        check_int(sum, result->peak_memory_bytes);
        assert_true(result->at_peak[MEM_PARAMETERS] > 0);
        assert_true(result->peak_memory_bytes > result->static_memory_bytes);
        /* Allocated, reserved and what lies outside the framework are three things. */
        assert_true(result->reserved_memory_bytes >= result->peak_memory_bytes);
        assert_true(result->non_framework_bytes > 0);
        check_int(result->fits, result->peak_memory_bytes + result->non_framework_bytes <= result->capacity_bytes);
    }
}

/* Disputed multipliers of parameters, gradients and moments: between steps 12 bytes per parameter, sharded. */
static void test_static_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        double bytes_per_parameter;
    } cases[] = {
        {"", 12},
        {"optimizer.moments=bf16", 8},
        {"precision.parameters=bf16 optimizer.moments=bf16", 6},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Result) one = predict(dense, cases[i].fields);
        double want = cases[i].bytes_per_parameter * (double)one->params_total / 8;
        double library = 64.0 * 1024 * 1024; /* workspace of the matrix library */
        check_close((double)one->static_memory_bytes - library, want, 2e-3);
    }
}

/* Headroom that did not respond to what the run does. */
static void test_memory_responds(void **state)
{
    (void)state;
    static const struct {
        const char *less, *more;
    } pairs[] = {
        {"workload.seq_len=2048", "workload.seq_len=4096"},
        {"workload.micro_batch=1", "workload.micro_batch=2"},
        {"loss.seq_chunk=512 parallel.ep=8 workload.seq_len=16384 memory.recompute=full",
         "loss.seq_chunk=16384 parallel.ep=8 workload.seq_len=16384 memory.recompute=full"},
        {"loss.seq_chunk=2048 parallel.ep=8 workload.seq_len=16384 memory.recompute=full",
         "loss.seq_chunk=0 parallel.ep=8 workload.seq_len=16384 memory.recompute=full"},
        {"parallel.fsdp.reshard_after_forward=true memory.recompute=full",
         "parallel.fsdp.reshard_after_forward=false memory.recompute=full"},
        {"model.overrides.num_experts_per_tok=8", "model.overrides.num_experts_per_tok=16"},
        {"parallel.ep=8 memory.recompute=full", "parallel.ep=1 memory.recompute=full"},
        {"optimizer.moments=bf16", "optimizer.moments=fp32"},
        {"workload.mode=lora", "workload.mode=pretrain"},
        {"kernels=fused", "kernels=eager"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(pairs); i++) {
        g_autoptr(Result) less = predict(moe, pairs[i].less);
        g_autoptr(Result) more = predict(moe, pairs[i].more);
        if (!(less->peak_memory_bytes < more->peak_memory_bytes)) {
            print_error("%s: %" G_GINT64_FORMAT " is not below %s: %" G_GINT64_FORMAT "\n", pairs[i].less,
                        less->peak_memory_bytes, pairs[i].more, more->peak_memory_bytes);
            fail();
        }
    }
}

/* Compute time that stayed the same when ranks were taken away under a fixed global batch. */
static void test_compute_scales(void **state)
{
    (void)state;
    double before = 0;
    for (int nodes = 8; nodes >= 1; nodes /= 2) {
        g_autofree char *fields = g_strdup_printf("cluster.nodes=%d workload.global_batch=128", nodes);
        g_autoptr(Result) result = predict(dense, fields);
        check_int(result->ranks, nodes * 8);
        double compute = 0;
        for (guint i = 0; i < result->operators->len; i++) {
            const ResultOperator *entry = g_ptr_array_index(result->operators, i);
            compute += entry->seconds;
        }
        if (before > 0) {
            assert_true(compute > 1.7 * before && compute < 2.05 * before);
        }
        before = compute;
    }
}

/* Equal results on 32 and 64 GPUs that could not be explained: each collective says what it runs over. */
static void test_collectives_are_named(void **state)
{
    (void)state;
    static const int nodes[] = {1, 4, 8};
    for (size_t i = 0; i < G_N_ELEMENTS(nodes); i++) {
        g_autofree char *fields = g_strdup_printf("cluster.nodes=%d parallel.ep=8", nodes[i]);
        g_autoptr(Result) result = predict(moe, fields);
        assert_true(result->collectives->len > 0);
        gboolean across = FALSE;
        for (guint k = 0; k < result->collectives->len; k++) {
            const ResultCollective *entry = g_ptr_array_index(result->collectives, k);
            assert_true(entry->group_size > 1 && entry->group_size <= result->ranks);
            assert_true(entry->count > 0 && entry->bytes > 0 && entry->seconds > 0);
            assert_true(entry->name[0] != '\0');
            check_int(strcmp(entry->tier, "scale-up") == 0 || strcmp(entry->tier, "scale-out") == 0, TRUE);
            across = across || strcmp(entry->tier, "scale-out") == 0;
        }
        check_int(across, nodes[i] > 1);
    }
}

/* A step without a backward pass, of no length, or that differs from run to run. */
static void test_sane(void **state)
{
    (void)state;
    g_autoptr(Result) result = predict(moe, "parallel.ep=8");
    assert_true(result->step_time_s > 0 && result->forward_s > 0 && result->optimizer_s > 0);
    assert_true(result->backward_s > result->forward_s);
    assert_true(result->forward_s + result->backward_s + result->optimizer_s <= result->step_time_s * (1 + 1e-9));
    check_close(result->tokens_per_s_per_gpu, 8 * 4096 / result->step_time_s / 8, 1e-9);
    check_close(result->useful_tokens_per_s_per_gpu, result->tokens_per_s_per_gpu, 0);
    g_autoptr(Result) again = predict(moe, "parallel.ep=8");
    g_autoptr(json_t) one = result_to_json(result), two = result_to_json(again);
    g_autofree char *text = json_dumps(one, 0), *text_again = json_dumps(two, 0);
    check_string(text, text_again);
}

/* MFU against a sparse peak, or another device's. */
static void test_utilisation(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words(dense, &error);
    check_no_error(error);
    g_autoptr(Result) result = run_plan(plan, NULL, &error);
    check_no_error(error);
    check_close(plan->cluster->device->peak_flops_per_s[DTYPE_BF16], 989e12, 1e-3);
    check_close(result->mfu, result->tflops_per_gpu * 1e12 / plan->cluster->device->peak_flops_per_s[DTYPE_BF16], 1e-9);
    check_close(result->tflops_per_gpu * 1e12, result->model_flops_per_token * result->tokens_per_s_per_gpu, 1e-9);
    assert_true(result->mfu > 0.05 && result->mfu < 1);
    double sum = 0;
    for (int i = 0; i < N_EVIDENCES; i++) {
        sum += result->evidence[i];
    }
    check_close(sum, 1, 1e-9);
}

/* Times that silently rest on another machine: it is said what they rest on. */
static void test_evidence(void **state)
{
    (void)state;
    g_autoptr(Result) here = predict(dense, "");
    assert_true(here->evidence[EVIDENCE_MEASURED] + here->evidence[EVIDENCE_FITTED] > 0.5);
    g_auto(GStrv) names = device_preset_names();
    for (char **name = names; *name != NULL; name++) {
        if (strcmp(*name, "h200-sxm") == 0) {
            continue;
        }
        g_autofree char *fields = g_strdup_printf("cluster.preset=%s cluster.gpus_per_node=4 cluster.nodes=2", *name);
        g_autoptr(Result) there = predict(dense, fields);
        check_close(there->evidence[EVIDENCE_MEASURED], 0, 0);
        assert_true(there->evidence[EVIDENCE_DATASHEET] + there->evidence[EVIDENCE_ASSUMED] > 0.5);
    }
}

/* Memory that drifts with the routing. */
static void test_skew(void **state)
{
    (void)state;
    int64_t before = 0;
    double load_before = 0;
    static const char *const exponents[] = {"0", "0.5", "1.0", "1.5"};
    for (size_t i = 0; i < G_N_ELEMENTS(exponents); i++) {
        g_autofree char *fields = g_strdup_printf(
            "parallel.ep=8 workload.routing.kind=zipf workload.routing.order=sorted workload.routing.exponent=%s",
            exponents[i]);
        g_autoptr(Result) result = predict(moe, fields);
        assert_true(result->expert_load_max_over_mean >= load_before);
        assert_true(result->peak_memory_bytes >= before);
        assert_true(result->expert_load_max_over_mean <= 128.0 / 8 + 1e-9);
        before = result->peak_memory_bytes;
        load_before = result->expert_load_max_over_mean;
    }
}

/* An impossible layout that was simulated as if it were possible: it is said, and what would make it possible. */
static void test_infeasible(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *advice, *change;
    } cases[] = {
        {"model=qwen3-30b-a3b cluster.preset=h100-sxm cluster.nodes=1 cluster.gpus_per_node=8 parallel.ep=8 "
         "workload.seq_len=8192 workload.micro_batch=2",
         "memory.recompute \"full\": ", "memory.recompute=full"},
        {"model=llama-3.1-405b cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=8 workload.seq_len=8192",
         "cluster.nodes 16 with loss.seq_chunk 1024 with memory.recompute \"full\": ",
         "cluster.nodes=16 loss.seq_chunk=1024 memory.recompute=full"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(json_t) value = value_of_words(cases[i].fields);
        g_autoptr(Result) result = predict(cases[i].fields, "");
        assert_false(result->fits);
        assert_true(result->peak_memory_bytes > result->capacity_bytes);
        advice_find(result, value, "plan", NULL);
        gboolean found = FALSE;
        for (guint k = 0; k < result->advice->len; k++) {
            found = found || g_str_has_prefix(g_ptr_array_index(result->advice, k), cases[i].advice);
        }
        assert_true(found);
        g_autoptr(Result) changed = predict(cases[i].fields, cases[i].change);
        assert_true(changed->fits);
    }
    /* What fits gets no advice. */
    g_autoptr(json_t) value = value_of_words(dense);
    g_autoptr(Result) fitting = predict(dense, "");
    advice_find(fitting, value, "plan", NULL);
    check_int(fitting->advice->len, 0);
}

/* Every plan that is shipped runs, and fits. */
static void test_shipped_plans(void **state)
{
    (void)state;
    g_autofree char *folder = check_source_path("workloads/presets");
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    assert_non_null(dir);
    const char *name;
    int n = 0;
    while ((name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(folder, name, NULL);
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = plan_load(path, &error);
        check_no_error(error);
        g_autoptr(Result) result = run_plan(plan, NULL, &error);
        check_no_error(error);
        if (!result->fits) {
            print_error("%s does not fit\n", name);
            fail();
        }
        n++;
    }
    assert_true(n >= 10);
}

/* Mistakes that were accepted: both fields of a clash are named, and a legal value. */
static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        const char *parts[3];
    } cases[] = {
        {"workload.global_batch=12", {"workload.global_batch: 12 ", "micro_batch 1", "8"}},
        {"cluster.nodes=23 workload.global_batch=32", {"workload.global_batch: 32 ", "184"}},
        {"parallel.ep=7", {"parallel.ep: 7 ", "8", "nearest legal ep"}},
        {"parallel.dp_shard=16", {"dp_shard 16", "8"}},
        {"epoch_num=3", {"epoch_num"}},
        {"parallel.tp=24", {"parallel.tp", "24"}},
        {"parallel.pp=8", {"parallel.pp", "8"}},
        {"loss.seq_chunk=-1", {"loss.seq_chunk"}},
        {"model.overrides.num_experts_per_token_=4", {"num_experts_per_tok"}},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *all = g_strdup_printf("%s %s", moe, cases[i].fields);
        assert_null(plan_of_words(all, &error));
        assert_non_null(error);
        for (size_t k = 0; k < G_N_ELEMENTS(cases[i].parts) && cases[i].parts[k] != NULL; k++) {
            check_contains(error->message, cases[i].parts[k]);
        }
        check_error(&error, MOESIM_ERROR_INPUT, "plan");
    }
}

static double offload_slowdown(const char *machine, double *ret_stall_s)
{
    g_autofree char *fields = g_strdup_printf("%s workload.seq_len=4096 workload.micro_batch=2 memory.recompute=none", machine);
    g_autofree char *moving = g_strdup_printf("%s memory.offload_fraction=0.5", fields);
    g_autoptr(Result) kept = predict("model.config=qwen3-30b-a3b", fields), moved = predict("model.config=qwen3-30b-a3b", moving);
    assert_true(moved->peak_memory_bytes < kept->peak_memory_bytes);
    assert_true(moved->tiers->moved_out_bytes > 0 && moved->tiers->moved_out_bytes == moved->tiers->moved_in_bytes);
    assert_true(moved->tiers->host_peak_bytes > 0);
    *ret_stall_s = moved->tiers->stall_s;
    return moved->step_time_s / kept->step_time_s;
}

/* Offload of activations rarely pays over PCIe, whose link the NIC shares; a C2C link flips the answer. */
static void test_offload_link(void **state)
{
    (void)state;
    double pcie_stall_s, c2c_stall_s;
    double pcie = offload_slowdown("cluster.preset=h200-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=8", &pcie_stall_s);
    double c2c = offload_slowdown("cluster.preset=gh200 cluster.nodes=32 cluster.gpus_per_node=1 parallel.ep=8", &c2c_stall_s);
    assert_true(pcie > 1.3 && pcie_stall_s > 0 && c2c_stall_s < pcie_stall_s);
    assert_true(c2c < 1.1);
}

/* Selective recomputation that keeps more than none is said; it cannot be where budgets keep what pays. */
static void test_selective_warning(void **state)
{
    (void)state;
    static const char lora[] = "cluster.preset=h200-sxm cluster.nodes=4 cluster.gpus_per_node=8 parallel.ep=8 workload.mode=lora";
    g_autofree char *list = g_strdup_printf("%s memory.recompute=selective", lora);
    g_autofree char *budget = g_strdup_printf("%s memory.recompute=selective memory.cache.hbm_bytes=900GiB", lora);
    g_autofree char *all = g_strdup_printf("%s memory.recompute=none", lora);
    g_autoptr(Result) selective = predict("model.config=qwen3-30b-a3b", list), cached = predict("model.config=qwen3-30b-a3b", budget);
    g_autoptr(Result) none = predict("model.config=qwen3-30b-a3b", all);
    assert_true(selective->after_forward_memory_bytes > none->after_forward_memory_bytes);
    check_int(selective->warnings->len, 1);
    check_contains(g_ptr_array_index(selective->warnings, 0), "\"none\" would keep");
    check_int(cached->warnings->len, 0);
    assert_true(cached->step_time_s < selective->step_time_s);
}

/* A cache that is slower than recomputing nothing is said, where that fits; elsewhere nothing is. */
static void test_cache_warning(void **state)
{
    static const struct {
        const char *plan;
        gboolean warns;
    } rows[] = {
        {"cluster.preset=h200-sxm memory.cache.hbm_bytes=\"fit\"", TRUE},
        {"cluster.preset=h200-sxm memory.cache.hbm_bytes=900GiB", TRUE},
        {"cluster.preset=h200-sxm memory.cache.hbm_bytes=1GiB", TRUE},
        {"cluster.preset=h100-sxm memory.cache.hbm_bytes=\"fit\"", FALSE}, /* none does not fit */
        {"cluster.preset=h200-sxm", FALSE},                                /* has a warning of its own */
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *fields = g_strconcat("model.config=qwen3-30b-a3b cluster.nodes=1 cluster.gpus_per_node=8 parallel.ep=8 "
                                              "workload.global_batch=64 loss.seq_chunk=2048 memory.recompute=selective ",
                                              rows[i].plan, NULL);
        g_autoptr(Plan) plan = plan_of_words(fields, &error);
        check_no_error(error);
        g_autoptr(Result) result = run_plan(plan, NULL, &error);
        check_no_error(error);
        guint before = result->warnings->len;
        advice_warn_cache(result, plan);
        check_int(result->warnings->len, before + (rows[i].warns ? 1 : 0));
        if (rows[i].warns) {
            check_contains(g_ptr_array_index(result->warnings, before), "memory.recompute \"none\" without memory.cache fits and is faster");
        }
    }
}

/* An offload that moves nothing is said, whatever of it is the reason. */
static void test_offload_warning(void **state)
{
    static const struct {
        const char *offload;
        gboolean warns;
    } rows[] = {
        {"memory.offload_fraction=1e-12", TRUE},
        {"memory.offload_fraction=1 memory.offload_min_bytes=900GiB", TRUE},
        {"memory.offload_fraction=1e-12 optimizer.offload=true", TRUE}, /* whose copies are others */
        {"memory.offload_fraction=0.5", FALSE},
        {"optimizer.offload=true", FALSE},
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(Result) result = predict("model.config=qwen3-30b-a3b cluster.preset=h200-sxm cluster.gpus_per_node=8 parallel.ep=8", rows[i].offload);
        check_int(result->warnings->len, rows[i].warns ? 1 : 0);
        if (rows[i].warns) {
            check_contains(g_ptr_array_index(result->warnings, 0), "moves nothing");
        }
    }
}

/* FP8 sold as half of BF16: it is faster, and in memory a little less or a little more. */
static void test_fp8(void **state)
{
    (void)state;
    static const struct {
        const char *plan;
        double gain_least, gain_most;
    } rows[] = {
        /* measured to gain 35.6 % beside tensor parallelism by eight, whose exchanges stay (torchtitan, its asynchronous form @ b5bcd76) */
        {"model.config=llama-3.1-70b cluster.preset=h100-sxm cluster.nodes=32 cluster.gpus_per_node=8 workload.seq_len=8192",
         0.25, 0.5},
        /* one MoE layer of this shape, forward and backward: 17.6 ms in BF16 and 17.7 in FP8 (Megatron-LM, moe_perf @ d98e8a6) */
        {"model.config=deepseek-v3 model.overrides.num_hidden_layers=6 cluster.preset=h100-sxm cluster.gpus_per_node=8 parallel.ep=8 "
         "workload.seq_len=4096",
         -0.05, 0.3},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(Result) bf16 = predict(rows[i].plan, "precision.gemm=bf16"), fp8 = predict(rows[i].plan, "precision.gemm=fp8");
        double gain = bf16->step_time_s / fp8->step_time_s - 1, activations = (double)(bf16->peak_memory_bytes - bf16->static_memory_bytes);
        print_message("# FP8 %+.1f %% of speed, %+.1f %% of what comes and goes in memory\n", 100 * gain,
                      100 * (double)(fp8->peak_memory_bytes - bf16->peak_memory_bytes) / activations);
        assert_true(gain >= rows[i].gain_least && gain <= rows[i].gain_most);
        assert_true(fabs((double)(fp8->peak_memory_bytes - bf16->peak_memory_bytes)) < 0.3 * activations);
        check_int(fp8->static_memory_bytes, bf16->static_memory_bytes);
        check_close(fp8->model_flops_per_token, bf16->model_flops_per_token, 0);
        check_close(fp8->evidence[EVIDENCE_MEASURED], 0, bf16->evidence[EVIDENCE_MEASURED]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_order),
        cmocka_unit_test(test_offload_link),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_selective_warning),
        cmocka_unit_test(test_cache_warning),
        cmocka_unit_test(test_offload_warning),
        cmocka_unit_test(test_parts_make_the_whole),
        cmocka_unit_test(test_static_bytes),
        cmocka_unit_test(test_memory_responds),
        cmocka_unit_test(test_compute_scales),
        cmocka_unit_test(test_collectives_are_named),
        cmocka_unit_test(test_sane),
        cmocka_unit_test(test_utilisation),
        cmocka_unit_test(test_evidence),
        cmocka_unit_test(test_skew),
        cmocka_unit_test(test_infeasible),
        cmocka_unit_test(test_shipped_plans),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
