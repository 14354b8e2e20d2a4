/* Product bf16 · bf16 by BFMMLA: two rows times two columns over four of k, 16 multiply-adds in one
 * instruction.
 *
 *            32 columns of B         A tile of P pairs of rows is W times four columns wide. A
 *          ┌────┬────┬────┬─       turn of its loop, four of k: P loads of A; for each W two
 *   6      │2·2 │2·2 │    │         loads of B, whose words (a column, two of k) two zips put
 *   pairs  │ …  │ …  │ …  │         beside each other, and 2·P BFMMLA.
 *          └────┴────┴────┴─         P 1: W 8      2, 3: W 4      4 … 6: W 2
 *
 *   a turn of    loads   zips   BFMMLA   multiply-adds a load
 *   2 rows         17     16      16       15
 *   6 rows         11      8      24       35
 *   12 rows        10      4      24       38
 *
 * The panels are those of every level. Laid out for BFMMLA they would save the zips, which is one in seven
 * vector instructions of 12 rows, and packing, keys and values would need a layout of their own.
 *
 * Note: where a processor has no other rounding (FEAT_EBF16), BFMMLA adds two products at a time, rounds to
 * odd and takes numbers below 2⁻¹²⁶ for zero.
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/arm/kernels.h"
#include "backend/cpu/broadcast.h"

enum {
    ROWS = 12, STEP_K = 4, AHEAD = 2048,
    PANEL_ROW = PANEL * 4,       /* bytes: 32 pairs of k                                                  */
    PIECE = 64,                  /* times four of k: 16 KB of a panel stay in L1 for all of its tiles     */
    LINE = 64, MOST_PAIRS = 6, MOST_WIDE = 8,
};

/* Two rows times four columns: (row 0, row 1) of columns 0 and 1, and of 2 and 3. */
typedef struct patch {
    float32x4_t low, high;
} patch;

/* Four columns of four k. */
typedef struct b_columns {
    bfloat16x8_t low, high;
} b_columns;

BROADCAST_INLINE b_columns load_b(const char *b) {
    uint32x4_t first = vld1q_u32((const uint32_t *)(const void *)b);
    uint32x4_t next = vld1q_u32((const uint32_t *)(const void *)(b + PANEL_ROW));
    return (b_columns){vreinterpretq_bf16_u32(vzip1q_u32(first, next)),
                       vreinterpretq_bf16_u32(vzip2q_u32(first, next))};
}

BROADCAST_INLINE bfloat16x8_t load_a(const bf16 *a) { return vreinterpretq_bf16_u16(vld1q_u16(a)); }

BROADCAST_INLINE void multiply(patch *sum, bfloat16x8_t a, b_columns b) {
    sum->low = vbfmmlaq_f32(sum->low, a, b.low);
    sum->high = vbfmmlaq_f32(sum->high, a, b.high);
}

/* Four of k. What there is less of is held in registers, A or B; the other passes by. */
BROADCAST_INLINE void step(int pairs, int width, patch sum[][MOST_WIDE], const bf16 *a, const char *b) {
    if (width == 2) {
        b_columns first = load_b(b), next = load_b(b + 16);
        BROADCAST_UNROLL
        for (int p = 0; p < pairs; p++) {
            bfloat16x8_t rows = load_a(a + p * 8);
            multiply(&sum[p][0], rows, first);
            multiply(&sum[p][1], rows, next);
        }
        return;
    }
    bfloat16x8_t first = load_a(a), next = first, last = first;
    if (pairs > 1) next = load_a(a + 8);
    if (pairs > 2) last = load_a(a + 16);
    BROADCAST_UNROLL
    for (int h = 0; h < width; h++) {
        b_columns columns = load_b(b + h * 16);
        multiply(&sum[0][h], first, columns);
        if (pairs > 1) multiply(&sum[1][h], next, columns);
        if (pairs > 2) multiply(&sum[2][h], last, columns);
    }
}

BROADCAST_INLINE float32x4_t halves(float64x2_t x) { return vreinterpretq_f32_f64(x); }

/* The same exchange of halves leads from two rows of C to a patch and back. */
BROADCAST_INLINE patch exchange(float32x4_t x, float32x4_t y) {
    float64x2_t a = vreinterpretq_f64_f32(x), b = vreinterpretq_f64_f32(y);
    return (patch){halves(vzip1q_f64(a, b)), halves(vzip2q_f64(a, b))};
}

/* Lines of both rows of a panel that a tile, or two that share them, read. */
BROADCAST_INLINE void fetch(const char *b, int width) {
    __builtin_prefetch(b);
    __builtin_prefetch(b + PANEL_ROW);
    if (width < 8) return;
    __builtin_prefetch(b + LINE);
    __builtin_prefetch(b + PANEL_ROW + LINE);
}

