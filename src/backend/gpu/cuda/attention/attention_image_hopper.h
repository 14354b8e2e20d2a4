/* Arguments of attention_image_hopper.cu. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_ATTENTION_IMAGE_HOPPER_H
#define BACKEND_GPU_CUDA_ATTENTION_IMAGE_HOPPER_H

#include "backend/gpu/cuda/maps.h"

enum {
    IMAGE_HEAD = 72,                       /* dims of a head: IMAGE_MAIN and IMAGE_REST                     */
    IMAGE_MAIN = 64,
    IMAGE_REST = 8,
    IMAGE_KEYS = 256,                      /* tokens of an image                                            */
    IMAGE_ROWS = 64,                       /* queries of a tile                                             */
    IMAGE_TILES = IMAGE_KEYS / IMAGE_ROWS,
    IMAGE_CONSUMERS = 2,
    IMAGE_STAGES = 2,                      /* heads whose keys and values are in shared memory              */
    IMAGE_SLOTS = 6,                       /* tiles of queries there                                        */
    /* Bytes in shared memory: dims 0 … 63 of a part (128 a row, swizzled), then dims 64 … 71 (16 a row). */
    IMAGE_PART = IMAGE_KEYS * IMAGE_HEAD * 2,
    IMAGE_STAGE = 2 * IMAGE_PART,
    IMAGE_SLOT = IMAGE_ROWS * IMAGE_HEAD * 2,
    IMAGE_ZEROS = IMAGE_ROWS * 16,
    IMAGE_SHARED = IMAGE_STAGES * IMAGE_STAGE + IMAGE_SLOTS * IMAGE_SLOT + IMAGE_ZEROS,
};

/* Maps of qkv as [rows][q, k, v][heads][72]: boxes of 64 or 8 dims of 256 rows, and of 64 rows. */
typedef struct gpu_image_hopper {
    gpu_tensor_map keys_main, keys_rest, rows_main, rows_rest;
    gpu_image_attention attention;
    int tiles;                             /* tiles in a unit: 4 (a head of an image) or 2                  */
} gpu_image_hopper;

#endif
