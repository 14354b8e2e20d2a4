/* fp32 products by AVX-512 FMA, products of integers for processors without VNNI, and the element-by-element
 * functions of every level from here up.
 * The tile is that of kernels_avx512bf16.c. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/vec_avx512.h"

#include "backend/cpu/elements.h"

enum { REG_FLOATS = 16, ROWS = 12, AHEAD = 2048, K_BLOCK = 1024 };
#define EACH_ROW BROADCAST_ROWS_12

typedef __m512 reg;

BROADCAST_INLINE reg reg_zero(void) { return _mm512_setzero_ps(); }
BROADCAST_INLINE reg reg_set(const float *x) { return _mm512_set1_ps(*x); }
BROADCAST_INLINE reg reg_load(const float *p) { return _mm512_loadu_ps(p); }
BROADCAST_INLINE void reg_store(float *p, reg x) { _mm512_storeu_ps(p, x); }
BROADCAST_INLINE reg reg_fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }

BROADCAST_INLINE reg reg_even(const char *b) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(b), 16));
}
BROADCAST_INLINE reg reg_integers(const char *b) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)b)));
}
BROADCAST_INLINE reg reg_odd(const char *b) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(b), upper));
}

#include "backend/cpu/x86/broadcast_f32.h"

typedef __m512i ireg;

BROADCAST_INLINE ireg ireg_zero(void) { return _mm512_setzero_si512(); }
BROADCAST_INLINE ireg ireg_add(ireg a, ireg b) { return _mm512_add_epi32(a, b); }
BROADCAST_INLINE ireg ireg_set(const int64_t *x) { return _mm512_set1_epi64(*x); }
BROADCAST_INLINE ireg ireg_multiply(ireg a, ireg b) { return _mm512_madd_epi16(a, b); }
BROADCAST_INLINE ireg ireg_widen(const char *b) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)b));
}
BROADCAST_INLINE void ireg_store_sum(float *c, ireg x, ireg y, int accumulate) {
    const ireg even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const ireg odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    ireg sum = _mm512_add_epi32(_mm512_permutex2var_epi32(x, even, y),
                                _mm512_permutex2var_epi32(x, odd, y));
    if (accumulate) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(c));
    _mm512_storeu_si512(c, sum);
}

#include "backend/cpu/x86/broadcast_int8.h"

const cpu_product cpu_f32_f32_avx512 = BROADCAST_PRODUCT(f32, 4, 1);
const cpu_product cpu_f32_bf16_avx512 = BROADCAST_PRODUCT(bf16, 2, 2);
const cpu_product cpu_f32_int8_avx512 = BROADCAST_PRODUCT(codes, 1, 1);
const cpu_product cpu_int8_int8_avx512 = BROADCAST_INT8;
const cpu_elements cpu_elements_avx512 = ELEMENTS_TABLE;
