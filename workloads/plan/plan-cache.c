#include "workloads/plan/plan-cache.h"

struct PlanCache {
    GHashTable *models, *clusters; /* by what they were loaded from; for look-up alone */
    PlanDrafts *drafts;
};

static void forget_model(void *model)
{
    model_free(model);
}

static void forget_cluster(void *cluster)
{
    cluster_free(cluster);
}

PlanCache *plan_cache_new(void)
{
    PlanCache *cache = g_new0(PlanCache, 1);
    cache->models = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, forget_model);
    cache->clusters = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, forget_cluster);
    return cache;
}

void plan_cache_free(PlanCache *cache)
{
    if (cache != NULL) {
        g_hash_table_unref(cache->models);
        g_hash_table_unref(cache->clusters);
        plan_drafts_free(cache->drafts);
        g_free(cache);
    }
}

PlanDrafts *plan_cache_drafts(PlanCache *cache, guint n_parts)
{
    if (cache->drafts == NULL) {
        cache->drafts = plan_drafts_new(n_parts);
    }
    return cache->drafts;
}

/* So many models or clusters are no longer a few that all plans share: memory stays flat. */
static void make_room(GHashTable *table)
{
    enum { LOADED_MAX = 256 };
    if (g_hash_table_size(table) >= LOADED_MAX) {
        g_hash_table_remove_all(table);
    }
}

Model *plan_cache_model(PlanCache *cache, const char *path, json_t *overrides, GError **error)
{
    if (cache == NULL) {
        return model_load(path, overrides, error);
    }
    char *text = overrides != NULL ? json_dumps(overrides, JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    g_autofree char *key = g_strdup_printf("%s\n%s", path, text != NULL ? text : "");
    free(text);
    Model *model = g_hash_table_lookup(cache->models, key);
    if (model == NULL) {
        model = model_load(path, overrides, error);
        if (model == NULL) {
            return NULL;
        }
        make_room(cache->models);
        g_hash_table_insert(cache->models, g_steal_pointer(&key), model);
    }
    return model_ref(model);
}

Cluster *plan_cache_cluster(PlanCache *cache, const char *path, int64_t n_nodes, int64_t gpus_per_node, GError **error)
{
    if (cache == NULL) {
        return cluster_load(path, n_nodes, gpus_per_node, error);
    }
    g_autofree char *key = g_strdup_printf("%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " %s", n_nodes, gpus_per_node, path);
    Cluster *cluster = g_hash_table_lookup(cache->clusters, key);
    if (cluster == NULL) {
        cluster = cluster_load(path, n_nodes, gpus_per_node, error);
        if (cluster == NULL) {
            return NULL;
        }
        make_room(cache->clusters);
        g_hash_table_insert(cache->clusters, g_steal_pointer(&key), cluster);
    }
    return cluster_ref(cluster);
}
