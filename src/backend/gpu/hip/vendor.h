/* What the files of this folder share on the host side: the vendor's families, images and ranks. */
#ifndef BACKEND_GPU_HIP_VENDOR_H
#define BACKEND_GPU_HIP_VENDOR_H

#include "backend/gpu/family.h"

extern const gpu_vendor gpu_vendor_hip;
extern const gpu_module hip_modules[];     /* modules.c */

/* A family's machine code: a code object for every architecture, ended by one without. What
 * gpu_module.image points to. */
typedef struct hip_image {
    const char *architecture;              /* "gfx942"                                                     */
    const void *code;
} hip_image;

/* Ranks of products and attention: what the heuristic takes first. */
enum { RANK_FEW_ROWS, RANK_MANY_ROWS, RANK_ANY };

/* Products that kernels/gemm.c and kernels/thin.c run: whole units of 8 k of x, in bf16. */
static inline int hip_product_bf16(const gpu_task *task) {
    const gpu_linear *p = &task->product;
    return task->kind == GPU_PRODUCT && p->x_type == GPU_X_BF16 && p->weights.type == GPU_WEIGHT_BF16 &&
           p->ldx % 8 == 0;
}

enum { HIP_WAVE = 64, HIP_THREADS = 256 };

#endif
