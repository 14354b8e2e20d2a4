/* The kernels of int8_rows.cuh, which each family that multiplies such rows has: in its table they stand one
 * after the other, from a place `first` on. */
#ifndef BACKEND_GPU_CUDA_INT8_ROWS_H
#define BACKEND_GPU_CUDA_INT8_ROWS_H

#include "backend/gpu/cuda/product/int8.h"
#include "backend/gpu/family.h"

enum { INT8_ROWS_NORM, INT8_ROWS_PLAIN, INT8_ROWS_ANY, INT8_ROWS_FIXED, INT8_ROWS_KERNELS };
#define INT8_ROWS_TABLE(MEMBER, first)                                  \
    [(first) + INT8_ROWS_NORM] = {MEMBER = {"int8_rows_norm", 1, 0}},   \
    [(first) + INT8_ROWS_PLAIN] = {MEMBER = {"int8_rows_plain", 1, 0}}, \
    [(first) + INT8_ROWS_ANY] = {MEMBER = {"int8_rows", 1, 0}},         \
    [(first) + INT8_ROWS_FIXED] = {MEMBER = {"int8_rows_fixed", 1, 0}}

/* Makes codes of the task's rows in the work block, after their norm; `product`, the task's, then reads them
 * and has no norm. Rows that are codes stay where they are. Returns their scales. */
const float *cuda_int8_rows(gpu_issue *issue, int first, const gpu_task *task, gpu_linear *product);
/* What kernels want of codes that a product leaves in its `out`, their scales behind them; `scales`: of the
 * rows that it multiplies. */
gpu_int8_fixed cuda_int8_left(const gpu_row_scale *rows, const gpu_linear *product, const float *scales);

#endif
