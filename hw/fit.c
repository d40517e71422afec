#include "hw/fit.h"

#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <string.h>

/* Errors beyond this count linearly, not squared. */
static const double robust_scale = 0.06;
enum { ITERATIONS_MAX = 60, ITERATIONS_LEFT_OUT = 12 };

typedef struct Problem {
    const Device *device;
    Laws *laws;
    LawKind law;
    const GArray *samples;
    const char *left_out; /* shape that does not count, or NULL */
    int free[LAW_PARAMS_MAX];
    int n_free;
} Problem;

void fit_sample_clear(FitSample *sample)
{
    g_free(sample->label);
    g_free(sample->shape);
    for (int i = 0; i < sample->n_works; i++) {
        g_free((gpointer)(guintptr)sample->works[i].group_rows);
    }
}

double fit_predict(const Device *device, const Laws *laws, LawKind law, const FitSample *sample)
{
    if (sample->is_link) {
        double kernel = law_link_seconds(&laws->fits[law], sample->link_bytes_per_s, sample->link_bytes);
        if (sample->one_way_bytes > sample->link_bytes) { /* as coll_exchange_ns() */
            const LawFit *one_way = &laws->fits[LAW_send_recv];
            kernel = fmax(kernel, law_link_seconds(one_way, sample->link_bytes_per_s, sample->one_way_bytes));
        }
        return fmax(sample->host_min_s + sample->host_more_s, sample->host_before_s + kernel);
    }
    return law_measured_seconds(device, laws, sample->works, sample->n_works, sample->host_min_s);
}

gboolean fit_sample_is_large(const FitSample *sample)
{
    return sample->is_link ? sample->size >= 1048576.0 : sample->seconds > 20e-6;
}

double fit_large_error(const Device *device, const Laws *laws, LawKind law, const GArray *samples)
{
    double sum = 0.0;
    int n = 0;
    for (guint i = 0; i < samples->len; i++) {
        const FitSample *sample = &g_array_index(samples, FitSample, i);
        if (fit_sample_is_large(sample)) {
            sum += fabs(fit_predict(device, laws, law, sample) / sample->seconds - 1.0);
            n++;
        }
    }
    return n > 0 ? sum / n : 0.0;
}

/* A parameter between its bounds from a free number, and back. */
static double param_of(const LawParam *param, double free)
{
    double low = log(param->min), high = log(param->max);
    return exp(low + (high - low) / (1.0 + exp(-free)));
}

static double free_of(const LawParam *param, double value)
{
    double low = log(param->min), high = log(param->max);
    double place = CLAMP((log(value) - low) / (high - low), 0.001, 0.999);
    return log(place / (1.0 - place));
}

static void set_params(const Problem *problem, const gsl_vector *x)
{
    const LawForm *form = law_form(problem->law);
    for (int i = 0; i < problem->n_free; i++) {
        int k = problem->free[i];
        problem->laws->fits[problem->law].params[k] = param_of(&form->params[k], gsl_vector_get(x, (size_t)i));
    }
}

/* Square root of the pseudo-Huber loss, with the error's sign, so that least squares minimise the loss. */
static double robust(double error)
{
    double scaled = error / robust_scale;
    return copysign(robust_scale * sqrt(2.0 * (sqrt(1.0 + scaled * scaled) - 1.0)), error);
}

static int residuals(const gsl_vector *x, void *data, gsl_vector *f)
{
    const Problem *problem = data;
    set_params(problem, x);
    for (guint i = 0; i < problem->samples->len; i++) {
        const FitSample *sample = &g_array_index(problem->samples, FitSample, i);
        double error = 0.0;
        if (problem->left_out == NULL || strcmp(sample->shape, problem->left_out) != 0) {
            error = robust(log(fit_predict(problem->device, problem->laws, problem->law, sample) / sample->seconds));
        }
        gsl_vector_set(f, i, error);
    }
    return GSL_SUCCESS;
}

