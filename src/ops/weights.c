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

/* The largest magnitude of the group becomes ±127; -128 is not used. */
static void encode_int8(const float *from, int count, void *codes, float *scale) {
    float top = 0;
    for (int i = 0; i < count; i++) top = fmaxf(top, fabsf(from[i]));
    *scale = top / 127;
    for (int i = 0; i < count; i++)
        ((int8_t *)codes)[i] =
            (int8_t)(*scale > 0 ? fmaxf(-127, fminf(127, nearbyintf(from[i] / *scale))) : 0);
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
