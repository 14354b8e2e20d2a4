/* Norms of the resident vision kernel, after the products that they come before. Of a row x
 *
 *   norm(x)·Wᵀ + bias = (s·Wᵀ - (mean - c)·sums)·f + bias',   s = (x - c)·weight,  f = rsqrt(var + eps)
 *
 * with the norm's weight, sums and bias' as in gpu_vision_fold (vision.h) and any c. So nobody waits for a
 * norm: between the layers the kernel keeps s instead of x, and mean and f are needed after the products
 * only. c, the center, is the mean that the row had at the norm before: s is rounded to bf16, as a norm's
 * output is, and is about as large, however large the mean of a row.
 *
 * A residual makes x of s, adds, and makes the next norm's s: one rounding, where x itself would have one.
 * Weights nearer to 0 than least_weight count as that, so that no x is lost; it is 1e-9 of others.
 *
 *   moments   whoever makes rows of x leaves, for the columns that it has made, their mean and the sum of
 *             squares of what is left: [part of the columns][row]. Deviations from a mean, so nothing cancels
 *   factors   while a product runs, three warps that do not multiply fetch the moments of its rows and put
 *             them together, and fetch what it needs of its columns, into shared memory. For a residual these
 *             are centers, weights, and s
 *   centers   [2][row], one for the norm before qkv, one for that before fc1: each is the other's mean, and
 *             is written by those that make factors of the first columns */
#ifndef KERNELS_CUDA_VISION_NORM_CUH
#define KERNELS_CUDA_VISION_NORM_CUH

#include "vision_block.cuh"

enum { FACTOR_WARPS = 3, WIDTH_GROUPS = VISION_WIDTH / 8 };

/* How the columns of x were shared: a part every `stride` groups of 8 columns. */
typedef struct parting {
    int parts, stride;
} parting;

DEV float2 *moments_of(const block &b, int part, int row) {
    return (float2 *)((char *)b.progress + VISION_PROGRESS) + part * IMAGE_KEYS + row;
}

/* A norm's weight as s has it. */
DEV float scale_of(float weight) {
    const float least_weight = 0x1p-30f;
    return copysignf(fmaxf(fabsf(weight), least_weight), weight);
}

DEV float *centers_of(const block &b, int which, int row) {
    return (float *)((char *)b.progress + VISION_CENTERS_AT) + which * IMAGE_KEYS + row;
}

/* ---- the rows that the kernel finds -------------------------------------------------------------------- */

/* A warp a row: moments of all columns as one part, s for the first layer, the mean as its center. */
DEV void begin_rows(const block &b, const gpu_vision &p) {
    enum { UNITS = VISION_WIDTH / 8, STEPS = (UNITS + 31) / 32 };
#pragma unroll 1
    for (int r = b.rank + b.warp * b.blocks; r < IMAGE_KEYS; r += CONSUMER_WARPS * b.blocks) {
        const size_t at = (size_t)(b.row0 + r) * VISION_WIDTH;
        const uint4 *from = (const uint4 *)((const u16 *)p.x + at);
        uint4 *to = (uint4 *)((u16 *)p.to_scaled + at);
        float x[STEPS][8], sum = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (b.lane + 32 * i < UNITS) v = __ldcg(from + b.lane + 32 * i);
            x[i][0] = low_of(v.x), x[i][1] = high_of(v.x), x[i][2] = low_of(v.y), x[i][3] = high_of(v.y);
            x[i][4] = low_of(v.z), x[i][5] = high_of(v.z), x[i][6] = low_of(v.w), x[i][7] = high_of(v.w);
#pragma unroll
            for (int j = 0; j < 8; j++) sum += x[i][j];
        }
        const float mean = warp_sum(sum) * (1.0f / VISION_WIDTH);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (b.lane + 32 * i >= UNITS) continue;
            const float4 *const weight = (const float4 *)p.layers[0].norm_weight[0] + 2 * (b.lane + 32 * i);
            const float4 v = __ldg(weight), w = __ldg(weight + 1);
            const float each[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[i][j] -= mean;
                squares += x[i][j] * x[i][j];
                x[i][j] *= scale_of(each[j]);
            }
            to[b.lane + 32 * i] =
                make_uint4(pack_bf16(x[i][0], x[i][1]), pack_bf16(x[i][2], x[i][3]),
                           pack_bf16(x[i][4], x[i][5]), pack_bf16(x[i][6], x[i][7]));
        }
        squares = warp_sum(squares);
        if (b.lane) continue;
        *moments_of(b, 0, r) = make_float2(mean, squares);
        *centers_of(b, 0, r) = mean;
    }
}

