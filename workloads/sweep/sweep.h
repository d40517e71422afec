/*
 * Sweep: many plans in one file, as the user asks for them, checked.
 *
 * A sweep is a base plan and axes. An axis has values, and each value sets one field of the plan or several (fields that
 * are linked, points of a list). The points of the sweep are all combinations, the last axis running fastest; a point is
 * known by its index alone, 0 … n_points − 1. Constraints leave points out.
 *
 * File (all but base and one axis may be left out):
 *     base         a plan object, or the path of a plan
 *     presets      names of ready-made axes (see presets/)
 *     grid         {"parallel.ep": VALUES, …}: one axis each
 *     linked       [{"cluster.nodes": VALUES, "workload.global_batch": VALUES}, …]: one axis each, its fields side by side
 *     list         [{"parallel.ep": 8, "loss.seq_chunk": 1024}, …]: one axis, a value each; what is not named keeps the base's
 *     constraints  ["parallel.ep * 2 <= ranks", …], see sim/base/expression.h and sweep-names.h
 *     objective, pareto, top, columns
 * VALUES is a list, or a range; a list may hold ranges. null leaves a field as the base has it, or at its default.
 *     {"from": 1024, "to": 8192, "step": 1024}   {"from": 1, "to": 64, "factor": 2}   {"divisors": 896, "from": 2, "to": 64}
 * Ends of ranges may be expressions over the base: {"divisors": "experts", "to": "ranks"}.
 *
 * Paths in base are relative to the file that base stands in, paths elsewhere to the sweep file.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "sim/base/expression.h"
#include "sim/base/json-doc.h"

typedef struct SweepField {
    char *path;  /* "parallel.ep" */
    guint axis;  /* whose values set it */
    guint place; /* which of the axis's fields */
} SweepField;

typedef struct SweepAxis {
    guint first_field, n_fields;
    json_t *values; /* array [value][field of the axis]; null = not set */
    int64_t n_values;
} SweepAxis;

/* Which way a result is better. */
typedef struct SweepGoal {
    char *path; /* result path */
    gboolean maximize;
} SweepGoal;

typedef struct Sweep {
    char *name;       /* file, for messages */
    JsonDoc *doc;     /* what it was read from, for messages */
    char *dir;        /* paths in grid, linked and list are relative to it */
    char *base_dir;   /* paths in base are relative to it */
    json_t *base;     /* plan object */
    json_t *defaults; /* plan object: the default of every field that has a fixed one */
    GArray *fields;   /* SweepField, in the order of the output's columns */
    GArray *axes;     /* SweepAxis */
    int64_t n_points;
    GPtrArray *constraints; /* Expression */
    SweepGoal objective;
    GArray *pareto;     /* SweepGoal */
    int64_t top;        /* rows in the report */
    GPtrArray *columns; /* char *: further result paths in the output */
} Sweep;

/*
 * Reads a sweep file. plan_schema is the JSON Schema of plans: swept fields must be in it, and defaults are taken from it.
 */
Sweep *sweep_load(const char *path, json_t *plan_schema, GError **error);

/* The same from a text; name is for messages and paths. */
Sweep *sweep_parse(const char *text, const char *name, json_t *plan_schema, GError **error);
void sweep_free(Sweep *sweep);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Sweep, sweep_free)

/* Fails at a member of the sweep's file, or at an item of it (from 0; -1 = the member): printf form. */
void sweep_fail(const Sweep *sweep, const char *key, int item, GError **error, const char *format, ...) G_GNUC_PRINTF(5, 6);

/* Value of a field at a point (borrowed; null = not set). */
json_t *sweep_value(const Sweep *sweep, int64_t point, guint field);

/* The point's plan object; new reference. NULL and an error (no place) when its fields contradict one another. */
json_t *sweep_plan(const Sweep *sweep, int64_t point, GError **error);

/* Sets a field of a plan object to its value at the point, unless that is null. Errors as of sweep_plan(). */
gboolean sweep_set_field(const Sweep *sweep, int64_t point, guint field, json_t *plan, GError **error);

/*
 * Plan objects of one point after the other. sweep_plans_get() gives what sweep_plan() gives, borrowed until the next call;
 * members that no axis turned since the last point are the same values as before (what session_plan() goes by).
 */
typedef struct SweepPlans SweepPlans;
SweepPlans *sweep_plans_new(const Sweep *sweep);
void sweep_plans_free(SweepPlans *plans);
json_t *sweep_plans_get(SweepPlans *plans, int64_t point, GError **error);

/* How a value is written in a cell, so that it reads back as the same value: a JSON scalar, a bare word, a list of words
 * between blanks. NULL for null; caller frees. */
char *sweep_cell(const char *path, json_t *value);

/* Names of the presets, ended by NULL; caller frees with g_strfreev. */
char **sweep_preset_names(void);

/*
 * What the rows of a sweep depend on, as a checksum: base, axes, constraints, columns, version of the program, and the
 * content of the files named in them. Goals and top are not in it.
 */
char *sweep_fingerprint(const Sweep *sweep);
