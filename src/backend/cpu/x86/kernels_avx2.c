/* The level of AVX2 and FMA: fp32 products, bf16 weights widened on the fly, products of integers,
 * and the element-by-element functions.
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
BROADCAST_INLINE reg reg_integers(const char *b) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)b)));
}
/* Two shifts, not a mask: a constant would take the register that is one too many. */
BROADCAST_INLINE reg reg_odd(const char *b) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)b), 16), 16));
}

#include "backend/cpu/x86/broadcast_f32.h"

typedef __m256i ireg;

BROADCAST_INLINE ireg ireg_zero(void) { return _mm256_setzero_si256(); }
BROADCAST_INLINE ireg ireg_add(ireg a, ireg b) { return _mm256_add_epi32(a, b); }
BROADCAST_INLINE ireg ireg_set(const int64_t *x) { return _mm256_set1_epi64x(*x); }
BROADCAST_INLINE ireg ireg_multiply(ireg a, ireg b) { return _mm256_madd_epi16(a, b); }
BROADCAST_INLINE ireg ireg_widen(const char *b) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));
}
BROADCAST_INLINE void ireg_store_sum(float *c, ireg x, ireg y, int accumulate) {
    ireg sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(x, y), 0xd8), *to = (ireg *)c;
    if (accumulate) sum = _mm256_add_epi32(sum, _mm256_loadu_si256(to));
    _mm256_storeu_si256(to, sum);
}

#include "backend/cpu/x86/broadcast_int8.h"

const cpu_product cpu_f32_f32_avx2 = BROADCAST_PRODUCT(f32, 4, 1);
const cpu_product cpu_f32_bf16_avx2 = BROADCAST_PRODUCT(bf16, 2, 2);
const cpu_product cpu_f32_int8_avx2 = BROADCAST_PRODUCT(codes, 1, 1);
const cpu_product cpu_int8_int8_avx2 = BROADCAST_INT8;
const cpu_elements cpu_elements_avx2 = ELEMENTS_TABLE;
