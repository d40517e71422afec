#include "workloads/sweep/search.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/ordered-pool.h"
#include "workloads/sweep/search-objective.h"
#include "workloads/sweep/search-queue.h"
#include "workloads/sweep/search-space.h"

/*
 * Children of the root; classes of what lives between steps, beyond which nothing is known of it before a layout is lowered;
 * members of a node that are tried for a valid plan: none among them says nothing.
 */
enum { ROOTS_MAX = 1 << 24, STATICS_MAX = 1 << 16, TRIES_MAX = 64 };
enum { STATIC_BLOCK = 16, POLL_US = 100000 };

/* What is the same number in theory may be computed in another order: bounds give way by more than that. */
static const double ROUNDING = 1e-12;

/* What became of a node that was looked at. */
typedef enum Finding {
    FOUND_BOUND,   /* it may hold one of the best */
    FOUND_NO_PLAN, /* no valid plan */
    FOUND_NO_ROOM, /* none that can fit */
} Finding;

typedef struct Search {
    const Sweep *sweep;
    const SearchOptions *options;
    const SearchObjective *objective;
    double sign; /* −1 turns higher-is-better round */
    SearchSpace space;
    int64_t *least_bytes[N_SEARCH_LEVELS]; /* [class of the level's statics]: between steps; 0 = unknown */
    GMutex lock;   /* of all below */
    SearchQueue queue;
    GArray *best;  /* SearchBest; objective lower is better until the end */
    int64_t n_bounds, n_evaluated;
    int64_t n_invalid, n_without_room, n_done; /* layouts */
    gboolean stopped, is_started;
    guint n_working, n_busy; /* threads, and those that have a node */
    GCond changed;
} Search;

/* ---- the best ---- */

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

/* Whether no point with that bound can be among the best. Equal bounds may win by their lower number. Call under the lock. */
static gboolean is_beaten(const Search *search, double bound)
{
    guint n = search->best->len;
    gboolean full = (int64_t)n >= search->options->n_best;
    return full && bound > g_array_index(search->best, SearchBest, n - 1).objective;
}

/* The same, or the search is to end. */
static gboolean gives_up(Search *search, double bound)
{
    g_mutex_lock(&search->lock);
    gboolean out = search->stopped || is_beaten(search, bound);
    g_mutex_unlock(&search->lock);
    return out;
}

/* ---- plans ---- */

/* A valid plan of a node; NULL when none is found. *ret_all: all of it was looked at. */
static Plan *plan_of(const Search *search, SweepWorker *worker, SearchAspect level, int64_t node, gboolean *ret_all)
{
    int64_t n = search->space.open[level].n_combinations;
    int64_t n_tries = level == ASPECT_LAYOUT ? n : MIN(n, TRIES_MAX);
    Plan *plan = NULL;
    for (int64_t i = 0; plan == NULL && i < n_tries; i++) {
        plan = sweep_point_plan(worker, search_space_point(&search->space, level, node, i));
    }
    *ret_all = n_tries == n;
    return plan;
}

/* Most FLOPs of a token over the cuts of the loss, which count what they compute again; 0 where the objective has no use for it. */
static double most_flops_per_token(const Search *search, SweepWorker *worker, int64_t node)
{
    double most = 0;
    for (int64_t i = 0; search->objective->is_of_flops && i < search->space.open[ASPECT_LAYOUT].n_combinations; i++) {
        g_autoptr(Plan) plan = sweep_point_plan(worker, search_space_point(&search->space, ASPECT_LAYOUT, node, i));
        most = plan != NULL ? fmax(most, session_flops_per_token(worker->session, plan)) : most;
    }
    return most;
}

/* ---- bounds ---- */

/* Whether plans that hold at least that may fit; without one of their layouts whatever lies outside of the framework counts least. */
static gboolean has_room(const Plan *plan, gboolean is_layout, int64_t bytes)
{
    const Device *device = plan->cluster->device;
    return bytes <= device->usable_bytes - (is_layout ? plan_outside_bytes(plan) : device->non_framework_bytes);
}

/* The objective that no plan goes beyond which takes and holds at least that; lower is better. */
static double objective_bound(const Search *search, const Plan *plan, SimTime ns, int64_t bytes, double flops_per_token)
{
    double value = search->sign * search->objective->bound(plan, (double)ns * 1e-9, bytes, flops_per_token);
    return isnan(value) ? -(double)INFINITY : value - fabs(value) * ROUNDING;
}