/* ---- factors of a tile --------------------------------------------------------------------------------- */

/* Factors of `pairs` pairs of neighbouring columns from `column` on, as (first, first', second, second').
 *
 *              first                                      second
 *   norm       sums                                       bias
 *   residual   weight of the next norm (1: there is none) 1 / weight of the norm before
 *
 * `last`: number of valid columns. */
DEV void fetch_columns(const block &b, int residual, const float *first, const float *second, int column,
                       int pairs, int last) {
#pragma unroll 1
    for (int i = threadIdx.x - FACTOR_THREAD; i < pairs; i += FACTOR_WARPS * 32) {
        float2 v = make_float2(residual, residual), w = make_float2(0, 0);
        if (column + 2 * i < last) {
            if (first) v = __ldg((const float2 *)(first + column + 2 * i));
            w = __ldg((const float2 *)(second + column + 2 * i));
        }
        if (residual) {
            v = make_float2(scale_of(v.x), scale_of(v.y));
            w = make_float2(1 / scale_of(w.x), 1 / scale_of(w.y));
        }
        columns_of(b)[i] = make_float4(v.x, v.y, w.x, w.y);
    }
}

/* A residual's: the center of s before it, that of s after it (0: there is none). */
DEV void fetch_centers(const block &b, const float *before, const float *after, int rows) {
#pragma unroll 1
    for (int r = threadIdx.x - FACTOR_THREAD; r < rows; r += FACTOR_WARPS * 32)
        factors_of(b)[r] = make_float2(__ldcg(before + r), after ? __ldcg(after + r) : 0);
}

/* The moments of so many rows from row `row` of the image on, to the staging, which nobody uses between the
 * meeting and the end of the products: [part][row]. */
DEV void fetch_moments(const block &b, int parts, int row, int rows) {
    int part = 0, at = 2 * (threadIdx.x - FACTOR_THREAD);      /* a row of the part, of two                 */
#pragma unroll 1
    for (;; at += 2 * FACTOR_WARPS * 32) {
        while (at >= rows) at -= rows, part++;
        if (part >= parts) break;
        copy16(shared_address(staging_of(b)) + (part * rows + at) * 8, moments_of(b, part, row + at), 1);
    }
    copy_commit();
    copy_wait<0>();
    group_sync(2, FACTOR_WARPS * 32);
}

/* (f, (c - mean)·f) of these rows, a thread a row. next: where their means go, or NULL. */
DEV void make_factors(const block &b, const parting &s, const float *centers, float *next, int rows,
                      float eps) {
#pragma unroll 1
    for (int r = threadIdx.x - FACTOR_THREAD; r < rows; r += FACTOR_WARPS * 32) {
        const float2 *moments = (const float2 *)staging_of(b) + r;
        /* Means from the center on: what is subtracted in the end is no larger than they differ. */
        const float center = __ldcg(centers + r);
        float sum = 0, squares = 0;
#pragma unroll 4
        for (int at = 0; at < WIDTH_GROUPS; at += s.stride, moments += rows) {
            const float n = 8 * min(s.stride, WIDTH_GROUPS - at), d = moments->x - center;
            sum += n * d, squares += moments->y + n * d * d;
        }
        sum *= 1.0f / VISION_WIDTH;
        const float f = rsqrtf(fmaxf(squares * (1.0f / VISION_WIDTH) - sum * sum, 0) + eps);
        factors_of(b)[r] = make_float2(f, -sum * f);
        if (next) next[r] = center + sum;
    }
}

/* Every thread arrives, so that racecheck, too, sees what waits for what. Those that make factors: nobody
 * needs those of the tile before any more; those of this one are there. */
DEV void await_unused(const block &b) { await(factors_empty(b), b.tiles & 1 ^ 1); }
DEV void give_factors(block &b) {
    barrier_arrive(factors_full(b));
    b.tiles++;
}
/* The consumers: a tile's factors and columns are there; they are no longer needed. */
DEV void await_factors(const block &b) { await(factors_full(b), b.tiles & 1); }
DEV void leave_factors(block &b) {
    barrier_arrive(factors_empty(b));
    b.tiles++;
}

#endif
