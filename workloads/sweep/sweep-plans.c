#include <string.h>

#include "sim/base/json-read.h"
#include "workloads/sweep/sweep.h"

/* A member of plan objects, and the fields that lie in it. */
typedef struct Part {
    char *key;
    guint *fields;
    guint n_fields;
} Part;

struct SweepPlans {
    const Sweep *sweep;
    json_t *base; /* own copy: other threads have theirs */
    json_t *plan; /* of the last point; NULL = none yet */
    Part *parts;
    guint n_parts;
    int64_t *at; /* [axes]: values of the last point */
};

static Part *part_of(SweepPlans *plans, const char *path)
{
    size_t length = strcspn(path, ".");
    for (guint i = 0; i < plans->n_parts; i++) {
        if (strncmp(plans->parts[i].key, path, length) == 0 && plans->parts[i].key[length] == '\0') {
            return &plans->parts[i];
        }
    }
    Part *part = &plans->parts[plans->n_parts++];
    part->key = g_strndup(path, length);
    part->fields = g_new(guint, plans->sweep->fields->len);
    return part;
}

SweepPlans *sweep_plans_new(const Sweep *sweep)
{
    SweepPlans *plans = g_new0(SweepPlans, 1);
    plans->sweep = sweep;
    plans->base = json_deep_copy(sweep->base);
    plans->parts = g_new0(Part, sweep->fields->len);
    plans->at = g_new0(int64_t, sweep->axes->len);
    for (guint i = 0; i < sweep->fields->len; i++) {
        Part *part = part_of(plans, g_array_index(sweep->fields, SweepField, i).path);
        part->fields[part->n_fields++] = i;
    }
    return plans;
}

void sweep_plans_free(SweepPlans *plans)
{
    if (plans != NULL) {
        for (guint i = 0; i < plans->n_parts; i++) {
            g_free(plans->parts[i].key);
            g_free(plans->parts[i].fields);
        }
        g_free(plans->parts);
        g_free(plans->at);
        json_decref(plans->plan);
        json_decref(plans->base);
        g_free(plans);
    }
}

/* Makes a part of the plan from the base and the point's values. FALSE: they contradict one another. */
static gboolean make_part(SweepPlans *plans, const Part *part, int64_t point)
{
    g_autoptr(json_t) whole = json_object();
    json_t *base = json_object_get(plans->base, part->key);
    if (base != NULL) {
        json_object_set_new(whole, part->key, json_deep_copy(base));
    }
    for (guint i = 0; i < part->n_fields; i++) {
        if (!sweep_set_field(plans->sweep, point, part->fields[i], whole, NULL)) {
            return FALSE;
        }
    }
    json_t *made = json_object_get(whole, part->key);
    if (made != NULL) {
        json_object_set(plans->plan, part->key, made);
    } else {
        json_object_del(plans->plan, part->key);
    }
    return TRUE;
}

/* Whether a value that lies in the part is another one at the point than at the last. */
static gboolean part_turns(const SweepPlans *plans, const Part *part, const int64_t *at)
{
    for (guint i = 0; i < part->n_fields; i++) {
        guint axis = g_array_index(plans->sweep->fields, SweepField, part->fields[i]).axis;
        if (at[axis] != plans->at[axis]) {
            return TRUE;
        }
    }
    return FALSE;
}

json_t *sweep_plans_get(SweepPlans *plans, int64_t point, GError **error)
{
    const Sweep *sweep = plans->sweep;
    g_autofree int64_t *at = g_new(int64_t, sweep->axes->len + 1);
    int64_t rest = point;
    gboolean anew = plans->plan == NULL, ok = TRUE;
    for (guint a = sweep->axes->len; a-- > 0;) {
        int64_t n = g_array_index(sweep->axes, SweepAxis, a).n_values;
        at[a] = rest % n;
        rest /= n;
    }
    if (anew) {
        plans->plan = json_copy(plans->base);
    }
    for (guint i = 0; ok && i < plans->n_parts; i++) {
        ok = (!anew && !part_turns(plans, &plans->parts[i], at)) || make_part(plans, &plans->parts[i], point);
    }
    memcpy(plans->at, at, sweep->axes->len * sizeof *at);
    if (!ok) { /* the whole says which field comes first */
        g_clear_pointer(&plans->plan, json_decref);
        json_decref(sweep_plan(sweep, point, error));
        return NULL;
    }
    return plans->plan;
}
