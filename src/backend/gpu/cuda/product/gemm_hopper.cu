/* Products of many rows in bf16 on Hopper: gemm_hopper.cuh says how.
 *
 * gemm_hopper.c checks what is legal and launches. */
#include "gemm_hopper.cuh"

#define HOPPER(name, BW, BT, NC, STAGES, STORE, RES, PARTS) \
    extern "C" __global__ void __launch_bounds__((NC + 1) * 128, 1) \
        name(const __grid_constant__ gpu_hopper p) { \
        gemm<gemm_tile<bf16_numbers, BW, BT, NC, STAGES, STORE, RES, PARTS>>(p, NULL); \
    }
HOPPER(hopper_160x128, 160, 128, 2, 6, ROWS, 0, 0)
HOPPER(hopper_200x128, 200, 128, 2, 5, ROWS, 0, 0)
HOPPER(hopper_256x128, 256, 128, 2, 4, ROWS, 0, 0)
HOPPER(hopper_256x64, 256, 64, 1, 5, ROWS, 0, 0)
HOPPER(hopper_128x64, 128, 64, 1, 8, ROWS, 1, 0)
HOPPER(hopper_64x200_transposed, 64, 200, 1, 6, TRANSPOSED, 1, 0)
HOPPER(hopper_64x208_transposed, 64, 208, 1, 5, TRANSPOSED, 1, 0)
HOPPER(hopper_128x200_gated, 128, 200, 2, 4, GATED, 0, 0)
HOPPER(hopper_128x184_gated, 128, 184, 2, 4, GATED, 0, 0)
HOPPER(hopper_128x168_gated, 128, 168, 2, 4, GATED, 0, 0)
HOPPER(hopper_128x144_gated, 128, 144, 2, 5, GATED, 0, 0)
HOPPER(hopper_128x192_pingpong, 128, 192, 2, 4, PLAIN, 0, 0)
HOPPER(hopper_128x144_pingpong, 128, 144, 2, 5, PLAIN, 0, 0)
HOPPER(hopper_128x200_parts, 128, 200, 2, 4, TRANSPOSED, 1, 1)
HOPPER(hopper_128x144_parts, 128, 144, 2, 5, TRANSPOSED, 1, 1)
HOPPER(hopper_128x128_parts, 128, 128, 2, 5, TRANSPOSED, 1, 1)
