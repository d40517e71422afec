#include "models/trainer.h"

#include <math.h>
#include <string.h>

#include "models/execute.h"
#include "models/ops/cross-entropy.h"
#include "sim/base/error.h"

/* One parameter of one layer. */
typedef struct TrainerParam {
    char *name; /* of the checkpoint, an expert stack without its index */
    const GraphParam *param;
    gboolean stacked;
    Tensor *value;
    Tensor *grad; /* NULL = none came */
    OptimState state;
} TrainerParam;

/* Embedding, one layer, or the head. */
typedef struct Unit {
    const Graph *graph;
    int64_t layer;
    TrainerParam **params; /* by parameter of the graph, borrowed */
    GArray *sources;       /* int: units whose stream it reads, in the order of its inputs */
    Execution *run;
    int counts; /* tensor that counts the slots per expert, or -1 */
} Unit;

struct Trainer {
    const Model *model;
    TrainerSettings settings;
    TensorType real;
    ModelGraph *graph;
    GPtrArray *params; /* TrainerParam, owned */
    GArray *tensors;   /* TensorRef: checkpoint tensors in order */
    Unit *units;
    int n_units;
    Tensor **streams; /* gradient of each unit's first output, owned */
    int64_t n_steps;
};

/* One tensor of a checkpoint: a parameter or one expert's part of it. */
typedef struct TensorRef {
    TrainerParam *param;
    int64_t expert; /* -1 = all of it */
} TensorRef;

static void param_free(void *at)
{
    TrainerParam *p = at;
    g_free(p->name);
    tensor_free(p->value);
    tensor_free(p->grad);
    optim_state_clear(&p->state);
    g_free(p);
}

static TrainerParam *param_new(Trainer *t, int64_t layer, const GraphParam *param)
{
    TrainerParam *p = g_new0(TrainerParam, 1);
    p->name = model_graph_param_name(t->model, layer, param);
    p->param = param;
    p->stacked = param->split == PARAM_EXPERT && strstr(param->name, "experts.") != NULL;
    p->value = tensor_new(t->real, param->n_dims, param->dims);
    g_ptr_array_add(t->params, p);
    for (int64_t e = p->stacked ? 0 : -1; e < (p->stacked ? param->dims[0] : 0); e++) {
        TensorRef ref = {p, e};
        g_array_append_val(t->tensors, ref);
    }
    return p;
}

/* The matrix that a tied head shares with the embedding. */
static TrainerParam *tied_param(const Trainer *t)
{
    for (guint i = 0; i < t->params->len; i++) {
        TrainerParam *p = t->params->pdata[i];
        if (p->param->role == PARAM_EMBEDDING) {
            return p;
        }
    }
    g_assert_not_reached();
}

static void unit_init(Trainer *t, int idx, int64_t layer, const Graph *graph, const GArray *sources)
{
    Unit *unit = &t->units[idx];
    *unit = (Unit){.graph = graph, .layer = layer, .counts = -1};
    unit->sources = g_array_new(FALSE, FALSE, sizeof(int));
    g_array_append_vals(unit->sources, sources->data, sources->len);
    unit->params = g_new0(TrainerParam *, graph->params->len + 1);
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        gboolean shared = t->graph->tied && param->role == PARAM_HEAD;
        unit->params[i] = shared ? tied_param(t) : param_new(t, layer, param);
    }
    for (int i = 0; i < graph_n_ops(graph); i++) {
        const Op *op = graph_op(graph, i);
        int output = op_class(op->kind)->counts_output;
        unit->counts = output > 0 ? op->outputs[output - 1] : unit->counts;
    }
}

/* Each layer reads the rows of the bank and the prefix (models/model-graph.c). */
static void units_build(Trainer *t)
{
    g_autoptr(GArray) sources = g_array_new(FALSE, FALSE, sizeof(int));
    unit_init(t, 0, -1, t->graph->embedding, sources);
    int from = 0;
    g_array_append_val(sources, from);
    for (int64_t i = 0; i < t->model->n_layers; i++) {
        int unit = (int)i + 1;
        unit_init(t, unit, i, model_graph_layer(t->graph, i), sources);
        if (model_starts_block(t->model, i)) {
            g_array_append_val(sources, unit);
        } else {
            g_array_index(sources, int, sources->len - 1) = unit;
        }
    }
    unit_init(t, t->n_units - 1, -1, t->graph->head, sources);
}

