/* The synthetic generator, sixteen elements at a time. Same bits as synth.c.
 *
 * u is exact in double in whatever order it is computed, so a fused multiply-add may make it; the product
 * scale·u and the sum with offset are rounded one after the other, which the barrier keeps the compiler from
 * fusing. */
#include "checkpoint/synthetic/synth.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

#include "base/hash.h"

enum { LANES = 16 };

/* 8 elements whose counters key + i·step are in z: floats, not yet bf16. */
static inline __m256 eight(__m512i z, __m512d offset, __m512d scale) {
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)),
                           _mm512_set1_epi64((long long)UINT64_C(0xBF58476D1CE4E5B9)));
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)),
                           _mm512_set1_epi64((long long)UINT64_C(0x94D049BB133111EB)));
    z = _mm512_srli_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 31)), 40);
    __m512d u =
        _mm512_fmadd_pd(_mm512_cvtepi64_pd(z), _mm512_set1_pd(0x1p-23), _mm512_set1_pd(0x1p-24 - 1.0));
    __m512d product = _mm512_mul_pd(scale, u);
    __asm__("" : "+v"(product));
    return _mm512_cvtpd_ps(_mm512_add_pd(offset, product));
}

/* 16 bf16, one in each 32-bit lane's low half. The values are finite. */
static inline __m512i sixteen(__m512i *z, __m512i step, __m512d offset, __m512d scale) {
    __m256 low = eight(*z, offset, scale);
    __m512i next = _mm512_add_epi64(*z, step);
    __m256 high = eight(next, offset, scale);
    *z = _mm512_add_epi64(next, step);
    __m512i b =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_castps_si256(low)), _mm256_castps_si256(high), 1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd), 16);
}

/* Counters of elements first … first+7; the mix's own first addition is in them. */
static inline __m512i counters(const tensor_recipe *r, int64_t first) {
    uint64_t at = r->key + (uint64_t)first * HASH_STEP + HASH_STEP;
    __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi64(_mm512_set1_epi64((long long)at),
                            _mm512_mullo_epi64(lane, _mm512_set1_epi64((long long)HASH_STEP)));
}

/* Elements that the vector loop takes: whole groups below raise_from. The plain version does the rest. */
static inline int64_t whole(const tensor_recipe *r, int64_t first, int64_t count) {
    int64_t plain = r->raise_from - first;
    if (plain > count) plain = count;
    return plain > 0 ? plain / LANES * LANES : 0;
}

static void read_f32(const tensor_recipe *r, int64_t first, int64_t count, float *out) {
    int64_t n = whole(r, first, count);
    __m512i z = counters(r, first), step = _mm512_set1_epi64((long long)(8 * HASH_STEP));
    __m512d offset = _mm512_set1_pd(r->offset), scale = _mm512_set1_pd(r->scale);
    for (int64_t i = 0; i < n; i += LANES)
        _mm512_storeu_si512(out + i, _mm512_slli_epi32(sixteen(&z, step, offset, scale), 16));
    synth_scalar.read_f32(r, first + n, count - n, out + n);
}

static void read_bf16(const tensor_recipe *r, int64_t first, int64_t count, bf16 *out) {
    int64_t n = whole(r, first, count);
    __m512i z = counters(r, first), step = _mm512_set1_epi64((long long)(8 * HASH_STEP));
    __m512d offset = _mm512_set1_pd(r->offset), scale = _mm512_set1_pd(r->scale);
    for (int64_t i = 0; i < n; i += LANES)
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm512_cvtepi32_epi16(sixteen(&z, step, offset, scale)));
    synth_scalar.read_bf16(r, first + n, count - n, out + n);
}

const synth_kernel synth_avx512 = {"avx512", read_f32, read_bf16};
#else
const synth_kernel synth_avx512 = {"avx512", 0, 0};
#endif
