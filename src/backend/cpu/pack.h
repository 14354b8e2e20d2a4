/* Rows become columns: how blocks of A and panels of B are packed, for the kernels that broadcast. An
 * architecture's transpose_4x4 is included before this file. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <stdint.h>
#include <string.h>

#include "backend/cpu/layout.h"

/* Rows are bytes: after a bf16 row of odd length the next one begins at an odd half word. */
static inline uint32_t word_at(const unsigned char *row, int w) {
    uint32_t word;
    memcpy(&word, row + (size_t)w * sizeof word, sizeof word);
    return word;
}

/* to[w·stride + r] = word w of row r, in blocks of four by four */
static inline void transpose_words(uint32_t *to, const void *const *rows, int count, int words,
                                   size_t stride) {
    int r = 0, whole = words & ~3;
    for (; r + 4 <= count; r += 4) {
        const float *from[4] = {rows[r], rows[r + 1], rows[r + 2], rows[r + 3]};
        for (int w = 0; w < whole; w += 4) {
            float *out = (float *)(to + (size_t)w * stride + r);
            transpose_4x4(out, stride, from, w);
        }
    }
    for (int done = r, i = 0; i < count; i++)
        for (int w = i < done ? whole : 0; w < words; w++)
            to[(size_t)w * stride + (size_t)i] = word_at(rows[i], w);
}

/* A block for the kernels that broadcast: [k][rows] of floats. */
static inline void pack_f32(void *to, const void *const *rows, int count, int k, int k_step) {
    uint32_t *out = to;
    transpose_words(out, rows, count, k, (size_t)count);
    for (int w = k; w < round_up(k, k_step); w++)
        memset(out + (size_t)w * (size_t)count, 0, (size_t)count * sizeof *out);
}

/* [k/2][rows] of pairs. */
static inline void pack_bf16_pairs(void *to, const void *const *rows, int count, int k) {
    uint32_t *out = to;
    transpose_words(out, rows, count, k / 2, (size_t)count);
    if (k & 1)
        for (int i = 0; i < count; i++)
            out[(size_t)(k / 2) * (size_t)count + (size_t)i] = ((const bf16 *)rows[i])[k - 1];
}

/* [k/4][rows] of four integers. */
static inline void pack_int8_quads(void *to, const void *const *rows, int count, int k) {
    uint32_t *out = to, *last = out + (size_t)(k / 4) * (size_t)count;
    transpose_words(out, rows, count, k / 4, (size_t)count);
    for (int i = 0; k % 4 && i < count; i++) {
        last[i] = 0;
        memcpy(last + i, (const char *)rows[i] + k / 4 * 4, (size_t)(k % 4));
    }
}

/* [k/4][rows][4] of integers, each as 16 bits. */
static inline void pack_int16_quads(void *to, const void *const *rows, int count, int k) {
    int16_t *out = to;
    for (int at = 0; at < k; at += 4)
        for (int i = 0; i < count; i++)
            for (int j = at; j < at + 4; j++) *out++ = j < k ? ((const int8_t *)rows[i])[j] : 0;
}

#endif