Trainer *trainer_new(const Model *model, const BlockOptions *options, const TrainerSettings *settings, TensorType real)
{
    Trainer *t = g_new0(Trainer, 1);
    t->model = model;
    t->settings = *settings;
    t->real = real;
    t->graph = model_graph_new(model, options);
    t->params = g_ptr_array_new_with_free_func(param_free);
    t->tensors = g_array_new(FALSE, FALSE, sizeof(TensorRef));
    t->n_units = (int)model->n_layers + 2;
    t->units = g_new0(Unit, t->n_units);
    t->streams = g_new0(Tensor *, t->n_units);
    units_build(t);
    return t;
}

void trainer_free(Trainer *t)
{
    if (t == NULL) {
        return;
    }
    for (int i = 0; i < t->n_units; i++) {
        execute_free(t->units[i].run);
        g_array_unref(t->units[i].sources);
        g_free(t->units[i].params);
        tensor_free(t->streams[i]);
    }
    g_free(t->units);
    g_free(t->streams);
    g_ptr_array_unref(t->params);
    g_array_unref(t->tensors);
    model_graph_free(t->graph);
    g_free(t);
}

int trainer_n_tensors(const Trainer *t)
{
    return (int)t->tensors->len;
}

static const TensorRef *tensor_ref(const Trainer *t, int idx)
{
    return &g_array_index(t->tensors, TensorRef, idx);
}

char *trainer_tensor_name(const Trainer *t, int idx)
{
    const TensorRef *ref = tensor_ref(t, idx);
    if (ref->expert < 0) {
        return g_strdup(ref->param->name);
    }
    const char *at = strstr(ref->param->name, "experts.") + strlen("experts.");
    return g_strdup_printf("%.*s%" G_GINT64_FORMAT ".%s", (int)(at - ref->param->name), ref->param->name, ref->expert,
                           at);
}

gboolean trainer_tensor_trains(const Trainer *t, int idx)
{
    return tensor_ref(t, idx)->param->param->trainable;
}

/* First element and number of elements of a checkpoint tensor in its parameter. */
static int64_t ref_range(const TensorRef *ref, int64_t *ret_numel)
{
    int64_t n = tensor_numel(ref->param->value);
    *ret_numel = ref->expert < 0 ? n : n / ref->param->value->dims[0];
    return ref->expert < 0 ? 0 : ref->expert * *ret_numel;
}

/* The part of `all` that is the tensor's, or zeros. */
static Tensor *ref_part(const TensorRef *ref, const Tensor *all)
{
    const Tensor *value = ref->param->value;
    int skip = ref->expert < 0 ? 0 : 1;
    int64_t n, first = ref_range(ref, &n);
    Tensor *part = tensor_new(value->type, value->n_dims - skip, value->dims + skip);
    for (int64_t i = 0; all != NULL && i < n; i++) {
        tensor_set(part, i, tensor_get(all, first + i));
    }
    return part;
}

Tensor *trainer_tensor_value(const Trainer *t, int idx)
{
    return ref_part(tensor_ref(t, idx), tensor_ref(t, idx)->param->value);
}

Tensor *trainer_tensor_grad(const Trainer *t, int idx)
{
    return ref_part(tensor_ref(t, idx), tensor_ref(t, idx)->param->grad);
}

gboolean trainer_load(Trainer *t, TrainerPart part, const Safetensors *weights, GError **error)
{
    for (int i = 0; i < trainer_n_tensors(t); i++) {
        const TensorRef *ref = tensor_ref(t, i);
        g_autofree char *name = trainer_tensor_name(t, i);
        int64_t n, first = ref_range(ref, &n);
        if (ref->param->param->is_adapter != (part == TRAINER_ADAPTERS)) {
            continue;
        }
        g_autoptr(Tensor) value = safetensors_get(weights, name, error);
        if (value == NULL) {
            return FALSE;
        }
        if (tensor_numel(value) != n) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s has %" G_GINT64_FORMAT " elements in the file, %" G_GINT64_FORMAT " in the model", name,
                        tensor_numel(value), n);
            return FALSE;
        }
        for (int64_t k = 0; k < n; k++) {
            tensor_set(ref->param->value, first + k, tensor_get(value, k));
        }
    }
    return TRUE;
}

static int graph_in(const Graph *graph, guint i)
{
    return g_array_index(graph->inputs, int, i);
}

static int graph_out(const Graph *graph, guint i)
{
    return g_array_index(graph->outputs, int, i);
}

/* A fresh run of a unit with its parameters and what it reads of other units. */
static void unit_start(Trainer *t, Unit *unit, const RowCounts *rows)
{
    RowCounts own = *rows;
    if (t->settings.capacities != NULL && unit->layer >= 0) {
        own.capacity = t->settings.capacities[unit->layer];
    }
    own.choices = t->settings.choices != NULL && unit->layer >= 0 && unit->layer < t->model->n_layers
                      ? t->settings.choices[unit->layer]
                      : NULL;
    execute_free(unit->run);
    unit->run = execute_new(unit->graph, &own, t->real);
    for (guint i = 0; i < unit->graph->params->len; i++) {
        execute_put_param(unit->run, (int)i, unit->params[i]->value);
    }
    for (guint i = 0; i < unit->sources->len; i++) {
        const Unit *from = &t->units[g_array_index(unit->sources, int, i)];
        execute_put(unit->run, graph_in(unit->graph, i), execute_value(from->run, graph_out(from->graph, 0)));
    }
}

