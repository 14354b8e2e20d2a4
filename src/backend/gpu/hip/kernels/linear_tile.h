/* A tile of x·Wᵀ: the body of every kernel of linear.c, which includes this file once for each with
 *
 *   TILE             the kernel's name
 *   ROWS, COLUMNS    of the tile: multiples of 16
 *   WAVES_ROWS       waves that lie along the rows; 4 / WAVES_ROWS lie along the columns
 *   DEPTH            k that is in local memory at a time
 *   QUAD, MULTIPLY   four numbers of the operands' type, and c + A·Bᵀ of 16 x 16 x 16
 *   LOAD_X, LOAD_W   eight numbers of an operand: the first four and the last
 *
 * A is W, so a lane's four sums are neighbouring packed columns of one row of x. While a step is multiplied,
 * the next one is on its way from device memory. */
#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define PITCH (DEPTH / 4 + 1)              /* quads: an odd number, so that 16 rows lie in different banks */
#define ROW_TILES (ROWS / 16 / WAVES_ROWS)
#define COLUMN_TILES (COLUMNS / 16 * WAVES_ROWS / 4)
#define X_PIECES ((ROWS * DEPTH / 8 + THREADS - 1) / THREADS)
#define W_PIECES ((COLUMNS * DEPTH / 8 + THREADS - 1) / THREADS)
#define LOCAL_X JOINED(TILE, x)
#define LOCAL_W JOINED(TILE, w)

LOCAL(QUAD, LOCAL_X, ROWS *PITCH);
LOCAL(QUAD, LOCAL_W, COLUMNS *PITCH);

/* What a thread has fetched of a step. */
typedef struct JOINED(TILE, step) {
    QUAD x[X_PIECES][2], w[W_PIECES][2];
} JOINED(TILE, step);

DEV void JOINED(TILE, fetch)(const gpu_linear *p, int row0, int column0, int rows, int step,
                             JOINED(TILE, step) * to) {
    UNROLL
    for (int i = 0; i < X_PIECES; i++) {
        int piece = thread_id() + i * THREADS, r = row0 + piece / (DEPTH / 8);
        int there = piece < ROWS * DEPTH / 8 && r < rows;
        LOAD_X(p, r, there, step * DEPTH + piece % (DEPTH / 8) * 8, to->x[i]);
    }
    UNROLL
    for (int i = 0; i < W_PIECES; i++) {
        int piece = thread_id() + i * THREADS, column = column0 + piece / (DEPTH / 8);
        int there = piece < COLUMNS * DEPTH / 8 && column < p->weights.columns;
        LOAD_W(&p->weights, column, there, step * DEPTH + piece % (DEPTH / 8) * 8, to->w[i]);
    }
}

DEV void JOINED(TILE, put)(const JOINED(TILE, step) * from) {
    UNROLL
    for (int i = 0; i < X_PIECES; i++) {
        int piece = thread_id() + i * THREADS, at = piece / (DEPTH / 8) * PITCH + piece % (DEPTH / 8) * 2;
        if (piece >= ROWS * DEPTH / 8) continue;
        local_put(LOCAL_X, at, from->x[i][0]);
        local_put(LOCAL_X, at + 1, from->x[i][1]);
    }
    UNROLL
    for (int i = 0; i < W_PIECES; i++) {
        int piece = thread_id() + i * THREADS, at = piece / (DEPTH / 8) * PITCH + piece % (DEPTH / 8) * 2;
        if (piece >= COLUMNS * DEPTH / 8) continue;
        local_put(LOCAL_W, at, from->w[i][0]);
        local_put(LOCAL_W, at + 1, from->w[i][1]);
    }
}

KERNEL(THREADS, TILE, gpu_linear) {
    const int lane = thread_id() & (WAVE - 1), wave = thread_id() / WAVE, part = lane / 16;
    const int row0 = block_x() * ROWS, column0 = block_y() * COLUMNS, rows = *p->count;
    const int my_row = wave % WAVES_ROWS * ROW_TILES * 16, my_column = wave / WAVES_ROWS * COLUMN_TILES * 16;
    const int steps = p->x_type == GPU_X_BF16 && p->weights.type == GPU_WEIGHT_BF16
                          ? p->k_blocks * GPU_ATOM_K / DEPTH
                          : (p->weights.k + DEPTH - 1) / DEPTH;
    f32x4 sums[COLUMN_TILES][ROW_TILES] = {{{0, 0, 0, 0}}};
    JOINED(TILE, step) next;
    if (row0 >= rows) return;
    JOINED(TILE, fetch)(p, row0, column0, rows, 0, &next);
    for (int step = 0; step < steps; step++) {
        block_wait();
        JOINED(TILE, put)(&next);
        block_wait();
        if (step + 1 < steps) JOINED(TILE, fetch)(p, row0, column0, rows, step + 1, &next);
        UNROLL
        for (int k = 0; k < DEPTH / 16; k++) {
            QUAD x[ROW_TILES];
            UNROLL
            for (int r = 0; r < ROW_TILES; r++)
                x[r] = local_get(LOCAL_X, (my_row + r * 16 + lane % 16) * PITCH + k * 4 + part);
            UNROLL
            for (int c = 0; c < COLUMN_TILES; c++) {
                QUAD w = local_get(LOCAL_W, (my_column + c * 16 + lane % 16) * PITCH + k * 4 + part);
                UNROLL
                for (int r = 0; r < ROW_TILES; r++) sums[c][r] = MULTIPLY(w, x[r], sums[c][r]);
            }
        }
    }
    UNROLL
    for (int c = 0; c < COLUMN_TILES; c++) {
        UNROLL
        for (int r = 0; r < ROW_TILES; r++) {
            int row = row0 + my_row + r * 16 + lane % 16, column = column0 + my_column + c * 16;
            f32x4 y = sums[c][r], other = y;
            if (p->epilogue.kind == GPU_EPILOGUE_QKV || p->epilogue.kind == GPU_EPILOGUE_GATED) {
                UNROLL
                for (int i = 0; i < 4; i++) other[i] = lane_from(y[i], lane ^ 32);
            }
            if (row < rows && column < p->weights.columns)
                epilogue_unit(&p->epilogue, row, column / GPU_UNIT, part, y, other);
        }
    }
}

#undef TILE
#undef ROWS
#undef COLUMNS
#undef WAVES_ROWS
#undef DEPTH
#undef QUAD
#undef MULTIPLY
#undef LOAD_X
#undef LOAD_W
#undef PITCH
#undef ROW_TILES
#undef COLUMN_TILES
#undef X_PIECES
#undef W_PIECES
#undef LOCAL_X
#undef LOCAL_W
#undef JOINED
#undef JOINED_
