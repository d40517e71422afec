#include "tests/check.h"

#include "models/params.h"
#include "sim/base/json-read.h"

/* Counts that model cards and published files give, and sums over the matrices of their layers. */
static const struct {
    const char *preset;
    int64_t total, active, active_without_embedding, vision, mtp;
} cases[] = {
    {"kimi-k3", 2779931834976, 105364017760, 104189612640, 401214464 + 46144512, 0},
    {"kimi-k3.1-pro", 2780110361184, 105542543968, 104368138848, 401214464 + 46144512, 0},
    {"kimi-k3-mini", 1139312, 630800, 598032, 41504 + 24640, 0},
    {"deepseek-v3", 671026419200, 37552297472, 36625618432, 0, 11610068224},
    {"deepseek-v3.2-exp", 671877944064, 38403822336, 37477143296, 0, -1},
    {"kimi-k2-instruct", 1026408232448, 32861500928, 31687095808, 0, 0},
    {"kimi-linear-48b-a3b", 49122681728, 3484459904, 3106972544, 0, 0},
    {"qwen3-235b-a22b", 235093634560, 22190763520, 21568433664, 0, 0},
    {"qwen3-30b-a3b", 30532122624, 3353032704, 3041867776, 0, 0},
    {"qwen3-next-80b-a3b", 79674391296, 3874929408, 3563764480, 0, 1650471424},
    {"mixtral-8x7b", 46702792704, 12879925248, 12748853248, 0, 0},
    {"mixtral-8x22b", 140620634112, 39152031744, 38955423744, 0, 0},
    {"gpt-oss-120b", 116829156672, 5711982912, 5132849472, 0, 0},
    {"glm-4.5", 352797829024, 33632266144, 32856319904, 0, 3988069792},
    {"glm-4.6", 352797829024, 33632266144, 32856319904, 0, 3988069792},
    {"glm-5", 743911218432, 41784728832, 40833146112, 0, -1},
    {"minimax-m2", 228689764864, 11030553088, 10415956480, 0, 0},
    {"llama-3.1-8b", 8030261248, 8030261248, -1, 0, 0},
    {"llama-3.1-70b", 70553706496, 70553706496, -1, 0, 0},
    {"llama-3.1-405b", 405853388800, 405853388800, -1, 0, 0},
    {"olmoe-1b-7b", 6919161856, 1282017280, 1178994688, 0, 0},
    {"nemotron-3-nano-30b-a3b", 31577940288, 3580076352, 3227754816, 0, 0},
    {"nemotron-3-super-120b-a12b", 120668707840, 12770237440, 12233366528, 0, 0},
    {"nemotron-3-ultra-550b-a55b", 549308993536, 56058843136, 54985101312, 0, 0},
};

static void test_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_load(cases[i].preset, NULL, &error);
        check_no_error(error);
        ParamCounts counts;
        param_counts(model, &counts);
        print_message("# %s\n", cases[i].preset);
        check_int(counts.total, cases[i].total);
        check_int(counts.active, cases[i].active);
        check_int(counts.vision, cases[i].vision);
        if (cases[i].active_without_embedding >= 0) {
            check_int(counts.active_without_embedding, cases[i].active_without_embedding);
        }
        if (cases[i].mtp >= 0) {
            check_int(counts.mtp, cases[i].mtp);
        }
    }
}

static void test_every_preset_is_in_the_table(void **state)
{
    (void)state;
    g_auto(GStrv) names = model_preset_names();
    check_int(g_strv_length(names), G_N_ELEMENTS(cases));
}

