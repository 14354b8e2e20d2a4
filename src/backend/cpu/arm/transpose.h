/* Four by four, for pack.h, which is included after this file. */
#ifndef CPU_ARM_TRANSPOSE_H
#define CPU_ARM_TRANSPOSE_H

#include <arm_neon.h>
#include <stddef.h>

/* to[i·stride + r] = from[r][at + i] for four rows of four */
static inline void transpose_4x4(float *to, size_t stride, const float *const from[4], int at) {
    float32x4x2_t low = vzipq_f32(vld1q_f32(from[0] + at), vld1q_f32(from[2] + at));
    float32x4x2_t high = vzipq_f32(vld1q_f32(from[1] + at), vld1q_f32(from[3] + at));
    float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]), last = vzipq_f32(low.val[1], high.val[1]);
    vst1q_f32(to, first.val[0]);
    vst1q_f32(to + stride, first.val[1]);
    vst1q_f32(to + 2 * stride, last.val[0]);
    vst1q_f32(to + 3 * stride, last.val[1]);
}

#endif
