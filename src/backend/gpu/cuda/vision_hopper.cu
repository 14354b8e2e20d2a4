/* The layers of SigLIP's vision tower as one kernel, for up to three images: norms, products, attention and
 * residuals of all layers, without a launch between them.
 *
 * An image's blocks, a third of the card for three images and all of it for one, work on that image alone.
 * A layer has seven phases; in each a block has one tile, and between two phases the image's blocks meet
 * (vision_block.cuh):
 *
 *   norm        a warp a row
 *   qkv         tiles of product_tile
 *   attention   a task is a head and 128 queries, 64 a warpgroup; with one or two images a head and 64
 *               queries, half of the keys a warpgroup
 *   out         adds to x
 *   norm
 *   fc1         GELU
 *   fc2         adds to x
 *
 * What it saves beside the launches: instructions are fetched once, not once a launch, and the first weights
 * of a phase are copied while the blocks meet.
 *
 *   blocks   VISION_THREADS threads, one block a multiprocessor, all resident at once. Warpgroups 0 and 1
 *            consume, the first warp of warpgroup 2 copies.
 *   shared   VISION_SHARED, see vision_block.cuh
 *   legal    see vision_layers.h
 *   early    before wait_before() only barriers and zeros are written
 *
 * vision_hopper.c checks what is legal and launches. */
#include "attention_image.cuh"
#include "vision_product.cuh"

/* The tiles for so many images: one a block where a card has 132 multiprocessors. Fewer blocks take several,
 * one after the other. */
constexpr int boxes[VISION_MATRICES][VISION_MAPS] = VISION_BOXES;
template <int IMAGES> struct tiles;
template <> struct tiles<3> {
    enum { QUERY_TILES = 2, MAP = 0 };
    typedef product_tile<128, 160, boxes[VISION_MATRIX_QKV][0]> qkv;
    typedef product_tile<64, 112, boxes[VISION_MATRIX_OUT][0]> out;
    typedef product_tile<128, 200, boxes[VISION_MATRIX_FC1][0]> fc1;
    typedef product_tile<128, 112, boxes[VISION_MATRIX_FC2][0]> fc2;
};
template <> struct tiles<2> {
    enum { QUERY_TILES = 1, MAP = 1 };
    typedef product_tile<128, 112, boxes[VISION_MATRIX_QKV][1]> qkv;
    typedef product_tile<64, 72, boxes[VISION_MATRIX_OUT][1]> out;
    typedef product_tile<128, 136, boxes[VISION_MATRIX_FC1][1]> fc1;
    typedef product_tile<128, 112, boxes[VISION_MATRIX_FC2][1]> fc2;
};
template <> struct tiles<1> {
    enum { QUERY_TILES = 1, MAP = 1 };
    typedef product_tile<64, 112, boxes[VISION_MATRIX_QKV][1]> qkv;
    typedef product_tile<64, 48, boxes[VISION_MATRIX_OUT][1]> out;
    typedef product_tile<64, 136, boxes[VISION_MATRIX_FC1][1]> fc1;
    typedef product_tile<128, 112, boxes[VISION_MATRIX_FC2][1]> fc2;
};

/* ---- the products of a layer --------------------------------------------------------------------------- */

/* Blocks of 64 k. */
enum { WIDE = (VISION_WIDTH + 63) / 64, DEEP = (VISION_HIDDEN + 63) / 64 };

DEV product product_of(const vision_layer_weights &l, int map, int matrix) {
    return {.weights = &l.maps[matrix][map], .bias = l.bias[matrix], .parts = 1};
}
DEV product qkv_of(const gpu_vision &p, const vision_layer_weights &l, int map) {
    product q = product_of(l, map, VISION_MATRIX_QKV);
    q.x = &p.normed, q.out = p.to_qkv;
    q.pitch = q.groups = 3 * VISION_WIDTH / 8, q.blocks = WIDE;
    return q;
}
DEV product out_of(const gpu_vision &p, const vision_layer_weights &l, int map) {
    product q = product_of(l, map, VISION_MATRIX_OUT);
    q.x = &p.attended, q.out = p.x;
    q.pitch = q.groups = VISION_WIDTH / 8, q.blocks = WIDE;
    return q;
}
DEV product fc1_of(const gpu_vision &p, const vision_layer_weights &l, int map) {
    product q = product_of(l, map, VISION_MATRIX_FC1);
    q.x = &p.normed, q.out = p.to_hidden;
    q.pitch = VISION_HIDDEN_PITCH / 8, q.groups = VISION_HIDDEN / 8, q.blocks = WIDE;
    return q;
}
/* Note: a part waits for others, so each must have a block of its own. */
DEV product fc2_of(const block &b, const gpu_vision &p, const vision_layer_weights &l, int map) {
    product q = product_of(l, map, VISION_MATRIX_FC2);
    q.x = &p.hidden, q.out = p.x;
    q.pitch = q.groups = VISION_WIDTH / 8, q.blocks = DEEP;
    q.parts = max(1, min(b.blocks / VISION_SUM_TILES, (int)VISION_PARTS));
    q.sums = (char *)p.sums + (size_t)(blockIdx.x - b.rank) * VISION_SUMS;
    return q;
}

