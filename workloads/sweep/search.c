#include "workloads/sweep/search.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/ordered-pool.h"

enum { NODES_MAX = 1 << 24, NODE_BLOCK = 8 };

/* Fields that change nothing in the layers of a model. */
static const char *const deep_fields[] = {"loss.seq_chunk", "loss.vocab_chunk"};

/* ---- objectives ---- */

/* An objective with a bound: its value, and the best that it can be for a step of at least so many seconds. */
typedef struct ObjectiveClass {
    const char *path;
    gboolean maximize;
    double (*value)(const Result *result);
    double (*bound)(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token);
} ObjectiveClass;

static double step_value(const Result *result)
{
    return result->step_time_s;
}

static double step_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)plan;
    (void)peak_bytes;
    (void)flops_per_token;
    return step_s;
}

static double rate_value(const Result *result)
{
    return result->tokens_per_s;
}

static double rate_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)peak_bytes;
    (void)flops_per_token;
    return (double)plan->global_batch * (double)plan->seq_len / step_s;
}

static double gpu_rate_value(const Result *result)
{
    return result->tokens_per_s_per_gpu;
}

static double gpu_rate_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    return rate_bound(plan, step_s, peak_bytes, flops_per_token) / (double)plan->cluster->n_ranks;
}

static double useful_rate_value(const Result *result)
{
    return result->useful_tokens_per_s_per_gpu;
}

static double tflops_value(const Result *result)
{
    return result->tflops_per_gpu;
}

static double tflops_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    return flops_per_token * gpu_rate_bound(plan, step_s, peak_bytes, flops_per_token) * 1e-12;
}

static double mfu_value(const Result *result)
{
    return result->mfu;
}

static double mfu_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    double peak = plan->cluster->device->peak_flops_per_s[plan->compute];
    return flops_per_token * gpu_rate_bound(plan, step_s, peak_bytes, flops_per_token) / peak;
}

static double peak_value(const Result *result)
{
    return (double)result->peak_memory_bytes;
}

static double peak_bound(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token)
{
    (void)plan;
    (void)step_s;
    (void)flops_per_token;
    return (double)peak_bytes;
}

static const ObjectiveClass objectives[] = {
    {"step_time_s", FALSE, step_value, step_bound},
    {"tokens_per_s", TRUE, rate_value, rate_bound},
    {"tokens_per_s_per_gpu", TRUE, gpu_rate_value, gpu_rate_bound},
    {"useful_tokens_per_s_per_gpu", TRUE, useful_rate_value, gpu_rate_bound},
    {"tflops_per_gpu", TRUE, tflops_value, tflops_bound},
    {"mfu", TRUE, mfu_value, mfu_bound},
    {"peak_memory_bytes", FALSE, peak_value, peak_bound},
};

static const ObjectiveClass *find_objective(const Sweep *sweep, GError **error)
{
    g_autoptr(GString) known = g_string_new(NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(objectives); i++) {
        if (strcmp(objectives[i].path, sweep->objective.path) == 0 && objectives[i].maximize == sweep->objective.maximize) {
            return &objectives[i];
        }
        g_string_append_printf(known, "%s%s", i > 0 ? ", " : "", objectives[i].path);
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                "%s: objective: %s \"%s\" has no bound, so a search could prove nothing; use one of %s, or a sweep", sweep->name,
                sweep->objective.maximize ? "maximize" : "minimize", sweep->objective.path, known->str);
    return NULL;
}

/* ---- the tree ---- */

/* A group of axes as one number: the points of its combinations. */
typedef struct AxisGroup {
    guint *axes;       /* the last runs fastest */
    int64_t *strides;  /* [axis of the group]: between neighbouring values, in points */
    int64_t *n_values; /* likewise */
    guint n;
    int64_t n_combinations;
} AxisGroup;

typedef enum NodeState { NODE_EMPTY, NODE_WITHOUT_ROOM, NODE_OPEN } NodeState;

typedef struct Node {
    double bound; /* of the objective, lower is better; −∞ when unknown */
    int64_t number;
    NodeState state;
} Node;

