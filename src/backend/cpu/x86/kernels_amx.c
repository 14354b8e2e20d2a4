/* Products bf16 · bf16 and int8 · int8 by AMX tiles.
 *
 *              16 columns   16 columns
 *             ┌───────────┬───────────┐     Tiles 0 … 3 accumulate 32 rows × 32 columns. For each
 *   16 rows   │  tile 0   │  tile 1   │     64 bytes of k, 32 bf16 or 64 integers: two tiles of
 *   16 rows   │  tile 2   │  tile 3   │     A (4, 5) and two of B (6, 7), each used twice.
 *             └───────────┴───────────┘
 *
 *   A   block [k/64 bytes][rows/16][16][64 bytes]: a tile is 1 KB in one piece.
 *   B   panel [k/4 bytes][32][4 bytes]: rows of a tile, of 16 words, are 128 bytes apart, the panel's other
 *       half between.
 *
 * Note: cutting k so that operands stay in L1 is slower, since C is then stored and loaded instead. Faster
 * is that the rows of A that are read again for every panel fit L2: 13 blocks of 2048 run at twice the
 * speed of 25. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/x86/kernels.h"

enum { ROWS = 32, TILE_ROWS = 16, TILE_BYTES = 64, A_TILE = TILE_ROWS * TILE_BYTES };
enum { B_STEP = TILE_BYTES * PANEL, B_STRIDE = 128, B_HALF = 64 };
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

#define TILE_INLINE static inline __attribute__((always_inline))

/* Sums of tile `to`: a macro, for the instructions name their tiles. */
#define DOT(int8, to, a, b)                       \
    do {                                          \
        if (int8) _tile_dpbssd(to, a, b);         \
        else _tile_dpbf16ps(to, a, b);            \
    } while (0)

TILE_INLINE void run_16(int int8, int fetch, int bytes, const char *a, const char *b, float *c,
                        int accumulate) {
    if (accumulate) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + 16, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int i = 0; i < bytes; i += TILE_BYTES, a += A_TILE, b += B_STEP) {
        for (int line = 0; fetch && line < 32; line++) _mm_prefetch(b + 8 * B_STEP + line * 64, _MM_HINT_T0);
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, B_STRIDE);
        _tile_loadd(7, b + B_HALF, B_STRIDE);
        DOT(int8, 0, 4, 6);
        DOT(int8, 1, 4, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
}

TILE_INLINE void run_32(int int8, int bytes, const char *a, const char *b, float *c, int accumulate,
                        cpu_ahead ahead) {
    int each = (ahead.lines * TILE_BYTES + bytes - 1) / bytes;
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
    for (int i = 0; i < bytes; i += TILE_BYTES, a += 2 * A_TILE, b += B_STEP) {
        for (int line = 0; line < each && ahead.lines; line++, ahead.lines--, ahead.from += TILE_BYTES)
            _mm_prefetch(ahead.from, _MM_HINT_T1);
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, B_STRIDE);
        DOT(int8, 0, 4, 6);
        _tile_loadd(7, b + B_HALF, B_STRIDE);
        DOT(int8, 1, 4, 7);
        _tile_loadd(5, a + A_TILE, TILE_BYTES);
        DOT(int8, 2, 5, 6);
        DOT(int8, 3, 5, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + 16, C_STRIDE);
    _tile_stored(2, c + C_TILE_ROW, C_STRIDE);
    _tile_stored(3, c + C_TILE_ROW + 16, C_STRIDE);
}

static void bf16_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    if (rows > TILE_ROWS)
        run_32(0, k * (int)sizeof(bf16), a, b, c, accumulate, ahead);
    else
        run_16(0, 1, k * (int)sizeof(bf16), a, b, c, accumulate);
}

static void int8_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    if (rows > TILE_ROWS)
        run_32(1, k, a, b, c, accumulate, ahead);
    else
        run_16(1, 1, k, a, b, c, accumulate);
}

