#include "workloads/sweep/search.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/ordered-pool.h"
#include "sim/des/index-heap.h"
#include "workloads/sweep/search-objective.h"
#include "workloads/sweep/search-space.h"

enum { NODES_MAX = 1 << 24, NODE_BLOCK = 64, POLL_US = 100000 };

/* What is the same number in theory may be computed in another order: bounds give way by more than that. */
static const double ROUNDING = 1e-12;

/* How closely a node has been looked at. */
typedef enum NodeStage {
    NODE_EMPTY,        /* no valid plan */
    NODE_WITHOUT_ROOM, /* none that can fit */
    NODE_ROUGH,        /* bounded by what it shares with most others: static memory, operators run once */
    NODE_OPERATORS,    /* by its operators, recomputed ones included */
    NODE_LAYERS,       /* by its layers: what is left to do is to run its plans */
    NODE_DONE
} NodeStage;

typedef struct Node {
    double bound; /* of the objective, lower is better; −∞ when unknown */
    NodeStage stage;
} Node;

/* What is known of a class of nodes in an aspect. */
typedef struct ClassBound {
    gboolean is_known;
    SimTime ns;
    int64_t bytes;
    double flops_per_token;
} ClassBound;

typedef struct Search {
    const Sweep *sweep;
    const SearchOptions *options;
    const SearchObjective *objective;
    double sign; /* −1 turns higher-is-better round */
    SearchSpace space;
    Node *nodes;                   /* [space.nodes.n_combinations] */
    GMutex lock;                   /* of all below */
    ClassBound *classes[N_SEARCH_ASPECTS]; /* [aspect][class] */
    IndexHeap open;                /* nodes to be looked at, by bound */
    guint32 *places;
    GArray *best; /* SearchBest; objective lower is better until the end */
    int64_t n_evaluated, n_done;
    gboolean stopped;
    guint n_working; /* threads */
    GCond idle;
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

/* ---- bounds ---- */

/* The first valid plan of the node from a leaf on, NULL when there is none; *leaf moves behind it. */
static Plan *next_plan(const Search *search, SweepWorker *worker, int64_t node, int64_t *leaf)
{
    Plan *plan = NULL;
    while (plan == NULL && *leaf < search->space.leaves.n_combinations) {
        plan = sweep_point_plan(worker, search_space_point(&search->space, node, (*leaf)++));
    }
    return plan;
}

/* The objective that no plan goes beyond which takes and holds at least that; lower is better, +∞ when it cannot fit. */
static double objective_bound(const Search *search, const Plan *plan, SimTime ns, int64_t bytes, double flops_per_token)
{
    const Device *device = plan->cluster->device;
    if (bytes + device->non_framework_bytes > device->usable_bytes) {
        return (double)INFINITY;
    }
    double value = search->sign * search->objective->bound(plan, (double)ns * 1e-9, bytes, flops_per_token);
    return isnan(value) ? -(double)INFINITY : value - fabs(value) * ROUNDING;
}

static ClassBound class_bound(Search *search, SearchAspect aspect, int64_t node)
{
    int64_t place = search_space_class(&search->space, aspect, node);
    g_mutex_lock(&search->lock);
    ClassBound bound = search->classes[aspect][place];
    g_mutex_unlock(&search->lock);
    return bound;
}

/* Of the plan of a node whose model has most FLOPs a token: a loss that is cut counts what it computes again. */
static double most_flops_per_token(const Search *search, SweepWorker *worker, int64_t number)
{
    double most = 0;
    for (int64_t leaf = 0; leaf < search->space.leaves.n_combinations;) {
        g_autoptr(Plan) plan = next_plan(search, worker, number, &leaf);
        most = plan != NULL ? fmax(most, session_flops_per_token(worker->session, plan)) : most;
    }
    return most;
}

/* Lowers a plan of the node: bounds the classes that it is of. FALSE: what is wrong with it shows when it is run. */
static gboolean look_at(Search *search, SweepWorker *worker, int64_t number, const Plan *plan)
{
    Node *node = &search->nodes[number];
    Bound bound;
    if (!session_bound(worker->session, plan, &bound, NULL)) {
        *node = (Node){-(double)INFINITY, NODE_LAYERS};
        return FALSE;
    }
    double flops = most_flops_per_token(search, worker, number);
    const struct {
        SimTime ns;
        int64_t bytes;
    } values[N_SEARCH_ASPECTS] = {
        [ASPECT_STATIC] = {0, bound.static_bytes},
        [ASPECT_ONCE] = {bound.once_ns, 0},
        [ASPECT_OPERATORS] = {bound.operators_ns, bound.operators_bytes},
        [ASPECT_LAYERS] = {bound.layers_ns, bound.layers_bytes - bound.static_bytes},
    };
    g_mutex_lock(&search->lock);
    for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
        if (search_has_aspect((SearchAspect)k, plan)) {
            int64_t place = search_space_class(&search->space, (SearchAspect)k, number);
            search->classes[k][place] = (ClassBound){TRUE, values[k].ns, values[k].bytes, flops};
        }
    }
    g_mutex_unlock(&search->lock);
    return TRUE;
}

