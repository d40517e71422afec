/* The summary of a run: that it says what matters, in units that it names, and nothing that is not known. */
#include "tests/check.h"

#include "reports/cli/summary.h"

static char title[] = "Test GPU", device_name[] = "test-gpu", model_name[] = "test-model";

typedef struct Example {
    Device device;
    Cluster cluster;
    Model model;
    Plan plan;
    Result *result;
} Example;

static void add_operator(Result *result, const char *name, double seconds)
{
    ResultOperator *entry = g_new0(ResultOperator, 1);
    entry->name = g_strdup(name);
    entry->seconds = seconds;
    entry->launches = 12;
    g_ptr_array_add(result->operators, entry);
}

static void add_collective(Result *result)
{
    ResultCollective *entry = g_new0(ResultCollective, 1);
    entry->name = g_strdup("all_gather (dense FSDP)");
    entry->tier = g_strdup("scale-out");
    entry->group_size = 16;
    entry->count = 4;
    entry->bytes = (int64_t)3 << 30;
    entry->seconds = 0.01;
    g_ptr_array_add(result->collectives, entry);
}

static void fill_result(Result *result)
{
    result->ranks = 16;
    result->step_time_s = 2;
    result->forward_s = 0.5;
    result->backward_s = 1.25;
    result->optimizer_s = 0.25;
    result->exposed_comm_s = 0.1;
    result->tokens_per_s = 65536;
    result->tokens_per_s_per_gpu = 4096;
    result->tflops_per_gpu = 400;
    result->mfu = 0.4;
    result->hfu = 0.5;
    result->capacity_bytes = (int64_t)80 << 30;
    result->peak_memory_bytes = (int64_t)40 << 30;
    result->reserved_memory_bytes = (int64_t)50 << 30;
    result->non_framework_bytes = (int64_t)10 << 30;
    result->at_peak[MEM_PARAMETERS] = (int64_t)30 << 30;
    result->at_peak[MEM_UNSHARDED] = (int64_t)10 << 30;
    result->peak_place = g_strdup("backward of layer 7, mlp.down_proj");
    result->fits = TRUE;
    result->params_total = 2779931834976;
    result->params_active = 104189612640;
    result->evidence[EVIDENCE_MEASURED] = 0.75;
    result->evidence[EVIDENCE_DATASHEET] = 0.25;
    add_operator(result, "grouped GEMM", 0.5);
    add_collective(result);
}

static int setup(void **state)
{
    Example *example = g_new0(Example, 1);
    example->device.name = device_name;
    example->device.title = title;
    example->device.peak_flops_per_s[DTYPE_BF16] = 1e15;
    example->cluster = (Cluster){.device = &example->device, .n_nodes = 2, .gpus_per_node = 8, .n_ranks = 16};
    example->model.name = model_name;
    example->model.n_experts = 64;
    Plan *plan = &example->plan;
    plan->model = &example->model;
    plan->cluster = &example->cluster;
    plan->dp_replicate = plan->pp = plan->tp = plan->cp = plan->etp = 1;
    plan->dp_shard = 16;
    plan->ep = 8;
    plan->efsdp = 2;
    plan->seq_len = 8192;
    plan->micro_batch = plan->n_micro_batches = 1;
    plan->global_batch = 16;
    plan->parameters = DTYPE_FP32;
    plan->compute = DTYPE_BF16;
    example->result = result_new();
    fill_result(example->result);
    *state = example;
    return 0;
}

static int teardown(void **state)
{
    Example *example = *state;
    result_free(example->result);
    g_free(example);
    return 0;
}

