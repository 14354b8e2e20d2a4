/* The layers of SigLIP's vision tower as one kernel, for up to three images: norms, products, attention and
 * residuals of all layers, without a launch between them.
 *
 * An image's blocks, a third of the card for three images and all of it for one, work on that image alone.
 * A layer has five phases; in each a block has one tile, and between two phases the image's blocks meet
 * (vision_block.cuh):
 *
 *   qkv         tiles of product_tile, of normed rows (vision_norm.cuh)
 *   attention   a task is a head and 128 queries, 64 a warpgroup; with one or two images a head and 64
 *               queries, half of the keys a warpgroup
 *   out         adds to x, and makes what fc1 reads of it
 *   fc1         of normed rows; GELU
 *   fc2         adds to x, and makes what the next layer's qkv reads of it
 *
 * Before the first one the rows of x are measured. What it saves beside the launches: instructions are
 * fetched once, not once a launch, the first weights of a phase are copied while the blocks meet, and nobody
 * waits for a norm.
 *
 *   blocks   VISION_THREADS threads, one block a multiprocessor, all resident at once. Warpgroups 0 and 1
 *            consume, the first warp of warpgroup 2 copies, its other three make the norms' factors.
 *   shared   VISION_SHARED, see vision_block.cuh
 *   legal    see vision_layers.h
 *   early    before wait_before() only barriers and zeros are written
 *
 * vision_hopper.c checks what is legal and launches. */
#include "backend/gpu/cuda/attention/attention_image.cuh"
#include "vision_product.cuh"

/* The tiles for so many images: one a block where a card has 132 multiprocessors. Fewer blocks take several,
 * one after the other. */
constexpr int boxes[VISION_MATRICES][VISION_MAPS] = VISION_BOXES;
constexpr int store_boxes[VISION_IMAGES][VISION_STORES][2] = VISION_STORE_BOXES;

template <int IMAGES, int MATRIX, int STORE, int ROWS, int N> struct tile_of {
    typedef product_tile<ROWS, N, boxes[MATRIX][IMAGES < 3], store_boxes[IMAGES - 1][STORE][0]> type;
    static_assert((int)type::WARP_ROWS == store_boxes[IMAGES - 1][STORE][1], "a box has a warp's rows");
};
template <int IMAGES_, int QUERY_TILES_, class QKV, class OUT, class FC1> struct tiles_of {
    enum { IMAGES = IMAGES_, QUERY_TILES = QUERY_TILES_, MAP = IMAGES < 3 };
    typedef typename tile_of<IMAGES, VISION_MATRIX_QKV, VISION_STORE_QKV, QKV::ROWS, QKV::N>::type qkv;
    typedef typename tile_of<IMAGES, VISION_MATRIX_OUT, VISION_STORE_OUT, OUT::ROWS, OUT::N>::type out;
    typedef typename tile_of<IMAGES, VISION_MATRIX_FC1, VISION_STORE_HIDDEN, FC1::ROWS, FC1::N>::type fc1;
    typedef typename tile_of<IMAGES, VISION_MATRIX_FC2, VISION_STORE_FC2, 128, 112>::type fc2;
    static_assert(out::CHUNK * VISION_MOMENT_PARTS >= WIDTH_GROUPS &&
                      fc2::CHUNK * VISION_MOMENT_PARTS >= WIDTH_GROUPS &&
                      VISION_MOMENT_PARTS * MOST_ROWS * 8 <= (int)STAGING_BYTES,
                  "moments of so many parts, in memory and in the staging");
};
template <int ROWS_, int N_> struct size {
    enum { ROWS = ROWS_, N = N_ };
};
template <int IMAGES> struct tiles;
template <> struct tiles<3> : tiles_of<3, 2, size<128, 160>, size<64, 112>, size<128, 200>> {};
template <> struct tiles<2> : tiles_of<2, 1, size<128, 112>, size<64, 72>, size<128, 136>> {};
template <> struct tiles<1> : tiles_of<1, 1, size<64, 112>, size<64, 48>, size<64, 136>> {};

