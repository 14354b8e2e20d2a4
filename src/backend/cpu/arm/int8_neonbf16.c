/* Product int8 · int8 by SMMLA: two rows times two columns over eight of k, 32 multiply-adds in one
 * instruction, exact. pairs.h has the tiles. */
#include <arm_neon.h>

#include "backend/cpu/arm/kernels.h"

enum { K_BYTES = 1 };

typedef int32x4_t sums;

#define MULTIPLY(sum, a, b) vmmlaq_s32(sum, (int8x16_t)(a), (int8x16_t)(b))
#define NAME(pairs) smmla_tile_##pairs

#include "backend/cpu/arm/pairs.h"

const cpu_product cpu_int8_int8_neonbf16 = {PAIRS_PRODUCT};
