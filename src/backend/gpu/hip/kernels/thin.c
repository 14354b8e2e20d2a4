/* bf16 products of few rows, which read W once and do little else: x·Wᵀ with all that may come after it
 * (epilogue.h).
 *
 *   thin_R     a block computes R rows of x by 16 packed columns. Its waves share k: wave w takes the 64 k
 *              number w, w + waves, …; their sums meet in local memory and are added in the order of the
 *              waves. Every operand is one load of 16 bytes a lane from device memory, and the lanes' pieces
 *              of W follow each other
 *
 *   blocks   128, 256 or 512 threads; grid = rows / R x packed columns / 16
 *   legal    both operands bf16, ldx a multiple of 8. A norm runs before. Sums have one order, whatever rows
 *            are computed beside a row
 *
 * thin.c of the folder above launches. */
#include "backend/gpu/hip/kernels/epilogue.h"

/* Of 64 k lanes hold half at a time; 64 k that a wave loads before it multiplies any. */
enum { MOST_WAVES = 8, UNITS = GPU_ATOM_K / 8, LANE_UNITS = 4, PARTS = UNITS / LANE_UNITS, AHEAD = 4 };

#define TILE thin_16
#define ROW_TILES 1
#include "backend/gpu/hip/kernels/thin_tile.h"

#define TILE thin_32
#define ROW_TILES 2
#include "backend/gpu/hip/kernels/thin_tile.h"

#define TILE thin_64
#define ROW_TILES 4
#include "backend/gpu/hip/kernels/thin_tile.h"