/* ---- the products of a layer --------------------------------------------------------------------------- */

/* Blocks of 64 k. */
enum { WIDE = (VISION_WIDTH + 63) / 64, DEEP = (VISION_HIDDEN + 63) / 64 };

template <class T> DEV const gpu_tensor_map *store_of(const gpu_vision &p, int which) {
    return &p.stores[T::IMAGES - 1][which];
}
template <class T> DEV product product_of(const vision_layer_weights &l, int matrix) {
    return {.weights = &l.maps[VISION_MAP_AT(matrix, T::MAP)], .bias = l.bias[matrix], .parts = 1};
}
template <class T> DEV product qkv_of(const gpu_vision &p, const vision_layer_weights &l) {
    product q = product_of<T>(l, VISION_MATRIX_QKV);
    q.x = &p.scaled, q.out = store_of<T>(p, VISION_STORE_QKV);
    q.norm = l.sums[0], q.centers = 0;
    q.groups = 3 * VISION_WIDTH / 8, q.blocks = WIDE;
    return q;
}
template <class T> DEV product out_of(const gpu_vision &p, const vision_layer_weights &l) {
    product q = product_of<T>(l, VISION_MATRIX_OUT);
    q.x = &p.attended, q.out = q.before = store_of<T>(p, VISION_STORE_OUT);
    q.norm = l.norm_weight[1], q.norm_before = l.norm_weight[0], q.centers = 0;
    q.groups = VISION_WIDTH / 8, q.blocks = WIDE;
    return q;
}
template <class T> DEV product fc1_of(const gpu_vision &p, const vision_layer_weights &l) {
    product q = product_of<T>(l, VISION_MATRIX_FC1);
    q.x = &p.scaled, q.out = store_of<T>(p, VISION_STORE_HIDDEN);
    q.norm = l.sums[1], q.centers = 1;
    q.groups = VISION_HIDDEN / 8, q.blocks = WIDE;
    return q;
}
/* Note: a part waits for others, so each must have a block of its own. */
template <class T> DEV product fc2_of(const block &b, const gpu_vision &p, int layer) {
    product q = product_of<T>(p.layers[layer], VISION_MATRIX_FC2);
    const bool last = layer + 1 == p.depth;
    q.x = &p.hidden, q.before = store_of<T>(p, VISION_STORE_FC2);
    q.out = last ? store_of<T>(p, VISION_STORE_X) : q.before;
    q.norm = last ? NULL : p.layers[layer + 1].norm_weight[0];
    q.norm_before = p.layers[layer].norm_weight[1], q.centers = 1;
    q.groups = VISION_WIDTH / 8, q.blocks = DEEP;
    q.parts = max(1, min(b.blocks / VISION_SUM_TILES, (int)VISION_PARTS));
    q.sums = (char *)p.sums + (size_t)(blockIdx.x - b.rank) * VISION_SUMS;
    return q;
}

/* ---- attention ----------------------------------------------------------------------------------------- */

/* Places in the ring. */
enum { QUERIES, KEYS, VALUES };
/* Barriers. Dims 64 … 71 of queries and keys have their own: a row of 16 bytes costs the TMA as much as one
 * of 128, so they are copied last, while the dims before them are multiplied. */
enum { SCORED_MAIN, SCORED_REST, WEIGHED, HEAD_SLOTS };
DEV u32 place_of(const block &b, int part) { return b.ring + part * PART_BYTES; }

