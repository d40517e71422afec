/*
 * The files of all shards, joined in the order of the points. Each row is checked to be that of its point; whose file a
 * shard is in is told by the rows themselves.
 */
#include <string.h>
#include <sys/stat.h>

#include "reports/cli/command.h"
#include "reports/cli/sweep-run.h"
#include "sim/base/error.h"

typedef struct Part {
    RowReader *reader;
    const char *path;
    const char *row; /* the next one, NULL at the end */
    size_t length;
} Part;

typedef struct Merge {
    const SweepRun *run;
    Part *parts; /* [n] */
    int n;
    int *part_of; /* [shard]: its part, −1 = not known yet */
    RowWriter *writer;
    GString *pending;
} Merge;

enum { FLUSH_BYTES = 1 << 16 };

static gboolean open_part(const Merge *merge, Part *part, GError **error)
{
    const char *header = sweep_layout_header(merge->run->layout);
    g_autofree char *note = g_strconcat(part->path, ".resume", NULL);
    if (g_file_test(note, G_FILE_TEST_EXISTS)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: is not finished (%s is there); go on with it by --resume",
                    part->path, note);
        return FALSE;
    }
    part->reader = row_reader_open(part->path, sweep_layout_format(merge->run->layout), error);
    if (part->reader == NULL || !row_reader_next(part->reader, &part->row, &part->length, error)) {
        return FALSE;
    }
    if (header[0] == '\0') {
        return TRUE;
    }
    if (part->row == NULL || part->length != strlen(header) || memcmp(part->row, header, part->length) != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: its columns are not those of %s", part->path,
                    merge->run->sweep->name);
        return FALSE;
    }
    return row_reader_next(part->reader, &part->row, &part->length, error);
}

static gboolean row_starts(const Part *part, const GString *start)
{
    return part->row != NULL && part->length >= start->len && memcmp(part->row, start->str, start->len) == 0;
}

/* The part that holds the shard's next row. */
static Part *find_part(const Merge *merge, int64_t shard, const GString *start)
{
    int *known = &merge->part_of[shard];
    for (int i = 0; *known < 0 && i < merge->n; i++) {
        gboolean taken = FALSE;
        for (int s = 0; s < merge->n; s++) {
            taken = taken || merge->part_of[s] == i;
        }
        *known = !taken && row_starts(&merge->parts[i], start) ? i : -1;
    }
    return *known >= 0 && row_starts(&merge->parts[*known], start) ? &merge->parts[*known] : NULL;
}

/* ---- which shards there are ---- */

enum { SHARDS_MAX = 1024, ROWS_COMPARED = 64 }; /* several blocks of neighbours */

/* Makes what rows of points begin with. */
typedef struct Starter {
    const SweepRun *run;
    SweepWorker *worker;
    Table *table;
    GString *start;
} Starter;

/* FALSE: the point has no row. */
static gboolean make_start(Starter *starter, int64_t point)
{
    g_string_truncate(starter->start, 0);
    if (!sweep_point_has_row(starter->worker, point)) {
        return FALSE;
    }
    sweep_layout_append_start(starter->run->layout, starter->table, point, starter->start);
    return TRUE;
}

/* The point of a file's first row, −1: none. */
static int64_t first_point(const Merge *merge, Starter *starter, const char *path)
{
    Part part = {.path = path};
    int64_t found = -1, n_points = open_part(merge, &part, NULL) ? merge->run->sweep->n_points : 0;
    for (int64_t point = 0; found < 0 && point < n_points; point++) {
        found = make_start(starter, point) && row_starts(&part, starter->start) ? point : -1;
    }
    row_reader_free(part.reader);
    return found;
}

