/* The kernel families with stand-ins for their code objects: a program that is linked with this file runs on
 * the emulated GPU whether the build has AMD's compiler or not. It stands in for
 * src/backend/gpu/hip/modules.c. */
#include "backend/gpu/hip/vendor.h"
#include "image.h"

static const hip_image images[] = {
    {"gfx942", STAND_IN "gfx942"},
    {"gfx950", STAND_IN "gfx950"},
    {NULL, NULL},
};

#define MODULE(name, hash) extern const gpu_family gpu_family_hip_##name;
#include "hip_modules.inc"
#undef MODULE

const gpu_module hip_modules[] = {
#define MODULE(name, hash) {&gpu_family_hip_##name, images, NULL, hash},
#include "hip_modules.inc"
#undef MODULE
    {NULL, NULL, NULL, 0},
};