/* ---- norms --------------------------------------------------------------------------------------------- */

/* (x - mean)·rsqrt(var + eps)·weight + bias, a warp a row. Weight and bias come before the meeting. */
DEV void norm_image(block &b, const gpu_vision &p, const vision_norm &n) {
    enum { UNITS = VISION_WIDTH / 8, STEPS = (UNITS + 31) / 32 };
    float weight[STEPS][8], bias[STEPS][8];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int unit = min(b.lane + 32 * i, UNITS - 1);
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const float4 w = __ldg((const float4 *)(n.weight + unit * 8 + j)),
                         c = __ldg((const float4 *)(n.bias + unit * 8 + j));
            weight[i][j] = w.x, weight[i][j + 1] = w.y, weight[i][j + 2] = w.z, weight[i][j + 3] = w.w;
            bias[i][j] = c.x, bias[i][j + 1] = c.y, bias[i][j + 2] = c.z, bias[i][j + 3] = c.w;
        }
    }
    consumers_await_phase(b);
#pragma unroll 1
    for (int r = b.rank + b.warp * b.blocks; r < IMAGE_KEYS; r += CONSUMER_WARPS * b.blocks) {
        const size_t at = (size_t)(b.row0 + r) * VISION_WIDTH;
        const uint4 *from = (const uint4 *)((const u16 *)p.x + at);
        uint4 *to = (uint4 *)((u16 *)p.to_normed + at);
        float x[STEPS][8], sum = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (b.lane + 32 * i < UNITS) v = __ldcg(from + b.lane + 32 * i);
            x[i][0] = low_of(v.x), x[i][1] = high_of(v.x), x[i][2] = low_of(v.y), x[i][3] = high_of(v.y);
            x[i][4] = low_of(v.z), x[i][5] = high_of(v.z), x[i][6] = low_of(v.w), x[i][7] = high_of(v.w);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum += x[i][j];
        const float mean = warp_sum(sum) * (1.0f / VISION_WIDTH);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[i][j] -= mean;
                if (b.lane + 32 * i < UNITS) squares += x[i][j] * x[i][j];
            }
        const float factor = rsqrtf(warp_sum(squares) * (1.0f / VISION_WIDTH) + p.eps);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) x[i][j] = x[i][j] * factor * weight[i][j] + bias[i][j];
            if (b.lane + 32 * i < UNITS)
                to[b.lane + 32 * i] =
                    make_uint4(pack_bf16(x[i][0], x[i][1]), pack_bf16(x[i][2], x[i][3]),
                               pack_bf16(x[i][4], x[i][5]), pack_bf16(x[i][6], x[i][7]));
        }
    }
}

/* ---- attention ----------------------------------------------------------------------------------------- */

enum { QUERIES, KEYS, VALUES, HEAD_PARTS }; /* slots                                                        */

/* `tiles` of 64 rows of q, k or v of a head: dims 0 … 63 of a tile `main_step` bytes after those of the one
 * before; dims 64 … 71 `rest_step`, from `rest_at` on. */
DEV void copy_head(const block &b, const gpu_vision &p, int part, int head, int row, int tiles, int main_step,
                   int rest_at, int rest_step) {
    const u32 to = b.ring + part * PART_BYTES, full = b.full + 8 * part;
    barrier_arm(full, tiles * IMAGE_SLOT);
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        copy_box4(to + i * main_step, &p.heads_main, 0, head, part, row + i * IMAGE_ROWS, full);
        copy_box4(to + rest_at + i * rest_step, &p.heads_rest, IMAGE_MAIN, head, part, row + i * IMAGE_ROWS,
                  full);
    }
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
            copy_head(b, p, QUERIES, head, row, TILES, IMAGE_SLOT, IMAGE_ROWS * 128, IMAGE_SLOT);
            copy_head(b, p, KEYS, head, b.row0, IMAGE_TILES, IMAGE_ROWS * 128, MAIN_BYTES, IMAGE_ROWS * 16);
            copy_head(b, p, VALUES, head, b.row0, IMAGE_TILES, IMAGE_ROWS * 128, MAIN_BYTES, IMAGE_ROWS * 16);
        }
        __syncwarp();
        used(b, HEAD_PARTS, HEAD_PARTS);
    }
}

