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
#include "hopper.cuh"
#include "wgmma.cuh"
#include "attention_image_hopper.h"

enum { MAIN_BYTES = IMAGE_KEYS * 128, BARRIERS = 4 * IMAGE_STAGES + 2 * IMAGE_SLOTS, TURN = 1 };

/* ---- instructions -------------------------------------------------------------------------------------- */

/* Descriptor of an operand without swizzle, in core matrices of 8 rows of 16 bytes. K-major: `k_step` bytes
 * to the next 8 of k, `mn_step` to the next 8 rows; transposed: the same with 8 of k in each core matrix. */
DEV u64 wgmma_plain(u32 address, u32 k_step, u32 mn_step) {
    return (u64)(mn_step >> 4) << 32 | (u64)(k_step >> 4) << 16 | address >> 4;
}

/* d += A·B with A in registers and B transposed, N = 64 and 8. */
DEV void wgmma_values(float (&d)[32], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEV void wgmma_values(float (&d)[4], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, 1, 1, 1, 1;"
                 : WR(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEV void copy_box4(u32 to, const gpu_tensor_map *map, int a, int b, int c, int d, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Addresses in shared memory: stages (K, then V), slots of queries, zeros, barriers. */
typedef struct image_memory {
    u32 stages, slots, zeros;
    u32 k_full, k_empty, v_full, v_empty;  /* one a stage                                                   */
    u32 q_full, q_empty;                   /* one a slot                                                    */
} image_memory;

DEV image_memory memory_of(const char *memory, const u64 *barriers) {
    image_memory m;
    m.stages = shared_address(memory), m.slots = m.stages + IMAGE_STAGES * IMAGE_STAGE,
    m.zeros = m.slots + IMAGE_SLOTS * IMAGE_SLOT;
    m.k_full = shared_address(barriers), m.k_empty = m.k_full + 8 * IMAGE_STAGES,
    m.v_full = m.k_empty + 8 * IMAGE_STAGES, m.v_empty = m.v_full + 8 * IMAGE_STAGES,
    m.q_full = m.v_empty + 8 * IMAGE_STAGES, m.q_empty = m.q_full + 8 * IMAGE_SLOTS;
    return m;
}

/* One thread. Every tile frees its unit's stage once, and its slot; the four warps arrive. */
DEV void prepare(const gpu_image_hopper &p, const image_memory &m) {
    prefetch_map(&p.keys_main);
    prefetch_map(&p.keys_rest);
    prefetch_map(&p.rows_main);
    prefetch_map(&p.rows_rest);
    for (int i = 0; i < IMAGE_STAGES; i++) {
        barrier_init(m.k_full + 8 * i, 1);
        barrier_init(m.v_full + 8 * i, 1);
        barrier_init(m.k_empty + 8 * i, 4 * p.tiles);
        barrier_init(m.v_empty + 8 * i, 4 * p.tiles);
    }
    for (int i = 0; i < IMAGE_SLOTS; i++) {
        barrier_init(m.q_full + 8 * i, 1);
        barrier_init(m.q_empty + 8 * i, 4);
    }
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
        const int s = n % IMAGE_STAGES, passed = (n / IMAGE_STAGES & 1) ^ 1;
        const u32 k = m.stages + s * IMAGE_STAGE, v = k + IMAGE_PART;
        const image_unit u = unit_of(p, unit);
        barrier_wait(m.k_empty + 8 * s, passed);
        copy_part(p, u, 1, k, m.k_full + 8 * s);
        for (int i = 0; i < p.tiles; i++, t++) {
            const int slot = t % IMAGE_SLOTS, row = u.row + (u.tile + i) * IMAGE_ROWS;
            const u32 to = m.slots + slot * IMAGE_SLOT, full = m.q_full + 8 * slot;
            barrier_wait(m.q_empty + 8 * slot, (t / IMAGE_SLOTS & 1) ^ 1);
            barrier_arm(full, IMAGE_SLOT);
            copy_box4(to, &p.rows_main, 0, u.head, 0, row, full);
            copy_box4(to + IMAGE_ROWS * 128, &p.rows_rest, IMAGE_MAIN, u.head, 0, row, full);
        }
        barrier_wait(m.v_empty + 8 * s, passed);
        copy_part(p, u, 2, v, m.v_full + 8 * s);
    }
}

/* ---- a tile -------------------------------------------------------------------------------------------- */

DEV void multiply_keys(float (&score)[128], const image_memory &m, u32 q, u32 k) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < IMAGE_MAIN / 16; i++)
        wgmma(score, wgmma_operand(q + i * 32), wgmma_operand(k + i * 32), i);
    const u32 rest = q + IMAGE_ROWS * 128;
    wgmma(score, wgmma_plain(rest, m.zeros - rest, 128), wgmma_plain(k + MAIN_BYTES, 0, 128), 1);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Scores of a thread's row h into weights relative to the row's maximum; returns their sum. */
DEV float soften(float (&score)[128], int h, float scale) {
    float top = score[2 * h], sum = 0;
#pragma unroll
    for (int n = 0; n < 32; n++) top = fmaxf(top, fmaxf(score[4 * n + 2 * h], score[4 * n + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top * scale;
#pragma unroll
    for (int n = 0; n < 32; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * n + 2 * h + i];
            x = exp2_fast(x * scale - base);
            sum += x;
        }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

DEV void add_values(float (&out)[32], float (&rest)[4], const u32 (&a)[16][4], u32 v) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < IMAGE_KEYS / 16; i++) {
        wgmma_values(out, a[i], wgmma_transposed(v + i * 16 * 128, 0));
        wgmma_values(rest, a[i], wgmma_plain(v + MAIN_BYTES + i * 16 * 16, 128, 128));
    }
    wgmma_commit();
    wgmma_wait<0>();
}

/* A thread's two rows, from `to` on: eight dims a quad of lanes. */
DEV void store_tile(u16 *to, const float (&out)[32], const float (&rest)[4], const float (&sum)[2],
                    int width) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float factor = 1 / sum[h];
        u16 *row = to + (size_t)h * 8 * width;
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(u32 *)(row + n * 8) = pack_bf16(out[4 * n + 2 * h] * factor, out[4 * n + 2 * h + 1] * factor);
        *(u32 *)(row + IMAGE_MAIN) = pack_bf16(rest[2 * h] * factor, rest[2 * h + 1] * factor);
    }
}

/* A warpgroup's tile t of the block, which is tile u.tile of its image and in stage s; `last`: of all. */
DEV void attend_tile(const gpu_image_hopper &p, const image_memory &m, const image_unit &u, int s, int passed,
                     int t, bool last) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, slot = t % IMAGE_SLOTS,
              width = p.attention.heads * IMAGE_HEAD;
    const u32 k = m.stages + s * IMAGE_STAGE, v = k + IMAGE_PART;
    const float scale = p.attention.scale * 1.4426950408889634f;
    const int group = t % IMAGE_CONSUMERS, other = (t + 1) % IMAGE_CONSUMERS;
    float score[128], sum[2];
    barrier_wait(m.q_full + 8 * slot, t / IMAGE_SLOTS & 1);
    barrier_wait(m.k_full + 8 * s, passed);
    if (t) group_sync(TURN + group, 256);
    multiply_keys(score, m, m.slots + slot * IMAGE_SLOT, k);
    if (!last) group_arrive(TURN + other, 256);
    if (!lane) barrier_arrive(m.q_empty + 8 * slot);
    if (!lane) barrier_arrive(m.k_empty + 8 * s);
    after_wait(score);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = soften(score, h, scale);
    u32 a[16][4];
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) a[i][j] = pack_bf16(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
    float out[32] = {}, rest[4] = {};
    barrier_wait(m.v_full + 8 * s, passed);
    add_values(out, rest, a, v);
    if (!lane) barrier_arrive(m.v_empty + 8 * s);
    after_wait(out);
    after_wait(rest);
    const size_t row = u.row + u.tile * IMAGE_ROWS + warp * 16 + (lane >> 2);
    store_tile((u16 *)p.attention.out + row * width + u.head * IMAGE_HEAD + 2 * (lane & 3), out, rest, sum,
               width);
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
        *(uint4 *)(image_tiles + (m.zeros - m.stages) + tid * 16) = make_uint4(0, 0, 0, 0);
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
                attend_tile(p, m, u, n % IMAGE_STAGES, n / IMAGE_STAGES & 1, t,
                            i == p.tiles - 1 && unit + (int)gridDim.x >= units);
    }
}
