#include "hw/law.h"

#include <string.h>

#define LAW(id, name, form, power) extern const LawForm law_form_##form;
#include "hw/law.def"
#undef LAW

static const struct {
    const char *name;
    const LawForm *form;
    double power; /* of its tensor work, against a GEMM's */
} laws[N_LAWS] = {
#define LAW(id, name, form, power) [LAW_##id] = {name, &law_form_##form, power},
#include "hw/law.def"
#undef LAW
};

static const LawKind law_of[N_WORK_LAWS] = {
    [WORK_GEMM_NT] = LAW_gemm,
    [WORK_GEMM_NN] = LAW_gemm,
    [WORK_GEMM_TN] = LAW_gemm,
    [WORK_GROUPED_GEMM] = LAW_grouped_gemm,
    [WORK_GROUPED_GEMM_WGRAD] = LAW_grouped_gemm,
    [WORK_ATTENTION_FORWARD] = LAW_attention_forward,
    [WORK_ATTENTION_BACKWARD] = LAW_attention_backward,
    [WORK_KDA_FORWARD] = LAW_kda_forward,
    [WORK_KDA_BACKWARD] = LAW_kda_backward,
    [WORK_SCAN_FORWARD] = LAW_scan_forward,
    [WORK_SCAN_BACKWARD] = LAW_scan_backward,
    [WORK_SPARSE_ATTENTION_FORWARD] = LAW_sparse_attention_forward,
    [WORK_SPARSE_ATTENTION_BACKWARD] = LAW_sparse_attention_backward,
    [WORK_ATTNRES_FORWARD] = LAW_attnres_forward,
    [WORK_ATTNRES_BACKWARD] = LAW_attnres_backward,
    [WORK_COPY] = LAW_copy,
    [WORK_ELEMENTWISE] = LAW_elementwise,
    [WORK_STRIDED] = LAW_strided,
    [WORK_CONCAT] = LAW_concat,
    [WORK_TRANSPOSE] = LAW_transpose,
    [WORK_NORM_FORWARD] = LAW_norm_forward,
    [WORK_NORM_BACKWARD] = LAW_norm_backward,
    [WORK_NORM_WEIGHT_GRAD] = LAW_norm_weight_grad,
    [WORK_SOFTMAX] = LAW_softmax,
    [WORK_REDUCE] = LAW_reduce,
    [WORK_GATHER] = LAW_gather,
    [WORK_SCATTER_ADD] = LAW_scatter_add,
    [WORK_WEIGHTED_SUM] = LAW_weighted_sum,
    [WORK_SORT] = LAW_sort,
    [WORK_TOPK] = LAW_topk,
    [WORK_OPTIMIZER] = LAW_optimizer,
    [WORK_CHUNK_CAT] = LAW_chunk_cat,
    [WORK_CONV1D] = LAW_conv1d,
    [WORK_LOSS] = LAW_loss,
};

/* Between two events around one launch, beyond the kernel's own time: 2.0 to 3.0 us, against profiles of the same
 * kernels. */
static const double event_seconds = 2.4e-6;
/* Flush between repetitions: 256 MB written, with the gaps around it. */
static const double flush_seconds = 110e-6;

const char *law_name(LawKind law)
{
    g_assert(law < N_LAWS);
    return laws[law].name;
}

gboolean law_from_name(const char *name, LawKind *ret_law)
{
    for (int i = 0; i < N_LAWS; i++) {
        if (strcmp(laws[i].name, name) == 0) {
            *ret_law = (LawKind)i;
            return TRUE;
        }
    }
    return FALSE;
}

const LawForm *law_form(LawKind law)
{
    g_assert(law < N_LAWS);
    return laws[law].form;
}

LawKind law_of_work(WorkLaw work_law)
{
    g_assert(work_law < N_WORK_LAWS);
    return law_of[work_law];
}

double law_size(const Work *work)
{
    switch (law_of_work(work->law)) {
    case LAW_kda_forward:
    case LAW_kda_backward:
        return (double)work->m * (double)work->n * (double)work->k;
    default:
        break;
    }
    return work_law_group(work->law) == WORK_GROUP_COMPUTE ? work->flops
                                                           : (double)work->read_bytes + (double)work->write_bytes;
}

double law_seconds(const Device *device, const Laws *from, const Work *work, double clock_frac)
{
    LawKind law = law_of[work->law];
    return laws[law].form->seconds(device, from->fits[law].params, work, clock_frac);
}

double law_power_share(const Device *device, const Laws *from, const Work *work)
{
    if (laws[law_of[work->law]].power <= 0.0) {
        return 0.0;
    }
    /* What half the clock adds is what the clock governs. */
    double full = law_seconds(device, from, work, 1.0);
    double tensor_share = CLAMP(law_seconds(device, from, work, 0.5) / full - 1.0, 0.0, 1.0);
    return laws[law_of[work->law]].power * tensor_share;
}

double law_measured_seconds(const Device *device, const Laws *from, const Work *works, int n_works, double host_seconds)
{
    double total = 0.0, tensor = 0.0, at_clock = 0.0;
    for (int i = 0; i < n_works; i++) {
        double seconds = law_seconds(device, from, &works[i], 1.0) * works[i].n_launches;
        total += seconds;
        tensor += seconds * law_power_share(device, from, &works[i]);
    }
    double clock_frac = law_clock_frac(from, tensor / (total + flush_seconds));
    for (int i = 0; i < n_works; i++) {
        at_clock += law_seconds(device, from, &works[i], clock_frac) * works[i].n_launches;
    }
    return MAX(at_clock + event_seconds, host_seconds);
}