/* Dims 0 … 63 of a head, or the rest: of TILES of 64 queries, of the image's keys or values. */
template <int TILES>
DEV void copy_queries(const block &b, const gpu_vision &p, int head, int row, bool rest) {
    const gpu_tensor_map *const map = rest ? &p.rows_rest : &p.rows_main;
    const u32 to = place_of(b, QUERIES) + (rest ? IMAGE_ROWS * 128 : 0),
              full = full_of(b, rest ? SCORED_REST : SCORED_MAIN);
#pragma unroll
    for (int i = 0; i < TILES; i++)
        copy_box4(to + i * IMAGE_SLOT, map, rest ? IMAGE_MAIN : 0, head, QUERIES, row + i * IMAGE_ROWS, full);
}
DEV void copy_keys(const block &b, const gpu_vision &p, int part, int head, bool rest, int slot) {
    copy_box4(place_of(b, part) + (rest ? MAIN_BYTES : 0), rest ? &p.keys_rest : &p.keys_main,
              rest ? IMAGE_MAIN : 0, head, part, b.row0, full_of(b, slot));
}

/* TILES of 64 queries a task. */
template <int TILES> DEV void feed_attention(block &b, const gpu_vision &p) {
    const int tasks = VISION_HEADS * IMAGE_TILES / TILES;
    await_all_empty(b);
#pragma unroll 1
    for (int task = b.rank; task < tasks; task += b.blocks) {
        const int head = task % VISION_HEADS, row = b.row0 + task / VISION_HEADS * TILES * IMAGE_ROWS;
        if (task == b.rank) await_phase(b);
        else await_all_empty(b);
        if (!b.lane) {
            barrier_arm(full_of(b, SCORED_MAIN), (TILES + IMAGE_TILES) * IMAGE_ROWS * 128);
            copy_queries<TILES>(b, p, head, row, false);
            copy_keys(b, p, KEYS, head, false, SCORED_MAIN);
            barrier_arm(full_of(b, SCORED_REST), (TILES + IMAGE_TILES) * IMAGE_ROWS * 16);
            copy_queries<TILES>(b, p, head, row, true);
            copy_keys(b, p, KEYS, head, true, SCORED_REST);
            barrier_arm(full_of(b, WEIGHED), IMAGE_PART);
            copy_keys(b, p, VALUES, head, false, WEIGHED);
            copy_keys(b, p, VALUES, head, true, WEIGHED);
        }
        __syncwarp();
        used(b, HEAD_SLOTS, HEAD_SLOTS);
    }
}

DEV void leave_slots(const block &b, int first, int end) {
    for (int slot = first; slot < end; slot++) leave(b, slot, 1);
}

/* float4 that a thread gives the other warpgroup's (attend_together). */
enum { GIVEN = 5 };

/* A warp's rows of attention's output in the staging, after what is given: a box. */
enum { OUT_PITCH = IMAGE_HEAD * 2, OUT_AT = VISION_CONSUMERS * GIVEN * 128 * 16 };
static_assert(OUT_AT + CONSUMER_WARPS * 16 * OUT_PITCH <= (int)STAGING_BYTES, "attention's output is staged");
DEV char *staged_queries(const block &b) { return staging_of(b) + OUT_AT + b.warp * 16 * OUT_PITCH; }
/* They go to rows `row` … of head `head`. */
DEV void store_staged_queries(const block &b, const gpu_tensor_map *to, int head, int row) {
    begin_store(b, to, staged_queries(b), head * IMAGE_HEAD, row);
    end_store();
}

/* 64 queries, 2·SCORES keys from `first` on, by one warpgroup: weighted values, unscaled, and of a thread's
 * two rows maximum and sum. */
template <int SCORES>
DEV void attend_keys(const block &b, const gpu_vision &p, u32 q, int first, float (&out)[32],
                     float (&rest)[4], float (&top)[2], float (&sum)[2]) {
    const u32 main_at = first * 128, rest_at = MAIN_BYTES + first * 16, k = place_of(b, KEYS),
              v = place_of(b, VALUES);
    float score[SCORES];
    u32 a[SCORES / 8][4];
    await_full(b, SCORED_MAIN, 0);
    wgmma_begin();
    multiply_main(score, q, k + main_at);
    wgmma_commit();
    await_full(b, SCORED_REST, 0);
    wgmma_begin();
    multiply_rest(score, q, k + rest_at, b.ring + AT_ZEROS);
    wgmma_commit();
    wgmma_wait<0>();
    leave_slots(b, SCORED_MAIN, WEIGHED);
    after_wait(score);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = soften(score, h, p.scale * 1.4426950408889634f, top[h]);
    pack_weights(a, score);
    await_full(b, WEIGHED, 0);
    add_values(out, rest, a, v + main_at, v + rest_at);
    leave_slots(b, WEIGHED, HEAD_SLOTS);
    after_wait(out);
    after_wait(rest);
}

