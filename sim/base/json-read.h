/*
 * Strict JSON objects: every getter knows its place, unknown keys fail with a hint.
 *
 * A JsonObject is a view of one object of a JsonDoc that notes which keys were asked for. The first mistake sticks: later
 * getters return their default, and json_object_close() reports that first mistake, or the first key that nobody asked
 * for, as "FILE:LINE:COL: dotted.path: what is wrong and what would be right".
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "sim/base/json-doc.h"
#include "sim/base/quantity.h"

typedef struct JsonObject JsonObject;

/* Opens the root (must be an object, else NULL and error). */
JsonObject *json_doc_open(JsonDoc *doc, GError **error);

/*
 * Ends the view. FALSE with the first mistake, or with the first unknown key unless `tolerant`.
 * Frees the object in every case. A child closed with a mistake passes it on to its parent.
 */
gboolean json_object_close(JsonObject *object, gboolean tolerant, GError **error);

/* Makes a key that nobody has asked for so far a mistake, as closing does: before what else follows from its being misspelt. */
void json_object_refuse_unknown(JsonObject *object);

/* Has the key (null counts as absent). Does not mark it used. */
gboolean json_object_has(const JsonObject *object, const char *key);

/*
 * Children: NULL when absent (or when a mistake sticks). Marks the key used. Close before the parent. Every
 * getter takes NULL for an object that has no keys, and json_object_end(NULL) does nothing, so an optional
 * child is read without asking whether it is there.
 */
JsonObject *json_object_child(JsonObject *object, const char *key);

/* Arrays of objects: their length (0 when absent, a mistake when no array) and a view of the idx-th. */
size_t json_object_length(JsonObject *object, const char *key);
JsonObject *json_object_item(JsonObject *object, const char *key, size_t idx);

/* Closes a child whose mistake, if any, is to stick to its parent (unknown keys are mistakes). */
void json_object_end(JsonObject *child);

/* Typed getters: the default when absent or null; a mistake when of another type or outside [min, max]. */
int64_t json_object_int(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t or_else);
double json_object_number(JsonObject *object, const char *key, double min, double max, double or_else);
gboolean json_object_bool(JsonObject *object, const char *key, gboolean or_else);

/* Borrowed; lives as long as the document. */
const char *json_object_string(JsonObject *object, const char *key, const char *or_else);

/*
 * A number of bytes or a string with a unit; likewise a rate in bytes or FLOPs per second, and a time in
 * nanoseconds.
 */
int64_t json_object_bytes(JsonObject *object, const char *key, int64_t or_else);
double json_object_rate(JsonObject *object, const char *key, double or_else);
double json_object_flops_rate(JsonObject *object, const char *key, double or_else);
SimTime json_object_time(JsonObject *object, const char *key, SimTime or_else);

/* Index of the string in names (n of them), or_else when absent; other strings are a mistake with the
 * nearest name. */
int json_object_choice(JsonObject *object, const char *key, const char *const *names, int n_names, int or_else);

/* The raw value (borrowed) or NULL; marks the key used. */
json_t *json_object_raw(JsonObject *object, const char *key);

/* Marks keys as known without reading them (loader-only fields). */
void json_object_ignore(JsonObject *object, const char *key);

/* The i-th key of the object in file order, or NULL past the end; does not mark it. */
const char *json_object_key(const JsonObject *object, size_t idx);

/* Dotted path of the object or of a key in it; caller frees. */
char *json_object_path(const JsonObject *object, const char *key);

/*
 * Records a mistake at a key (NULL = the object itself; "a.b" = the key b of the child a, unless "a.b" is a key); printf form. Only the
 * first sticks.
 */
void json_object_fail(JsonObject *object, const char *key, const char *format, ...) G_GNUC_PRINTF(3, 4);

/*
 * Makes an error of what a key names (a file that cannot be read, or whose content is wrong) a mistake of the key, of the same
 * kind; takes the error over.
 */
void json_object_adopt(JsonObject *object, const char *key, GError *error);

/* The mistake of a value of another kind: "must be WHAT, not VALUE", the value cut short. */
void json_object_fail_type(JsonObject *object, const char *key, const json_t *value, const char *what);

/* TRUE while no mistake has been made. */
gboolean json_object_ok(const JsonObject *object);