/* The sum of the outputs behind the first. */
static double unit_extra_loss(const Unit *unit)
{
    double sum = 0;
    for (guint i = 1; i < unit->graph->outputs->len; i++) {
        sum += tensor_get(execute_value(unit->run, graph_out(unit->graph, i)), 0);
    }
    return sum;
}

static gboolean forward(Trainer *t, const RowCounts *rows, const Tensor *tokens, const Tensor *labels,
                        TrainerStep *step, GError **error)
{
    for (int i = 0; i < t->n_units; i++) {
        Unit *unit = &t->units[i];
        unit_start(t, unit, rows);
        if (i == 0) {
            execute_put(unit->run, graph_in(unit->graph, 0), tokens);
        }
        if (i == t->n_units - 1) {
            execute_put(unit->run, graph_in(unit->graph, unit->sources->len), labels);
        }
        if (!execute_forward(unit->run, error)) {
            g_prefix_error(error,
                           unit->layer >= 0 ? "layer %" G_GINT64_FORMAT ": "
                                            : "outside the layers (%" G_GINT64_FORMAT "): ",
                           unit->layer);
            return FALSE;
        }
        step->extra_loss += unit->layer >= 0 ? unit_extra_loss(unit) : 0;
    }
    const Unit *head = &t->units[t->n_units - 1];
    step->loss = tensor_get(execute_value(head->run, graph_out(head->graph, 0)), 0);
    return TRUE;
}

/* Adds a copy to what a slot holds. */
static void accumulate(Tensor **sum, const Tensor *grad)
{
    if (grad == NULL) {
        return;
    }
    if (*sum == NULL) {
        *sum = tensor_dup(grad);
    } else {
        execute_add_to(*sum, grad);
    }
}

/* Backward of a unit whose output gradients have been put in; hands on those of its sources and parameters. */
static gboolean unit_backward(Trainer *t, Unit *unit, GError **error)
{
    if (!execute_backward(unit->run, error)) {
        return FALSE;
    }
    for (guint i = 0; i < unit->sources->len; i++) {
        accumulate(&t->streams[g_array_index(unit->sources, int, i)],
                   execute_grad(unit->run, graph_in(unit->graph, i)));
    }
    for (guint i = 0; i < unit->graph->params->len; i++) {
        accumulate(&unit->params[i]->grad, execute_param_grad(unit->run, (int)i));
    }
    return TRUE;
}

