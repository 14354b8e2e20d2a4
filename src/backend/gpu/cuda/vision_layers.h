/* Which ops the resident vision kernel takes as one launch: layers of the vision tower. vision_layers.c
 * compares ops and addresses, so it needs no device. */
#ifndef BACKEND_GPU_CUDA_VISION_LAYERS_H
#define BACKEND_GPU_CUDA_VISION_LAYERS_H

#include "ops/ops.h"

/* The ops of a layer. */
enum {
    VISION_QKV,
    VISION_ATTENTION,
    VISION_OUT,
    VISION_FC1,
    VISION_FC2,
    VISION_OPS,
};

/* Layers that one launch may compute of those at ops[0] and after; 0: none. */
int vision_depth_of(const op *ops, int count);

#endif
