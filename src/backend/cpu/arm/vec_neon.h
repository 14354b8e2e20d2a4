/* Sixteen floats in four registers, under the names of x86/vec_avx2.h; elements.h is written over them. */
#ifndef CPU_ARM_VEC_NEON_H
#define CPU_ARM_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/arm/transpose.h"

typedef struct vec {
    float32x4_t a, b, c, d;
} vec;

/* A function of registers on each of the four. */
#define VEC_1(f, x) ((vec){f((x).a), f((x).b), f((x).c), f((x).d)})
#define VEC_2(f, x, y) ((vec){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define VEC_3(f, x, y, z)                                                                                   \
    ((vec){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)})

static inline vec vec_set(float x) {
    float32x4_t all = vdupq_n_f32(x);
    return (vec){all, all, all, all};
}
static inline vec vec_load(const float *p) {
    return (vec){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
static inline void vec_store(float *p, vec x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
static inline vec vec_add(vec x, vec y) { return VEC_2(vaddq_f32, x, y); }
static inline vec vec_sub(vec x, vec y) { return VEC_2(vsubq_f32, x, y); }
static inline vec vec_mul(vec x, vec y) { return VEC_2(vmulq_f32, x, y); }
static inline vec vec_inverse(vec x) {
    vec one = vec_set(1);
    return VEC_2(vdivq_f32, one, x);
}
/* x·y + z, z - x·y: fused. */
static inline vec vec_fma(vec x, vec y, vec z) { return VEC_3(vfmaq_f32, z, x, y); }
static inline vec vec_fnma(vec x, vec y, vec z) { return VEC_3(vfmsq_f32, z, x, y); }
/* The larger, the smaller; NaN where either is NaN. */
static inline vec vec_max(vec x, vec y) { return VEC_2(vmaxq_f32, x, y); }
static inline vec vec_min(vec x, vec y) { return VEC_2(vminq_f32, x, y); }
static inline vec vec_round(vec x) { return VEC_1(vrndnq_f32, x); }

/* x·2ⁿ; n whole, -126 … 127. */
static inline float32x4_t vec_scale_quarter(float32x4_t x, float32x4_t n) {
    int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(x, vreinterpretq_f32_s32(power));
}
static inline vec vec_scale(vec x, vec n) { return VEC_2(vec_scale_quarter, x, n); }

/* All ones in the first count - at of 4 lanes. */
static inline uint32x4_t vec_mask_quarter(int count, int at) {
    static const int32_t lanes[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(count - at));
}
/* The first `count` lanes of x, `other` in the rest. */
static inline vec vec_keep(vec x, int count, float other) {
    float32x4_t o = vdupq_n_f32(other);
    return (vec){
        vbslq_f32(vec_mask_quarter(count, 0), x.a, o), vbslq_f32(vec_mask_quarter(count, 4), x.b, o),
        vbslq_f32(vec_mask_quarter(count, 8), x.c, o), vbslq_f32(vec_mask_quarter(count, 12), x.d, o)};
}

static inline float vec_sum(vec x) { return vaddvq_f32(vaddq_f32(vaddq_f32(x.a, x.b), vaddq_f32(x.c, x.d))); }
static inline float vec_top(vec x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

/* To nearest even; NaN stays NaN. The result's bf16 bits are the upper halves. */
static inline uint32x4_t vec_bf16_quarter(float32x4_t x) {
    uint32x4_t u = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(u, vdupq_n_u32(0x400000)));
}
static inline float32x4_t vec_round_bf16_quarter(float32x4_t x) {
    return vreinterpretq_f32_u32(vandq_u32(vec_bf16_quarter(x), vdupq_n_u32(0xffff0000)));
}
static inline vec vec_round_bf16(vec x) { return VEC_1(vec_round_bf16_quarter, x); }

static inline float32x4_t vec_widen_quarter(uint16x4_t x) {
    return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}
static inline uint16x4_t vec_narrow_quarter(float32x4_t x) { return vshrn_n_u32(vec_bf16_quarter(x), 16); }

static inline vec vec_load_bf16(const uint16_t *p) {
    return (vec){vec_widen_quarter(vld1_u16(p)), vec_widen_quarter(vld1_u16(p + 4)),
                 vec_widen_quarter(vld1_u16(p + 8)), vec_widen_quarter(vld1_u16(p + 12))};
}
static inline void vec_store_bf16(uint16_t *p, vec x) {
    vst1_u16(p, vec_narrow_quarter(x.a));
    vst1_u16(p + 4, vec_narrow_quarter(x.b));
    vst1_u16(p + 8, vec_narrow_quarter(x.c));
    vst1_u16(p + 12, vec_narrow_quarter(x.d));
}

/* The first `count` (1 … 16) elements; lanes beyond are zero. */
static inline vec vec_load_n(const float *p, int count) {
    float part[16] = {0};
    if (count >= 16) return vec_load(p);
    memcpy(part, p, (size_t)count * sizeof *part);
    return vec_load(part);
}
static inline void vec_store_n(float *p, vec x, int count) {
    float part[16];
    if (count >= 16) {
        vec_store(p, x);
        return;
    }
    vec_store(part, x);
    memcpy(p, part, (size_t)count * sizeof *part);
}
static inline vec vec_load_bf16_n(const uint16_t *p, int count) {
    uint16_t part[16] = {0};
    if (count >= 16) return vec_load_bf16(p);
    memcpy(part, p, (size_t)count * sizeof *part);
    return vec_load_bf16(part);
}
static inline void vec_store_bf16_n(uint16_t *p, vec x, int count) {
    uint16_t part[16];
    if (count >= 16) {
        vec_store_bf16(p, x);
        return;
    }
    vec_store_bf16(part, x);
    memcpy(p, part, (size_t)count * sizeof *part);
}

/* Whole numbers -127 … 127. */
static inline int16x4_t vec_int16_quarter(float32x4_t x) { return vmovn_s32(vcvtq_s32_f32(x)); }
static inline void vec_store_int8_n(int8_t *p, vec x, int count) {
    int16x8_t low = vcombine_s16(vec_int16_quarter(x.a), vec_int16_quarter(x.b));
    int16x8_t high = vcombine_s16(vec_int16_quarter(x.c), vec_int16_quarter(x.d));
    int8_t part[16];
    if (count >= 16) {
        vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        return;
    }
    vst1q_s8(part, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    memcpy(p, part, (size_t)count);
}
/* Sixteen int32 less a number, rounded to nearest even. */
static inline float32x4_t vec_load_int32_quarter(const int32_t *p, int32_t less) {
    return vcvtq_f32_s32(vsubq_s32(vld1q_s32(p), vdupq_n_s32(less)));
}
static inline vec vec_load_int32(const void *from, int32_t less) {
    const int32_t *p = from;
    return (vec){vec_load_int32_quarter(p, less), vec_load_int32_quarter(p + 4, less),
                 vec_load_int32_quarter(p + 8, less), vec_load_int32_quarter(p + 12, less)};
}

/* even[0], odd[0], even[1], odd[1] … as bf16. */
static inline uint32x4_t vec_bf16_pairs_quarter(float32x4_t even, float32x4_t odd) {
    return vsriq_n_u32(vec_bf16_quarter(odd), vec_bf16_quarter(even), 16);
}
static inline void vec_store_bf16_pairs(uint32_t *p, vec even, vec odd) {
    vst1q_u32(p, vec_bf16_pairs_quarter(even.a, odd.a));
    vst1q_u32(p + 4, vec_bf16_pairs_quarter(even.b, odd.b));
    vst1q_u32(p + 8, vec_bf16_pairs_quarter(even.c, odd.c));
    vst1q_u32(p + 12, vec_bf16_pairs_quarter(even.d, odd.d));
}

/* p[0], p[2], … p[30] and p[1], p[3], … p[31] */
static inline vec vec_load_pairs(const float *p, vec *odd) {
    float32x4x2_t a = vld2q_f32(p), b = vld2q_f32(p + 8), c = vld2q_f32(p + 16), d = vld2q_f32(p + 24);
    *odd = (vec){a.val[1], b.val[1], c.val[1], d.val[1]};
    return (vec){a.val[0], b.val[0], c.val[0], d.val[0]};
}

#endif
