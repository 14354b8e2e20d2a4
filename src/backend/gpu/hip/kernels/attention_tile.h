/* Attention of 64 queries: the body of every kernel of attention.c, which includes this file once for each
 * with
 *
 *   TILE             the kernel's name
 *   DIMS             a head's dimensions, at most: a multiple of 16
 *   KEYS             that are in local memory at a time: a multiple of 16
 *   QUAD, MULTIPLY   four numbers of the operands' type, and c + A·Bᵀ of 16 x 16 x 16; MULTIPLY_TWO: for
 *                    two quads each, 16 x 16 x 32
 *   LOAD, NARROW     four numbers from memory, from fp32
 *   ARGUMENTS, ATTENDED  the kernel's arguments, and what they mean as an `attended`
 *
 * A wave has 16 queries. Scores are keys x queries, so a lane holds four keys of one query: the same place
 * that the second operand of values x probabilities is read from, which is dimensions x queries. So
 * probabilities stay in their lanes. Maximum and sum are kept as keys come by (online softmax). */
#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define KEY_PITCH (DIMS / 4 + 1)           /* quads of a key                                               */
#define VALUE_PITCH (KEYS / 4 + 1)         /* quads of a dimension: values are transposed                  */
#define KEY_TILES (KEYS / 16)
#define DIM_TILES (DIMS / 16)
#define LOCAL_K JOINED(TILE, k)
#define LOCAL_V JOINED(TILE, v)

LOCAL(QUAD, LOCAL_K, KEYS *KEY_PITCH);
LOCAL(QUAD, LOCAL_V, DIMS *VALUE_PITCH);

/* Keys and values first … first + KEYS - 1 of a sample or image, zeros from `end` on. */
DEV void JOINED(TILE, fetch)(const attended *a, size_t base, int first, int end) {
    for (int i = thread_id(); i < KEYS * (DIMS / 4); i += THREADS) {
        int key = i / (DIMS / 4), d = i % (DIMS / 4) * 4;
        int count = first + key < end ? a->head_dim - d : 0;
        size_t at = base + (size_t)(first + key) * (size_t)a->stride + (size_t)d;
        local_put(LOCAL_K, key * KEY_PITCH + d / 4, LOAD(a->k, at, count));
    }
    for (int i = thread_id(); i < KEYS / 4 * (DIMS / 4); i += THREADS) {
        int key = i / (DIMS / 4) * 4, d = i % (DIMS / 4) * 4;
        QUAD rows[4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            int count = first + key + j < end ? a->head_dim - d : 0;
            rows[j] = LOAD(a->v, base + (size_t)(first + key + j) * (size_t)a->stride + (size_t)d, count);
        }
        UNROLL
        for (int j = 0; j < 4; j++) {
            QUAD column = {rows[0][j], rows[1][j], rows[2][j], rows[3][j]};
            local_put(LOCAL_V, (d + j) * VALUE_PITCH + key / 4, column);
        }
    }
}

