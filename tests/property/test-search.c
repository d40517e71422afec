/*
 * Bounds and searches: no run goes below its bound, and a search finds what evaluating everything finds.
 */
#include "tests/check.h"

#include <math.h>

#include "sim/base/json-read.h"
#include "sim/base/rng.h"
#include "tests/property/random-plan.h"
#include "workloads/cases.h"
#include "workloads/draw.h"
#include "workloads/run/bound.h"
#include "workloads/run/run.h"
#include "workloads/run/shrink.h"
#include "workloads/run/step.h"
#include "workloads/sweep/search-space.h"
#include "workloads/sweep/search.h"

enum { PLANS = 60, DRAWN_PLANS = 20, FREE_PLANS = 40, SPACES = 20 };

static json_t *plan_schema(void)
{
    g_autofree char *path = check_source_path("reports/schema/plan.schema.json");
    json_t *schema = json_load_file(path, 0, NULL);
    assert_non_null(schema);
    return schema;
}

static void say_bounds(const Bound *bound, const char *of)
{
    print_error("%s: step %" G_GINT64_FORMAT ", layers %" G_GINT64_FORMAT ", sharded %" G_GINT64_FORMAT ", once %" G_GINT64_FORMAT
                " ns; peak %" G_GINT64_FORMAT ", layers %" G_GINT64_FORMAT ", static %" G_GINT64_FORMAT "\n",
                of, bound->step_ns, bound->layers_ns, bound->sharded_ns, bound->once_ns, bound->peak_bytes,
                bound->layers_bytes, bound->static_bytes);
}

/* Bounds lie one below the other, and below that time and memory. */
static gboolean is_below(const Bound *bound, SimTime step_ns, int64_t peak_bytes)
{
    return bound->once_ns <= bound->sharded_ns && bound->sharded_ns <= bound->layers_ns && bound->layers_ns <= bound->step_ns &&
            bound->step_ns <= step_ns && bound->static_bytes <= bound->layers_bytes &&
           bound->layers_bytes <= bound->peak_bytes && bound->peak_bytes <= peak_bytes;
}

/* Time and memory of a run are at least those of the bounds. Returns bound over time. */
static double check_bound(Session *session, const Plan *plan, const char *what)
{
    g_autoptr(GError) error = NULL;
    Bound bound, shared, layout;
    g_autoptr(Result) result = run_plan(plan, NULL, &error);
    check_no_error(error);
    SimTime step_ns = (SimTime)llround(result->step_time_s * 1e9);
    assert_true(session_bound(session, plan, &bound, &error));
    assert_true(session_bound_shared(session, plan, &shared, &error));
    layout = shared;
    if (search_has_aspect(ASPECT_LAYOUT, plan)) {
        assert_true(session_bound_layers(session, plan, &layout, &error));
    }
    if (!is_below(&bound, step_ns, result->peak_memory_bytes) || !is_below(&shared, step_ns, result->peak_memory_bytes) ||
        !is_below(&layout, step_ns, result->peak_memory_bytes)) {
        print_error("a run of %" G_GINT64_FORMAT " ns, %" G_GINT64_FORMAT " bytes: %s\n", step_ns, result->peak_memory_bytes, what);
        say_bounds(&bound, "bound");
        say_bounds(&shared, "shared");
        say_bounds(&layout, "layout");
        fail();
    }
    check_int(session_static_bytes(session, plan), shared.static_bytes);
    check_close(session_flops_per_token(session, plan), result->model_flops_per_token, 1e-12);
    return (double)bound.step_ns / (double)step_ns;
}

/* Over random plans of small models, and reduced ones with any field that plans have. */
static void test_bound(void **state)
{
    (void)state;
    g_autoptr(Session) session = session_new();
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = random_plan_words(seed);
        g_autofree char *text = g_strdup(words);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        check_bound(session, plan, text);
    }
    for (uint64_t seed = 0; seed < DRAWN_PLANS; seed++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) object = draw_plan(seed, NULL);
        g_autoptr(Plan) plan = plan_from_json(object, "plan", NULL, &error);
        check_no_error(error);
        char *text = json_dumps(object, JSON_COMPACT);
        ShrinkReport report;
        shrink_plan(plan, &report);
        check_bound(session, plan, text);
        free(text);
    }
}

/* A bound that says nothing would pass above: on a large model it says most of what there is to say. */
static void test_tight(void **state)
{
    (void)state;
    static const char *const plans[] = {
        "model=kimi-k3 cluster.preset=h200-sxm cluster.nodes=64 parallel.ep=64 workload.seq_len=8192 memory.recompute=full",
        "model=llama-3.1-70b cluster.preset=h200-sxm cluster.nodes=8 workload.seq_len=8192 memory.recompute=full",
    };
    g_autoptr(Session) session = session_new();
    for (size_t i = 0; i < G_N_ELEMENTS(plans); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strdup(plans[i]);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        assert_true(check_bound(session, plan, plans[i]) > 0.6);
    }
}