/* A warpgroup its own 64 queries. */
DEV void attend_alone(const block &b, const gpu_vision &p, const gpu_tensor_map *to, int head, int row) {
    float out[32], rest[4], top[2], sum[2];
    attend_keys<128>(b, p, place_of(b, QUERIES) + b.group * IMAGE_SLOT, 0, out, rest, top, sum);
    store_queries((u16 *)(staged_queries(b) + (b.lane >> 2) * OUT_PITCH) + 2 * (b.lane & 3), out, rest, sum,
                  IMAGE_HEAD);
    store_staged_queries(b, to, head, row + b.warp * 16);
}

/* Both warpgroups the same 64 queries, each half of the keys. Then the first one finishes a thread's first
 * row, the second its second. */
DEV void attend_together(const block &b, const gpu_vision &p, const gpu_tensor_map *to, int head, int row) {
    float4 *const box = (float4 *)staging_of(b) + (threadIdx.x & 127);
    float out[32], rest[4], top[2], sum[2], own[20], given[20];
    attend_keys<64>(b, p, place_of(b, QUERIES), b.group * IMAGE_KEYS / 2, out, rest, top, sum);
#pragma unroll
    for (int i = 0; i < 18; i++) {
        const float first = i < 16 ? out[4 * (i / 2) + i % 2] : rest[i % 2],
                    second = i < 16 ? out[4 * (i / 2) + 2 + i % 2] : rest[2 + i % 2];
        own[i] = b.group ? second : first, given[i] = b.group ? first : second;
    }
    own[18] = b.group ? top[1] : top[0], given[18] = b.group ? top[0] : top[1];
    own[19] = b.group ? sum[1] : sum[0], given[19] = b.group ? sum[0] : sum[1];
#pragma unroll
    for (int i = 0; i < GIVEN; i++)
        box[(b.group * GIVEN + i) * 128] =
            make_float4(given[4 * i], given[4 * i + 1], given[4 * i + 2], given[4 * i + 3]);
    consumers_meet();
#pragma unroll
    for (int i = 0; i < GIVEN; i++) {
        const float4 v = box[((b.group ^ 1) * GIVEN + i) * 128];
        given[4 * i] = v.x, given[4 * i + 1] = v.y, given[4 * i + 2] = v.z, given[4 * i + 3] = v.w;
    }
    const float scale = p.scale * 1.4426950408889634f, most = fmaxf(own[18], given[18]),
                mine = exp2_fast((own[18] - most) * scale), other = exp2_fast((given[18] - most) * scale),
                share = 1 / (own[19] * mine + given[19] * other);
    u16 *const out_at = (u16 *)(staged_queries(b) + (b.lane >> 2) * OUT_PITCH) + 2 * (b.lane & 3);
#pragma unroll
    for (int i = 0; i < 9; i++)
        *(u32 *)(out_at + i * 8) = pack_bf16((own[2 * i] * mine + given[2 * i] * other) * share,
                                         (own[2 * i + 1] * mine + given[2 * i + 1] * other) * share);
    store_staged_queries(b, to, head, row + (b.warp & 3) * 16 + b.group * 8);
    consumers_meet();                      /* the staging is free                                           */
}

