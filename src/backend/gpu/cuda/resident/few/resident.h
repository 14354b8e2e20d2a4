/* Arguments of the resident denoise kernel, and the sizes both sides agree on. Plain C, read by both
 * compilers.
 *
 * The kernel is made for the action expert of π0 and π0.5 (Gemma 300M: width 1024, 4096 hidden units, 8
 * query heads and one key-value head of 256) and for one sample of up to 16 rows. More rows, and two to four
 * samples, are resident_long.h's. The whole grid must be resident at once. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_H
#define BACKEND_GPU_CUDA_RESIDENT_H

#include "backend/gpu/cuda/maps.h"

enum {
    RESIDENT_WIDTH = 1024,
    RESIDENT_HIDDEN = 4096,
    RESIDENT_HEADS = 8,
    RESIDENT_HEAD = 256,
    RESIDENT_LAYERS = 18,                  /* most                                                          */
    RESIDENT_ACTION = 32,                  /* dimensions of an action                                       */
    RESIDENT_ROWS = 16,                    /* most                                                          */
    RESIDENT_SHIFTS = 2,                   /* most: one, with known rows two                                */
    RESIDENT_FEW_ROWS = 12,                /* most of the kernel in which shifts are rows, too; else they
                                              are apart (resident_shifts_hopper.cu)                         */
    RESIDENT_CLUSTER = 8,                  /* blocks of a cluster                                           */
    RESIDENT_CLUSTERS = 15,                /* the first 8 are a head each                                   */
    RESIDENT_READERS = 512,                /* threads that multiply: 4 warpgroups                           */
    RESIDENT_COPIERS = 4,                  /* warps that copy                                               */
    RESIDENT_THREADS = RESIDENT_READERS + 32 * RESIDENT_COPIERS,

    /* Groups of 8 hidden units, which are 16 packed columns of gate and up: a rank has 4. In clusters that
     * are no head's the first four ranks have one more, in the last cluster all ranks: 15·32 + 6·4 + 8 =
     * 512. */
    RESIDENT_UNITS = 4,

    /* Keys. The TMA copies whole groups of 16 keys, at most 8 groups a block and 6 in the last block of the
     * cluster; what is left, fewer than 16, is read with the new keys. */
    RESIDENT_KEY_GROUP = 16,
    RESIDENT_BLOCK_GROUPS = 8,
    RESIDENT_LAST_GROUPS = 6,
    RESIDENT_MOST_KEYS =
        ((RESIDENT_CLUSTER - 1) * RESIDENT_BLOCK_GROUPS + RESIDENT_LAST_GROUPS) * RESIDENT_KEY_GROUP +
        RESIDENT_KEY_GROUP - 1, /* before the new ones */

    /* The exchange, memory that every launch finds and leaves as it is first filled: sums with 0, new keys
     * with 0xff. */
    RESIDENT_SUMS_BYTES = 4 * RESIDENT_CLUSTER * RESIDENT_ROWS * 64 * 8,
    RESIDENT_NEW_BYTES = 2 * RESIDENT_ROWS * RESIDENT_HEAD * 2, /* a layer's, [k, v][row][dim] bf16   */

    RESIDENT_STAGE = 8192,
    RESIDENT_STAGES = 16,                  /* stages in the ring; a multiple of RESIDENT_COPIERS            */
    RESIDENT_MORE_STAGES = 4,              /* more stages in blocks that keep no new keys                   */
    /* The ring, and after it what resident_block.cuh lists (it checks that this is enough). */
    RESIDENT_SHARED = RESIDENT_STAGES * RESIDENT_STAGE + 99328,
    RESIDENT_APART_STAGES = 12,            /* with shifts apart                                             */
    RESIDENT_APART_SHARED = RESIDENT_APART_STAGES * RESIDENT_STAGE + 125952,
    /* With int8 weights; bytes of the scales that a stage has beside it. */
    RESIDENT_SCALES = 512,
    RESIDENT_INT8_STAGES = 12,
    RESIDENT_INT8_SHARED = RESIDENT_INT8_STAGES * RESIDENT_STAGE + 129536,
    RESIDENT_INT8_APART_STAGES = 8,
    RESIDENT_INT8_APART_SHARED = RESIDENT_INT8_APART_STAGES * RESIDENT_STAGE + 160768,
};

typedef struct resident_layer {
    gpu_tensor_map qkv, gate_up, o, down;  /* atoms as [column/8][k/64][256 words], boxes of 8 x 1 atoms    */
    gpu_tensor_map fifth;                  /* gate_up once more, boxes of 2 x 1                             */
    const float *scale_in, *shift_in, *gate_in;            /* [width]; shifts and gates may be NULL         */
    const float *scale_post, *shift_post, *gate_post;
} resident_layer;

/* [row of W][k/64] */
typedef struct resident_scales {
    const float *qkv, *gate_up, *o, *down;
} resident_scales;

/* What comes after the layers of a step: velocity and Euler's step, where there is one the guide of real-time
 * chunking, and, between two steps of one launch, the embedding. */
typedef struct resident_actions {
    int rows, first;                       /* actions, 0: no velocity here; x's row of the first one        */
    gpu_weights out;                       /* n = 32, k = width                                             */
    const float *out_bias;
    const float *scale, *shift;            /* parameters of the norm before it, in the first step           */
    float dt;
    float *x_t, *velocity;                 /* [rows][32]                                                    */
    const float *target, *weight, *gain;   /* the guide: [rows][32], [rows], [steps]; gain NULL: none       */
    float t;                               /* time after the first step, for the guide                      */
    gpu_weights in;                        /* n = width, k = 32                                             */
    const float *in_bias;                  /* [width], or of π0's MLP in the second step                    */
    int in_floats;                         /* from a step's to the next one's                               */
    int mlp;                               /* 1: π0, SiLU and one more product follow                       */
    const float *mlp_bias;
} resident_actions;

typedef struct gpu_resident {
    gpu_tensor_map k, v;                   /* [layers][places][256], boxes of 16 places x 64 dims, swizzled */
    gpu_tensor_map mlp;                    /* π0's second product of the embedding, boxes of 8 x 1          */
    resident_layer layers[RESIDENT_LAYERS];
    const int32_t *position, *keys;        /* one a row                                                     */
    gpu_known known;
    const float *rope;                     /* [positions][128][2]                                           */
    void *k_cache, *v_cache;               /* bf16 [places][256] of layer 0                                 */
    int64_t k_layer, v_layer;              /* bytes from a layer to the next one                            */
    void *x;                               /* bf16 [rows][width], in and out                                */
    uint64_t *sums;                        /* [o, down twice, embedding][rank][row][64] two sums, a count   */
    char *fresh;                           /* [layers] new keys and values                                  */
    int rows, depth;
    int steps;                             /* in this launch, all with the same rows                        */
    int step_floats;                       /* from a step's scales, shifts and gates to the next one's      */
    resident_actions actions;
    int shifts;                            /* rows that are shifts: 0, 1, or 2 where rows may be known      */
    float eps, scale;
    resident_scales scales[RESIDENT_LAYERS];                /* int8 weights have them                       */
} gpu_resident;

#endif
