/* Arguments of the resident vision kernel, and the sizes both sides agree on. Plain C, read by both
 * compilers.
 *
 * The kernel is made for the layers of SigLIP So400m/14 (width 1152, 16 heads, 4304 hidden units; a head's 72
 * dims and an image's 256 tokens are IMAGE_HEAD and IMAGE_KEYS) and for up to three images. The whole grid
 * must be resident at once. */
#ifndef BACKEND_GPU_CUDA_VISION_H
#define BACKEND_GPU_CUDA_VISION_H

#include "backend/gpu/cuda/attention_image_hopper.h"

enum {
    VISION_WIDTH = 1152,
    VISION_HIDDEN = 4304,
    VISION_HIDDEN_PITCH = 4352,            /* of rows in memory: whole lines of 128 bytes                   */
    VISION_HEADS = 16,
    VISION_IMAGES = 3,                     /* most                                                          */
    VISION_LAYERS = 27,                    /* most                                                          */
    VISION_CONSUMERS = 2,                  /* warpgroups that multiply; one more copies                     */
    VISION_THREADS = (VISION_CONSUMERS + 1) * 128,

    /* Shared memory: the ring, what vision_block.cuh lists after it (it checks that this is enough). On
     * Hopper gpu_shared_bytes is this, 2048 bytes less than a block may have. */
    VISION_SHARED = 230400,

    /* fc2 has tiles of 128 x 112, whose k blocks share: as many parts as an image's blocks allow. */
    VISION_SUM_TILES = 2 * 11,             /* of an image                                                   */
    VISION_PARTS = 8,                      /* most: a part finishes the rows of a warp at least             */

    /* What every launch finds zero and leaves zero: of each image its progress, how many of its blocks have
     * ended, and how many parts of sums each warp of each tile of fc2 has got. */
    VISION_GOT_AT = 128,
    VISION_PROGRESS = VISION_GOT_AT + VISION_SUM_TILES * 8 * 4 + 64, /* whole lines                         */
    VISION_PROGRESS_BYTES = VISION_IMAGES * VISION_PROGRESS,
    /* After that sums of fc2 on their way to the block that finishes them, of every block; then hidden
     * values. */
    VISION_SUMS_AT = 4096,
    VISION_SUMS = 128 * 112 * 4,
    VISION_HIDDEN_BYTES = VISION_IMAGES * IMAGE_KEYS * VISION_HIDDEN_PITCH * 2,
};

typedef struct vision_norm {
    const float *weight, *bias;            /* [width]                                                       */
} vision_norm;

/* Maps of a matrix's atoms, [column/8][k/64][256 words]: boxes of one k and of so many groups of 8 columns as
 * VISION_BOXES says, for three images and for fewer. */
enum { VISION_MAPS = 2 };
#define VISION_BOXES {{20, 14}, {14, 3}, {25, 17}, {14, 14}}
enum { VISION_MATRIX_QKV, VISION_MATRIX_OUT, VISION_MATRIX_FC1, VISION_MATRIX_FC2, VISION_MATRICES };

typedef struct vision_layer_weights {
    gpu_tensor_map maps[VISION_MATRICES][VISION_MAPS];
    const float *bias[VISION_MATRICES];    /* [columns]                                                     */
    vision_norm norm[2];                   /* before qkv, before fc1                                        */
} vision_layer_weights;

typedef struct gpu_vision {
    /* Of what products read: bf16 [rows][k], boxes of 64 k x 64 rows, swizzled. */
    gpu_tensor_map normed, attended, hidden;
    /* Of qkv as [rows][q, k, v][heads][72]: boxes of 64 (swizzled) or 8 dims of 64 rows. */
    gpu_tensor_map heads_main, heads_rest;
    vision_layer_weights layers[VISION_LAYERS];
    const int32_t *count;                  /* [1] rows in use, a multiple of 256                            */
    void *x;                               /* bf16 [rows][width], in and out                                */
    void *to_normed;                       /* bf16 [rows][width]                                            */
    void *to_qkv;                          /* bf16 [rows][3·width]                                          */
    void *to_attended;                     /* bf16 [rows][width]                                            */
    void *to_hidden;                       /* bf16 [rows][VISION_HIDDEN_PITCH]                              */
    uint32_t *progress;                    /* VISION_PROGRESS_BYTES                                         */
    void *sums;                            /* VISION_SUMS bytes a block                                     */
    int depth;
    float eps, scale;                      /* of the norms; of the scores                                   */
} gpu_vision;

#endif