static void solve(Problem *problem, size_t iterations)
{
    const LawForm *form = law_form(problem->law);
    size_t n = problem->samples->len, p = (size_t)problem->n_free;
    if (p == 0 || n < p) {
        return; /* too few rows to say anything: the parameters stay */
    }
    gsl_multifit_nlinear_parameters options = gsl_multifit_nlinear_default_parameters();
    options.h_df = 1e-3; /* waves are steps: a finer difference would see none of them */
    gsl_multifit_nlinear_workspace *workspace = gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &options, n, p);
    gsl_multifit_nlinear_fdf fdf = {.f = residuals, .n = n, .p = p, .params = problem};
    gsl_vector *x = gsl_vector_alloc(p);
    for (size_t i = 0; i < p; i++) {
        int k = problem->free[i];
        gsl_vector_set(x, i, free_of(&form->params[k], problem->laws->fits[problem->law].params[k]));
    }
    int info;
    gsl_multifit_nlinear_init(x, &fdf, workspace);
    (void)gsl_multifit_nlinear_driver(iterations, 1e-6, 1e-6, 1e-6, NULL, NULL, &info, workspace);
    set_params(problem, gsl_multifit_nlinear_position(workspace));
    gsl_vector_free(x);
    gsl_multifit_nlinear_free(workspace);
}

void fit_judge(const Device *device, const Laws *laws, LawKind law, const GArray *samples, LawFit *ret_errors)
{
    double sum = 0.0, sum_abs = 0.0;
    g_free(ret_errors->worst_row);
    ret_errors->worst_row = NULL;
    ret_errors->n_rows = samples->len;
    ret_errors->worst_error = 0.0;
    ret_errors->size_min = G_MAXDOUBLE;
    ret_errors->size_max = 0.0;
    const char *worst = NULL;
    for (guint i = 0; i < samples->len; i++) {
        const FitSample *sample = &g_array_index(samples, FitSample, i);
        double error = fit_predict(device, laws, law, sample) / sample->seconds - 1.0;
        sum += error;
        sum_abs += fabs(error);
        if (worst == NULL || fabs(error) > fabs(ret_errors->worst_error)) {
            ret_errors->worst_error = error;
            worst = sample->label;
        }
        ret_errors->size_min = fmin(ret_errors->size_min, sample->size);
        ret_errors->size_max = fmax(ret_errors->size_max, sample->size);
    }
    ret_errors->bias = sum / samples->len;
    ret_errors->mean_abs_error = sum_abs / samples->len;
    ret_errors->worst_row = g_strdup(worst);
}

/* Mean absolute error of each shape under parameters that have not seen it. */
static double leave_out(Problem *problem)
{
    LawFit *fit = &problem->laws->fits[problem->law];
    double fitted[LAW_PARAMS_MAX];
    memcpy(fitted, fit->params, sizeof fitted);
    g_autoptr(GPtrArray) done = g_ptr_array_new();
    double sum = 0.0;
    for (guint i = 0; i < problem->samples->len; i++) {
        const char *shape = g_array_index(problem->samples, FitSample, i).shape;
        if (g_ptr_array_find_with_equal_func(done, shape, g_str_equal, NULL)) {
            continue;
        }
        g_ptr_array_add(done, (gpointer)(guintptr)shape);
        problem->left_out = shape;
        solve(problem, ITERATIONS_LEFT_OUT);
        for (guint k = i; k < problem->samples->len; k++) {
            const FitSample *sample = &g_array_index(problem->samples, FitSample, k);
            if (strcmp(sample->shape, shape) == 0) {
                sum += fabs(fit_predict(problem->device, problem->laws, problem->law, sample) / sample->seconds - 1.0);
            }
        }
        memcpy(fit->params, fitted, sizeof fitted);
    }
    problem->left_out = NULL;
    return sum / problem->samples->len;
}

void fit_law(const Device *device, Laws *laws, LawKind law, const GArray *samples, const char *source)
{
    g_assert(samples->len > 0);
    const LawForm *form = law_form(law);
    Problem problem = {.device = device, .laws = laws, .law = law, .samples = samples};
    for (int k = 0; k < form->n_params; k++) {
        if (form->params[k].min < form->params[k].max) {
            problem.free[problem.n_free++] = k;
        }
    }
    LawFit *fit = &laws->fits[law];
    /* Fewer parameters than rows: the first ones matter most, the rest stay where they start. */
    problem.n_free = MIN(problem.n_free, MAX(1, (int)samples->len - 1));
    int n_free = problem.n_free;
    problem.n_free = MIN(1, n_free); /* the rate alone first: from far off, all at once can get stuck */
    solve(&problem, ITERATIONS_MAX);
    problem.n_free = n_free;
    solve(&problem, ITERATIONS_MAX);
    fit->left_out_error = leave_out(&problem);
    fit_judge(device, laws, law, samples, fit);
    fit->fitted = TRUE;
    fit->own = TRUE;
    g_free(fit->source);
    fit->source = g_strdup(source);
}
