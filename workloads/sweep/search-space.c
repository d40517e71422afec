#include "workloads/sweep/search-space.h"

#include <string.h>

/* Fields without a say, by aspect; "a." stands for a and all in it. What has none in a level has none in the levels before. */
#define OF_LOSS "loss.seq_chunk", "loss.vocab_chunk"
#define OF_OPTIMIZER OF_LOSS, "optimizer."
#define OF_MEMORY OF_OPTIMIZER, "memory."
#define OF_SHARDING "parallel.fsdp.", "parallel.dp_replicate", "parallel.dp_shard", "precision.parameters", "precision.reduce"
static const char *const free_fields[N_SEARCH_ASPECTS][20] = {
    [ASPECT_ONCE] = {OF_MEMORY, OF_SHARDING},
    [ASPECT_SHARDED] = {OF_MEMORY},
    [ASPECT_LAYERS] = {OF_OPTIMIZER},
    [ASPECT_LAYOUT] = {OF_LOSS},
    [ASPECT_STATIC] = {OF_LOSS, "parallel.fsdp.", "memory.", "kernels.", "network.", "workload.global_batch", "workload.routing.",
                       "moe.capacity_factor", "moe.capacity_rule", "moe.capacity_min", "moe.capacity_multiple", "moe.capacity_drop_target",
                       "moe.drop", "moe.pad_to_capacity", "moe.dispatch", "moe.overlap_chunks", "moe.shared_overlap", "moe.placement"},
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
    if (aspect == ASPECT_STATIC) {
        return !plan->layer_wise;
    }
    return aspect == ASPECT_ONCE || aspect == ASPECT_SHARDED || (!plan->has_cache && !plan_is_open(plan));
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

static void axes_init(SearchAxes *axes, guint n_axes)
{
    *axes = (SearchAxes){.strides = g_new0(int64_t, n_axes), .n_values = g_new0(int64_t, n_axes), .n_combinations = 1};
}

static void axes_clear(SearchAxes *axes)
{
    g_free(axes->strides);
    g_free(axes->n_values);
}

static void add_axis(SearchAxes *axes, int64_t stride, int64_t n_values)
{
    axes->strides[axes->n] = stride;
    axes->n_values[axes->n++] = n_values;
    axes->n_combinations *= n_values;
}

/* The level whose nodes are the first to fix an axis; N_SEARCH_LEVELS: leaves do. */
static int axis_level(const Sweep *sweep, guint a)
{
    int level = 0;
    while (level < N_SEARCH_LEVELS && axis_is_free(sweep, a, (SearchAspect)level)) {
        level++;
    }
    return level;
}

static void place_axis(SearchSpace *space, const Sweep *sweep, guint a, int64_t stride)
{
    int64_t n_values = g_array_index(sweep->axes, SweepAxis, a).n_values;
    int of = axis_level(sweep, a);
    gboolean is_static = !axis_is_free(sweep, a, ASPECT_STATIC);
    add_axis(is_static ? &space->statics : &space->others, stride, n_values);
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        add_axis(of <= level ? &space->fixed[level] : &space->open[level], stride, n_values);
        if (of == level + 1) {
            add_axis(&space->children[level], stride, n_values);
        }
        if (of <= level && is_static) {
            add_axis(&space->fixed_statics[level], stride, n_values);
        }
    }
}

void search_space_init(SearchSpace *space, const Sweep *sweep)
{
    guint n_axes = sweep->axes->len;
    axes_init(&space->statics, n_axes);
    axes_init(&space->others, n_axes);
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        axes_init(&space->fixed[level], n_axes);
        axes_init(&space->open[level], n_axes);
        axes_init(&space->children[level], n_axes);
        axes_init(&space->fixed_statics[level], n_axes);
    }
    int64_t stride = sweep->n_points;
    for (guint a = 0; a < n_axes; a++) {
        stride /= g_array_index(sweep->axes, SweepAxis, a).n_values;
        place_axis(space, sweep, a, stride);
    }
}

void search_space_clear(SearchSpace *space)
{
    axes_clear(&space->statics);
    axes_clear(&space->others);
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        axes_clear(&space->fixed[level]);
        axes_clear(&space->open[level]);
        axes_clear(&space->children[level]);
        axes_clear(&space->fixed_statics[level]);
    }
}

/* The point of a combination whose other axes are at their first values. */
static int64_t offset_of(const SearchAxes *axes, int64_t combination)
{
    int64_t offset = 0;
    for (guint i = axes->n; i-- > 0;) {
        offset += combination % axes->n_values[i] * axes->strides[i];
        combination /= axes->n_values[i];
    }
    return offset;
}

int64_t search_space_node(const SearchSpace *space, SearchAspect level, int64_t number)
{
    return offset_of(&space->fixed[level], number);
}

int64_t search_space_child(const SearchSpace *space, SearchAspect level, int64_t node, int64_t child)
{
    return node + offset_of(&space->children[level], child);
}

int64_t search_space_point(const SearchSpace *space, SearchAspect level, int64_t node, int64_t member)
{
    return node + offset_of(&space->open[level], member);
}

int64_t search_space_n_layouts(const SearchSpace *space, SearchAspect level)
{
    return space->open[level].n_combinations / space->open[ASPECT_LAYOUT].n_combinations;
}

int64_t search_space_static_point(const SearchSpace *space, int64_t class, int64_t member)
{
    return offset_of(&space->statics, class) + offset_of(&space->others, member);
}

int64_t search_space_static_class(const SearchSpace *space, SearchAspect level, int64_t point)
{
    const SearchAxes *axes = &space->fixed_statics[level];
    int64_t class = 0;
    for (guint i = 0; i < axes->n; i++) {
        class = class * axes->n_values[i] + point / axes->strides[i] % axes->n_values[i];
    }
    return class;
}
