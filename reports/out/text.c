#include "reports/out/text.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    double factor;
    int digits;
} units[N_TABLE_UNITS] = {
    [TABLE_PLAIN] = {"", 1, -1},
    [TABLE_SECONDS] = {"ms", 1e3, 3},
    [TABLE_BYTES] = {"GiB", 1.0 / (1024.0 * 1024.0 * 1024.0), 3},
    [TABLE_BYTES_PER_S] = {"GB/s", 1e-9, 1},
    [TABLE_PERCENT] = {"%", 1, 2},
};

static char *cell_text(const Table *table, size_t row, size_t column)
{
    TableUnit unit = table_column_unit(table, column);
    if (!table_has(table, row, column)) {
        return g_strdup("-");
    }
    if (table_column_kind(table, column) == TABLE_TEXT) {
        return g_strdup(table_text(table, row, column));
    }
    if (table_column_kind(table, column) == TABLE_TRUTH) {
        return g_strdup(table_integer(table, row, column) != 0 ? "yes" : "no");
    }
    if (unit == TABLE_PLAIN && table_column_kind(table, column) == TABLE_INTEGER) {
        return g_strdup_printf("%" G_GINT64_FORMAT, table_integer(table, row, column));
    }
    double value = table_number(table, row, column) * units[unit].factor;
    return unit == TABLE_PLAIN ? g_strdup_printf("%.4g", value) : g_strdup_printf("%.*f", units[unit].digits, value);
}

static gboolean has_units(const Table *table)
{
    for (size_t column = 0; column < table_n_columns(table); column++) {
        if (table_column_unit(table, column) != TABLE_PLAIN) {
            return TRUE;
        }
    }
    return FALSE;
}

static int width_of(const char *text)
{
    return (int)g_utf8_strlen(text, -1);
}

/* One line of cells: text to the left, numbers to the right, nothing behind the last letter. */
static void append_line(GString *out, const Table *table, char **cells, const int *widths, int indent)
{
    g_string_append_printf(out, "%*s", indent, "");
    for (size_t column = 0; column < table_n_columns(table); column++) {
        int blanks = widths[column] - width_of(cells[column]);
        gboolean left = table_column_kind(table, column) == TABLE_TEXT;
        g_string_append_printf(out, "%s%*s%s%*s", column > 0 ? "  " : "", left ? 0 : blanks, "", cells[column],
                               left ? blanks : 0, "");
    }
    while (out->len > 0 && out->str[out->len - 1] == ' ') {
        g_string_truncate(out, out->len - 1);
    }
    g_string_append_c(out, '\n');
}

/* All lines of the table as cells, header first, then units if there are any. */
static GPtrArray *table_lines(const Table *table)
{
    GPtrArray *lines = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
    size_t n = table_n_columns(table);
    char **header = g_new0(char *, n + 1), **unit_names = g_new0(char *, n + 1);
    for (size_t column = 0; column < n; column++) {
        header[column] = g_strdup(table_column_name(table, column));
        unit_names[column] = g_strdup(units[table_column_unit(table, column)].name);
    }
    g_ptr_array_add(lines, header);
    if (has_units(table)) {
        g_ptr_array_add(lines, unit_names);
    } else {
        g_strfreev(unit_names);
    }
    for (size_t row = 0; row < table_n_rows(table); row++) {
        char **cells = g_new0(char *, n + 1);
        for (size_t column = 0; column < n; column++) {
            cells[column] = cell_text(table, row, column);
        }
        g_ptr_array_add(lines, cells);
    }
    return lines;
}

void text_append_table(GString *out, const Table *table, int indent)
{
    g_autoptr(GPtrArray) lines = table_lines(table);
    g_autofree int *widths = g_new0(int, table_n_columns(table) + 1);
    for (guint i = 0; i < lines->len; i++) {
        char **cells = g_ptr_array_index(lines, i);
        for (size_t column = 0; column < table_n_columns(table); column++) {
            widths[column] = MAX(widths[column], width_of(cells[column]));
        }
    }
    for (guint i = 0; i < lines->len; i++) {
        append_line(out, table, g_ptr_array_index(lines, i), widths, indent);
    }
}

void text_append_bar(GString *out, double fraction, int width)
{
    int filled = (int)floor(CLAMP(isfinite(fraction) ? fraction : 0.0, 0.0, 1.0) * width + 0.5);
    for (int i = 0; i < width; i++) {
        g_string_append_c(out, i < filled ? '#' : '.');
    }
}

/* A word whose no-break blanks have done their work. */
static void append_unbroken(GString *out, const char *word)
{
    g_auto(GStrv) parts = g_strsplit(word, "\302\240", -1);
    g_autofree char *text = g_strjoinv(" ", parts);
    g_string_append(out, text);
}

void text_append_wrapped(GString *out, const char *text, int indent, int width)
{
    g_auto(GStrv) words = g_strsplit(text, " ", -1);
    int at = indent;
    for (char **word = words; *word != NULL; word++) {
        int length = width_of(*word);
        if (at > indent && at + 1 + length > width) {
            g_string_append_printf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            g_string_append_c(out, ' ');
            at++;
        }
        append_unbroken(out, *word);
        at += length;
    }
    g_string_append_c(out, '\n');
}

/* Three digits and a prefix, "12.3" + " M"; the last prefix takes what is larger. */
static char *with_prefix(double value, const char *const *prefixes, size_t n)
{
    size_t i = 0;
    while (i + 1 < n && fabs(value) >= 999.5) {
        value /= 1000;
        i++;
    }
    int digits = fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
    return g_strdup_printf("%.*f%s", digits, value, prefixes[i]);
}

char *text_count(double value)
{
    static const char *const prefixes[] = {"", " k", " M", " B", " T"};
    if (!isfinite(value)) {
        return g_strdup("unknown");
    }
    if (fabs(value) < 1000 && value == floor(value)) {
        return g_strdup_printf("%.0f", value);
    }
    return with_prefix(value, prefixes, G_N_ELEMENTS(prefixes));
}

char *text_seconds(double seconds)
{
    if (!isfinite(seconds)) {
        return g_strdup("unknown");
    }
    if (fabs(seconds) >= 0.9995) {
        return g_strdup_printf("%.3f s", seconds);
    }
    static const char *const prefixes[] = {" us", " ms"};
    return with_prefix(seconds * 1e6, prefixes, G_N_ELEMENTS(prefixes));
}

char *text_gib(int64_t bytes)
{
    return g_strdup_printf("%.2f", (double)bytes * units[TABLE_BYTES].factor);
}
