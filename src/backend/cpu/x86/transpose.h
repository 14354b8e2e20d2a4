/* Four by four, for pack.h, which is included after this file. Plain SSE: every level has it. */
#ifndef CPU_X86_TRANSPOSE_H
#define CPU_X86_TRANSPOSE_H

#include <immintrin.h>
#include <stddef.h>

/* to[i·stride + r] = from[r][at + i] for four rows of four */
static inline void transpose_4x4(float *to, size_t stride, const float *const from[4], int at) {
    __m128 a = _mm_loadu_ps(from[0] + at), b = _mm_loadu_ps(from[1] + at);
    __m128 c = _mm_loadu_ps(from[2] + at), d = _mm_loadu_ps(from[3] + at);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + stride, b);
    _mm_storeu_ps(to + 2 * stride, c);
    _mm_storeu_ps(to + 3 * stride, d);
}

#endif
