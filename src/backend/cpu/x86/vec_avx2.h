/* Sixteen floats in two ymm registers. vec_avx512.h has the same names; elements.h is written over them. */
#ifndef CPU_X86_VEC_AVX2_H
#define CPU_X86_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/x86/transpose.h"

typedef struct vec {
    __m256 low, high;
} vec;

#define VEC_EACH(call_low, call_high) ((vec){(call_low), (call_high)})

static inline vec vec_set(float x) { return VEC_EACH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline vec vec_load(const float *p) { return VEC_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void vec_store(float *p, vec x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
static inline vec vec_add(vec a, vec b) {
    return VEC_EACH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}
static inline vec vec_sub(vec a, vec b) {
    return VEC_EACH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}
static inline vec vec_mul(vec a, vec b) {
    return VEC_EACH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}
static inline vec vec_inverse(vec x) {
    __m256 one = _mm256_set1_ps(1);
    return VEC_EACH(_mm256_div_ps(one, x.low), _mm256_div_ps(one, x.high));
}
/* a·b + c */
static inline vec vec_fma(vec a, vec b, vec c) {
    return VEC_EACH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
/* c - a·b */
static inline vec vec_fnma(vec a, vec b, vec c) {
    return VEC_EACH(_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high));
}
/* The larger, the smaller; b where either is NaN. */
static inline vec vec_max(vec a, vec b) {
    return VEC_EACH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}
static inline vec vec_min(vec a, vec b) {
    return VEC_EACH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}

static inline __m256 vec_round_half(__m256 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vec vec_round(vec a) { return VEC_EACH(vec_round_half(a.low), vec_round_half(a.high)); }

/* a·2ⁿ; n whole, -126 … 127. */
static inline __m256 vec_scale_half(__m256 a, __m256 n) {
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(power));
}
static inline vec vec_scale(vec a, vec n) {
    return VEC_EACH(vec_scale_half(a.low, n.low), vec_scale_half(a.high, n.high));
}

/* All ones in the first count - at of 8 lanes. */
static inline __m256i vec_mask_half(int count, int at) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count - at), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first `count` lanes of a, `other` in the rest. */
static inline vec vec_keep(vec a, int count, float other) {
    __m256 o = _mm256_set1_ps(other);
    return VEC_EACH(_mm256_blendv_ps(o, a.low, _mm256_castsi256_ps(vec_mask_half(count, 0))),
                    _mm256_blendv_ps(o, a.high, _mm256_castsi256_ps(vec_mask_half(count, 8))));
}

static inline float vec_sum(vec a) {
    __m256 h = _mm256_add_ps(a.low, a.high);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float vec_top(vec a) {
    __m256 h = _mm256_max_ps(a.low, a.high);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* To nearest even; NaN stays NaN. The result's bf16 bits are the upper halves. */
static inline __m256i vec_bf16_half(__m256 a) {
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(nan),
                                                _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
static inline __m256 vec_round_bf16_half(__m256 a) {
    return _mm256_castsi256_ps(_mm256_and_si256(vec_bf16_half(a), _mm256_set1_epi32((int)0xffff0000)));
}
static inline vec vec_round_bf16(vec a) {
    return VEC_EACH(vec_round_bf16_half(a.low), vec_round_bf16_half(a.high));
}

static inline vec vec_widen(__m256i h) {
    return VEC_EACH(
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16)),
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16)));
}
static inline __m256i vec_narrow(vec a) {
    __m256i low = _mm256_srli_epi32(vec_bf16_half(a.low), 16),
            high = _mm256_srli_epi32(vec_bf16_half(a.high), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* The first `count` (1 … 16) elements; lanes beyond are zero. */
static inline vec vec_load_n(const float *p, int count) {
    if (count >= 16) return vec_load(p);
    return VEC_EACH(_mm256_maskload_ps(p, vec_mask_half(count, 0)),
                    count > 8 ? _mm256_maskload_ps(p + 8, vec_mask_half(count, 8)) : _mm256_setzero_ps());
}
static inline void vec_store_n(float *p, vec x, int count) {
    if (count >= 16) {
        vec_store(p, x);
        return;
    }
    _mm256_maskstore_ps(p, vec_mask_half(count, 0), x.low);
    if (count > 8) _mm256_maskstore_ps(p + 8, vec_mask_half(count, 8), x.high);
}
static inline vec vec_load_bf16_n(const uint16_t *p, int count) {
    uint16_t part[16] = {0};
    if (count >= 16) return vec_widen(_mm256_loadu_si256((const __m256i *)p));
    memcpy(part, p, (size_t)count * sizeof *part);
    return vec_widen(_mm256_loadu_si256((const __m256i *)part));
}
static inline void vec_store_bf16_n(uint16_t *p, vec x, int count) {
    uint16_t part[16];
    if (count >= 16) {
        _mm256_storeu_si256((__m256i *)p, vec_narrow(x));
        return;
    }
    _mm256_storeu_si256((__m256i *)part, vec_narrow(x));
    memcpy(p, part, (size_t)count * sizeof *part);
}

/* Whole numbers -127 … 127. */
static inline void vec_store_int8_n(int8_t *p, vec x, int count) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    int8_t part[16];
    if (count >= 16) {
        _mm_storeu_si128((__m128i *)p, bytes);
        return;
    }
    _mm_storeu_si128((__m128i *)part, bytes);
    memcpy(p, part, (size_t)count);
}
/* Sixteen int32 less a number, rounded to nearest even. */
static inline vec vec_load_int32(const void *p, int32_t less) {
    __m256i by = _mm256_set1_epi32(less);
    __m256i low = _mm256_loadu_si256(p), high = _mm256_loadu_si256((const __m256i *)p + 1);
    return VEC_EACH(_mm256_cvtepi32_ps(_mm256_sub_epi32(low, by)),
                    _mm256_cvtepi32_ps(_mm256_sub_epi32(high, by)));
}

/* even[0], odd[0], even[1], odd[1] … as bf16. */
static inline __m256i vec_bf16_pairs_half(__m256 even, __m256 odd) {
    __m256i upper = _mm256_and_si256(vec_bf16_half(odd), _mm256_set1_epi32((int)0xffff0000));
    return _mm256_or_si256(_mm256_srli_epi32(vec_bf16_half(even), 16), upper);
}
static inline void vec_store_bf16_pairs(uint32_t *p, vec even, vec odd) {
    _mm256_storeu_si256((__m256i *)p, vec_bf16_pairs_half(even.low, odd.low));
    _mm256_storeu_si256((__m256i *)(p + 8), vec_bf16_pairs_half(even.high, odd.high));
}

/* p[0], p[2], … p[14] and p[1], p[3], … p[15] */
static inline __m256 vec_load_pairs_half(const float *p, __m256 *odd) {
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
    return _mm256_shuffle_ps(low, high, 0x88);
}
static inline vec vec_load_pairs(const float *p, vec *odd) {
    vec even;
    even.low = vec_load_pairs_half(p, &odd->low);
    even.high = vec_load_pairs_half(p + 16, &odd->high);
    return even;
}

#endif
