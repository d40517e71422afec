/* Any bytes as a config.json: a model is read or refused with a message, and what is read can be counted. */
#include <stddef.h>
#include <stdint.h>

#include "models/describe.h"
#include "sim/base/json-read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    g_autoptr(JsonDoc) doc = json_doc_parse(text, "fuzz.json", TRUE, NULL);
    if (doc == NULL || !json_is_object(json_doc_root(doc))) {
        return 0;
    }
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_from_json(json_doc_root(doc), "fuzz.json", NULL, &error);
    g_assert((model == NULL) == (error != NULL));
    if (model != NULL && model->n_layers < 200 && model->vision_layers < 100) {
        ModelFacts facts;
        model_facts(model, 4096, &facts);
        ParamCounts formula;
        param_counts(model, &formula);
        g_assert(formula.total == facts.params.total);
    }
    return 0;
}
