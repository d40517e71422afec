/*
 * Inside of a run cache (run.h).
 */
#pragma once

#include "sim/base/intern.h"
#include "workloads/lower/lower.h"
#include "workloads/run/ledger.h"
#include "workloads/run/plan-facts.h"
#include "workloads/run/run.h"
#include "workloads/run/step.h"

/* Bytes that stay after the forward passes of the layers. */
typedef struct KeptBytes {
    gboolean is_known;
    double saved;    /* when autograd keeps what it needs */
    double selected; /* when results of memory.keep stay */
} KeptBytes;

typedef struct TrialShown {
    gboolean is_known, fits;
    double step_s;
} TrialShown;

typedef struct TrialMemo {
    Intern *plans, *keys;
    GPtrArray *alive; /* Plan: by number of the interned; equal addresses mean equal things while these live */
    GArray *shown;    /* TrialShown, by key */
} TrialMemo;

struct RunCache {
    LowerCache *lowered;
    StepMemo *steps;
    LedgerMemo *ledgers;
    GHashTable *facts; /* PlanFacts by graphs, which live as long: for look-up alone */
    GPtrArray *routings; /* Routing of each group that was drawn last, or NULL */
    RoutingSpec routings_spec;
    const Plan *routings_plan; /* keeps alive what the spec points at */
    RoutingSpec even_spec; /* of balanced experts that were asked for last, and the load of the fullest over the mean; 0 = none */
    double even_load;
    GArray *kept;      /* KeptBytes by scope of `lowered` */
    TrialMemo trials;
    gboolean verifies;
};

/*
 * What a trial (budget-trials.h) of a plan showed, found again by what makes it: the plan but for its budgets, how the loss is cut, and
 * what is kept where (n_bytes, a multiple of 8). Borrowed until the next call; all zero when it is new, to be filled.
 */
TrialShown *run_cache_trial(RunCache *cache, const Plan *plan, const void *place, size_t n_bytes);

/* Forgets trials if they take too much. Call between searches. */
void run_cache_trim_trials(RunCache *cache);

/* An empty list of groups' loads, which it owns. */
GPtrArray *run_routings_new(void);

/* Loads of n groups of a spec, if they are those that were kept last; else NULL. Borrowed. */
GPtrArray *run_cache_routings(const RunCache *cache, const RoutingSpec *spec, guint n);
void run_cache_keep_routings(RunCache *cache, const Plan *plan, const RoutingSpec *spec, GPtrArray *routings);

/* Facts of graphs that the cache holds; borrowed. */
const PlanFacts *run_cache_facts(RunCache *cache, const Plan *plan, const ModelGraph *graphs);

/* What layers keep without loads, to be filled if it is not known yet; borrowed until the next call. */
KeptBytes *run_cache_kept(RunCache *cache, const Plan *plan);

/* Program of a class of ranks, from the cache (NULL: from scratch). Under verification it is made anew and compared. */
Program *run_cache_lower(RunCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);

/* ledger_run() with the cache's memo, or without a cache. */
gboolean run_cache_ledger(RunCache *cache, const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error);

/* Memory that it takes, as far as it grows with the number of runs. Call between runs. */
size_t run_cache_size_bytes(RunCache *cache);

/*
 * Forgets what it knows of layouts once it takes too much, and everything if that is not enough; nothing of it may be in use.
 * Somewhat more is let pass while the next plan is of a layout that it knows.
 */
void run_cache_trim(RunCache *cache, const Plan *next);