/* What the level's fields say of all plans of a node, from one of them. FALSE: nothing. */
static gboolean look_at(SweepWorker *worker, SearchAspect level, const Plan *plan, SimTime *ret_ns, int64_t *ret_bytes)
{
    Bound bound;
    *ret_ns = *ret_bytes = 0;
    if (level == ASPECT_ONCE || level == ASPECT_SHARDED) {
        gboolean is_known = session_bound_shared(worker->session, plan, &bound, NULL);
        *ret_ns = !is_known ? 0 : level == ASPECT_ONCE ? bound.once_ns : bound.sharded_ns;
        return is_known; /* what is wrong with a plan shows when it is run */
    }
    if (level == ASPECT_LAYOUT || !search_has_aspect(level, plan) || !session_bound_layers(worker->session, plan, &bound, NULL)) {
        return FALSE;
    }
    *ret_ns = bound.layers_ns;
    *ret_bytes = bound.layers_bytes - bound.static_bytes;
    return TRUE;
}

/* A node that has its parent's bound so far. */
static Finding bound_node(Search *search, SweepWorker *worker, SearchNode *node)
{
    SearchAspect level = (SearchAspect)node->level;
    gboolean is_all;
    SimTime ns;
    int64_t bytes;
    g_autoptr(Plan) plan = plan_of(search, worker, level, node->point, &is_all);
    node->is_bounded = TRUE;
    if (plan == NULL) {
        return is_all ? FOUND_NO_PLAN : FOUND_BOUND;
    }
    gboolean is_layout = level == ASPECT_LAYOUT;
    int64_t held = search->least_bytes[level][search_space_static_class(&search->space, level, node->point)];
    if (held == 0 && is_layout && search_has_aspect(ASPECT_STATIC, plan)) { /* too many classes, or none of it was found valid */
        held = session_static_bytes(worker->session, plan);
    }
    if (!has_room(plan, is_layout, held)) {
        return FOUND_NO_ROOM; /* a look would be in vain */
    }
    (void)look_at(worker, level, plan, &ns, &bytes);
    double flops = most_flops_per_token(search, worker, node->point);
    node->bound = MAX(node->bound, objective_bound(search, plan, ns, held + bytes, flops));
    return has_room(plan, is_layout, held + bytes) ? FOUND_BOUND : FOUND_NO_ROOM;
}

/* ---- what lives between steps ---- */

static void *worker_new(void *data)
{
    return sweep_worker_new(((const Search *)data)->sweep);
}

static void worker_free(void *worker)
{
    sweep_worker_free(worker);
}

static void *static_job(void *worker, int64_t class, void *data)
{
    Search *search = data;
    SweepWorker *own = worker;
    int64_t *bytes = g_new0(int64_t, 1);
    for (int64_t i = 0; i < MIN(search->space.others.n_combinations, TRIES_MAX); i++) {
        g_autoptr(Plan) plan = sweep_point_plan(own, search_space_static_point(&search->space, class, i));
        if (plan != NULL) {
            *bytes = search_has_aspect(ASPECT_STATIC, plan) ? session_static_bytes(own->session, plan) : 0;
            break;
        }
    }
    return bytes;
}

static gboolean static_done(int64_t class, void *result, void *data)
{
    Search *search = data;
    g_autofree int64_t *bytes = result;
    int64_t point = search_space_static_point(&search->space, class, 0);
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        int64_t *least = &search->least_bytes[level][search_space_static_class(&search->space, (SearchAspect)level, point)];
        *least = MIN(*least, *bytes);
    }
    return TRUE;
}

static void discard(void *result)
{
    g_free(result);
}

/* Asks whether to stop. Call without the lock. */
static gboolean asks_to_stop(void *data)
{
    Search *search = data;
    g_mutex_lock(&search->lock);
    const SearchNode *first = search_queue_first(&search->queue);
    SearchProgress progress = {.is_started = search->is_started,
                               .n_layouts = search_space_n_layouts(&search->space, ASPECT_ONCE) * search->space.fixed[ASPECT_ONCE].n_combinations,
                               .n_bounds = search->n_bounds,
                               .n_evaluated = search->n_evaluated,
                               .best = search->best->len > 0 ? search->sign * g_array_index(search->best, SearchBest, 0).objective : (double)NAN,
                               .bound = first != NULL && isfinite(first->bound) ? search->sign * first->bound : (double)NAN};
    for (guint i = 0; i < search->queue.nodes->len; i++) {
        const SearchNode *node = &g_array_index(search->queue.nodes, SearchNode, i);
        progress.n_open += is_beaten(search, node->bound) ? 0 : search_space_n_layouts(&search->space, (SearchAspect)node->level);
    }
    progress.n_open = search->is_started ? progress.n_open : progress.n_layouts;
    g_mutex_unlock(&search->lock);
    gboolean stops = search->options->stop(&progress, search->options->data);
    g_mutex_lock(&search->lock);
    search->stopped = search->stopped || stops;
    g_mutex_unlock(&search->lock);
    return search->stopped;
}

