/*
 * Exchange: what moving rows to the ranks of their experts and back costs, by the library that does it.
 *
 * A stack is a library of such kernels with its measured parameters: which share of the scale-up port and of the NIC it
 * reaches, and its fixed time. Some move a row once for every expert that it goes to; others once to each rank, and over
 * the NIC once to each scale-up domain, where it is handed on (a deduplicated dispatch; on the way back rows are added up
 * where they meet). Which bytes a rank moves is the caller's to count. Both levels run at once: the slower one counts.
 */
#pragma once

#include "hw/cluster.h"

typedef struct ExchangeStack {
    char *name, *title;
    gboolean once_per_rank; /* a row goes once to each rank and domain, not once for each expert */
    double scale_up_frac, scale_out_frac;
    double combine_frac; /* rate of the way back over that of the way there */
    SimTime fixed_ns;
} ExchangeStack;

/* Bytes of the busiest rank in one direction. */
typedef struct ExchangeBytes {
    double inside, outside; /* over the scale-up port, over the NIC */
} ExchangeBytes;

/* A shipped stack by name, or an error that names the nearest. */
ExchangeStack *exchange_stack_load(const char *name, GError **error);
void exchange_stack_free(ExchangeStack *stack);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExchangeStack, exchange_stack_free)

/* Names of the shipped stacks, sorted, NULL-terminated; free with g_strfreev. */
char **exchange_stack_names(void);

/* Seconds of one exchange; is_combine: the way back. */
double exchange_seconds(const Cluster *cluster, const ExchangeStack *stack, const ExchangeBytes *bytes, gboolean is_combine);