/* What a plan leaves open, and which share of a DDR budget a run uses, is within the bound, too. */
static void test_open(void **state)
{
    (void)state;
    static const char *const plans[] = {
        "model=kimi-k3 cluster.preset=h200-sxm cluster.nodes=64 parallel.ep=64 workload.seq_len=8192 memory.cache.hbm_bytes=fit",
        "model=kimi-k3 cluster.preset=gb200 cluster.nodes=128 cluster.gpus_per_node=4 parallel.ep=64 workload.seq_len=8192 "
        "memory.cache.hbm_bytes=fit memory.cache.ddr_bytes=100GiB",
        "model=llama-3.1-8b cluster.preset=a100-sxm-40 workload.seq_len=32768 memory.cache.hbm_bytes=fit loss.seq_chunk=fit",
        "model=llama-3.1-8b cluster.preset=h200-sxm workload.seq_len=32768 memory.cache.hbm_bytes=2GiB memory.cache.ddr_bytes=8GiB "
        "loss.seq_chunk=fit",
    };
    g_autoptr(Session) session = session_new();
    for (size_t i = 0; i < G_N_ELEMENTS(plans); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strconcat(plans[i], " memory.recompute=selective", NULL);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        check_bound(session, plan, plans[i]);
    }
}

/* How the loss is cut changes neither what the layers take at least nor what lives between steps: nodes rest on that. */
static void test_layers(void **state)
{
    (void)state;
    static const char *const cuts[] = {"", " loss.seq_chunk=16", " loss.vocab_chunk=64", " loss.seq_chunk=24 loss.vocab_chunk=100"};
    g_autoptr(Session) session = session_new();
    for (uint64_t seed = 0; seed < PLANS / 3; seed++) {
        Bound first = {0};
        for (size_t i = 0; i < G_N_ELEMENTS(cuts); i++) {
            g_autoptr(GError) error = NULL;
            g_autofree char *words = random_plan_words(seed), *all = g_strconcat(words, cuts[i], NULL);
            g_autoptr(Plan) plan = strstr(words, "loss.") == NULL ? plan_of_words(all, &error) : NULL;
            if (plan == NULL) {
                break;
            }
            Bound bound;
            assert_true(session_bound(session, plan, &bound, &error));
            first = i == 0 ? bound : first;
            check_int(bound.layers_ns, first.layers_ns);
            check_int(bound.layers_bytes, first.layers_bytes);
        }
    }
}

/* What the aspects say of a plan: times and bytes. */
typedef struct Aspects {
    gboolean has[N_SEARCH_ASPECTS];
    int64_t values[N_SEARCH_ASPECTS][2];
} Aspects;

/* Of a drawn plan, reduced; FALSE when it is none. */
static gboolean aspects_of_object(Session *session, json_t *object, Aspects *ret_aspects)
{
    g_autoptr(Plan) plan = plan_from_json(object, "plan", NULL, NULL);
    ShrinkReport report;
    Bound shared, layout = {0};
    if (plan == NULL) {
        return FALSE;
    }
    shrink_plan(plan, &report);
    for (int aspect = 0; aspect < N_SEARCH_ASPECTS; aspect++) {
        ret_aspects->has[aspect] = search_has_aspect((SearchAspect)aspect, plan);
    }
    if (!session_bound_shared(session, plan, &shared, NULL) ||
        (ret_aspects->has[ASPECT_LAYERS] && !session_bound_layers(session, plan, &layout, NULL))) {
        return FALSE;
    }
    ret_aspects->values[ASPECT_ONCE][0] = shared.once_ns;
    ret_aspects->values[ASPECT_SHARDED][0] = shared.sharded_ns;
    ret_aspects->values[ASPECT_LAYERS][0] = layout.layers_ns;
    ret_aspects->values[ASPECT_LAYERS][1] = layout.layers_bytes - layout.static_bytes;
    ret_aspects->values[ASPECT_STATIC][1] = session_static_bytes(session, plan);
    return TRUE;
}

