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
enum { RANK_FITTING, RANK_ANY };

enum { HIP_WAVE = 64, HIP_THREADS = 256 };

#endif