/* Whether a file begins as that shard does, and has no more rows where all were compared. */
static gboolean begins_like(const Merge *merge, Starter *starter, const char *path, const SweepShard *shard)
{
    Part part = {.path = path};
    gboolean same = open_part(merge, &part, NULL);
    int64_t n_jobs = sweep_shard_n_jobs(shard, merge->run->sweep->n_points);
    int n_rows = 0;
    for (int64_t job = 0; same && job < n_jobs && n_rows < ROWS_COMPARED; job++) {
        if (make_start(starter, sweep_shard_point(shard, job))) {
            same = row_starts(&part, starter->start) && row_reader_next(part.reader, &part.row, &part.length, NULL);
            n_rows++;
        }
    }
    gboolean has_more = n_rows < ROWS_COMPARED && part.row != NULL;
    row_reader_free(part.reader);
    return same && !has_more;
}

/* Whether the files are all different shards of n; marks those. */
static gboolean are_of(const Merge *merge, Starter *starter, const int64_t *first_points, int64_t n, gboolean *ret_there)
{
    memset(ret_there, 0, sizeof *ret_there * SHARDS_MAX);
    for (int i = 0; i < merge->n; i++) {
        SweepShard shard = {first_points[i] >= 0 ? sweep_shard_of(first_points[i], n) : 0, n};
        if (first_points[i] < 0 || ret_there[shard.k] || !begins_like(merge, starter, merge->parts[i].path, &shard)) {
            return FALSE;
        }
        ret_there[shard.k] = TRUE;
    }
    return TRUE;
}

/* "2/4, 4/4": what is missing beside the files, as their rows say; NULL when they are no shards of anything. */
static char *missing_shards(const Merge *merge)
{
    Starter starter = {merge->run, sweep_worker_new(merge->run->sweep), sweep_layout_table(merge->run->layout), g_string_new(NULL)};
    g_autofree int64_t *first_points = g_new(int64_t, merge->n);
    gboolean there[SHARDS_MAX], found = FALSE;
    g_autoptr(GString) text = g_string_new(NULL);
    for (int i = 0; i < merge->n; i++) {
        first_points[i] = first_point(merge, &starter, merge->parts[i].path);
    }
    for (int64_t n = merge->n + 1; !found && n <= SHARDS_MAX && !command_interrupted(NULL); n++) {
        found = are_of(merge, &starter, first_points, n, there);
        for (int64_t k = 0; found && k < n; k++) {
            if (!there[k]) {
                g_string_append_printf(text, "%s%" G_GINT64_FORMAT "/%" G_GINT64_FORMAT, text->len > 0 ? ", " : "", k + 1, n);
            }
        }
    }
    sweep_worker_free(starter.worker);
    table_free(starter.table);
    g_string_free(starter.start, TRUE);
    return found ? g_strdup(text->str) : NULL;
}

static gboolean fail_missing(const Merge *merge, int64_t shard, const GString *start, GError **error)
{
    g_autofree char *missing = missing_shards(merge);
    if (missing != NULL) {
        gboolean several = strchr(missing, ',') != NULL;
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: shard%s %s %s missing; name %s, too", merge->run->sweep->name,
                    several ? "s" : "", missing, several ? "are" : "is", several ? "their files" : "its file");
        return FALSE;
    }
    g_autofree char *cells = g_strndup(start->str, MIN(start->len > 0 ? start->len - 1 : 0, 200));
    int known = merge->part_of[shard];
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                "%s: the row of %s, which belongs to shard %" G_GINT64_FORMAT "/%d, is not in %s%s", merge->run->sweep->name, cells,
                shard + 1, merge->n, known >= 0 ? merge->parts[known].path : "any of the files",
                known >= 0 ? ": it is cut short, or of another sweep" : "; name the file of every shard");
    return FALSE;
}

static gboolean write_pending(Merge *merge, gsize at_least, GError **error)
{
    if (merge->pending->len < at_least) {
        return TRUE;
    }
    gboolean done = row_writer_append(merge->writer, merge->pending->str, merge->pending->len, error);
    g_string_truncate(merge->pending, 0);
    return done;
}

