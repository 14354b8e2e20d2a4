/* What few_mma and few_mma_int8 share besides few.cuh: a block of at most 16 rows, from its norm's parameters
 * to the sums of its warps. */
#ifndef KERNELS_CUDA_FEW_ROWS_CUH
#define KERNELS_CUDA_FEW_ROWS_CUH

#include "few.cuh"

enum { ROWS = 16 };

/* The norm's weight and then its bias, `k` floats each. */
DEV void few_load_norm(const gpu_linear &p, u32 to, int tid) {
    for (int i = tid * 4; i < p.ldx; i += WARPS * 128) {
        copy16(to + i * 4, p.norm_weight + i, 1);
        if (p.norm_bias) copy16(to + (p.ldx + i) * 4, p.norm_bias + i, 1);
    }
    copy_commit();
}

/* The rows g and g + 8 of x, or the last. */
typedef struct few_rows {
    const u16 *row[2];
} few_rows;

DEV few_rows few_rows_of(const gpu_linear &p, int rows, int lane) {
    few_rows x;
#pragma unroll
    for (int r = 0; r < 2; r++)
        x.row[r] = (const u16 *)p.x + (size_t)row_of(p.from, min((lane >> 2) + 8 * r, rows - 1)) * p.ldx;
    return x;
}

/* The output pair that a thread finishes: row r, unit u, pair t. */
typedef struct few_task {
    int r, u, t, there;
} few_task;

template <class T> DEV few_task few_task_of(int tid) {
    return {.r = tid >> 2 & 15, .u = tid >> 6, .t = tid & 3, .there = tid < T::TASKS};
}

/* The warps' sums meet; every task adds its own and finishes them. */
template <class T>
DEV void few_finish(const gpu_linear &p, float *parts, const float (&sum)[T::C][2][4], const few_task &task,
                    const finish &f, u32 before, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    __syncthreads();                       /* W is read, its place is free                                  */
#pragma unroll
    for (int c = 0; c < T::C; c++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(parts + (warp * ROWS + h * 8 + g) * T::PITCH + c * 8 + 2 * t) =
                make_float2(sum[c][0][2 * h] + sum[c][1][2 * h], sum[c][0][2 * h + 1] + sum[c][1][2 * h + 1]);
    __syncthreads();
    if (!f.there) return;
    float2 a = make_float2(0, 0), b = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float *from = parts + (w * ROWS + task.r) * T::PITCH + task.u * T::UNIT + 2 * task.t;
        float2 v = *(const float2 *)from;
        a.x += v.x, a.y += v.y;
        if (T::PAIRED) {
            v = *(const float2 *)(from + 8);
            b.x += v.x, b.y += v.y;
        }
    }
    complete<T::KIND>(p.epilogue, f, before, a.x, a.y, b.x, b.y);
}

#endif