static void look_at_statics(Search *search)
{
    OrderedPool pool = {.n_threads = search->options->n_threads,
                        .block = STATIC_BLOCK,
                        .worker_new = worker_new,
                        .worker_free = worker_free,
                        .work = static_job,
                        .consume = static_done,
                        .discard = discard,
                        .stop = asks_to_stop,
                        .data = search};
    int64_t n_classes = search->space.statics.n_combinations;
    gboolean is_few = n_classes <= STATICS_MAX;
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        int64_t n = search->space.fixed_statics[level].n_combinations;
        search->least_bytes[level] = g_new0(int64_t, n);
        for (int64_t i = 0; is_few && i < n; i++) {
            search->least_bytes[level][i] = G_MAXINT64;
        }
    }
    ordered_pool_run(&pool, is_few ? n_classes : 0);
}

/* ---- open nodes, the best bound first ---- */

/*
 * Whether a plan's own bound, or its step, rules it out. A step is found sooner than what it holds; with a cache the whole plan
 * says what its layers keep, and the node's bound says little.
 */
static gboolean is_leaf_beaten(Search *search, SweepWorker *worker, int64_t point)
{
    g_autoptr(Plan) plan = sweep_point_plan(worker, point);
    Bound bound = {0};
    if (plan == NULL) {
        return TRUE;
    }
    gboolean is_settled = search_has_aspect(ASPECT_LAYERS, plan);
    if ((is_settled && !search->objective->is_of_time) ||
        !(is_settled ? session_step(worker->session, plan, &bound.step_ns, NULL)
                     : session_bound(worker->session, plan, &bound, NULL))) {
        return FALSE; /* what is wrong with it shows when it is run */
    }
    double flops = session_flops_per_token(worker->session, plan);
    double value = objective_bound(search, plan, bound.step_ns, bound.peak_bytes, flops);
    return !has_room(plan, TRUE, bound.peak_bytes) || gives_up(search, value);
}