static gboolean backward(Trainer *t, double loss_grad, GError **error)
{
    g_autoptr(Tensor) seed = tensor_new_2d(t->real, 1, 1), one = tensor_new_2d(t->real, 1, 1);
    tensor_set(seed, 0, loss_grad);
    tensor_set(one, 0, 1);
    for (int i = t->n_units - 1; i >= 0; i--) {
        Unit *unit = &t->units[i];
        const Tensor *grad = i == t->n_units - 1 ? seed : t->streams[i];
        if (grad != NULL) {
            execute_put_grad(unit->run, graph_out(unit->graph, 0), grad);
        }
        for (guint k = 1; k < unit->graph->outputs->len; k++) {
            execute_put_grad(unit->run, graph_out(unit->graph, k), one);
        }
        if (!unit_backward(t, unit, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static void grads_clear(Trainer *t)
{
    for (guint i = 0; i < t->params->len; i++) {
        g_clear_pointer(&((TrainerParam *)t->params->pdata[i])->grad, tensor_free);
    }
    for (int i = 0; i < t->n_units; i++) {
        g_clear_pointer(&t->streams[i], tensor_free);
    }
}

static double grads_norm(const Trainer *t)
{
    double sum = 0;
    for (guint i = 0; i < t->params->len; i++) {
        const TrainerParam *p = t->params->pdata[i];
        for (int64_t k = 0; p->grad != NULL && k < tensor_numel(p->grad); k++) {
            double g = tensor_get(p->grad, k);
            sum += g * g;
        }
    }
    return sqrt(sum);
}

/* Only matrices decay (and the tables of embedding and head); Muon takes hidden matrices. */
static void update_param(Trainer *t, TrainerParam *p, double clip, OptimSettings *settings)
{
    ParamRole role = p->param->role;
    gboolean muon = t->settings.optim == OPTIM_muon && graph_param_is_matrix(p->param);
    g_autoptr(Tensor) grad =
        p->grad != NULL ? tensor_dup(p->grad) : tensor_new(p->value->type, p->value->n_dims, p->value->dims);
    for (int64_t k = 0; k < tensor_numel(grad); k++) {
        tensor_set(grad, k, tensor_get(grad, k) * clip);
    }
    settings->no_decay = role == PARAM_VECTOR;
    settings->n_heads = t->settings.per_head ? p->param->heads : 1;
    optim_class(muon ? OPTIM_muon : OPTIM_adamw)->update(settings, p->value, grad, &p->state);
}

static void update(Trainer *t, const TrainerStep *step)
{
    const TrainerSettings *s = &t->settings;
    OptimSettings settings = {
        .lr = step->lr,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .weight_decay = s->weight_decay,
        .momentum = s->momentum,
        .step = t->n_steps,
        .n_heads = 1,
        .norm_floor = s->norm_floor,
    };
    double clip = optim_clip_factor(step->grad_norm, s->clip);
    for (guint i = 0; i < t->params->len; i++) {
        TrainerParam *p = t->params->pdata[i];
        if (p->param->trainable) {
            update_param(t, p, clip, &settings);
        }
    }
}

/* b += rate sign(mean count - count), by the counts of this step (moe.md 1.4). */
static void update_bias(Trainer *t)
{
    for (int u = 0; u < t->n_units && t->settings.bias_rate > 0; u++) {
        const Unit *unit = &t->units[u];
        const Tensor *counts = unit->counts >= 0 ? execute_value(unit->run, unit->counts) : NULL;
        for (guint i = 0; counts != NULL && i < unit->graph->params->len; i++) {
            TrainerParam *p = unit->params[i];
            int64_t n = tensor_numel(counts);
            double sum = 0;
            if (p->param->role != PARAM_BUFFER || tensor_numel(p->value) != n) {
                continue;
            }
            for (int64_t e = 0; e < n; e++) {
                sum += tensor_get(counts, e);
            }
            for (int64_t e = 0; e < n; e++) {
                double off = sum / (double)n - tensor_get(counts, e);
                tensor_set(p->value, e,
                           tensor_get(p->value, e) + t->settings.bias_rate * (off > 0   ? 1
                                                                              : off < 0 ? -1
                                                                                        : 0));
            }
        }
    }
}

static Tensor *column(int64_t n, const int64_t *values)
{
    Tensor *tensor = tensor_new_2d(TENSOR_I64, n, 1);
    memcpy(tensor->data, values, (size_t)n * sizeof *values);
    return tensor;
}

gboolean trainer_step(Trainer *t, const TrainerBatch *batch, TrainerStep *ret_step, GError **error)
{
    int64_t n = batch->n_sequences * batch->seq_len, n_valid = 0;
    RowCounts rows = {.seq_len = batch->seq_len};
    g_autoptr(Tensor) token_column = column(n, batch->tokens), label_column = column(n, batch->labels);
    TrainerStep step = {0};
    rows.rows[ROWS_ONE] = 1;
    rows.rows[ROWS_TOKENS] = n;
    rows.rows[ROWS_SEQUENCES] = batch->n_sequences;
    rows.rows[ROWS_PAIRS] = n * batch->seq_len;
    rows.rows[ROWS_EXPERTS] = rows.rows[ROWS_LOCAL_EXPERTS] = t->model->n_experts;
    for (int64_t i = 0; i < n; i++) {
        n_valid += batch->labels[i] != CROSS_ENTROPY_IGNORE ? 1 : 0;
    }
    grads_clear(t);
    double mean = n_valid > 0 ? 1 / (double)n_valid : 0;
    if (!forward(t, &rows, token_column, label_column, &step, error) || !backward(t, mean, error)) {
        return FALSE;
    }
    t->n_steps++;
    step.loss *= mean;
    step.grad_norm = grads_norm(t);
    step.lr = t->settings.lr * fmin(1, t->settings.warmup > 0 ? (double)t->n_steps / (double)t->settings.warmup : 1);
    update(t, &step);
    update_bias(t);
    *ret_step = step;
    return TRUE;
}

const Tensor *trainer_loads(const Trainer *t, int64_t layer)
{
    const Unit *unit = &t->units[layer + 1];
    return unit->counts >= 0 && unit->run != NULL ? execute_value(unit->run, unit->counts) : NULL;
}

Tensor *trainer_param_value(const Trainer *t, int64_t layer, int param)
{
    return t->units[layer + 1].params[param]->value;
}

const Tensor *trainer_param_grad(const Trainer *t, int64_t layer, int param)
{
    return t->units[layer + 1].params[param]->grad;
}
