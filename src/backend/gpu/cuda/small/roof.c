/* roof.cu: ceilings of any chip. */
#include "backend/gpu/cuda/vendor.h"

enum { FILL, READ, COPY, FMA, MMA };

static const gpu_kernel kernels[] = {
    [FILL] = {"roof_fill", 0, 0}, [READ] = {"roof_read", 0, 0}, [COPY] = {"roof_copy", 0, 0},
    [FMA] = {"roof_fma", 0, 0},   [MMA] = {"roof_mma", 0, 0},
};

static const gpu_roof_kernel roofs[] = {
    {.kind = GPU_ROOF_FILL, .rank = RANK_ROOF_ANY, .kernel = FILL, .blocks = 8},
    {.kind = GPU_ROOF_READ, .rank = RANK_ROOF_ANY, .kernel = READ, .blocks = 8},
    {.kind = GPU_ROOF_COPY, .rank = RANK_ROOF_ANY, .kernel = COPY, .blocks = 8},
    {.kind = GPU_ROOF_F32,
     .rank = RANK_ROOF_ANY,
     .kernel = FMA,
     .blocks = 8,
     .loops = 160000,
     .flops = 2 * 16},
    {.kind = GPU_ROOF_BF16,
     .rank = RANK_ROOF_ANY,
     .kernel = MMA,
     .blocks = 1,
     .loops = 320000,
     .flops = 8 * 2.0 * 16 * 8 * 16 / 32},
};

const gpu_family gpu_family_roof = {
    .name = "roof", GPU_KERNELS(kernels), .roofs = roofs, .roof_count = sizeof roofs / sizeof *roofs};
