/* Scales of weights stand by row of W (args.h): which row a packed column is. */
#ifndef KERNELS_CUDA_CHANNELS_CUH
#define KERNELS_CUDA_CHANNELS_CUH

#include "backend/gpu/cuda/common.cuh"

/* -1: the column pads. */
DEV int channel_row(const gpu_epilogue &e, int column) {
    const int second = column >> 3 & 1, i = column / GPU_UNIT * 8 + (column & 7);
    int row = column, there = column < e.n;
    if (e.kind == GPU_EPILOGUE_GATED) {
        row = i + second * e.n_second;
        there = i < e.n;
    } else if (e.kind == GPU_EPILOGUE_QKV) {
        const int head = min(column / e.head_columns, e.heads + 1), half = e.head_dim / 2,
                  of_head = column - head * e.head_columns, j = of_head / GPU_UNIT * 8 + (column & 7);
        row = head * e.head_dim + (head > e.heads ? of_head : j + second * half);
        there = head > e.heads ? of_head < e.head_dim : j < half;
    }
    return there ? row : -1;
}

#endif
