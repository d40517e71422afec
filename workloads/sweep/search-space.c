#include "workloads/sweep/search-space.h"

#include <string.h>

#include "workloads/plan/routing.h"

/* Fields without a say, by aspect; "a." stands for a and all in it. */
#define OF_LOSS "loss.seq_chunk", "loss.vocab_chunk"
#define OF_FSDP "parallel.fsdp."
static const char *const free_fields[N_SEARCH_ASPECTS][16] = {
    [ASPECT_STATIC] = {OF_LOSS, OF_FSDP, "memory.", "kernels.", "workload.global_batch", "workload.routing.", "moe.capacity_factor",
                       "moe.capacity_rule", "moe.capacity_min", "moe.capacity_multiple", "moe.capacity_drop_target", "moe.drop",
                       "moe.pad_to_capacity"},
    [ASPECT_ONCE] = {OF_LOSS, OF_FSDP, "memory.", "parallel.dp_replicate", "parallel.dp_shard", "optimizer.",
                     "precision.parameters", "precision.reduce"},
    [ASPECT_OPERATORS] = {OF_LOSS, OF_FSDP, "parallel.dp_replicate", "parallel.dp_shard", "optimizer.", "precision.parameters",
                          "precision.reduce"},
    [ASPECT_LAYERS] = {OF_LOSS, "optimizer."},
};

gboolean search_is_free(SearchAspect aspect, const char *path)
{
    for (const char *const *field = free_fields[aspect]; *field != NULL; field++) {
        size_t length = strlen(*field);
        gboolean is_group = (*field)[length - 1] == '.';
        if (is_group ? strncmp(path, *field, length) == 0 || (strncmp(path, *field, length - 1) == 0 && path[length - 1] == '\0')
                     : strcmp(path, *field) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

gboolean search_has_aspect(SearchAspect aspect, const Plan *plan)
{
    return aspect == ASPECT_STATIC || (aspect == ASPECT_ONCE ? !routing_is_needed(plan) : !plan->has_cache && !plan_is_open(plan));
}

/* Whether none of an axis's fields has a say. */
static gboolean axis_is_free(const Sweep *sweep, guint a, SearchAspect aspect)
{
    const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, a);
    for (guint f = axis->first_field; f < axis->first_field + axis->n_fields; f++) {
        if (!search_is_free(aspect, g_array_index(sweep->fields, SweepField, f).path)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Whether an axis turns the loss alone. */
static gboolean is_loss_axis(const Sweep *sweep, guint a)
{
    static const char *const loss_fields[] = {OF_LOSS};
    const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, a);
    for (guint f = axis->first_field; f < axis->first_field + axis->n_fields; f++) {
        gboolean of_loss = FALSE;
        for (size_t i = 0; i < G_N_ELEMENTS(loss_fields); i++) {
            of_loss = of_loss || strcmp(g_array_index(sweep->fields, SweepField, f).path, loss_fields[i]) == 0;
        }
        if (!of_loss) {
            return FALSE;
        }
    }
    return TRUE;
}

static void add_axis(SearchAxes *axes, const Sweep *sweep, guint a)
{
    axes->n_values[axes->n] = g_array_index(sweep->axes, SweepAxis, a).n_values;
    axes->n_combinations *= axes->n_values[axes->n];
    axes->strides[axes->n] = 1;
    for (guint after = a + 1; after < sweep->axes->len; after++) {
        axes->strides[axes->n] *= g_array_index(sweep->axes, SweepAxis, after).n_values;
    }
    axes->n++;
}

static void axes_init(SearchAxes *axes, guint n_axes)
{
    *axes = (SearchAxes){.strides = g_new0(int64_t, n_axes), .n_values = g_new0(int64_t, n_axes), .n_combinations = 1};
}

static void axes_clear(SearchAxes *axes)
{
    g_free(axes->strides);
    g_free(axes->n_values);
}

void search_space_init(SearchSpace *space, const Sweep *sweep)
{
    guint n_axes = sweep->axes->len, node_axis = 0;
    axes_init(&space->nodes, n_axes);
    axes_init(&space->leaves, n_axes);
    for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
        space->class_strides[k] = g_new0(int64_t, n_axes);
        space->n_classes[k] = 1;
    }
    for (guint a = 0; a < n_axes; a++) {
        if (is_loss_axis(sweep, a)) {
            add_axis(&space->leaves, sweep, a);
            continue;
        }
        add_axis(&space->nodes, sweep, a);
        for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
            if (!axis_is_free(sweep, a, (SearchAspect)k)) {
                space->class_strides[k][node_axis] = space->n_classes[k];
                space->n_classes[k] *= space->nodes.n_values[node_axis];
            }
        }
        node_axis++;
    }
}

void search_space_clear(SearchSpace *space)
{
    axes_clear(&space->nodes);
    axes_clear(&space->leaves);
    for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
        g_free(space->class_strides[k]);
    }
}

/* What a combination adds to a number whose axes have these strides. */
static int64_t offset_of(const SearchAxes *axes, const int64_t *strides, int64_t combination)
{
    int64_t offset = 0;
    for (guint i = axes->n; i-- > 0;) {
        offset += combination % axes->n_values[i] * strides[i];
        combination /= axes->n_values[i];
    }
    return offset;
}

int64_t search_space_point(const SearchSpace *space, int64_t node, int64_t leaf)
{
    return offset_of(&space->nodes, space->nodes.strides, node) + offset_of(&space->leaves, space->leaves.strides, leaf);
}

int64_t search_space_class(const SearchSpace *space, SearchAspect aspect, int64_t node)
{
    return offset_of(&space->nodes, space->class_strides[aspect], node);
}
