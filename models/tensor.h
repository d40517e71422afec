/*
 * CPU tensors for the reference kernels: dense, row-major, float64, float32 or int64.
 *
 * Shape is up to 4 dimensions; kernels of models/ops see tensors as [rows, width] of their GraphTensor and
 * derive heads and the like from attributes.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef enum TensorType { TENSOR_F64, TENSOR_F32, TENSOR_I64 } TensorType;

typedef struct Tensor {
    TensorType type;
    int n_dims;
    int64_t dims[4];
    void *data; /* owned, 64-byte aligned */
} Tensor;

/* Zero-filled tensor; asserts that the size fits. Free with tensor_free (NULL is fine). */
Tensor *tensor_new(TensorType type, int n_dims, const int64_t *dims);
Tensor *tensor_new_2d(TensorType type, int64_t rows, int64_t width);
Tensor *tensor_dup(const Tensor *tensor);
void tensor_free(Tensor *tensor);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Tensor, tensor_free)

int64_t tensor_numel(const Tensor *tensor);
size_t tensor_elem_bytes(TensorType type);

/* Element i (row-major) as a double; int64 is converted. */
double tensor_get(const Tensor *tensor, int64_t i);
void tensor_set(Tensor *tensor, int64_t i, double value);

/* Converts values to another type (to int64: must be whole). */
Tensor *tensor_convert(const Tensor *tensor, TensorType type);
