/* The tiles of products that multiply two rows by two columns in one instruction: BFMMLA over four bf16 of k,
 * SMMLA over eight integers. In bytes both are the same.
 *
 *            32 columns of B         A tile of P pairs of rows is W times four columns wide. A
 *          ┌────┬────┬────┬─       turn of its loop, eight bytes of k: P loads of A; for each W
 *   6      │2·2 │2·2 │    │         two loads of B, whose words (a column, four bytes of k) two
 *   pairs  │ …  │ …  │ …  │         zips put beside each other, and 2·P multiplications.
 *          └────┴────┴────┴─         P 1: W 8      2, 3: W 4      4 … 6: W 2
 *
 *   a turn of    loads   zips   BFMMLA   multiply-adds a load     SMMLA: twice as many
 *   2 rows         17     16      16       15
 *   6 rows         11      8      24       35
 *   12 rows        10      4      24       38
 *
 * The panels are those of every level. Laid out for these instructions they would save the zips, which is one
 * in seven vector instructions of 12 rows, and packing, keys and values would need a layout of their own.
 *
 * Written once over a register of four sums, for a file that defines before it includes this one:
 *
 *   sums                   the register
 *   MULTIPLY(sum, a, b)    a: two rows, b: two columns, uint32x4_t
 *   NAME(pairs)            the kernels' names
 *   K_BYTES                bytes of an element
 *
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/broadcast.h"
#include "backend/cpu/kernels.h"

enum {
    ROWS = 12, AHEAD = 2048,
    STEP = 8,                    /* bytes of k in a turn                                                  */
    PANEL_ROW = PANEL * 4,       /* bytes of 32 words                                                       */
    PIECE = 64,                  /* turns: 16 KB of a panel stay in L1 for all of its tiles               */
    LINE = 64, MOST_PAIRS = 6, MOST_WIDE = 8,
};

/* Two rows times four columns: (row 0, row 1) of columns 0 and 1, and of 2 and 3. */
typedef struct patch {
    sums low, high;
} patch;

/* Four columns of a turn. */
typedef struct b_columns {
    uint32x4_t low, high;
} b_columns;

BROADCAST_INLINE uint32x4_t load(const char *from) { return (uint32x4_t)vld1q_u8((const uint8_t *)from); }

BROADCAST_INLINE b_columns load_b(const char *b) {
    uint32x4_t first = load(b), next = load(b + PANEL_ROW);
    return (b_columns){vzip1q_u32(first, next), vzip2q_u32(first, next)};
}

BROADCAST_INLINE void multiply(patch *sum, uint32x4_t a, b_columns b) {
    sum->low = MULTIPLY(sum->low, a, b.low);
    sum->high = MULTIPLY(sum->high, a, b.high);
}

/* What there is less of is held in registers, A or B; the other passes by. */
BROADCAST_INLINE void step(int pairs, int width, patch sum[][MOST_WIDE], const char *a, const char *b) {
    if (width == 2) {
        b_columns first = load_b(b), next = load_b(b + 16);
        BROADCAST_UNROLL
        for (int p = 0; p < pairs; p++) {
            uint32x4_t rows = load(a + p * 16);
            multiply(&sum[p][0], rows, first);
            multiply(&sum[p][1], rows, next);
        }
        return;
    }
    uint32x4_t first = load(a), next = first, last = first;
    if (pairs > 1) next = load(a + 16);
    if (pairs > 2) last = load(a + 32);
    BROADCAST_UNROLL
    for (int h = 0; h < width; h++) {
        b_columns columns = load_b(b + h * 16);
        multiply(&sum[0][h], first, columns);
        if (pairs > 1) multiply(&sum[1][h], next, columns);
        if (pairs > 2) multiply(&sum[2][h], last, columns);
    }
}

/* The same exchange of halves leads from two rows of C to a patch and back. */
BROADCAST_INLINE patch exchange(sums x, sums y) {
    uint64x2_t a = (uint64x2_t)x, b = (uint64x2_t)y;
    return (patch){(sums)vzip1q_u64(a, b), (sums)vzip2q_u64(a, b)};
}

