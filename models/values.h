/*
 * Values: the numbers of a run's tensors in the precision that a file is compiled for (models/real.h), or NULL where
 * a tensor is absent.
 */
#pragma once

#include "models/op.h"
#include "models/real.h"

static inline const real *values_in(const OpRun *run, int i)
{
    return run->in[i] != NULL ? run->in[i]->data : NULL;
}

static inline const int64_t *values_ids(const OpRun *run, int i)
{
    return run->in[i] != NULL ? run->in[i]->data : NULL;
}

static inline const real *values_param(const OpRun *run, int i)
{
    return run->param[i] != NULL ? run->param[i]->data : NULL;
}

static inline real *values_out(const OpRun *run, int i)
{
    return run->out[i] != NULL ? run->out[i]->data : NULL;
}

static inline real *values_aux(const OpRun *run, int i)
{
    return run->aux[i] != NULL ? run->aux[i]->data : NULL;
}

static inline const real *values_dout(const OpRun *run, int i)
{
    return run->dout[i] != NULL ? run->dout[i]->data : NULL;
}

static inline real *values_din(const OpRun *run, int i)
{
    return run->din[i] != NULL ? run->din[i]->data : NULL;
}

static inline real *values_dparam(const OpRun *run, int i)
{
    return run->dparam[i] != NULL ? run->dparam[i]->data : NULL;
}

/* Rows of input i. */
static inline int64_t values_rows(const OpRun *run, int i)
{
    return run->view->rows->rows[op_in(run->view, i)->rows];
}

/* Sets n numbers to zero; nothing when x is NULL. */
static inline void values_zero(real *x, int64_t n)
{
    for (int64_t i = 0; x != NULL && i < n; i++) {
        x[i] = 0;
    }
}

/* Sets every gradient that a run wants to zero: what backward is when no gradient arrived. */
static inline void values_zero_gradients(const OpRun *run)
{
    for (int i = 0; i < OP_INPUTS_MAX; i++) {
        values_zero(values_din(run, i), run->din[i] != NULL ? tensor_numel(run->din[i]) : 0);
    }
    for (int i = 0; i < OP_PARAMS_MAX; i++) {
        values_zero(values_dparam(run, i), run->dparam[i] != NULL ? tensor_numel(run->dparam[i]) : 0);
    }
}
