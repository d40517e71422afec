/*
 * Golden training runs through virtual ranks: an independent implementation's loss, gradient norm and expert loads of every
 * step, met by the program of a plan on 2, 4 and 8 ranks with FSDP, replicas and expert parallelism. A step has two or three
 * sequences, so some ranks have none.
 *
 * Runs with a loss beside the main one (Mixtral's balancing, the indexers' KL) are not among them: programs have none.
 */
#include "tests/check.h"

#include <math.h>

#include "models/optim.h"
#include "models/trainer.h"
#include "sim/base/csv-read.h"
#include "sim/base/json-read.h"
#include "workloads/lower/lower.h"
#include "workloads/run/virtual-ranks.h"

typedef struct World {
    const char *run;
    int ranks, replicas, ep, steps; /* steps 0: all */
    gboolean reshard, recompute;
} World;

static const World worlds[] = {
    {"llama-tiny", 1, 1, 1, 0, TRUE, FALSE},     {"llama-tiny", 2, 1, 1, 0, TRUE, FALSE},
    {"llama-tiny", 4, 2, 1, 0, FALSE, TRUE},     {"llama-tiny", 8, 1, 1, 0, TRUE, TRUE},
    {"llama-tiny-muon", 2, 1, 1, 0, TRUE, FALSE}, {"llama-tiny-muon", 8, 2, 1, 0, TRUE, TRUE},
    {"k3-mini-lora", 2, 1, 2, 4, TRUE, FALSE},   {"k3-mini-lora", 4, 2, 2, 0, FALSE, TRUE},
    {"k3-mini-lora", 8, 1, 4, 4, TRUE, TRUE},
};

/* What a run is made of. */
typedef struct Golden {
    json_t *file; /* run.json */
    Model *model;
    BlockOptions options;
    Trainer *trainer; /* holds the first weights */
    Safetensors *data;
    Tensor *tokens, *labels;
    CsvTable *curve;
} Golden;

static double number(const Golden *golden, const char *key)
{
    return json_number_value(json_object_get(golden->file, key));
}

static Tensor *tensor_of(const Golden *golden, const char *name)
{
    GError *error = NULL;
    Tensor *tensor = safetensors_get(golden->data, name, &error);
    check_no_error(error);
    return tensor;
}

static void load_weights(Golden *golden, const char *folder, TrainerPart part, const char *name)
{
    GError *error = NULL;
    g_autofree char *path = g_build_filename(folder, name, NULL);
    g_autoptr(Safetensors) weights = safetensors_load(path, &error);
    check_no_error(error);
    trainer_load(golden->trainer, part, weights, &error);
    check_no_error(error);
}

static void golden_open(Golden *golden, const char *folder)
{
    GError *error = NULL;
    g_autofree char *run = g_build_filename(folder, "run.json", NULL), *config = g_build_filename(folder, "config.json", NULL);
    g_autofree char *curve = g_build_filename(folder, "curve.csv", NULL), *data = g_build_filename(folder, "tokens.safetensors", NULL);
    *golden = (Golden){.file = json_load_file(run, 0, NULL)};
    golden->model = model_load(config, NULL, &error);
    check_no_error(error);
    golden->curve = csv_table_load(curve, &error);
    check_no_error(error);
    golden->data = safetensors_load(data, &error);
    check_no_error(error);
    golden->tokens = tensor_of(golden, "tokens");
    golden->labels = tensor_of(golden, "labels");
    gboolean lora = number(golden, "lora_rank") > 0;
    golden->options = (BlockOptions){.compute = DTYPE_BF16, .lora = lora, .lora_rank = (int64_t)number(golden, "lora_rank")};
    golden->options.lora_attention = golden->options.lora_shared = golden->options.lora_experts = lora;
    golden->options.lora_scale = lora ? number(golden, "lora_alpha") / number(golden, "lora_rank") : 0;
    TrainerSettings settings = {.optim = OPTIM_adamw};
    golden->trainer = trainer_new(golden->model, &golden->options, &settings, TENSOR_F64);
    const char *base = json_string_value(json_object_get(golden->file, "base_weights"));
    load_weights(golden, folder, TRAINER_BASE, base != NULL ? base : "weights_init.safetensors");
    if (lora) {
        load_weights(golden, folder, TRAINER_ADAPTERS, "weights_init.safetensors");
    }
}

static void golden_close(Golden *golden)
{
    tensor_free(golden->tokens);
    tensor_free(golden->labels);
    safetensors_free(golden->data);
    csv_table_free(golden->curve);
    trainer_free(golden->trainer);
    model_free(golden->model);
    json_decref(golden->file);
}

static const Tensor *source_param(void *self, int64_t layer, int param)
{
    return trainer_param_value(self, layer, param);
}

