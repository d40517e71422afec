/*
 * moesim hw [NAME]: the hardware presets, or one descriptor with the origin of every value.
 */
#include <jansson.h>
#include <string.h>

#include "hw/device.h"
#include "reports/cli/command.h"
#include "sim/base/json-read.h"

typedef struct HwOptions {
    gboolean json;
} HwOptions;

static const CommandOption options[] = {
    {"json", 0, G_OPTION_ARG_NONE, offsetof(HwOptions, json), "Print as JSON", NULL},
    {0},
};

static gboolean print_value(json_t *value, GError **error)
{
    if (value == NULL) {
        return TRUE;
    }
    g_autofree char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    return command_print(error, "%s\n", text);
}

/* One line a preset: name, title, bf16 peak, memory. */
static gboolean list(gboolean as_json, GError **error)
{
    g_auto(GStrv) names = device_preset_names();
    g_autoptr(json_t) rows = json_array();
    for (char **name = names; *name != NULL; name++) {
        g_autoptr(Device) device = device_load(*name, error);
        if (device == NULL) {
            return FALSE;
        }
        g_autofree char *memory = quantity_format_bytes(device->usable_bytes);
        g_autofree char *bandwidth = quantity_format_rate(device->hbm_bytes_per_s);
        g_autofree char *link = quantity_format_rate(device->scale_up_bytes_per_s);
        if (as_json) {
            json_array_append_new(rows, json_pack("{s:s, s:s}", "name", device->name, "title", device->title));
        } else if (!command_print(error, "%-16s %6.0f TFLOP/s bf16  %9s %9s  domain %4" G_GINT64_FORMAT " x %-9s  %s\n",
                                  device->name, device->peak_flops_per_s[DTYPE_BF16] * 1e-12, memory, bandwidth,
                                  device->domain_gpus, link, device->title)) {
            return FALSE;
        }
    }
    return as_json ? print_value(rows, error) : TRUE;
}

static const char *text_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static gboolean print_law(const char *name, json_t *law, GError **error)
{
    GString *line = g_string_new(NULL);
    const char *key;
    json_t *value;
    json_object_foreach (json_object_get(law, "parameters"), key, value) {
        g_string_append_printf(line, " %s %.4g", key, json_number_value(value));
    }
    g_autofree char *params = g_string_free(line, FALSE);
    if (json_object_get(law, "rows") == NULL) {
        return command_print(error, "%-26s not fitted;%s\n", name, params);
    }
    return command_print(
        error, "%-26s %4" JSON_INTEGER_FORMAT " rows, mean error %.1f %%, left out %.1f %%, from %.3g to %.3g;%s\n",
        name, json_integer_value(json_object_get(law, "rows")),
        100.0 * json_real_value(json_object_get(law, "mean_abs_error")),
        100.0 * json_real_value(json_object_get(law, "leave_one_shape_out_error")),
        json_number_value(json_object_get(law, "measured_from")),
        json_number_value(json_object_get(law, "measured_to")), params);
}

static gboolean print_device(json_t *device, GError **error)
{
    size_t idx;
    json_t *row, *law;
    const char *name;
    if (!command_print(error, "%s: %s\n\n", text_of(device, "name"), text_of(device, "title"))) {
        return FALSE;
    }
    json_array_foreach (json_object_get(device, "values"), idx, row) {
        const char *from = text_of(row, "taken_over_from");
        if (!command_print(error, "%-24s %-16s %-6s  %s%s%s%s\n", text_of(row, "key"), text_of(row, "value"),
                           text_of(row, "confidence"), text_of(row, "source"),
                           from[0] != '\0' ? " (taken over from " : "", from, from[0] != '\0' ? ")" : "")) {
            return FALSE;
        }
    }
    const char *laws_from = text_of(device, "laws_from");
    if (!command_print(error, "\nTiming laws%s%s\n",
                       laws_from[0] != '\0' ? ", taken over with this device's datasheet values from " : "",
                       laws_from)) {
        return FALSE;
    }
    json_object_foreach (json_object_get(device, "laws"), name, law) {
        if (!print_law(name, law, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean run(const CommandCall *call, GError **error)
{
    const HwOptions *chosen = call->options;
    if (call->n_words == 0) {
        return list(chosen->json, error);
    }
    g_autoptr(Device) device = device_load(call->words[0], error);
    if (device == NULL) {
        return FALSE;
    }
    g_autoptr(json_t) value = device_to_json(device);
    return chosen->json ? print_value(value, error) : print_device(value, error);
}

extern const CommandClass command_hw;
const CommandClass command_hw = {
    .usage = "[NAME]",
    .description =
        "Without a name, lists the hardware presets. With one (or a descriptor file), shows every value with its\n"
        "source and confidence, and the timing laws with their fit.\n"
        "  moesim hw h200-sxm",
    .min_words = 0,
    .max_words = 1,
    .words = COMMAND_WORDS_DEVICES,
    .options = options,
    .options_size = sizeof(HwOptions),
    .run = run,
};