Laws *laws_new(void)
{
    Laws *fresh = g_new0(Laws, 1);
    for (int i = 0; i < N_LAWS; i++) {
        for (int k = 0; k < laws[i].form->n_params; k++) {
            fresh->fits[i].params[k] = laws[i].form->params[k].initial;
        }
    }
    return fresh;
}

Laws *laws_copy(const Laws *from)
{
    Laws *copy = g_new0(Laws, 1);
    *copy = *from;
    for (int i = 0; i < N_LAWS; i++) {
        copy->fits[i].source = g_strdup(from->fits[i].source);
        copy->fits[i].worst_row = g_strdup(from->fits[i].worst_row);
    }
    return copy;
}

void laws_free(Laws *dead)
{
    if (dead == NULL) {
        return;
    }
    for (int i = 0; i < N_LAWS; i++) {
        g_free(dead->fits[i].source);
        g_free(dead->fits[i].worst_row);
    }
    g_free(dead);
}

/* How far parameters of a descriptor may lie outside of where a fit may go. */
static const double BEYOND_FITS = 10;

static void read_params(LawKind law, LawFit *fit, JsonObject *object)
{
    const LawForm *form = law_form(law);
    JsonObject *params = json_object_child(object, "parameters");
    if (params == NULL) {
        json_object_fail(object, "parameters", "missing; give those that differ from what is taken over");
        return;
    }
    for (int k = 0; k < form->n_params; k++) {
        const LawParam *param = &form->params[k];
        fit->params[k] = json_object_number(params, param->name, param->min / BEYOND_FITS, param->max * BEYOND_FITS, fit->params[k]);
    }
    json_object_end(params);
}

static void read_law(LawKind law, LawFit *fit, JsonObject *object)
{
    g_free(fit->source);
    g_free(fit->worst_row);
    LawFit fresh = {.own = TRUE};
    memcpy(fresh.params, fit->params, sizeof fresh.params);
    *fit = fresh;
    read_params(law, fit, object);
    fit->source = g_strdup(json_object_string(object, "source", NULL));
    fit->n_rows = json_object_int(object, "rows", 0, G_MAXINT32, 0);
    fit->fitted = fit->n_rows > 0;
    fit->mean_abs_error = json_object_number(object, "mean_abs_error", 0.0, 1e6, 0.0);
    fit->left_out_error = json_object_number(object, "leave_one_shape_out_error", 0.0, 1e6, 0.0);
    fit->bias = json_object_number(object, "bias", -1e6, 1e6, 0.0);
    fit->worst_error = json_object_number(object, "worst_error", -1e6, 1e6, 0.0);
    fit->worst_row = g_strdup(json_object_string(object, "worst_row", NULL));
    fit->size_min = json_object_number(object, "measured_from", 0.0, 1e30, 0.0);
    fit->size_max = json_object_number(object, "measured_to", 0.0, 1e30, 0.0);
}

void laws_read(Laws *into, JsonObject *object)
{
    for (int i = 0; i < N_LAWS; i++) {
        JsonObject *law = json_object_child(object, laws[i].name);
        if (law != NULL) {
            read_law((LawKind)i, &into->fits[i], law);
            json_object_end(law);
        }
    }
}

static json_t *law_to_json(LawKind law, const LawFit *fit)
{
    json_t *value = json_object();
    json_t *params = json_object();
    for (int k = 0; k < laws[law].form->n_params; k++) {
        json_object_set_new(params, laws[law].form->params[k].name, json_real(fit->params[k]));
    }
    json_object_set_new(value, "parameters", params);
    if (fit->source != NULL) {
        json_object_set_new(value, "source", json_string(fit->source));
    }
    if (fit->fitted) {
        json_object_set_new(value, "rows", json_integer(fit->n_rows));
        json_object_set_new(value, "mean_abs_error", json_real(fit->mean_abs_error));
        json_object_set_new(value, "leave_one_shape_out_error", json_real(fit->left_out_error));
        json_object_set_new(value, "bias", json_real(fit->bias));
        json_object_set_new(value, "worst_error", json_real(fit->worst_error));
        if (fit->worst_row != NULL) {
            json_object_set_new(value, "worst_row", json_string(fit->worst_row));
        }
        json_object_set_new(value, "measured_from", json_real(fit->size_min));
        json_object_set_new(value, "measured_to", json_real(fit->size_max));
    }
    return value;
}

json_t *laws_to_json(const Laws *from, gboolean own_only)
{
    json_t *all = json_object();
    for (int i = 0; i < N_LAWS; i++) {
        if (from->fits[i].own || !own_only) {
            json_object_set_new(all, laws[i].name, law_to_json((LawKind)i, &from->fits[i]));
        }
    }
    return all;
}

Evidence law_evidence(const LawFit *fit, double size)
{
    if (!fit->fitted) {
        return EVIDENCE_ASSUMED;
    }
    if (!fit->own) {
        return EVIDENCE_DATASHEET;
    }
    return size >= fit->size_min && size <= fit->size_max ? EVIDENCE_MEASURED : EVIDENCE_FITTED;
}