typedef struct Search {
    const Sweep *sweep;
    const SearchOptions *options;
    const ObjectiveClass *objective;
    double sign; /* −1 turns higher-is-better round */
    AxisGroup top, deep;
    Node *nodes; /* [top.n_combinations] */
    GMutex lock;
    GArray *best; /* SearchBest; objective lower is better until the end */
    int64_t n_evaluated, n_done;
    gboolean stopped;
} Search;

static gboolean is_deep_axis(const Sweep *sweep, guint a)
{
    const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, a);
    for (guint f = axis->first_field; f < axis->first_field + axis->n_fields; f++) {
        gboolean deep = FALSE;
        for (size_t i = 0; i < G_N_ELEMENTS(deep_fields); i++) {
            deep = deep || strcmp(g_array_index(sweep->fields, SweepField, f).path, deep_fields[i]) == 0;
        }
        if (!deep) {
            return FALSE;
        }
    }
    return TRUE;
}

static void group_axes(const Sweep *sweep, gboolean deep, AxisGroup *group)
{
    guint n_axes = sweep->axes->len;
    group->axes = g_new(guint, n_axes);
    group->strides = g_new(int64_t, n_axes);
    group->n_values = g_new(int64_t, n_axes);
    group->n_combinations = 1;
    for (guint a = 0; a < n_axes; a++) {
        if (is_deep_axis(sweep, a) == deep) {
            group->axes[group->n++] = a;
        }
    }
    for (guint i = 0; i < group->n; i++) {
        group->n_values[i] = g_array_index(sweep->axes, SweepAxis, group->axes[i]).n_values;
        group->n_combinations *= group->n_values[i];
        group->strides[i] = 1;
        for (guint a = group->axes[i] + 1; a < n_axes; a++) {
            group->strides[i] *= g_array_index(sweep->axes, SweepAxis, a).n_values;
        }
    }
}

static void group_clear(AxisGroup *group)
{
    g_free(group->axes);
    g_free(group->strides);
    g_free(group->n_values);
}

/* What a combination adds to the number of a point. */
static int64_t group_offset(const AxisGroup *group, int64_t combination)
{
    int64_t offset = 0;
    for (guint i = group->n; i-- > 0;) {
        offset += combination % group->n_values[i] * group->strides[i];
        combination /= group->n_values[i];
    }
    return offset;
}

static int64_t leaf_point(const Search *search, int64_t node, int64_t leaf)
{
    return group_offset(&search->top, node) + group_offset(&search->deep, leaf);
}

/* ---- bounds ---- */

/* The first valid plan of the node from a leaf on, NULL when there is none; *leaf moves behind it. */
static Plan *next_plan(const Search *search, SweepWorker *worker, int64_t node, int64_t *leaf)
{
    Plan *plan = NULL;
    while (plan == NULL && *leaf < search->deep.n_combinations) {
        plan = sweep_point_plan(worker, leaf_point(search, node, (*leaf)++));
    }
    return plan;
}

/* The objective that no plan alike goes beyond, lower is better; +∞ when it cannot fit, −∞ when nothing is known. */
static double plan_bound(const Search *search, SweepWorker *worker, const Plan *plan, gboolean by_layers)
{
    Bound bound;
    double flops_per_token;
    if (!session_bound(worker->session, plan, &bound, &flops_per_token, NULL)) {
        return -(double)INFINITY; /* what is wrong with it shows when it is evaluated */
    }
    const Device *device = plan->cluster->device;
    int64_t peak_bytes = by_layers ? bound.layers_bytes : bound.peak_bytes;
    double step_s = (double)(by_layers ? bound.layers_ns : bound.step_ns) * 1e-9;
    if (peak_bytes + device->non_framework_bytes > device->usable_bytes) {
        return (double)INFINITY;
    }
    double value = search->sign * search->objective->bound(plan, step_s, peak_bytes, flops_per_token);
    return isnan(value) ? -(double)INFINITY : value;
}

/*
 * One plan stands for all of the node: their layers, and what lives between steps, are the same. A cache chooses by the
 * whole plan what the layers keep, so with one every plan of the node is bounded for itself.
 */
