/*
 * Work: what one kernel asks of a device. Operators write it, hardware laws price it; neither knows the
 * other, so the vocabulary lives here, below both.
 *
 * FLOPs count a multiply-add as two. Bytes are those that the kernel's algorithm moves to and from device
 * memory when nothing stays in cache between kernels.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/dtype.h"

typedef enum WorkLaw {
#define WORK(id, name, group) WORK_##id,
#include "sim/base/work.def"
#undef WORK
    N_WORK_LAWS
} WorkLaw;

typedef enum WorkGroup { WORK_GROUP_COMPUTE, WORK_GROUP_STREAM } WorkGroup;

typedef struct Work {
    WorkLaw law;
    Dtype dtype;         /* of the operands */
    double flops;        /* of one launch */
    double repeated_flops; /* part of them that makes again what forward had made: no work of the model */
    int64_t read_bytes;  /* of one launch */
    int64_t write_bytes; /* of one launch */
    /*
     * Shape, as far as the law needs it. GEMM: C[m,n] with inner size k. Grouped GEMM: m = rows over all
     * groups, n, k, n_groups, and group_rows[n_groups] (borrowed) or NULL for an even split; for the weight
     * gradient m and n are the sizes of one group's result and k the rows over all groups. Attention, KDA and
     * scans: m = tokens, n = heads, k = head size of q and k, n_groups = sequences. Row-wise laws: m = rows, n = width.
     * Sort, top-k: m = rows, n = row length, k = how many are wanted. Gather: k = different source rows, 0 = all of them.
     */
    int64_t m, n, k;
    int64_t n_groups;
    const int64_t *group_rows;
    int n_launches; /* equal launches, at least 1 */
} Work;

/* Name of a law as descriptors write it; its group. */
const char *work_law_name(WorkLaw law);
WorkGroup work_law_group(WorkLaw law);
gboolean work_law_from_name(const char *name, WorkLaw *ret_law);