/* Runs the plans of a layout. FALSE: the search was stopped, or the rest ruled out, before the last. */
static gboolean evaluate_layout(Search *search, SweepWorker *worker, const SearchNode *node)
{
    for (int64_t leaf = 0; leaf < search->space.open[ASPECT_LAYOUT].n_combinations; leaf++) {
        if (gives_up(search, node->bound)) {
            return FALSE;
        }
        int64_t point = search_space_point(&search->space, ASPECT_LAYOUT, node->point, leaf);
        if (is_leaf_beaten(search, worker, point)) {
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
    return TRUE;
}

/* Puts what stands in a node's place. Call under the lock. */
static void put_children(Search *search, const SearchNode *node)
{
    SearchAspect level = (SearchAspect)node->level;
    for (int64_t i = 0; i < search->space.children[level].n_combinations; i++) {
        SearchNode child = {node->bound, search_space_child(&search->space, level, node->point, i), (guint8)(level + 1), FALSE};
        search_queue_put(&search->queue, &child);
    }
}

/* A node's turn. Call under the lock, which is let go meanwhile. */
static void work_on(Search *search, SweepWorker *worker, SearchNode *node)
{
    int64_t n_layouts = search_space_n_layouts(&search->space, (SearchAspect)node->level);
    if (node->is_bounded && node->level < ASPECT_LAYOUT) {
        put_children(search, node);
        return;
    }
    g_mutex_unlock(&search->lock);
    gboolean is_layout = node->is_bounded;
    gboolean is_done = is_layout && evaluate_layout(search, worker, node);
    Finding finding = is_layout ? FOUND_BOUND : bound_node(search, worker, node);
    g_mutex_lock(&search->lock);
    search->n_bounds += is_layout ? 0 : 1;
    search->n_done += is_done ? n_layouts : 0;
    search->n_invalid += finding == FOUND_NO_PLAN ? n_layouts : 0;
    search->n_without_room += finding == FOUND_NO_ROOM ? n_layouts : 0;
    if (!is_done && finding == FOUND_BOUND) {
        search_queue_put(&search->queue, node);
    }
}

static void work_through(gpointer data, gpointer user)
{
    (void)data;
    Search *search = user;
    SweepWorker *worker = sweep_worker_new(search->sweep);
    g_mutex_lock(&search->lock);
    while (!search->stopped) {
        const SearchNode *first = search_queue_first(&search->queue);
        if (first != NULL && !is_beaten(search, first->bound)) {
            SearchNode node = search_queue_take(&search->queue);
            search->n_busy++;
            work_on(search, worker, &node);
            search->n_busy--;
            g_cond_broadcast(&search->changed);
        } else if (search->n_busy > 0) {
            g_cond_wait_until(&search->changed, &search->lock, g_get_monotonic_time() + POLL_US);
        } else {
            break; /* nothing left, and nobody at work who may find more */
        }
    }
    search->n_working--;
    g_cond_broadcast(&search->changed);
    g_mutex_unlock(&search->lock);
    sweep_worker_free(worker);
}

/* Asks now and then whether to stop, until all threads have nothing left to do. */
static void await_end(Search *search)
{
    gint64 asked_us = 0;
    g_mutex_lock(&search->lock);
    while (search->n_working > 0) {
        gint64 now = g_get_monotonic_time();
        if (now - asked_us >= POLL_US) {
            asked_us = now;
            g_mutex_unlock(&search->lock);
            (void)asks_to_stop(search);
            g_mutex_lock(&search->lock);
        }
        if (search->n_working > 0) {
            g_cond_wait_until(&search->changed, &search->lock, asked_us + POLL_US);
        }
    }
    g_mutex_unlock(&search->lock);
}

static void search_open(Search *search)
{
    for (int64_t i = 0; i < search->space.fixed[ASPECT_ONCE].n_combinations; i++) {
        SearchNode node = {-(double)INFINITY, search_space_node(&search->space, ASPECT_ONCE, i), ASPECT_ONCE, FALSE};
        search_queue_put(&search->queue, &node);
    }
    search->is_started = TRUE;
    if (asks_to_stop(search)) {
        return;
    }
    search->n_working = (guint)search->options->n_threads;
    GThreadPool *threads = g_thread_pool_new(work_through, search, search->options->n_threads, TRUE, NULL);
    for (int i = 0; i < search->options->n_threads; i++) {
        g_thread_pool_push(threads, search, NULL); /* one long task for each thread */
    }
    await_end(search);
    g_thread_pool_free(threads, FALSE, TRUE);
}

/* ---- the whole ---- */

static void fill_result(Search *search, SearchResult *result)
{
    const SearchNode *first = search_queue_first(&search->queue);
    *result = (SearchResult){.n_invalid = search->n_invalid,
                             .n_without_room = search->n_without_room,
                             .n_bounds = search->n_bounds,
                             .n_evaluated = search->n_evaluated,
                             .is_proven = !search->stopped,
                             .unvisited = (double)NAN};
    result->n_layouts = search_space_n_layouts(&search->space, ASPECT_ONCE) * search->space.fixed[ASPECT_ONCE].n_combinations;
    if (search->stopped && first != NULL && isfinite(first->bound)) {
        result->unvisited = search->sign * first->bound;
    } else if (!search->stopped) {
        result->n_pruned = result->n_layouts - search->n_invalid - search->n_without_room - search->n_done;
    }
    result->best = g_array_ref(search->best);
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
    search->best = g_array_new(FALSE, FALSE, sizeof(SearchBest));
    g_mutex_init(&search->lock);
    g_cond_init(&search->changed);
    search_queue_init(&search->queue);
    look_at_statics(search);
    if (!search->stopped) {
        search_open(search);
    }
    fill_result(search, result);
    for (int level = 0; level < N_SEARCH_LEVELS; level++) {
        g_free(search->least_bytes[level]);
    }
    search_queue_clear(&search->queue);
    g_cond_clear(&search->changed);
    g_mutex_clear(&search->lock);
    g_array_unref(search->best);
}

gboolean search_run(const Sweep *sweep, const SearchOptions *options, SearchResult *ret_result, GError **error)
{
    Search search = {.sweep = sweep, .options = options, .objective = search_objective_find(sweep, error)};
    if (search.objective == NULL) {
        return FALSE;
    }
    search.sign = search.objective->maximize ? -1 : 1;
    search_space_init(&search.space, sweep);
    int64_t n_roots = search.space.fixed[ASPECT_ONCE].n_combinations;
    gboolean ok = n_roots <= ROOTS_MAX;
    if (ok) {
        run_all(&search, ret_result);
    } else {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: %" G_GINT64_FORMAT " combinations of what decides what a step computes; a search takes at most %d",
                    sweep->name, n_roots, ROOTS_MAX);
    }
    search_space_clear(&search.space);
    return ok;
}
