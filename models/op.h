/*
 * Operators: what a model computes, one class per file in models/ops, one line each in ops.def.
 *
 * A class says four things of its operator, and nothing about it is said elsewhere:
 *  - cost: the kernels of its forward and backward pass (FLOPs, bytes, launches), fused as one kernel or
 *    eager as the chain of framework operators;
 *  - saved: what stays in memory between forward and backward;
 *  - values: reference kernels, forward and backward, in float64 and float32;
 *  - samples: small graphs on which table tests compare all of these with one another.
 *
 * Rule for FLOPs: a multiply-add counts 2, every other arithmetic operation on a number (add, multiply,
 * divide, max, exp, log, tanh, sigmoid, sqrt, rsqrt) counts 1, comparisons for selection, copies, casts and
 * integer work count 0. A formula counts what the operator's algorithm does, causal pairs only.
 *
 * Rule for kept bytes: an operator keeps the inputs and outputs that its derivative needs, as masks, and
 * auxiliary tensors of its own. A tensor kept by several operators is held once.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "models/graph.h"
#include "models/tensor.h"
#include "sim/base/work.h"

typedef enum OpKind {
#define OP(id, title) OP_##id,
#include "models/ops.def"
#undef OP
    N_OPS
} OpKind;

/* Collective that an operator stands for; the lowering turns it into an instruction. */
typedef enum OpCollective {
    OP_COLLECTIVE_NONE,
    OP_COLLECTIVE_ALL_TO_ALL,
    OP_COLLECTIVE_ALL_REDUCE, /* output 0, summed over all ranks once it is made */
} OpCollective;

/* Groups that memory.keep names. */
typedef enum OpKeep { OP_KEEP_NONE, OP_KEEP_MATMUL, OP_KEEP_GROUPED_MATMUL, OP_KEEP_ATTENTION, OP_KEEP_ALL_TO_ALL, N_OP_KEEPS } OpKeep;

enum { OP_AUX_MAX = 16, OP_WORKS_MAX = 48 };

/* One operator of a graph. */
struct Op {
    OpKind kind;
    char name[GRAPH_NAME_MAX]; /* "self_attn.q_proj" */
    int inputs[OP_INPUTS_MAX]; /* tensors; -1 = optional input that is absent */
    int outputs[OP_OUTPUTS_MAX];
    int params[OP_PARAMS_MAX]; /* parameters; -1 = absent */
    int n_inputs, n_outputs, n_params;
    guint32 detached;     /* inputs through which no gradient flows here, beside those of the class */
    gboolean fp8;         /* a product whose operands are FP8 codes (models/fp8.h) */
    gboolean fp8_codes;   /* and those of its weight are there before it runs */
    gboolean eager;       /* priced as the chain of framework operators, not as one kernel */
    int chunk;            /* of tokens, from 1; 0 = none: its row spaces are the chunk's (graph.h) */
    const void *attr;     /* the class's own attributes (declared in models/ops/<op>.h), owned by the graph */
};

/* An operator together with what sizes it. */
typedef struct OpView {
    const Graph *graph;
    const Op *op;
    const RowCounts *rows;
} OpView;

/* Auxiliary tensor that an operator allocates in forward and keeps for its backward. */
typedef struct OpAux {
    RowSpace rows;
    int64_t width;
    Dtype dtype;
} OpAux;

/* What stays for backward. Bit i of a mask = input or output i. */
typedef struct OpSaved {
    guint32 inputs;
    guint32 outputs;
    guint32 copied_outputs; /* outputs that a last kernel copies from auxiliary tensors, in their order: a cache of
                               results holds those */
    guint32
        idle_aux; /* auxiliary tensors that the framework keeps though the value kernels' derivatives read none of it */
    int n_aux;
    OpAux aux[OP_AUX_MAX];
} OpSaved;

/* Kernels of one pass, in launch order. */
typedef struct OpCost {
    int n_works;
    Work works[OP_WORKS_MAX];
    int n_works_to_save;     /* forward: works until the last tensor to keep is made; 0 = all (recomputation stops there) */
    int64_t workspace_bytes; /* most that is allocated at once beyond inputs, outputs, kept tensors and gradients */
    int n_host_syncs;        /* times the host waits for the device */
    int n_host_ops;          /* operators' worth of host time beyond the works: a library call that issues many kernels */
    /*
     * Of the FLOPs of compute-bound kernels: arithmetic on single numbers of attention (softmax, relu). Model FLOPs, which
     * utilisation is a share of, leave it out by convention; time does not.
     */
    double pointwise_flops;
} OpCost;

/* Counters of an instrumented run; filled by the value kernels. */
typedef struct OpCounter {
    double flops;
    int64_t read_bytes;
    int64_t write_bytes;
    int64_t workspace_bytes; /* most that was allocated at once beside inputs, outputs, kept tensors and gradients */
} OpCounter;

/*
 * One run of a value kernel. Tensors have the rows of the view; optional ones are NULL. Forward writes out
 * and aux; backward reads what `saved` names (other entries of in and out are NULL), and writes every non-NULL din
 * and dparam (overwrites, does not accumulate). A dout is NULL where no gradient arrived: treat as zero.
 */
typedef struct OpRun {
    const OpView *view;
    const Tensor *in[OP_INPUTS_MAX];
    const Tensor *param[OP_PARAMS_MAX];
    Tensor *out[OP_OUTPUTS_MAX];
    Tensor *aux[OP_AUX_MAX];
    const Tensor *dout[OP_OUTPUTS_MAX];
    Tensor *din[OP_INPUTS_MAX];
    Tensor *dparam[OP_PARAMS_MAX];
    OpCounter *counter; /* NULL: not counted */
} OpRun;

