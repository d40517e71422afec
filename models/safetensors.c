#include "models/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "models/formats.h"
#include "sim/base/error.h"
#include "sim/base/file.h"
#include "sim/base/json-read.h"
#include "sim/base/quantity.h"

/* Longest header that is read: the limit of the format's own library. */
enum { LENGTH_BYTES = 8, HEADER_MAX = 100000000, DIMS_MAX = 4 };

static const struct {
    const char *name;
    int bytes;
} types[N_SAFETENSORS_TYPES] = {
    [SAFETENSORS_F64] = {"F64", 8}, [SAFETENSORS_F32] = {"F32", 4}, [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_F16] = {"F16", 2}, [SAFETENSORS_I64] = {"I64", 8}, [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_U16] = {"U16", 2}, [SAFETENSORS_U8] = {"U8", 1},   [SAFETENSORS_I8] = {"I8", 1},
};

typedef struct Entry {
    char *name;
    SafetensorsType type;
    int n_dims;
    int64_t dims[DIMS_MAX];
    int64_t begin, end; /* in the data */
} Entry;

struct Safetensors {
    GArray *entries;     /* Entry, by begin */
    GHashTable *by_name; /* name -> Entry index + 1 */
    json_t *meta;        /* object or NULL */
    guint8 *data;
};

static void entry_clear(void *entry)
{
    g_free(((Entry *)entry)->name);
}

static gboolean fail(GError **error, const char *file, const char *tensor, const char *what)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: %s%s%s", file, tensor != NULL ? tensor : "",
                tensor != NULL ? ": " : "", what);
    return FALSE;
}

static gboolean entry_type(Entry *entry, const json_t *value)
{
    for (int i = 0; i < N_SAFETENSORS_TYPES; i++) {
        if (g_strcmp0(json_string_value(value), types[i].name) == 0) {
            entry->type = (SafetensorsType)i;
            return TRUE;
        }
    }
    return FALSE;
}

/* Type, shape and offsets of one tensor; data_bytes bounds the offsets. */
static gboolean entry_read(Entry *entry, const json_t *value, int64_t data_bytes, const char *file, GError **error)
{
    const json_t *shape = json_object_get(value, "shape"), *offsets = json_object_get(value, "data_offsets");
    if (!json_is_object(value) || json_object_size(value) != 3 || !json_is_array(shape) ||
        json_array_size(offsets) != 2) {
        return fail(error, file, entry->name, "needs dtype, shape and data_offsets [begin, end], and nothing else");
    }
    if (!entry_type(entry, json_object_get(value, "dtype"))) {
        return fail(error, file, entry->name, "dtype is none of F64, F32, BF16, F16, I64, I32, U16, U8, I8");
    }
    if (json_array_size(shape) > DIMS_MAX) {
        return fail(error, file, entry->name, "more than 4 dimensions");
    }
    entry->n_dims = (int)json_array_size(shape);
    int64_t bytes = types[entry->type].bytes, widened = sizeof(int64_t); /* what a tensor of it may take */
    for (int i = 0; i < entry->n_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        entry->dims[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || entry->dims[i] < 0 || !quantity_mul(bytes, entry->dims[i], &bytes) ||
            !quantity_mul(widened, entry->dims[i], &widened)) {
            return fail(error, file, entry->name, "a size in shape is no integer, negative or too large");
        }
    }
    entry->begin = json_integer_value(json_array_get(offsets, 0));
    entry->end = json_integer_value(json_array_get(offsets, 1));
    if (!json_is_integer(json_array_get(offsets, 0)) || !json_is_integer(json_array_get(offsets, 1)) ||
        entry->begin < 0 || entry->end < entry->begin || entry->end > data_bytes) {
        return fail(error, file, entry->name, "data_offsets lie outside the data");
    }
    if (entry->end - entry->begin != bytes) {
        return fail(error, file, entry->name, "data_offsets do not fit shape and dtype");
    }
    return TRUE;
}

static gboolean meta_read(Safetensors *file, json_t *value, const char *name, GError **error)
{
    const char *key;
    json_t *text;
    if (!json_is_object(value)) {
        return fail(error, name, "__metadata__", "is no object");
    }
    json_object_foreach (value, key, text) {
        if (!json_is_string(text)) {
            return fail(error, name, "__metadata__", "holds something other than strings");
        }
    }
    file->meta = json_incref(value);
    return TRUE;
}

static int entry_compare(const void *a, const void *b)
{
    const Entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end ? 1 : strcmp(x->name, y->name);
}

/* Tensors in the order of their data, which they must fill without gap or overlap. */
static gboolean check_layout(Safetensors *file, int64_t data_bytes, const char *name, GError **error)
{
    int64_t at = 0;
    g_array_sort(file->entries, entry_compare);
    for (guint i = 0; i < file->entries->len; i++) {
        const Entry *entry = &g_array_index(file->entries, Entry, i);
        if (entry->begin != at) {
            return fail(error, name, entry->name, "its data do not follow those of the tensor before");
        }
        at = entry->end;
        g_hash_table_insert(file->by_name, entry->name, GUINT_TO_POINTER(i + 1));
    }
    return at == data_bytes || fail(error, name, NULL, "bytes that belong to no tensor at the end");
}

