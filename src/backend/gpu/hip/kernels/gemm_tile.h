/* A tile of x·Wᵀ in bf16: the body of every kernel of gemm.c, which includes this file once for each with
 *
 *   TILE             the kernel's name
 *   ROWS, COLUMNS    of the tile
 *   WAVES_ROWS       waves that lie along the rows; 4 / WAVES_ROWS lie along the columns. A wave's part of
 *                    the tile is a multiple of 32 x 32
 *
 * The first operand is W, so four of a lane's sums are neighbouring packed columns of one row of x. Sums
 * reach the epilogue through local memory, 32 rows at a time, so that neighbouring lanes store neighbouring
 * columns. */
#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define ROW_TILES (ROWS / 32 / WAVES_ROWS)
#define WAVE_COLUMNS (COLUMNS / (WAVES / WAVES_ROWS))
#define COLUMN_TILES (WAVE_COLUMNS / 32)
#define PIECES (ROWS * UNITS / THREADS)    /* pieces of x that a thread brings, 16 bytes each              */
/* Pieces of x lie by k and then by row; rows of a group of 8 are exchanged, so that neither those that store
 * (8 k of a row) nor those that load (a k of 32 rows) meet in a bank. Likewise the quads of the epilogue. */
#define X_AT(unit, row) ((unit) * ROWS + ((row) ^ (unit)))
#define BUFFER (UNITS * ROWS)
#define OUT_QUADS (WAVE_COLUMNS / 4)       /* quads in a row, in the epilogue                              */
#define OUT_AT(row, quad) ((row) * OUT_QUADS + ((quad) ^ ((row) & 7)))
#define OUT_ALL (WAVES * 32 * OUT_QUADS)
#define LOCAL_X JOINED(TILE, x)

LOCAL(bf16x8, LOCAL_X, 2 * BUFFER > OUT_ALL ? 2 * BUFFER : OUT_ALL);

/* W of a step and wave. */
typedef struct JOINED(TILE, operand) {
    bf16x8 w[COLUMN_TILES][STEPS];
} JOINED(TILE, operand);

DEV void JOINED(TILE, store)(const gpu_linear *p, f32x16 sums[COLUMN_TILES], int wave, int row0,
                             int column0) {
    const int lane = thread_id() & (WAVE - 1), mine = wave * 32 * OUT_QUADS, rows = *p->count,
              pair = paired(&p->epilogue);
    block_wait();
    UNROLL
    for (int c = 0; c < COLUMN_TILES; c++) {
        UNROLL
        for (int g = 0; g < 4; g++) {
            f32x4 y = {sums[c][4 * g], sums[c][4 * g + 1], sums[c][4 * g + 2], sums[c][4 * g + 3]};
            local_put(LOCAL_X, mine + OUT_AT(lane % 32, c * 8 + g * 2 + lane / 32), (bf16x8)y);
        }
    }
    block_wait();
    ROLLED
    for (int i = lane; i < 32 * OUT_QUADS; i += WAVE) {
        int row = i / OUT_QUADS, quad = i % OUT_QUADS;
        if (row0 + row >= rows || column0 + quad * 4 >= p->weights.columns) continue;
        f32x4 y = (f32x4)local_get(LOCAL_X, mine + OUT_AT(row, quad)), other = y;
        if (pair) other = (f32x4)local_get(LOCAL_X, mine + OUT_AT(row, quad ^ 2));
        epilogue_unit(&p->epilogue, row0 + row, (column0 + quad * 4) / GPU_UNIT, quad & 3, y, other);
    }
}

