#include "models/check.h"

#include <math.h>
#include <string.h>

#include "models/execute.h"
#include "sim/base/error.h"
#include "sim/base/rng.h"

/* Fewest samples of a class: an ordinary one, an odd size, an edge case. */
enum { SAMPLES_MIN = 3 };

/* Entries of one tensor that are compared with differences. */
enum { DERIVATIVES_MAX = 48 };

/* Classes that lack value kernels or samples on purpose. */
static const struct {
    OpKind kind;
    const char *why;
} exempt[] = {
    {OP_mamba2, "cost only: no reference kernel is defined for it"},
};

/* How a sample is run. */
typedef enum Variant { VARIANT_FULL, VARIANT_FROZEN, VARIANT_NO_INPUT_GRAD, N_VARIANTS } Variant;

static const char *const variant_names[N_VARIANTS] = {"full training", "frozen weights", "inputs without gradient"};

/* A sample with its values. */
typedef struct Sample {
    const OpClass *class;
    int idx;
    Graph *graph;
    RowCounts rows;
    Tensor **values; /* by tensor: of the graph's inputs */
    Tensor **params; /* by parameter */
    Tensor **seeds;  /* by tensor: upstream gradient of the graph's outputs */
} Sample;

static gboolean fail(const Sample *s, const char *what, GError **error)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s sample %d: %s", s->class->id, s->idx, what);
    return FALSE;
}

static gboolean build_sample(const OpClass *class, int idx, Graph **ret_graph, RowCounts *ret_rows)
{
    Graph *graph = graph_new(DTYPE_FP64);
    *ret_rows = (RowCounts){.rows = {[ROWS_ONE] = 1}};
    if (class->sample == NULL || !class->sample(idx, graph, ret_rows)) {
        graph_free(graph);
        return FALSE;
    }
    *ret_graph = graph;
    return TRUE;
}

int check_op_n_samples(OpKind kind)
{
    int n = 0;
    Graph *graph;
    RowCounts rows;
    while (build_sample(op_class(kind), n, &graph, &rows)) {
        graph_free(graph);
        n++;
    }
    return n;
}

const char *check_op_missing(OpKind kind)
{
    const OpClass *class = op_class(kind);
    if (class->saved == NULL || class->forward_cost == NULL || class->backward_cost == NULL) {
        return "no cost or no kept tensors";
    }
    for (size_t i = 0; i < G_N_ELEMENTS(exempt); i++) {
        if (exempt[i].kind == kind) {
            return NULL;
        }
    }
    for (int r = 0; r < N_OP_REALS; r++) {
        if (class->forward[r] == NULL || class->backward[r] == NULL) {
            return "no value kernels";
        }
    }
    return check_op_n_samples(kind) < SAMPLES_MIN ? "fewer than three samples" : NULL;
}

static gboolean is_integer(Dtype dtype)
{
    return dtype == DTYPE_INT64 || dtype == DTYPE_INT32 || dtype == DTYPE_INT8;
}

static Tensor *random_tensor(int n_dims, const int64_t *dims, uint64_t stream)
{
    Tensor *tensor = tensor_new(TENSOR_F64, n_dims, dims);
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(tensor, i, rng_normal(stream, RNG_VALUES, (uint64_t)i));
    }
    return tensor;
}

/* In a float64 graph every real tensor has 8 bytes, so counted bytes can equal the formula's. */
static void widen(Graph *graph)
{
    for (guint i = 0; i < graph->tensors->len; i++) {
        GraphTensor *tensor = graph_tensor(graph, (int)i);
        tensor->dtype = is_integer(tensor->dtype) ? DTYPE_INT64 : DTYPE_FP64;
    }
}

