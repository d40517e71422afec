/*
 * Golden training runs through virtual ranks: an independent implementation's losses, gradient norm and expert loads of every
 * step, and its last weights, met by the program of a plan on 2, 4 and 8 ranks with FSDP, replicas and expert parallelism, or sharded optimizer states. A step has two or three
 * sequences, so some ranks have none. Losses beside the main one are met, too: Mixtral's balancing loss, which is over all
 * tokens of the step, its z-loss, and the KL loss of K3's indexers.
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
    int ranks, replicas, ep;
    gboolean reshard, recompute;
    const char *dispatch; /* NULL: all to all */
    gboolean selective;   /* recompute what is no product, exchange or attention */
    int overlap_chunks;   /* of tokens, whose rows travel while others are computed; 0: 1 */
    gboolean accumulates; /* a sequence after the other: as many micro-batches as sequences fall to a rank */
    const char *states;   /* parallel.sharding, or "layer_wise"; NULL: FSDP */
} World;

static const World worlds[] = {
    {"llama-tiny", 1, 1, 1, TRUE, FALSE},
    {"llama-tiny", 1, 1, 1, TRUE, TRUE, .accumulates = TRUE},
    {"llama-tiny", 2, 1, 1, TRUE, FALSE},
    {"llama-tiny", 3, 1, 1, FALSE, FALSE, .accumulates = TRUE},
    {"llama-tiny", 4, 2, 1, FALSE, TRUE},
    {"llama-tiny", 8, 1, 1, TRUE, TRUE},
    {"llama-tiny-muon", 2, 1, 1, TRUE, FALSE},
    {"llama-tiny-muon", 8, 2, 1, TRUE, TRUE},
    {"llama-tiny", 4, 1, 1, TRUE, FALSE, .states = "none"},
    {"llama-tiny-muon", 4, 1, 1, TRUE, FALSE, .states = "zero1"},
    {"llama-tiny-muon", 3, 1, 1, TRUE, FALSE, .states = "layer_wise"},
    {"llama-tiny-muon", 8, 2, 1, TRUE, TRUE, .states = "layer_wise"},
    {"mixtral-tiny", 1, 1, 1, TRUE, FALSE},
    {"mixtral-tiny", 2, 1, 2, TRUE, FALSE},
    {"mixtral-tiny", 2, 2, 1, TRUE, TRUE},
    {"mixtral-tiny", 4, 2, 2, FALSE, TRUE},
    {"mixtral-tiny", 4, 1, 4, TRUE, FALSE, .dispatch = "deepep", .selective = TRUE},
    {"mixtral-tiny", 8, 1, 8, TRUE, FALSE},
    {"mixtral-tiny", 8, 2, 2, TRUE, TRUE},
    {"mixtral-tiny", 8, 2, 2, TRUE, TRUE, .states = "layer_wise"},
    {"mixtral-tiny", 8, 2, 4, FALSE, FALSE, .dispatch = "all_gather", .selective = TRUE},
    {"k3-mini-lora", 2, 1, 2, TRUE, FALSE},
    {"k3-mini-lora", 4, 2, 2, FALSE, TRUE},
    {"k3-mini-lora", 8, 1, 4, TRUE, TRUE},
    {"k3-mini", 1, 1, 1, TRUE, FALSE},
    {"k3-mini", 1, 1, 1, TRUE, FALSE, .accumulates = TRUE},
    {"k3-mini", 2, 1, 2, TRUE, FALSE},
    {"k3-mini", 4, 2, 2, FALSE, TRUE},
    {"k3-mini", 2, 1, 2, TRUE, FALSE, .overlap_chunks = 2, .accumulates = TRUE},
    {"k3-mini", 4, 1, 4, TRUE, FALSE, .dispatch = "deepep", .selective = TRUE},
    {"k3-mini", 8, 1, 4, TRUE, TRUE},
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
    golden->options.aux_loss = number(golden, "aux_coeff");
    golden->options.aux_scope = BALANCE_GLOBAL_BATCH;
    golden->options.z_loss = number(golden, "z_coeff");
    golden->options.index_loss = number(golden, "kl_coeff");
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

/* Fields of the losses beside the main one, and of the exchange. */
static char *layer_fields(const World *world, const Golden *golden)
{
    GString *text = g_string_new(NULL);
    if (golden->model->n_experts > 0) {
        g_string_append_printf(text, ", \"moe\": {\"dispatch\": \"%s\", \"overlap_chunks\": %d",
                               world->dispatch != NULL ? world->dispatch : "all_to_all", MAX(world->overlap_chunks, 1));
        if (golden->options.aux_loss > 0) {
            g_string_append_printf(text, ", \"aux_loss_coeff\": %g, \"aux_loss_scope\": \"global_batch\", \"z_loss_coeff\": %g",
                                   golden->options.aux_loss, golden->options.z_loss);
        }
        if (number(golden, "bias_rate") > 0) {
            g_string_append_printf(text, ", \"balance\": \"bias\", \"balance_rate\": %g", number(golden, "bias_rate"));
        }
        g_string_append_c(text, '}');
    }
    if (golden->options.index_loss > 0 && !golden->options.lora) {
        g_string_append_printf(text, ", \"loss\": {\"index_kl_coeff\": %g}", golden->options.index_loss);
    }
    return g_string_free(text, FALSE);
}

static Plan *world_plan(const World *world, const Golden *golden, const char *config)
{
    GError *error = NULL;
    int64_t sequences = golden->tokens->dims[1], most = (sequences + world->ranks - 1) / world->ranks;
    int64_t micro_batch = world->accumulates ? 1 : most;
    gboolean lora = golden->options.lora, muon = g_strcmp0(json_string_value(json_object_get(golden->file, "optimizer")), "muon") == 0;
    g_autofree char *losses = layer_fields(world, golden);
    gboolean deals = g_strcmp0(world->states, "layer_wise") == 0;
    g_autofree char *sharding = world->states == NULL ? g_strdup_printf("\"fsdp\": {\"reshard_after_forward\": %s}", world->reshard ? "true" : "false")
                                                      : g_strdup_printf("\"sharding\": \"%s\"", deals ? "zero1" : world->states);
    g_autofree char *text = g_strdup_printf(
        "{\"model\": \"%s\", \"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": %d}, \"parallel\": {\"dp_replicate\": %d, \"ep\": %d, "
        "%s}, \"precision\": {\"parameters\": \"%s\"}, \"optimizer\": {\"kind\": \"%s\"%s}, \"workload\": {%s \"seq_len\": %d, \"micro_batch\": %d, \"global_batch\": %d}, \"memory\": {\"recompute\": "
        "\"%s\"}%s}",
        config, world->ranks, world->replicas, world->ep, sharding, lora || world->states != NULL ? "bf16" : "fp32", muon ? "muon" : "adamw",
        deals ? ", \"sharding\": \"layer_wise\"" : "",
        lora ? "\"mode\": \"lora\", \"lora\": {\"rank\": 4, \"targets\": [\"attention\", \"shared\", \"experts\"]}," : "",
        (int)golden->tokens->dims[2], (int)micro_batch, (int)(most * world->ranks), world->selective ? "selective" : world->recompute ? "full" : "none", losses);
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

/* All ranks have moved the selection biases of a layer alike; they read the trainer's. */
static void move_bias(const Golden *golden, const VirtualRanks *ranks, const Graph *graph, int64_t layer)
{
    int64_t n = golden->model->n_experts;
    const double *moved = virtual_ranks_biases(ranks, 0, layer);
    for (guint p = 0; p < graph->params->len; p++) {
        if (graph_param(graph, (int)p)->role != PARAM_BUFFER) {
            continue;
        }
        Tensor *bias = trainer_param_value(golden->trainer, layer, (int)p);
        assert_non_null(moved);
        check_int(tensor_numel(bias), n);
        for (int64_t e = 0; e < n; e++) {
            for (int64_t r = 1; r < virtual_ranks_n(ranks); r++) {
                check_close(virtual_ranks_biases(ranks, r, layer)[e], moved[e], 0);
            }
            tensor_set(bias, e, tensor_get(bias, e) + moved[e]);
        }
    }
}

static void run_steps(const World *world, const Golden *golden, const ModelGraph *graphs, VirtualRanks *ranks)
{
    GError *error = NULL;
    int64_t sequences = golden->tokens->dims[1], length = golden->tokens->dims[2];
    size_t n_steps = (size_t)number(golden, "steps");
    if (!world->accumulates) {
        virtual_ranks_deal(ranks, sequences);
    }
    for (size_t step = 0; step < n_steps; step++) {
        const int64_t *tokens = golden->tokens->data, *labels = golden->labels->data;
        int64_t at = (int64_t)step * sequences * length;
        double loss, wanted = curve_at(golden, step, "loss");
        virtual_ranks_set_lr(ranks, curve_at(golden, step, "lr"));
        virtual_ranks_step(ranks, tokens + at, labels + at, &loss, &error);
        check_no_error(error);
        check_close(loss, wanted, 1e-8);
        check_close(virtual_ranks_extra_loss(ranks), curve_at(golden, step, "extra_loss"), 1e-8);
        check_close(virtual_ranks_grad_norm(ranks), curve_at(golden, step, "grad_norm"), 1e-7);
        for (int64_t layer = 0; layer < golden->model->n_layers; layer++) {
            compare_loads(golden, ranks, step, layer);
            if (number(golden, "bias_rate") > 0) {
                move_bias(golden, ranks, model_graph_layer(graphs, layer), layer);
            }
        }
    }
}

/* Whole parameters put together from the shards go to the trainer, which knows the names of a checkpoint's tensors. */
static void collect_weights(const Golden *golden, const ModelGraph *graphs, const VirtualRanks *ranks)
{
    for (int64_t layer = -1; layer <= graphs->n_layers; layer++) {
        const Graph *graph = layer < 0                  ? graphs->embedding
                             : layer < graphs->n_layers ? model_graph_layer(graphs, layer)
                                                        : graphs->head;
        for (guint p = 0; p < graph->params->len; p++) {
            g_autoptr(Tensor) whole = virtual_ranks_param(ranks, VIRTUAL_VALUE, 0, layer, (int)p);
            Tensor *value = trainer_param_value(golden->trainer, layer, (int)p);
            for (int64_t i = 0; whole != NULL && i < tensor_numel(value); i++) {
                tensor_set(value, i, tensor_get(whole, i));
            }
        }
    }
}

/* The run's last weights; a file of float32 is as exact as that. */
static void compare_weights(const Golden *golden, const char *folder)
{
    GError *error = NULL;
    g_autofree char *path = g_build_filename(folder, "weights_final.safetensors", NULL);
    g_autoptr(Safetensors) weights = safetensors_load(path, &error);
    check_no_error(error);
    int n = 0;
    for (int i = 0; i < trainer_n_tensors(golden->trainer); i++) {
        g_autofree char *name = trainer_tensor_name(golden->trainer, i);
        g_autoptr(Tensor) wanted = safetensors_get(weights, name, NULL), found = trainer_tensor_value(golden->trainer, i);
        double worst = 0;
        for (int64_t k = 0; wanted != NULL && k < tensor_numel(wanted); k++) {
            worst = fmax(worst, fabs(tensor_get(wanted, k) - tensor_get(found, k)));
        }
        if (!(worst <= (wanted != NULL && wanted->type == TENSOR_F32 ? 1e-6 : 1e-8))) {
            fail_msg("%s ends %.3g off", name, worst);
        }
        n += wanted != NULL;
    }
    assert_true(n > 0);
}

/* Where a run lies: in the folder that MOESIM_GOLDEN_DIR names, or among those that are shipped. Caller frees. */
static char *run_folder(const World *world)
{
    const char *more = g_getenv("MOESIM_GOLDEN_DIR");
    g_autofree char *shipped = check_source_path("models/golden");
    return g_build_filename(more != NULL ? more : shipped, "train", world->run, NULL);
}

static void test_world(void **state)
{
    const World *world = *state;
    g_autofree char *folder = run_folder(world), *config = g_build_filename(folder, "config.json", NULL);
    Golden golden;
    golden_open(&golden, folder);
    g_autoptr(Plan) plan = world_plan(world, &golden, config);
    BlockOptions options = golden.options;
    options.ep_size = world->ep;
    options.token_dispatch = plan_sends_tokens(plan);
    options.overlap_chunks = plan->moe.overlap_chunks;
    options.dispatch_to_all = plan->moe.dispatch == PLAN_DISPATCH_ALL_GATHER;
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
    run_steps(world, &golden, graphs, ranks);
    collect_weights(&golden, graphs, ranks);
    compare_weights(&golden, folder);
    virtual_ranks_free(ranks);
    golden_close(&golden);
}

/* An argument is how the names of the runs to be taken begin. */
int main(int argc, char **argv)
{
    struct CMUnitTest tests[G_N_ELEMENTS(worlds)] = {{0}};
    char names[G_N_ELEMENTS(worlds)][64];
    size_t n = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(worlds); i++) {
        g_autofree char *folder = run_folder(&worlds[i]);
        gboolean wanted = argc < 2 || g_str_has_prefix(worlds[i].run, argv[1]), exists = g_file_test(folder, G_FILE_TEST_IS_DIR);
        if (wanted && !exists) {
            print_message("# %s: not in %s, name its folder in MOESIM_GOLDEN_DIR\n", worlds[i].run, folder);
        } else if (wanted) {
            g_snprintf(names[n], sizeof names[n], "%s on %d ranks, EP %d%s%s%s%s%s", worlds[i].run, worlds[i].ranks, worlds[i].ep,
                       worlds[i].dispatch != NULL ? ", " : "", worlds[i].dispatch != NULL ? worlds[i].dispatch : "",
                       worlds[i].states != NULL ? ", " : "", worlds[i].states != NULL ? worlds[i].states : "",
                       worlds[i].accumulates ? ", in micro-batches" : "");
            tests[n] = (struct CMUnitTest){names[n], test_world, NULL, NULL, (void *)(guintptr)&worlds[i]};
            n++;
        }
    }
    return _cmocka_run_group_tests("golden curves on ranks", tests, n, NULL, NULL);
}
