/* Arguments of the resident vision kernel, and the sizes both sides agree on. Plain C, read by both
 * compilers.
 *
 * The kernel is made for the layers of SigLIP So400m/14 (width 1152, 16 heads, 4304 hidden units; a head's 72
 * dims and an image's 256 tokens are IMAGE_HEAD and IMAGE_KEYS) and for up to three images. The whole grid
 * must be resident at once. */
#ifndef BACKEND_GPU_CUDA_VISION_H
#define BACKEND_GPU_CUDA_VISION_H

#include "backend/gpu/cuda/attention/attention_image_hopper.h"

enum {
    VISION_WIDTH = 1152,
    VISION_HIDDEN = 4304,
    VISION_HIDDEN_PITCH = 4352,            /* pitch of rows in memory: whole lines of 128 bytes             */
    VISION_HEADS = 16,
    VISION_IMAGES = 3,                     /* most                                                          */
    VISION_LAYERS = 27,                    /* most                                                          */
    VISION_CONSUMERS = 2,                  /* warpgroups that multiply; one more serves them                */
    VISION_THREADS = (VISION_CONSUMERS + 1) * 128,

    /* Shared memory: the ring, what vision_block.cuh lists after it (it checks that this is enough). On
     * Hopper gpu_shared_bytes is this, 2048 bytes less than a block may have. */
    VISION_SHARED = 230400,

    /* fc2 has tiles of 128 x 112, whose k blocks share: as many parts as an image's blocks allow. */
    VISION_SUM_TILES = 2 * 11,             /* tiles of sums an image                                        */
    VISION_PARTS = 8,                      /* most: a part finishes the rows of a warp at least             */

    /* Of each image: what every launch finds zero and leaves zero, its progress, how many of its blocks have
     * ended, and how many parts of sums each warp of each tile of fc2 has got; then moments of the rows of x,
     * [part of the columns][row], and centers, [2][row] (vision_norm.cuh). */
    VISION_GOT_AT = 128,
    VISION_PROGRESS = VISION_GOT_AT + VISION_SUM_TILES * 8 * 4 + 64, /* whole lines                         */
    VISION_MOMENT_PARTS = 24,              /* most                                                          */
    VISION_CENTERS_AT = VISION_PROGRESS + VISION_MOMENT_PARTS * IMAGE_KEYS * 8,
    VISION_IMAGE_BYTES = VISION_CENTERS_AT + 2 * IMAGE_KEYS * 4,
    /* After that sums of fc2 on their way to the block that finishes them, of every block; then hidden
     * values. */
    VISION_SUMS_AT = VISION_IMAGES * VISION_IMAGE_BYTES,
    VISION_SUMS = 128 * 112 * 4,
    VISION_HIDDEN_BYTES = VISION_IMAGES * IMAGE_KEYS * VISION_HIDDEN_PITCH * 2,
};

enum { VISION_MATRIX_QKV, VISION_MATRIX_OUT, VISION_MATRIX_FC1, VISION_MATRIX_FC2, VISION_MATRICES };

/* Maps of a matrix's atoms, [column/8][k/64][256 words]: boxes of one k and of so many groups of 8 columns as
 * VISION_BOXES says, for three images and for fewer; of fc2 it is the same one. */
enum { VISION_MAPS = 2, VISION_LAYER_MAPS = 7 };
#define VISION_BOXES {{20, 14}, {14, 3}, {25, 17}, {14, 14}}
/* The place of a matrix's map among a layer's. */
#define VISION_MAP_AT(matrix, map) (2 * (matrix) + ((matrix) == VISION_MATRIX_FC2 ? 0 : (map)))

/* Maps of what is stored: boxes of so many groups of 8 columns and of so many rows, which are those of a
 * warp. By images, one to three. An even number of groups, where the tile has one, begins and ends with a
 * sector of the second-level cache (32 bytes), so that none is written twice. */
enum {
    VISION_STORE_QKV,
    VISION_STORE_ATTENDED,
    VISION_STORE_OUT,                      /* scaled rows                                                   */
    VISION_STORE_HIDDEN,
    VISION_STORE_FC2,                      /* scaled rows, and                                              */
    VISION_STORE_X,                        /* after the last layer x                                        */
    VISION_STORES
};
#define VISION_STORE_BOXES                                                \
    {{{14, 8}, {9, 8}, {6, 8}, {17, 8}, {14, 16}, {14, 16}},              \
     {{14, 16}, {9, 8}, {9, 8}, {17, 16}, {14, 16}, {14, 16}},            \
     {{10, 16}, {9, 16}, {14, 8}, {5, 16}, {14, 16}, {14, 16}}}

typedef struct vision_layer_weights {
    gpu_tensor_map maps[VISION_LAYER_MAPS];
    const float *bias[VISION_MATRICES];    /* [columns]; for qkv and fc1 bias' of gpu_vision_fold           */
    /* Norms before qkv and before fc1: sums of gpu_vision_fold, [columns]; the weight, [width]. */
    const float *sums[2], *norm_weight[2];
} vision_layer_weights;

typedef struct gpu_vision {
    /* Of what products read: bf16 [rows][k], boxes of 64 k x 64 rows, swizzled. */
    gpu_tensor_map scaled, attended, hidden;
    /* Of qkv as [rows][q, k, v][heads][72]: boxes of 64 (swizzled) or 8 dims of 64 rows, and of all rows of
     * an image. */
    gpu_tensor_map rows_main, rows_rest, keys_main, keys_rest;
    gpu_tensor_map stores[VISION_IMAGES][VISION_STORES];
    vision_layer_weights layers[VISION_LAYERS];
    const int32_t *count;                  /* [1] rows in use, a multiple of 256                            */
    void *x;                               /* bf16 [rows][width], in and out                                */
    /* What the maps lead to. */
    void *to_scaled, *to_attended;         /* bf16 [rows][width]                                            */
    void *to_qkv;                          /* bf16 [rows][3·width]                                          */
    void *to_hidden;                       /* bf16 [rows][VISION_HIDDEN_PITCH]                              */
    void *images;                          /* VISION_IMAGE_BYTES each                                       */
    void *sums;                            /* VISION_SUMS bytes a block                                     */
    int depth;
    float eps, scale;                      /* eps of the norms; scale of the scores                         */
} gpu_vision;

/* What is left of a layer norm before a product when x·norm_weight is multiplied, not the norm of x:
 *   sums[o] = Σ W[o][i]·norm_weight[i],  bias'[o] = bias[o] + Σ W[o][i]·norm_bias[i]
 * so that (norm(x)·Wᵀ + bias)[o] = ((x·norm_weight)·Wᵀ[o] - mean·sums[o])·rsqrt(var + eps) + bias'[o]. */
typedef struct gpu_vision_fold {
    const void *weight;                    /* atoms of bf16                                                 */
    const float *norm_weight, *norm_bias;  /* [k]                                                           */
    const float *bias;                     /* [n]                                                           */
    float *out;                            /* [2][n]: sums, bias'                                           */
    int n, k;
} gpu_vision_fold;

#endif