static void test_complete(void **state)
{
    Example *example = *state;
    g_autofree char *text = summary_text(&example->plan, example->result);
    static const char *const parts[] = {
        "test-model: 2.78 T parameters, 104 B active per token",
        "2 x 8 Test GPU, 16 in all: FSDP 16, EP 8 (expert FSDP 2)",
        "2.000 s    4.10 k tokens/s per GPU, 65.5 k in all",
        "MFU 40.0 %, HFU 50.0 % of 1000 TFLOP/s (dense bf16 peak)",
        "50.00 of 80.00 GiB: fits\n",
        "[##############################========+++++++...............] 62.5 %",
        "# allocated 40.00, = outside the framework 10.00, + reserved by the allocator 50.00 GiB",
        "at the peak parameters 30.00, unsharded 10.00",
        "peak on rank 0, backward of layer 7, mlp.down_proj",
        "grouped GEMM       500.000    25.00       12",
        /* group, size and tier of every collective; 3 GiB in 10 ms are 322.1 GB/s */
        "all_gather (dense FSDP)  scale-out     16      4  3.000  10.000  322.1",
        "step time rests on 75 % measured, 25 % datasheet",
        "GiB = 2^30 bytes; GB/s = 10^9 bytes",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        check_contains(text, parts[i]);
    }
    assert_null(strstr(text, "To fit"));
    assert_null(strstr(text, "nan"));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    assert_true(g_strv_length(lines) <= 40);
    for (char **line = lines; *line != NULL; line++) {
        assert_true(g_utf8_strlen(*line, -1) <= 100);
    }
}

/* A device without a dense peak for the format: no MFU, and no other device's peak in its place. */
static void test_unknown_peak(void **state)
{
    Example *example = *state;
    example->device.peak_flops_per_s[DTYPE_BF16] = 0;
    example->result->mfu = example->result->hfu = (double)NAN;
    g_autofree char *text = summary_text(&example->plan, example->result);
    check_contains(text, "MFU unknown: test-gpu has no dense peak for bf16; 400.0 TFLOP/s per GPU");
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "HFU"));
}

static void test_does_not_fit(void **state)
{
    Example *example = *state;
    example->result->fits = FALSE;
    example->result->capacity_bytes = (int64_t)45 << 30;
    g_ptr_array_add(example->result->advice, g_strdup("recompute full saves 12.0 GiB"));
    g_ptr_array_add(example->result->warnings, g_strdup("expert 3 gets twice the mean"));
    g_autofree char *text = summary_text(&example->plan, example->result);
    check_contains(text, "50.00 of 45.00 GiB: DOES NOT FIT");
    check_contains(text, "To fit      recompute full saves 12.0 GiB");
    check_contains(text, "Warnings    expert 3 gets twice the mean");
    check_contains(text, "] 111.1 %");
}

/* What is allocated fits, what the allocator would like to hold does not. */
static void test_tight(void **state)
{
    Example *example = *state;
    example->result->capacity_bytes = (int64_t)55 << 30;
    g_autofree char *text = summary_text(&example->plan, example->result);
    check_contains(text, "50.00 of 55.00 GiB: fits, but the allocator's cache does not");
    assert_null(strstr(text, "free between blocks"));
}

/* The allocator was looked at: what is fragmented, and how often it has to give its cache back. */
static void test_phases(void **state)
{
    Example *example = *state;
    ResultPhases *phases = example->result->phases = g_new0(ResultPhases, 1);
    for (int i = 0; i < N_MOMENTS; i++) {
        phases->moments[i] = (ResultMoment){.fragmented_bytes = (int64_t)(i + 1) << 30, .largest_free_bytes = (int64_t)(i + 5) << 30};
    }
    example->result->capacity_bytes = (int64_t)55 << 30;
    g_autofree char *never = summary_text(&example->plan, example->result);
    check_contains(never, "50.00 of 55.00 GiB: fits\n");
    check_contains(never, "free between blocks in use: between steps 1.00, after forward 2.00, at the peak 3.00,\n  after backward 4.00; largest free "
                          "block at the peak 7.00\n");
    phases->n_retries = 3;
    g_autofree char *thrice = summary_text(&example->plan, example->result);
    check_contains(thrice, "fits, but the allocator's cache does not: it is emptied 3 times a step\n");
}

static void test_same_bytes(void **state)
{
    Example *example = *state;
    g_autofree char *one = summary_text(&example->plan, example->result);
    g_autofree char *two = summary_text(&example->plan, example->result);
    check_string(one, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_complete, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_peak, setup, teardown),
        cmocka_unit_test_setup_teardown(test_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_phases, setup, teardown),
        cmocka_unit_test_setup_teardown(test_same_bytes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
