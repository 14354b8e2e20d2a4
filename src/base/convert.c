#include "base/convert.h"

#include <string.h>

/* One loop a type, so that the branch is outside of it. */
#define CONVERT(ctype, expression)                         \
    for (size_t i = 0; i < count; i++) {                   \
        ctype v;                                           \
        memcpy(&v, bytes + i * sizeof v, sizeof v);        \
        out[i] = expression;                               \
    }                                                      \
    return

void convert_to_f32(dtype type, const void *from, size_t count, float *restrict out) {
    const char *restrict bytes = from;
    switch (type) {
    case DTYPE_F32: memcpy(out, from, count * sizeof *out); return;
    case DTYPE_BF16: CONVERT(bf16, bf16_to_float(v));
    case DTYPE_F16: CONVERT(uint16_t, f16_to_float(v));
    case DTYPE_F64: CONVERT(double, (float)v);
    case DTYPE_I64: CONVERT(int64_t, (float)v);
    case DTYPE_I32: CONVERT(int32_t, (float)v);
    case DTYPE_U8: CONVERT(uint8_t, (float)v);
    default: memset(out, 0xff, count * sizeof *out); return;     /* NaN */
    }
}

/* BLOCK elements as float_to_bf16 does it, without a branch: a loop of a constant count is vectorised. */
enum { BLOCK = 16 };

static void round_block(const char *restrict from, bf16 *restrict out) {
    int32_t bits[BLOCK];
    memcpy(bits, from, sizeof bits);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t u = (uint32_t)bits[i];
        uint32_t nan = (bits[i] & 0x7fffffff) > 0x7f800000 ? 0xffffffffu : 0;
        uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
        out[i] = (bf16)((quiet & nan) | (rounded & ~nan));
    }
}

static void round_floats(const char *restrict from, size_t count, bf16 *restrict out) {
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) round_block(from + i * sizeof(float), out + i);
    for (; i < count; i++) {
        float v;
        memcpy(&v, from + i * sizeof v, sizeof v);
        out[i] = float_to_bf16(v);
    }
}

void convert_to_bf16(dtype type, const void *from, size_t count, bf16 *restrict out) {
    const char *restrict bytes = from;
    switch (type) {
    case DTYPE_F32: round_floats(bytes, count, out); return;
    case DTYPE_BF16: memcpy(out, from, count * sizeof *out); return;
    case DTYPE_F16: CONVERT(uint16_t, float_to_bf16(f16_to_float(v)));
    case DTYPE_F64: CONVERT(double, float_to_bf16((float)v));
    case DTYPE_I64: CONVERT(int64_t, float_to_bf16((float)v));
    case DTYPE_I32: CONVERT(int32_t, float_to_bf16((float)v));
    case DTYPE_U8: CONVERT(uint8_t, float_to_bf16((float)v));
    default: memset(out, 0xff, count * sizeof *out); return;     /* NaN */
    }
}

/* From the end: a float overwrites only bf16 values that were read. */
void convert_widen(float *values, size_t count) {
    for (size_t i = count; i-- > 0;) {
        bf16 bits;
        memcpy(&bits, (const char *)values + i * sizeof bits, sizeof bits);
        values[i] = bf16_to_float(bits);
    }
}

void convert_round(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = bf16_to_float(float_to_bf16(values[i]));
}