/* Turns one field of a drawn plan; aspects in which it is said to have no say must stay as they are. Returns how many did. */
static int check_field(Session *session, json_t *object, const Aspects *before, const DrawField *field, uint64_t seed)
{
    g_autoptr(json_t) turned = json_deep_copy(object);
    g_autofree char *word = draw_choice(field, seed);
    Aspects now = {0};
    int n = 0;
    if (word[0] == '\0' || word[0] == 'x' || !cases_set(turned, field->path, cases_cell_value(field->path, word, NULL), NULL) ||
        !aspects_of_object(session, turned, &now)) {
        return 0;
    }
    for (int aspect = 0; aspect < N_SEARCH_ASPECTS; aspect++) {
        if (!search_is_free((SearchAspect)aspect, field->path) || !before->has[aspect] || !now.has[aspect]) {
            continue;
        }
        n++;
        for (int part = 0; part < 2; part++) {
            int64_t want = before->values[aspect][part], have = now.values[aspect][part];
            if (have != want) {
                char *text = json_dumps(object, JSON_COMPACT);
                print_error("%s=%s: aspect %d goes from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT ": %s\n", field->path, word, aspect, want,
                            have, text);
                free(text);
                fail();
            }
        }
    }
    return n;
}

static gboolean is_free_somewhere(const char *path)
{
    gboolean is_free = FALSE;
    for (int aspect = 0; aspect < N_SEARCH_ASPECTS; aspect++) {
        is_free = is_free || search_is_free((SearchAspect)aspect, path);
    }
    return is_free;
}

/* Classes of nodes rest on that: fields without a say change nothing in what an aspect is about. */
static void test_free_fields(void **state)
{
    (void)state;
    g_autoptr(Session) session = session_new();
    int n = 0;
    for (uint64_t seed = 1; seed <= FREE_PLANS; seed++) {
        g_autoptr(json_t) object = draw_plan(seed, NULL);
        Aspects before = {0};
        assert_true(aspects_of_object(session, object, &before));
        for (int f = 0; f < draw_n_fields(); f++) {
            const DrawField *field = draw_field(f);
            for (uint64_t k = 0; k < 2 && is_free_somewhere(field->path); k++) {
                n += check_field(session, object, &before, field, 1000 * k + seed);
            }
        }
    }
    assert_true(n > FREE_PLANS);
}

/* ---- searches ---- */

/* Axes to draw spaces from. */
static const char *const axes[] = {
    "\"parallel.ep\": [1, 2, 3, 4, 8]",
    "\"parallel.dp_replicate\": [1, 2, 16]",
    "\"workload.micro_batch\": [1, 2]",
    "\"workload.seq_len\": [64, 256, 131072]",
    "\"memory.recompute\": [\"none\", \"selective\", \"full\"]",
    "\"parallel.fsdp.prefetch\": [\"implicit\", \"explicit\"]",
    "\"parallel.fsdp.reshard_after_forward\": [true, false]",
    "\"loss.seq_chunk\": [0, 32, 100]",
    "\"loss.vocab_chunk\": [0, 64, 1000]",
    "\"workload.global_batch\": [16, 32, 48]",
    "\"kernels\": [\"fused\", \"eager\"]",
    "\"optimizer.moments\": [null, \"fp32\", \"bf16\"]",
    "\"optimizer.kind\": [\"adamw\", \"muon\"]",
    "\"optimizer.offload\": [false, true]",
    "\"precision.reduce\": [\"fp32\", \"bf16\"]",
    "\"moe.capacity_factor\": [null, 0.5, 1.25]",
    "\"workload.routing\": [null, {\"kind\": \"zipf\", \"exponent\": 1}]",
    "\"memory\": [{\"recompute\": \"none\"}, {\"recompute\": \"selective\", \"cache\": {\"hbm_bytes\": \"2 MB\", \"ddr_bytes\": 0}},"
    " {\"recompute\": \"selective\", \"cache\": {\"hbm_bytes\": 0, \"ddr_bytes\": \"8 MB\"}}]",
};

static const char *const goals[] = {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "useful_tokens_per_s_per_gpu",
                                    "tflops_per_gpu", "mfu", "peak_memory_bytes"};

/* Two axes of memory would set the same field. */
static gboolean clashes(uint64_t a, const gboolean *taken)
{
    gboolean clash = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(axes); i++) {
        clash = clash || (taken[i] && g_str_has_prefix(axes[a], "\"memory") && g_str_has_prefix(axes[i], "\"memory"));
    }
    return clash;
}

