/* 16 packed columns of x·Wᵀ: the body of every kernel of thin.c, which includes this file once for each with
 *
 *   TILE         the kernel's name
 *   ROW_TILES    of 16 rows */
#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define LOCAL_SUMS JOINED(TILE, sums)

LOCAL(f32x4, LOCAL_SUMS, MOST_WAVES *ROW_TILES *WAVE);

KERNEL(MOST_WAVES *WAVE, TILE, gpu_linear) {
    const int lane = thread_id() & (WAVE - 1), part = lane / 16;
    const int wave = wave_id(), waves = block_threads() / WAVE;
    const int row0 = block_x() * ROW_TILES * 16, unit = block_y(), rows = *p->count, ldx = p->ldx;
    const int blocks = p->weights.blocks, steps = p->k_blocks;
    const bf16x8 *w_from =
        (const bf16x8 *)p->weights.data + (size_t)unit * (size_t)blocks * UNITS * GPU_UNIT + lane;
    const u16 *x_from[ROW_TILES];
    f32x4 sums[ROW_TILES];
    if (row0 >= rows) return;
    /* Rows that are not there are computed from another, and dropped at the end. */
    UNROLL
    for (int r = 0; r < ROW_TILES; r++) {
        int row = row0 + r * 16 + lane % 16;
        x_from[r] = (const u16 *)p->x + (size_t)row_of(&p->from, row < rows ? row : row0) * (size_t)ldx;
        sums[r] = (f32x4){0, 0, 0, 0};
    }
    /* Where x has more k than W, W repeats; after ldx there is no x: what is read instead meets the zeros
     * that pad W. */
    ROLLED
    for (int step = wave; step < steps; step += waves * AHEAD) {
        bf16x8 w[AHEAD][PARTS], x[AHEAD][PARTS][ROW_TILES];
        UNROLL
        for (int a = 0; a < AHEAD; a++) {
            const int s = smaller(step + a * waves, steps - 1);
            UNROLL
            for (int j = 0; j < PARTS; j++) {
                int k = (s * UNITS + j * LANE_UNITS + part) * 8, at = k < ldx ? k : 0;
                w[a][j] = w_from[((size_t)(s % blocks) * PARTS + (size_t)j) * WAVE];
                UNROLL
                for (int r = 0; r < ROW_TILES; r++) x[a][j][r] = *(const bf16x8 *)(x_from[r] + at);
            }
        }
        keep_order();
        UNROLL
        for (int a = 0; a < AHEAD; a++) {
            if (step + a * waves >= steps) break;
            UNROLL
            for (int j = 0; j < PARTS; j++) {
                UNROLL
                for (int r = 0; r < ROW_TILES; r++) sums[r] = mma_wide_bf16(w[a][j], x[a][j][r], sums[r]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < ROW_TILES; r++) local_put(LOCAL_SUMS, (wave * ROW_TILES + r) * WAVE + lane, sums[r]);
    block_wait();
    ROLLED
    for (int r = wave; r < ROW_TILES; r += waves) {
        int row = row0 + r * 16 + lane % 16;
        f32x4 y = {0, 0, 0, 0}, other = y;
        for (int w = 0; w < waves; w++) y += local_get(LOCAL_SUMS, (w * ROW_TILES + r) * WAVE + lane);
        UNROLL
        for (int i = 0; i < 4; i++) other[i] = lane_from(y[i], lane ^ 32);
        if (row < rows) epilogue_unit(&p->epilogue, row, unit, part, y, other);
    }
}

#undef TILE
#undef ROW_TILES
#undef JOINED_
#undef JOINED
#undef LOCAL_SUMS
