#include "models/golden-train.h"

#include <math.h>
#include <string.h>

#include "models/trainer.h"
#include "sim/base/csv-read.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* How a run is set up: run.json. */
typedef struct RunFile {
    TrainerSettings settings;
    BlockOptions options;
    int64_t steps;
    char *base_weights; /* relative path, or NULL */
} RunFile;

/* A run under way. */
typedef struct TrainRun {
    const char *folder;
    TensorType real;
    Model *model;
    RunFile file;
    Trainer *trainer;
    Tensor *tokens, *labels; /* [steps, sequences, length] */
    CsvTable *curve;
    GoldenTrainResult *result;
} TrainRun;

static char *in_folder(const TrainRun *run, const char *name)
{
    return g_build_filename(run->folder, name, NULL);
}

/* Notes an error as a part of its bound. */
static void note(GoldenTrainResult *result, double *worst, double part, const char *what, int64_t step)
{
    *worst = part > *worst || isnan(part) ? part : *worst;
    if (!(part <= 1)) {
        if (result->passed) {
            g_snprintf(result->message, sizeof result->message,
                       "%s is off by %.3g of its bound at step %" G_GINT64_FORMAT, what, part, step);
        }
        result->passed = FALSE;
    }
}

static void run_file_settings(JsonObject *json, RunFile *file)
{
    static const char *const optims[] = {"adamw", "muon"};
    TrainerSettings *s = &file->settings;
    s->optim = json_object_choice(json, "optimizer", optims, 2, 0) == 0 ? OPTIM_adamw : OPTIM_muon;
    s->lr = json_object_number(json, "lr", 0, 1e9, 0);
    s->warmup = json_object_int(json, "warmup", 0, G_MAXINT32, 0);
    s->beta1 = json_object_number(json, "beta1", 0, 1, 0);
    s->beta2 = json_object_number(json, "beta2", 0, 1, 0);
    s->eps = json_object_number(json, "eps", 0, 1, 0);
    s->weight_decay = json_object_number(json, "weight_decay", 0, 1e9, 0);
    s->momentum = json_object_number(json, "momentum", 0, 1, 0);
    s->clip = json_object_number(json, "clip", 0, 1e9, 0);
    s->bias_rate = json_object_number(json, "bias_rate", 0, 1e9, 0);
    file->steps = json_object_int(json, "steps", 1, G_MAXINT32, 1);
    BlockOptions *o = &file->options;
    o->compute = DTYPE_FP64;
    o->lora_rank = json_object_int(json, "lora_rank", 0, G_MAXINT32, 0);
    o->lora = o->lora_attention = o->lora_shared = o->lora_experts = o->lora_rank > 0;
    o->lora_scale = o->lora ? json_object_number(json, "lora_alpha", 0, 1e9, 1) / (double)o->lora_rank : 0;
    o->aux_loss = json_object_number(json, "aux_coeff", 0, 1e9, 0);
    o->z_loss = json_object_number(json, "z_coeff", 0, 1e9, 0);
    o->index_loss = json_object_number(json, "kl_coeff", 0, 1e9, 0);
    file->base_weights = g_strdup(json_object_string(json, "base_weights", NULL));
}

static gboolean run_file_load(const char *path, RunFile *file, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, error);
    JsonObject *json = doc != NULL ? json_doc_open(doc, error) : NULL;
    if (json == NULL) {
        return FALSE;
    }
    run_file_settings(json, file);
    return json_object_close(json, TRUE, error);
}

static gboolean load_part(TrainRun *run, TrainerPart part, const char *name, GError **error)
{
    g_autofree char *path = in_folder(run, name);
    g_autoptr(Safetensors) weights = safetensors_load(path, error);
    return weights != NULL && trainer_load(run->trainer, part, weights, error);
}

static gboolean load_tokens(TrainRun *run, GError **error)
{
    g_autofree char *path = in_folder(run, "tokens.safetensors");
    g_autoptr(Safetensors) file = safetensors_load(path, error);
    run->tokens = file != NULL ? safetensors_get(file, "tokens", error) : NULL;
    run->labels = run->tokens != NULL ? safetensors_get(file, "labels", error) : NULL;
    if (run->labels == NULL) {
        return FALSE;
    }
    gboolean fits = run->tokens->n_dims == 3 && run->labels->n_dims == 3 && run->tokens->type == TENSOR_I64 &&
                    run->labels->type == TENSOR_I64 &&
                    memcmp(run->tokens->dims, run->labels->dims, 3 * sizeof(int64_t)) == 0;
    if (!fits || run->tokens->dims[0] < run->file.steps) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: tokens and labels must be integers [steps, sequences, length]", path);
        return FALSE;
    }
    return TRUE;
}

