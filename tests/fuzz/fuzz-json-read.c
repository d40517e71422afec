/* Any bytes as a JSON document, strict or lenient by the first: reading must neither crash nor leak. */
#include <stddef.h>
#include <stdint.h>

#include "sim/base/json-read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads an object as far down as its members "a" go, and every member by a getter that its name chooses. */
static void read_object(JsonObject *object, int depth)
{
    static const char *const names[] = {"adamw", "muon", "sgd"};
    json_object_int(object, "i", -5, 5000, 1);
    json_object_number(object, "n", 0, 1, 0.5);
    json_object_bool(object, "b", TRUE);
    json_object_string(object, "s", NULL);
    json_object_bytes(object, "q", 0);
    json_object_rate(object, "r", 0);
    json_object_time(object, "t", 0);
    json_object_choice(object, "c", names, G_N_ELEMENTS(names), 0);
    for (size_t i = 0; i < json_object_length(object, "l") && i < 10; i++) {
        json_object_end(json_object_item(object, "l", i));
    }
    JsonObject *child = json_object_child(object, "a");
    if (child != NULL && depth < 50) {
        read_object(child, depth + 1);
    }
    json_object_end(child);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    g_autofree char *text = g_strndup((const char *)data + 1, size - 1);
    g_autoptr(JsonDoc) doc = json_doc_parse(text, "fuzz.json", data[0] & 1, NULL);
    JsonObject *object = doc != NULL ? json_doc_open(doc, NULL) : NULL;
    if (object != NULL) {
        g_autoptr(GError) error = NULL;
        read_object(object, 0);
        gboolean done = json_object_close(object, data[0] & 2, &error);
        g_assert(done == (error == NULL));
    }
    return 0;
}
