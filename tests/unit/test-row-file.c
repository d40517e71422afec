/* Row files: what is written reads back, cut anywhere only whole rows are given, and a failed write leaves whole rows. */
#include "tests/check.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "reports/out/csv.h"
#include "reports/out/jsonl.h"
#include "reports/out/row-file.h"
#include "sim/base/csv-read.h"
#include "sim/base/error.h"

static const char *const texts[] = {
    "plain", "a,b", "say \"so\"", "two\nlines", "cr\r\nlf", "=1+1", "+1", "-1", "@x", " blank ", "\ttab", "é → 中", "'", "\"", "\n", ",", "null",
    "true", "12", "a\"\"b", "\\", "{\"a\": 1}", "#",
};

static Table *table_of_texts(void)
{
    Table *table = table_new();
    table_add_column(table, "text, \"quoted\"", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "whole", TABLE_INTEGER, TABLE_PLAIN);
    table_add_column(table, "number", TABLE_NUMBER, TABLE_PLAIN);
    table_add_column(table, "truth", TABLE_TRUTH, TABLE_PLAIN);
    table_add_column(table, "last", TABLE_TEXT, TABLE_PLAIN);
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        table_add_row(table);
        table_put_text(table, 0, texts[i]);
        table_put_integer(table, 1, i % 2 == 0 ? G_MAXINT64 : -(int64_t)i);
        table_put_number(table, 2, i % 3 == 0 ? (double)NAN : 1.0 / 3 * (double)i);
        table_put_truth(table, 3, i % 2 == 0);
        if (i % 4 == 0) {
            table_put_text(table, 4, texts[i]);
        }
    }
    return table;
}

static char *text_of(const Table *table, RowFormat format)
{
    GString *out = g_string_new(NULL);
    for (size_t i = 0; format == ROW_JSONL && i < table_n_rows(table); i++) {
        jsonl_append_row(out, table, i);
    }
    if (format == ROW_CSV) {
        g_autofree char *csv = csv_from_table(table);
        g_string_append(out, csv);
    }
    return g_string_free(out, FALSE);
}

static void check_row(const Table *table, size_t i, const GPtrArray *cells)
{
    check_int(cells->len, 5);
    check_string(g_ptr_array_index(cells, 0), texts[i]);
    check_int(g_ascii_strtoll(g_ptr_array_index(cells, 1), NULL, 10), table_integer(table, i, 1));
    const char *number = g_ptr_array_index(cells, 2);
    if (table_has(table, i, 2)) {
        check_close(g_ascii_strtod(number, NULL), table_number(table, i, 2), 1e-11);
    } else {
        check_string(number, "");
    }
    check_string(g_ptr_array_index(cells, 3), i % 2 == 0 ? "true" : "false");
    check_string(g_ptr_array_index(cells, 4), i % 4 == 0 ? texts[i] : "");
}

static void test_round_trip(void **state)
{
    (void)state;
    char *dir = check_make_dir();
    g_autoptr(Table) table = table_of_texts();
    for (int format = ROW_CSV; format <= ROW_JSONL; format++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = text_of(table, (RowFormat)format);
        g_autofree char *path = check_write_file(dir, format == ROW_CSV ? "rows.csv" : "rows.jsonl", text);
        check_int(row_format_of(path), format);
        g_autoptr(RowReader) reader = row_reader_open(path, (RowFormat)format, &error);
        check_no_error(error);
        const char *row;
        size_t length;
        assert_true(format == ROW_JSONL || row_reader_next(reader, &row, &length, &error)); /* the header */
        for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
            assert_true(row_reader_next(reader, &row, &length, &error));
            assert_non_null(row);
            g_autoptr(GPtrArray) cells = row_cells((RowFormat)format, row, length);
            assert_non_null(cells);
            check_row(table, i, cells);
        }
        assert_true(row_reader_next(reader, &row, &length, &error));
        assert_null(row);
        assert_false(row_reader_is_torn(reader));
        check_int(row_reader_end(reader), (int64_t)strlen(text));
    }
    /* the strict reader of tables agrees */
    g_autoptr(GError) error = NULL;
    g_autofree char *csv = text_of(table, ROW_CSV);
    g_autoptr(CsvTable) strict = csv_table_parse(csv, strlen(csv), "t.csv", &error);
    check_no_error(error);
    check_string(csv_table_column(strict, 0), "text, \"quoted\"");
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        check_string(csv_table_cell(strict, i, 0), texts[i]);
    }
    check_remove_dir(dir);
}

