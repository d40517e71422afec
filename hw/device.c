#include "hw/device.h"

#include <string.h>

#include "hw/law.h"
#include "hw/presets/presets.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

typedef enum Unit { UNIT_FLOPS, UNIT_BYTES, UNIT_RATE, UNIT_TIME, UNIT_COUNT, UNIT_FRACTION, UNIT_YES_NO } Unit;

typedef struct ValueRow {
    const char *key;
    Unit unit;
    size_t offset; /* in Device */
} ValueRow;

static const ValueRow value_rows[DEVICE_PEAK_FIRST] = {
#define VALUE(field, unit) [DEVICE_##field] = {#field, UNIT_##unit, G_STRUCT_OFFSET(Device, field)},
#include "hw/values.def"
#undef VALUE
};

/* Chains of "like" and "base" are short; a cycle ends here. */
enum { OTHERS_MAX = 4 };

static Device *load(const char *name_or_path, int depth, GError **error);

/* Key of a value in the descriptor; caller frees. */
static char *value_key(int value)
{
    return value < DEVICE_PEAK_FIRST ? g_strdup(value_rows[value].key)
                                     : g_strconcat("peak_", dtype_name((Dtype)(value - DEVICE_PEAK_FIRST)), NULL);
}

static void read_field(Device *device, int value, JsonObject *object)
{
    if (value >= DEVICE_PEAK_FIRST) {
        device->peak_flops_per_s[value - DEVICE_PEAK_FIRST] = json_object_flops_rate(object, "value", 0.0);
        return;
    }
    const ValueRow *row = &value_rows[value];
    switch (row->unit) {
    case UNIT_FLOPS:
        G_STRUCT_MEMBER(double, device, row->offset) = json_object_flops_rate(object, "value", 0.0);
        break;
    case UNIT_BYTES:
        G_STRUCT_MEMBER(int64_t, device, row->offset) = json_object_bytes(object, "value", 0);
        break;
    case UNIT_RATE:
        G_STRUCT_MEMBER(double, device, row->offset) = json_object_rate(object, "value", 0.0);
        break;
    case UNIT_TIME:
        G_STRUCT_MEMBER(SimTime, device, row->offset) = json_object_time(object, "value", 0);
        break;
    case UNIT_COUNT:
        G_STRUCT_MEMBER(int64_t, device, row->offset) = json_object_int(object, "value", 1, G_MAXINT32, 1);
        break;
    case UNIT_FRACTION:
        G_STRUCT_MEMBER(double, device, row->offset) = json_object_number(object, "value", 0.0, 1.0, 1.0);
        break;
    case UNIT_YES_NO:
        G_STRUCT_MEMBER(gboolean, device, row->offset) = json_object_bool(object, "value", FALSE);
        break;
    }
}

static void origin_clear(DeviceOrigin *origin)
{
    g_free(origin->source);
    g_free(origin->confidence);
    g_free(origin->from);
    *origin = (DeviceOrigin){0};
}

static void clear_value(Device *device, int value)
{
    if (value >= DEVICE_PEAK_FIRST) {
        device->peak_flops_per_s[value - DEVICE_PEAK_FIRST] = 0.0;
    } else if (value_rows[value].unit == UNIT_YES_NO) {
        G_STRUCT_MEMBER(gboolean, device, value_rows[value].offset) = FALSE;
    } else if (value_rows[value].unit == UNIT_RATE || value_rows[value].unit == UNIT_FLOPS) {
        G_STRUCT_MEMBER(double, device, value_rows[value].offset) = 0.0;
    } else {
        G_STRUCT_MEMBER(int64_t, device, value_rows[value].offset) = 0;
    }
}

static void read_value(Device *device, int value, JsonObject *values)
{
    g_autofree char *key = value_key(value);
    JsonObject *object = json_object_child(values, key);
    if (object == NULL) {
        return;
    }
    if (!json_object_has(object, "value")) {
        json_object_fail(object, "value", "is missing");
    }
    read_field(device, value, object);
    DeviceOrigin *origin = &device->origins[value];
    origin_clear(origin);
    origin->source = g_strdup(json_object_string(object, "source", NULL));
    if (origin->source == NULL) {
        json_object_fail(object, "source", "is missing: every value says where it comes from");
    }
    static const char *const words[] = {"high", "medium", "low"};
    origin->confidence = g_strdup(words[json_object_choice(object, "confidence", words, G_N_ELEMENTS(words), 1)]);
    json_object_end(object);
}

