/* Product bf16 · bf16 by AMX tiles.
 *
 *              16 columns   16 columns
 *             ┌───────────┬───────────┐     Tiles 0 … 3 accumulate 32 rows × 32 columns. For each
 *   16 rows   │  tile 0   │  tile 1   │     32 of k: two tiles of A (4, 5) and two of B (6, 7),
 *   16 rows   │  tile 2   │  tile 3   │     each used twice.
 *             └───────────┴───────────┘
 *
 *   A   block [k/32][rows/16][16][32]: a tile is 1 KB in one piece.
 *   B   panel [k/2][32][2]: rows of a tile, 16 pairs, are 128 bytes apart, the panel's other half between.
 *
 * Note: cutting k so that operands stay in L1 is slower, since C is then stored and loaded instead. Faster
 * is that the rows of A that are read again for every panel fit L2: 13 blocks of 2048 run at twice the
 * speed of 25. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/x86/kernels.h"

enum { ROWS = 32, TILE_ROWS = 16, TILE_BYTES = 64, TILE_K = 32, A_TILE = TILE_ROWS * TILE_K };
enum { B_STEP = TILE_K * PANEL, B_STRIDE = 128 };
enum { C_STRIDE = PANEL * 4, C_TILE_ROW = TILE_ROWS * PANEL };

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) tile_config;

/* Constant, since gcc's intrinsic declares the first eight bytes only as read: stores to a local one are
 * dropped. */
static const tile_config config = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

static void enter(void) { _tile_loadconfig(&config); }

static void leave(void) { _tile_release(); }

static void run_16(int k, const bf16 *a, const bf16 *b, float *c, int accumulate) {
    if (accumulate) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + 16, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int i = 0; i < k; i += TILE_K, a += A_TILE, b += B_STEP) {
        for (int line = 0; line < 32; line++)
            _mm_prefetch((const char *)(b + 8 * B_STEP) + line * 64, _MM_HINT_T0);
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, B_STRIDE);
        _tile_loadd(7, b + 32, B_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
}

static void run_32(int k, const bf16 *a, const bf16 *b, float *c, int accumulate, cpu_ahead ahead) {
    int each = (ahead.lines * TILE_K + k - 1) / k;
    if (accumulate) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + 16, C_STRIDE);
        _tile_loadd(2, c + C_TILE_ROW, C_STRIDE);
        _tile_loadd(3, c + C_TILE_ROW + 16, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int i = 0; i < k; i += TILE_K, a += 2 * A_TILE, b += B_STEP) {
        for (int line = 0; line < each && ahead.lines; line++, ahead.lines--, ahead.from += TILE_BYTES)
            _mm_prefetch(ahead.from, _MM_HINT_T1);
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, B_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, B_STRIDE);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + A_TILE, TILE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
    _tile_stored(2, c + C_TILE_ROW, C_STRIDE);
    _tile_stored(3, c + C_TILE_ROW + 16, C_STRIDE);
}

static void run(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead) {
    if (rows > TILE_ROWS)
        run_32(k, a, b, c, accumulate, ahead);
    else
        run_16(k, a, b, c, accumulate);
}

/* Rows that fill up a tile are zero: what they give is never read, but must not be slow or trap. */
static void pack(void *to, const void *const *rows, int count, int k) {
    bf16 *out = to;
    int stored = (count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    for (int i = 0; i < k; i += TILE_K)
        for (int r = 0; r < stored; r++, out += TILE_K) {
            int n = r >= count ? 0 : k - i < TILE_K ? k - i : TILE_K;
            if (n == TILE_K) {
                memcpy(out, (const bf16 *)rows[r] + i, TILE_K * sizeof *out);
                continue;
            }
            if (n) memcpy(out, (const bf16 *)rows[r] + i, (size_t)n * sizeof *out);
            memset(out + n, 0, (size_t)(TILE_K - n) * sizeof *out);
        }
}

/* Operands of every sign and size: zeros would flatter, for a processor clocks down with the bits that
 * toggle. */
static double peak(long loops) {
    bf16 operands[4][TILE_ROWS * TILE_K];
    uint32_t random = 1;
    for (int i = 0; i < 4 * TILE_ROWS * TILE_K; i++) {
        random = random * 1664525 + 1013904223;
        operands[i / (TILE_ROWS * TILE_K)][i % (TILE_ROWS * TILE_K)] =
            (bf16)((random >> 16 & 0x81ff) | 0x3e00);
    }
    __asm__ volatile("" : : "r"(operands) : "memory");    /* the compiler does not see what tile loads read */
    enter();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operands[0], TILE_BYTES);
    _tile_loadd(5, operands[1], TILE_BYTES);
    _tile_loadd(6, operands[2], TILE_BYTES);
    _tile_loadd(7, operands[3], TILE_BYTES);
    for (long l = 0; l < loops; l++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    leave();
    return (double)loops * 4 * 16 * 16 * 32 * 2;
}

const cpu_product cpu_bf16_bf16_amx = {
    .rows = ROWS, .row_step = TILE_ROWS, .k_step = TILE_K, .a_bytes = 2, .b_bytes = 2,
    .k_block = 2048, .panels = 24, .panel_outer = 1, .a_fit = 1200000, .a_cost = 4, .b_cost = 4,
    .pack = pack, .run = run, .enter = enter, .leave = leave, .peak = peak};
