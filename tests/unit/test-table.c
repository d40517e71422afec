/* Tables and their two writers: every kind of column, missing cells, units, quoting. */
#include "tests/check.h"

#include "reports/out/csv.h"
#include "reports/out/text.h"

static Table *example(void)
{
    Table *table = table_new();
    size_t name = table_add_column(table, "name", TABLE_TEXT, TABLE_PLAIN);
    size_t count = table_add_column(table, "n", TABLE_INTEGER, TABLE_PLAIN);
    size_t time = table_add_column(table, "time_s", TABLE_NUMBER, TABLE_SECONDS);
    size_t memory = table_add_column(table, "peak_bytes", TABLE_INTEGER, TABLE_BYTES);
    size_t rate = table_add_column(table, "rate_bytes_per_s", TABLE_NUMBER, TABLE_BYTES_PER_S);
    table_add_row(table);
    table_put_text(table, name, "a, \"b\"");
    table_put_integer(table, count, G_MAXINT64);
    table_put_number(table, time, 0.0012345);
    table_put_integer(table, memory, (int64_t)3 << 29); /* 1.5 GiB */
    table_put_number(table, rate, 450e9);
    table_add_row(table);
    table_put_text(table, name, "größer");
    table_put_number(table, time, (double)NAN);
    return table;
}

static void test_csv(void **state)
{
    (void)state;
    g_autoptr(Table) table = example();
    g_autofree char *csv = csv_from_table(table);
    check_string(csv, "\"name\",\"n\",\"time_s\",\"peak_bytes\",\"rate_bytes_per_s\"\n"
                      "\"a, \"\"b\"\"\",9223372036854775807,0.0012345,1610612736,450000000000\n"
                      "\"größer\",,,,\n");
}

/* GiB is 2^30 and GB/s is 10^9, and the header says which is meant. */
static void test_text(void **state)
{
    (void)state;
    g_autoptr(Table) table = example();
    g_autoptr(GString) out = g_string_new(NULL);
    text_append_table(out, table, 2);
    check_string(out->str, "  name                      n  time_s  peak_bytes  rate_bytes_per_s\n"
                           "                                   ms         GiB              GB/s\n"
                           "  a, \"b\"  9223372036854775807   1.234       1.500             450.0\n"
                           "  größer                    -       -           -                 -\n");
    table_clear_rows(table);
    check_int(table_n_rows(table), 0);
    check_int(table_n_columns(table), 5);
}

static void test_bar(void **state)
{
    (void)state;
    static const struct {
        double fraction;
        const char *bar;
    } bars[] = {
        {0, ".........."},  {0.5, "#####....."},  {1, "##########"},           {7, "##########"},
        {-1, ".........."}, {0.04, ".........."}, {(double)NAN, ".........."},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(bars); i++) {
        g_autoptr(GString) out = g_string_new(NULL);
        text_append_bar(out, bars[i].fraction, 10);
        check_string(out->str, bars[i].bar);
    }
}

static void test_wrap(void **state)
{
    (void)state;
    g_autoptr(GString) out = g_string_new("> ");
    text_append_wrapped(out, "one two three four", 2, 10);
    check_string(out->str, "> one two\n  three\n  four\n");
    g_string_assign(out, "> ");
    text_append_wrapped(out, "one two\302\2403 four", 2, 10);
    check_string(out->str, "> one\n  two 3\n  four\n");
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } counts[] = {
        {0, "0"},
        {16, "16"},
        {999, "999"},
        {2549, "2.55 k"},
        {16306993312.0, "16.3 B"},
        {2.78e12, "2.78 T"},
        {4.2e15, "4200 T"},
        {(double)NAN, "unknown"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(counts); i++) {
        g_autofree char *text = text_count(counts[i].value);
        check_string(text, counts[i].text);
    }
    static const struct {
        double seconds;
        const char *text;
    } times[] = {
        {0, "0.00 us"},     {12e-6, "12.0 us"},  {0.0123, "12.3 ms"},
        {0.9994, "999 ms"}, {0.9996, "1.000 s"}, {61.5, "61.500 s"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(times); i++) {
        g_autofree char *text = text_seconds(times[i].seconds);
        check_string(text, times[i].text);
    }
    g_autofree char *gib = text_gib(INT64_C(141) * 1000 * 1000 * 1000);
    check_string(gib, "131.32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv),  cmocka_unit_test(test_text),    cmocka_unit_test(test_bar),
        cmocka_unit_test(test_wrap), cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