/* What a chip and its node are cannot be taken over from another; what software costs on them can. */
static gboolean can_take_over(int value)
{
    switch (value) {
    case DEVICE_non_framework_bytes:
    case DEVICE_communicator_bytes:
    case DEVICE_communicator_exchange_bytes:
    case DEVICE_workspace_bytes:
    case DEVICE_scale_out_latency_ns:
        return TRUE;
    default:
        return value >= DEVICE_eager_op_ns && value < DEVICE_PEAK_FIRST;
    }
}

/* Marks what a descriptor holds as taken over from it, and clears what cannot be. */
static void take_over(Device *device)
{
    for (int i = 0; i < N_DEVICE_VALUES; i++) {
        DeviceOrigin *origin = &device->origins[i];
        if (!can_take_over(i)) {
            clear_value(device, i);
            origin_clear(origin);
        }
        if (origin->source != NULL && origin->from == NULL) {
            origin->from = g_strdup(device->name);
        }
    }
    for (int i = 0; i < N_LAWS; i++) {
        device->laws->fits[i].own = FALSE;
    }
    if (device->laws_from == NULL) {
        device->laws_from = g_strdup(device->name);
    }
}

static gboolean check_network(const Device *device, const char *file, GError **error)
{
    const char *fault = NULL;
    if (device->nics_per_node > 0 && device->gpus_per_node % device->nics_per_node != 0) {
        fault = "nics_per_node has to divide gpus_per_node: every NIC serves as many GPUs";
    } else if (device->leaf_uplink_frac > 0.0 && device->nodes_per_leaf == 0) {
        fault = "leaf_uplink_frac has no effect without nodes_per_leaf";
    } else if (device->leaves_per_pod > 0 && device->nodes_per_leaf == 0) {
        fault = "leaves_per_pod has no effect without nodes_per_leaf";
    } else if (device->pod_uplink_frac > 0.0 && device->leaves_per_pod == 0) {
        fault = "pod_uplink_frac has no effect without leaves_per_pod";
    } else if (device->gpus_per_node % device->domain_gpus != 0 && device->domain_gpus % device->gpus_per_node != 0) {
        fault = "domain_gpus has to divide gpus_per_node (several scale-up domains in a node) or be a multiple of it (domains of whole nodes)";
    } else if (device->gpus_per_host > 0 && device->gpus_per_node % device->gpus_per_host != 0) {
        fault = "gpus_per_host has to divide gpus_per_node: every host serves as many GPUs";
    }
    if (fault != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: values: %s", file, fault);
    }
    return fault == NULL;
}

/* No memory and no link is slower; what would take longer does not fit the clock. */
static const double RATE_MIN = 1e6, FLOPS_MIN = 1e9;

static gboolean is_slow(const Device *device)
{
    gboolean slow = device->matmul_flops_per_s > 0.0 && device->matmul_flops_per_s < FLOPS_MIN;
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        slow = slow || (device->peak_flops_per_s[dtype] > 0.0 && device->peak_flops_per_s[dtype] < FLOPS_MIN);
    }
    return slow;
}

static gboolean check(const Device *device, const char *file, GError **error)
{
    const char *missing = NULL;
    if (device->peak_flops_per_s[DTYPE_BF16] <= 0.0) {
        missing = "peak_bf16";
    } else if (device->hbm_bytes <= 0) {
        missing = "hbm_bytes";
    } else if (device->hbm_bytes_per_s <= 0.0) {
        missing = "hbm_bytes_per_s";
    } else if (device->scale_up_bytes_per_s <= 0.0) {
        missing = "scale_up_bytes_per_s";
    } else if (device->scale_out_bytes_per_s <= 0.0) {
        missing = "scale_out_bytes_per_s";
    } else if (device->n_sms < 1) {
        missing = "n_sms";
    } else if (device->gpus_per_node < 1) {
        missing = "gpus_per_node";
    } else if (device->domain_gpus < 1) {
        missing = "domain_gpus";
    } else if (device->host_link_bytes_per_s <= 0.0) {
        missing = "host_link_bytes_per_s";
    }
    if (missing != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: values: %s is missing; say it, or name in \"base\" a descriptor of the same device to take it over from", file,
                    missing);
        return FALSE;
    }
    if (device->hbm_bytes_per_s < RATE_MIN || device->scale_up_bytes_per_s < RATE_MIN || device->scale_out_bytes_per_s < RATE_MIN ||
        device->host_link_bytes_per_s < RATE_MIN) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: values: a rate of less than 1 MB/s is a slip of the pen", file);
        return FALSE;
    }
    if (is_slow(device)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: values: a peak of less than 1 GFLOP/s is a slip of the pen", file);
        return FALSE;
    }
    return check_network(device, file, error);
}

