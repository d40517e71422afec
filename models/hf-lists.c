/*
 * What a file says of each layer by itself: lists of words, and patterns of letters. Words without an operator are
 * collected, so that one message names all that is missing.
 */
#include "models/hf.h"

#include <string.h>

/* Notes a word that has no operator, once. */
static void note_missing(GString *missing, const char *word, int64_t layer)
{
    g_autofree char *quoted = g_strdup_printf("\"%s\"", word == NULL ? "?" : word);
    if (strstr(missing->str, quoted) == NULL && missing->len < 1000) {
        g_string_append_printf(missing, "%s%s (layer %" G_GINT64_FORMAT ")", missing->len > 0 ? ", " : "", quoted,
                               layer + 1);
    }
}

static void report_missing(HfImport *import, HfKey key, const GString *missing)
{
    if (missing->len > 0) {
        hf_fail(&import->text, key, "missing operator: layer type %s", missing->str);
    }
}

json_t *hf_words(HfImport *import, HfKey key)
{
    json_t *list = hf_raw(&import->text, key);
    if (list != NULL && !json_is_array(list)) {
        hf_fail(&import->text, key, "must be a list with one word per layer");
        return NULL;
    }
    return list;
}

/* A list of words of the model's length, or NULL: absent, or a mistake. */
static json_t *words_of_layers(HfImport *import, HfKey key)
{
    json_t *words = hf_words(import, key);
    if (words != NULL && (int64_t)json_array_size(words) != import->model->n_layers) {
        hf_fail(&import->text, key, "%zu entries for %" G_GINT64_FORMAT " layers", json_array_size(words),
                import->model->n_layers);
        return NULL;
    }
    return words;
}

gboolean hf_read_layer_types(HfImport *import, MixerKind linear)
{
    Model *model = import->model;
    gboolean given = hf_find(&import->text, HF_KEY_LAYER_TYPES) != NULL;
    json_t *types = words_of_layers(import, HF_KEY_LAYER_TYPES);
    if (types == NULL) {
        return given;
    }
    int64_t window = import->family->windowed ? hf_int(&import->text, HF_KEY_WINDOW, 0) : 0;
    g_autoptr(GString) missing = g_string_new(NULL);
    for (int64_t i = 0; i < model->n_layers; i++) {
        const char *word = json_string_value(json_array_get(types, (size_t)i));
        if (g_strcmp0(word, "sliding_attention") == 0 && window > 0) {
            model->layers[i].sliding_window = window;
        } else if (g_strcmp0(word, "linear_attention") == 0 && linear != MIXER_NONE) {
            model->layers[i].mixer = linear;
        } else if (g_strcmp0(word, "full_attention") != 0) {
            note_missing(missing, word, i);
        }
    }
    report_missing(import, HF_KEY_LAYER_TYPES, missing);
    return TRUE;
}

void hf_read_attention_types(HfImport *import)
{
    json_t *types = hf_raw(&import->text, HF_KEY_ATTN_TYPES);
    size_t i;
    json_t *type;
    json_array_foreach (types, i, type) {
        if (!json_is_integer(type) || json_integer_value(type) != 1) {
            hf_fail(&import->text, HF_KEY_ATTN_TYPES, "missing operator: attention other than softmax (1) in layer %zu",
                    i + 1);
            return;
        }
    }
}

gboolean hf_read_mlp_types(HfImport *import)
{
    Model *model = import->model;
    gboolean given = hf_find(&import->text, HF_KEY_MLP_TYPES) != NULL;
    json_t *types = words_of_layers(import, HF_KEY_MLP_TYPES);
    g_autoptr(GString) missing = g_string_new(NULL);
    for (int64_t i = 0; types != NULL && i < model->n_layers; i++) {
        const char *word = json_string_value(json_array_get(types, (size_t)i));
        if (g_strcmp0(word, "sparse") != 0 && g_strcmp0(word, "dense") != 0) {
            note_missing(missing, word, i);
        }
        model->layers[i].ffn = g_strcmp0(word, "sparse") == 0 ? FFN_MOE : FFN_DENSE;
    }
    report_missing(import, HF_KEY_MLP_TYPES, missing);
    return given;
}

/* One layer of Nemotron's pattern: a letter or a word. FALSE when it names nothing that is known. */
static gboolean pattern_layer(ModelLayer *layer, char letter, const char *word)
{
    static const struct {
        char letter;
        const char *word;
        MixerKind mixer;
        FfnKind ffn;
    } known[] = {
        {'M', "mamba", MIXER_MAMBA2, FFN_NONE},
        {'E', "moe", MIXER_NONE, FFN_MOE},
        {'*', "attention", MIXER_GQA, FFN_NONE},
        {'-', "mlp", MIXER_NONE, FFN_DENSE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++) {
        if (word != NULL ? strcmp(known[i].word, word) == 0 : known[i].letter == letter) {
            layer->mixer = known[i].mixer;
            layer->ffn = known[i].ffn;
            return TRUE;
        }
    }
    return FALSE;
}

void hf_read_pattern(HfImport *import)
{
    Model *model = import->model;
    const char *pattern = hf_string(&import->text, HF_KEY_PATTERN, NULL);
    json_t *types = hf_words(import, HF_KEY_BLOCK_TYPES);
    HfKey key = pattern != NULL ? HF_KEY_PATTERN : HF_KEY_BLOCK_TYPES;
    if (pattern == NULL && types == NULL) {
        hf_fail(&import->text, key, "missing; a %s model needs it, or hybrid_override_pattern",
                import->family->model_type);
        return;
    }
    if ((pattern != NULL ? (int64_t)strlen(pattern) : (int64_t)json_array_size(types)) != model->n_layers) {
        return; /* import_layer_count has said so */
    }
    g_autoptr(GString) missing = g_string_new(NULL);
    for (int64_t i = 0; i < model->n_layers; i++) {
        const char letter[2] = {pattern == NULL ? '?' : pattern[i], '\0'};
        const char *word = pattern == NULL ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
        if (!pattern_layer(&model->layers[i], pattern == NULL ? '\0' : letter[0], word)) {
            note_missing(missing, word == NULL ? letter : word, i);
        }
    }
    report_missing(import, key, missing);
}
