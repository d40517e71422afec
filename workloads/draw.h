/*
 * Draw: random plans, for proofs and properties.
 *
 * Every field that a plan may have is one line of a table: its path and the values to choose from. A field is drawn by the
 * seed and its own path, so that one more line changes none of the others. A drawn plan is legal by construction: a field
 * that the plan reader refuses beside those before it is left out. Same seed, same plan.
 */
#pragma once

#include "workloads/plan/plan.h"

/* A line of the table. Values stand as in a cell of a case table (workloads/cases.h), between bars; an empty one leaves the
 * field out, and values that come several times come more often. "x3" in workload.global_batch: three passes. */
typedef struct DrawField {
    const char *path;
    const char *values;
} DrawField;

int draw_n_fields(void);
const DrawField *draw_field(int idx);

/* The value that a seed chooses for a field; caller frees. */
char *draw_choice(const DrawField *field, uint64_t seed);

/* The plan of a seed, as an object; new reference. words, if not NULL, receives the value of each field that is in it
 * ([draw_n_fields()], char * or NULL; caller frees with draw_words_free). */
json_t *draw_plan(uint64_t seed, char ***ret_words);
void draw_words_free(char **words);
