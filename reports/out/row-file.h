/*
 * Row files: CSV or JSON lines that grow row by row and can be gone on with after any end.
 *
 * Invariants of the writer: (1) what is in the file is always a run of whole rows, but for the last one when the process
 * was killed or the machine lost power; (2) a write that fails (a full disk) is taken back to the last whole row, and the
 * file stays as it was before it. The reader gives whole rows alone and says where the last one ends.
 *
 * A row ends at a line end outside quotes (CSV), or at any line end (JSON lines).
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef enum RowFormat { ROW_CSV, ROW_JSONL } RowFormat;

/* The format of a file by the end of its name: .jsonl and .ndjson are JSON lines, all others CSV. */
RowFormat row_format_of(const char *path);

/* ---- writing ---- */

typedef struct RowWriter RowWriter;

/*
 * Opens a file for writing from offset keep_bytes on, cutting what stands behind it. What is no regular file (a pipe,
 * /dev/stdout) is written from where it is. path NULL is standard output. Errors are MOESIM_ERROR_IO.
 */
RowWriter *row_writer_open(const char *path, int64_t keep_bytes, GError **error);

/* Appends whole rows. FALSE: the file holds the rows written before, and those of these that went in whole. */
gboolean row_writer_append(RowWriter *writer, const char *rows, size_t length, GError **error);

/* Whether the file can be cut and gone on with. */
gboolean row_writer_is_regular(const RowWriter *writer);

/* Flushes to disk and closes; frees in every case. */
gboolean row_writer_close(RowWriter *writer, GError **error);

/* Closes without a flush; NULL does nothing. */
void row_writer_free(RowWriter *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RowWriter, row_writer_free)

/* ---- reading ---- */

typedef struct RowReader RowReader;

RowReader *row_reader_open(const char *path, RowFormat format, GError **error);
void row_reader_free(RowReader *reader);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RowReader, row_reader_free)

/*
 * The next whole row with its line end, borrowed until the next call; *ret_row NULL at the end. A torn last row is no row.
 */
gboolean row_reader_next(RowReader *reader, const char **ret_row, size_t *ret_length, GError **error);

/* Where the last row that was given ends, in bytes. */
int64_t row_reader_end(const RowReader *reader);

/* Whether something stands behind the last whole row (known once row_reader_next gave NULL). */
gboolean row_reader_is_torn(const RowReader *reader);

/* The cells of a row as texts; JSON nulls and empty CSV cells are "". NULL when the row is none of that format. */
GPtrArray *row_cells(RowFormat format, const char *row, size_t length);
