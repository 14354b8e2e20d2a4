/* Product int8 · int8 where the processor has no instruction for it: both are widened to 16 bits, pairs of k
 * are multiplied and added to int32, which is exact. Written once over a register of integers and compiled
 * for levels avx2 and avx512, whose files define before they include this one, after broadcast_f32.h:
 *
 *   ireg                   a register; REG_FLOATS int32 fit it
 *   ireg_zero, ireg_add, ireg_store_sum(c, x, y, accumulate)
 *   ireg_widen             REG_FLOATS · 2 bytes of memory, each as 16 bits
 *   ireg_set               four times 16 bits, again and again
 *   ireg_multiply          pairs: x[0]·y[0] + x[1]·y[1] …
 *
 * A register of B holds 4 of k for REG_FLOATS / 2 columns, so a register of sums holds two for each column:
 * those of the first pair of k and those of the second. ireg_store_sum adds them, of two registers x, y, to
 * one register of columns at c. */

enum { INT8_COLUMNS = REG_FLOATS, INT8_TILES = PANEL / INT8_COLUMNS, INT8_ROW_BYTES = PANEL * 4 };

BROADCAST_INLINE void int8_tile(int rows, int k, const void *a_, const char *b, float *c, int accumulate) {
    const int64_t *a = a_;
    ireg sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) sum[r][h] = ireg_zero();
    }
    for (int i = 0; i < k; i += 4, a += rows, b += INT8_ROW_BYTES) {
        ireg b0 = ireg_widen(b), b1 = ireg_widen(b + REG_FLOATS * 2);
        _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        BROADCAST_UNROLL
        for (int r = 0; r < rows; r++) {
            ireg value = ireg_set(a + r);
            sum[r][0] = ireg_add(sum[r][0], ireg_multiply(value, b0));
            sum[r][1] = ireg_add(sum[r][1], ireg_multiply(value, b1));
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) ireg_store_sum(c + r * PANEL, sum[r][0], sum[r][1], accumulate);
}

#define X(rows)                                                                                        \
    SANITIZER_BLIND static void int8_tile_##rows(int k, const void *a, const void *b, float *c,        \
                                                 int accumulate) {                                     \
        for (int t = 0; t < INT8_TILES; t++)                                                           \
            int8_tile(rows, k, a, (const char *)b + t * INT8_COLUMNS * 4, c + t * INT8_COLUMNS,        \
                      accumulate);                                                                     \
    }
EACH_ROW(X)
#undef X

static void int8_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = int8_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {EACH_ROW(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

/* Four int16 are the piece of A that is broadcast. */
#define BROADCAST_INT8                                                                                      \
    {                                                                                                       \
        .rows = ROWS, .row_step = 1, .k_step = 4, .a_bytes = 2, .b_bytes = 1, .k_block = 2 * K_BLOCK,       \
        .panels = 4, .panel_outer = 0, .a_cost = 0.05, .b_cost = 0.1, .pack = pack_int16_quads,             \
        .run = int8_run                                                                                     \
    }
