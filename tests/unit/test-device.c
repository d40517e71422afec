/* Descriptors: every preset loads and says where each value comes from; what a descriptor gets wrong is named. */
#include "tests/check.h"

#include "hw/device.h"
#include "hw/law.h"
#include "sim/base/error.h"

static void test_presets(void **state)
{
    (void)state;
    g_auto(GStrv) names = device_preset_names();
    assert_true(g_strv_length(names) >= 1);
    for (char **name = names; *name != NULL; name++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Device) device = device_load(*name, &error);
        check_no_error(error);
        check_string(device->name, *name);
        assert_true(device->usable_bytes > 0 && device->usable_bytes <= device->hbm_bytes + device->hbm_bytes / 10);
        assert_true(device->peak_flops_per_s[DTYPE_BF16] >= 1e14);
        for (int i = 0; i < N_DEVICE_VALUES; i++) {
            const DeviceOrigin *origin = &device->origins[i];
            assert_true(origin->source == NULL || (origin->source[0] != '\0' && origin->confidence != NULL));
        }
        assert_non_null(device->origins[DEVICE_hbm_bytes].source);
        assert_null(device->origins[DEVICE_hbm_bytes].from);
    }
}

/* The usual mistakes about this part: sparse peaks, PCIe both ways, decimal memory. */
static void test_h200(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    check_no_error(error);
    check_close(device->peak_flops_per_s[DTYPE_BF16], 989e12, 1e-9);
    check_close(device->peak_flops_per_s[DTYPE_FP8], 1979e12, 1e-9);
    check_int(device->hbm_bytes, 141000000000);
    check_close(device->scale_up_bytes_per_s, 450e9, 1e-9);
    check_int(device->workspace_bytes, 64 << 20);
    check_int(device->n_sms, 132);
    assert_true(device->laws->fits[LAW_gemm].fitted && device->laws->fits[LAW_gemm].own);
    assert_null(device->laws_from);
}

#define NEEDED                                                                                                         \
    "\"hbm_bytes\": {\"value\": \"80 GB\", \"source\": \"s\"}, \"hbm_bytes_per_s\": {\"value\": \"2 TB/s\", "          \
    "\"source\": \"s\"}, "                                                                                             \
    "\"peak_bf16\": {\"value\": \"300 TFLOP/s\", \"source\": \"s\"}, \"n_sms\": {\"value\": 100, \"source\": \"s\"}, " \
    "\"scale_up_bytes_per_s\": {\"value\": \"300 GB/s\", \"source\": \"s\"}, "                                         \
    "\"scale_out_bytes_per_s\": {\"value\": \"200 Gb/s\", \"source\": \"s\"}, "                                        \
    "\"host_link_bytes_per_s\": {\"value\": \"31 GB/s\", \"source\": \"s\"}, "                                         \
    "\"gpus_per_node\": {\"value\": 8, \"source\": \"s\"}, \"domain_gpus\": {\"value\": 8, \"source\": \"s\"}"

static const struct {
    const char *text;
    const char *message;
} mistakes[] = {
    {"{\"name\": \"x\", \"values\": {}}", "peak_bf16 is missing"},
    {"{\"name\": \"x\", \"values\": {\"hbm_bytes\": {\"value\": \"80 GB\"}}}", "values.hbm_bytes.source"},
    {"{\"name\": \"x\", \"values\": {\"hbm_byte\": {\"value\": \"80 GB\", \"source\": \"s\"}}}", "hbm_byte"},
    {"{\"name\": \"x\", \"like\": \"h200-sxm\", \"values\": {\"peak_bf16\": {\"value\": \"3 TFLOP/s\", \"source\": "
     "\"s\"}}}",
     "hbm_bytes is missing"},
    {"{\"name\": \"x\", \"like\": \"h300-sxm\", \"values\": {}}", "no hardware preset \"h300-sxm\""},
    {"{\"name\": \"x\", \"like\": \"h200-sxm\", \"values\": {" NEEDED "}, \"laws\": {\"gem\": {}}}", "laws.gem"},
    {"{\"like\": \"h200-sxm\", \"values\": {" NEEDED "}}", "name"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"laws\": {\"gemm\": {}}}", "laws.gemm.parameters: missing"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"laws\": {\"sort\": {}}}", "laws.sort.parameters: missing"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"laws\": {\"gemm\": {\"parameters\": {\"tensor_fraction\": 0}}}}",
     "laws.gemm.parameters.tensor_fraction: must be"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"scale_out_bytes_per_s\": {\"value\": \"0.001 B/s\", \"source\": \"s\"}}}",
     "less than 1 MB/s"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"gpus_per_host\": {\"value\": 3, \"source\": \"s\"}}}",
     "gpus_per_host has to divide gpus_per_node"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"domain_gpus\": {\"value\": 12, \"source\": \"s\"}}}",
     "domain_gpus has to divide gpus_per_node"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"peak_bf16\": {\"value\": 989, \"source\": \"s\"}}}", "less than 1 GFLOP/s"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"matmul_flops_per_s\": {\"value\": 7, \"source\": \"s\"}}}", "less than 1 GFLOP/s"},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"domain_gpus\": {\"value\": 3, \"source\": \"s\"}}}",
     "domain_gpus has to divide gpus_per_node"},
    {"{\"name\": \"x\", \"base\": \"gb200\", \"values\": {\"gpus_per_node\": {\"value\": 5, \"source\": \"s\"}}}", "or be a multiple of it"},
    {"{\"name\": \"x\", \"base\": \"h300-sxm\", \"values\": {}}", "no hardware preset \"h300-sxm\""},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"like\": \"h200-sxm\"}", "like: has no effect beside \"base\""},
    {"{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"n_sms\": {\"value\": 0, \"source\": \"s\"}}}", "n_sms"},
};

