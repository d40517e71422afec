/*
 * What a run leaves in a folder: result.json, summary.txt, operators.csv, memory.csv, trace.json.
 *
 * Each file is replaced whole or not at all. result.json is written last: where it is, the others are.
 */
#pragma once

#include "reports/out/table.h"
#include "workloads/plan/plan.h"
#include "workloads/run/record.h"
#include "workloads/run/result.h"

/*
 * Kernels and collectives of the observed class of ranks, one row per place in the program, in program order. Seconds,
 * FLOPs and bytes are sums over the step, all micro-batches counted; seconds are those of a kernel alone. The rows of an
 * operator add up to its entry in the result's time.by_operator.
 */
Table *run_operators_table(const RunRecord *record);

/* Bytes of the rank with the most memory, in all and by tag, after every change. Time begins where the trace begins. */
Table *run_memory_table(const RunRecord *record);

/* Makes the folder when absent; json and summary are the texts of two of its files. */
gboolean run_files_write(const char *dir, const Plan *plan, const Result *result, const char *json, const char *summary,
                         GError **error);
