#include "models/optim.h"

#include <string.h>

#include "sim/base/quantity.h"

#define OPTIM(id, title) extern const OptimClass optim_##id;
#include "models/optim.def"
#undef OPTIM

static const OptimClass *const classes[N_OPTIMS] = {
#define OPTIM(id, title) [OPTIM_##id] = &optim_##id,
#include "models/optim.def"
#undef OPTIM
};

/* Sizes of PyTorch's multi-tensor kernels (ATen/native/cuda/MultiTensorApply.cuh). */
enum { BLOCK_ELEMS = 65536, BLOCKS_MAX = 320 };

/* Elements that share one scale in 8-bit moments. */
enum { INT8_BLOCK = 256 };

const OptimClass *optim_class(OptimKind kind)
{
    g_assert(kind < N_OPTIMS);
    return classes[kind];
}

gboolean optim_kind_from_id(const char *id, OptimKind *ret_kind)
{
    for (int i = 0; i < N_OPTIMS; i++) {
        if (strcmp(classes[i]->id, id) == 0) {
            *ret_kind = (OptimKind)i;
            return TRUE;
        }
    }
    return FALSE;
}

/*
 * A launch ends when its block list is full, or when the last block of its last tensor is in; a tensor cut by a full
 * block list takes a place in the next launch too.
 */
int64_t optim_launches(const OptimPiece *pieces, int n, int max_tensors)
{
    int64_t launches = 0, blocks = 0;
    int tensors = 0;
    for (int i = 0; i < n; i++) {
        int64_t left = quantity_div_up(pieces[i].numel, BLOCK_ELEMS);
        if (left == 0) {
            continue;
        }
        tensors++;
        while (blocks + left >= BLOCKS_MAX) {
            left -= BLOCKS_MAX - blocks;
            launches++;
            blocks = 0;
            tensors = left > 0 ? 1 : 0;
        }
        blocks += left;
        if (tensors == max_tensors && left > 0) {
            launches++;
            blocks = 0;
            tensors = 0;
        }
    }
    return launches + (blocks > 0 ? 1 : 0);
}

int64_t optim_moment_bytes(int64_t numel, Dtype moments)
{
    int64_t scales = moments == DTYPE_INT8 ? dtype_bytes(DTYPE_FP32, quantity_div_up(numel, INT8_BLOCK)) : 0;
    return dtype_bytes(moments, numel) + scales;
}

int64_t optim_grad_bytes(const OptimPiece *piece)
{
    return dtype_bytes(piece->grad_fp32 ? DTYPE_FP32 : piece->param, piece->numel);
}

int64_t optim_master_bytes(const OptimPiece *piece)
{
    return piece->has_master ? dtype_bytes(DTYPE_FP32, piece->numel) : 0;
}

void optim_state_clear(OptimState *state)
{
    tensor_free(state->m);
    tensor_free(state->v);
    *state = (OptimState){NULL, NULL};
}

double optim_clip_factor(double norm, double clip)
{
    return clip > 0 && norm > clip ? clip / norm : 1;
}

Work *optim_work(GArray *works, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes)
{
    Work work = {.law = law,
                 .dtype = DTYPE_FP32,
                 .flops = flops,
                 .read_bytes = read_bytes,
                 .write_bytes = write_bytes,
                 .n_launches = 1};
    g_array_append_val(works, work);
    return &g_array_index(works, Work, works->len - 1);
}

void optim_work_split(GArray *works, WorkLaw law, double flops, int64_t read_bytes, int64_t write_bytes,
                      int64_t launches)
{
    if (launches > 1) {
        Work *most = optim_work(works, law, flops / (double)launches, read_bytes / launches, write_bytes / launches);
        most->n_launches = (int)(launches - 1);
        read_bytes -= read_bytes / launches * (launches - 1);
        write_bytes -= write_bytes / launches * (launches - 1);
        flops -= flops / (double)launches * (double)(launches - 1);
    }
    if (launches > 0) {
        optim_work(works, law, flops, read_bytes, write_bytes);
    }
}
