#include "workloads/run/peak-time.h"

#include "workloads/run/ledger.h"

enum { OBSERVED_REPEATS = 2 }; /* as many as the ledger walks */

/* The memory of one class, along with its host. */
typedef struct Search {
    LedgerWalk *walk;
    gint32 host_class;
    SimTime begin_ns, peak_ns;
    PeakTime *found;
    GError *error; /* the ledger's first one */
} Search;

static int64_t sum_held(const int64_t *by_tag)
{
    int64_t sum = 0;
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        sum += by_tag[tag];
    }
    return sum;
}

static void on_issued(void *self, const StepSite *site, SimTime host_ns)
{
    Search *search = self;
    search->begin_ns = MIN(search->begin_ns, host_ns);
    if (site->rank_class != search->host_class || search->error != NULL ||
        !ledger_walk_instr(search->walk, (guint)site->call, (guint)site->instr, &search->error)) {
        return;
    }
    int64_t bytes = sum_held(ledger_walk_held(search->walk));
    if (bytes > search->found->bytes) {
        *search->found = (PeakTime){bytes, site->call, site->instr, site->repeat, 0};
        search->peak_ns = host_ns;
    }
}

static void on_ran(void *self, const StepSite *site, SimTime start_ns, SimTime end_ns)
{
    Search *search = self;
    (void)site;
    (void)end_ns;
    search->begin_ns = MIN(search->begin_ns, start_ns);
}

static void on_marked(void *self, gint32 rank_class, Phase phase, SimTime ns)
{
    Search *search = self;
    (void)rank_class;
    (void)phase;
    search->begin_ns = MIN(search->begin_ns, ns);
}

gboolean peak_time_find(const Plan *plan, Program *const *programs, int64_t n_classes, int64_t host_class,
                        const Program *held, PeakTime *ret_time, GError **error)
{
    Search search = {
        .walk = ledger_walk_new(held), .host_class = (gint32)host_class, .begin_ns = G_MAXINT64, .found = ret_time};
    StepObserver observer = {on_issued, on_ran, on_marked, &search};
    StepTimes times;
    *ret_time = (PeakTime){.bytes = sum_held(held->static_bytes), .call = -1, .instr = -1};
    gboolean ok = step_observe(plan, programs, n_classes, OBSERVED_REPEATS, &observer, &times, error);
    ledger_walk_free(search.walk);
    if (search.error != NULL) {
        g_clear_error(error);
        g_propagate_error(error, search.error);
        return FALSE;
    }
    ret_time->seconds = ret_time->call >= 0 ? (double)(search.peak_ns - search.begin_ns) * 1e-9 : 0;
    return ok;
}
