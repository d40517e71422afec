#include "models/describe.h"

#include <string.h>

/* Longest group of layers that is looked for when repetitions are folded. */
enum { PERIOD_MAX = 16 };

void model_facts(const Model *model, int64_t seq_len, ModelFacts *ret_facts)
{
    BlockOptions options = {.compute = DTYPE_BF16, .image_tokens = 1};
    g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
    model_graph_count(graph, model, &ret_facts->params);
    model_graph_flops(graph, model, seq_len, &ret_facts->flops);
    ret_facts->seq_len = seq_len;
    ret_facts->n_kinds = (int64_t)graph->kinds->len;
}

char *model_layer_name(const Model *model, int64_t layer)
{
    const ModelLayer *l = &model->layers[layer];
    GString *name = g_string_new(l->mixer == MIXER_NONE ? "" : model_mixer_name(l->mixer));
    if (l->sliding_window > 0) {
        g_string_append_printf(name, "[%" G_GINT64_FORMAT "]", l->sliding_window);
    }
    g_string_append(name, l->has_indexer ? "[dsa]" : "");
    if (l->ffn != FFN_NONE) {
        g_string_append_printf(name, "%s%s", name->len > 0 ? "+" : "", model_ffn_name(l->ffn));
    }
    return g_string_free(name, FALSE);
}

/* Times that the group of `period` names at `from` stands there in a row, within [from, to). */
static int64_t pattern_repeats(char *const *names, int64_t from, int64_t to, int64_t period)
{
    int64_t end = from + period;
    while (end < to && strcmp(names[end], names[end - period]) == 0) {
        end++;
    }
    return (end - from) / period;
}

/* Appends the names of [from, to), longest repetition first; groups inside a repetition fold single names only. */
static void pattern_append(GString *out, char *const *names, int64_t from, int64_t to, int64_t period_max)
{
    for (int64_t i = from; i < to;) {
        int64_t period = 1;
        int64_t covered = 1;
        for (int64_t p = 1; p <= MIN(period_max, (to - i) / 2); p++) {
            int64_t repeats = pattern_repeats(names, i, to, p);
            if (repeats > 1 && repeats * p > covered) {
                covered = repeats * p;
                period = p;
            }
        }
        g_string_append(out, i == from ? "" : ", ");
        if (covered > period) {
            g_string_append_printf(out, "%" G_GINT64_FORMAT " x %s", covered / period, period > 1 ? "(" : "");
        }
        if (period == 1) {
            g_string_append(out, names[i]);
        } else {
            pattern_append(out, names, i, i + period, 1);
            g_string_append_c(out, ')');
        }
        i += covered;
    }
}

char *model_layer_pattern(const Model *model)
{
    g_auto(GStrv) names = g_new0(char *, model->n_layers + 1);
    for (int64_t i = 0; i < model->n_layers; i++) {
        names[i] = model_layer_name(model, i);
    }
    GString *out = g_string_new(NULL);
    pattern_append(out, names, 0, model->n_layers, PERIOD_MAX);
    return g_string_free(out, FALSE);
}

static json_t *params_to_json(const ParamCounts *params)
{
    json_t *parts = json_object();
    for (int i = 0; i < N_PARAM_PARTS; i++) {
        if (params->parts[i] > 0) {
            json_object_set_new(parts, param_part_name((ParamPart)i), json_integer(params->parts[i]));
        }
    }
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "total", (json_int_t)params->total, "active",
                  (json_int_t)params->active, "active_without_embedding", (json_int_t)params->active_without_embedding,
                  "vision", (json_int_t)params->vision, "router_bias_buffers", (json_int_t)params->buffers,
                  "multi_token_prediction", (json_int_t)params->mtp, "by_operator", parts);
    g_assert(object != NULL);
    return object;
}

static json_t *layers_to_json(const Model *model)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < model->n_layers; i++) {
        int64_t parts[N_PARAM_PARTS] = {0};
        int64_t whole = 0;
        param_layer_parts(model, i, parts);
        for (int p = 0; p < N_PARAM_PARTS; p++) {
            whole += parts[p];
        }
        g_autofree char *name = model_layer_name(model, i);
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:I}", "layer", (json_int_t)i, "kind", name, "parameters", (json_int_t)whole));
    }
    return list;
}

static json_t *operators_to_json(const ModelFlops *flops)
{
    json_t *list = json_array();
    for (int i = 0; i < N_OPS; i++) {
        const OpFlops *op = &flops->by_op[i];
        if (op->n_ops > 0) {
            const OpClass *class = op_class((OpKind)i);
            json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:f, s:f}", "id", class->id, "title", class->title,
                                                  "count", (json_int_t)op->n_ops, "forward_flops_per_token",
                                                  op->forward, "backward_flops_per_token", op->backward));
        }
    }
    return list;
}

json_t *model_facts_to_json(const Model *model, const ModelFacts *facts)
{
    g_autofree char *pattern = model_layer_pattern(model);
    json_t *object = json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I}", "name", model->name, "model_type",
                               model->family, "layers", (json_int_t)model->n_layers, "layer_pattern", pattern,
                               "distinct_layers", (json_int_t)facts->n_kinds, "hidden", (json_int_t)model->hidden,
                               "vocabulary", (json_int_t)model->vocab, "seq_len", (json_int_t)facts->seq_len);
    g_assert(object != NULL);
    json_object_set_new(object, "parameters", params_to_json(&facts->params));
    json_object_set_new(object, "flops_per_token",
                        json_pack("{s:f, s:f}", "forward", facts->flops.forward, "backward", facts->flops.backward));
    json_object_set_new(object, "operators", operators_to_json(&facts->flops));
    json_object_set_new(object, "by_layer", layers_to_json(model));
    return object;
}
