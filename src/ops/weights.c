/* The table of weight formats, and rows in and out of them. */
#include "ops/weights.h"

#include <math.h>

static void decode_f32(const void *row, size_t first, int count, float *out) {
    memcpy(out, (const float *)row + first, (size_t)count * sizeof *out);
}

static void decode_bf16(const void *row, size_t first, int count, float *out) {
    const bf16 *codes = (const bf16 *)row + first;
    for (int i = 0; i < count; i++) out[i] = bf16_to_float(codes[i]);
}

static void decode_int8(const void *row, size_t first, int count, float *out) {
    const int8_t *codes = (const int8_t *)row + first;
    for (int i = 0; i < count; i++) out[i] = codes[i];
}

/* The largest magnitude, NaN left out. Magnitudes are compared as bits, which compilers make vectors of. */
static float largest(const float *from, int count) {
    const int32_t infinity = 0x7f800000;
    int32_t top = 0;
    float size;
    for (int i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        bits &= 0x7fffffff;
        bits = bits > infinity ? 0 : bits;
        top = bits > top ? bits : top;
    }
    memcpy(&size, &top, sizeof size);
    return size;
}

/* The largest magnitude of the group becomes ±127; -128 is not used. nearbyintf is a call in portable code;
 * adding and taking away 1.5·2²³ rounds small numbers in the same way, in vectors. NaN becomes 127. */
static void encode_int8(const float *from, int count, void *codes, float *scale) {
    const float whole = 0x1.8p23f, by = largest(from, count) / 127;
    int8_t *to = codes;
    *scale = by;
    for (int i = 0; i < count; i++) {
        float x = by > 0 ? from[i] / by : 0;
        x = x < 127 ? x : 127;
        x = x > -127 ? x : -127;
        to[i] = (int8_t)(x + whole - whole);
    }
}

/* ---- e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa ---- */

enum { E4M3_TOP = 448, E4M3_TOP_CODE = 0x7e, E4M3_NAN = 0x7f, E4M3_SIGN = 0x80 };

uint8_t e4m3_from_float(float x) {
    float size = fabsf(x);
    int exponent, code = E4M3_TOP_CODE;
    if (isnan(x)) {
        code = E4M3_NAN;
    } else if (size < 0x1p-6f) {           /* multiples of 2⁻⁹; the eighth is the first normal number       */
        code = (int)nearbyintf(size * 0x1p9f);
    } else if (size < E4M3_TOP) {          /* 8 to 16 units of the last place: 16 goes to the next exponent */
        frexpf(size, &exponent);
        code = (exponent + 6) * 8 + (int)nearbyintf(ldexpf(size, 4 - exponent)) - 8;
    }
    return (uint8_t)(code | (signbit(x) ? E4M3_SIGN : 0));
}

float e4m3_to_float(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float size = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : (float)mantissa * 0x1p-9f;
    if ((code & E4M3_NAN) == E4M3_NAN) size = NAN;
    return code & E4M3_SIGN ? -size : size;
}

static void decode_e4m3(const void *row, size_t first, int count, float *out) {
    const uint8_t *codes = (const uint8_t *)row + first;
    for (int i = 0; i < count; i++) out[i] = e4m3_to_float(codes[i]);
}

/* The largest magnitude of the group becomes ±448. */
static void encode_e4m3(const float *from, int count, void *codes, float *scale) {
    float top = 0;
    for (int i = 0; i < count; i++) top = fmaxf(top, fabsf(from[i]));
    *scale = top / E4M3_TOP;
    for (int i = 0; i < count; i++)
        ((uint8_t *)codes)[i] = *scale > 0 ? e4m3_from_float(from[i] / *scale) : 0;
}

const weight_format weight_formats[WEIGHT_TYPES] = {
#define X(constant, text, width, inputs, from, decoder, encoder)                                             \
    [constant] = {                                                                                           \
        .name = text, .bits = width, .group = inputs, .source = from, .decode = decoder, .encode = encoder},
    WEIGHT_LIST(X)
#undef X
};

static int group_of(const weight_format *f, int k) { return f->group == WEIGHT_WHOLE_ROW ? k : f->group; }

int weight_groups(const weight_format *f, int k) {
    int group = group_of(f, k);
    return group ? (k + group - 1) / group : 0;
}

size_t weight_row_bytes(const weight_format *f, int k) { return ((size_t)k * (size_t)f->bits + 7) / 8; }

void weight_encode(const weight_format *f, const float *row, int k, void *codes, float *scales) {
    int group = group_of(f, k);
    for (int at = 0, g = 0; at < k; at += group, g++)
        f->encode(row + at, k - at < group ? k - at : group, (char *)codes + weight_row_bytes(f, at),
                  &scales[g]);
}

void weight_decode(const weight_format *f, const void *codes, const float *scales, int k, int first,
                   int count, float *out) {
    int group = group_of(f, k);
    f->decode(codes, (size_t)first, count, out);
    for (int i = 0; group && i < count; i++) out[i] *= scales[(first + i) / group];
}