/* The node's bound by an aspect, if that holds for it and is known. */
static gboolean apply(Search *search, int64_t number, const Plan *plan, SearchAspect aspect, NodeStage stage)
{
    Node *node = &search->nodes[number];
    ClassBound bound = class_bound(search, aspect, number), fixed = class_bound(search, ASPECT_STATIC, number);
    if (!bound.is_known || !search_has_aspect(aspect, plan)) {
        return FALSE;
    }
    double value = objective_bound(search, plan, bound.ns, fixed.bytes + bound.bytes, bound.flops_per_token);
    node->bound = MAX(node->bound, value);
    node->stage = node->bound < (double)INFINITY ? stage : NODE_WITHOUT_ROOM;
    return TRUE;
}

/* A node seen for the first time. */
static void bound_roughly(Search *search, SweepWorker *worker, int64_t number)
{
    Node *node = &search->nodes[number];
    int64_t leaf = 0;
    g_autoptr(Plan) plan = next_plan(search, worker, number, &leaf);
    *node = (Node){-(double)INFINITY, NODE_EMPTY};
    if (plan == NULL) {
        return;
    }
    gboolean has_once = search_has_aspect(ASPECT_ONCE, plan);
    gboolean is_known = class_bound(search, ASPECT_STATIC, number).is_known && (!has_once || class_bound(search, ASPECT_ONCE, number).is_known);
    if (!is_known && !look_at(search, worker, number, plan)) {
        return;
    }
    if (!apply(search, number, plan, ASPECT_ONCE, NODE_ROUGH)) {
        double value = objective_bound(search, plan, 0, class_bound(search, ASPECT_STATIC, number).bytes, 0);
        *node = (Node){value, value < (double)INFINITY ? NODE_ROUGH : NODE_WITHOUT_ROOM};
    }
}

/* An open node looked at more closely; its bound does not fall. */
static void bound_closely(Search *search, SweepWorker *worker, int64_t number)
{
    Node *node = &search->nodes[number];
    int64_t leaf = 0;
    g_autoptr(Plan) plan = next_plan(search, worker, number, &leaf);
    g_assert(plan != NULL); /* one was found before */
    if (!search_has_aspect(ASPECT_LAYERS, plan)) {
        node->stage = NODE_LAYERS; /* each of its plans is bounded for itself */
    } else if (!apply(search, number, plan, ASPECT_LAYERS, NODE_LAYERS) &&
               (node->stage == NODE_OPERATORS || !apply(search, number, plan, ASPECT_OPERATORS, NODE_OPERATORS)) &&
               look_at(search, worker, number, plan)) {
        apply(search, number, plan, ASPECT_LAYERS, NODE_LAYERS);
    }
}

/* ---- all nodes, roughly ---- */

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
    bound_roughly(data, worker, job);
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
                      options->stop("layouts bounded", search->n_done, search->space.nodes.n_combinations, options->data);
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
    ordered_pool_run(&pool, search->space.nodes.n_combinations);
}

/* ---- open nodes, the best bound first ---- */

/*
 * Whether a plan's own bound, or its step, rules it out. A step is found sooner than what it holds; with a cache the whole plan
 * says what its layers keep, and the node's bound says little.
 */
static gboolean is_leaf_beaten(Search *search, SweepWorker *worker, int64_t number, int64_t point)
{
    g_autoptr(Plan) plan = sweep_point_plan(worker, point);
    Bound bound = {.peak_bytes = class_bound(search, ASPECT_STATIC, number).bytes};
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
    return value >= (double)INFINITY || gives_up(search, value);
}

