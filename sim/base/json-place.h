/*
 * Where in a JSON text a value stands. Works on any text that parses, and on a text with other bare words
 * in the place of values (Infinity, NaN).
 */
#pragma once

#include <glib.h>

/* One step down from a value: to the member of that key, or (key NULL) to the idx-th element. */
typedef struct JsonStep {
    const char *key;
    size_t idx;
} JsonStep;

typedef struct JsonPlace {
    int line, column; /* from 1; columns count characters */
} JsonPlace;

/*
 * Place of the value at the end of n steps from the root, or of its key when want_key. A step that leads
 * nowhere ends the way: the place is then that of the value it should have been in.
 */
JsonPlace json_place_find(const char *text, const JsonStep *steps, size_t n_steps, gboolean want_key);
