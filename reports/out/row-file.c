#include "reports/out/row-file.h"

#include <csv.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/error.h"

struct RowWriter {
    char *name;
    int fd;
    gboolean is_regular;
    off_t end; /* of the last whole row */
};

RowFormat row_format_of(const char *path)
{
    return g_str_has_suffix(path, ".jsonl") || g_str_has_suffix(path, ".ndjson") ? ROW_JSONL : ROW_CSV;
}

/* Length of the first whole row of the text, 0 when there is none. */
static gsize row_length(RowFormat format, const char *text, gsize length)
{
    gboolean quoted = FALSE;
    for (gsize i = 0; i < length; i++) {
        quoted ^= format == ROW_CSV && text[i] == '"'; /* a doubled quote switches twice */
        if (text[i] == '\n' && !quoted) {
            return i + 1;
        }
    }
    return 0;
}

/* Length of all whole rows of the text. What ends a row of CSV outside quotes ends one of JSON lines too. */
static gsize whole_rows(const char *text, gsize length)
{
    gsize whole = 0, next;
    while ((next = row_length(ROW_CSV, text + whole, length - whole)) > 0) {
        whole += next;
    }
    return whole;
}

/* ---- writing ---- */

static gboolean fail(GError **error, const char *name, const char *what, int number)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "%s: %s: %s", name, what, g_strerror(number));
    return FALSE;
}

void row_writer_free(RowWriter *writer)
{
    if (writer != NULL) {
        if (writer->fd > STDERR_FILENO) {
            close(writer->fd);
        }
        g_free(writer->name);
        g_free(writer);
    }
}

RowWriter *row_writer_open(const char *path, int64_t keep_bytes, GError **error)
{
    g_autoptr(RowWriter) writer = g_new0(RowWriter, 1);
    struct stat info;
    writer->name = g_strdup(path != NULL ? path : "standard output");
    writer->fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : STDOUT_FILENO;
    if (writer->fd < 0 || fstat(writer->fd, &info) != 0) {
        fail(error, writer->name, "cannot write", errno);
        return NULL;
    }
    writer->is_regular = path != NULL && S_ISREG(info.st_mode);
    if (writer->is_regular) {
        writer->end = (off_t)keep_bytes;
        if (ftruncate(writer->fd, writer->end) != 0 || lseek(writer->fd, writer->end, SEEK_SET) < 0) {
            fail(error, writer->name, "cannot write", errno);
            return NULL;
        }
    }
    return g_steal_pointer(&writer);
}

gboolean row_writer_is_regular(const RowWriter *writer)
{
    return writer->is_regular;
}

gboolean row_writer_append(RowWriter *writer, const char *rows, size_t length, GError **error)
{
    size_t done = 0;
    while (done < length) {
        ssize_t n = write(writer->fd, rows + done, length - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            int number = errno;
            writer->end += (off_t)whole_rows(rows, done);
            if (writer->is_regular && ftruncate(writer->fd, writer->end) != 0) {
                number = errno;
            }
            return fail(error, writer->name, "cannot write", number);
        }
        done += (size_t)n;
    }
    writer->end += (off_t)length;
    return TRUE;
}

gboolean row_writer_close(RowWriter *writer, GError **error)
{
    gboolean done = !writer->is_regular || fsync(writer->fd) == 0 || errno == EINVAL;
    int number = errno;
    if (writer->fd > STDERR_FILENO) {
        if (close(writer->fd) != 0 && done) {
            done = FALSE;
            number = errno;
        }
        writer->fd = -1;
    }
    if (!done) {
        fail(error, writer->name, "cannot write", number);
    }
    row_writer_free(writer);
    return done;
}

/* ---- reading ---- */

enum { CHUNK = 1 << 16, ROW_MAX = 1 << 24 };

struct RowReader {
    char *name;
    RowFormat format;
    int fd;
    GString *buffer; /* read and not given yet, from `at` on */
    gsize at;
    int64_t end; /* of what was given */
    gboolean is_torn, at_end;
};

