/*
 * JSON texts with a name, and errors that say where in them a value stands: "FILE:LINE:COL: dotted.path: what is wrong".
 *
 * jansson keeps no positions after parsing; on an error the text is scanned again along the path.
 */
#pragma once

#include <glib.h>
#include <jansson.h>

#include "sim/base/error.h"
#include "sim/base/json-place.h"

G_DEFINE_AUTOPTR_CLEANUP_FUNC(json_t, json_decref)

typedef struct JsonDoc JsonDoc;

/*
 * Reads a file or a text; duplicates, trailing garbage and numbers out of range are errors. Bare
 * Infinity, -Infinity and NaN outside strings are read as null when lenient (real config.json files hold
 * them), errors otherwise.
 */
JsonDoc *json_doc_load(const char *path, gboolean lenient, GError **error);
JsonDoc *json_doc_parse(const char *text, const char *name, gboolean lenient, GError **error);

/* A document over a value made in memory (borrowed); errors then name it without line and column. */
JsonDoc *json_doc_from_value(json_t *value, const char *name);
JsonDoc *json_doc_ref(JsonDoc *doc); /* one more owner: json_doc_free() then lets go once */
void json_doc_free(JsonDoc *doc);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(JsonDoc, json_doc_free)

/* What a parser of JSON complains of, in words of its users; borrowed from the error or static. */
const char *json_cause(const json_error_t *error);

json_t *json_doc_root(const JsonDoc *doc);     /* borrowed */
const char *json_doc_name(const JsonDoc *doc); /* file name for messages */

/* Sets an error of a value that is n steps below the root: "FILE:LINE:COL: path: what"; printf form. */
void json_doc_fail(const JsonDoc *doc, const JsonStep *steps, size_t n_steps, GError **error, const char *format, ...)
    G_GNUC_PRINTF(5, 6);

/* The same of a code of MoesimError. want_key: the place is that of the key, not of its value. Caller frees. */
GError *json_doc_error(const JsonDoc *doc, const JsonStep *steps, size_t n_steps, gboolean want_key, MoesimError code, const char *what);

/* Dotted path of n steps; caller frees. */
char *json_steps_path(const JsonStep *steps, size_t n_steps);