static gboolean copy_row(Merge *merge, Part *part, GError **error)
{
    g_string_append_len(merge->pending, part->row, (gssize)part->length);
    return row_reader_next(part->reader, &part->row, &part->length, error) && write_pending(merge, FLUSH_BYTES, error);
}

static gboolean copy_rows(Merge *merge, GError **error)
{
    const SweepRun *run = merge->run;
    g_autoptr(SweepWorker) worker = sweep_worker_new(run->sweep);
    g_autoptr(Table) table = sweep_layout_table(run->layout);
    g_autoptr(GString) start = g_string_new(NULL);
    for (int64_t point = 0; point < run->sweep->n_points; point++) {
        if (command_interrupted(error)) {
            return FALSE;
        }
        if (!sweep_point_has_row(worker, point)) {
            continue;
        }
        int64_t shard = sweep_shard_of(point, merge->n);
        g_string_truncate(start, 0);
        sweep_layout_append_start(run->layout, table, point, start);
        Part *part = find_part(merge, shard, start);
        if (part == NULL) {
            return fail_missing(merge, shard, start, error);
        }
        if (!copy_row(merge, part, error)) {
            return FALSE;
        }
    }
    for (int i = 0; i < merge->n; i++) {
        if (merge->parts[i].row != NULL) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: has rows that %s does not have", merge->parts[i].path,
                        run->sweep->name);
            return FALSE;
        }
    }
    return write_pending(merge, 1, error);
}

/* Whether two paths name one file. */
static gboolean are_one(const char *path_a, const char *path_b)
{
    struct stat a, b;
    return stat(path_a, &a) == 0 && stat(path_b, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A file that is read and emptied at once would be lost. */
static gboolean check_target(const Merge *merge, GError **error)
{
    for (int i = 0; merge->run->path != NULL && i < merge->n; i++) {
        if (are_one(merge->parts[i].path, merge->run->path)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: is both read and written; write to another file",
                        merge->run->path);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean merge_into(Merge *merge, GError **error)
{
    if (!check_target(merge, error)) {
        return FALSE;
    }
    for (int i = 0; i < merge->n; i++) {
        if (!open_part(merge, &merge->parts[i], error)) {
            return FALSE;
        }
    }
    merge->writer = row_writer_open(merge->run->path, 0, error);
    if (merge->writer == NULL) {
        return FALSE;
    }
    g_string_append(merge->pending, sweep_layout_header(merge->run->layout));
    return copy_rows(merge, error) && row_writer_close(g_steal_pointer(&merge->writer), error);
}

/* No file may be given twice, by whatever name. */
static gboolean check_parts(char **paths, int n_paths, GError **error)
{
    for (int i = 0; i < n_paths; i++) {
        for (int k = 0; k < i; k++) {
            if (are_one(paths[i], paths[k])) {
                g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--merge: %s and %s are the same file; name each shard once", paths[k],
                            paths[i]);
                return FALSE;
            }
        }
    }
    return TRUE;
}

gboolean sweep_merge(const SweepRun *run, char **paths, int n_paths, GError **error)
{
    if (n_paths <= 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--merge: name the files of all shards behind the sweep file");
        return FALSE;
    }
    if (!check_parts(paths, n_paths, error)) {
        return FALSE;
    }
    Merge merge = {.run = run, .n = n_paths, .pending = g_string_new(NULL)};
    merge.parts = g_new0(Part, n_paths);
    merge.part_of = g_new(int, n_paths);
    for (int i = 0; i < n_paths; i++) {
        merge.parts[i].path = paths[i];
        merge.part_of[i] = -1;
    }
    command_catch_interrupt();
    gboolean done = merge_into(&merge, error);
    for (int i = 0; i < n_paths; i++) {
        row_reader_free(merge.parts[i].reader);
    }
    row_writer_free(merge.writer);
    g_string_free(merge.pending, TRUE);
    g_free(merge.parts);
    g_free(merge.part_of);
    return done;
}
