#include "models/model.h"

#include <string.h>

#include <gio/gio.h>

#include "models/hf.h"
#include "models/model-presets.h"
#include "sim/base/error.h"
#include "sim/base/quantity.h"

#define PRESET_FOLDER "/moesim/models/presets/"

static const char *const mixer_names[N_MIXER_KINDS] = {
    [MIXER_GQA] = "gqa", [MIXER_MLA] = "mla",       [MIXER_KDA] = "kda",
    [MIXER_GDN] = "gdn", [MIXER_MAMBA2] = "mamba2", [MIXER_NONE] = "-",
};
static const char *const ffn_names[N_FFN_KINDS] = {[FFN_DENSE] = "dense", [FFN_MOE] = "moe", [FFN_NONE] = "-"};

const char *model_mixer_name(MixerKind mixer)
{
    g_assert(mixer < N_MIXER_KINDS);
    return mixer_names[mixer];
}

const char *model_ffn_name(FfnKind ffn)
{
    g_assert(ffn < N_FFN_KINDS);
    return ffn_names[ffn];
}

Model *model_ref(Model *model)
{
    g_atomic_int_inc(&model->extra_refs);
    return model;
}

void model_free(Model *model)
{
    if (model != NULL && g_atomic_int_add(&model->extra_refs, -1) == 0) {
        g_free(model->name);
        g_free(model->family);
        g_free(model->prefix);
        g_free(model->layers);
        g_free(model);
    }
}

gboolean model_has_mixer(const Model *model, MixerKind mixer)
{
    for (int64_t i = 0; i < model->n_layers; i++) {
        if (model->layers[i].mixer == mixer) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean model_has_ffn(const Model *model, FfnKind ffn)
{
    for (int64_t i = 0; i < model->n_layers; i++) {
        if (model->layers[i].ffn == ffn) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean model_has_indexer(const Model *model)
{
    for (int64_t i = 0; i < model->n_layers; i++) {
        if (model->layers[i].has_indexer) {
            return TRUE;
        }
    }
    return FALSE;
}

int64_t model_expert_input(const Model *model)
{
    return model->latent_width > 0 ? model->latent_width : model->hidden;
}

int64_t model_n_sources(const Model *model, int64_t layer)
{
    return model->attnres_block == 0 ? 1 : quantity_div_up(layer, model->attnres_block) + 1;
}

gboolean model_starts_block(const Model *model, int64_t layer)
{
    return model->attnres_block > 0 && layer % model->attnres_block == 0;
}

/* Reads a document as a model of that name. */
static Model *model_from_doc(JsonDoc *doc, const char *name, GError **error)
{
    g_autoptr(Model) model = g_new0(Model, 1);
    model->name = g_strdup(name);
    if (!hf_read(doc, model, error)) {
        return NULL;
    }
    return g_steal_pointer(&model);
}

Model *model_from_json(json_t *config, const char *name, json_t *overrides, GError **error)
{
    g_autoptr(json_t) changed = NULL;
    if (overrides != NULL) {
        changed = hf_override(config, overrides, name, error);
        if (changed == NULL) {
            return NULL;
        }
    }
    g_autoptr(JsonDoc) doc = json_doc_from_value(changed != NULL ? changed : config, name);
    return model_from_doc(doc, name, error);
}

static int compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char **model_preset_names(void)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    char **files =
        g_resource_enumerate_children(model_presets_get_resource(), PRESET_FOLDER, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_assert(files != NULL);
    for (int i = 0; files[i] != NULL; i++) {
        g_assert(g_str_has_suffix(files[i], ".json"));
        g_ptr_array_add(names, g_strndup(files[i], strlen(files[i]) - strlen(".json")));
    }
    g_strfreev(files);
    g_ptr_array_sort(names, compare_names);
    g_ptr_array_add(names, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
}

static JsonDoc *doc_open(const char *name_or_path, GError **error)
{
    g_autofree char *path = g_strconcat(PRESET_FOLDER, name_or_path, ".json", NULL);
    g_autoptr(GBytes) preset =
        g_resource_lookup_data(model_presets_get_resource(), path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    if (preset != NULL) {
        return json_doc_parse(g_bytes_get_data(preset, NULL), name_or_path, TRUE, error);
    }
    if (!g_file_test(name_or_path, G_FILE_TEST_EXISTS) && strchr(name_or_path, '/') == NULL &&
        !g_str_has_suffix(name_or_path, ".json")) {
        g_auto(GStrv) names = model_preset_names();
        g_autofree char *known = g_strjoinv(", ", names);
        const char *near = error_nearest_name(name_or_path, (const char *const *)names, g_strv_length(names));
        g_autofree char *shown = error_shorten(name_or_path);
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "model \"%s\" is neither a preset nor a file%s%s%s; presets: %s", shown,
                    near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near, near == NULL ? "" : "\"?",
                    known);
        return NULL;
    }
    return json_doc_load(name_or_path, TRUE, error);
}

Model *model_load(const char *name_or_path, json_t *overrides, GError **error)
{
    g_autoptr(JsonDoc) doc = doc_open(name_or_path, error);
    if (doc == NULL) {
        return NULL;
    }
    if (overrides != NULL) {
        return model_from_json(json_doc_root(doc), json_doc_name(doc), overrides, error);
    }
    g_autofree char *base = g_path_get_basename(name_or_path);
    if (g_str_has_suffix(base, ".json")) {
        base[strlen(base) - strlen(".json")] = '\0';
    }
    return model_from_doc(doc, base, error);
}