/* A value kernel. FALSE and an error for data it cannot take (a label out of range, NaN where forbidden). */
typedef gboolean (*OpKernel)(const OpRun *run, GError **error);

/* Precisions in which value kernels exist. */
typedef enum OpReal { OP_REAL_F64, OP_REAL_F32, N_OP_REALS } OpReal;

typedef struct OpClass {
    const char *id;    /* "rmsnorm", set from ops.def */
    const char *title; /* "RMSNorm" */
    OpCollective collective;
    gboolean to_experts; /* with a collective: the rows go to their experts, not back */
    OpKeep keep;
    gboolean is_loss;     /* auxiliary tensors and workspace are reported as logits */
    gboolean views_input; /* the outputs are parts of input 0 and take no memory of their own */
    int counts_output;    /* value runs: 1 + the output that counts the slots of each expert (a router's); 0 = none */
    int64_t (*padded_slots)(const OpView *view); /* with counts_output: slots that each expert has whatever is counted, or 0 */
    guint32 no_grad_inputs;  /* inputs through which no gradient flows (indices, labels, detached) */
    guint32 no_grad_outputs; /* outputs that carry none (indices, counts) */

    void (*saved)(const OpView *view, OpSaved *ret_saved);
    void (*forward_cost)(const OpView *view, OpCost *ret_cost);
    /* Only what is needed: input gradients by op_needs_input_grad, weight gradients by op_trains_param. */
    void (*backward_cost)(const OpView *view, OpCost *ret_cost);

    OpKernel forward[N_OP_REALS];
    OpKernel backward[N_OP_REALS];

    /*
     * Sample graphs: adds inputs, the operator and outputs to an empty graph; fills rows. FALSE past the last.
     * Table tests run them in a float64 graph (compute type fp64, every tensor of a real type made fp64), in which an
     * element of any type has 8 bytes; so bytes of the fused formula and of op_count() can be compared exactly.
     */
    gboolean (*sample)(int idx, Graph *graph, RowCounts *rows);
    /*
     * Sets what random numbers cannot be in a sample: indices, labels, scores without ties. Real inputs and
     * parameters come filled with normal numbers, integers with 0; absent ones are NULL. NULL: nothing to set.
     */
    void (*sample_fill)(int idx, const OpView *view, Tensor *const *in, Tensor *const *param);
} OpClass;

/* The class of a kind. */
const OpClass *op_class(OpKind kind);

/* Kind of that id ("rmsnorm"), or FALSE. */
gboolean op_kind_from_id(const char *id, OpKind *ret_kind);

/*
 * Appends an operator to a graph; attr (attr_size bytes, may be NULL and 0) is copied. Inputs, outputs and
 * parameters are set through the returned pointer, which is valid until the next operator is added.
 */
Op *op_add(Graph *graph, OpKind kind, const char *name, const void *attr, size_t attr_size);
void op_input(Op *op, int tensor);
void op_output(Graph *graph, Op *op, int tensor);
void op_param(Graph *graph, Op *op, int param);

/* Views: the i-th input, output or parameter, its rows and elements. Spaces are those of the operator's chunk. */
const GraphTensor *op_in(const OpView *view, int i);
const GraphTensor *op_out(const OpView *view, int i);
const GraphParam *op_weight(const OpView *view, int i);
int64_t op_rows(const OpView *view, RowSpace space);

/* Rows of the local experts, or NULL = even. */
const int64_t *op_expert_rows(const OpView *view);
int64_t op_in_bytes(const OpView *view, int i);
int64_t op_out_bytes(const OpView *view, int i);

/* Bytes of one element of input i; of parameter i as kernels read it, whole. */
int64_t op_in_elem_bytes(const OpView *view, int i);
int64_t op_weight_bytes(const OpView *view, int i);

/* Class of the operator that makes input i and whether it is priced as a chain: N_OPS for an input of the graph. */
OpKind op_in_maker(const OpView *view, int i, gboolean *ret_eager);

/* Whether backward has to make that gradient. */
gboolean op_needs_input_grad(const OpView *view, int i);
gboolean op_trains_param(const OpView *view, int i);

/* Slots after a value run of an operator with counts_output: the sum of its counts, or all padded ones. */
int64_t op_counted_slots(const OpView *view, const Tensor *counts);

/* Whether backward runs at all: any gradient is needed. */
gboolean op_has_backward(const OpView *view);

/* The part of its tokens that an operator works on, from 0: its chunk, or all of them. */
static inline int op_part(const Op *op)
{
    return op->chunk > 0 ? op->chunk - 1 : 0;
}

/* Appends kernels to a cost. Returned pointers allow details (group_rows, n_launches) to be set. */
Work *op_cost_stream(OpCost *cost, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes);
Work *op_cost_gemm(OpCost *cost, WorkLaw law, Dtype dtype, int64_t m, int64_t n, int64_t k);

/* Sum over the kernels of a cost, launches counted. */
double op_cost_flops(const OpCost *cost);
int64_t op_cost_bytes(const OpCost *cost);
int op_cost_launches(const OpCost *cost);

/* Appends an auxiliary tensor; returns its index. */
int op_saved_aux(OpSaved *saved, RowSpace rows, int64_t width, Dtype dtype);
int64_t op_aux_bytes(const OpAux *aux, const RowCounts *rows);

/* Adds to a run's counters (nothing when it has none): elements of any type, 8 bytes each. */
void op_count(const OpRun *run, double flops, int64_t read_elems, int64_t write_elems);

/* The same in bytes, for operators whose tensors have several types. */
void op_count_bytes(const OpRun *run, double flops, int64_t read_bytes, int64_t write_bytes);
