/* The fp32 products of a level around its tiles: a kernel for each number of rows, how A is packed, the
 * ceiling. bf16 weights and codes of 8 bits are widened on the fly, which is exact. Compiled for each level,
 * whose file defines before it includes this one:
 *
 *   reg, REG_FLOATS        a register and how many floats it holds
 *   REG_CLASS              its name as an operand of __asm__
 *   ROWS, EACH_ROW         most rows of a block, and BROADCAST_ROWS_N for it
 *   K_BLOCK                k that blocks are best cut to
 *   reg_zero, reg_set, reg_fma
 *   tiles                  (rows, k, a, b, c, accumulate, kind): C of one panel; of kind 0 B is floats, of 1
 *                          pairs of bf16, of 2 codes */

#define X(rows)                                                                                       \
    SANITIZER_BLIND static void f32_tile_##rows(int k, const void *a, const void *b, float *c,        \
                                                int accumulate) {                                     \
        tiles(rows, k, a, b, c, accumulate, 0);                                                       \
    }                                                                                                 \
    SANITIZER_BLIND static void bf16_tile_##rows(int k, const void *a, const void *b, float *c,       \
                                                 int accumulate) {                                    \
        tiles(rows, k, a, b, c, accumulate, 1);                                                       \
    }                                                                                                 \
    SANITIZER_BLIND static void codes_tile_##rows(int k, const void *a, const void *b, float *c,      \
                                                  int accumulate) {                                   \
        tiles(rows, k, a, b, c, accumulate, 2);                                                       \
    }
EACH_ROW(X)
#undef X

static void f32_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                    cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = f32_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {EACH_ROW(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void bf16_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = bf16_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {EACH_ROW(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void codes_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                      cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = codes_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {EACH_ROW(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void f32_pack(void *to, const void *const *rows, int count, int k) { pack_f32(to, rows, count, k, 1); }
static void bf16_pack(void *to, const void *const *rows, int count, int k) {
    pack_f32(to, rows, count, k, 2);
}
static void codes_pack(void *to, const void *const *rows, int count, int k) {
    pack_f32(to, rows, count, k, 1);
}

static double peak(long loops) {
    const float tiny = 1e-20f;
    reg sum[2 * ROWS], a = reg_set(&tiny);
    BROADCAST_UNROLL
    for (int i = 0; i < 2 * ROWS; i++) sum[i] = reg_zero();
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < 2 * ROWS; i++) sum[i] = reg_fma(a, a, sum[i]);
        BROADCAST_UNROLL
        for (int i = 0; i < 2 * ROWS; i++) __asm__ volatile("" : "+" REG_CLASS(sum[i]));
    }
    return (double)loops * (2 * ROWS * REG_FLOATS) * 2;
}

/* The product with B's elements of `bytes` bytes, in steps of `step` of k. */
#define BROADCAST_PRODUCT(type, bytes, step)                                                                \
    {                                                                                                       \
        .rows = ROWS, .row_step = 1, .k_step = step, .a_bytes = 4, .b_bytes = bytes, .k_block = K_BLOCK,    \
        .panels = 4, .panel_outer = 0, .a_cost = 0.05, .b_cost = 0.1, .pack = type##_pack,                  \
        .run = type##_run, .peak = peak                                                                     \
    }