BROADCAST_INLINE void tile(int pairs, int width, int fetches, int steps, const bf16 *a, const char *b,
                           float *c, int accumulate) {
    patch sum[MOST_PAIRS][MOST_WIDE];
    BROADCAST_UNROLL
    for (int p = 0; p < pairs; p++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++) {
            const float *at = c + 2 * p * PANEL + h * 4;
            sum[p][h] = accumulate ? exchange(vld1q_f32(at), vld1q_f32(at + PANEL))
                                   : (patch){vdupq_n_f32(0), vdupq_n_f32(0)};
        }
    }
    for (int i = 0; i < steps; i++, a += pairs * 8, b += 2 * PANEL_ROW) {
        if (fetches) fetch(b + AHEAD, width);
        step(pairs, width, sum, a, b);
    }
    BROADCAST_UNROLL
    for (int p = 0; p < pairs; p++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++) {
            patch rows = exchange(sum[p][h].low, sum[p][h].high);
            vst1q_f32(c + 2 * p * PANEL + h * 4, rows.low);
            vst1q_f32(c + (2 * p + 1) * PANEL + h * 4, rows.high);
        }
    }
}

BROADCAST_INLINE void tiles(int pairs, int k, const void *a_, const void *b_, float *c, int accumulate) {
    int width = pairs == 1 ? 8 : pairs <= 3 ? 4 : 2, steps = k / STEP_K;
    const bf16 *a = a_;
    const char *b = b_;
    for (int i = 0; i < steps; i += PIECE, a += PIECE * pairs * 8, b += PIECE * 2 * PANEL_ROW)
        for (int at = 0; at < PANEL_ROW; at += width == 8 ? PANEL_ROW : LINE) {
            int depth = steps - i < PIECE ? steps - i : PIECE;
            tile(pairs, width, 1, depth, a, b + at, c + at / 4, accumulate || i);
            if (width == 2) tile(pairs, width, 0, depth, a, b + at + 32, c + at / 4 + 8, accumulate || i);
        }
}

#define X(pairs)                                                                                    \
    SANITIZER_BLIND static void mmla_tile_##pairs(int k, const void *a, const void *b, float *c,    \
                                                  int accumulate) {                                 \
        tiles(pairs, k, a, b, c, accumulate);                                                       \
    }
BROADCAST_ROWS_6(X)
#undef X

static void run(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(pairs) [pairs] = mmla_tile_##pairs,
    static const broadcast_kernel kernels[MOST_PAIRS + 1] = {BROADCAST_ROWS_6(X)};
#undef X
    kernels[(rows + 1) / 2](k, a, b, c, accumulate);
}

/* [k/4][pairs][2 rows][4]; the row that an odd last one lacks is zero. */
static void pack(void *to, const void *const *rows, int count, int k) {
    bf16 *out = to;
    for (int i = 0; i < k; i += STEP_K)
        for (int r = 0; r < count + (count & 1); r++, out += STEP_K) {
            int n = r >= count ? 0 : k - i < STEP_K ? k - i : STEP_K;
            memset(out, 0, STEP_K * sizeof *out);
            if (n == STEP_K) memcpy(out, (const bf16 *)rows[r] + i, STEP_K * sizeof *out);
            else if (n) memcpy(out, (const bf16 *)rows[r] + i, (size_t)n * sizeof *out);
        }
}

static double peak(long loops) {
    enum { SUMS = 4 * MOST_PAIRS };
    float32x4_t sum[SUMS];
    static const bf16 some[8] = {0x3f80, 0xbf00, 0x3f81, 0xbf01, 0x3f82, 0xbf02, 0x3f83, 0xbf03};
    bfloat16x8_t a = load_a(some);
    __asm__ volatile("" : "+w"(a));
    BROADCAST_UNROLL
    for (int i = 0; i < SUMS; i++) sum[i] = vdupq_n_f32(0);
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < SUMS; i++) sum[i] = vbfmmlaq_f32(sum[i], a, a);
        BROADCAST_UNROLL
        for (int i = 0; i < SUMS; i++) __asm__ volatile("" : "+w"(sum[i]));
    }
    return (double)loops * SUMS * 16 * 2;
}

const cpu_product cpu_bf16_bf16_neonbf16 = {
    .rows = ROWS, .row_step = 2, .k_step = STEP_K, .a_bytes = 2, .b_bytes = 2, .k_block = 1024,
    .panels = 4, .panel_outer = 0, .a_cost = 0.05, .b_cost = 0.1, .pack = pack, .run = run, .peak = peak};
