/* Arguments of the resident kernels for many rows, and the sizes both sides agree on. Plain C, read by both
 * compilers.
 *
 * They are made for the action expert of π0 and π0.5, as the one for few rows (resident.h): LONG for 17 to
 * 64 rows of one sample (a long horizon), or up to 64 of two to four samples with 16 each at most; WIDE for
 * 60 to 96 of up to eight samples; the norms' shift is one of them. The whole grid must be resident at
 * once.
 *
 * In attention a block has a unit of rows and a part of the keys. A unit of one sample is a head's rows.
 * Where there are several samples, a unit of LONG is one sample's rows of four heads, with room for 16 rows a
 * head, and one of WIDE a sample's rows of all heads, one after the other. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_LONG_H
#define BACKEND_GPU_CUDA_RESIDENT_LONG_H

#include "backend/gpu/cuda/resident/few/resident.h"

enum {
    LONG_BLOCKS = 128,                     /* one has 8 columns of x and 32 hidden values                   */
    LONG_PART_KEYS = 64,                   /* keys of a block in attention                                  */
    LONG_PARTS = 16,                       /* most                                                          */
    LONG_SLOT = 16384,                     /* bytes of a slot of weights                                    */
    LONG_SLOT_K = 128,                     /* k of a slot of rows                                           */
    LONG_LINE = 128,                       /* 64 k of a row                                                 */
    LONG_SQUARES_AT = 128,
    LONG_SQUARES = 3,                      /* norms that have sums of squares at the same time              */
    LONG_QKV_GROUPS = 4,                   /* groups of 8 columns of a block: qkv                           */
    LONG_GATE_UP_GROUPS = 8,
};

/* The kernel for 64 rows. */
enum {
    LONG_ROWS = 64,                        /* most, with the shift                                          */
    LONG_SAMPLES = 4,                      /* most                                                          */
    LONG_HEADS_LOG2 = 2,                   /* where there are several: heads of a unit, and                 */
    LONG_HEAD_ROWS = LONG_ROWS >> LONG_HEADS_LOG2, /* most rows of a sample                                 */
    LONG_TILES = 1,                        /* 64 rows each, with two warpgroups that multiply               */
    LONG_CLUSTER = 2,                      /* blocks that share k of o and of down                          */
    LONG_WEIGHT_SLOTS = 7,
    LONG_ROW_SLOTS = 6,                    /* an even number                                                */
    LONG_ROW_SLOT = 16384,                 /* bytes of one                                                  */
};

/* The kernel for 96 rows. */
enum {
    WIDE_ROWS = 96,
    WIDE_LEAST_ROWS = 60,                  /* without the shift: fewer are quicker by the ops' kernels      */
    WIDE_SAMPLES = 8,
    WIDE_HEADS_LOG2 = 3,
    WIDE_HEAD_ROWS = 16,
    WIDE_TILES = 2,
    WIDE_CLUSTER = 2,
    WIDE_WEIGHT_SLOTS = 6,
    WIDE_ROW_SLOTS = 4,
    WIDE_ROW_SLOT = 24576,
};

/* What follows from these, for each of the kernels.
 *
 * The family's memory on the device has [k/64][row][64] bf16 where rows of a product. First what every
 * launch finds zero and leaves zero: the blocks' progress, how many have ended, and sums of squares; from
 * PARTS_AT on [unit][part] outputs of attention. */
#define LONG_SIZES(KIND)                                                                                     \
    KIND##_TILE_ROWS = 64 * KIND##_TILES,                                                                    \
    KIND##_CONSUMERS = 256 * KIND##_TILES,             /* threads that multiply                           */ \
    KIND##_THREADS = KIND##_CONSUMERS + 64,            /* and two warps that copy                         */ \
    KIND##_SUMS_BYTES = 16384 * KIND##_TILES,                                                                \
    KIND##_SHARED = KIND##_WEIGHT_SLOTS * LONG_SLOT + KIND##_ROW_SLOTS * KIND##_ROW_SLOT +                   \
                    KIND##_SUMS_BYTES + 1024,                                                                \
    KIND##_UNITS = RESIDENT_HEADS,                                                                           \
    KIND##_ZEROS = LONG_SQUARES_AT + LONG_SQUARES * KIND##_TILE_ROWS * 2 * 8,                                \
    KIND##_SCALED_AT = KIND##_ZEROS,                                                                         \
    KIND##_Q_AT = KIND##_SCALED_AT + RESIDENT_WIDTH * KIND##_ROWS * 2,                                       \
    KIND##_ATTENDED_AT = KIND##_Q_AT + KIND##_UNITS * RESIDENT_HEAD * KIND##_TILE_ROWS * 2,                  \
    KIND##_HIDDEN_AT = KIND##_ATTENDED_AT + RESIDENT_HEADS * RESIDENT_HEAD * KIND##_ROWS * 2,                \
    KIND##_PARTS_AT = KIND##_HIDDEN_AT + RESIDENT_HIDDEN * KIND##_ROWS * 2,                                  \
    KIND##_STATS_AT =                                                                                        \
        KIND##_PARTS_AT + KIND##_UNITS * LONG_PARTS * RESIDENT_HEAD * KIND##_TILE_ROWS * 2,                  \
    KIND##_STATE = KIND##_STATS_AT + KIND##_UNITS * LONG_PARTS * KIND##_TILE_ROWS * 8

enum { LONG_SIZES(LONG) };
enum { LONG_SIZES(WIDE) };

typedef struct long_layer {
    /* Atoms as [column/8][k/64][256 words], boxes of a slot: these groups x as many 64 k as fit. */
    gpu_tensor_map qkv, gate_up, o, down;
    const float *scale_in, *shift_in, *gate_in;            /* [width]; shifts and gates may be NULL         */
    const float *scale_post, *shift_post, *gate_post;
} long_layer;

typedef struct gpu_resident_long {
    gpu_tensor_map state;                  /* lines of it, boxes of a slot: all rows, swizzled              */
    gpu_tensor_map queries;                /* the same, boxes of a unit's rows                              */
    gpu_tensor_map k, v;                   /* [sample][layer][4][place][64], boxes of a slot, swizzled      */
    long_layer layers[RESIDENT_LAYERS];
    const int32_t *count;                  /* rows of the step that are in use                              */
    const int32_t *position, *keys;        /* one a row                                                     */
    const float *rope;                     /* [positions][128][2]                                           */
    void *k_cache, *v_cache;               /* bf16 [places][256] of the first sample's layer 0              */
    int64_t k_layer, v_layer;              /* bytes from a layer to the next one                            */
    int64_t sample_bytes;                  /* from a sample's keys to the next one's                        */
    void *x;                               /* bf16 [rows][width], in and out                                */
    char *memory;                          /* LONG_STATE bytes                                              */
    int rows, shifts, depth;               /* shifts: 0 or 1                                                */
    int each;                              /* rows of a sample                                              */
    int heads_log2;                        /* log2 of a unit's heads, which have 64 >> heads_log2 rows each */
    int unit_height;                       /* a unit's rows in memory                                       */
    float eps, scale;
} gpu_resident_long;

/* Rows in memory: with the shift, whole groups of 8. */
#define LONG_HEIGHT(rows, shifts) (((rows) + (shifts) + 7) & ~7)

#endif
