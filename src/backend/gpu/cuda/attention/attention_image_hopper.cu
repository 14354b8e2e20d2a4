/* SigLIP's attention on Hopper: wgmma fed by the TMA; 256 tokens an image, heads of 72 dims.
 *
 * A unit is a head of an image: all its keys and values, and 4 or 2 tiles of 64 queries. A tile is one
 * warpgroup's work, with the scores of all 256 keys in registers (128 a thread), so that the softmax needs
 * one pass and nothing shrinks:
 *
 *   scores [64][256] = Q · Kᵀ   wgmma 64 x 256 x 16: four over dims 0 … 63, one over dims 64 … 71
 *   weights          = softmax, unscaled, as bf16 in registers
 *   out    [64][72]  = weights · V   wgmma 64 x 64 x 16 and 64 x 8 x 16, sixteen of each
 *
 * 72 dims are 64, which have the swizzle of 128 bytes, and 8, whose rows of 16 bytes need none: eight of them
 * are a core matrix. For the scores these 8 are half of an instruction's k; as the other half the queries
 * have zeros, and the keys the same 8 dims once more.
 *
 * The warpgroups take the tiles in turn, and one begins when the other has its scores, so that one multiplies
 * while the other does its softmax. A thread of the last warpgroup copies ahead: keys and values of two
 * units, six tiles of queries.
 *
 *   blocks   (CONSUMERS + 1)·128 threads, persistent: unit blockIdx.x, + gridDim.x, …; one a multiprocessor
 *   legal    bf16, head_dim 72, 256 rows an image; rows and parts of qkv multiples of 16 bytes apart
 *   early    start_next() comes first; before wait_before() only the barriers and zeros are written
 *
 * attention_image_hopper.c checks what is legal and launches. */
#include "attention_image.cuh"
#include "backend/gpu/cuda/ring.cuh"

enum { BARRIERS = 4 * IMAGE_STAGES + 2 * IMAGE_SLOTS, TURN = 1 };

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Shared memory: stages of keys, then values, slots of queries, zeros. */
typedef struct image_memory {
    ring keys, values, queries;            /* a stage of keys is followed by its values                     */
    u32 zeros;
} image_memory;

DEV image_memory memory_of(const char *memory, const u64 *barriers) {
    const u32 stages = shared_address(memory), slots = stages + IMAGE_STAGES * IMAGE_STAGE,
              bars = shared_address(barriers);
    return {.keys = ring_of(stages, IMAGE_STAGES, bars),
            .values = ring_of(stages + IMAGE_PART, IMAGE_STAGES, bars + 16 * IMAGE_STAGES),
            .queries = ring_of(slots, IMAGE_SLOTS, bars + 32 * IMAGE_STAGES),
            .zeros = slots + IMAGE_SLOTS * IMAGE_SLOT};
}

/* One thread. Every tile frees its unit's stage once, and its slot; the four warps arrive. */
DEV void prepare(const gpu_image_hopper &p, const image_memory &m) {
    prefetch_map(&p.keys_main);
    prefetch_map(&p.keys_rest);
    prefetch_map(&p.rows_main);
    prefetch_map(&p.rows_rest);
    for (int i = 0; i < IMAGE_STAGES; i++) {
        ring_init_full(m.keys, i);
        ring_init_full(m.values, i);
        ring_init_empty(m.keys, i, 4 * p.tiles);
        ring_init_empty(m.values, i, 4 * p.tiles);
    }
    for (int i = 0; i < IMAGE_SLOTS; i++) ring_init(m.queries, i, 4);
    barrier_init_done();
}

/* ---- units --------------------------------------------------------------------------------------------- */

/* Parts of a head follow each other, so that its keys come from memory once. */
typedef struct image_unit {
    int head, row, tile;                   /* the image's first row; first tile of the unit                 */
} image_unit;

DEV image_unit unit_of(const gpu_image_hopper &p, int unit) {
    const int parts = IMAGE_TILES / p.tiles, head = unit / parts;
    return {head % p.attention.heads, head / p.attention.heads * IMAGE_KEYS, unit % parts * p.tiles};
}

DEV int units_of(const gpu_image_hopper &p) {
    return *p.attention.count / IMAGE_KEYS * p.attention.heads * (IMAGE_TILES / p.tiles);
}

/* Keys (part 1) or values (2) of a unit. */
DEV void copy_part(const gpu_image_hopper &p, const image_unit &u, int part, u32 to, u32 full) {
    barrier_arm(full, IMAGE_PART);
    copy_box4(to, &p.keys_main, 0, u.head, part, u.row, full);
    copy_box4(to + MAIN_BYTES, &p.keys_rest, IMAGE_MAIN, u.head, part, u.row, full);
}

