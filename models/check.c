#include "models/check.h"

#include <math.h>
#include <string.h>

#include "models/check-sample.h"
#include "sim/base/error.h"

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

static const char *const variant_names[N_VARIANTS] = {"full training",           "frozen weights",
                                                      "inputs without gradient", "chain",
                                                      "chain, frozen weights",   "chain, inputs without gradient"};

int check_op_n_samples(OpKind kind)
{
    int n = 0;
    Graph *graph;
    RowCounts rows;
    while (check_sample_build(op_class(kind), n, &graph, &rows)) {
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

/* Sum of outputs times their upstream gradients: what is differentiated. */
static gboolean sample_scalar(const Sample *s, double *ret_sum, GError **error)
{
    g_autoptr(Execution) run = check_sample_run(s);
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
            return check_sample_fail(s, what, error);
        }
    }
    return TRUE;
}

static gboolean check_gradients(Sample *s, CheckReport *report, GError **error)
{
    g_autoptr(Execution) run = check_sample_run(s);
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    check_sample_seed(s, run);
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
    return check_sample_fail(s, what, error);
}

/* Counts of every operator of the class (others that a sample needs are their own class's matter). */
static gboolean check_counts(const Sample *s, Variant variant, CheckReport *report, GError **error)
{
    g_autoptr(Execution) run = check_sample_run(s);
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
        check_sample_seed(s, run);
    }
    return TRUE;
}

/* What operators keep beside inputs and outputs: elements of the run against the formula's bytes. */
static gboolean check_kept(const Sample *s, GError **error)
{
    g_autoptr(Execution) run = check_sample_run(s);
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
            return check_sample_fail(s, "keeps other auxiliary tensors than its formula says", error);
        }
    }
    return TRUE;
}

static gboolean check_close_f32(const Sample *s, const char *name, const Tensor *wide, const Tensor *narrow,
                                CheckReport *report, GError **error)
{
    double size = fmax(largest(wide), 1e-3), worst = 0;
    if (wide == NULL || narrow == NULL) {
        return wide == narrow || check_sample_fail(s, "a gradient exists in one precision only", error);
    }
    for (int64_t i = 0; i < tensor_numel(wide); i++) {
        worst = fmax(worst, fabs(tensor_get(wide, i) - tensor_get(narrow, i)) / size);
    }
    report->float32 = fmax(report->float32, worst);
    if (worst <= (wide->type == TENSOR_I64 ? 0 : CHECK_FLOAT32_BOUND)) {
        return TRUE;
    }
    g_autofree char *what = g_strdup_printf("float32 %s is off by %.3g", name, worst);
    return check_sample_fail(s, what, error);
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
    g_autoptr(Execution) wide = check_sample_run(s), narrow = sample_run_f32(s, made);
    check_sample_seed(s, wide);
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

/* A chain must be priceable, and do no less arithmetic traffic than nothing. */
static gboolean check_chain_cost(const Sample *s, GError **error)
{
    for (int o = 0; o < graph_n_ops(s->graph); o++) {
        const Op *op = graph_op(s->graph, o);
        OpView view = {s->graph, op, &s->rows};
        OpCost cost = {0};
        op_class(op->kind)->forward_cost(&view, &cost);
        op_class(op->kind)->backward_cost(&view, &cost);
        for (int i = 0; i < cost.n_works; i++) {
            const Work *work = &cost.works[i];
            if (work->n_launches < 1 || work->read_bytes < 0 || work->write_bytes < 0 || !(work->flops >= 0)) {
                return check_sample_fail(s, "eager cost has a kernel with negative work or no launch", error);
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
        if (!check_sample_init(&s, kind, sample, (Variant)v)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s has no sample %d", class->id, sample);
            return FALSE;
        }
        /* counts are those of the fused kernels: a chain's numbers are made by the same loops */
        gboolean ok =
            check_is_chain((Variant)v) ? check_chain_cost(&s, error) : check_counts(&s, (Variant)v, ret_report, error);
        ok = ok && check_gradients(&s, ret_report, error);
        if (v == VARIANT_FULL || v == VARIANT_CHAIN) {
            ok = ok && check_kept(&s, error) && check_float32(&s, ret_report, error);
        }
        check_sample_clear(&s);
        if (!ok) {
            g_prefix_error(error, "%s: ", variant_names[v]);
            return FALSE;
        }
    }
    return TRUE;
}
