/* Products of many rows of 8-bit integers on Hopper: rows are made into codes with a scale each
 * (int8_rows.cuh), then multiplied as gemm_hopper.cuh says. Sums are exact, and outputs are those of
 * gemm_mma_int8 to the bit.
 *
 * Rows are wgmma's N side, which goes in 16s. gemm_int8_hopper.c checks what is legal and launches. */
#include "gemm_hopper.cuh"
#include "hopper_int8.h"
#include "int8_rows.cuh"

#define HOPPER_INT8(BW, BT, STAGES, STORE, NAME, RES, PARTS) \
    extern "C" __global__ void __launch_bounds__(3 * 128, 1) \
        hopper_int8_##BW##x##BT##_##NAME(const __grid_constant__ gpu_hopper_int8 a) { \
        gemm<gemm_tile<int8_numbers, BW, BT, 2, STAGES, STORE, RES, PARTS>>(a.product, a.scales); \
    }
/* Outputs are codes with one scale for all rows, for the product after it. */
#define HOPPER_CODED(BW, BT, STAGES) \
    extern "C" __global__ void __launch_bounds__(3 * 128, 1) \
        hopper_int8_##BW##x##BT##_coded(const __grid_constant__ gpu_hopper_coded a) { \
        gemm<gemm_tile<int8_numbers, BW, BT, 2, STAGES, CODED, 0, 0>>(a.product.product, a.product.scales, \
                                                                     &a.fixed); \
    }
#define HOPPER_GATED(BW, BT, STAGES) \
    HOPPER_INT8(BW, BT, STAGES, GATED, gated, 0, 0) HOPPER_CODED(BW, BT, STAGES)
HOPPER_GATED(128, 208, 4)
HOPPER_GATED(128, 192, 4)
HOPPER_GATED(128, 160, 4)
HOPPER_GATED(128, 144, 5)
HOPPER_INT8(128, 192, 4, PLAIN, pingpong, 0, 0)
HOPPER_INT8(128, 144, 5, PLAIN, pingpong, 0, 0)
HOPPER_INT8(128, 208, 4, TRANSPOSED, parts, 1, 1)
HOPPER_INT8(128, 144, 5, TRANSPOSED, parts, 1, 1)
HOPPER_INT8(128, 128, 5, TRANSPOSED, parts, 1, 1)