/* A sweep of three or four axes; a model that does not fit everywhere when it is asked for long sequences. */
static Sweep *draw_space(uint64_t seed, json_t *schema)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) grid = g_string_new(NULL);
    gboolean taken[G_N_ELEMENTS(axes)] = {FALSE};
    uint64_t n = 3 + rng_below(seed, RNG_TEST, 0, 2);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t a = rng_below(seed, RNG_TEST, 1 + i, G_N_ELEMENTS(axes));
        while (taken[a] || clashes(a, taken)) {
            a = (a + 1) % G_N_ELEMENTS(axes);
        }
        taken[a] = TRUE;
        g_string_append_printf(grid, "%s%s", i > 0 ? ", " : "", axes[a]);
    }
    g_autofree char *text = g_strdup_printf(
        "{\"base\": {\"model\": {\"config\": \"%s\", \"overrides\": {\"num_hidden_layers\": %d}}, \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 2, \"gpus_per_node\": 8},"
        " \"workload\": {\"seq_len\": 128}}, \"grid\": {%s}, \"objective\": \"%s\"%s}",
        seed % 3 == 0 ? "olmoe-1b-7b" : "kimi-k3-mini", seed % 3 == 0 ? 2 : 4, grid->str, goals[seed % G_N_ELEMENTS(goals)],
        seed % 4 == 0 ? ", \"constraints\": [\"parallel.ep * 2 <= ranks\"]" : "");
    Sweep *sweep = sweep_parse(text, "s.json", schema, &error);
    check_no_error(error);
    return sweep;
}

static int by_objective(const void *a, const void *b)
{
    const SearchBest *x = a, *y = b;
    if (x->objective < y->objective || x->objective > y->objective) {
        return x->objective < y->objective ? -1 : 1;
    }
    return x->point < y->point ? -1 : 1;
}

/* The best points by evaluating all. */
static GArray *exhaust(const Sweep *sweep, guint n_best)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(SearchBest));
    g_autoptr(SweepWorker) worker = sweep_worker_new(sweep);
    double sign = sweep->objective.maximize ? -1 : 1;
    for (int64_t point = 0; point < sweep->n_points; point++) {
        SweepOutcome outcome;
        sweep_evaluate(worker, point, &outcome);
        if (outcome.status == SWEEP_OK) {
            g_autoptr(json_t) object = result_to_json(outcome.result);
            SearchBest entry = {point, sign * result_number_at(object, sweep->objective.path)};
            g_array_append_val(all, entry);
        }
        sweep_outcome_clear(&outcome);
    }
    g_array_sort(all, by_objective);
    g_array_set_size(all, MIN(all->len, n_best));
    for (guint i = 0; i < all->len; i++) {
        g_array_index(all, SearchBest, i).objective *= sign;
    }
    return all;
}

static gboolean never(const SearchProgress *progress, void *data)
{
    (void)data;
    assert_true(progress->n_open >= 0 && progress->n_open <= progress->n_layouts);
    return FALSE;
}

static void check_search(const Sweep *sweep, const GArray *want, int n_threads, int64_t *n_spared)
{
    g_autoptr(GError) error = NULL;
    SearchResult result;
    SearchOptions options = {n_threads, 5, never, NULL};
    assert_true(search_run(sweep, &options, &result, &error));
    check_no_error(error);
    assert_true(result.is_proven);
    check_int(result.best->len, want->len);
    for (guint i = 0; i < want->len; i++) {
        const SearchBest *have = &g_array_index(result.best, SearchBest, i), *wanted = &g_array_index(want, SearchBest, i);
        check_int(have->point, wanted->point);
        check_close(have->objective, wanted->objective, 0);
    }
    *n_spared += sweep->n_points - result.n_evaluated;
    search_result_clear(&result);
}

static void test_search(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = plan_schema();
    int64_t n_spared = 0;
    for (uint64_t seed = 0; seed < SPACES; seed++) {
        g_autoptr(Sweep) sweep = draw_space(seed, schema);
        g_autoptr(GArray) want = exhaust(sweep, 5);
        check_search(sweep, want, 1, &n_spared);
        check_search(sweep, want, 3, &n_spared);
    }
    assert_true(n_spared > 0);
}

/* Stops before it has started, as it starts, or once something was run. */
static gboolean at_once(const SearchProgress *progress, void *data)
{
    const int *when = data;
    return *when == 0 ? TRUE : *when == 1 ? progress->is_started : progress->n_evaluated > 0;
}

/* Stopped, it says that nothing is proven, or of what it is: what it found lies within the bound of what it left. */
static void test_stop(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = plan_schema();
    g_autoptr(Sweep) sweep = draw_space(1, schema);
    for (int when = 0; when < 3; when++) {
        g_autoptr(GError) error = NULL;
        SearchResult result;
        SearchOptions options = {2, 1, at_once, &when};
        assert_true(search_run(sweep, &options, &result, &error));
        assert_true(when == 2 || !result.is_proven);
        check_int(isnan(result.unvisited) ? 1 : 0, when < 2 || result.is_proven ? 1 : 0);
        search_result_clear(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_tight),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_free_fields),
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
