#include "workloads/calibrate.h"

#include <string.h>

#include "sim/base/error.h"
#include "workloads/calibrate-rows.h"

/* Transfers below this are the host's time, not the link's. */
static const double small_transfer_bytes = 1048576.0;
/* Host time from the first event to the start of the kernel of an eager collective. */
static const double collective_before_s = 36e-6;

/* "op_gemm" of ".../op_gemm.csv" without "op_"; caller frees. */
static char *family_of(const char *path)
{
    g_autofree char *base = g_path_get_basename(path);
    char *dot = strrchr(base, '.');
    if (dot != NULL) {
        *dot = '\0';
    }
    return g_strdup(g_str_has_prefix(base, "op_") ? base + strlen("op_") : base);
}

/* What a report calls a row: its cells but the measured and the derived ones; caller frees. */
static char *row_label(const CsvTable *table, size_t row)
{
    static const char *const silent[] = {"seconds",    "flops",    "bytes_ideal", "kept_bytes",
                                         "peak_bytes", "max_rows", NULL};
    GString *label = g_string_new(NULL);
    for (size_t i = 0; i < csv_table_n_columns(table); i++) {
        const char *cell = csv_table_cell(table, row, i);
        const char *column = csv_table_column(table, i);
        if (cell[0] == '\0' || g_strv_contains(silent, column)) {
            continue;
        }
        gboolean bare = strcmp(column, "name") == 0 || strcmp(column, "op") == 0;
        g_string_append_printf(label, "%s%s%s%s", label->len > 0 ? " " : "", bare ? "" : column, bare ? "" : " ", cell);
    }
    return g_string_free(label, FALSE);
}

static gboolean read_row(const CsvTable *table, size_t row, const char *family, const Device *device,
                         GArray *samples[N_LAWS], GPtrArray *unused, GError **error)
{
    int name = csv_table_find(table, "name");
    name = name < 0 ? csv_table_find(table, "op") : name;
    TableRow table_row = {.table = table, .row = row, .device = device, .error = error};
    table_row.name = name < 0 ? "" : csv_table_cell(table, row, (size_t)name);
    FitSample sample = {0};
    LawKind law = LAW_gemm;
    RowUse use = calibrate_row(family, &table_row, &sample, &law);
    if (use != ROW_USED) {
        fit_sample_clear(&sample);
        if (use == ROW_UNUSED) {
            g_ptr_array_add(unused, g_strdup_printf("%s: %s", family, table_row.name));
        } else if (!table_row.failed) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%zu: the row lacks a column",
                        csv_table_name(table), csv_table_line(table, row));
        }
        return use == ROW_UNUSED;
    }
    sample.label = row_label(table, row);
    if (sample.shape == NULL) {
        sample.shape = g_strdup(sample.label);
    }
    if (!sample.is_link) {
        sample.size = law_size(&sample.works[sample.n_works - 1]);
    }
    g_array_append_val(samples[law], sample);
    return TRUE;
}

