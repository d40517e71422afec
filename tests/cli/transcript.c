/*
 * Transcripts: command lines and what they print. One program runs one file, a test per command.
 *
 * A file holds three-part entries:
 *     $ command            run by the shell, in an empty folder of its own
 *     expected stdout      each line as it is
 *     ! expected stderr    each line behind "! "
 *     ? 2                  exit status; ends the entry
 * A line "..." stands for any number of lines of that stream ("! ..." for stderr), and a line may hold * for any
 * text when it begins with "~ " (or "! ~ "). A file for the commands to read is written by "= NAME", its lines, "=".
 * Lines that begin with # between entries are comments.
 *
 * The program under test comes first in PATH, $SRC is the source tree.
 */
#include <glib.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/wait.h>

typedef struct Entry {
    char *command;
    GPtrArray *out; /* char *: expected lines */
    GPtrArray *err;
    int status;
    guint line;
} Entry;

typedef struct Script {
    const char *name;
    char **lines;
    guint at;
    char *dir;
    guint n_entries, n_failed;
} Script;

static void broken(const Script *script, const char *what)
{
    g_print("Bail out! %s:%u: %s\n", script->name, script->at + 1, what);
    exit(1);
}

/* ---- reading ---- */

static void write_file(Script *script)
{
    g_autofree char *path = g_build_filename(script->dir, script->lines[script->at] + 2, NULL);
    g_autoptr(GString) text = g_string_new(NULL);
    for (script->at++; script->lines[script->at] != NULL; script->at++) {
        if (strcmp(script->lines[script->at], "=") == 0) {
            script->at++;
            g_file_set_contents(path, text->str, -1, NULL);
            return;
        }
        g_string_append_printf(text, "%s\n", script->lines[script->at]);
    }
    broken(script, "file without its end");
}

static gboolean read_entry(Script *script, Entry *entry)
{
    const char *line;
    while ((line = script->lines[script->at]) != NULL && !g_str_has_prefix(line, "$ ")) {
        if (g_str_has_prefix(line, "= ")) {
            write_file(script);
        } else if (line[0] == '#' || line[0] == '\0') {
            script->at++;
        } else {
            broken(script, "neither a command nor a file nor a comment");
        }
    }
    if (line == NULL) {
        return FALSE;
    }
    *entry = (Entry){g_strdup(line + 2), g_ptr_array_new(), g_ptr_array_new(), 0, script->at + 1};
    for (script->at++; (line = script->lines[script->at]) != NULL; script->at++) {
        if (g_str_has_prefix(line, "? ")) {
            entry->status = atoi(line + 2);
            script->at++;
            return TRUE;
        }
        gboolean is_err = g_str_has_prefix(line, "! ");
        g_ptr_array_add(is_err ? entry->err : entry->out, script->lines[script->at] + (is_err ? 2 : 0));
    }
    broken(script, "entry without its status");
    return FALSE;
}

static void entry_clear(Entry *entry)
{
    g_free(entry->command);
    g_ptr_array_unref(entry->out);
    g_ptr_array_unref(entry->err);
}

/* ---- comparing ---- */

static gboolean line_matches(const char *want, const char *got)
{
    return g_str_has_prefix(want, "~ ") ? g_pattern_match_simple(want + 2, got) : strcmp(want, got) == 0;
}

/* Whether lines got[i…] match want[k…], where "..." swallows any number of them. */
static gboolean match_from(const GPtrArray *want, guint k, char **got)
{
    for (; k < want->len; k++, got++) {
        const char *line = g_ptr_array_index(want, k);
        if (strcmp(line, "...") == 0) {
            do {
                if (match_from(want, k + 1, got)) {
                    return TRUE;
                }
            } while (*got++ != NULL);
            return FALSE;
        }
        if (*got == NULL || !line_matches(line, *got)) {
            return FALSE;
        }
    }
    return *got == NULL;
}

static gboolean stream_matches(const GPtrArray *want, const char *text)
{
    g_auto(GStrv) got = g_strsplit(text, "\n", -1);
    guint n = g_strv_length(got);
    if (n > 0 && got[n - 1][0] == '\0') { /* behind the last line end */
        g_free(got[n - 1]);
        got[n - 1] = NULL;
    }
    return match_from(want, 0, got);
}

static void print_diagnosis(const char *what, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        g_print("#   %s: %s\n", what, *line);
    }
}

static void run_entry(Script *script, const Entry *entry)
{
    char *argv[] = {(char *)(guintptr) "/bin/sh", (char *)(guintptr) "-c", entry->command, NULL};
    g_autofree char *out = NULL, *err = NULL;
    int wait_status = 0;
    gboolean ran = g_spawn_sync(script->dir, argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &out, &err, &wait_status, NULL);
    int status = ran && WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    gboolean ok = ran && status == entry->status && stream_matches(entry->out, out) && stream_matches(entry->err, err);
    script->n_entries++;
    script->n_failed += !ok;
    g_print("%s %u - line %u: %s\n", ok ? "ok" : "not ok", script->n_entries, entry->line, entry->command);
    if (!ok) {
        g_print("#   status: %d, want %d\n", status, entry->status);
        print_diagnosis("stdout", out != NULL ? out : "");
        print_diagnosis("stderr", err != NULL ? err : "");
    }
}

static void remove_dir(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *inner = g_build_filename(path, name, NULL);
        if (g_file_test(inner, G_FILE_TEST_IS_DIR) && !g_file_test(inner, G_FILE_TEST_IS_SYMLINK)) {
            g_chmod(inner, 0700);
            remove_dir(inner);
        } else {
            g_unlink(inner);
        }
    }
    g_rmdir(path);
}

int main(int argc, char **argv)
{
    g_autofree char *text = NULL;
    if (argc != 3 || !g_file_get_contents(argv[1], &text, NULL, NULL)) {
        g_printerr("usage: transcript FILE.t FOLDER-OF-MOESIM\n");
        return 2;
    }
    g_autofree char *folder = g_canonicalize_filename(argv[2], NULL);
    g_autofree char *path = g_strdup_printf("%s:%s", folder, g_getenv("PATH"));
    g_setenv("PATH", path, TRUE);
    g_setenv("SRC", g_getenv("MOESIM_SOURCE_ROOT"), TRUE);
    g_setenv("LC_ALL", "C.UTF-8", TRUE);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    Script script = {.name = argv[1], .lines = lines, .dir = g_dir_make_tmp("moesim-cli-XXXXXX", NULL)};
    Entry entry;
    while (read_entry(&script, &entry)) {
        run_entry(&script, &entry);
        entry_clear(&entry);
    }
    g_print("1..%u\n", script.n_entries);
    remove_dir(script.dir);
    g_free(script.dir);
    return script.n_failed > 0 ? 1 : 0;
}