static void bound_node(Search *search, SweepWorker *worker, Node *node)
{
    int64_t leaf = 0;
    gboolean alone = search->deep.n_combinations == 1, goes_on = TRUE;
    node->state = NODE_EMPTY;
    node->bound = (double)INFINITY;
    while (goes_on) {
        g_autoptr(Plan) plan = next_plan(search, worker, node->number, &leaf);
        if (plan == NULL) {
            break;
        }
        goes_on = plan->has_cache;
        node->bound = MIN(node->bound, plan_bound(search, worker, plan, !alone && !plan->has_cache));
        node->state = NODE_WITHOUT_ROOM;
    }
    if (node->state != NODE_EMPTY && node->bound < (double)INFINITY) {
        node->state = NODE_OPEN;
    }
}

static void *worker_new(void *data)
{
    return sweep_worker_new(((const Search *)data)->sweep);
}

static void worker_free(void *worker)
{
    sweep_worker_free(worker);
}

static void *bound_job(void *worker, int64_t job, void *data)
{
    Search *search = data;
    search->nodes[job] = (Node){.number = job};
    bound_node(search, worker, &search->nodes[job]);
    return NULL;
}

static gboolean bound_done(int64_t job, void *result, void *data)
{
    (void)job;
    (void)result;
    ((Search *)data)->n_done++;
    return TRUE;
}

static gboolean stop_bounding(void *data)
{
    Search *search = data;
    const SearchOptions *options = search->options;
    search->stopped = search->stopped ||
                      options->stop("layouts bounded", search->n_done, search->top.n_combinations, options->data);
    return search->stopped;
}

static void discard(void *result)
{
    g_free(result);
}

static void bound_all(Search *search)
{
    OrderedPool pool = {.n_threads = search->options->n_threads,
                        .block = NODE_BLOCK,
                        .worker_new = worker_new,
                        .worker_free = worker_free,
                        .work = bound_job,
                        .consume = bound_done,
                        .discard = discard,
                        .stop = stop_bounding,
                        .data = search};
    ordered_pool_run(&pool, search->top.n_combinations);
}

/* Open nodes first, the best bound first. */
static int by_bound(const void *a, const void *b)
{
    const Node *x = a, *y = b;
    if (x->state != y->state) {
        return x->state > y->state ? -1 : 1;
    }
    if (x->bound < y->bound || x->bound > y->bound) {
        return x->bound < y->bound ? -1 : 1;
    }
    return x->number < y->number ? -1 : x->number > y->number;
}

/* ---- evaluation ---- */

static int by_objective(const void *a, const void *b)
{
    const SearchBest *x = a, *y = b;
    if (x->objective < y->objective || x->objective > y->objective) {
        return x->objective < y->objective ? -1 : 1;
    }
    return x->point < y->point ? -1 : x->point > y->point;
}

/* Keeps a point if it is among the best. */
static void offer(Search *search, int64_t point, double objective)
{
    SearchBest entry = {point, objective};
    g_mutex_lock(&search->lock);
    search->n_evaluated++;
    if (isfinite(objective)) {
        g_array_append_val(search->best, entry);
        g_array_sort(search->best, by_objective);
        if ((int64_t)search->best->len > search->options->n_best) {
            g_array_set_size(search->best, (guint)search->options->n_best);
        }
    }
    g_mutex_unlock(&search->lock);
}

/* Whether no point with that bound can be among the best. Equal bounds may win by their lower number. */
static gboolean is_ruled_out(Search *search, double bound)
{
    g_mutex_lock(&search->lock);
    guint n = search->best->len;
    gboolean full = (int64_t)n >= search->options->n_best;
    gboolean out = full && bound > g_array_index(search->best, SearchBest, n - 1).objective;
    g_mutex_unlock(&search->lock);
    return out;
}

/* A plan's own bound knows more than its node's; its layers have been lowered for the node before. */
static gboolean is_leaf_ruled_out(Search *search, SweepWorker *worker, int64_t point)
{
    g_autoptr(Plan) plan = sweep_point_plan(worker, point);
    if (plan == NULL) {
        return TRUE;
    }
    double bound = plan_bound(search, worker, plan, FALSE);
    return bound >= (double)INFINITY || is_ruled_out(search, bound);
}