/* Runs the plans of a node. FALSE: the search was stopped before the last. */
static gboolean evaluate_node(Search *search, SweepWorker *worker, int64_t number)
{
    const Node *node = &search->nodes[number];
    for (int64_t leaf = 0; leaf < search->space.leaves.n_combinations; leaf++) {
        if (gives_up(search, node->bound)) {
            return FALSE;
        }
        int64_t point = search_space_point(&search->space, number, leaf);
        if (is_leaf_beaten(search, worker, number, point)) {
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

/* Takes the open node with the best bound; FALSE when there is none that can hold one of the best. Call under the lock. */
static gboolean take_node(Search *search, int64_t *ret_number)
{
    if (search->stopped || search->open.n == 0 || is_beaten(search, search->open.entries[0].key)) {
        return FALSE;
    }
    *ret_number = search->open.entries[0].item;
    index_heap_remove(&search->open, search->places, 0);
    return TRUE;
}

static void work_through(gpointer data, gpointer user)
{
    (void)data;
    Search *search = user;
    SweepWorker *worker = sweep_worker_new(search->sweep);
    int64_t number;
    g_mutex_lock(&search->lock);
    while (take_node(search, &number)) {
        Node *node = &search->nodes[number];
        g_mutex_unlock(&search->lock);
        if (node->stage < NODE_LAYERS) {
            bound_closely(search, worker, number);
        } else if (evaluate_node(search, worker, number)) {
            node->stage = NODE_DONE;
        }
        g_mutex_lock(&search->lock);
        if (node->stage >= NODE_ROUGH && node->stage < NODE_DONE) {
            index_heap_add(&search->open, search->places, node->bound, (guint32)number);
        }
        search->n_done += node->stage == NODE_DONE || node->stage == NODE_WITHOUT_ROOM;
    }
    search->n_working--;
    g_cond_signal(&search->idle);
    g_mutex_unlock(&search->lock);
    sweep_worker_free(worker);
}

/* Asks now and then whether to stop, until all threads have nothing left to do. */
static void await_end(Search *search, int64_t n_open)
{
    const SearchOptions *options = search->options;
    g_mutex_lock(&search->lock);
    while (search->n_working > 0) {
        int64_t n_done = search->n_done;
        g_mutex_unlock(&search->lock);
        gboolean stops = options->stop("layouts evaluated", n_done, n_open, options->data);
        g_mutex_lock(&search->lock);
        search->stopped = search->stopped || stops;
        if (search->n_working > 0) {
            g_cond_wait_until(&search->idle, &search->lock, g_get_monotonic_time() + POLL_US);
        }
    }
    g_mutex_unlock(&search->lock);
}

static void evaluate_open(Search *search)
{
    const int64_t n_nodes = search->space.nodes.n_combinations;
    search->places = g_new0(guint32, n_nodes);
    for (int64_t i = 0; i < n_nodes; i++) {
        if (search->nodes[i].stage >= NODE_ROUGH) {
            index_heap_add(&search->open, search->places, search->nodes[i].bound, (guint32)i);
        }
    }
    search->n_done = 0;
    search->stopped = search->options->stop("layouts evaluated", 0, search->open.n, search->options->data);
    int64_t n_open = search->open.n;
    search->n_working = (guint)search->options->n_threads;
    GThreadPool *threads = g_thread_pool_new(work_through, search, search->options->n_threads, TRUE, NULL);
    for (int i = 0; i < search->options->n_threads; i++) {
        g_thread_pool_push(threads, search, NULL); /* one long task for each thread */
    }
    await_end(search, n_open);
    g_thread_pool_free(threads, FALSE, TRUE);
}

/* ---- the whole ---- */

static void fill_result(Search *search, SearchResult *result)
{
    *result = (SearchResult){.n_nodes = search->space.nodes.n_combinations, .n_evaluated = search->n_evaluated};
    result->best = g_array_ref(search->best);
    result->is_proven = !search->stopped;
    for (int64_t i = 0; i < result->n_nodes; i++) {
        NodeStage stage = search->nodes[i].stage;
        result->n_without_room += stage == NODE_WITHOUT_ROOM;
        result->n_bounded += stage != NODE_EMPTY;
        result->n_pruned += !search->stopped && stage >= NODE_ROUGH && stage < NODE_DONE;
    }
    result->unvisited = search->open.n > 0 ? search->sign * search->open.entries[0].key : (double)NAN;
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
    search->nodes = g_new0(Node, search->space.nodes.n_combinations);
    for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
        search->classes[k] = g_new0(ClassBound, search->space.n_classes[k]);
    }
    bound_all(search);
    if (!search->stopped) {
        evaluate_open(search);
    }
    fill_result(search, result);
    for (int k = 0; k < N_SEARCH_ASPECTS; k++) {
        g_free(search->classes[k]);
    }
    index_heap_clear(&search->open);
    g_free(search->places);
    g_free(search->nodes);
}

gboolean search_run(const Sweep *sweep, const SearchOptions *options, SearchResult *ret_result, GError **error)
{
    Search search = {.sweep = sweep, .options = options, .objective = search_objective_find(sweep, error)};
    if (search.objective == NULL) {
        return FALSE;
    }
    search.sign = search.objective->maximize ? -1 : 1;
    search_space_init(&search.space, sweep);
    gboolean ok = search.space.nodes.n_combinations <= NODES_MAX;
    if (ok) {
        search.best = g_array_new(FALSE, FALSE, sizeof(SearchBest));
        g_mutex_init(&search.lock);
        g_cond_init(&search.idle);
        run_all(&search, ret_result);
        g_cond_clear(&search.idle);
        g_mutex_clear(&search.lock);
        g_array_unref(search.best);
    } else {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: %" G_GINT64_FORMAT " combinations without those of the loss; a search takes at most %d", sweep->name,
                    search.space.nodes.n_combinations, NODES_MAX);
    }
    search_space_clear(&search.space);
    return ok;
}