/* Parts of one layer or of the model, as published or as sums over matrices. */
static const struct {
    const char *preset;
    int64_t layer; /* -1: whole model */
    ParamPart part;
    int64_t params;
} parts[] = {
    {"kimi-k3", 0, PARAM_PART_KDA, 443740384},
    {"kimi-k3", 3, PARAM_PART_MLA, 232196096},
    {"kimi-k3", 92, PARAM_PART_MLA, 232196096},
    {"kimi-k3", 0, PARAM_PART_DENSE_MLP, 726663168},
    {"kimi-k3", 1, PARAM_PART_ROUTER, 6423424},
    {"kimi-k3", 1, PARAM_PART_SHARED_EXPERTS, 132120576},
    {"kimi-k3", 1, PARAM_PART_LATENT, 51383808},
    {"kimi-k3", 1, PARAM_PART_ROUTED_EXPERTS, 896 * INT64_C(33030144)},
    {"kimi-k3", -1, PARAM_PART_KDA, 30618086496},
    {"kimi-k3", -1, PARAM_PART_MLA, 5572706304},
    {"kimi-k3", -1, PARAM_PART_ROUTER, 590955008},
    {"kimi-k3", -1, PARAM_PART_SHARED_EXPERTS, 12155092992},
    {"kimi-k3", -1, PARAM_PART_LATENT, 4727310336},
    {"kimi-k3", -1, PARAM_PART_ROUTED_EXPERTS, 2722740830208},
    {"kimi-k3", -1, PARAM_PART_EMBEDDING, 1174405120},
    {"kimi-k3", -1, PARAM_PART_HEAD, 1174405120},
    {"kimi-k3", -1, PARAM_PART_VISION, 401214464},
    {"kimi-k3", -1, PARAM_PART_PROJECTOR, 46144512},
    {"kimi-k3.1-pro", 3, PARAM_PART_INDEXER, 7438592},
    {"kimi-k3.1-pro", -1, PARAM_PART_INDEXER, 178526208},
    {"deepseek-v3.2-exp", 0, PARAM_PART_INDEXER, 13959424},
    {"glm-5", 77, PARAM_PART_INDEXER, 9371904},
    {"kimi-linear-48b-a3b", 0, PARAM_PART_KDA, 39514272},
    {"kimi-linear-48b-a3b", 26, PARAM_PART_MLA, 29114880},
    {"qwen3-next-80b-a3b", 0, PARAM_PART_GDN, 33718464},
    {"qwen3-next-80b-a3b", 47, PARAM_PART_GQA, 27263488},
};

static void test_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_load(parts[i].preset, NULL, &error);
        check_no_error(error);
        ParamCounts counts;
        int64_t layer[N_PARAM_PARTS] = {0};
        param_counts(model, &counts);
        if (parts[i].layer >= 0) {
            param_layer_parts(model, parts[i].layer, layer);
        }
        check_int(parts[i].layer < 0 ? counts.parts[parts[i].part] : layer[parts[i].part], parts[i].params);
    }
}

static void test_text_of_cut_models(void **state)
{
    (void)state;
    static const struct {
        int64_t layers;
        double params; /* published with four digits */
    } cut[] = {{4, 94.0e9}, {8, 214.7e9}, {93, 2779.5e9}};
    for (size_t i = 0; i < G_N_ELEMENTS(cut); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) overrides = json_pack("{s:I}", "num_hidden_layers", (json_int_t)cut[i].layers);
        g_autoptr(Model) model = model_load("kimi-k3", overrides, &error);
        check_no_error(error);
        ParamCounts counts;
        param_counts(model, &counts);
        check_int(model->n_layers, cut[i].layers);
        check_close((double)(counts.total - counts.vision), cut[i].params, 6e-4);
        if (cut[i].layers == 4) { /* a run with EP8 reported it for every rank */
            check_int(param_counts_per_ep_rank(&counts, 8, FALSE), 16306993312);
            check_int(param_counts_per_ep_rank(&counts, 8, TRUE), 16306993312 + 3 * 896);
        }
    }
}

static void test_lora(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("kimi-k3", NULL, &error);
    check_no_error(error);
    check_int(param_count_lora(model, &(ParamLora){.rank = 16, .attention = TRUE, .shared = TRUE}), 258158592);
    check_int(param_count_lora(model, &(ParamLora){.rank = 16, .experts = TRUE}), 26336034816);
    check_int(param_count_lora(model, &(ParamLora){.rank = 16, .experts = TRUE, .shared_a = TRUE}), 12845449216);
    g_autoptr(Model) mini = model_load("kimi-k3-mini", NULL, &error);
    check_no_error(error);
    check_int(param_count_lora(mini, &(ParamLora){.rank = 4, .attention = TRUE, .shared = TRUE, .experts = TRUE}),
              171936);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_every_preset_is_in_the_table),
        cmocka_unit_test(test_parts),     cmocka_unit_test(test_text_of_cut_models),
        cmocka_unit_test(test_lora),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
