/* Packed weights: sizes and order (layout.c). */
#ifndef BACKEND_GPU_LAYOUT_H
#define BACKEND_GPU_LAYOUT_H

#include "backend/gpu/family.h"
#include "backend/gpu/kernels/row_order.h"

/* The rows that its packed columns are, or of a raw matrix its rows. */
gpu_row_order gpu_row_order_of(const matrix *matrix);
int gpu_head_columns(int head_dim);        /* packed columns of a q or k head                               */
/* Bytes of a packed column, or of a raw matrix's row. */
size_t gpu_column_bytes(const matrix *matrix);

/* Functions of the backend table. */
size_t gpu_matrix_bytes(const device *device, const matrix *matrix);
int gpu_matrix_blocks(const device *device, const matrix *matrix);

#endif