/* A device from its descriptor; what it does not say comes from another (may be NULL). */
static Device *device_read(JsonObject *root, const Device *other)
{
    Device *device = g_new0(Device, 1);
    if (other != NULL) {
        *device = *other;
        for (int i = 0; i < N_DEVICE_VALUES; i++) {
            device->origins[i].source = g_strdup(other->origins[i].source);
            device->origins[i].confidence = g_strdup(other->origins[i].confidence);
            device->origins[i].from = g_strdup(other->origins[i].from);
        }
    }
    device->laws = other != NULL ? laws_copy(other->laws) : laws_new();
    device->laws_from = other == NULL ? NULL : g_strdup(other->laws_from);
    device->name = g_strdup(json_object_string(root, "name", ""));
    device->title = g_strdup(json_object_string(root, "title", device->name));
    if (device->name[0] == '\0') {
        json_object_fail(root, "name", "is missing");
    }
    JsonObject *values = json_object_child(root, "values");
    if (values != NULL && json_object_has(values, "hbm_bytes")) { /* what is usable of other memory says nothing of this one */
        clear_value(device, DEVICE_usable_bytes);
        origin_clear(&device->origins[DEVICE_usable_bytes]);
    }
    if (values != NULL) {
        for (int i = 0; i < N_DEVICE_VALUES; i++) {
            read_value(device, i, values);
        }
        json_object_end(values);
    }
    JsonObject *laws = json_object_child(root, "laws");
    if (laws != NULL) {
        laws_read(device->laws, laws);
        json_object_end(laws);
    }
    return device;
}

static JsonDoc *open_descriptor(const char *name_or_path, GError **error)
{
    if (strchr(name_or_path, '/') != NULL || g_str_has_suffix(name_or_path, ".json")) {
        return json_doc_load(name_or_path, FALSE, error);
    }
    g_autofree char *text = hw_preset_text(name_or_path);
    if (text == NULL) {
        g_auto(GStrv) names = device_preset_names();
        const char *nearest = NULL;
        for (char **name = names; *name != NULL && nearest == NULL; name++) {
            nearest = g_str_has_prefix(*name, name_or_path) ? *name : NULL; /* "h200" for "h200-sxm" */
        }
        if (nearest == NULL) {
            nearest = error_nearest_name(name_or_path, (const char *const *)names, g_strv_length(names));
        }
        g_autofree char *shown = error_shorten(name_or_path);
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "no hardware preset \"%s\"%s%s%s (\"moesim hw\" lists them; a path to a descriptor works too)",
                    shown, nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
                    nearest != NULL ? "\"?" : "");
        return NULL;
    }
    return json_doc_parse(text, name_or_path, FALSE, error);
}

static Device *load(const char *name_or_path, int depth, GError **error);

/* The device that "like" or "base" names, as far as the descriptor takes it over; NULL without either. */
static Device *read_other(JsonObject *root, int depth)
{
    const char *like = json_object_string(root, "like", NULL), *base = json_object_string(root, "base", NULL);
    const char *key = base != NULL ? "base" : "like", *name = base != NULL ? base : like;
    GError *error = NULL;
    if (like != NULL && base != NULL) {
        json_object_fail(root, "like", "has no effect beside \"base\", which takes over all that \"like\" does; leave one out");
        return NULL;
    }
    if (name != NULL && depth >= OTHERS_MAX) {
        json_object_fail(root, key, "goes in a circle");
        return NULL;
    }
    Device *device = name != NULL ? load(name, depth + 1, &error) : NULL;
    if (error != NULL) {
        json_object_adopt(root, key, error);
    } else if (device != NULL && base == NULL) {
        take_over(device);
    }
    return device;
}

