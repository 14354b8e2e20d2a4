/* SigLIP's attention of 64 queries over the 256 tokens of an image, by one warpgroup: what
 * attention_image_hopper.cu and the resident vision kernel share. attention_image_hopper.cu says how the 72
 * dims of a head are multiplied. */
#ifndef KERNELS_CUDA_ATTENTION_IMAGE_CUH
#define KERNELS_CUDA_ATTENTION_IMAGE_CUH

#include "backend/gpu/cuda/hopper.cuh"
#include "backend/gpu/cuda/wgmma.cuh"
#include "attention_image_hopper.h"

enum { MAIN_BYTES = IMAGE_KEYS * 128 };

/* ---- instructions -------------------------------------------------------------------------------------- */

/* Descriptor of an operand without swizzle, in core matrices of 8 rows of 16 bytes. K-major: `k_step` bytes
 * to the next 8 of k, `mn_step` to the next 8 rows; transposed: the same with 8 of k in each core matrix. */
DEV u64 wgmma_plain(u32 address, u32 k_step, u32 mn_step) {
    return (u64)(mn_step >> 4) << 32 | (u64)(k_step >> 4) << 16 | address >> 4;
}

/* d += A·B, or with add = 0 d = A·B; A in registers and B transposed, N = 64 and 8. */
DEV void wgmma_values(float (&d)[32], const u32 *a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
DEV void wgmma_values(float (&d)[4], const u32 *a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, p, 1, 1, 1;\n}"
                 : WR(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* ---- a tile -------------------------------------------------------------------------------------------- */

/* Scores of 64 queries and 2·SCORES keys: of dims 0 … 63, then those of the rest are added. The zeros lie
 * behind the queries. */
template <int SCORES> DEV void multiply_main(float (&score)[SCORES], u32 q, u32 keys) {
#pragma unroll
    for (int i = 0; i < IMAGE_MAIN / 16; i++)
        wgmma(score, wgmma_operand(q + i * 32), wgmma_operand(keys + i * 32), i);
}
template <int SCORES> DEV void multiply_rest(float (&score)[SCORES], u32 q, u32 keys, u32 zeros) {
    const u32 rest = q + IMAGE_ROWS * 128;
    wgmma(score, wgmma_plain(rest, zeros - rest, 128), wgmma_plain(keys, 0, 128), 1);
}
template <int SCORES>
DEV void multiply_keys(float (&score)[SCORES], u32 q, u32 keys, u32 keys_rest, u32 zeros) {
    wgmma_begin();
    multiply_main(score, q, keys);
    multiply_rest(score, q, keys_rest, zeros);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Scores of a thread's row h into weights relative to the row's maximum `top`; returns their sum. */
template <int SCORES> DEV float soften(float (&score)[SCORES], int h, float scale, float &top) {
    float sum = 0;
    top = score[2 * h];
#pragma unroll
    for (int n = 0; n < SCORES / 4; n++)
        top = fmaxf(top, fmaxf(score[4 * n + 2 * h], score[4 * n + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top * scale;
#pragma unroll
    for (int n = 0; n < SCORES / 4; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * n + 2 * h + i];
            x = exp2_fast(x * scale - base);
            sum += x;
        }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* Weights of a thread as wgmma's A, 16 keys each. */
template <int SCORES> DEV void pack_weights(u32 (&a)[SCORES / 8][4], const float (&score)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) a[i][j] = pack_bf16(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
}

template <int BLOCKS>
DEV void add_values(float (&out)[32], float (&rest)[4], const u32 (&a)[BLOCKS][4], u32 values,
                    u32 values_rest) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        wgmma_values(out, a[i], wgmma_transposed(values + i * 16 * 128, 0), i);
        wgmma_values(rest, a[i], wgmma_plain(values_rest + i * 16 * 16, 128, 128), i);
    }
    wgmma_commit();
    wgmma_wait<0>();
}

/* A thread's two rows, from `to` on: eight dims a quad of lanes. */
DEV void store_queries(u16 *to, const float (&out)[32], const float (&rest)[4], const float (&sum)[2],
                    int width) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float factor = 1 / sum[h];
        u16 *row = to + (size_t)h * 8 * width;
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(u32 *)(row + n * 8) = pack_bf16(out[4 * n + 2 * h] * factor, out[4 * n + 2 * h + 1] * factor);
        *(u32 *)(row + IMAGE_MAIN) = pack_bf16(rest[2 * h] * factor, rest[2 * h + 1] * factor);
    }
}

#endif