/* One thread copies, unit after unit. */
DEV void copy_units(const gpu_image_hopper &p, const image_memory &m, int units) {
    for (int unit = blockIdx.x, n = 0, t = 0; unit < units; unit += gridDim.x, n++) {
        const ring_place stage = ring_use(m.keys, n), before = ring_lap_before(stage);
        const u32 k = ring_address(m.keys, stage, IMAGE_STAGE), v = k + IMAGE_PART;
        const image_unit u = unit_of(p, unit);
        ring_await_left(m.keys, before);
        copy_part(p, u, 1, k, ring_full(m.keys, stage));
        for (int i = 0; i < p.tiles; i++, t++) {
            const ring_place slot = ring_use(m.queries, t);
            const int row = u.row + (u.tile + i) * IMAGE_ROWS;
            const u32 to = ring_address(m.queries, slot, IMAGE_SLOT),
                      full = ring_begin(m.queries, slot, IMAGE_SLOT);
            copy_box4(to, &p.rows_main, 0, u.head, 0, row, full);
            copy_box4(to + IMAGE_ROWS * 128, &p.rows_rest, IMAGE_MAIN, u.head, 0, row, full);
        }
        ring_await_left(m.values, before);
        copy_part(p, u, 2, v, ring_full(m.values, stage));
    }
}

/* ---- a tile -------------------------------------------------------------------------------------------- */

/* A warpgroup's tile t of the block, which is tile u.tile of its image and in `stage`; `last`: of all. */
DEV void attend_tile(const gpu_image_hopper &p, const image_memory &m, const image_unit &u,
                     const ring_place &stage, int t, bool last) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, width = p.attention.heads * IMAGE_HEAD;
    const ring_place slot = ring_use(m.queries, t);
    const u32 k = ring_address(m.keys, stage, IMAGE_STAGE), v = ring_address(m.values, stage, IMAGE_STAGE);
    const float scale = p.attention.scale * 1.4426950408889634f;
    const int group = t % IMAGE_CONSUMERS, other = (t + 1) % IMAGE_CONSUMERS;
    float score[128], sum[2], top;
    ring_await_full(m.queries, slot);
    ring_await_full(m.keys, stage);
    if (t) group_sync(TURN + group, 256);
    multiply_keys(score, ring_address(m.queries, slot, IMAGE_SLOT), k, k + MAIN_BYTES, m.zeros);
    if (!last) group_arrive(TURN + other, 256);
    ring_leave(m.queries, slot, lane);
    ring_leave(m.keys, stage, lane);
    after_wait(score);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = soften(score, h, scale, top);
    u32 a[16][4];
    pack_weights(a, score);
    float out[32], rest[4];
    ring_await_full(m.values, stage);
    add_values(out, rest, a, v, v + MAIN_BYTES);
    ring_leave(m.values, stage, lane);
    after_wait(out);
    after_wait(rest);
    const size_t row = u.row + u.tile * IMAGE_ROWS + warp * 16 + (lane >> 2);
    store_queries((u16 *)p.attention.out + row * width + u.head * IMAGE_HEAD + 2 * (lane & 3), out, rest,
                  sum, width);
}

extern "C" __global__ void __launch_bounds__((IMAGE_CONSUMERS + 1) * 128, 1)
attention_image_wgmma(const __grid_constant__ gpu_image_hopper p) {
    extern __shared__ __align__(1024) char image_tiles[];
    __shared__ __align__(8) u64 barriers[BARRIERS];
    const image_memory m = memory_of(image_tiles, barriers);
    const int tid = threadIdx.x, group = tid >> 7;

    start_next();
    if (tid == IMAGE_CONSUMERS * 128) prepare(p, m);
    if (tid < IMAGE_ZEROS / 16)
        *(uint4 *)(image_tiles + (m.zeros - m.keys.at) + tid * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (group == IMAGE_CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        wait_before();
        if (tid == IMAGE_CONSUMERS * 128) copy_units(p, m, units_of(p));
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_before();
    const int units = units_of(p);
    for (int unit = blockIdx.x, n = 0, t = 0; unit < units; unit += gridDim.x, n++) {
        image_unit u = unit_of(p, unit);
        for (int i = 0; i < p.tiles; i++, t++, u.tile++)
            if (t % IMAGE_CONSUMERS == group)
                attend_tile(p, m, u, ring_use(m.keys, n), t,
                            i == p.tiles - 1 && unit + (int)gridDim.x >= units);
    }
}
