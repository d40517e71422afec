#include "sim/base/error.h"

#include <string.h>

GQuark moesim_error_quark(void)
{
    return g_quark_from_static_string("moesim-error-quark");
}

int error_exit_status(const GError *error)
{
    static const int statuses[] = {
        [MOESIM_ERROR_USAGE] = 2,  [MOESIM_ERROR_INPUT] = 2,      [MOESIM_ERROR_IO] = 3,
        [MOESIM_ERROR_FAILED] = 1, [MOESIM_ERROR_CANCELED] = 130,
    };
    if (error == NULL) {
        return 0;
    }
    if (error->domain != MOESIM_ERROR) {
        return statuses[MOESIM_ERROR_IO];
    }
    g_assert(error->code >= 0 && error->code < (int)G_N_ELEMENTS(statuses));
    return statuses[error->code];
}

static char fold(char c)
{
    return c == '-' ? '_' : g_ascii_tolower(c);
}

static size_t least(size_t a, size_t b, size_t c)
{
    return MIN(a, MIN(b, c));
}

/*
 * Edit distance in which two swapped neighbours count one: the commonest slip of the fingers. Row i of the
 * table is the distance of the first i letters of a to every beginning of b; three rows are enough.
 */
static size_t edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    g_autofree size_t *rows = g_new0(size_t, 3 * (n_b + 1));
    size_t *before = rows, *last = rows + (n_b + 1), *now = rows + 2 * (n_b + 1);
    for (size_t j = 0; j <= n_b; j++) {
        last[j] = j;
    }
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t change = fold(a[i - 1]) == fold(b[j - 1]) ? 0 : 1;
            now[j] = least(last[j] + 1, now[j - 1] + 1, last[j - 1] + change);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1])) {
                now[j] = MIN(now[j], before[j - 2] + 1);
            }
        }
        size_t *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[n_b];
}

const char *error_nearest_name(const char *wrong, const char *const *names, size_t n_names)
{
    const char *nearest = NULL;
    size_t n_wrong = strlen(wrong), nearest_distance = n_wrong / 3 + 1;
    for (size_t i = 0; i < n_names; i++) {
        size_t length = strlen(names[i]), differ = length > n_wrong ? length - n_wrong : n_wrong - length;
        size_t distance = differ < nearest_distance ? edit_distance(wrong, names[i]) : differ;
        if (distance < nearest_distance) {
            nearest = names[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}

char *error_shorten(const char *text)
{
    enum { SHOWN_MAX = 80 };
    if (strnlen(text, SHOWN_MAX + 1) <= SHOWN_MAX) {
        return g_strdup(text);
    }
    if (!g_utf8_validate(text, -1, NULL)) {
        return g_strdup_printf("%.*s…", SHOWN_MAX, text);
    }
    if (g_utf8_strlen(text, -1) <= SHOWN_MAX) {
        return g_strdup(text);
    }
    g_autofree char *shown = g_utf8_substring(text, 0, SHOWN_MAX);
    return g_strconcat(shown, "…", NULL);
}

/* The first byte of a character at or before a place. */
static size_t char_start(const char *text, size_t at)
{
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) {
        at--;
    }
    return at;
}

char *error_printable(const char *message)
{
    enum { LONG = 2000, HEAD = 1200, TAIL = 600 };
    GString *out = g_string_new(NULL);
    for (const char *line = message; *line != '\0';) {
        size_t length = strcspn(line, "\n"), whole = length + (line[length] == '\n' ? 1 : 0);
        if (length <= LONG) {
            g_string_append_len(out, line, (gssize)whole);
        } else {
            size_t head = char_start(line, HEAD), tail = char_start(line, length - TAIL);
            g_string_append_len(out, line, (gssize)head);
            g_string_append(out, " … ");
            g_string_append_len(out, line + tail, (gssize)(whole - tail));
        }
        line += whole;
    }
    return g_string_free(out, FALSE);
}