KERNEL(THREADS, TILE, ARGUMENTS) {
    const int lane = thread_id() & (WAVE - 1), part = lane / 16, tile = block_x() * QUERIES;
    const attended a = ATTENDED(p);
    const query mine = query_of(&a, tile + thread_id() / WAVE * 16 + lane % 16);
    const float scale = a.scale * 1.4426950408889634f;
    QUAD q[DIM_TILES];
    f32x4 sums[DIM_TILES];
    float top = LOWEST, total = 0;
    samples range = samples_of(&a, tile);
    if (tile >= a.queries) return;
    UNROLL
    for (int t = 0; t < DIM_TILES; t++) {
        int d = t * 16 + part * 4;
        q[t] = LOAD(a.q, mine.q_at + (size_t)d, mine.there ? a.head_dim - d : 0);
        sums[t] = (f32x4){0, 0, 0, 0};
    }
    for (int s = range.first; s <= range.last; s++) {
        const int end = smaller(a.end, most_keys(&a, tile, s)),
                  my_end = mine.sample == s ? smaller(end, mine.keys) : 0;
        const size_t base = base_of(&a, tile, s);
        for (int first = a.first; first < end; first += KEYS) {
            f32x4 scores[KEY_TILES];
            float high = top, sum = 0;
            block_wait();
            JOINED(TILE, fetch)(&a, base, first, end);
            block_wait();
            UNROLL
            for (int k = 0; k < KEY_TILES; k++) {
                f32x4 c = {0, 0, 0, 0};
                const int at = (k * 16 + lane % 16) * KEY_PITCH + part;
                UNROLL
                for (int t = 0; t + 1 < DIM_TILES; t += 2)
                    c = MULTIPLY_TWO(local_get(LOCAL_K, at + t * 4), local_get(LOCAL_K, at + t * 4 + 4), q[t],
                                     q[t + 1], c);
                if (DIM_TILES % 2)
                    c = MULTIPLY(local_get(LOCAL_K, at + (DIM_TILES - 1) * 4), q[DIM_TILES - 1], c);
                UNROLL
                for (int i = 0; i < 4; i++) {
                    c[i] = first + k * 16 + part * 4 + i < my_end ? c[i] * scale : LOWEST;
                    high = larger(high, c[i]);
                }
                scores[k] = c;
            }
            high = larger(high, lane_from(high, lane ^ 16));
            high = larger(high, lane_from(high, lane ^ 32));
            const float factor = exp2_of(top - high);
            top = high;
            UNROLL
            for (int k = 0; k < KEY_TILES; k++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    int there = first + k * 16 + part * 4 + i < my_end;
                    scores[k][i] = there ? exp2_of(scores[k][i] - top) : 0;
                    sum += scores[k][i];
                }
            }
            sum += lane_from(sum, lane ^ 16);
            sum += lane_from(sum, lane ^ 32);
            total = total * factor + sum;
            UNROLL
            for (int t = 0; t < DIM_TILES; t++) {
                const int at = (t * 16 + lane % 16) * VALUE_PITCH + part;
                sums[t] *= factor;
                UNROLL
                for (int k = 0; k + 1 < KEY_TILES; k += 2)
                    sums[t] = MULTIPLY_TWO(local_get(LOCAL_V, at + k * 4), local_get(LOCAL_V, at + k * 4 + 4),
                                           NARROW(scores[k]), NARROW(scores[k + 1]), sums[t]);
                if (KEY_TILES % 2)
                    sums[t] = MULTIPLY(local_get(LOCAL_V, at + (KEY_TILES - 1) * 4),
                                       NARROW(scores[KEY_TILES - 1]), sums[t]);
            }
        }
    }
    if (!mine.there) return;
    if (a.part) {
        const size_t row = (size_t)(tile + thread_id() / WAVE * 16 + lane % 16);
        if (part == 0) {
            a.part_stats[row * 2] = top;
            a.part_stats[row * 2 + 1] = total;
        }
        UNROLL
        for (int t = 0; t < DIM_TILES; t++) {
            int d = t * 16 + part * 4;
            store4(a.part, 1, row * (size_t)a.head_dim + (size_t)d, a.head_dim - d, sums[t]);
        }
        return;
    }
    UNROLL
    for (int t = 0; t < DIM_TILES; t++) {
        int d = t * 16 + part * 4;
        store4(a.out, a.f32, mine.out_at + (size_t)d, a.head_dim - d, sums[t] / total);
    }
}

#undef TILE
#undef DIMS
#undef KEYS
#undef QUAD
#undef MULTIPLY
#undef MULTIPLY_TWO
#undef LOAD
#undef NARROW
#undef ARGUMENTS
#undef ATTENDED
#undef KEY_PITCH
#undef VALUE_PITCH
#undef KEY_TILES
#undef DIM_TILES
#undef LOCAL_K
#undef LOCAL_V
#undef JOINED
#undef JOINED_