static void fill_values(Sample *s)
{
    const Graph *graph = s->graph;
    for (guint i = 0; i < graph->inputs->len; i++) {
        int at = g_array_index(graph->inputs, int, i);
        const GraphTensor *shape = graph_tensor(graph, at);
        int64_t dims[2] = {s->rows.rows[shape->rows], shape->width};
        s->values[at] = is_integer(shape->dtype) ? tensor_new(TENSOR_I64, 2, dims) : random_tensor(2, dims, 100 + i);
    }
    for (guint i = 0; i < graph->params->len; i++) {
        const GraphParam *param = graph_param(graph, (int)i);
        int64_t dims[3] = {param->dims[0], param->dims[1], param->dims[2]};
        if (param->split == PARAM_EXPERT) {
            dims[0] /= graph->ep_size;
        }
        s->params[i] = random_tensor(param->n_dims, dims, 200 + i);
    }
    for (guint i = 0; i < graph->outputs->len; i++) {
        int at = g_array_index(graph->outputs, int, i);
        const GraphTensor *shape = graph_tensor(graph, at);
        int64_t dims[2] = {s->rows.rows[shape->rows], shape->width};
        s->seeds[at] = shape->needs_grad && !is_integer(shape->dtype) ? random_tensor(2, dims, 300 + i) : NULL;
    }
}

/* The class's own values for the operators of its kind. */
static void fill_special(Sample *s)
{
    for (int o = 0; s->class->sample_fill != NULL && o < graph_n_ops(s->graph); o++) {
        const Op *op = graph_op(s->graph, o);
        OpView view = {s->graph, op, &s->rows};
        Tensor *in[OP_INPUTS_MAX] = {NULL}, *param[OP_PARAMS_MAX] = {NULL};
        if (op_class(op->kind) != s->class) {
            continue;
        }
        for (int i = 0; i < op->n_inputs; i++) {
            in[i] = op->inputs[i] >= 0 ? s->values[op->inputs[i]] : NULL;
        }
        for (int i = 0; i < op->n_params; i++) {
            param[i] = op->params[i] >= 0 ? s->params[op->params[i]] : NULL;
        }
        s->class->sample_fill(s->idx, &view, in, param);
    }
}

static void sample_clear(Sample *s)
{
    for (guint i = 0; i < s->graph->tensors->len; i++) {
        tensor_free(s->values[i]);
        tensor_free(s->seeds[i]);
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        tensor_free(s->params[i]);
    }
    g_free(s->values);
    g_free(s->seeds);
    g_free(s->params);
    graph_free(s->graph);
}

/* Before the graph is finished a variant freezes what it does not differentiate. */
static gboolean sample_init(Sample *s, OpKind kind, int idx, Variant variant)
{
    *s = (Sample){.class = op_class(kind), .idx = idx};
    if (!build_sample(s->class, idx, &s->graph, &s->rows)) {
        return FALSE;
    }
    for (guint i = 0; variant == VARIANT_FROZEN && i < s->graph->params->len; i++) {
        graph_param(s->graph, (int)i)->trainable = FALSE;
    }
    for (guint i = 0; variant == VARIANT_NO_INPUT_GRAD && i < s->graph->inputs->len; i++) {
        graph_tensor(s->graph, g_array_index(s->graph->inputs, int, i))->needs_grad = FALSE;
    }
    widen(s->graph);
    graph_finish(s->graph);
    s->values = g_new0(Tensor *, s->graph->tensors->len + 1);
    s->seeds = g_new0(Tensor *, s->graph->tensors->len + 1);
    s->params = g_new0(Tensor *, s->graph->params->len + 1);
    fill_values(s);
    fill_special(s);
    return TRUE;
}

static Execution *sample_run_new(const Sample *s)
{
    Execution *run = execute_new(s->graph, &s->rows, TENSOR_F64);
    for (guint i = 0; i < s->graph->inputs->len; i++) {
        int at = g_array_index(s->graph->inputs, int, i);
        execute_put(run, at, s->values[at]);
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        execute_put_param(run, (int)i, s->params[i]);
    }
    return run;
}

static void sample_seed(const Sample *s, Execution *run)
{
    for (guint i = 0; i < s->graph->outputs->len; i++) {
        int at = g_array_index(s->graph->outputs, int, i);
        if (s->seeds[at] != NULL) {
            execute_put_grad(run, at, s->seeds[at]);
        }
    }
}

/* Sum of outputs times their upstream gradients: what is differentiated. */
static gboolean sample_scalar(const Sample *s, double *ret_sum, GError **error)
{
    g_autoptr(Execution) run = sample_run_new(s);
    double sum = 0;
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    for (guint i = 0; i < s->graph->outputs->len; i++) {
        int at = g_array_index(s->graph->outputs, int, i);
        const Tensor *value = execute_value(run, at);
        for (int64_t k = 0; s->seeds[at] != NULL && k < tensor_numel(value); k++) {
            sum += tensor_get(value, k) * tensor_get(s->seeds[at], k);
        }
    }
    *ret_sum = sum;
    return TRUE;
}

