#include "models/optim/adamw.h"

#include <math.h>

#include "models/real.h"

void REAL_NAME(adamw_step)(const OptimSettings *s, int64_t n, void *param, const void *grad, void *m, void *v);
void adamw_step_f64(const OptimSettings *s, int64_t n, void *param, const void *grad, void *m, void *v);
void adamw_step_f32(const OptimSettings *s, int64_t n, void *param, const void *grad, void *m, void *v);

void REAL_NAME(adamw_step)(const OptimSettings *s, int64_t n, void *param, const void *grad, void *m, void *v)
{
    real *p = param, *m1 = m, *v1 = v;
    const real *g = grad;
    real b1 = (real)s->beta1, b2 = (real)s->beta2, lr = (real)s->lr, eps = (real)s->eps;
    real decay = (real)(s->no_decay ? 0 : s->weight_decay);
    real c1 = (real)(1 - pow(s->beta1, (double)s->step)), c2 = (real)(1 - pow(s->beta2, (double)s->step));
    for (int64_t i = 0; i < n; i++) {
        m1[i] = b1 * m1[i] + (1 - b1) * g[i];
        v1[i] = b2 * v1[i] + (1 - b2) * g[i] * g[i];
        p[i] -= lr * (m1[i] / c1 / ((real)sqrt((double)(v1[i] / c2)) + eps) + decay * p[i]);
    }
}

#if REAL_HAS_CLASS
/* Most tensors of one launch of a kernel over four lists, and over one (PyTorch's multi_tensor_apply). */
enum { MAX_TENSORS_FUSED = 36, MAX_TENSORS_ONE_LIST = 110 };

void adamw_update(const OptimSettings *settings, Tensor *param, const Tensor *grad, OptimState *state)
{
    int64_t n = tensor_numel(param);
    g_assert(param->type == grad->type && tensor_numel(grad) == n && settings->step > 0);
    if (state->m == NULL) {
        state->m = tensor_new(param->type, param->n_dims, param->dims);
        state->v = tensor_new(param->type, param->n_dims, param->dims);
    }
    if (param->type == TENSOR_F64) {
        adamw_step_f64(settings, n, param->data, grad->data, state->m->data, state->v->data);
    } else {
        adamw_step_f32(settings, n, param->data, grad->data, state->m->data, state->v->data);
    }
}

/*
 * One fused multi-tensor kernel: reads p, g, m, v and writes p, m, v (28 bytes per parameter in fp32, fsdp_memory.md
 * 8). Before it the step counters of all tensors are raised by a multi-tensor kernel of their own.
 */
void adamw_cost(const OptimPiece *pieces, int n, Dtype moments, GArray *works)
{
    int64_t numel = 0, read_bytes = 0, write_bytes = 0, tensors = 0;
    for (int i = 0; i < n; i++) {
        int64_t param = dtype_bytes(pieces[i].param, pieces[i].numel);
        int64_t moment = optim_moment_bytes(pieces[i].numel, moments);
        numel += pieces[i].numel;
        int64_t master = optim_master_bytes(&pieces[i]);
        read_bytes += optim_grad_bytes(&pieces[i]) + (master > 0 ? master : param) + 2 * moment;
        write_bytes += param + master + 2 * moment;
        tensors += pieces[i].numel > 0 ? 1 : 0;
    }
    if (tensors == 0) {
        return;
    }
    optim_work_split(works, WORK_ELEMENTWISE, (double)tensors, 4 * tensors, 4 * tensors,
                     (tensors + MAX_TENSORS_ONE_LIST - 1) / MAX_TENSORS_ONE_LIST);
    optim_work_split(works, WORK_OPTIMIZER, 14.0 * (double)numel, read_bytes, write_bytes,
                     optim_launches(pieces, n, MAX_TENSORS_FUSED));
}

static int64_t adamw_state_bytes(const OptimPiece *piece, Dtype moments)
{
    return 2 * optim_moment_bytes(piece->numel, moments) + optim_master_bytes(piece);
}

static int64_t adamw_workspace_bytes(const OptimPiece *pieces, int n, Dtype moments)
{
    (void)pieces;
    (void)n;
    (void)moments;
    return 0;
}

extern const OptimClass optim_adamw;
const OptimClass optim_adamw = {
    .id = "adamw",
    .title = "AdamW",
    .state_bytes = adamw_state_bytes,
    .workspace_bytes = adamw_workspace_bytes,
    .cost = adamw_cost,
    .update = adamw_update,
};
#endif
