#include "tests/check.h"

#include "sim/base/csv-read.h"
#include "sim/base/error.h"

static void test_read(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbfid,a,b\r\n"
                               "\n"
                               "one, 1.5 ,\"x \"\"y\"\"\n"
                               "z,\"\r\n"
                               "two,,last"; /* no line end */
    g_autoptr(GError) error = NULL;
    g_autoptr(CsvTable) table = csv_table_parse(text, sizeof text - 1, "t.csv", &error);
    check_no_error(error);
    check_int(csv_table_n_rows(table), 2);
    check_int(csv_table_n_columns(table), 3);
    check_string(csv_table_column(table, 0), "id");
    check_int(csv_table_find(table, "b"), 2);
    check_int(csv_table_find(table, "c"), -1);
    check_string(csv_table_cell(table, 0, 1), "1.5");
    check_string(csv_table_cell(table, 0, 2), "x \"y\"\nz,");
    check_string(csv_table_cell(table, 1, 1), "");
    check_string(csv_table_cell(table, 1, 2), "last");
    check_int(csv_table_line(table, 0), 3);
    check_int(csv_table_line(table, 1), 5);
    check_string(csv_table_name(table), "t.csv");
    double number = 0;
    assert_true(csv_table_number(table, 0, 1, &number, &error));
    check_close(number, 1.5, 0);
    assert_false(csv_table_number(table, 1, 1, &number, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "t.csv:5: a: \"\" is not a number");
}

static void test_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "t.csv:1: is empty"},
        {"\n\n", "t.csv:1: is empty"},
        {"a,b\n1\n", "t.csv:2: has 1 cells where the header has 2"},
        {"a,b\n1,2\n\n1,2,3\n", "t.csv:4: has 3 cells where the header has 2"},
        {"a,b\n\"1\n\n2\",3\n4\n", "t.csv:5: has 1 cells"},
        {"a,a\n", "t.csv:1: column \"a\" stands there twice"},
        {"a,,b\n", "t.csv:1: column 2 has no name"},
        {"a\n\"x\" y\n", "t.csv:2: "},
        {"a\nx\"y\n", "t.csv:2: "},
        {"a\n1\n\"open\n\n", "t.csv:3: a quote that opens in this row is never closed"},
        {"a\n\xff\n", "t.csv: is not a text in UTF-8"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        assert_null(csv_table_parse(cases[i].text, strlen(cases[i].text), "t.csv", &error));
        check_error(&error, MOESIM_ERROR_INPUT, cases[i].error);
    }
    g_autoptr(GError) error = NULL;
    assert_null(csv_table_parse("a\n\0", 3, "t.csv", &error));
    check_error(&error, MOESIM_ERROR_INPUT, "UTF-8");
    assert_null(csv_table_load("/no/such.csv", &error));
    check_error(&error, MOESIM_ERROR_IO, "/no/such.csv");
}

static void test_header_only(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(CsvTable) table = csv_table_parse("a,b", 3, "t.csv", &error);
    check_no_error(error);
    check_int(csv_table_n_rows(table), 0);
}

/* As many columns as a file may have by mistake (a table that lies on its side) cost no more each than a few do. */
static void test_wide(void **state)
{
    (void)state;
    enum { N = 200000 };
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) text = g_string_new("c");
    for (int i = 1; i < N; i++) {
        g_string_append_printf(text, ",c%d", i);
    }
    g_autoptr(CsvTable) table = csv_table_parse(text->str, text->len, "t.csv", &error);
    check_no_error(error);
    check_int(csv_table_find(table, "c199999"), N - 1);
    g_string_append(text, ",c7");
    assert_null(csv_table_parse(text->str, text->len, "t.csv", &error));
    check_error(&error, MOESIM_ERROR_INPUT, "t.csv:1: column \"c7\" stands there twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_header_only),
        cmocka_unit_test(test_wide),
    };
    return cmocka_run_group_tests_name("csv-read", tests, NULL, NULL);
}