RowReader *row_reader_open(const char *path, RowFormat format, GError **error)
{
    g_autoptr(RowReader) reader = g_new0(RowReader, 1);
    struct stat info;
    reader->name = g_strdup(path);
    reader->format = format;
    reader->buffer = g_string_new(NULL);
    reader->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0 || fstat(reader->fd, &info) != 0) {
        fail(error, path, "cannot read", errno);
        return NULL;
    }
    if (S_ISDIR(info.st_mode)) {
        fail(error, path, "cannot read", EISDIR);
        return NULL;
    }
    return g_steal_pointer(&reader);
}

void row_reader_free(RowReader *reader)
{
    if (reader != NULL) {
        if (reader->fd >= 0) {
            close(reader->fd);
        }
        g_string_free(reader->buffer, TRUE);
        g_free(reader->name);
        g_free(reader);
    }
}

static gboolean read_more(RowReader *reader, GError **error)
{
    g_string_erase(reader->buffer, 0, (gssize)reader->at);
    reader->at = 0;
    gsize before = reader->buffer->len;
    if (before > ROW_MAX) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: a row of more than %d bytes: this is no table of rows",
                    reader->name, ROW_MAX);
        return FALSE;
    }
    g_string_set_size(reader->buffer, before + CHUNK);
    ssize_t n;
    do {
        n = read(reader->fd, reader->buffer->str + before, CHUNK);
    } while (n < 0 && errno == EINTR);
    g_string_set_size(reader->buffer, before + (gsize)MAX(n, 0));
    reader->at_end = n == 0;
    return n >= 0 ? TRUE : fail(error, reader->name, "cannot read", errno);
}

gboolean row_reader_next(RowReader *reader, const char **ret_row, size_t *ret_length, GError **error)
{
    *ret_row = NULL;
    *ret_length = 0;
    for (;;) {
        const char *text = reader->buffer->str + reader->at;
        gsize rest = reader->buffer->len - reader->at;
        gsize length = row_length(reader->format, text, rest);
        if (length > 0) {
            reader->at += length;
            reader->end += (int64_t)length;
            *ret_row = text;
            *ret_length = length;
            return TRUE;
        }
        if (reader->at_end) {
            reader->is_torn = rest > 0;
            return TRUE;
        }
        if (!read_more(reader, error)) {
            return FALSE;
        }
    }
}

int64_t row_reader_end(const RowReader *reader)
{
    return reader->end;
}

gboolean row_reader_is_torn(const RowReader *reader)
{
    return reader->is_torn;
}

/* ---- cells ---- */

static void on_cell(void *text, size_t length, void *cells)
{
    g_ptr_array_add(cells, g_strndup(text, length));
}

static gboolean csv_cells(const char *row, size_t length, GPtrArray *cells)
{
    struct csv_parser parser;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI | CSV_APPEND_NULL) != 0) {
        g_error("no memory for a CSV parser");
    }
    gboolean ok = csv_parse(&parser, row, length, on_cell, NULL, cells) == length &&
                  csv_fini(&parser, on_cell, NULL, cells) == 0;
    csv_free(&parser);
    return ok;
}

static gboolean jsonl_cells(const char *row, size_t length, GPtrArray *cells)
{
    json_t *object = json_loadb(row, length, JSON_REJECT_DUPLICATES, NULL);
    const char *key;
    json_t *value;
    gboolean ok = json_is_object(object);
    json_object_foreach (object, key, value) {
        if (json_is_string(value)) {
            g_ptr_array_add(cells, g_strdup(json_string_value(value)));
        } else if (json_is_null(value)) {
            g_ptr_array_add(cells, g_strdup(""));
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
            g_ptr_array_add(cells, g_strdup(text));
            free(text);
        }
    }
    json_decref(object);
    return ok;
}

GPtrArray *row_cells(RowFormat format, const char *row, size_t length)
{
    g_autoptr(GPtrArray) cells = g_ptr_array_new_with_free_func(g_free);
    gboolean ok = format == ROW_CSV ? csv_cells(row, length, cells) : jsonl_cells(row, length, cells);
    return ok ? g_steal_pointer(&cells) : NULL;
}
