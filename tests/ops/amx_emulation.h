/* AMX tiles in plain C, for machines without: included before src/backend/cpu/x86/kernels_amx.c, it puts
 * functions in the place of the intrinsics. What is proved so is everything but the instructions themselves:
 * layouts, strides, tails, the order of sums. Loads and stores touch exactly the bytes that a tile of 16 rows
 * of 64 bytes touches. */
#ifndef AMX_EMULATION_H
#define AMX_EMULATION_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_BYTES = 64 };

static _Thread_local unsigned char emulated_tiles[EMULATED_TILES][EMULATED_ROWS][EMULATED_BYTES];
static _Thread_local int emulated_configured;

/* A tile instruction before the configuration is loaded traps on a real machine, too. */
static inline void emulated_check(void) {
    if (!emulated_configured) __builtin_trap();
}

static inline void emulated_loadconfig(const void *config) {
    const unsigned char *c = config;
    if (c[0] != 1) __builtin_trap();
    for (int i = 0; i < EMULATED_TILES; i++)
        if (c[16 + 2 * i] != EMULATED_BYTES || c[48 + i] != EMULATED_ROWS) __builtin_trap();
    emulated_configured = 1;
}

static inline void emulated_release(void) { emulated_configured = 0; }

static inline void emulated_zero(int tile) {
    emulated_check();
    memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
}

static inline void emulated_loadd(int tile, const void *from, long stride) {
    emulated_check();
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy(emulated_tiles[tile][r], (const char *)from + r * stride, EMULATED_BYTES);
}

static inline void emulated_stored(int tile, void *to, long stride) {
    emulated_check();
    for (int r = 0; r < EMULATED_ROWS; r++)
        memcpy((char *)to + r * stride, emulated_tiles[tile][r], EMULATED_BYTES);
}

static inline void emulated_dpbf16ps(int to, int a, int b) {
    float even[16][16], odd[16][16];         /* b as numbers, once for all rows of a */
    emulated_check();
    for (int k = 0; k < 16; k++) {
        bf16 columns[32];
        memcpy(columns, emulated_tiles[b][k], sizeof columns);
        for (int n = 0; n < 16; n++) even[k][n] = bf16_to_float(columns[2 * n]);
        for (int n = 0; n < 16; n++) odd[k][n] = bf16_to_float(columns[2 * n + 1]);
    }
    for (int m = 0; m < 16; m++) {
        float sum[16];
        bf16 row[32];
        memcpy(sum, emulated_tiles[to][m], sizeof sum);
        memcpy(row, emulated_tiles[a][m], sizeof row);
        for (int k = 0; k < 16; k++) {
            float first = bf16_to_float(row[2 * k]), second = bf16_to_float(row[2 * k + 1]);
            for (int n = 0; n < 16; n++) sum[n] += first * even[k][n];
            for (int n = 0; n < 16; n++) sum[n] += second * odd[k][n];
        }
        memcpy(emulated_tiles[to][m], sum, sizeof sum);
    }
}

/* Four integers of a row by four of a column, 16 times. */
static inline void emulated_dpbssd(int to, int a, int b) {
    emulated_check();
    for (int m = 0; m < 16; m++) {
        int32_t sum[16];
        const int8_t *row = (const int8_t *)emulated_tiles[a][m];
        memcpy(sum, emulated_tiles[to][m], sizeof sum);
        for (int k = 0; k < 64; k++) {
            const int8_t *columns = (const int8_t *)emulated_tiles[b][k / 4] + k % 4;
            for (int n = 0; n < 16; n++) sum[n] += row[k] * columns[4 * n];
        }
        memcpy(emulated_tiles[to][m], sum, sizeof sum);
    }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_loadconfig
#undef _tile_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbf16ps emulated_dpbf16ps
#define _tile_dpbssd emulated_dpbssd
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define cpu_bf16_bf16_amx cpu_bf16_bf16_amx_emulated
#define cpu_bf16_int8_amx cpu_bf16_int8_amx_emulated
#define cpu_int8_int8_amx cpu_int8_int8_amx_emulated

#endif
