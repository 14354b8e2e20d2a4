/* The formats that weights are kept in: a table with one row a format.
 *
 * A weight is value = code · scale. Codes and scales lie apart:
 *   codes    a row of a matrix takes weight_row_bytes. In the definitions rows follow each other; a backend
 *            packs them in the order in which its kernels read them
 *   scales   fp32 [n][weight_groups(k)], by logical row like biases, in whatever order a backend packs the
 *            codes. Each scale belongs to `group` inputs of one output. NULL: a format without scales
 *
 * To add a format: a row in WEIGHT_LIST with its decoder and its encoder (weights.c), which makes it run
 * on the definitions of reference.c and, decoded before each product, on every level of the CPU; a row in
 * FORMAT_LIST (model/formats.h), which lets users ask for it; then a kernel that takes it. A backend answers
 * which formats it runs (backend.takes_weights), and an engine that asks for another is refused with a
 * sentence when it opens. */
#ifndef OPS_WEIGHTS_H
#define OPS_WEIGHTS_H

#include "base/dtype.h"

/* X(constant, name, bits a code, inputs that share a scale, what a row is read as before it is encoded,
 * decoder, encoder)
 *
 * int8 and int8_row are the same codes, -127 … 127, with a scale for 64 inputs or for all of an output.
 * e4m3 is OCP's 8-bit float: 3 bits of mantissa, largest 448, no infinity, NaN 0x7f and 0xff; the scale makes
 * 448 of an output's largest weight. */
#define WEIGHT_LIST(X)                                                      \
    X(WEIGHT_F32, "f32", 32, 0, DTYPE_F32, decode_f32, NULL)                \
    X(WEIGHT_BF16, "bf16", 16, 0, DTYPE_BF16, decode_bf16, NULL)            \
    X(WEIGHT_INT8, "int8", 8, 64, DTYPE_F32, decode_int8, encode_int8)      \
    X(WEIGHT_INT8_ROW, "int8_row", 8, WEIGHT_WHOLE_ROW, DTYPE_F32, decode_int8, encode_int8) \
    X(WEIGHT_E4M3, "e4m3", 8, WEIGHT_WHOLE_ROW, DTYPE_F32, decode_e4m3, encode_e4m3)

typedef enum weight_type {
#define X(constant, ...) constant,
    WEIGHT_LIST(X)
#undef X
    WEIGHT_TYPES
} weight_type;

enum { WEIGHT_WHOLE_ROW = -1 };  /* group: one scale an output                                            */

typedef struct weight_format {
    const char *name;
    int bits;                    /* a code                                                                */
    int group;                   /* inputs that share a scale; 0: no scales; WEIGHT_WHOLE_ROW             */
    dtype source;                /* what a row is read as before it is encoded: fp32 or bf16              */
    /* Codes first … first+count-1 of a row, without their scale. */
    void (*decode)(const void *row, size_t first, int count, float *out);
    /* One group: `count` codes, the first at the beginning of *codes, and their scale. NULL: a row as it
     * is read is its codes. */
    void (*encode)(const float *from, int count, void *codes, float *scale);
} weight_format;

extern const weight_format weight_formats[WEIGHT_TYPES];

/* The format that keeps values of an activations' type as they are. */
static inline weight_type weight_of(dtype type) { return type == DTYPE_BF16 ? WEIGHT_BF16 : WEIGHT_F32; }

/* Scales of a row of k weights. */
int weight_groups(const weight_format *format, int k);
/* Bytes of the codes of a row of k weights. */
size_t weight_row_bytes(const weight_format *format, int k);

/* A row of k weights into codes and scales. The format has an encoder. */
void weight_encode(const weight_format *format, const float *row, int k, void *codes, float *scales);
/* Weights first … first+count-1 of a row of k; scales: the row's, NULL where the format has none. */
void weight_decode(const weight_format *format, const void *codes, const float *scales, int k, int first,
                   int count, float *out);

/* One e4m3 code: rounded to nearest even, saturating at ±448; NaN keeps its sign. */
uint8_t e4m3_from_float(float x);
float e4m3_to_float(uint8_t code);

#endif
