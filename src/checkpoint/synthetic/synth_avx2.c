/* The synthetic generator, eight elements at a time. Same bits as synth.c.
 *
 * AVX2 has neither a 64-bit multiplication nor a conversion to double: the one is made of three 32-bit ones,
 * the other of 24 bits set into the fraction of 2^52. u is exact in double in whatever order it is computed;
 * the product scale·u and the sum with offset are rounded one after the other, which the barrier keeps the
 * compiler from fusing. */
#include "checkpoint/synthetic/synth.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include "base/hash.h"

enum { LANES = 8 };

static inline __m256i multiply(__m256i a, uint64_t factor) {
    __m256i low = _mm256_set1_epi64x((long long)(factor & 0xffffffffu)),
            high = _mm256_set1_epi64x((long long)(factor >> 32));
    __m256i cross =
        _mm256_add_epi64(_mm256_mul_epu32(a, high), _mm256_mul_epu32(_mm256_srli_epi64(a, 32), low));
    return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}

/* 4 elements whose counters key + i·step are in z: floats, not yet bf16. */
static inline __m128 four(__m256i z, __m256d offset, __m256d scale) {
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), UINT64_C(0xBF58476D1CE4E5B9));
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), UINT64_C(0x94D049BB133111EB));
    z = _mm256_srli_epi64(_mm256_xor_si256(z, _mm256_srli_epi64(z, 31)), 40);
    __m256d magic = _mm256_set1_pd(0x1p52);
    __m256d bits = _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(z, _mm256_castpd_si256(magic))), magic);
    __m256d u = _mm256_add_pd(_mm256_mul_pd(bits, _mm256_set1_pd(0x1p-23)), _mm256_set1_pd(0x1p-24 - 1.0));
    __m256d product = _mm256_mul_pd(scale, u);
    __asm__("" : "+x"(product));
    return _mm256_cvtpd_ps(_mm256_add_pd(offset, product));
}

/* 8 bf16, one in each 32-bit lane's low half. The values are finite. */
static inline __m256i eight(__m256i *z, __m256i step, __m256d offset, __m256d scale) {
    __m128 low = four(*z, offset, scale);
    __m256i next = _mm256_add_epi64(*z, step);
    __m128 high = four(next, offset, scale);
    *z = _mm256_add_epi64(next, step);
    __m256i b = _mm256_set_m128i(_mm_castps_si128(high), _mm_castps_si128(low));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd), 16);
}

/* Counters of elements first … first+3; the mix's own first addition is in them. */
static inline __m256i counters(const tensor_recipe *r, int64_t first) {
    uint64_t at = r->key + (uint64_t)first * HASH_STEP + HASH_STEP;
    return _mm256_set_epi64x((long long)(at + 3 * HASH_STEP), (long long)(at + 2 * HASH_STEP),
                             (long long)(at + HASH_STEP), (long long)at);
}

/* Elements that the vector loop takes: whole groups below raise_from. The plain version does the rest. */
static inline int64_t whole(const tensor_recipe *r, int64_t first, int64_t count) {
    int64_t plain = r->raise_from - first;
    if (plain > count) plain = count;
    return plain > 0 ? plain / LANES * LANES : 0;
}

static void read_f32(const tensor_recipe *r, int64_t first, int64_t count, float *out) {
    int64_t n = whole(r, first, count);
    __m256i z = counters(r, first), step = _mm256_set1_epi64x((long long)(4 * HASH_STEP));
    __m256d offset = _mm256_set1_pd(r->offset), scale = _mm256_set1_pd(r->scale);
    for (int64_t i = 0; i < n; i += LANES)
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm256_slli_epi32(eight(&z, step, offset, scale), 16));
    synth_scalar.read_f32(r, first + n, count - n, out + n);
}

static void read_bf16(const tensor_recipe *r, int64_t first, int64_t count, bf16 *out) {
    int64_t n = whole(r, first, count);
    __m256i z = counters(r, first), step = _mm256_set1_epi64x((long long)(4 * HASH_STEP));
    __m256d offset = _mm256_set1_pd(r->offset), scale = _mm256_set1_pd(r->scale);
    for (int64_t i = 0; i < n; i += LANES) {
        __m256i b = eight(&z, step, offset, scale);
        _mm_storeu_si128((__m128i *)(void *)(out + i),
                         _mm_packus_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)));
    }
    synth_scalar.read_bf16(r, first + n, count - n, out + n);
}

const synth_kernel synth_avx2 = {"avx2", read_f32, read_bf16};
#else
const synth_kernel synth_avx2 = {"avx2", 0, 0};
#endif