template <class T> DEV bool attend_image(block &b, const gpu_vision &p) {
    enum { TILES = T::QUERY_TILES };
    static_assert(store_boxes[T::IMAGES - 1][VISION_STORE_ATTENDED][1] == (TILES == 2 ? 16 : 8) &&
                      store_boxes[T::IMAGES - 1][VISION_STORE_ATTENDED][0] * 8 == IMAGE_HEAD,
                  "a box has a warp's queries");
    const gpu_tensor_map *const to = store_of<T>(p, VISION_STORE_ATTENDED);
    const int tasks = VISION_HEADS * IMAGE_TILES / TILES;
#pragma unroll 1
    for (int task = b.rank; task < tasks; task += b.blocks) {
        const int head = task % VISION_HEADS, row = b.row0 + task / VISION_HEADS * TILES * IMAGE_ROWS;
        if (TILES == 2) attend_alone(b, p, to, head, row);
        else attend_together(b, p, to, head, row);
        used(b, HEAD_SLOTS, HEAD_SLOTS);
    }
    return b.rank < tasks;
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

/* The phases of a layer, in order. Before the first layer begin_rows is a phase, too. */
enum { QKV, ATTENTION, OUT, FC1, FC2, PHASES };

template <class T> DEV void feed(block &b, const gpu_vision &p) {
    b.phase = 1;
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        const vision_layer_weights &l = p.layers[layer];
        if (phase == QKV) feed_product<typename T::qkv>(b, qkv_of<T>(p, l));
        else if (phase == ATTENTION) feed_attention<T::QUERY_TILES>(b, p);
        else if (phase == OUT) feed_product<typename T::out>(b, out_of<T>(p, l));
        else if (phase == FC1) feed_product<typename T::fc1>(b, fc1_of<T>(p, l));
        else feed_product<typename T::fc2>(b, fc2_of<T>(b, p, layer));
        b.phase++;
        if (++phase == PHASES) phase = 0, layer++;
    }
}

/* The tiles of each phase. */
typedef struct tile_shapes {
    tile_shape of[PHASES];
} tile_shapes;
template <class T> constexpr tile_shape shape_of(void) { return {T::ROWS, T::GROUPS, T::STORE, T::CHUNK}; }
template <class T> constexpr tile_shapes shapes_of(void) {
    return {{shape_of<typename T::qkv>(), {}, shape_of<typename T::out>(), shape_of<typename T::fc1>(),
             shape_of<typename T::fc2>()}};
}
static __constant__ const tile_shapes shapes[VISION_IMAGES] = {shapes_of<tiles<1>>(), shapes_of<tiles<2>>(),
                                                               shapes_of<tiles<3>>()};

DEV void factor(block &b, const gpu_vision &p, int images) {
    typedef tiles<3> any;                  /* but for their maps products are the same                      */
    const tile_shape *const shape = shapes[images - 1].of;
    const gpu_tensor_map *const stores = p.stores[images - 1];
    u32 met = 0;
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        const vision_layer_weights &l = p.layers[layer];
        const int groups = shape[phase == QKV ? FC2 : OUT].chunk;
        const parting moments = {(WIDTH_GROUPS + groups - 1) / groups, groups}, whole = {1, WIDTH_GROUPS};
        product q = phase == QKV ? qkv_of<any>(p, l) : phase == OUT ? out_of<any>(p, l)
                    : phase == FC1 ? fc1_of<any>(p, l) : fc2_of<any>(b, p, layer);
        q.before = &stores[phase == OUT ? VISION_STORE_OUT : VISION_STORE_FC2];
        if (phase != ATTENTION)
            factor_product(b, q, phase == QKV || phase == FC1 ? NORMED : RESIDUAL, shape[phase],
                           layer || phase ? moments : whole, met, p.eps);
        if (++phase == PHASES) phase = 0, layer++;
    }
}

template <class T> DEV void consume(block &b, const gpu_vision &p) {
    begin_rows(b, p);
    end_phase(b, true);
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        const vision_layer_weights &l = p.layers[layer];
        bool waited = true;
        if (phase == QKV) waited = make_product<typename T::qkv, NORMED, 0>(b, qkv_of<T>(p, l));
        else if (phase == ATTENTION) waited = attend_image<T>(b, p);
        else if (phase == OUT) waited = make_product<typename T::out, RESIDUAL, 0>(b, out_of<T>(p, l));
        else if (phase == FC1)
            waited = make_product<typename T::fc1, NORMED_GELU, 0>(b, fc1_of<T>(p, l));
        else waited = make_product<typename T::fc2, RESIDUAL, 1>(b, fc2_of<T>(b, p, layer));
        end_phase(b, waited);
        if (++phase == PHASES) phase = 0, layer++;
    }
    end_image(b);
}

