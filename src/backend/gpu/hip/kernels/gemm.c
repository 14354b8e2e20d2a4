/* bf16 products of many rows: x·Wᵀ with all that may come after it (epilogue.h), by matrix instructions of
 * 32 x 32.
 *
 *   gemm_RxC   a block computes R rows of x by C packed columns. 64 k of x are in local memory at a time, in
 *              two buffers: while one is multiplied, the next 64 k are on their way from device memory to
 *              registers and from there into the other. W never passes local memory: GPU_LAYOUT_LANES has
 *              every operand of a matrix instruction where one load of 16 bytes a lane takes it, one step
 *              ahead
 *
 *   blocks   256 threads: 1 x 4 waves (gemm_64x64: 2 x 2); grid = rows / R x packed columns / C
 *   legal    both operands bf16, ldx a multiple of 8. A norm runs before. Sums have one order, whatever rows
 *            are computed beside a row
 *
 * gemm.c of the folder above launches. */
#include "backend/gpu/hip/kernels/epilogue.h"

enum { THREADS = 256, WAVES = 4, DEPTH = GPU_ATOM_K, UNITS = DEPTH / 8, STEPS = DEPTH / 16 };

/* What two kinds of epilogue pair: columns 8 further or before. */
DEV int paired(const gpu_epilogue *e) {
    return e->kind == GPU_EPILOGUE_QKV || e->kind == GPU_EPILOGUE_GATED;
}

#define TILE gemm_128x256
#define ROWS 128
#define COLUMNS 256
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_160x128
#define ROWS 160
#define COLUMNS 128
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_128x128
#define ROWS 128
#define COLUMNS 128
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_96x128
#define ROWS 96
#define COLUMNS 128
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_64x128
#define ROWS 64
#define COLUMNS 128
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_64x64
#define ROWS 64
#define COLUMNS 64
#define WAVES_ROWS 2
#include "backend/gpu/hip/kernels/gemm_tile.h"

#define TILE gemm_32x128
#define ROWS 32
#define COLUMNS 128
#define WAVES_ROWS 1
#include "backend/gpu/hip/kernels/gemm_tile.h"
