/*
 * Execution: one graph run in values, forward and backward, operator by operator.
 *
 * Whoever runs it says when each operator runs; so a single rank runs them all in order, and virtual ranks put
 * exchanges between them, drop tensors early and run parts again. Backward of an operator sees only what the
 * operator says it keeps: its other inputs and outputs are withheld, so a wrong `saved` cannot pass a test.
 *
 * Invariants: (1) an input, a parameter and a value put from outside are borrowed until the execution is freed;
 * (2) the gradient of a tensor is the sum over its consumers, in the order in which their backward ran; (3) real
 * tensors all have the type given at the start.
 */
#pragma once

#include "models/op.h"

typedef struct Execution Execution;

/* An execution of a finished graph on rows (copied); reals are TENSOR_F64 or TENSOR_F32. */
Execution *execute_new(const Graph *graph, const RowCounts *rows, TensorType real);
void execute_free(Execution *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Execution, execute_free)

/* Row counts of this run: a router's forward sets those of its slots. Expert-parallel callers set RECEIVED here. */
RowCounts *execute_rows(Execution *run);

/* Counts FLOPs, bytes and workspace of what follows; NULL = no more. */
void execute_set_counter(Execution *run, OpCounter *counter);

/* Hands in a value (borrowed) of a tensor or of a parameter. */
void execute_put(Execution *run, int tensor, const Tensor *value);
void execute_put_param(Execution *run, int param, const Tensor *value);

/* Adds to the gradient of a tensor (copied). */
void execute_put_grad(Execution *run, int tensor, const Tensor *grad);

/* One operator. Errors name the operator. Backward of an operator without any gradient behind it does nothing. */
gboolean execute_op_forward(Execution *run, int op, GError **error);
gboolean execute_op_backward(Execution *run, int op, GError **error);

/* All operators in order, or in reverse. */
gboolean execute_forward(Execution *run, GError **error);
gboolean execute_backward(Execution *run, GError **error);

/* Borrowed: the value or gradient of a tensor, the gradient of a parameter; NULL if there is none (yet). */
const Tensor *execute_value(const Execution *run, int tensor);
const Tensor *execute_grad(const Execution *run, int tensor);
const Tensor *execute_param_grad(const Execution *run, int param);

/* Frees the value of a tensor, its gradient, or what an operator keeps besides. */
void execute_drop_value(Execution *run, int tensor);
void execute_drop_grad(Execution *run, int tensor);
void execute_drop_aux(Execution *run, int op);

/* An auxiliary tensor that an operator keeps, or NULL. Tests disturb it. */
Tensor *execute_aux(Execution *run, int op, int idx);

/* Elements of all auxiliary tensors that operator keeps at the moment. */
int64_t execute_aux_numel(const Execution *run, int op);

/* Adds `from` to `into` (same type and size). */
void execute_add_to(Tensor *into, const Tensor *from);
