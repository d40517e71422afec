#include "models/hf.h"

#include <string.h>

#include "sim/base/error.h"

/* Layers that a configuration lists or counts; 0 when it does neither. */
static int64_t config_n_layers(json_t *text)
{
    json_t *count = json_object_get(text, "num_hidden_layers");
    json_t *types = json_object_get(text, "layers_block_type");
    const char *pattern = json_string_value(json_object_get(text, "hybrid_override_pattern"));
    if (json_is_integer(count)) {
        return json_integer_value(count);
    }
    return pattern != NULL ? (int64_t)strlen(pattern) : (int64_t)json_array_size(types);
}

/* Keeps the numbers up to max of a list of layers. */
static void list_filter(json_t *list, json_int_t max)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        json_t *item = json_array_get(list, i);
        if (json_is_integer(item) && json_integer_value(item) > max) {
            json_array_remove(list, i);
        }
    }
}

static void list_truncate(json_t *list, int64_t n)
{
    while ((int64_t)json_array_size(list) > n) {
        json_array_remove(list, json_array_size(list) - 1);
    }
}

/* Whether the configuration says something of each layer by itself. */
static gboolean config_lists_layers(json_t *text)
{
    static const char *const lists[] = {"layer_types", "mlp_layer_types", "layers_block_type",
                                        "hybrid_override_pattern", "linear_attn_config"};
    for (size_t i = 0; i < G_N_ELEMENTS(lists); i++) {
        json_t *value = json_object_get(text, lists[i]);
        if (value != NULL && !json_is_null(value)) {
            return TRUE;
        }
    }
    return FALSE;
}

static void config_cut_layers(json_t *text, int64_t n)
{
    json_t *linear = json_object_get(text, "linear_attn_config");
    const char *pattern = json_string_value(json_object_get(text, "hybrid_override_pattern"));
    list_truncate(json_object_get(text, "layer_types"), n);
    list_truncate(json_object_get(text, "layers_block_type"), n);
    list_truncate(json_object_get(text, "mlp_layer_types"), n);
    list_truncate(json_object_get(text, "attn_type_list"), n);
    list_filter(json_object_get(linear, "kda_layers"), n);
    list_filter(json_object_get(linear, "full_attn_layers"), n);
    list_filter(json_object_get(text, "dsa_layers"), n);
    list_filter(json_object_get(json_object_get(text, "dsa_config"), "dsa_layers"), n);
    list_filter(json_object_get(text, "mlp_only_layers"), n - 1);
    if (pattern != NULL && (int64_t)strlen(pattern) > n) {
        json_object_set_new(text, "hybrid_override_pattern", json_stringn(pattern, (size_t)n));
    }
}

/* Merges objects, replaces everything else; other names of a replaced field go. */
static gboolean config_merge(json_t *target, json_t *overrides, const char *place, GError **error)
{
    const char *name;
    json_t *value;
    json_object_foreach (overrides, name, value) {
        HfKey key;
        if (!hf_key_from_name(name, &key)) {
            const char *near = hf_key_nearest(name);
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s.%s: unknown field%s%s%s", place, name,
                        near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near, near == NULL ? "" : "\"?");
            return FALSE;
        }
        json_t *old = json_object_get(target, name);
        if (json_is_object(value) && json_is_object(old)) {
            g_autofree char *inner = g_strdup_printf("%s.%s", place, name);
            if (!config_merge(old, value, inner, error)) {
                return FALSE;
            }
            continue;
        }
        for (int i = 0; hf_key_name(key, i) != NULL; i++) {
            if (strcmp(hf_key_name(key, i), name) != 0) {
                json_object_del(target, hf_key_name(key, i));
            }
        }
        json_object_set_new(target, name, json_deep_copy(value));
    }
    return TRUE;
}

json_t *hf_override(json_t *config, json_t *overrides, const char *name, GError **error)
{
    if (!json_is_object(overrides)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: overrides: must be an object", name);
        return NULL;
    }
    g_autoptr(json_t) copy = json_deep_copy(config);
    json_t *nested = json_object_get(copy, "text_config");
    json_t *text = json_is_object(nested) ? nested : copy;
    g_autofree char *place = g_strdup_printf("%s: overrides", name);
    int64_t before = config_n_layers(text);
    if (!config_merge(text, overrides, place, error)) {
        return NULL;
    }
    json_t *count = json_object_get(overrides, "num_hidden_layers");
    int64_t n_layers = json_is_integer(count) ? json_integer_value(count) : before;
    if (n_layers > before && before > 0 && config_lists_layers(text)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s.num_hidden_layers: %" G_GINT64_FORMAT " is more than the %" G_GINT64_FORMAT
                    " layers that the file lists; it cannot be known what the others would be",
                    place, n_layers, before);
        return NULL;
    }
    if (n_layers < before && n_layers > 0) {
        config_cut_layers(text, n_layers);
    }
    return g_steal_pointer(&copy);
}
