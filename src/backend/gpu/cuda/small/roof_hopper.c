/* roof_hopper.cu: what wgmma multiplies at best. */
#include "backend/gpu/cuda/vendor.h"

static const gpu_kernel kernels[] = {{"roof_wgmma", 1, 0}};

static const gpu_roof_kernel roofs[] = {
    {.kind = GPU_ROOF_BF16,
     .rank = RANK_ROOF_HOPPER,
     .kernel = 0,
     .blocks = 1,
     .loops = 32000,
     .flops = 4 * 2.0 * 64 * 256 * 16 / 128,
     .shared_bytes = 4 * 48 * 1024 + 1024},
};

const gpu_family gpu_family_roof_hopper = {
    .name = "roof_hopper", GPU_KERNELS(kernels), .roofs = roofs, .roof_count = sizeof roofs / sizeof *roofs};
