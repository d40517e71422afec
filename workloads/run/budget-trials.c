#include "workloads/run/budget-trials.h"

#include "hw/host-link.h"
#include "workloads/run/budget-search.h"
#include "workloads/run/cache-needs.h"
#include "workloads/run/groups.h"
#include "workloads/run/run-cache.h"
#include "workloads/run/trials.h"

/* Places of the grid; where loads are drawn a trial costs ten times as much. */
static const BudgetSpace even_grid = {.n_hbm = 512, .n_ddr = 48, .stride = 4}, drawn_grid = {.n_hbm = 128, .n_ddr = 24, .stride = 4};

/* What a candidate takes. */
typedef struct Candidate {
    int64_t hbm_budget, ddr_budget; /* at even loads */
    int64_t hbm_bytes, ddr_bytes;   /* what entries take on the rank that holds most */
    guint8 *place;                  /* by entry: Keeping */
} Candidate;

struct BudgetTrials {
    RunCache *cache;
    Plan view; /* of the plan; the chunk of the loss that is being tried */
    int64_t hbm_budget, ddr_budget;
    BudgetSpace space;
    CacheNeeds *needs;
    int64_t hbm_most, ddr_most; /* at the last places; of DDR on the rank that holds most */
    GHashTable *candidates;     /* Candidate by its point: for look-up alone */
    gsize place_bytes;          /* of a place: a multiple of 8, zeros behind the entries */
    GError *error;
};

static const CacheStock *stock_of(const BudgetTrials *trials)
{
    return lower_cache_stock(trials->cache->lowered, &trials->view, lower_cache_graphs(trials->cache->lowered, &trials->view));
}

static int64_t rung(int64_t most, int at, int n)
{
    double part = n > 0 ? (double)at / (double)n : 0;
    return (int64_t)((double)most * part * part);
}

/* What a place's d stands for, on the rank that holds most. */
static int64_t ddr_of(const BudgetTrials *trials, int d)
{
    return rung(trials->ddr_most, d, trials->space.n_ddr);
}

/* What the choice makes of budgets at even loads, and what that takes. */
static void choose(BudgetTrials *trials, Candidate *candidate)
{
    const CacheStock *stock = stock_of(trials);
    const CacheBudget budget = {candidate->hbm_budget, candidate->ddr_budget, trials->view.cache_window};
    cache_choose(&stock->choice, stock->items, &budget, candidate->place);
    cache_needs_of(trials->needs, candidate->place, &candidate->hbm_bytes, &candidate->ddr_bytes);
}

/* As much DDR as keeps the rank that holds most within what the place stands for. */
static void fill_candidate(BudgetTrials *trials, BudgetPoint point, Candidate *candidate)
{
    enum { CUTS = 6 };
    int64_t most = ddr_of(trials, point.ddr), low = 0, high = most;
    candidate->hbm_budget = rung(trials->hbm_most, point.hbm, trials->space.n_hbm);
    candidate->ddr_budget = most;
    choose(trials, candidate);
    if (candidate->ddr_bytes <= most) {
        return;
    }
    for (int i = 0; i < CUTS; i++) {
        candidate->ddr_budget = low + (high - low) / 2;
        choose(trials, candidate);
        *(candidate->ddr_bytes <= most ? &low : &high) = candidate->ddr_budget;
    }
    candidate->ddr_budget = low;
    choose(trials, candidate);
}

static const Candidate *candidate_at(BudgetTrials *trials, BudgetPoint point)
{
    gpointer key = GINT_TO_POINTER(1 + point.ddr * (trials->space.n_hbm + 1) + point.hbm);
    Candidate *candidate = g_hash_table_lookup(trials->candidates, key);
    if (candidate == NULL) {
        candidate = g_new0(Candidate, 1);
        candidate->place = g_malloc0(trials->place_bytes);
        fill_candidate(trials, point, candidate);
        g_hash_table_insert(trials->candidates, key, candidate);
    }
    return candidate;
}

static void set_budgets(const Candidate *candidate, Plan *view)
{
    view->cache_hbm_bytes = candidate->hbm_budget;
    view->cache_ddr_bytes = candidate->ddr_budget;
}

static gboolean admits(void *self, BudgetPoint point)
{
    BudgetTrials *trials = self;
    return candidate_at(trials, point)->hbm_bytes <= trials->hbm_budget;
}