DEV void leave_parts(const block &b, int first, int end) {
    for (int slot = first; slot < end; slot++) leave(b, slot, 1);
}

/* float4 that a thread gives the other warpgroup's (attend_together). */
enum { GIVEN = 5 };

/* A warp's rows of attention's output in the staging, after what is given: an odd number of 16 bytes each. */
enum { OUT_PITCH = IMAGE_HEAD * 2, OUT_AT = VISION_CONSUMERS * GIVEN * 128 * 16 };
static_assert(OUT_AT + CONSUMER_WARPS * 16 * OUT_PITCH <= (int)STAGING_BYTES, "attention's output is staged");
DEV char *staged_queries(const block &b) { return b.staging + OUT_AT + b.warp * 16 * OUT_PITCH; }
/* They go to rows `row` … of head `head`. */
DEV void store_staged_queries(const block &b, const gpu_vision &p, int head, int row, int rows) {
    store_staged(b, staged_queries(b), OUT_PITCH,
                 (u16 *)p.to_attended + (size_t)row * VISION_WIDTH + head * IMAGE_HEAD, VISION_WIDTH * 2,
                 rows, OUT_PITCH);
}

/* 64 queries, 2·SCORES keys from `first` on, by one warpgroup: weighted values, unscaled, and of a thread's
 * two rows maximum and sum. */
template <int SCORES>
DEV void attend_keys(const block &b, const gpu_vision &p, u32 q, int first, float (&out)[32],
                     float (&rest)[4], float (&top)[2], float (&sum)[2]) {
    const u32 main_at = first * 128, rest_at = MAIN_BYTES + first * 16, k = b.ring + KEYS * PART_BYTES,
              v = b.ring + VALUES * PART_BYTES;
    float score[SCORES];
    u32 a[SCORES / 8][4];
    await_full(b, QUERIES, 0);
    await_full(b, KEYS, 0);
    multiply_keys(score, q, k + main_at, k + rest_at, b.zeros);
    leave_parts(b, QUERIES, VALUES);
    after_wait(score);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = soften(score, h, p.scale * 1.4426950408889634f, top[h]);
    pack_weights(a, score);
    await_full(b, VALUES, 0);
    add_values(out, rest, a, v + main_at, v + rest_at);
    leave_parts(b, VALUES, HEAD_PARTS);
    after_wait(out);
    after_wait(rest);
}

/* A warpgroup its own 64 queries. */
DEV void attend_alone(const block &b, const gpu_vision &p, int head, int row) {
    float out[32], rest[4], top[2], sum[2];
    attend_keys<128>(b, p, b.ring + QUERIES * PART_BYTES + b.group * IMAGE_SLOT, 0, out, rest, top, sum);
    store_queries((u16 *)(staged_queries(b) + (b.lane >> 2) * OUT_PITCH) + 2 * (b.lane & 3), out, rest, sum,
                  IMAGE_HEAD);
    store_staged_queries(b, p, head, row + b.warp * 16, 16);
}

/* Both warpgroups the same 64 queries, each half of the keys. Then the first one finishes a thread's first
 * row, the second its second. */
DEV void attend_together(const block &b, const gpu_vision &p, int head, int row) {
    float4 *const box = (float4 *)b.staging + (threadIdx.x & 127);
    float out[32], rest[4], top[2], sum[2], own[20], given[20];
    attend_keys<64>(b, p, b.ring + QUERIES * PART_BYTES, b.group * IMAGE_KEYS / 2, out, rest, top, sum);
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
    u16 *const to = (u16 *)(staged_queries(b) + (b.lane >> 2) * OUT_PITCH) + 2 * (b.lane & 3);
#pragma unroll
    for (int i = 0; i < 9; i++)
        *(u32 *)(to + i * 8) = pack_bf16((own[2 * i] * mine + given[2 * i] * other) * share,
                                         (own[2 * i + 1] * mine + given[2 * i + 1] * other) * share);
    store_staged_queries(b, p, head, row + (b.warp & 3) * 16 + b.group * 8, 8);
    consumers_meet();                      /* the staging is free                                           */
}

