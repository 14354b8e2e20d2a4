/* Arguments of the kernels: one structure a kernel, passed by value. Plain C, read by both compilers.
 *
 * Packed weights. A packed column is a row of W; units of 16 packed columns are the grain of everything:
 *   plain   column p is output p
 *   paired  the first 8 of a unit are outputs 8u … 8u+7 of one half, the last 8 the outputs that go with
 *           them in the other half (gate and up; i and i + head_dim/2 of a head that RoPE rotates), so that
 *           one thread holds both
 *
 *   bf16    atoms of 8 packed columns x 64 k, 1024 bytes, ordered [column/8][k/64]. Inside an atom
 *           the 16 bytes k/8 of column c stand at c·128 + ((k/8 ^ c) % 8)·16: a swizzle of 128 bytes, so that
 *           eight columns are read without bank conflicts
 *   bf16, GPU_LAYOUT_LANES  (AMD) the same bytes in units of 16 packed columns x 64 k, ordered
 *           [column/16][k/64][k/8][column]: what the 64 lanes of a wave give to a matrix instruction follows
 *           each other, 16 bytes a lane
 *   int8    as bf16, but that 16 bytes are 16 of k, and an atom is 8 packed columns x 128 k
 *   fp32    [column][k rounded up to 4]
 *
 * What pads columns and k is zero. */
#ifndef BACKEND_GPU_KERNELS_ARGS_H
#define BACKEND_GPU_KERNELS_ARGS_H

#include <stdint.h>

#include "row_order.h"

enum { GPU_UNIT = 16, GPU_ATOM_K = 64, GPU_ATOM_BYTES = 1024 };

/* Layouts of packed bf16 weights: a vendor has one (gpu_vendor.layout). */
enum { GPU_LAYOUT_SWIZZLED, GPU_LAYOUT_LANES };

/* Where a row of an activation stands: r itself, map[r], or (r / group)·stride + offset + r % group. */
typedef struct gpu_row_map {
    const int32_t *map;
    int group, stride, offset;             /* group 0: none                                                 */
} gpu_row_map;

/* Rows whose actions are known (row_set.known): their norm weights, norm biases and gates begin `at` floats
 * after those of other rows, and their x_t stays as it is. Where `times` is not 0, which only the kernels of
 * norm, add and activate meet, rows[r] is 0 … times-1, and those of row r begin rows[r]·at floats on. */
typedef struct gpu_known {
    const int32_t *rows;                   /* [capacity] 1: known; NULL: none is                            */
    int at, times;
} gpu_known;

/* Weights that a later kernel reads, which are copied into the second-level cache meanwhile. bytes: a
 * multiple of 1024, 0 none. */
typedef struct gpu_ahead {
    const void *data;
    uint32_t bytes;
} gpu_ahead;

/* Formats of weights that kernels read (ops/weights.h has what they mean). To add one: a number here, its
 * layout in pack.c, and a family that lists products with it. */
enum {
    GPU_WEIGHT_F32,
    GPU_WEIGHT_BF16,
    GPU_WEIGHT_INT8X8,                     /* codes of 8 bits, for rows of 8 bits (INPUT_INT8)              */
    GPU_WEIGHT_INT8,                       /* codes of 8 bits, a scale for 64 k, for rows as they are       */
};

typedef struct gpu_weights {
    const void *data;
    const float *scales;                   /* by logical row and then by k; NULL: the format has none       */
    int columns;                           /* packed, a multiple of 16                                      */
    int k;                                 /* logical                                                       */
    int blocks;                            /* atoms along k: blocks of 64 k, of int8 128                    */
    int type;                              /* type of data                                                  */
} gpu_weights;

enum { GPU_EPILOGUE_STORE, GPU_EPILOGUE_GATED, GPU_EPILOGUE_RESIDUAL, GPU_EPILOGUE_QKV };
enum { GPU_ACT_NONE, GPU_ACT_GELU, GPU_ACT_SILU };

/* What becomes of the sums of a row. */
typedef struct gpu_epilogue {
    int kind, activation;
    int f32;                               /* type of out, q, k, v                                          */
    int n;                                 /* logical outputs of out                                        */
    int n_second;                          /* GATED: bias of up starts here                                 */
    const float *bias;                     /* [n] or NULL                                                   */
    const float *gate;                     /* RESIDUAL: [n] or NULL                                         */
    gpu_known known;                       /* also of the product's norm                                    */
    const float *add;                      /* STORE: [add_period][n] added by row r % add_period, or NULL   */
    int add_period;
    gpu_row_map to;
    int split; /* STORE: out is bf16 [.][2·n], upper parts and what is left of them */
    void *out;                             /* [.][n]; QKV: q [rows][heads·head_dim]                         */
    /* QKV */
    const float *rope;                     /* [positions][head_dim/2][2]                                    */
    const int32_t *sample, *position;
    void *k, *v;                           /* a sample's block: [capacity][head_dim]                        */
    int heads, head_dim, capacity;
    int head_columns;                      /* packed columns of a q or k head                               */
    /* Velocity: v = out fp32, x_t += dt·v */
    float *x_t;
    float dt;
} gpu_epilogue;

enum { GPU_NORM_NONE, GPU_NORM_LAYER, GPU_NORM_RMS };

enum { GPU_X_F32, GPU_X_BF16, GPU_X_PIXELS, GPU_X_INT8 };

