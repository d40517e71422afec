/*
 * safetensors: tensors by name in one file; a strict reader and a writer.
 *
 * File: 8 bytes little-endian length of the header, the header (JSON, padded with spaces), then raw row-major
 * little-endian data. Everything in a file is checked before it is used: the header's size and syntax, types, shapes,
 * that offsets follow one another without gap or overlap and end with the file.
 *
 * Values are handed out as tensors of float64, float32 or int64 (other widths are widened) or as raw bytes.
 */
#pragma once

#include <glib.h>

#include "models/tensor.h"

typedef struct Safetensors Safetensors;

typedef enum SafetensorsType {
    SAFETENSORS_F64,
    SAFETENSORS_F32,
    SAFETENSORS_BF16,
    SAFETENSORS_F16,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    N_SAFETENSORS_TYPES
} SafetensorsType;

/* Reads a file, or bytes (borrowed for the call); name is for messages. */
Safetensors *safetensors_load(const char *path, GError **error);
Safetensors *safetensors_parse(const void *data, size_t size, const char *name, GError **error);
void safetensors_free(Safetensors *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Safetensors, safetensors_free)

/* Number of tensors, and the name of the i-th in the order of the data. Borrowed. */
int safetensors_n(const Safetensors *file);
const char *safetensors_name(const Safetensors *file, int idx);

/* Whether it holds that tensor. */
gboolean safetensors_has(const Safetensors *file, const char *name);

/* A string of the metadata, or NULL. Borrowed. */
const char *safetensors_meta(const Safetensors *file, const char *key);

/* The tensor in its own precision (F64, F32; BF16 and F16 as F32; integers as I64). NULL and an error if absent. */
Tensor *safetensors_get(const Safetensors *file, const char *name, GError **error);

/* The raw bytes (borrowed), their type and number; NULL if absent. */
const void *safetensors_bytes(const Safetensors *file, const char *name, SafetensorsType *ret_type, size_t *ret_size);

/* A file to be written. */
typedef struct SafetensorsWriter SafetensorsWriter;
SafetensorsWriter *safetensors_writer_new(void);
void safetensors_writer_free(SafetensorsWriter *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SafetensorsWriter, safetensors_writer_free)

/* Adds a string of metadata, or a tensor (copied). Names must differ. */
void safetensors_writer_meta(SafetensorsWriter *writer, const char *key, const char *value);
void safetensors_writer_add(SafetensorsWriter *writer, const char *name, const Tensor *tensor);

/* The file's bytes; or writes them to a path. */
GBytes *safetensors_writer_bytes(const SafetensorsWriter *writer);
gboolean safetensors_writer_save(const SafetensorsWriter *writer, const char *path, GError **error);