DEV block block_of(const gpu_vision &p, char *memory, int images) {
    const int blocks = gridDim.x / images, image = blockIdx.x / blocks;
    return {.memory = memory,
            .ring = shared_address(memory),
            .progress = (u32 *)((char *)p.images + image * VISION_IMAGE_BYTES),
            .row0 = image * IMAGE_KEYS,
            .rank = (int)blockIdx.x - image * blocks,
            .blocks = blocks,
            .lane = (int)(threadIdx.x & 31),
            .warp = same_in_warp(threadIdx.x >> 5),
            .group = same_in_warp(threadIdx.x >> 7),
            .parity = 0,
            .phase = 0,
            .shared = 0,
            .tiles = 0};
}

DEV void feed_images(block &b, const gpu_vision &p, int images) {
    if (images == 3) feed<tiles<3>>(b, p);
    else if (images == 2) feed<tiles<2>>(b, p);
    else feed<tiles<1>>(b, p);
}
DEV void consume_images(block &b, const gpu_vision &p, int images) {
    if (images == 3) consume<tiles<3>>(b, p);
    else if (images == 2) consume<tiles<2>>(b, p);
    else consume<tiles<1>>(b, p);
}

KERNEL(VISION_THREADS) resident_vision(const __grid_constant__ gpu_vision p) {
    extern __shared__ __align__(1024) char memory[];
    const int images = same_in_warp(min(*p.count / IMAGE_KEYS, (int)VISION_IMAGES));
    start_next();
    if (images <= 0 || (int)blockIdx.x >= gridDim.x / images * images) {
        wait_before();
        return;
    }
    block b = block_of(p, memory, images);
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; s++) ring_init(slots_of(b), s, CONSUMER_WARPS);
        barrier_init(factors_full(b), FACTOR_WARPS * 32);
        barrier_init(factors_empty(b), CONSUMER_THREADS);
        barrier_init(met_of(b), 1);
        barrier_init_done();
    }
    if (threadIdx.x < 64) *(uint4 *)(memory + AT_ZEROS + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    wait_before();
    if (b.group == VISION_CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (b.warp == CONSUMER_WARPS) feed_images(b, p, images);
        else factor(b, p, images);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume_images(b, p, images);
    }
}

/* ---- folding a norm, when a model is loaded ------------------------------------------------------------ */

/* A block has 8 columns, a warp one of them. */
KERNEL(256) fold_norm(const __grid_constant__ gpu_vision_fold p) {
    const int lane = threadIdx.x & 31, c = threadIdx.x >> 5, o = blockIdx.x * 8 + c, blocks = (p.k + 63) / 64;
    float sum = 0, bias = 0;
    start_next();
    wait_before();
    if (o >= p.n) return;
    for (int unit = lane; unit < p.k / 8; unit += 32) {
        const u32 *const from =
            (const u32 *)((const char *)p.weight + ((size_t)blockIdx.x * blocks + unit / 8) * atom::BYTES +
                          c * atom::ROW + ((unit ^ c) & 7) * 16);
        for (int i = 0; i < 4; i++) {
            const int k = unit * 8 + 2 * i;
            sum += low_of(from[i]) * p.norm_weight[k] + high_of(from[i]) * p.norm_weight[k + 1];
            bias += low_of(from[i]) * p.norm_bias[k] + high_of(from[i]) * p.norm_bias[k + 1];
        }
    }
    sum = warp_sum(sum), bias = warp_sum(bias);
    if (!lane) p.out[o] = sum, p.out[p.n + o] = p.bias[o] + bias;
}