/* Cut at every byte: the whole rows are given, their end is known, and what stands behind is told. */
static void test_torn(void **state)
{
    (void)state;
    char *dir = check_make_dir();
    g_autoptr(Table) table = table_of_texts();
    for (int format = ROW_CSV; format <= ROW_JSONL; format++) {
        g_autofree char *text = text_of(table, (RowFormat)format);
        g_autofree char *path = check_write_file(dir, "rows", text);
        g_autoptr(GArray) ends = g_array_new(FALSE, FALSE, sizeof(int64_t)); /* of whole rows */
        for (size_t cut = strlen(text) + 1; cut-- > 0;) {
            g_autoptr(GError) error = NULL;
            assert_int_equal(truncate(path, (off_t)cut), 0);
            g_autoptr(RowReader) reader = row_reader_open(path, (RowFormat)format, &error);
            const char *row;
            size_t length;
            guint n = 0;
            do {
                assert_true(row_reader_next(reader, &row, &length, &error));
                if (row != NULL && cut == strlen(text)) {
                    int64_t end = row_reader_end(reader);
                    g_array_append_val(ends, end);
                }
                n += row != NULL;
            } while (row != NULL);
            guint want = 0;
            while (want < ends->len && g_array_index(ends, int64_t, want) <= (int64_t)cut) {
                want++;
            }
            check_int(n, want);
            check_int(row_reader_end(reader), want > 0 ? g_array_index(ends, int64_t, want - 1) : 0);
            check_int(row_reader_is_torn(reader), row_reader_end(reader) != (int64_t)cut);
        }
    }
    check_remove_dir(dir);
}

/* Rows longer than what is read at once. */
static void test_long(void **state)
{
    (void)state;
    char *dir = check_make_dir();
    g_autoptr(GError) error = NULL;
    g_autofree char *wide = g_strnfill(200000, 'x');
    g_autofree char *text = g_strdup_printf("a,\"%s\n%s\"\nb,c\n", wide, wide);
    g_autofree char *path = check_write_file(dir, "rows", text);
    g_autoptr(RowReader) reader = row_reader_open(path, ROW_CSV, &error);
    const char *row;
    size_t length;
    assert_true(row_reader_next(reader, &row, &length, &error));
    check_int(length, 400006);
    assert_true(row_reader_next(reader, &row, &length, &error));
    check_int(length, 4);
    check_remove_dir(dir);
}

static void test_write(void **state)
{
    (void)state;
    char *dir = check_make_dir();
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_write_file(dir, "rows", "one\ntwo\ntorn");
    RowWriter *writer = row_writer_open(path, 8, &error);
    check_no_error(error);
    assert_true(row_writer_is_regular(writer));
    assert_true(row_writer_append(writer, "three\n", 6, &error));
    assert_true(row_writer_close(writer, &error));
    g_autofree char *text = NULL;
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    check_string(text, "one\ntwo\nthree\n");

    /* no room */
    struct rlimit before, limit = {22, 22};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    writer = row_writer_open(path, 14, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    gboolean ok = row_writer_append(writer, "four\nand more\n", 14, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(ok);
    check_error(&error, MOESIM_ERROR_IO, "cannot write");
    g_autofree char *after = NULL;
    assert_true(g_file_get_contents(path, &after, NULL, NULL));
    check_string(after, "one\ntwo\nthree\nfour\n"); /* what went in whole stays */
    row_writer_free(writer);
    assert_null(row_writer_open(dir, 0, &error));
    check_error(&error, MOESIM_ERROR_IO, "cannot write");
    assert_null(row_reader_open(dir, ROW_CSV, &error));
    check_error(&error, MOESIM_ERROR_IO, "cannot read");
    check_remove_dir(dir);
}

static void test_no_rows(void **state)
{
    (void)state;
    assert_null(row_cells(ROW_JSONL, "{\"a\": \n", 7));
    assert_null(row_cells(ROW_JSONL, "[1]\n", 4));
    assert_null(row_cells(ROW_JSONL, "{\"a\": 1, \"a\": 2}\n", 17));
    assert_null(row_cells(ROW_CSV, "\"a\"b\n", 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_torn),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_write),      cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests_name("row-file", tests, NULL, NULL);
}
