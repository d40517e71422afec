#include "models/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/quantity.h"

size_t tensor_elem_bytes(TensorType type)
{
    return type == TENSOR_F32 ? 4 : 8;
}

int64_t tensor_numel(const Tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        n *= tensor->dims[i];
    }
    return n;
}

Tensor *tensor_new(TensorType type, int n_dims, const int64_t *dims)
{
    Tensor *tensor = g_new0(Tensor, 1);
    int64_t bytes = (int64_t)tensor_elem_bytes(type);
    g_assert(n_dims >= 0 && n_dims <= 4);
    tensor->type = type;
    tensor->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) {
        gboolean fits = quantity_mul(bytes, dims[i], &bytes);
        g_assert(fits && dims[i] >= 0);
        tensor->dims[i] = dims[i];
    }
    bytes = quantity_round_up(MAX(bytes, 64), 64);
    tensor->data = aligned_alloc(64, (size_t)bytes);
    g_assert(tensor->data != NULL);
    memset(tensor->data, 0, (size_t)bytes);
    return tensor;
}

Tensor *tensor_new_2d(TensorType type, int64_t rows, int64_t width)
{
    return tensor_new(type, 2, (int64_t[]){rows, width});
}

Tensor *tensor_dup(const Tensor *tensor)
{
    Tensor *copy = tensor_new(tensor->type, tensor->n_dims, tensor->dims);
    memcpy(copy->data, tensor->data, (size_t)tensor_numel(tensor) * tensor_elem_bytes(tensor->type));
    return copy;
}

void tensor_free(Tensor *tensor)
{
    if (tensor != NULL) {
        free(tensor->data);
        g_free(tensor);
    }
}

double tensor_get(const Tensor *tensor, int64_t i)
{
    switch (tensor->type) {
    case TENSOR_F64:
        return ((const double *)tensor->data)[i];
    case TENSOR_F32:
        return (double)((const float *)tensor->data)[i];
    case TENSOR_I64:
    default:
        return (double)((const int64_t *)tensor->data)[i];
    }
}

void tensor_set(Tensor *tensor, int64_t i, double value)
{
    switch (tensor->type) {
    case TENSOR_F64:
        ((double *)tensor->data)[i] = value;
        break;
    case TENSOR_F32:
        ((float *)tensor->data)[i] = (float)value;
        break;
    case TENSOR_I64:
    default:
        g_assert(floor(value) == value);
        ((int64_t *)tensor->data)[i] = (int64_t)value;
        break;
    }
}

Tensor *tensor_convert(const Tensor *tensor, TensorType type)
{
    Tensor *copy = tensor_new(type, tensor->n_dims, tensor->dims);
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(copy, i, tensor_get(tensor, i));
    }
    return copy;
}
