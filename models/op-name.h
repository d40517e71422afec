/*
 * Names of the tensors and parameters of an operator: "<operator>.<part>".
 */
#pragma once

#include <glib.h>

#include "models/graph.h"

typedef struct OpName {
    char text[GRAPH_NAME_MAX];
} OpName;

/* The joined name; longer ones are cut. */
static inline OpName op_name(const char *op, const char *part)
{
    OpName name;
    g_snprintf(name.text, sizeof name.text, "%s.%s", op, part);
    return name;
}