static gboolean header_read(Safetensors *file, json_t *header, int64_t data_bytes, const char *name, GError **error)
{
    const char *key;
    json_t *value;
    if (!json_is_object(header)) {
        return fail(error, name, NULL, "the header is no JSON object");
    }
    json_object_foreach (header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            if (!meta_read(file, value, name, error)) {
                return FALSE;
            }
            continue;
        }
        Entry entry = {.name = g_strdup(key)};
        gboolean ok = entry_read(&entry, value, data_bytes, name, error);
        g_array_append_val(file->entries, entry);
        if (!ok) {
            return FALSE;
        }
    }
    return check_layout(file, data_bytes, name, error);
}

Safetensors *safetensors_parse(const void *data, size_t size, const char *name, GError **error)
{
    const guint8 *bytes = data;
    uint64_t length = 0;
    if (size < LENGTH_BYTES) {
        fail(error, name, NULL, "too short to be a safetensors file");
        return NULL;
    }
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | bytes[i];
    }
    if (length > HEADER_MAX || length > size - LENGTH_BYTES) {
        fail(error, name, NULL,
             "the header is longer than the file (or than 100 MB): not a safetensors file, or cut off");
        return NULL;
    }
    json_error_t json_error;
    g_autoptr(json_t) header =
        json_loadb((const char *)bytes + LENGTH_BYTES, length, JSON_REJECT_DUPLICATES, &json_error);
    if (header == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: header: %s", name, json_error.text);
        return NULL;
    }
    g_autoptr(Safetensors) file = g_new0(Safetensors, 1);
    size_t data_bytes = size - LENGTH_BYTES - length;
    file->entries = g_array_new(FALSE, FALSE, sizeof(Entry));
    g_array_set_clear_func(file->entries, entry_clear);
    file->by_name = g_hash_table_new(g_str_hash, g_str_equal);
    if (!header_read(file, header, (int64_t)data_bytes, name, error)) {
        return NULL;
    }
    file->data = g_memdup2(bytes + LENGTH_BYTES + length, data_bytes);
    return g_steal_pointer(&file);
}

Safetensors *safetensors_load(const char *path, GError **error)
{
    size_t size;
    g_autofree char *bytes = file_read(path, &size, error);
    return bytes != NULL ? safetensors_parse(bytes, size, path, error) : NULL;
}

void safetensors_free(Safetensors *file)
{
    if (file == NULL) {
        return;
    }
    g_hash_table_unref(file->by_name);
    g_array_unref(file->entries);
    json_decref(file->meta);
    g_free(file->data);
    g_free(file);
}

int safetensors_n(const Safetensors *file)
{
    return (int)file->entries->len;
}

const char *safetensors_name(const Safetensors *file, int idx)
{
    return g_array_index(file->entries, Entry, idx).name;
}

static const Entry *entry_find(const Safetensors *file, const char *name)
{
    guint at = GPOINTER_TO_UINT(g_hash_table_lookup(file->by_name, name));
    return at > 0 ? &g_array_index(file->entries, Entry, at - 1) : NULL;
}

gboolean safetensors_has(const Safetensors *file, const char *name)
{
    return entry_find(file, name) != NULL;
}

const char *safetensors_meta(const Safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->meta, key));
}

const void *safetensors_bytes(const Safetensors *file, const char *name, SafetensorsType *ret_type, size_t *ret_size)
{
    const Entry *entry = entry_find(file, name);
    if (entry == NULL) {
        return NULL;
    }
    *ret_type = entry->type;
    *ret_size = (size_t)(entry->end - entry->begin);
    return file->data + entry->begin;
}

/* Little-endian unsigned integer of n bytes. */
static uint64_t load_bits(const guint8 *at, int n)
{
    uint64_t bits = 0;
    for (int i = n - 1; i >= 0; i--) {
        bits = bits << 8 | at[i];
    }
    return bits;
}

static float half_decode(uint16_t code)
{
    int exp = code >> 10 & 31, mant = code & 1023;
    double sign = code >> 15 ? -1 : 1;
    if (exp == 31) {
        return (float)(mant == 0 ? sign * (double)INFINITY : (double)NAN);
    }
    return (float)(sign * (exp == 0 ? ldexp(mant, -24) : ldexp(mant | 1024, exp - 25)));
}