/* Codes [k][32] as pairs of bf16, which hold them exactly: [k/2][32][2]. */
static void widen(const char *codes, int k, uint32_t *pairs) {
    for (int i = 0; i < k; i += 2, codes += 2 * PANEL, pairs += PANEL) {
        _mm_prefetch(codes + 4 * B_STEP, _MM_HINT_T0);
        for (int column = 0; column < PANEL; column++) {
            float even = (float)(int8_t)codes[column], odd = (float)(int8_t)codes[PANEL + column];
            uint32_t low, high;
            memcpy(&low, &even, sizeof low);
            memcpy(&high, &odd, sizeof high);
            pairs[column] = low >> 16 | (high & UINT32_C(0xffff0000));
        }
    }
}

/* Weights of 8 bits under rows of bf16: a piece is widened into L1 and then multiplied as bf16. */
static void codes_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                      cpu_ahead ahead) {
    enum { PIECE = 64 };
    uint32_t pairs[PIECE / 2 * PANEL] __attribute__((aligned(64)));
    const char *rows_at = a, *codes = b;
    int tile_rows = rows > TILE_ROWS ? ROWS : TILE_ROWS;
    (void)ahead;
    for (int at = 0; at < k; at += PIECE, codes += PIECE * PANEL) {
        int count = k - at < PIECE ? k - at : PIECE, bytes = count * (int)sizeof(bf16);
        widen(codes, count, pairs);
        __asm__ volatile("" : : "r"(pairs) : "memory");   /* the compiler does not see what tile loads read */
        if (rows > TILE_ROWS)
            run_32(0, bytes, rows_at, (const char *)pairs, c, accumulate || at, (cpu_ahead){NULL, 0});
        else
            run_16(0, 0, bytes, rows_at, (const char *)pairs, c, accumulate || at);
        rows_at += tile_rows * bytes;
    }
}

/* Rows that fill up a tile are zero: what they give is never read, but must not be slow or trap. */
static void pack_bytes(char *out, const void *const *rows, int count, int bytes) {
    int stored = (count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    for (int i = 0; i < bytes; i += TILE_BYTES)
        for (int r = 0; r < stored; r++, out += TILE_BYTES) {
            int n = r >= count ? 0 : bytes - i < TILE_BYTES ? bytes - i : TILE_BYTES;
            if (n == TILE_BYTES) {
                memcpy(out, (const char *)rows[r] + i, TILE_BYTES);
                continue;
            }
            if (n) memcpy(out, (const char *)rows[r] + i, (size_t)n);
            memset(out + n, 0, (size_t)(TILE_BYTES - n));
        }
}

static void bf16_pack(void *to, const void *const *rows, int count, int k) {
    pack_bytes(to, rows, count, k * (int)sizeof(bf16));
}

static void codes_pack(void *to, const void *const *rows, int count, int k) {
    bf16_pack(to, rows, count, k);
}

static void int8_pack(void *to, const void *const *rows, int count, int k) { pack_bytes(to, rows, count, k); }

/* Operands of every sign and size: zeros would flatter, for a processor clocks down with the bits that
 * toggle. */
static double peak(long loops) {
    enum { TILE = A_TILE / sizeof(bf16) };
    bf16 operands[4][TILE];
    uint32_t random = 1;
    for (int i = 0; i < 4 * TILE; i++) {
        random = random * 1664525 + 1013904223;
        operands[i / TILE][i % TILE] = (bf16)((random >> 16 & 0x81ff) | 0x3e00);
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

#define TILE_PRODUCT(type, bytes, code)                                                                     \
    .rows = ROWS, .row_step = TILE_ROWS, .k_step = TILE_BYTES / bytes, .a_bytes = bytes, .b_bytes = code,   \
    .k_block = 4096 / bytes, .panels = 24, .panel_outer = 1, .a_fit = 1200000, .a_cost = 4, .b_cost = 4,    \
    .pack = type##_pack, .run = type##_run, .enter = enter, .leave = leave

const cpu_product cpu_bf16_bf16_amx = {TILE_PRODUCT(bf16, 2, 2), .peak = peak};
const cpu_product cpu_bf16_int8_amx = {TILE_PRODUCT(codes, 2, 1)};
const cpu_product cpu_int8_int8_amx = {TILE_PRODUCT(int8, 1, 1)};
