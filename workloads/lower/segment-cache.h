/*
 * Segment cache: pieces of lowered programs that neighbouring plans have in common.
 *
 * The segments of layers depend on the plan and on nothing else. Two plans whose bytes are equal, but for the fields that
 * layers never see (how the loss is cut, how many micro-batches there are, the budgets of a cache, whose tables their keys name),
 * share them. The whole plan is compared, with
 * those few fields blanked out: a field that plans get later takes part by itself. A plan that stands in the cache is kept
 * alive, so equal addresses in plans mean equal things.
 *
 * Segments in a cache are never changed. A cache serves one thread.
 */
#pragma once

#include "models/block.h"
#include "workloads/lower/cache-stock.h"
#include "workloads/lower/price.h"
#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"

typedef struct LowerCache LowerCache;

LowerCache *lower_cache_new(void);
void lower_cache_free(LowerCache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(LowerCache, lower_cache_free)

/* Memory that layouts take: frames, segments. Call between two lowerings: what is put in is counted when it is whole. */
size_t lower_cache_size_bytes(LowerCache *cache);

/* Forgets them, and numbers scopes anew. */
void lower_cache_forget_layouts(LowerCache *cache);

/* Memory of what many layouts share and what stays: graphs, prices, bodies, numbers of contents (by which bodies are known). */
size_t lower_cache_lasting_bytes(LowerCache *cache);

/* Graphs of a plan's model; they live as long as the cache. */
const ModelGraph *lower_cache_graphs(LowerCache *cache, const Plan *plan);

/* What was priced for a plan's device. */
PriceList *lower_cache_prices(LowerCache *cache, const Plan *plan);

/* Number of what the layers of a plan look like when every rank and expert gets the same rows: equal numbers, equal segments. */
int lower_cache_scope(LowerCache *cache, const Plan *plan);

/* The same of bodies (body.h), which see nothing of shards; numbered for themselves. */
int lower_cache_body_scope(LowerCache *cache, const Plan *plan);

/* Whether a plan's layers have a number. */
gboolean lower_cache_has_scope(const LowerCache *cache, const Plan *plan);

/*
 * What the layers of a plan keep, and what a cache of it could: plans that differ in what layers never see have one of each.
 * Borrowed; they live as long as the cache.
 */
RetentionPlan *lower_cache_retention(LowerCache *cache, const Plan *plan, const ModelGraph *graphs);
const CacheStock *lower_cache_stock(LowerCache *cache, const Plan *plan, const ModelGraph *graphs);

/* The same of what runs for a chunk of the loss, which sees nothing of shards and of what layers keep. */
int lower_cache_loss_scope(LowerCache *cache, const Plan *plan);

/*
 * Frame of a key (lower/frame.h), or NULL; borrowed. put takes it over; n_bytes: the memory that it takes.
 */
enum { FRAME_KEY_WORDS = 3 };
void *lower_cache_frame(const LowerCache *cache, const gint32 *key);
void lower_cache_put_frame(LowerCache *cache, const gint32 *key, void *frame, size_t n_bytes, GDestroyNotify destroy);

/* Number of some bytes (a multiple of 8): equal bytes, equal numbers, whatever plan they are of. */
gint32 lower_cache_number(LowerCache *cache, const void *data, size_t n_bytes);

/* Segment of a key (words) in a scope, or NULL; borrowed. put takes a reference. */
enum { SEGMENT_KEY_WORDS = 13 };
Segment *lower_cache_get(const LowerCache *cache, int scope, const gint32 *key);
void lower_cache_put(LowerCache *cache, int scope, const gint32 *key, Segment *segment);

/* The same of bodies. */
Segment *lower_cache_get_body(const LowerCache *cache, int scope, const gint32 *key);
void lower_cache_put_body(LowerCache *cache, int scope, const gint32 *key, Segment *body);
