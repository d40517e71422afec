/*
 * moesim model MODEL: layers, operators, parameters and FLOPs per token of a preset or a config.json.
 */
#include <jansson.h>

#include "models/describe.h"
#include "reports/cli/command.h"
#include "reports/out/text.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

enum { LABEL = 16, WIDTH = 100, SEQ_LEN = 4096 };

typedef struct ModelOptions {
    gboolean json;
    gint64 seq_len;
} ModelOptions;

static void init(void *options)
{
    ((ModelOptions *)options)->seq_len = SEQ_LEN;
}

static void append_labelled(GString *out, const char *label, const char *text)
{
    g_string_append_printf(out, "%-*s", LABEL, label);
    text_append_wrapped(out, text, LABEL, WIDTH);
}

static void append_shape(GString *out, const Model *model)
{
    g_autofree char *pattern = model_layer_pattern(model);
    g_autofree char *layers = g_strdup_printf("%" G_GINT64_FORMAT ": %s", model->n_layers, pattern);
    g_autofree char *sizes =
        g_strdup_printf("hidden %" G_GINT64_FORMAT ", vocabulary %" G_GINT64_FORMAT "%s", model->hidden, model->vocab,
                        model->tied_embeddings ? ", head tied to the embedding" : "");
    append_labelled(out, "Model", model->name);
    append_labelled(out, "Type", model->family);
    append_labelled(out, "Layers", layers);
    append_labelled(out, "Sizes", sizes);
    if (model->n_experts > 0) {
        g_autofree char *moe = g_strdup_printf(
            "%" G_GINT64_FORMAT " experts, %" G_GINT64_FORMAT " active, %" G_GINT64_FORMAT " -> %" G_GINT64_FORMAT
            "; shared width %" G_GINT64_FORMAT,
            model->n_experts, model->top_k, model_expert_input(model), model->expert_width, model->shared_width);
        append_labelled(out, "Experts", moe);
    }
    if (model->attnres_block > 0) {
        g_autofree char *attnres = g_strdup_printf("blocks of %" G_GINT64_FORMAT " layers", model->attnres_block);
        append_labelled(out, "AttnRes", attnres);
    }
}

/* "1234 (1.23 k)" */
static void append_count(GString *out, const char *label, int64_t n)
{
    g_autofree char *few = text_count((double)n);
    g_autofree char *text = g_strdup_printf("%" G_GINT64_FORMAT " (%s)", n, few);
    append_labelled(out, label, text);
}

static void append_parameters(GString *out, const ModelFacts *facts)
{
    const ParamCounts *params = &facts->params;
    g_autoptr(Table) table = table_new();
    size_t part = table_add_column(table, "parameters of", TABLE_TEXT, TABLE_PLAIN);
    size_t count = table_add_column(table, "count", TABLE_INTEGER, TABLE_PLAIN);
    size_t share = table_add_column(table, "share", TABLE_NUMBER, TABLE_PERCENT);
    for (int i = 0; i < N_PARAM_PARTS; i++) {
        if (params->parts[i] > 0) {
            table_add_row(table);
            table_put_text(table, part, param_part_name((ParamPart)i));
            table_put_integer(table, count, params->parts[i]);
            table_put_number(table, share, 100.0 * (double)params->parts[i] / (double)params->total);
        }
    }
    append_count(out, "Parameters", params->total);
    append_count(out, "Active", params->active);
    append_count(out, "- embedding", params->active_without_embedding);
    if (params->mtp > 0) {
        append_count(out, "Beside it: MTP", params->mtp);
    }
    g_string_append_c(out, '\n');
    text_append_table(out, table, 2);
}

static void append_operators(GString *out, const ModelFacts *facts)
{
    g_autoptr(Table) table = table_new();
    size_t title = table_add_column(table, "operator", TABLE_TEXT, TABLE_PLAIN);
    size_t count = table_add_column(table, "count", TABLE_INTEGER, TABLE_PLAIN);
    size_t forward = table_add_column(table, "forward GFLOP", TABLE_NUMBER, TABLE_PLAIN);
    size_t backward = table_add_column(table, "backward GFLOP", TABLE_NUMBER, TABLE_PLAIN);
    for (int i = 0; i < N_OPS; i++) {
        const OpFlops *op = &facts->flops.by_op[i];
        if (op->n_ops == 0) {
            continue;
        }
        table_add_row(table);
        table_put_text(table, title, op_class((OpKind)i)->title);
        table_put_integer(table, count, op->n_ops);
        if (op->forward > 0) {
            table_put_number(table, forward, op->forward / 1e9);
            table_put_number(table, backward, op->backward / 1e9);
        }
    }
    g_string_append_printf(
        out, "\nModel FLOPs per token, sequences of %" G_GINT64_FORMAT ": forward %.5g GFLOP, backward %.5g GFLOP\n\n",
        facts->seq_len, facts->flops.forward / 1e9, facts->flops.backward / 1e9);
    text_append_table(out, table, 2);
}

static gboolean list_presets(GError **error)
{
    g_auto(GStrv) names = model_preset_names();
    for (char **name = names; *name != NULL; name++) {
        if (!command_print(error, "%s\n", *name)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean run(const CommandCall *call, GError **error)
{
    const ModelOptions *options = call->options;
    if (call->n_words == 0) {
        return list_presets(error);
    }
    if (options->seq_len < 1 || options->seq_len > INT64_C(1) << 26) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--seq-len: must lie in 1..2^26");
        return FALSE;
    }
    g_autoptr(Model) model = model_load(call->words[0], NULL, error);
    if (model == NULL) {
        return FALSE;
    }
    ModelFacts facts;
    model_facts(model, options->seq_len, &facts);
    if (options->json) {
        g_autoptr(json_t) object = model_facts_to_json(model, &facts);
        char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        gboolean printed = command_print(error, "%s\n", text);
        free(text);
        return printed;
    }
    g_autoptr(GString) out = g_string_new(NULL);
    append_shape(out, model);
    append_parameters(out, &facts);
    append_operators(out, &facts);
    return command_print(error, "%s", out->str);
}

static const CommandOption options[] = {
    {"json", 0, G_OPTION_ARG_NONE, offsetof(ModelOptions, json), "Print one JSON object", NULL},
    {"seq-len", 0, G_OPTION_ARG_INT64, offsetof(ModelOptions, seq_len),
     "Tokens per sequence, for attention (default 4096)", "N"},
    {NULL},
};

const CommandClass command_model = {
    .usage = "[MODEL]",
    .description = "MODEL is the name of a preset or the path of a Hugging Face config.json; without it the presets are\n"
                   "listed. FLOPs are those of matrix products and recurrences, causal pairs only.",
    .min_words = 0,
    .max_words = 1,
    .words = COMMAND_WORDS_MODELS,
    .options = options,
    .options_size = sizeof(ModelOptions),
    .init = init,
    .run = run,
};