KERNEL(THREADS, TILE, gpu_linear) {
    const int lane = thread_id() & (WAVE - 1), wave = wave_id(), half = lane / 32;
    const int row0 = block_x() * ROWS, column0 = block_y() * COLUMNS, rows = *p->count, ldx = p->ldx;
    const int my_row = wave % WAVES_ROWS * ROW_TILES * 32, my_column = wave / WAVES_ROWS * WAVE_COLUMNS;
    const int steps = p->k_blocks, blocks = p->weights.blocks;
    const int unit = thread_id() % UNITS, first_row = thread_id() / UNITS;
    const bf16x8 *w_from[COLUMN_TILES];
    const u16 *x_from[PIECES];
    bf16x8 x_next[PIECES];
    f32x16 sums[ROW_TILES][COLUMN_TILES];
    JOINED(TILE, operand) now, next;
    if (row0 >= rows) return;
    /* Rows and columns that are not there are computed from others, and dropped at the end. */
    UNROLL
    for (int i = 0; i < PIECES; i++) {
        int r = row0 + first_row + i * (THREADS / UNITS);
        x_from[i] = (const u16 *)p->x + (size_t)row_of(&p->from, r < rows ? r : row0) * (size_t)ldx;
    }
    UNROLL
    for (int c = 0; c < COLUMN_TILES; c++) {
        int column = column0 + my_column + c * 32 + lane % 32;
        if (column >= p->weights.columns) column = 0;
        w_from[c] = (const bf16x8 *)p->weights.data +
                    ((size_t)(column / GPU_UNIT) * (size_t)blocks * UNITS + (size_t)half) * GPU_UNIT +
                    (size_t)(column % GPU_UNIT);
        UNROLL
        for (int r = 0; r < ROW_TILES; r++) sums[r][c] = (f32x16){0};
    }

/* After ldx there is no x: what is read instead meets the zeros that pad W. */
#define FETCH_X(step)                                                                                     \
    UNROLL                                                                                                \
    for (int i = 0; i < PIECES; i++) {                                                                    \
        int k = (step) * DEPTH + unit * 8;                                                                \
        x_next[i] = *(const bf16x8 *)(x_from[i] + (k < ldx ? k : 0));                                     \
    }
#define PUT_X(step)                                                                                       \
    UNROLL                                                                                                \
    for (int i = 0; i < PIECES; i++)                                                                      \
        local_put(LOCAL_X, ((step) & 1) * BUFFER + X_AT(unit, first_row + i * (THREADS / UNITS)), x_next[i]);
/* Where x has more k than W, W repeats. */
#define FETCH_W(block, to)                                                                                \
    UNROLL                                                                                                \
    for (int c = 0; c < COLUMN_TILES; c++) {                                                              \
        UNROLL                                                                                            \
        for (int j = 0; j < STEPS; j++)                                                                   \
            (to).w[c][j] = w_from[c][((size_t)(block) * UNITS + (size_t)(2 * j)) * GPU_UNIT];             \
    }

    FETCH_X(0)
    FETCH_W(0, now)
    PUT_X(0)
    ROLLED
    for (int step = 0, block = 0; step < steps; step++) {
        const int buffer = (step & 1) * BUFFER, more = step + 1 < steps;
        block = more ? block + 1 < blocks ? block + 1 : 0 : block;
        FETCH_X(more ? step + 1 : step)
        FETCH_W(block, next)
        keep_order();
        block_wait();
        UNROLL
        for (int j = 0; j < STEPS; j++) {
            UNROLL
            for (int r = 0; r < ROW_TILES; r++) {
                bf16x8 x = local_get(LOCAL_X, buffer + X_AT(2 * j + half, my_row + r * 32 + lane % 32));
                UNROLL
                for (int c = 0; c < COLUMN_TILES; c++)
                    sums[r][c] = mma_large_bf16(now.w[c][j], x, sums[r][c]);
            }
        }
        keep_order();
        PUT_X(step + 1)
        now = next;
    }
    UNROLL
    for (int r = 0; r < ROW_TILES; r++)
        JOINED(TILE, store)(p, sums[r], wave, row0 + my_row + r * 32, column0 + my_column);
}

#undef TILE
#undef ROWS
#undef COLUMNS
#undef WAVES_ROWS
#undef JOINED_
#undef JOINED
#undef ROW_TILES
#undef WAVE_COLUMNS
#undef COLUMN_TILES
#undef PIECES
#undef X_AT
#undef BUFFER
#undef OUT_QUADS
#undef OUT_AT
#undef OUT_ALL
#undef LOCAL_X
#undef FETCH_X
#undef PUT_X
#undef FETCH_W