/* Every product x·Wᵀ: linear_simt and linear_rows take any type and shape, the others bf16. */
typedef struct gpu_linear {
    const int32_t *count;                  /* [1] rows in use                                               */
    int capacity;                          /* most rows                                                     */
    int x_type;
    const void *x;                         /* [.][ldx]                                                      */
    int ldx;                               /* also the columns that exist: what lies after them is zero     */
    gpu_row_map from;
    const int32_t *pixels;                 /* [1] openpi_pixels                                             */
    gpu_weights weights;
    gpu_epilogue epilogue;
    int norm;                              /* norm taken of x before the product                            */
    const float *norm_weight, *norm_bias;
    float eps;
    int round;                             /* 1: its result is rounded to bf16                              */
    int k_blocks;                          /* blocks of 64 k in x; if W has fewer, W repeats                */
    int stages;                            /* chunks in flight; in a family for few rows bytes of
                                              shared memory before the norm's parameters                    */
    gpu_ahead ahead;
} gpu_linear;

typedef struct gpu_norm {
    const int32_t *count;
    const void *x;                         /* act [.][k]                                                    */
    gpu_row_map from;
    int f32, k;
    int kind;
    const float *weight, *bias;
    gpu_known known;
    float eps;
    void *out;                             /* act [count][k]                                                */
} gpu_norm;

typedef struct gpu_patches {
    const int32_t *count;
    const void *images;
    const int32_t *pixels;
    void *out; /* bf16 [rows][2·ld]: upper parts, then what is left of each pixel */
    int ld;
} gpu_patches;

typedef struct gpu_text {
    const int32_t *count, *ids;
    const void *table;                     /* [.][width]                                                    */
    int table_f32, width;
    float scale;
    const int32_t *out_row;
    int f32;
    void *out;
} gpu_text;

typedef struct gpu_image_attention {
    const int32_t *count;
    const void *qkv; /* act; row r of q at r·stride, of k `next` elements on, of v twice that */
    int f32, heads, head_dim;
    float scale;
    void *out;                             /* act [rows][heads·head_dim]                                    */
    int stride;
    int64_t next;
} gpu_image_attention;

typedef struct gpu_cache_attention {
    const int32_t *count, *sample, *keys, *position;
    const void *q;                         /* act [rows][heads·head_dim]                                    */
    const void *k, *v;
    int f32, heads, head_dim, capacity;
    float scale;
    void *out;
    /* over splits: each takes the keys i·span … i·span + span - 1 and leaves unscaled sums */
    int splits, span;
    float *part;                           /* [splits][rows·heads][head_dim]                                */
    float *part_stats;                     /* [splits][rows·heads][2]: maximum, sum                         */
    int part_rows;                         /* rows·heads at capacity, split or not                          */
    int early;                             /* not 0: keys before the sample's first row are long written,
                                              and a sample has no more rows than this                       */
    gpu_ahead ahead;                       /* attention_cluster                                             */
} gpu_cache_attention;

/* ---- pointwise.cu ----------------------------------------------------------------------------------- */

typedef struct gpu_activate {
    const int32_t *count;
    const float *bias;
    int activation;
    const void *up;                        /* act [rows][n] or NULL                                         */
    const int32_t *row;
    int n, f32;
    void *x;                               /* act [.][n], in and out                                        */
    gpu_known known;                       /* the bias'                                                     */
} gpu_activate;

typedef struct gpu_add {
    const int32_t *count;
    const void *y;
    const float *bias, *gate;
    gpu_known known;
    int n, f32;
    void *x;
    const float *factor;                   /* [rows] of y, in the place of a gate; NULL: none               */
} gpu_add;

typedef struct gpu_rope_cache {
    const int32_t *count, *sample, *position;
    const void *q_in, *k_in, *v_in;
    int q_stride, kv_stride, heads, head_dim, capacity, f32;
    const float *rope;
    void *q, *k, *v;
} gpu_rope_cache;

typedef struct gpu_softmax {
    const int32_t *count, *keys;
    int heads, places, f32;
    float *scores;
} gpu_softmax;

/* Scores and values. */
typedef struct gpu_attend {
    const int32_t *count, *sample, *keys;
    const void *q;
    int q_stride, heads, head_dim, f32;
    float scale;
    const void *from;                      /* keys or values                                                */
    int stride;                            /* stride of an image's rows; 0: caches                          */
    int capacity;                          /* places a sample or image has                                  */
    float *scores;
    int places;
    int tiles;                             /* tiles of 64 outputs                                           */
    void *out;
} gpu_attend;

typedef struct gpu_raw {
    const void *rows;                      /* [n][k]                                                        */
    void *out;
    int k, columns, blocks, f32;
    gpu_row_order order;                   /* as packed                                                     */
    int int8;                              /* 1: rows are codes of 8 bits                                   */
} gpu_raw;

/* Packed weights as packed fp32: codes times scales. */
typedef struct gpu_unpack {
    gpu_weights weights;
    gpu_epilogue epilogue;                 /* the product's, which says which row a column is               */
    float *out;
} gpu_unpack;

/* roof_*: what the device can do at best. */
typedef struct gpu_roof_work {
    const void *from;
    void *to;
    unsigned long long pieces;             /* pieces of 16 bytes, a multiple of 8 x the threads of the grid */
    int loops;
    long long *clocks;                     /* [1] that the first block took                                 */
    float *sink; /* [1] written only if a sum were exactly a number that it is not */
} gpu_roof_work;

#endif
