/* x·Wᵀ with all that may come after it (epilogue.h).
 *
 *   linear_bf16_64   bf16 by bf16: a block computes 64 rows of x by 64 packed columns, its four waves 32 x 32
 *                    each; 64 k (an atom of W) are in local memory at a time
 *   linear_bf16_16   the same for few rows: 16 rows by 64 columns, 16 columns a wave
 *   linear_f32_64, linear_f32_16
 *                    any other types, and pixels: both operands are widened to fp32, 32 k at a time
 *
 *   blocks   256 threads; grid = rows / 64 (or 16) x packed columns / 64
 *   legal    any shape. A norm runs before. Sums have one order, whatever rows are computed beside a row
 *
 * linear.c of the folder above launches. */
#include "backend/gpu/hip/kernels/epilogue.h"

enum { THREADS = 256 };

/* ---- operands as bf16 ---------------------------------------------------------------------------------- */

DEV void load_x_bf16(const gpu_linear *p, int r, int there, int k, bf16x4 *to) {
    size_t at = there ? (size_t)row_of(&p->from, r) * (size_t)p->ldx + (size_t)k : 0;
    int count = there ? p->ldx - k : 0;
    to[0] = load_bf16x4(p->x, at, count);
    to[1] = load_bf16x4(p->x, at + 4, count - 4);
}

/* Where x has more k than W, W repeats. */
DEV void load_w_bf16(const gpu_weights *w, int column, int there, int k, bf16x4 *to) {
    size_t unit = (size_t)(column / GPU_UNIT) * (size_t)w->blocks * 8 + (size_t)(k / 8 % (w->blocks * 8));
    size_t at = (unit * GPU_UNIT + (size_t)(column % GPU_UNIT)) * 8;
    to[0] = load_bf16x4(w->data, at, there ? 8 : 0);
    to[1] = load_bf16x4(w->data, at + 4, there ? 8 : 0);
}

/* ---- operands as fp32 ---------------------------------------------------------------------------------- */

DEV void load_x_f32(const gpu_linear *p, int r, int there, int k, f32x4 *to) {
    int count = there ? smaller(p->ldx, p->weights.k) - k : 0;
    if (p->x_type == GPU_X_PIXELS) {
        int floats = *p->pixels;
        UNROLL
        for (int i = 0; i < 8; i++) to[i / 4][i % 4] = i < count ? pixel_at(p->x, floats, r, k + i) : 0;
        return;
    }
    size_t at = there ? (size_t)row_of(&p->from, r) * (size_t)p->ldx + (size_t)k : 0;
    to[0] = load4(p->x, p->x_type == GPU_X_F32, at, count);
    to[1] = load4(p->x, p->x_type == GPU_X_F32, at + 4, count - 4);
}

DEV void load_w_f32(const gpu_weights *w, int column, int there, int k, f32x4 *to) {
    int count = there ? w->k - k : 0;
    if (w->type == GPU_WEIGHT_BF16) {
        bf16x4 narrow[2];
        load_w_bf16(w, column, count > 0, k, narrow);
        to[0] = widen4(narrow[0]);
        to[1] = widen4(narrow[1]);
        return;
    }
    size_t at = (size_t)column * (size_t)((w->k + 3) & ~3) + (size_t)k;
    to[0] = load_f32x4(w->data, at, count);
    to[1] = load_f32x4(w->data, at + 4, count - 4);
}

/* Four matrix instructions of 4 k each. Which k they take together is of no matter, as long as it is the same
 * for both operands. */
DEV f32x4 multiply_f32(f32x4 a, f32x4 b, f32x4 c) {
    UNROLL
    for (int i = 0; i < 4; i++) c = mma_f32(a[i], b[i], c);
    return c;
}

/* ---- kernels ------------------------------------------------------------------------------------------- */

#define TILE linear_bf16_64
#define ROWS 64
#define COLUMNS 64
#define WAVES_ROWS 2
#define DEPTH 64
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define LOAD_X load_x_bf16
#define LOAD_W load_w_bf16
#include "backend/gpu/hip/kernels/linear_tile.h"

#define TILE linear_bf16_16
#define ROWS 16
#define COLUMNS 64
#define WAVES_ROWS 1
#define DEPTH 64
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define LOAD_X load_x_bf16
#define LOAD_W load_w_bf16
#include "backend/gpu/hip/kernels/linear_tile.h"

#define TILE linear_f32_64
#define ROWS 64
#define COLUMNS 64
#define WAVES_ROWS 2
#define DEPTH 32
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define LOAD_X load_x_f32
#define LOAD_W load_w_f32
#include "backend/gpu/hip/kernels/linear_tile.h"

#define TILE linear_f32_16
#define ROWS 16
#define COLUMNS 64
#define WAVES_ROWS 1
#define DEPTH 32
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define LOAD_X load_x_f32
#define LOAD_W load_w_f32
#include "backend/gpu/hip/kernels/linear_tile.h"
