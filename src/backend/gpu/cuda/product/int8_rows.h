/* The kernels of int8_rows.cuh, which each family that multiplies such rows has: in its table they stand one
 * after the other, from a place `first` on. */
#ifndef BACKEND_GPU_CUDA_INT8_ROWS_H
#define BACKEND_GPU_CUDA_INT8_ROWS_H

#include "backend/gpu/cuda/product/int8.h"
#include "backend/gpu/family.h"

enum { INT8_ROWS_NORM, INT8_ROWS_PLAIN, INT8_ROWS_ANY, INT8_ROWS_KERNELS };
#define INT8_ROWS_TABLE(MEMBER, first)                                  \
    [(first) + INT8_ROWS_NORM] = {MEMBER = {"int8_rows_norm", 1, 0}},   \
    [(first) + INT8_ROWS_PLAIN] = {MEMBER = {"int8_rows_plain", 1, 0}}, \
    [(first) + INT8_ROWS_ANY] = {MEMBER = {"int8_rows", 1, 0}}

/* Makes codes of the product's rows, of which there are `rows` at most, in the work block, after their norm;
 * the product then reads them and has no norm. Returns their scales. */
const float *cuda_int8_rows(gpu_issue *issue, int first, int rows, gpu_linear *product);

#endif