template <int TILES> DEV bool attend_image(block &b, const gpu_vision &p) {
    const int tasks = VISION_HEADS * IMAGE_TILES / TILES;
#pragma unroll 1
    for (int task = b.rank; task < tasks; task += b.blocks) {
        const int head = task % VISION_HEADS, row = b.row0 + task / VISION_HEADS * TILES * IMAGE_ROWS;
        if (TILES == 2) attend_alone(b, p, head, row);
        else attend_together(b, p, head, row);
        used(b, HEAD_PARTS, HEAD_PARTS);
    }
    return b.rank < tasks;
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

/* The phases of a layer, in order. Norms are one piece of code: instructions that stay at hand. */
enum { NORM_FIRST, QKV, ATTENTION, OUT, NORM_SECOND, FC1, FC2, PHASES };

template <class T> DEV void feed(block &b, const gpu_vision &p) {
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        const vision_layer_weights &l = p.layers[layer];
        if (phase == QKV) feed_product<typename T::qkv>(b, qkv_of(p, l, T::MAP));
        else if (phase == ATTENTION) feed_attention<T::QUERY_TILES>(b, p);
        else if (phase == OUT) feed_product<typename T::out>(b, out_of(p, l, T::MAP));
        else if (phase == FC1) feed_product<typename T::fc1>(b, fc1_of(p, l, T::MAP));
        else if (phase == FC2) feed_product<typename T::fc2>(b, fc2_of(b, p, l, T::MAP));
        b.phase++;
        if (++phase == PHASES) phase = 0, layer++;
    }
}

template <class T> DEV void consume(block &b, const gpu_vision &p) {
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        const vision_layer_weights &l = p.layers[layer];
        bool waited = true;
        if (phase == QKV) waited = make_product<typename T::qkv, PLAIN, 0>(b, qkv_of(p, l, T::MAP));
        else if (phase == ATTENTION) waited = attend_image<T::QUERY_TILES>(b, p);
        else if (phase == OUT) waited = make_product<typename T::out, RESIDUAL, 0>(b, out_of(p, l, T::MAP));
        else if (phase == FC1) waited = make_product<typename T::fc1, GELU, 0>(b, fc1_of(p, l, T::MAP));
        else if (phase == FC2)
            waited = make_product<typename T::fc2, RESIDUAL, 1>(b, fc2_of(b, p, l, T::MAP));
        else norm_image(b, p, l.norm[phase == NORM_SECOND]);
        end_phase(b, waited);
        if (++phase == PHASES) phase = 0, layer++;
    }
    end_image(b);
}

/* Tells the compiler that all lanes have the same number: a branch on any other parts the warp for it, and
 * then it serialises wgmma. */
DEV int same_in_warp(int x) { return __shfl_sync(0xffffffffu, x, 0); }

DEV block block_of(const gpu_vision &p, char *memory, int images) {
    const int blocks = gridDim.x / images, image = blockIdx.x / blocks;
    const u32 ring = shared_address(memory), full = ring + AT_BARRIERS;
    return {.ring = ring,
            .zeros = ring + AT_ZEROS,
            .full = full,
            .empty = full + SLOTS * 8,
            .staging = memory + AT_STAGING,
            .progress = p.progress + image * (VISION_PROGRESS / 4),
            .row0 = image * IMAGE_KEYS,
            .rank = (int)blockIdx.x - image * blocks,
            .blocks = blocks,
            .lane = (int)(threadIdx.x & 31),
            .warp = same_in_warp(threadIdx.x >> 5),
            .group = same_in_warp(threadIdx.x >> 7),
            .parity = 0,
            .phase = 0,
            .shared = 0};
}

template <int IMAGES> DEV void run(block &b, const gpu_vision &p) {
    if (b.group == VISION_CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (b.warp == CONSUMER_WARPS) feed<tiles<IMAGES>>(b, p);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<tiles<IMAGES>>(b, p);
    }
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
        for (int s = 0; s < SLOTS; s++) {
            barrier_init(b.full + 8 * s, 1);
            barrier_init(b.empty + 8 * s, CONSUMER_WARPS);
        }
        barrier_init_done();
    }
    if (threadIdx.x < 64) *(uint4 *)(memory + AT_ZEROS + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    wait_before();
    if (images == 3) run<3>(b, p);
    else if (images == 2) run<2>(b, p);
    else run<1>(b, p);
}
