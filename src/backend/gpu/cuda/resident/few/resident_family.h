/* The six families that run denoise steps: blocks of expert steps in bf16, in the sizes of resident.h. Four
 * have one kernel source and take whole steps of one sample, any number in a launch, two of them with int8
 * weights; the others take the layers of a step (resident_long_hopper.c, resident_wide_hopper.c). All else
 * is computed by the ops' kernels. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_FAMILY_H
#define BACKEND_GPU_CUDA_RESIDENT_FAMILY_H

#include "backend/gpu/cuda/vendor.h"

/* Which of the kernels: rows and the norms' shifts are 12 at most; rows are 16 at most, and with their shifts
 * more than 12; the same with int8 weights; rows are more than 16, or those of several samples, with their
 * shift 64 at most; 60 to 96 rows of several samples. */
typedef enum resident_rows {
    RESIDENT_FEW,
    RESIDENT_APART,
    RESIDENT_INT8_FEW,
    RESIDENT_INT8_APART,
    RESIDENT_LONG,
    RESIDENT_WIDE,
} resident_rows;

/* How many of the block's steps one launch of the kernel computes, 0: none. RESIDENT_LONG and _WIDE: the
 * layers of one step, 1 or 0. */
int resident_steps_of(const op_block *block, resident_rows kind);
int resident_long_of(const op_block *block);       /* the same for RESIDENT_LONG                            */
int resident_wide_of(const op_block *block);       /* and for RESIDENT_WIDE                                 */
/* The ops of such a launch. */
int resident_ops_of(const op_block *block, resident_rows kind, int steps);

/* 1: the layers are in bf16, their weights in that format, packed, and all of the kernels' sizes. */
int resident_layers_fit(const op_block *block, weight_type weights);
/* Rows that shifts take: the step's, and that of known rows. */
int resident_shifts_of(const op_norm_qkv *q);

/* Asks whether the card holds the kernel, a block of which has so much shared memory, and takes the memory of
 * its exchange if so: that is the family's state. 0, or the driver's error. */
int resident_open(gpu_device *device, int family, size_t shared, void **state);
/* gpu_family.take_block of the four */
int resident_take(gpu_issue *issue, const op_block *block, resident_rows kind);

#endif