static gboolean run_load(TrainRun *run, GError **error)
{
    g_autofree char *config = in_folder(run, "config.json"), *run_json = in_folder(run, "run.json"),
                    *curve = in_folder(run, "curve.csv");
    run->model = model_load(config, NULL, error);
    if (run->model == NULL || !run_file_load(run_json, &run->file, error) || !load_tokens(run, error)) {
        return FALSE;
    }
    run->curve = csv_table_load(curve, error);
    if (run->curve == NULL) {
        return FALSE;
    }
    run->trainer = trainer_new(run->model, &run->file.options, &run->file.settings, run->real);
    const char *base = run->file.base_weights != NULL ? run->file.base_weights : "weights_init.safetensors";
    return load_part(run, TRAINER_BASE, base, error) &&
           (!run->file.options.lora || load_part(run, TRAINER_ADAPTERS, "weights_init.safetensors", error));
}

/* Column of the curve at a step; 0 if it is missing. */
static double curve_at(const TrainRun *run, int64_t step, const char *name)
{
    double value = 0;
    int column = csv_table_find(run->curve, name);
    if (column >= 0 && (size_t)step <= csv_table_n_rows(run->curve)) {
        csv_table_number(run->curve, (size_t)step - 1, (size_t)column, &value, NULL);
    }
    return value;
}

/* Relative bounds of loss and gradient norm at a step (1-based); 0 = not held to one. */
static void step_bounds(const TrainRun *run, int64_t step, double *ret_loss, double *ret_norm)
{
    gboolean parts = run->model->n_experts > 0 && run->model->lin_heads > 0; /* trajectories part in float32 */
    if (run->real == TENSOR_F64) {
        *ret_loss = 1e-8;
        *ret_norm = 1e-7;
    } else if (step == 1) {
        *ret_loss = 1e-6;
        *ret_norm = 2e-5;
    } else if (!parts) {
        *ret_loss = 1e-5;
        *ret_norm = 5e-5;
    } else {
        *ret_loss = step <= 10 ? 2e-5 : 1e-1;
        *ret_norm = step <= 10 ? 2e-3 : 0;
    }
}

/* Loads of one layer at a step: equal, or later in float32 within a fifth of the step's tokens. */
static void compare_loads(TrainRun *run, int64_t step, int64_t layer)
{
    const Tensor *loads = trainer_loads(run->trainer, layer);
    g_autofree char *name = g_strdup_printf("load.%" G_GINT64_FORMAT, layer);
    int column = csv_table_find(run->curve, name);
    if (loads == NULL || column < 0) {
        return;
    }
    g_auto(GStrv) cells = g_strsplit(csv_table_cell(run->curve, (size_t)step - 1, (size_t)column), " ", -1);
    int64_t slack = run->real == TENSOR_F64 || step <= 5 ? 0 : run->tokens->dims[1] * run->tokens->dims[2] / 5;
    gboolean same = (int64_t)g_strv_length(cells) == tensor_numel(loads);
    for (int64_t e = 0; same && e < tensor_numel(loads); e++) {
        int64_t off = g_ascii_strtoll(cells[e], NULL, 10) - ((const int64_t *)loads->data)[e];
        same = off <= slack && off >= -slack;
    }
    if (!same) {
        run->result->loads = FALSE;
        double ignored = 0;
        note(run->result, &ignored, (double)INFINITY, name, step);
    }
}

static void compare_step(TrainRun *run, int64_t step, const TrainerStep *got)
{
    GoldenTrainResult *r = run->result;
    double loss_bound, norm_bound;
    step_bounds(run, step, &loss_bound, &norm_bound);
    double loss = curve_at(run, step, "loss"), extra = curve_at(run, step, "extra_loss"),
           norm = curve_at(run, step, "grad_norm");
    note(r, &r->loss, fabs(got->loss - loss) / (loss_bound * fmax(1, fabs(loss))), "loss", step);
    note(r, &r->loss, fabs(got->extra_loss - extra) / (loss_bound * fmax(1, fabs(extra))), "extra_loss", step);
    if (norm_bound > 0) {
        note(r, &r->grad_norm, fabs(got->grad_norm - norm) / (norm_bound * norm), "grad_norm", step);
    }
    double ignored = 0;
    note(r, &ignored, fabs(got->lr - curve_at(run, step, "lr")) / 1e-12, "lr", step);
    for (int64_t i = 0; i < run->model->n_layers; i++) {
        compare_loads(run, step, i);
    }
}