static Device *load_text(const char *text, GError **error)
{
    g_autofree char *dir = g_dir_make_tmp("moesim-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "x.json", NULL);
    assert_true(g_file_set_contents(path, text, -1, NULL));
    Device *device = device_load(path, error);
    g_unlink(path);
    g_rmdir(dir);
    return device;
}

static void test_mistakes(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(mistakes); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Device) device = load_text(mistakes[i].text, &error);
        assert_null(device);
        check_error(&error, MOESIM_ERROR_INPUT, mistakes[i].message);
    }
}

static void test_like(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Device) device = load_text("{\"name\": \"x\", \"like\": \"h200-sxm\", \"values\": {" NEEDED "}}", &error);
    check_no_error(error);
    check_int(device->hbm_bytes, 80000000000);
    check_string(device->laws_from, "h200-sxm");
    check_string(device->origins[DEVICE_eager_op_ns].from, "h200-sxm");
    check_close(device->peak_flops_per_s[DTYPE_FP8], 0.0, 1e-9); /* formats are not taken over */
    assert_true(device->laws->fits[LAW_gemm].fitted && !device->laws->fits[LAW_gemm].own);
    g_autoptr(json_t) json = device_to_json(device);
    assert_true(json_array_size(json_object_get(json, "values")) > 10);
}

/* The same device in another machine: all is as it was but for what is said, its evidence too. */
static void test_base(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Device) preset = device_load("h200-sxm", NULL);
    g_autoptr(Device) device = load_text("{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"scale_out_bytes_per_s\": "
                                         "{\"value\": \"25 GB/s\", \"source\": \"s\"}}}", &error);
    check_no_error(error);
    check_close(device->scale_out_bytes_per_s, 25e9, 1e-9);
    check_int(device->usable_bytes, preset->usable_bytes);
    check_close(device->peak_flops_per_s[DTYPE_FP8], preset->peak_flops_per_s[DTYPE_FP8], 1e-9);
    assert_true(device->laws->fits[LAW_gemm].own && device->laws_from == NULL);
    check_string(device->origins[DEVICE_hbm_bytes].source, preset->origins[DEVICE_hbm_bytes].source);
    g_autoptr(Device) tuned = load_text("{\"name\": \"x\", \"base\": \"h200-sxm\", \"laws\": {\"gemm\": {\"parameters\": "
                                        "{\"fixed_ns\": 1000}}}}", &error);
    check_no_error(error);
    for (int k = 0; k < law_form(LAW_gemm)->n_params; k++) { /* of a law, too, what is not said is taken over */
        gboolean said = strcmp(law_form(LAW_gemm)->params[k].name, "fixed_ns") == 0;
        check_close(tuned->laws->fits[LAW_gemm].params[k], said ? 1000 : preset->laws->fits[LAW_gemm].params[k], 1e-12);
    }
    g_autoptr(Device) smaller = load_text("{\"name\": \"x\", \"base\": \"h200-sxm\", \"values\": {\"hbm_bytes\": "
                                          "{\"value\": \"96 GB\", \"source\": \"s\"}}}", &error);
    check_no_error(error);
    check_int(smaller->usable_bytes, 96000000000); /* what is usable of the base's memory says nothing of other memory */
}

static void test_unknown(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    assert_null(device_load("h200-sxn", &error));
    check_error(&error, MOESIM_ERROR_INPUT, "did you mean \"h200-sxm\"");
}

int main(void)
{
    const struct CMUnitTest group[] = {
        cmocka_unit_test(test_presets), cmocka_unit_test(test_h200),    cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_like),    cmocka_unit_test(test_base),    cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(group, NULL, NULL);
}