static void *evaluate_job(void *worker, int64_t job, void *data)
{
    Search *search = data;
    const Node *node = &search->nodes[job];
    for (int64_t leaf = 0; leaf < search->deep.n_combinations; leaf++) {
        if (is_ruled_out(search, node->bound)) {
            return NULL;
        }
        int64_t point = leaf_point(search, node->number, leaf);
        if (search->deep.n_combinations > 1 && is_leaf_ruled_out(search, worker, point)) {
            continue;
        }
        SweepOutcome outcome;
        sweep_evaluate(worker, point, &outcome);
        double objective = (double)NAN;
        if (outcome.status == SWEEP_OK) {
            objective = search->sign * search->objective->value(outcome.result);
        }
        offer(search, point, objective);
        sweep_outcome_clear(&outcome);
    }
    return NULL;
}

static gboolean evaluate_done(int64_t job, void *result, void *data)
{
    (void)result;
    Search *search = data;
    search->n_done = job + 1;
    return TRUE;
}

static gboolean stop_evaluating(void *data)
{
    Search *search = data;
    const SearchOptions *options = search->options;
    search->stopped = search->stopped || options->stop("layouts evaluated", search->n_done, search->top.n_combinations, options->data);
    /* nodes come by their bounds: behind one that is ruled out all are */
    return search->stopped || (search->n_done < search->top.n_combinations && is_ruled_out(search, search->nodes[search->n_done].bound));
}

static void evaluate_open(Search *search, int64_t n_open)
{
    OrderedPool pool = {.n_threads = search->options->n_threads,
                        .block = 1,
                        .worker_new = worker_new,
                        .worker_free = worker_free,
                        .work = evaluate_job,
                        .consume = evaluate_done,
                        .discard = discard,
                        .stop = stop_evaluating,
                        .data = search};
    search->n_done = 0;
    ordered_pool_run(&pool, n_open);
}

/* ---- the whole ---- */

static void fill_result(Search *search, int64_t n_open, SearchResult *result)
{
    *result = (SearchResult){.n_nodes = search->top.n_combinations, .n_evaluated = search->n_evaluated};
    result->best = g_array_ref(search->best);
    result->is_proven = !search->stopped;
    for (int64_t i = 0; i < search->top.n_combinations; i++) {
        result->n_without_room += search->nodes[i].state == NODE_WITHOUT_ROOM;
        result->n_bounded += search->nodes[i].state != NODE_EMPTY;
    }
    result->n_pruned = search->stopped ? 0 : n_open - search->n_done;
    result->unvisited = search->n_done < n_open ? search->sign * search->nodes[search->n_done].bound : (double)NAN;
    for (guint i = 0; i < search->best->len; i++) {
        g_array_index(search->best, SearchBest, i).objective *= search->sign;
    }
}

void search_result_clear(SearchResult *result)
{
    g_clear_pointer(&result->best, g_array_unref);
}

static void run_all(Search *search, SearchResult *result)
{
    int64_t n_open = 0;
    search->nodes = g_new0(Node, search->top.n_combinations);
    bound_all(search);
    if (!search->stopped) {
        qsort(search->nodes, (size_t)search->top.n_combinations, sizeof(Node), by_bound);
        while (n_open < search->top.n_combinations && search->nodes[n_open].state == NODE_OPEN) {
            n_open++;
        }
        evaluate_open(search, n_open);
    }
    fill_result(search, n_open, result);
    g_free(search->nodes);
}

gboolean search_run(const Sweep *sweep, const SearchOptions *options, SearchResult *ret_result, GError **error)
{
    Search search = {.sweep = sweep, .options = options, .objective = find_objective(sweep, error)};
    if (search.objective == NULL) {
        return FALSE;
    }
    search.sign = search.objective->maximize ? -1 : 1;
    group_axes(sweep, FALSE, &search.top);
    group_axes(sweep, TRUE, &search.deep);
    gboolean ok = search.top.n_combinations <= NODES_MAX;
    if (ok) {
        search.best = g_array_new(FALSE, FALSE, sizeof(SearchBest));
        g_mutex_init(&search.lock);
        run_all(&search, ret_result);
        g_mutex_clear(&search.lock);
        g_array_unref(search.best);
    } else {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: %" G_GINT64_FORMAT " combinations without those of the loss; a search takes at most %d", sweep->name,
                    search.top.n_combinations, NODES_MAX);
    }
    group_clear(&search.top);
    group_clear(&search.deep);
    return ok;
}