/* Norm, sum, sum with cosines and last element of a gradient, against one row of grad_step1.csv. */
static gboolean compare_gradient(TrainRun *run, const CsvTable *table, size_t row, const Tensor *grad, GError **error)
{
    int64_t n = tensor_numel(grad);
    double squares = 0, got[4] = {0}, want[4];
    static const char *const columns[] = {"norm", "sum", "wsum", "last"};
    for (int64_t i = 0; i < n; i++) {
        double g = tensor_get(grad, i);
        squares += g * g;
        got[1] += g;
        got[2] += g * cos(0.11 * (double)i);
        got[3] = g;
    }
    got[0] = sqrt(squares);
    for (int k = 0; k < 4; k++) {
        int column = csv_table_find(table, columns[k]);
        if (column < 0 || !csv_table_number(table, row, (size_t)column, &want[k], error)) {
            return FALSE;
        }
    }
    double rel = run->real == TENSOR_F64 ? 1e-8 : 2e-3,
           bound = rel * want[0] * sqrt((double)n) + (run->real == TENSOR_F64 ? 1e-13 : 1e-6);
    for (int k = 0; k < 4; k++) {
        note(run->result, &run->result->step1_grad, fabs(got[k] - want[k]) / bound, csv_table_cell(table, row, 0), 1);
    }
    return TRUE;
}

/* Row of a name in the first column, or -1; rows and tensors mostly come in the same order. */
static int64_t find_row(const CsvTable *table, const char *name, size_t hint)
{
    size_t n = csv_table_n_rows(table);
    for (size_t i = 0; i < n; i++) {
        size_t row = (hint + i) % n;
        if (strcmp(csv_table_cell(table, row, 0), name) == 0) {
            return (int64_t)row;
        }
    }
    return -1;
}

static gboolean compare_step1(TrainRun *run, GError **error)
{
    g_autofree char *path = in_folder(run, "grad_step1.csv");
    g_autoptr(CsvTable) table = csv_table_load(path, error);
    size_t n_rows = table != NULL ? csv_table_n_rows(table) : 0, found = 0;
    for (int i = 0; table != NULL && i < trainer_n_tensors(run->trainer); i++) {
        g_autofree char *name = trainer_tensor_name(run->trainer, i);
        int64_t row = n_rows > 0 ? find_row(table, name, found) : -1;
        if (row < 0) {
            continue;
        }
        found++;
        g_autoptr(Tensor) grad = trainer_tensor_grad(run->trainer, i);
        if (!compare_gradient(run, table, (size_t)row, grad, error)) {
            return FALSE;
        }
    }
    double ignored = 0;
    note(run->result, &ignored, found == n_rows ? 0 : (double)INFINITY,
         "a tensor of grad_step1.csv that the model lacks", 1);
    return table != NULL;
}

/* Final weights by absolute difference; a file in float32 is held to what its rounding allows. */
static gboolean compare_weights(TrainRun *run, GError **error)
{
    g_autofree char *path = in_folder(run, "weights_final.safetensors");
    g_autoptr(Safetensors) weights = safetensors_load(path, error);
    if (weights == NULL) {
        return FALSE;
    }
    for (int i = 0; i < trainer_n_tensors(run->trainer); i++) {
        g_autofree char *name = trainer_tensor_name(run->trainer, i);
        g_autoptr(Tensor) want = safetensors_get(weights, name, NULL), got = trainer_tensor_value(run->trainer, i);
        double worst = 0;
        if (want == NULL) {
            continue;
        }
        for (int64_t k = 0; k < tensor_numel(want); k++) {
            worst = fmax(worst, fabs(tensor_get(want, k) - tensor_get(got, k)));
        }
        note(run->result, &run->result->weights, worst / (want->type == TENSOR_F64 ? 1e-8 : 1e-6), name,
             run->result->n_steps);
    }
    return TRUE;
}

static gboolean run_steps(TrainRun *run, int64_t max_steps, GError **error)
{
    int64_t steps = max_steps > 0 ? MIN(max_steps, run->file.steps) : run->file.steps;
    int64_t sequences = run->tokens->dims[1], length = run->tokens->dims[2];
    for (int64_t step = 1; step <= steps; step++) {
        int64_t at = (step - 1) * sequences * length;
        TrainerBatch batch = {sequences, length, (const int64_t *)run->tokens->data + at,
                              (const int64_t *)run->labels->data + at};
        TrainerStep got;
        if (!trainer_step(run->trainer, &batch, &got, error)) {
            return FALSE;
        }
        run->result->n_steps = step;
        compare_step(run, step, &got);
        if (step == 1 && !compare_step1(run, error)) {
            return FALSE;
        }
    }
    return steps < run->file.steps || run->real == TENSOR_F32 || compare_weights(run, error);
}

gboolean golden_train(const char *folder, TensorType real, int64_t max_steps, GoldenTrainResult *ret_result,
                      GError **error)
{
    *ret_result = (GoldenTrainResult){.passed = TRUE, .loads = TRUE};
    TrainRun run = {.folder = folder, .real = real, .result = ret_result};
    gboolean ok = run_load(&run, error) && run_steps(&run, max_steps, error);
    trainer_free(run.trainer);
    model_free(run.model);
    tensor_free(run.tokens);
    tensor_free(run.labels);
    csv_table_free(run.curve);
    g_free(run.file.base_weights);
    return ok;
}
