/* The level of AVX2 and FMA: fp32 products, bf16 weights widened on the fly, and the element-by-element
 * functions.
 *
 * Sixteen registers hold 6 rows × 16 columns, so a panel is done in two halves. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/vec_avx2.h"

#include "backend/cpu/elements.h"

enum { REG_FLOATS = 8, ROWS = 6, AHEAD = 1024, K_BLOCK = 512 };
#define EACH_ROW BROADCAST_ROWS_6

typedef __m256 reg;

BROADCAST_INLINE reg reg_zero(void) { return _mm256_setzero_ps(); }
BROADCAST_INLINE reg reg_set(const float *x) { return _mm256_broadcast_ss(x); }
BROADCAST_INLINE reg reg_load(const float *p) { return _mm256_loadu_ps(p); }
BROADCAST_INLINE void reg_store(float *p, reg x) { _mm256_storeu_ps(p, x); }
BROADCAST_INLINE reg reg_fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }

BROADCAST_INLINE reg reg_even(const char *b) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)b), 16));
}
/* Two shifts, not a mask: a constant would take the register that is one too many. */
BROADCAST_INLINE reg reg_odd(const char *b) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)b), 16), 16));
}

#include "backend/cpu/x86/broadcast_f32.h"

const cpu_product cpu_f32_f32_avx2 = BROADCAST_PRODUCT(f32, 4, 1);
const cpu_product cpu_f32_bf16_avx2 = BROADCAST_PRODUCT(bf16, 2, 2);
const cpu_elements cpu_elements_avx2 = ELEMENTS_TABLE;