BROADCAST_INLINE patch patch_from(const float *c) {
    return exchange((sums)vld1q_f32(c), (sums)vld1q_f32(c + PANEL));
}

BROADCAST_INLINE void patch_to(float *c, patch p) {
    patch rows = exchange(p.low, p.high);
    vst1q_f32(c, (float32x4_t)rows.low);
    vst1q_f32(c + PANEL, (float32x4_t)rows.high);
}

/* Lines of both rows of a panel that a tile, or two that share them, read. */
BROADCAST_INLINE void fetch(const char *b, int width) {
    __builtin_prefetch(b);
    __builtin_prefetch(b + PANEL_ROW);
    if (width < 8) return;
    __builtin_prefetch(b + LINE);
    __builtin_prefetch(b + PANEL_ROW + LINE);
}

BROADCAST_INLINE void tile(int pairs, int width, int fetches, int turns, const char *a, const char *b,
                           float *c, int accumulate) {
    patch sum[MOST_PAIRS][MOST_WIDE];
    const sums zero = (sums)vdupq_n_u32(0);
    BROADCAST_UNROLL
    for (int p = 0; p < pairs; p++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++)
            sum[p][h] = accumulate ? patch_from(c + 2 * p * PANEL + h * 4) : (patch){zero, zero};
    }
    for (int i = 0; i < turns; i++, a += pairs * 16, b += 2 * PANEL_ROW) {
        if (fetches) fetch(b + AHEAD, width);
        step(pairs, width, sum, a, b);
    }
    BROADCAST_UNROLL
    for (int p = 0; p < pairs; p++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++) patch_to(c + 2 * p * PANEL + h * 4, sum[p][h]);
    }
}

BROADCAST_INLINE void tiles(int pairs, int k, const void *a_, const void *b_, float *c, int accumulate) {
    int width = pairs == 1 ? 8 : pairs <= 3 ? 4 : 2, turns = k * K_BYTES / STEP;
    const char *a = a_, *b = b_;
    for (int i = 0; i < turns; i += PIECE, a += PIECE * pairs * 16, b += PIECE * 2 * PANEL_ROW)
        for (int at = 0; at < PANEL_ROW; at += width == 8 ? PANEL_ROW : LINE) {
            int depth = turns - i < PIECE ? turns - i : PIECE;
            tile(pairs, width, 1, depth, a, b + at, c + at / 4, accumulate || i);
            if (width == 2) tile(pairs, width, 0, depth, a, b + at + 32, c + at / 4 + 8, accumulate || i);
        }
}

#define X(pairs)                                                                                             \
    SANITIZER_BLIND static void NAME(pairs)(int k, const void *a, const void *b, float *c, int accumulate) { \
        tiles(pairs, k, a, b, c, accumulate);                                                                \
    }
BROADCAST_ROWS_6(X)
#undef X

static void run(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(pairs) [pairs] = NAME(pairs),
    static const broadcast_kernel kernels[MOST_PAIRS + 1] = {BROADCAST_ROWS_6(X)};
#undef X
    kernels[(rows + 1) / 2](k, a, b, c, accumulate);
}

/* [turn][pairs][2 rows][8 bytes]; the row that an odd last one lacks is zero. */
static void pack(void *to, const void *const *rows, int count, int k) {
    char *out = to;
    int bytes = k * K_BYTES;
    for (int i = 0; i < bytes; i += STEP)
        for (int r = 0; r < count + (count & 1); r++, out += STEP) {
            int n = r >= count ? 0 : bytes - i < STEP ? bytes - i : STEP;
            memset(out, 0, STEP);
            if (n == STEP) memcpy(out, (const char *)rows[r] + i, STEP);
            else if (n) memcpy(out, (const char *)rows[r] + i, (size_t)n);
        }
}

#define PAIRS_PRODUCT                                                                                     \
    .rows = ROWS, .row_step = 2, .k_step = STEP / K_BYTES, .a_bytes = K_BYTES, .b_bytes = K_BYTES,        \
    .k_block = 2048 / K_BYTES, .panels = 4, .panel_outer = 0, .a_cost = 0.05, .b_cost = 0.1, .pack = pack, \
    .run = run
