/* Product int8 · int8 over the tiles of lanes.h: a word is four codes of k, a sum an int32, exact. Written
 * once for the files of the levels, which define MULTIPLY and, as the kernels' names, NAME(rows). */
#include "backend/cpu/arm/kernels.h"
#include "backend/cpu/arm/lanes.h"
#include "backend/cpu/arm/transpose.h"

#include "backend/cpu/pack.h"

#define X(rows)                                                                                           \
    SANITIZER_BLIND static void NAME(rows)(int k, const void *a, const void *b, float *c, int accumulate) { \
        tiles(rows, k / 4, a, b, c, accumulate, B_WORDS);                                                 \
    }
EACH_ROW(X)
#undef X

static void run(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = NAME(rows),
    static const broadcast_kernel kernels[ROWS + 1] = {EACH_ROW(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

#define INT8_LANES                                                                                        \
    {                                                                                                     \
        .rows = ROWS, .row_step = 1, .k_step = 4, .a_bytes = 1, .b_bytes = 1, .k_block = 2048,            \
        .panels = 4, .panel_outer = 0, .a_cost = 0.05, .b_cost = 0.1, .pack = pack_int8_quads, .run = run \
    }
