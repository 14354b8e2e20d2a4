/* Sixteen floats in a zmm register. vec_avx2.h has the same names; elements.h is written over them. */
#ifndef CPU_X86_VEC_AVX512_H
#define CPU_X86_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/x86/transpose.h"

typedef __m512 vec;

static inline __mmask16 vec_mask(int count) {
    return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
/* 1/x for ordinary x, to 2 units in the last place: an estimate of 14 bits and one Newton step. */
static inline vec vec_inverse(vec x) {
    vec r = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(x, r, _mm512_set1_ps(1)), r);
}
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }       /* a·b + c */
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }     /* c - a·b */
/* The larger, the smaller; b where either is NaN. */
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline vec vec_round(vec a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a·2ⁿ; n whole, -126 … 127. */
static inline vec vec_scale(vec a, vec n) { return _mm512_scalef_ps(a, n); }

/* The first `count` lanes of a, `other` in the rest. */
static inline vec vec_keep(vec a, int count, float other) {
    return _mm512_mask_blend_ps(vec_mask(count), _mm512_set1_ps(other), a);
}

static inline float vec_sum(vec a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static inline float vec_top(vec a) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* To nearest even; NaN stays NaN. The result's bf16 bits are the upper halves. */
static inline __m512i vec_bf16_bits(vec a) {
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
}
static inline vec vec_round_bf16(vec a) {
    return _mm512_castsi512_ps(_mm512_and_si512(vec_bf16_bits(a), _mm512_set1_epi32((int)0xffff0000)));
}
static inline vec vec_widen(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline __m256i vec_narrow(vec a) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_bf16_bits(a), 16));
}

/* The first `count` (1 … 16) elements; lanes beyond are zero. */
static inline vec vec_load_n(const float *p, int count) { return _mm512_maskz_loadu_ps(vec_mask(count), p); }
static inline void vec_store_n(float *p, vec x, int count) { _mm512_mask_storeu_ps(p, vec_mask(count), x); }
static inline vec vec_load_bf16_n(const uint16_t *p, int count) {
    return vec_widen(_mm256_maskz_loadu_epi16(vec_mask(count), p));
}
static inline void vec_store_bf16_n(uint16_t *p, vec x, int count) {
    _mm256_mask_storeu_epi16(p, vec_mask(count), vec_narrow(x));
}

/* Whole numbers -127 … 127. */
static inline void vec_store_int8_n(int8_t *p, vec x, int count) {
    _mm_mask_storeu_epi8(p, vec_mask(count), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
/* Sixteen int32 less a number, rounded to nearest even. */
static inline vec vec_load_int32(const void *p, int32_t less) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(less)));
}

/* even[0], odd[0], even[1], odd[1] … as bf16. */
static inline void vec_store_bf16_pairs(uint32_t *p, vec even, vec odd) {
    __m512i upper = _mm512_and_si512(vec_bf16_bits(odd), _mm512_set1_epi32((int)0xffff0000));
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(vec_bf16_bits(even), 16), upper));
}

/* p[0], p[2], … p[30] and p[1], p[3], … p[31] */
static inline vec vec_load_pairs(const float *p, vec *odd) {
    const __m512i even_lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(even_lanes, _mm512_set1_epi32(1)), high);
    return _mm512_permutex2var_ps(low, even_lanes, high);
}

#endif
