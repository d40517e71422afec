#include "reports/cli/sweep-front.h"

#include <math.h>

typedef struct Entry {
    SweepRow row; /* first: lists hold pointers to it */
    double objective; /* lower is better, as all values here */
    double *goals;
} Entry;

struct SweepFront {
    guint n_top, n_goals;
    int objective_column;
    double objective_sign;
    int *columns;  /* [goal] */
    double *signs; /* [goal]: −1 turns higher-is-better round */
    GPtrArray *top;  /* Entry, the best first; at least one is kept */
    GPtrArray *rows; /* Entry */
};

static void entry_free(void *data)
{
    Entry *entry = data;
    g_ptr_array_unref(entry->row.cells);
    g_free(entry->goals);
    g_free(entry);
}

SweepFront *sweep_front_new(const Sweep *sweep, const SweepLayout *layout)
{
    SweepFront *front = g_new0(SweepFront, 1);
    front->n_top = (guint)MAX(sweep->top, 1);
    front->n_goals = sweep->pareto->len;
    front->objective_column = sweep_layout_find(layout, sweep->objective.path);
    front->objective_sign = sweep->objective.maximize ? -1 : 1;
    front->columns = g_new(int, front->n_goals);
    front->signs = g_new(double, front->n_goals);
    for (guint i = 0; i < front->n_goals; i++) {
        const SweepGoal *goal = &g_array_index(sweep->pareto, SweepGoal, i);
        front->columns[i] = sweep_layout_find(layout, goal->path);
        front->signs[i] = goal->maximize ? -1 : 1;
    }
    front->top = g_ptr_array_new_with_free_func(entry_free);
    front->rows = g_ptr_array_new_with_free_func(entry_free);
    return front;
}

void sweep_front_free(SweepFront *front)
{
    if (front != NULL) {
        g_ptr_array_unref(front->top);
        g_ptr_array_unref(front->rows);
        g_free(front->columns);
        g_free(front->signs);
        g_free(front);
    }
}

static double number(const GPtrArray *cells, int column)
{
    const char *text = g_ptr_array_index(cells, (guint)column);
    return text[0] != '\0' ? g_ascii_strtod(text, NULL) : (double)NAN;
}

static Entry *entry_new(const SweepFront *front, GPtrArray *cells, int64_t row_number)
{
    Entry *entry = g_new0(Entry, 1);
    entry->row = (SweepRow){g_ptr_array_ref(cells), row_number};
    entry->objective = front->objective_sign * number(cells, front->objective_column);
    entry->goals = g_new(double, front->n_goals);
    for (guint i = 0; i < front->n_goals; i++) {
        entry->goals[i] = front->signs[i] * number(cells, front->columns[i]);
    }
    return entry;
}

/* At least as good in every goal: equal rows count, so that the first stays. */
static gboolean covers(const SweepFront *front, const Entry *a, const Entry *b)
{
    for (guint i = 0; i < front->n_goals; i++) {
        if (!(a->goals[i] <= b->goals[i])) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean has_all(const SweepFront *front, const Entry *entry)
{
    for (guint i = 0; i < front->n_goals; i++) {
        if (!isfinite(entry->goals[i])) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Takes the entry. */
static void add_to_rows(SweepFront *front, Entry *entry)
{
    for (guint i = front->rows->len; i-- > 0;) { /* the newest first: neighbours beat each other most often */
        if (covers(front, g_ptr_array_index(front->rows, i), entry)) {
            entry_free(entry);
            return;
        }
    }
    for (guint i = front->rows->len; i-- > 0;) {
        if (covers(front, entry, g_ptr_array_index(front->rows, i))) {
            g_ptr_array_remove_index(front->rows, i);
        }
    }
    g_ptr_array_add(front->rows, entry);
}

static void add_to_top(SweepFront *front, GPtrArray *cells, int64_t row_number)
{
    double objective = front->objective_sign * number(cells, front->objective_column);
    guint at = front->top->len;
    while (at > 0 && ((Entry *)g_ptr_array_index(front->top, at - 1))->objective > objective) {
        at--;
    }
    if (!isfinite(objective) || at >= front->n_top) {
        return;
    }
    g_ptr_array_insert(front->top, (gint)at, entry_new(front, cells, row_number));
    if (front->top->len > front->n_top) {
        g_ptr_array_set_size(front->top, (gint)front->n_top);
    }
}

void sweep_front_add(SweepFront *front, GPtrArray *cells, int64_t row_number)
{
    add_to_top(front, cells, row_number);
    Entry *entry = entry_new(front, cells, row_number);
    if (has_all(front, entry)) {
        add_to_rows(front, entry);
    } else {
        entry_free(entry);
    }
}

const SweepRow *sweep_front_best(const SweepFront *front)
{
    return front->top->len > 0 ? g_ptr_array_index(front->top, 0) : NULL;
}

const GPtrArray *sweep_front_top(const SweepFront *front)
{
    return front->top;
}

static int by_objective(const void *a, const void *b)
{
    const Entry *x = *(Entry *const *)a, *y = *(Entry *const *)b;
    if (x->objective < y->objective || x->objective > y->objective) {
        return x->objective < y->objective ? -1 : 1;
    }
    return x->row.number < y->row.number ? -1 : x->row.number > y->row.number;
}

const GPtrArray *sweep_front_rows(SweepFront *front)
{
    g_ptr_array_sort(front->rows, by_objective);
    return front->rows;
}
