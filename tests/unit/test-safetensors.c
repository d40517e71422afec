/*
 * safetensors: what is written is read back; files that lie are refused with a reason and nothing is read outside them.
 */
#include "tests/check.h"

#include "models/safetensors.h"
#include "sim/base/error.h"

/* A file from a header and that many bytes of data. */
static GByteArray *make_file(const char *header, int64_t claimed_length, size_t data_bytes)
{
    GByteArray *file = g_byte_array_new();
    uint64_t length = claimed_length >= 0 ? (uint64_t)claimed_length : strlen(header);
    for (int i = 0; i < 8; i++) {
        guint8 byte = (guint8)(length >> (8 * i));
        g_byte_array_append(file, &byte, 1);
    }
    g_byte_array_append(file, (const guint8 *)header, (guint)strlen(header));
    for (size_t i = 0; i < data_bytes; i++) {
        guint8 byte = (guint8)i;
        g_byte_array_append(file, &byte, 1);
    }
    return file;
}

typedef struct BadCase {
    const char *name;
    const char *header;
    int64_t length; /* as claimed; -1 = true */
    size_t data_bytes;
    const char *part; /* of the message */
} BadCase;

static const BadCase bad_cases[] = {
    {"longer header than file", "{}", 1000, 0, "longer than the file"},
    {"huge header", "{}", G_MAXINT64, 0, "longer than the file"},
    {"no JSON", "{\"a\":", -1, 0, "header"},
    {"no object", "[1]", -1, 0, "no JSON object"},
    {"repeated name",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
     "offsets\":[0,1]}}",
     -1, 1, "duplicate"},
    {"tensor is a number", "{\"a\":3}", -1, 0, "needs dtype"},
    {"unknown field", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", -1, 1, "nothing else"},
    {"unknown type", "{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", -1, 8, "dtype"},
    {"negative size", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", -1, 1, "negative"},
    {"size overflows", "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", -1, 8,
     "too large"},
    {"size overflows before a zero",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4611686018427387904,0],\"data_offsets\":[0,0]}}", -1, 0, "too large"},
    {"five dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]}}", -1, 1,
     "4 dimensions"},
    {"outside the file", "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", -1, 8, "outside"},
    {"offsets backwards", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,1]}}", -1, 8, "outside"},
    {"offsets negative", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", -1, 8, "outside"},
    {"shape and offsets differ", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", -1, 4,
     "do not fit"},
    {"offsets are text", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",1]}}", -1, 1, "outside"},
    {"gap", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", -1, 2, "follow"},
    {"overlap",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
     "offsets\":[1,3]}}",
     -1, 3, "follow"},
    {"bytes left over", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", -1, 2, "no tensor"},
    {"metadata is no object", "{\"__metadata__\":[]}", -1, 0, "no object"},
    {"metadata holds a number", "{\"__metadata__\":{\"a\":1}}", -1, 0, "strings"},
};

static void test_bad(void **state)
{
    const BadCase *c = *state;
    GError *error = NULL;
    g_autoptr(GByteArray) bytes = make_file(c->header, c->length, c->data_bytes);
    assert_null(safetensors_parse(bytes->data, bytes->len, "x.safetensors", &error));
    check_error(&error, MOESIM_ERROR_INPUT, c->part);
}

/* Every beginning of a good file is refused. */
static void test_cut(void **state)
{
    (void)state;
    g_autoptr(SafetensorsWriter) writer = safetensors_writer_new();
    g_autoptr(Tensor) tensor = tensor_new_2d(TENSOR_F32, 2, 3);
    safetensors_writer_add(writer, "a", tensor);
    g_autoptr(GBytes) bytes = safetensors_writer_bytes(writer);
    size_t size;
    const guint8 *data = g_bytes_get_data(bytes, &size);
    for (size_t n = 0; n < size; n++) {
        g_autofree guint8 *part = g_memdup2(data, n); /* so that a checker sees reads past the end */
        assert_null(safetensors_parse(part, n, "cut", NULL));
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    GError *error = NULL;
    static const TensorType types[] = {TENSOR_F64, TENSOR_F32, TENSOR_I64};
    g_autoptr(SafetensorsWriter) writer = safetensors_writer_new();
    safetensors_writer_meta(writer, "op", "a \"quoted\" one");
    for (int t = 0; t < 3; t++) {
        g_autoptr(Tensor) tensor = tensor_new(types[t], 3, (int64_t[]){2, 1, 3});
        for (int64_t i = 0; i < 6; i++) {
            tensor_set(tensor, i, (double)(i * i) - 7);
        }
        safetensors_writer_add(writer, t == 0 ? "f64" : t == 1 ? "f32" : "i64", tensor);
    }
    g_autoptr(Tensor) scalar = tensor_new(TENSOR_F64, 0, NULL), empty = tensor_new_2d(TENSOR_F32, 0, 4);
    safetensors_writer_add(writer, "scalar", scalar);
    safetensors_writer_add(writer, "empty", empty);
    g_autofree char *dir = check_make_dir(), *path = g_build_filename(dir, "t.safetensors", NULL);
    assert_true(safetensors_writer_save(writer, path, &error));
    g_autoptr(Safetensors) file = safetensors_load(path, &error);
    check_no_error(error);
    check_int(safetensors_n(file), 5);
    check_string(safetensors_meta(file, "op"), "a \"quoted\" one");
    assert_null(safetensors_meta(file, "none"));
    for (int t = 0; t < 3; t++) {
        g_autoptr(Tensor) tensor = safetensors_get(file, t == 0 ? "f64" : t == 1 ? "f32" : "i64", &error);
        check_int(tensor->type, types[t]);
        check_int(tensor->n_dims, 3);
        check_close(tensor_get(tensor, 5), 18, 1e-15);
    }
    g_autoptr(Tensor) none = safetensors_get(file, "absent", &error);
    assert_null(none);
    check_error(&error, MOESIM_ERROR_INPUT, "absent");
    check_remove_dir(g_steal_pointer(&dir));
}

/* Narrow types widen to exact values. */
static void test_narrow(void **state)
{
    (void)state;
    static const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]},\"h\":{\"dtype\":"
                                 "\"F16\",\"shape\":[1],\"data_offsets\":[2,4]},"
                                 "\"i\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[4,5]},\"u\":{\"dtype\":"
                                 "\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}";
    g_autoptr(GByteArray) bytes = make_file(header, -1, 6);
    const guint8 data[] = {0xc0, 0x3f, 0x01, 0xbc, 0xff, 0xff};
    memcpy(bytes->data + 8 + strlen(header), data, sizeof data);
    g_autoptr(Safetensors) file = safetensors_parse(bytes->data, bytes->len, "narrow", NULL);
    const struct {
        const char *name;
        double value;
    } want[] = {{"b", 1.5}, {"h", -1.0009765625}, {"i", -1}, {"u", 255}};
    for (size_t i = 0; i < G_N_ELEMENTS(want); i++) {
        g_autoptr(Tensor) tensor = safetensors_get(file, want[i].name, NULL);
        check_close(tensor_get(tensor, 0), want[i].value, 1e-15);
    }
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(bad_cases) + 3];
    size_t n = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(bad_cases); i++) {
        tests[n++] = (struct CMUnitTest){
            .name = bad_cases[i].name, .test_func = test_bad, .initial_state = (void *)(guintptr)&bad_cases[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_cut);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_round_trip);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_narrow);
    return _cmocka_run_group_tests("safetensors", tests, n, NULL, NULL);
}