static Plan *world_plan(const World *world, const Golden *golden, const char *config)
{
    GError *error = NULL;
    int64_t sequences = golden->tokens->dims[1], most = (sequences + world->ranks - 1) / world->ranks;
    gboolean lora = golden->options.lora, muon = g_strcmp0(json_string_value(json_object_get(golden->file, "optimizer")), "muon") == 0;
    g_autofree char *text = g_strdup_printf(
        "{\"model\": \"%s\", \"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": %d}, \"parallel\": {\"dp_replicate\": %d, \"ep\": %d, "
        "\"fsdp\": {\"reshard_after_forward\": %s}}, \"workload\": {%s \"seq_len\": %d, \"micro_batch\": %d}, \"memory\": {\"recompute\": "
        "\"%s\"}%s}",
        config, world->ranks, world->replicas, world->ep, world->reshard ? "true" : "false",
        lora ? "\"mode\": \"lora\", \"lora\": {\"rank\": 4, \"targets\": [\"attention\", \"shared\", \"experts\"]}," : "",
        (int)golden->tokens->dims[2], (int)most, world->recompute ? "full" : "none", muon ? ", \"optimizer\": {\"kind\": \"muon\"}" : "");
    g_autoptr(json_t) value = json_loads(text, 0, NULL);
    assert_non_null(value);
    Plan *plan = plan_from_json(value, "golden", NULL, &error);
    check_no_error(error);
    return plan;
}

static double curve_at(const Golden *golden, size_t step, const char *column)
{
    double value = 0;
    int found = csv_table_find(golden->curve, column);
    assert_true(found >= 0 && csv_table_number(golden->curve, step, (size_t)found, &value, NULL));
    return value;
}

static void compare_loads(const Golden *golden, const VirtualRanks *ranks, size_t step, int64_t layer)
{
    g_autofree char *name = g_strdup_printf("load.%d", (int)layer);
    int column = csv_table_find(golden->curve, name);
    if (column < 0 || virtual_ranks_loads(ranks, 0, layer) == NULL) {
        return;
    }
    g_auto(GStrv) cells = g_strsplit(csv_table_cell(golden->curve, step, (size_t)column), " ", -1);
    check_int((int64_t)g_strv_length(cells), golden->model->n_experts);
    for (int64_t e = 0; e < golden->model->n_experts; e++) {
        int64_t sum = 0;
        for (int64_t r = 0; r < virtual_ranks_n(ranks); r++) {
            sum += virtual_ranks_loads(ranks, r, layer)[e];
        }
        check_int(sum, g_ascii_strtoll(cells[e], NULL, 10));
    }
}

static void run_steps(const World *world, const Golden *golden, VirtualRanks *ranks)
{
    GError *error = NULL;
    int64_t sequences = golden->tokens->dims[1], length = golden->tokens->dims[2];
    size_t n_steps = world->steps > 0 ? (size_t)world->steps : (size_t)number(golden, "steps");
    virtual_ranks_deal(ranks, sequences);
    for (size_t step = 0; step < n_steps; step++) {
        const int64_t *tokens = golden->tokens->data, *labels = golden->labels->data;
        int64_t at = (int64_t)step * sequences * length;
        double loss, wanted = curve_at(golden, step, "loss");
        virtual_ranks_set_lr(ranks, curve_at(golden, step, "lr"));
        virtual_ranks_step(ranks, tokens + at, labels + at, &loss, &error);
        check_no_error(error);
        check_close(loss, wanted, 1e-8);
        check_close(virtual_ranks_grad_norm(ranks), curve_at(golden, step, "grad_norm"), 1e-7);
        for (int64_t layer = 0; layer < golden->model->n_layers; layer++) {
            compare_loads(golden, ranks, step, layer);
        }
    }
}

static void test_world(void **state)
{
    const World *world = *state;
    const char *more = g_getenv("MOESIM_GOLDEN_DIR");
    g_autofree char *shipped = check_source_path("models/golden");
    g_autofree char *folder = g_build_filename(more != NULL ? more : shipped, "train", world->run, NULL);
    g_autofree char *config = g_build_filename(folder, "config.json", NULL);
    if (!g_file_test(config, G_FILE_TEST_EXISTS)) {
        print_message("# %s: not in %s, name its folder in MOESIM_GOLDEN_DIR\n", world->run, folder);
        return;
    }
    Golden golden;
    golden_open(&golden, folder);
    g_autoptr(Plan) plan = world_plan(world, &golden, config);
    BlockOptions options = golden.options;
    options.ep_size = world->ep;
    g_autoptr(ModelGraph) graphs = model_graph_new(golden.model, &options);
    g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
    g_autofree Program **programs = g_new0(Program *, world->ranks);
    for (int r = 0; r < world->ranks; r++) {
        programs[r] = program;
    }
    const VirtualSource source = {source_param, golden.trainer};
    const VirtualOptions virtual = {.optim = {.beta1 = number(&golden, "beta1"), .beta2 = number(&golden, "beta2"),
                                              .eps = number(&golden, "eps"), .weight_decay = number(&golden, "weight_decay"),
                                              .momentum = number(&golden, "momentum")},
                                    .clip = number(&golden, "clip")};
    VirtualRanks *ranks = virtual_ranks_new(plan, graphs, programs, &source, &virtual);
    run_steps(world, &golden, ranks);
    virtual_ranks_free(ranks);
    golden_close(&golden);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(worlds)] = {{0}};
    char names[G_N_ELEMENTS(worlds)][64];
    for (size_t i = 0; i < G_N_ELEMENTS(worlds); i++) {
        g_snprintf(names[i], sizeof names[i], "%s on %d ranks, EP %d", worlds[i].run, worlds[i].ranks, worlds[i].ep);
        tests[i] = (struct CMUnitTest){names[i], test_world, NULL, NULL, (void *)(guintptr)&worlds[i]};
    }
    return _cmocka_run_group_tests("golden curves on ranks", tests, G_N_ELEMENTS(worlds), NULL, NULL);
}
