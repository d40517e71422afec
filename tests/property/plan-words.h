/* Plans from words: what tests write in one line. */
#pragma once

#include "tests/check.h"

#include "workloads/cases.h"
#include "workloads/plan/plan.h"

/* Fields of a plan as "path=value" words; a value is what a cell of a case table may hold. */
static inline json_t *value_of_words(const char *fields)
{
    g_autoptr(GError) error = NULL;
    json_t *value = json_object();
    g_auto(GStrv) words = g_strsplit(fields, " ", -1);
    for (char **word = words; *word != NULL; word++) {
        char *equals = strchr(*word, '=');
        if (equals == NULL) {
            continue;
        }
        *equals = '\0';
        json_t *cell = cases_cell_value(*word, equals + 1, &error);
        check_no_error(error);
        assert_non_null(cell);
        assert_true(cases_set(value, *word, cell, &error));
    }
    return value;
}

static inline Plan *plan_of_words(const char *fields, GError **error)
{
    g_autoptr(json_t) value = value_of_words(fields);
    return plan_from_json(value, "plan", NULL, error);
}
