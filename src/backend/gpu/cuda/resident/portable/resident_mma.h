/* Arguments of resident_mma's kernels, and the sizes both sides agree on. Plain C, read by both compilers.
 *
 * A launch computes the layers of one denoise step, or (stop_early) the first product of a layer alone. All
 * blocks of the grid must be alive at once. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_MMA_H
#define BACKEND_GPU_CUDA_RESIDENT_MMA_H

#include "backend/gpu/kernels/args.h"

enum {
    RESIDENT_MMA_LAYERS = 18,              /* most                                                          */
    RESIDENT_MMA_ROWS = 16,                /* most                                                          */
    RESIDENT_MMA_QUERIES = 128,            /* most: rows times heads                                        */
    RESIDENT_MMA_HEAD = 256,               /* dimensions of a head                                          */
    RESIDENT_MMA_WIDTH = 1024,             /* most; of qkv's and gate_up's inputs                           */
    RESIDENT_MMA_ATTENDED = 2048,          /* most inputs of o                                              */
    RESIDENT_MMA_HIDDEN = 4096,            /* most inputs of down                                           */
    RESIDENT_MMA_TILES = 32,               /* most tiles of 64 keys                                         */
    RESIDENT_MMA_THREADS = 256,

    /* Shared memory: a ring for each warp; queries, 64 keys or values, weights of keys and maxima, over which
     * sums of products lie; what each warp has of the products; squares of rows. */
    RESIDENT_MMA_SLOT = 8 * 1024,          /* an atom for each warp                                         */
    RESIDENT_MMA_TILE = (16 + 64) * 512 + 16 * (128 + 32),
    RESIDENT_MMA_SHARES = 8 * 4 * 24,      /* what each warp has of each product                            */
    RESIDENT_MMA_BESIDE = RESIDENT_MMA_TILE + RESIDENT_MMA_SHARES + 16 * 8 * 4,

    /* What a tile of keys leaves of each query: maximum, sum of weights, sums of values. */
    RESIDENT_MMA_PART = 2 + RESIDENT_MMA_HEAD,
};

/* The products of a layer, in their order. */
enum {
    RESIDENT_MMA_QKV,
    RESIDENT_MMA_O,
    RESIDENT_MMA_GATE_UP,
    RESIDENT_MMA_DOWN,
    RESIDENT_MMA_PRODUCTS,
};

/* A product's weights as its units read them: groups of 8 columns each, blocks of 64 k. */
typedef struct resident_mma_size {
    int units, groups, blocks;
} resident_mma_size;

typedef struct resident_mma_layer {
    const void *weights[RESIDENT_MMA_PRODUCTS];            /* packed                                        */
    const float *scale_in, *shift_in, *gate_in;            /* shifts and gates may be NULL                  */
    const float *scale_post, *shift_post, *gate_post;
} resident_mma_layer;

typedef struct gpu_resident_mma {
    resident_mma_layer layers[RESIDENT_MMA_LAYERS];
    int depth;
    int stop_early;                        /* 1: only qkv of the first layer                                */
    int width, hidden, heads;              /* logical                                                       */
    resident_mma_size sizes[RESIDENT_MMA_PRODUCTS];
    const int32_t *count, *sample, *position, *keys;       /* [1]; one a row                                */
    gpu_known known;
    const float *rope;
    void *x, *q;                           /* bf16 [rows][width], [rows][heads·256]                         */
    void *x_pieces, *attended, *hidden_rows;               /* bf16 [columns / 32][16 rows][32]              */
    void *k, *v;                           /* bf16 [places][256] of the first layer                         */
    int64_t cache_bytes;                   /* from a layer to the next one                                  */
    int capacity;                          /* places of a sample                                            */
    float eps, scale;
    uint64_t *arrivals;
    float *parts;                          /* [tiles][128 queries][2], then [tiles][128 queries][256]       */
    int tiles;                             /* that there is memory for                                      */
} gpu_resident_mma;

#endif