static double largest(const Tensor *tensor)
{
    double max = 0;
    for (int64_t i = 0; tensor != NULL && i < tensor_numel(tensor); i++) {
        max = fmax(max, fabs(tensor_get(tensor, i)));
    }
    return max;
}

/* Central difference of the scalar by one entry. */
static gboolean difference(const Sample *s, Tensor *tensor, int64_t i, double *ret_slope, GError **error)
{
    double at = tensor_get(tensor, i), step = 1e-5 * fmax(1, fabs(at)), up, down;
    tensor_set(tensor, i, at + step);
    gboolean ok = sample_scalar(s, &up, error);
    tensor_set(tensor, i, at - step);
    ok = ok && sample_scalar(s, &down, error);
    tensor_set(tensor, i, at);
    if (ok) {
        *ret_slope = (up - down) / (2 * step);
    }
    return ok;
}

/* Gradient of one tensor against differences, at entries spread over it. scale: size that an error is measured by. */
static gboolean check_differences(const Sample *s, const char *name, Tensor *tensor, const Tensor *grad,
                                  CheckReport *report, GError **error)
{
    int64_t n = tensor_numel(tensor), stride = MAX(1, n / DERIVATIVES_MAX);
    double size = fmax(largest(grad), 1e-3);
    for (int64_t i = 0; i < n; i += stride) {
        double slope = 0, got = grad != NULL ? tensor_get(grad, i) : 0;
        if (!difference(s, tensor, i, &slope, error)) {
            return FALSE;
        }
        double off = fabs(slope - got) / size;
        report->finite_difference = fmax(report->finite_difference, off);
        report->n_derivatives++;
        if (!(off <= CHECK_DIFFERENCE_BOUND)) {
            g_autofree char *what =
                g_strdup_printf("gradient of %s[%" G_GINT64_FORMAT "] is %.12g, difference %.12g", name, i, got, slope);
            return fail(s, what, error);
        }
    }
    return TRUE;
}

