/* Which layers the resident vision kernel takes as one launch: those of a block of vision layers
 *   in bf16, packed, in the sizes of vision.h,
 *   of up to VISION_IMAGES images,
 * up to VISION_LAYERS of them; more become several launches. All else is computed by the ops' kernels. */
#ifndef BACKEND_GPU_CUDA_VISION_LAYERS_H
#define BACKEND_GPU_CUDA_VISION_LAYERS_H

#include "ops/blocks.h"

/* Layers that one launch computes of those of the block; 0: none. */
int vision_layers_of(const op_block *block);

#endif