static gboolean measure(void *self, BudgetPoint point, double *ret_s, gboolean *ret_has_room)
{
    BudgetTrials *trials = self;
    const Candidate *candidate = candidate_at(trials, point);
    TrialShown shown = *run_cache_trial(trials->cache, &trials->view, candidate->place, trials->place_bytes);
    if (!shown.is_known) {
        Plan view = trials->view;
        set_budgets(candidate, &view);
        g_autoptr(Result) result = run_settled(trials->cache, &view, NULL, &trials->error);
        if (result == NULL) {
            return FALSE;
        }
        shown = (TrialShown){TRUE, result->fits, result->step_time_s};
        *run_cache_trial(trials->cache, &trials->view, candidate->place, trials->place_bytes) = shown;
    }
    *ret_s = shown.step_s;
    *ret_has_room = shown.fits;
    return TRUE;
}

static void candidate_free(void *candidate)
{
    g_free(((Candidate *)candidate)->place);
    g_free(candidate);
}

/* What the fullest rank may come to hold of DDR: where little and where most is in HBM, as much as the link carries. */
static int64_t most_ddr(BudgetTrials *trials)
{
    enum { PLACES = 4 };
    int64_t most = 0, host = host_link_of(trials->view.cluster, FALSE).bytes;
    g_autofree guint8 *place = g_malloc0(trials->place_bytes);
    for (int i = 0; i < PLACES; i++) {
        Candidate candidate = {.hbm_budget = rung(trials->hbm_most, i, PLACES - 1), .ddr_budget = cache_most_ddr(&stock_of(trials)->choice), .place = place};
        choose(trials, &candidate);
        most = MAX(most, candidate.ddr_bytes);
    }
    return host > 0 ? MIN(most, host) : most;
}

BudgetTrials *budget_trials_new(RunCache *cache, const Plan *plan, GError **error)
{
    g_autoptr(GPtrArray) routings = run_groups_routings(cache, plan, error);
    if (routings == NULL) {
        return NULL;
    }
    run_cache_trim_trials(cache);
    BudgetTrials *trials = g_new0(BudgetTrials, 1);
    trials->cache = cache;
    trials->view = *plan;
    trials->view.owner = plan;
    trials->view.cache_fits = trials->view.seq_chunk_fits = FALSE;
    trials->hbm_budget = plan->cache_fits ? G_MAXINT64 : plan->cache_hbm_bytes;
    trials->ddr_budget = plan->cache_ddr_bytes;
    trials->space = routings->len > 0 ? drawn_grid : even_grid;
    trials->space.admits = admits;
    trials->space.measure = measure;
    trials->space.self = trials;
    const CacheStock *stock = stock_of(trials);
    trials->hbm_most = MIN(cache_most_kept(&stock->choice), plan->cluster->device->usable_bytes);
    trials->place_bytes = (stock->items->len + 7) / 8 * 8;
    trials->needs = cache_needs_new(&trials->view, lower_cache_graphs(cache->lowered, &trials->view), stock, routings);
    trials->candidates = g_hash_table_new_full(NULL, NULL, NULL, candidate_free);
    trials->ddr_most = most_ddr(trials);
    return trials;
}

void budget_trials_free(BudgetTrials *trials)
{
    if (trials != NULL) {
        cache_needs_free(trials->needs);
        g_hash_table_unref(trials->candidates);
        g_clear_error(&trials->error);
        g_free(trials);
    }
}

/* Last place along d that the budget of DDR pays for. */
static int last_ddr(const BudgetTrials *trials)
{
    int d = trials->space.n_ddr;
    while (d > 0 && ddr_of(trials, d) > trials->ddr_budget) {
        d--;
    }
    return d;
}

gboolean budget_trials_find(BudgetTrials *trials, int64_t seq_chunk, double *best_s, Plan *ret_plan, gboolean *ret_found, GError **error)
{
    BudgetPoint point;
    gboolean failed;
    trials->view.seq_chunk = seq_chunk;
    *ret_found = budget_search(&trials->space, last_ddr(trials), *best_s, &point, best_s, &failed);
    if (failed) {
        g_propagate_error(error, g_steal_pointer(&trials->error));
        return FALSE;
    }
    *ret_plan = trials->view;
    set_budgets(candidate_at(trials, *ret_found ? point : (BudgetPoint){0, 0}), ret_plan);
    return TRUE;
}
