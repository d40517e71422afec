#include "workloads/plan/plan-drafts.h"

#include "sim/base/json-read.h"

/* The plan after the part, and what the part was read from. */
typedef struct Draft {
    json_t *value; /* or NULL: it was absent */
    Plan plan;     /* without name and warnings; holds what it points at */
} Draft;

struct PlanDrafts {
    Draft *parts; /* [n_parts], the first n_known of which are known */
    guint n_parts, n_known;
    char *base_dir;
};

PlanDrafts *plan_drafts_new(guint n_parts)
{
    PlanDrafts *drafts = g_new0(PlanDrafts, 1);
    drafts->n_parts = n_parts;
    drafts->parts = g_new0(Draft, n_parts);
    return drafts;
}

static void draft_clear(Draft *draft)
{
    json_decref(draft->value);
    model_free(draft->plan.model);
    cluster_free(draft->plan.cluster);
    g_clear_pointer(&draft->plan.routing_order, g_array_unref);
    json_doc_free(draft->plan.routing_loads);
    *draft = (Draft){0};
}

/* Forgets parts from the n-th on. */
static void forget_from(PlanDrafts *drafts, guint n)
{
    while (drafts->n_known > n) {
        draft_clear(&drafts->parts[--drafts->n_known]);
    }
}

void plan_drafts_free(PlanDrafts *drafts)
{
    if (drafts != NULL) {
        forget_from(drafts, 0);
        g_free(drafts->parts);
        g_free(drafts->base_dir);
        g_free(drafts);
    }
}

/* `to` becomes another owner of everything that `from` points at; its own name and warnings stay. */
static void copy_plan(Plan *to, const Plan *from)
{
    char *name = to->name;
    GPtrArray *warnings = to->warnings;
    *to = *from;
    to->name = name;
    to->warnings = warnings;
    to->model = from->model != NULL ? model_ref(from->model) : NULL;
    to->cluster = from->cluster != NULL ? cluster_ref(from->cluster) : NULL;
    to->routing_order = from->routing_order != NULL ? g_array_ref(from->routing_order) : NULL;
    to->routing_loads = from->routing_loads != NULL ? json_doc_ref(from->routing_loads) : NULL;
}

guint plan_drafts_start(PlanDrafts *drafts, json_t *const *values, const char *base_dir, Plan *plan)
{
    guint same = 0;
    if (g_strcmp0(base_dir, drafts->base_dir) != 0) {
        forget_from(drafts, 0);
        g_free(drafts->base_dir);
        drafts->base_dir = g_strdup(base_dir);
    }
    while (same < drafts->n_known && drafts->parts[same].value == values[same]) {
        same++;
    }
    forget_from(drafts, same);
    if (same > 0) {
        copy_plan(plan, &drafts->parts[same - 1].plan);
    }
    return same;
}

void plan_drafts_note(PlanDrafts *drafts, guint part, json_t *value, const Plan *plan)
{
    g_assert(part == drafts->n_known && part < drafts->n_parts);
    Draft *draft = &drafts->parts[part];
    draft->value = json_incref(value);
    copy_plan(&draft->plan, plan);
    drafts->n_known++;
}