/* Element of a type as what its tensor holds. */
static void load_element(Tensor *tensor, int64_t i, SafetensorsType type, const guint8 *at)
{
    uint64_t bits = load_bits(at, types[type].bytes);
    uint32_t low = (uint32_t)bits;
    switch (type) {
    case SAFETENSORS_F64:
        memcpy((double *)tensor->data + i, &bits, sizeof bits);
        break;
    case SAFETENSORS_F32:
        memcpy((float *)tensor->data + i, &low, sizeof low);
        break;
    case SAFETENSORS_BF16:
        ((float *)tensor->data)[i] = format_bf16_decode((uint16_t)bits);
        break;
    case SAFETENSORS_F16:
        ((float *)tensor->data)[i] = half_decode((uint16_t)bits);
        break;
    case SAFETENSORS_I32:
        ((int64_t *)tensor->data)[i] = (int32_t)low;
        break;
    case SAFETENSORS_I8:
        ((int64_t *)tensor->data)[i] = (int8_t)low;
        break;
    case SAFETENSORS_I64:
    case SAFETENSORS_U16:
    case SAFETENSORS_U8:
    case N_SAFETENSORS_TYPES:
    default:
        ((int64_t *)tensor->data)[i] = (int64_t)bits;
        break;
    }
}

static TensorType tensor_type(SafetensorsType type)
{
    if (type == SAFETENSORS_F64) {
        return TENSOR_F64;
    }
    return type == SAFETENSORS_F32 || type == SAFETENSORS_BF16 || type == SAFETENSORS_F16 ? TENSOR_F32 : TENSOR_I64;
}

Tensor *safetensors_get(const Safetensors *file, const char *name, GError **error)
{
    const Entry *entry = entry_find(file, name);
    if (entry == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "no tensor \"%s\" in the file", name);
        return NULL;
    }
    /* What a small file may ask for (a narrow type widened) is bounded by 8 bytes per byte of the file. */
    Tensor *tensor = tensor_new(tensor_type(entry->type), entry->n_dims, entry->dims);
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        load_element(tensor, i, entry->type, file->data + entry->begin + i * types[entry->type].bytes);
    }
    return tensor;
}

struct SafetensorsWriter {
    json_t *header;
    GByteArray *data;
};

SafetensorsWriter *safetensors_writer_new(void)
{
    SafetensorsWriter *writer = g_new0(SafetensorsWriter, 1);
    writer->header = json_object();
    writer->data = g_byte_array_new();
    return writer;
}

void safetensors_writer_free(SafetensorsWriter *writer)
{
    if (writer != NULL) {
        json_decref(writer->header);
        g_byte_array_unref(writer->data);
        g_free(writer);
    }
}

void safetensors_writer_meta(SafetensorsWriter *writer, const char *key, const char *value)
{
    json_t *meta = json_object_get(writer->header, "__metadata__");
    if (meta == NULL) {
        meta = json_object();
        json_object_set_new(writer->header, "__metadata__", meta);
    }
    json_object_set_new(meta, key, json_string(value));
}

void safetensors_writer_add(SafetensorsWriter *writer, const char *name, const Tensor *tensor)
{
    static const SafetensorsType by_tensor[] = {SAFETENSORS_F64, SAFETENSORS_F32, SAFETENSORS_I64};
    SafetensorsType type = by_tensor[tensor->type];
    g_assert(json_object_get(writer->header, name) == NULL);
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++) {
        json_array_append_new(shape, json_integer(tensor->dims[i]));
    }
    json_int_t begin = writer->data->len;
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        guint8 bytes[8];
        memcpy(&bits, (const guint8 *)tensor->data + (size_t)i * tensor_elem_bytes(tensor->type),
               tensor_elem_bytes(tensor->type));
        if (tensor->type == TENSOR_F32) {
            uint32_t low;
            memcpy(&low, (const guint8 *)tensor->data + (size_t)i * sizeof low, sizeof low);
            bits = low;
        }
        for (int b = 0; b < types[type].bytes; b++) {
            bytes[b] = (guint8)(bits >> (8 * b));
        }
        g_byte_array_append(writer->data, bytes, (guint)types[type].bytes);
    }
    json_object_set_new(writer->header, name,
                        json_pack("{s:s, s:o, s:[I,I]}", "dtype", types[type].name, "shape", shape, "data_offsets",
                                  begin, (json_int_t)writer->data->len));
}

GBytes *safetensors_writer_bytes(const SafetensorsWriter *writer)
{
    char *text = json_dumps(writer->header, JSON_COMPACT);
    g_autoptr(GString) header = g_string_new(text);
    free(text);
    while (header->len % LENGTH_BYTES != 0) {
        g_string_append_c(header, ' ');
    }
    GByteArray *file = g_byte_array_new();
    for (int i = 0; i < LENGTH_BYTES; i++) {
        guint8 byte = (guint8)((uint64_t)header->len >> (8 * i));
        g_byte_array_append(file, &byte, 1);
    }
    g_byte_array_append(file, (const guint8 *)header->str, (guint)header->len);
    g_byte_array_append(file, writer->data->data, writer->data->len);
    return g_byte_array_free_to_bytes(file);
}

gboolean safetensors_writer_save(const SafetensorsWriter *writer, const char *path, GError **error)
{
    g_autoptr(GBytes) bytes = safetensors_writer_bytes(writer);
    size_t size;
    const void *data = g_bytes_get_data(bytes, &size);
    return file_write(path, data, size, error);
}
