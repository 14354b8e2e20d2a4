/* Element types and the conversions between them. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;           /* the upper half of an fp32 */

typedef enum dtype {
    DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64, DTYPE_I64, DTYPE_I32, DTYPE_U8,
    /* Only of tensors that nobody reads. */
    DTYPE_I8, DTYPE_I16, DTYPE_U16, DTYPE_U32, DTYPE_U64, DTYPE_BOOL, DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPES
} dtype;

static inline size_t dtype_bytes(dtype type) {
    static const uint8_t bytes[DTYPES] = {4, 2, 2, 8, 8, 4, 1, 1, 2, 2, 4, 8, 1, 1, 1};
    return bytes[type];
}

static inline float bf16_to_float(bf16 bits) {
    uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline bf16 float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float f16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023, u;
    float f;
    if (exponent == 31) {
        u = sign | 0x7f800000u | fraction << 13;
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | fraction << 13;
    } else {                     /* zero or subnormal: fraction * 2^-24 is exact in fp32 */
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; from 65520 on infinity; NaN stays NaN. */
static inline uint16_t float_to_f16(float f) {
    uint32_t u, sign;
    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) {        /* subnormal: the last bit of 0.5 is 2^-24, as that of the result */
        memcpy(&f, &u, sizeof f);
        f += 0.5f;
        memcpy(&u, &f, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

#endif