static Device *load(const char *name_or_path, int depth, GError **error)
{
    g_autoptr(JsonDoc) doc = open_descriptor(name_or_path, error);
    if (doc == NULL) {
        return NULL;
    }
    JsonObject *root = json_doc_open(doc, error);
    if (root == NULL) {
        return NULL;
    }
    g_autoptr(Device) other = read_other(root, depth);
    g_autoptr(Device) device = device_read(root, other);
    if (!json_object_close(root, FALSE, error) || !check(device, json_doc_name(doc), error)) {
        return NULL;
    }
    if (device->usable_bytes <= 0) {
        device->usable_bytes = device->hbm_bytes;
    }
    return g_steal_pointer(&device);
}

json_t *device_descriptor(const char *name_or_path, GError **error)
{
    g_autoptr(JsonDoc) doc = open_descriptor(name_or_path, error);
    return doc != NULL ? json_deep_copy(json_doc_root(doc)) : NULL;
}

Device *device_load(const char *name_or_path, GError **error)
{
    return load(name_or_path, 0, error);
}

void device_free(Device *device)
{
    if (device == NULL) {
        return;
    }
    g_free(device->name);
    g_free(device->title);
    g_free(device->laws_from);
    laws_free(device->laws);
    for (int i = 0; i < N_DEVICE_VALUES; i++) {
        origin_clear(&device->origins[i]);
    }
    g_free(device);
}

char **device_preset_names(void)
{
    return hw_preset_names();
}

/* A value in the unit that a descriptor uses; caller frees. */
static char *value_text(const Device *device, int value)
{
    if (value >= DEVICE_PEAK_FIRST) {
        return g_strdup_printf("%.6g TFLOP/s", device->peak_flops_per_s[value - DEVICE_PEAK_FIRST] * 1e-12);
    }
    const ValueRow *row = &value_rows[value];
    const void *field = (const char *)device + row->offset;
    switch (row->unit) {
    case UNIT_FLOPS:
        return g_strdup_printf("%.6g TFLOP/s", *(const double *)field * 1e-12);
    case UNIT_BYTES:
        return quantity_format_bytes(*(const int64_t *)field);
    case UNIT_RATE:
        return quantity_format_rate(*(const double *)field);
    case UNIT_TIME:
        return quantity_format_time(*(const SimTime *)field);
    case UNIT_COUNT:
        return g_strdup_printf("%" G_GINT64_FORMAT, *(const int64_t *)field);
    case UNIT_FRACTION:
        return g_strdup_printf("%.4g", *(const double *)field);
    case UNIT_YES_NO:
        return g_strdup(*(const gboolean *)field ? "yes" : "no");
    }
    return g_strdup("");
}

static json_t *value_to_json(const Device *device, int value)
{
    const DeviceOrigin *origin = &device->origins[value];
    g_autofree char *key = value_key(value);
    g_autofree char *text = value_text(device, value);
    json_t *row = json_object();
    json_object_set_new(row, "key", json_string(key));
    json_object_set_new(row, "value", json_string(text));
    json_object_set_new(row, "source", json_string(origin->source));
    json_object_set_new(row, "confidence", json_string(origin->confidence));
    if (origin->from != NULL) {
        json_object_set_new(row, "taken_over_from", json_string(origin->from));
    }
    return row;
}

json_t *device_to_json(const Device *device)
{
    json_t *values = json_array();
    for (int i = 0; i < N_DEVICE_VALUES; i++) {
        if (device->origins[i].source != NULL) {
            json_array_append_new(values, value_to_json(device, i));
        }
    }
    json_t *root = json_object();
    json_object_set_new(root, "name", json_string(device->name));
    json_object_set_new(root, "title", json_string(device->title));
    json_object_set_new(root, "values", values);
    if (device->laws_from != NULL) {
        json_object_set_new(root, "laws_from", json_string(device->laws_from));
    }
    json_object_set_new(root, "laws", laws_to_json(device->laws, FALSE));
    return root;
}
