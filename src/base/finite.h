/* Loops over many numbers that answer one question: are all of them finite, are all of them in a range?
 *
 * Note: the inner loops have a constant count and no branch, so that a compiler vectorises them; a caller
 * searches for the offending number afterwards. Data may have any alignment. */
#ifndef BASE_FINITE_H
#define BASE_FINITE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { FINITE_BLOCK = 256 };

/* Elements of any alignment. */
typedef uint32_t finite_word __attribute__((aligned(1), may_alias));
typedef uint16_t finite_half __attribute__((aligned(1), may_alias));
typedef float finite_float __attribute__((aligned(1), may_alias));

/* An exponent of all ones (NaN, infinity) plus one carries into the sign bit. */
static inline int all_finite_f32(const void *data, size_t count) {
    const finite_word *at = (const finite_word *)data;
    uint32_t carry = 0;
    for (; count >= FINITE_BLOCK; count -= FINITE_BLOCK, at += FINITE_BLOCK) {
        for (int i = 0; i < FINITE_BLOCK; i++) carry |= (at[i] & 0x7fffffffu) + 0x00800000u;
        if (carry >> 31) return 0;
    }
    for (size_t i = 0; i < count; i++) carry |= (at[i] & 0x7fffffffu) + 0x00800000u;
    return !(carry >> 31);
}

/* The same for bf16. */
static inline int all_finite_bf16(const void *data, size_t count) {
    const finite_half *at = (const finite_half *)data;
    uint16_t carry = 0;
    for (; count >= FINITE_BLOCK; count -= FINITE_BLOCK, at += FINITE_BLOCK) {
        for (int i = 0; i < FINITE_BLOCK; i++) carry = (uint16_t)(carry | ((at[i] & 0x7fff) + 0x0080));
        if (carry >> 15) return 0;
    }
    for (size_t i = 0; i < count; i++) carry = (uint16_t)(carry | ((at[i] & 0x7fff) + 0x0080));
    return !(carry >> 15);
}

/* The same for F16. */
static inline int all_finite_f16(const void *data, size_t count) {
    const finite_half *at = (const finite_half *)data;
    uint16_t carry = 0;
    for (; count >= FINITE_BLOCK; count -= FINITE_BLOCK, at += FINITE_BLOCK) {
        for (int i = 0; i < FINITE_BLOCK; i++) carry = (uint16_t)(carry | ((at[i] & 0x7fff) + 0x0400));
        if (carry >> 15) return 0;
    }
    for (size_t i = 0; i < count; i++) carry = (uint16_t)(carry | ((at[i] & 0x7fff) + 0x0400));
    return !(carry >> 15);
}

/* Every number is at most `radius` away from `centre`, to rounding; a NaN is not. Absolute values of floats
 * are in the order of their bits, so a distance beyond the radius carries into the sign bit too. */
static inline int all_near_f32(const void *data, size_t count, float centre, float radius) {
    const finite_float *at = (const finite_float *)data;
    uint32_t carry = 0, bits, add;
    float away;
    memcpy(&bits, &radius, sizeof bits);
    add = 0x7fffffffu - bits;
    for (; count >= FINITE_BLOCK; count -= FINITE_BLOCK, at += FINITE_BLOCK) {
        for (int i = 0; i < FINITE_BLOCK; i++) {
            away = at[i] - centre;
            memcpy(&bits, &away, sizeof bits);
            carry |= (bits & 0x7fffffffu) + add;
        }
        if (carry >> 31) return 0;
    }
    for (size_t i = 0; i < count; i++) {
        away = at[i] - centre;
        memcpy(&bits, &away, sizeof bits);
        carry |= (bits & 0x7fffffffu) + add;
    }
    return !(carry >> 31);
}

#endif
