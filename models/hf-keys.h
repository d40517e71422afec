/*
 * Fields of a Hugging Face config.json: their names, aliases and what is done with those that nobody asked for.
 *
 * A reader is a view of one object that notes which keys were read. Invariants: (1) two names of one field with
 * different values are a mistake; (2) after the family has read what it knows, every other key must be one
 * that has no influence on the shape of a model. A key of another family, a key near a shape field's name, or one
 * that looks like a shape is a mistake: what it stands for would be left out of every prediction.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "sim/base/json-read.h"

typedef enum HfKey {
#define HF_KEY(id, ...) HF_KEY_##id,
#include "models/hf-keys.def"
#undef HF_KEY
    N_HF_KEYS
} HfKey;

enum {
    HF_NAMES_MAX = 4,
    HF_INT_MAX = 1 << 24, /* no count or width of a model is larger; products are checked by hf_check_sizes() */
};

/* The i-th name of a field, NULL past the last; name 0 is the one that messages use. */
const char *hf_key_name(HfKey key, int i);

/* The field of that name, or FALSE. */
gboolean hf_key_from_name(const char *name, HfKey *ret_key);

/* The nearest name of any shape field to a misspelt one, or NULL. */
const char *hf_key_nearest(const char *wrong);

typedef struct HfReader {
    JsonObject *object;
    const char *family; /* for messages */
    GHashTable *used;   /* names read, look-up only */
} HfReader;

void hf_reader_init(HfReader *reader, JsonObject *object, const char *family);
void hf_reader_clear(HfReader *reader);

/*
 * A reader of a nested object (object NULL when it is absent; the getters may then not be called). leave judges
 * what was not read there and closes it.
 */
void hf_reader_enter(HfReader *child, HfReader *parent, HfKey key);
void hf_reader_leave(HfReader *child);

/* Judges the keys that were not read; a mistake sticks to the object. */
void hf_reader_finish(HfReader *reader);

/* Name under which the field is present (null counts as absent), or NULL. */
const char *hf_find(HfReader *reader, HfKey key);

/* Values; or_else when absent. A mistake when of another type or negative. */
int64_t hf_int(HfReader *reader, HfKey key, int64_t or_else);
double hf_number(HfReader *reader, HfKey key, double or_else);
gboolean hf_bool(HfReader *reader, HfKey key, gboolean or_else);
const char *hf_string(HfReader *reader, HfKey key, const char *or_else);
json_t *hf_raw(HfReader *reader, HfKey key);

/* A positive integer that the family cannot do without; 1 after a mistake. */
int64_t hf_need(HfReader *reader, HfKey key);

/* The field is known to the family and has no influence here. */
void hf_skip(HfReader *reader, HfKey key);

/* The field must have that value when present, because nothing else is modelled: names what would be missing. */
void hf_only(HfReader *reader, HfKey key, gboolean value, const char *missing);

/* Records a mistake at a field, under the name that the file gives it. */
void hf_fail(HfReader *reader, HfKey key, const char *format, ...) G_GNUC_PRINTF(3, 4);

/*
 * Array of integers in [min, max], each at most once, as flags[value - min]; absent gives all FALSE and
 * returns FALSE.
 */
gboolean hf_flags(HfReader *reader, HfKey key, int64_t min, int64_t max, gboolean *ret_flags);