static gboolean read_table(const char *path, const Device *device, GArray *samples[N_LAWS], GPtrArray *unused,
                           GError **error)
{
    g_autoptr(CsvTable) table = csv_table_load(path, error);
    if (table == NULL) {
        return FALSE;
    }
    g_autofree char *family = family_of(path);
    for (size_t row = 0; row < csv_table_n_rows(table); row++) {
        if (!read_row(table, row, family, device, samples, unused, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small transfers all take what the host needs to issue one: their median is that time. */
static void find_host_time(GArray *samples)
{
    g_autofree double *small = g_new(double, samples->len);
    size_t n = 0;
    for (guint i = 0; i < samples->len; i++) {
        const FitSample *sample = &g_array_index(samples, FitSample, i);
        if (sample->size <= small_transfer_bytes) {
            small[n++] = sample->seconds;
        }
    }
    if (n == 0) {
        return;
    }
    qsort(small, n, sizeof *small, compare_seconds);
    for (guint i = 0; i < samples->len; i++) {
        FitSample *sample = &g_array_index(samples, FitSample, i);
        sample->host_min_s = small[n / 2];
        sample->host_before_s = collective_before_s;
    }
}

gboolean calibrate_read(const char *const *paths, const Device *device, GArray *samples[N_LAWS], GPtrArray *unused,
                        GError **error)
{
    for (int i = 0; i < N_LAWS; i++) {
        samples[i] = g_array_new(FALSE, FALSE, sizeof(FitSample));
        g_array_set_clear_func(samples[i], (GDestroyNotify)fit_sample_clear);
    }
    for (; *paths != NULL; paths++) {
        if (!read_table(*paths, device, samples, unused, error)) {
            return FALSE;
        }
    }
    for (int i = LAW_all_gather; i <= LAW_send_recv; i++) {
        find_host_time(samples[i]);
    }
    return TRUE;
}

/* What sparse attention gathers comes from the L2 cache, in backward as in forward: it is no traffic of the memory's. */
static void share_l2(Laws *laws)
{
    LawFit *backward = &laws->fits[LAW_sparse_attention_backward];
    const LawForm *form = law_form(LAW_sparse_attention_backward);
    for (int k = 0; k < form->n_params && !backward->fitted; k++) {
        if (strcmp(form->params[k].name, "memory_share") == 0) {
            backward->params[k] = laws->fits[LAW_sparse_attention_forward].params[k];
        }
    }
}

/* Kinds that no table tells of take over the parameters of the kind they resemble most. */
static void lend_laws(Laws *laws)
{
    static const LawKind pairs[][2] = {
        {LAW_scan_forward, LAW_kda_forward},
        {LAW_scan_backward, LAW_kda_backward},
        {LAW_sparse_attention_forward, LAW_attention_forward},
        {LAW_sparse_attention_backward, LAW_attention_backward},
        {LAW_concat, LAW_strided},
        {LAW_transpose, LAW_strided},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(pairs); i++) {
        LawFit *to = &laws->fits[pairs[i][0]];
        const LawFit *from = &laws->fits[pairs[i][1]];
        if (!to->fitted && from->fitted && law_form(pairs[i][0]) == law_form(pairs[i][1])) {
            memcpy(to->params, from->params, sizeof to->params);
            to->own = TRUE;
            g_free(to->source);
            to->source = g_strdup_printf("assumed to run as %s", law_name(pairs[i][1]));
        }
    }
    share_l2(laws);
}

static gboolean fit_all(Calibration *calibration, CalibrateProgress progress, void *data, GError **error)
{
    for (int i = 0; i < N_LAWS; i++) {
        if (progress != NULL && !progress((size_t)i, N_LAWS, data)) {
            g_set_error_literal(error, MOESIM_ERROR, MOESIM_ERROR_CANCELED, "calibration interrupted");
            return FALSE;
        }
        if (calibration->samples[i]->len > 0) {
            g_autofree char *source = g_strdup_printf("%u rows of measured tables", calibration->samples[i]->len);
            fit_law(calibration->device, calibration->device->laws, (LawKind)i, calibration->samples[i], source);
        }
    }
    lend_laws(calibration->device->laws);
    if (progress != NULL) {
        (void)progress(N_LAWS, N_LAWS, data);
    }
    return TRUE;
}

Calibration *calibrate(const char *const *paths, const char *base, CalibrateProgress progress, void *data,
                       GError **error)
{
    g_autoptr(Calibration) calibration = g_new0(Calibration, 1);
    calibration->unused = g_ptr_array_new_with_free_func(g_free);
    calibration->device = device_load(base, error);
    if (calibration->device == NULL) {
        return NULL;
    }
    /* From the same start whatever the base was fitted to, so that the same tables give the same bytes. */
    laws_free(calibration->device->laws);
    calibration->device->laws = laws_new();
    if (!calibrate_read(paths, calibration->device, calibration->samples, calibration->unused, error) ||
        !fit_all(calibration, progress, data, error)) {
        return NULL;
    }
    calibration->descriptor = device_descriptor(base, error);
    if (calibration->descriptor == NULL) {
        return NULL;
    }
    json_object_set_new(calibration->descriptor, "laws", laws_to_json(calibration->device->laws, TRUE));
    return g_steal_pointer(&calibration);
}

void calibration_free(Calibration *calibration)
{
    if (calibration == NULL) {
        return;
    }
    for (int i = 0; i < N_LAWS; i++) {
        g_clear_pointer(&calibration->samples[i], g_array_unref);
    }
    g_clear_pointer(&calibration->unused, g_ptr_array_unref);
    json_decref(calibration->descriptor);
    device_free(calibration->device);
    g_free(calibration);
}