static gboolean check_gradients(Sample *s, CheckReport *report, GError **error)
{
    g_autoptr(Execution) run = sample_run_new(s);
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    sample_seed(s, run);
    if (!execute_backward(run, error)) {
        return FALSE;
    }
    for (guint i = 0; i < s->graph->inputs->len; i++) {
        int at = g_array_index(s->graph->inputs, int, i);
        const GraphTensor *shape = graph_tensor(s->graph, at);
        gboolean blocked = TRUE; /* by every consumer */
        for (int o = 0; o < graph_n_ops(s->graph); o++) {
            OpView view = {s->graph, graph_op(s->graph, o), &s->rows};
            for (int k = 0; k < view.op->n_inputs; k++) {
                blocked = blocked && !(view.op->inputs[k] == at && op_needs_input_grad(&view, k));
            }
        }
        if (!blocked && !check_differences(s, shape->name, s->values[at], execute_grad(run, at), report, error)) {
            return FALSE;
        }
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        const GraphParam *param = graph_param(s->graph, (int)i);
        if (param->trainable &&
            !check_differences(s, param->name, s->params[i], execute_param_grad(run, (int)i), report, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Formula of one operator and direction. */
static void formula(const Sample *s, const Execution *run, int op, gboolean backward, OpCost *ret_cost)
{
    OpView view = {s->graph, graph_op(s->graph, op), execute_rows((Execution *)(guintptr)run)};
    const OpClass *class = op_class(view.op->kind);
    *ret_cost = (OpCost){0};
    (backward ? class->backward_cost : class->forward_cost)(&view, ret_cost);
}

static void cost_sum(const OpCost *cost, double *ret_flops, int64_t *ret_read, int64_t *ret_write)
{
    *ret_flops = 0;
    *ret_read = *ret_write = 0;
    for (int i = 0; i < cost->n_works; i++) {
        const Work *work = &cost->works[i];
        *ret_flops += work->flops * work->n_launches;
        *ret_read += work->read_bytes * work->n_launches;
        *ret_write += work->write_bytes * work->n_launches;
    }
}

/* One operator and direction: counted against formula. */
static gboolean check_count(const Sample *s, Variant variant, const OpCost *cost, const OpCounter *counted,
                            const char *where, GError **error)
{
    double flops;
    int64_t read, write;
    cost_sum(cost, &flops, &read, &write);
    gboolean same =
        fabs(flops - counted->flops) <= 1e-9 * flops && read == counted->read_bytes && write == counted->write_bytes;
    gboolean room = counted->workspace_bytes == 0 || counted->workspace_bytes == cost->workspace_bytes;
    if (same && room) {
        return TRUE;
    }
    g_autofree char *what = g_strdup_printf(
        "%s, %s: formula %.17g FLOPs, %" G_GINT64_FORMAT " B read, %" G_GINT64_FORMAT " B written, %" G_GINT64_FORMAT
        " B workspace; counted %.17g, %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT,
        variant_names[variant], where, flops, read, write, cost->workspace_bytes, counted->flops, counted->read_bytes,
        counted->write_bytes, counted->workspace_bytes);
    return fail(s, what, error);
}

/* Counts of every operator of the class (others that a sample needs are their own class's matter). */
static gboolean check_counts(const Sample *s, Variant variant, CheckReport *report, GError **error)
{
    g_autoptr(Execution) run = sample_run_new(s);
    int n = graph_n_ops(s->graph);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            int o = pass == 0 ? i : n - 1 - i;
            OpCounter counter = {0};
            OpCost cost;
            execute_set_counter(run, &counter);
            if (!(pass == 0 ? execute_op_forward : execute_op_backward)(run, o, error)) {
                return FALSE;
            }
            formula(s, run, o, pass == 1, &cost);
            if (op_class(graph_op(s->graph, o)->kind) == s->class &&
                !check_count(s, variant, &cost, &counter, pass == 0 ? "forward" : "backward", error)) {
                return FALSE;
            }
            if (variant == VARIANT_FULL) {
                report->flops += counter.flops;
                report->bytes += counter.read_bytes + counter.write_bytes;
            }
        }
        sample_seed(s, run);
    }
    return TRUE;
}

/* What operators keep beside inputs and outputs: elements of the run against the formula's bytes. */
static gboolean check_kept(const Sample *s, GError **error)
{
    g_autoptr(Execution) run = sample_run_new(s);
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    for (int o = 0; o < graph_n_ops(s->graph); o++) {
        OpView view = {s->graph, graph_op(s->graph, o), execute_rows(run)};
        OpSaved saved = {0};
        int64_t numel = 0;
        op_class(view.op->kind)->saved(&view, &saved);
        for (int i = 0; i < saved.n_aux; i++) {
            numel += view.rows->rows[saved.aux[i].rows] * saved.aux[i].width;
        }
        if (numel != execute_aux_numel(run, o)) {
            return fail(s, "keeps other auxiliary tensors than its formula says", error);
        }
    }
    return TRUE;
}

static gboolean check_close_f32(const Sample *s, const char *name, const Tensor *wide, const Tensor *narrow,
                                CheckReport *report, GError **error)
{
    double size = fmax(largest(wide), 1e-3), worst = 0;
    if (wide == NULL || narrow == NULL) {
        return wide == narrow || fail(s, "a gradient exists in one precision only", error);
    }
    for (int64_t i = 0; i < tensor_numel(wide); i++) {
        worst = fmax(worst, fabs(tensor_get(wide, i) - tensor_get(narrow, i)) / size);
    }
    report->float32 = fmax(report->float32, worst);
    if (worst <= (wide->type == TENSOR_I64 ? 0 : CHECK_FLOAT32_BOUND)) {
        return TRUE;
    }
    g_autofree char *what = g_strdup_printf("float32 %s is off by %.3g", name, worst);
    return fail(s, what, error);
}

/* The same sample in float32; values stay borrowed by the run, so they are kept in `made`. */
static Execution *sample_run_f32(const Sample *s, GPtrArray *made)
{
    Execution *run = execute_new(s->graph, &s->rows, TENSOR_F32);
    for (guint i = 0; i < s->graph->inputs->len; i++) {
        int at = g_array_index(s->graph->inputs, int, i);
        Tensor *value =
            s->values[at]->type == TENSOR_I64 ? tensor_dup(s->values[at]) : tensor_convert(s->values[at], TENSOR_F32);
        g_ptr_array_add(made, value);
        execute_put(run, at, value);
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        Tensor *value = tensor_convert(s->params[i], TENSOR_F32);
        g_ptr_array_add(made, value);
        execute_put_param(run, (int)i, value);
    }
    for (guint i = 0; i < s->graph->outputs->len; i++) {
        int at = g_array_index(s->graph->outputs, int, i);
        if (s->seeds[at] != NULL) {
            g_autoptr(Tensor) seed = tensor_convert(s->seeds[at], TENSOR_F32);
            execute_put_grad(run, at, seed);
        }
    }
    return run;
}

static void tensor_free_any(void *tensor)
{
    tensor_free(tensor);
}

static gboolean check_float32(const Sample *s, CheckReport *report, GError **error)
{
    g_autoptr(GPtrArray) made = g_ptr_array_new_with_free_func(tensor_free_any);
    g_autoptr(Execution) wide = sample_run_new(s), narrow = sample_run_f32(s, made);
    sample_seed(s, wide);
    if (!execute_forward(wide, error) || !execute_forward(narrow, error) || !execute_backward(wide, error) ||
        !execute_backward(narrow, error)) {
        return FALSE;
    }
    for (guint i = 0; i < s->graph->outputs->len; i++) {
        int at = g_array_index(s->graph->outputs, int, i);
        if (!check_close_f32(s, graph_tensor(s->graph, at)->name, execute_value(wide, at), execute_value(narrow, at),
                             report, error)) {
            return FALSE;
        }
    }
    for (guint i = 0; i < s->graph->inputs->len; i++) {
        int at = g_array_index(s->graph->inputs, int, i);
        if (!check_close_f32(s, graph_tensor(s->graph, at)->name, execute_grad(wide, at), execute_grad(narrow, at),
                             report, error)) {
            return FALSE;
        }
    }
    for (guint i = 0; i < s->graph->params->len; i++) {
        const char *name = graph_param(s->graph, (int)i)->name;
        if (!check_close_f32(s, name, execute_param_grad(wide, (int)i), execute_param_grad(narrow, (int)i), report,
                             error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* The eager chain must be priceable too, and do no less arithmetic traffic than nothing. */
static gboolean check_eager(const Sample *s, GError **error)
{
    for (int o = 0; o < graph_n_ops(s->graph); o++) {
        Op *op = graph_op(s->graph, o);
        OpView view = {s->graph, op, &s->rows};
        OpSaved saved = {0};
        OpCost cost = {0};
        op->eager = TRUE;
        op_class(op->kind)->saved(&view, &saved);
        op_class(op->kind)->forward_cost(&view, &cost);
        op_class(op->kind)->backward_cost(&view, &cost);
        op->eager = FALSE;
        for (int i = 0; i < cost.n_works; i++) {
            const Work *work = &cost.works[i];
            if (work->n_launches < 1 || work->read_bytes < 0 || work->write_bytes < 0 || !(work->flops >= 0)) {
                return fail(s, "eager cost has a kernel with negative work or no launch", error);
            }
        }
    }
    return TRUE;
}

gboolean check_op_sample(OpKind kind, int sample, CheckReport *ret_report, GError **error)
{
    *ret_report = (CheckReport){0};
    const OpClass *class = op_class(kind);
    if (class->forward[OP_REAL_F64] == NULL) {
        return TRUE; /* check_op_missing() says whether that is allowed */
    }
    for (int v = 0; v < N_VARIANTS; v++) {
        Sample s;
        if (!sample_init(&s, kind, sample, (Variant)v)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s has no sample %d", class->id, sample);
            return FALSE;
        }
        gboolean ok = check_counts(&s, (Variant)v, ret_report, error);
        ok = ok && check_gradients(&s, ret_report, error);
        if (v == VARIANT_FULL) {
            ok = ok && check_kept(&s, error) && check_float32(&s, ret_report, error) && check_eager(&s, error);
        }
        sample_clear(&s);
        if (!ok) {
            return FALSE;
        }
    }
    return TRUE;
}
