/* A block of the resident vision kernel: its shared memory, its ring, and how the blocks of an image meet.
 *
 * Shared memory:
 *   ring      slots that copies fill: of products 64 k of rows of x, [row][64] swizzled, then of packed
 *             columns, [column/8][8][64]; of attention queries, keys or values. How large a slot is and
 *             how many there are differs from phase to phase, so the copying warp begins a phase when
 *             all slots of the one before are empty.
 *   staging   a warp's outputs on their way to memory, boxes of [row][columns]; before that sums that one
 *             warpgroup gives the other
 *   zeros     what attention multiplies the missing half of its last instruction with
 *   barriers  full and empty, one a slot; those of a tile's factors; the blocks have met
 *   columns   of a tile what its norm needs, of two columns each, and
 *   factors   of its rows (vision_norm.cuh)
 *
 * A phase is what all blocks of an image do between two meetings. Meeting is counting: a block that has
 * written its part of a phase adds one to the image's progress, and whoever reads what others wrote waits for
 * as many as there are blocks. Images do not wait for each other. */
#ifndef KERNELS_CUDA_VISION_BLOCK_CUH
#define KERNELS_CUDA_VISION_BLOCK_CUH

#include "backend/gpu/cuda/resident/meeting.cuh"
#include "backend/gpu/cuda/ring.cuh"
#include "vision.h"

enum {
    SLOTS = 8,                             /* most                                                          */
    PART_BYTES = 41984,                    /* a slot of attention, and the largest of a product             */
    RING_BYTES = 4 * PART_BYTES,
    AT_STAGING = RING_BYTES,
    STAGING_BYTES = 51200,
    AT_ZEROS = AT_STAGING + STAGING_BYTES,
    AT_BARRIERS = AT_ZEROS + 1024,
    MOST_COLUMNS = 200, MOST_ROWS = 128,   /* largest tile                                                  */
    AT_COLUMNS = AT_BARRIERS + (2 * SLOTS + 4) * 8,
    AT_FACTORS = AT_COLUMNS + MOST_COLUMNS * 8,
    USED_BYTES = AT_FACTORS + MOST_ROWS * 8,
    CONSUMER_THREADS = VISION_CONSUMERS * 128,
    CONSUMER_WARPS = VISION_CONSUMERS * 4,
    FACTOR_THREAD = CONSUMER_THREADS + 32, /* the first of those that make factors                          */
};
static_assert(AT_COLUMNS % 16 == 0, "columns are read by 16 bytes");
static_assert(USED_BYTES <= VISION_SHARED, "shared memory");

typedef struct block {
    char *memory;                          /* shared memory, and                                            */
    u32 ring;                              /* its address                                                   */
    u32 *progress;                         /* the image's counter                                           */
    int row0;                              /* the image's first row                                         */
    int rank, blocks;                      /* among the blocks of the image                                 */
    int lane, warp, group;                 /* the thread's place; group: its warpgroup                      */
    u32 parity;                            /* bit s: of the uses of slot s so far                           */
    u32 phase;                             /* meetings so far                                               */
    u32 shared;                            /* products so far whose k blocks share                          */
    u32 tiles;                             /* so far                                                        */
} block;

/* Barriers. */
DEV ring slots_of(const block &b) { return ring_of(b.ring, SLOTS, b.ring + AT_BARRIERS); }
DEV u32 full_of(const block &b, int slot) { return ring_full(slots_of(b), {(u32)slot, 0}); }
DEV u32 factors_full(const block &b) { return b.ring + AT_BARRIERS + 16 * SLOTS; }
DEV u32 factors_empty(const block &b) { return b.ring + AT_BARRIERS + 16 * SLOTS + 8; }
DEV u32 met_of(const block &b) { return b.ring + AT_BARRIERS + 16 * SLOTS + 16; }

DEV char *staging_of(const block &b) { return b.memory + AT_STAGING; }
DEV float4 *columns_of(const block &b) { return (float4 *)(b.memory + AT_COLUMNS); }
DEV float2 *factors_of(const block &b) { return (float2 *)(b.memory + AT_FACTORS); }

/* ---- boxes out ----------------------------------------------------------------------------------------- */

/* A warp whose threads have written their parts of a staged box: it goes to row `row`, from column `column`
 * on; what is beyond the map's columns goes nowhere. */
DEV void begin_store(const block &b, const gpu_tensor_map *map, const char *from, int column, int row) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (!b.lane) store_box2(map, column, row, shared_address(from));
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* When it returns, they are there. */
DEV void end_store(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __syncwarp();
}

/* ---- meetings ------------------------------------------------------------------------------------------ */

/* Until all blocks of the image have ended the phase before. What they wrote may be read from here on, also
 * by the TMA. */
DEV void await_phase(const block &b) {
    await_count(b.progress, (u32)b.blocks * b.phase);
    async_fence();
}
DEV void consumers_meet(void) { group_sync(1, CONSUMER_THREADS); }

/* All consumers: as await_phase. One warp asks, since what is asked for is counted up meanwhile. */
DEV void consumers_await_phase(const block &b) {
    if (b.warp == 0) await_phase(b);
    consumers_meet();
}

/* All consumers: the block's part of the phase is written. `waited` 0: no warp of the block has waited for
 * the previous phase yet, so all consumers wait here: else the block would count a phase ahead, or read too
 * early in the next one. */
DEV void end_phase(block &b, bool waited) {
    if (!waited) consumers_await_phase(b);
    async_fence();
    consumers_meet();
    if (!threadIdx.x) count_up(b.progress);
    b.phase++;
}

/* Instead of the last meeting: the last block of the image leaves the counters as they were found. */
DEV void end_image(const block &b) {
    u32 before;
    consumers_meet();
    if (threadIdx.x) return;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(b.progress + 1) : "memory");
    if (before == (u32)b.blocks - 1)
        for (int i = 0; i < VISION_PROGRESS / 4; i++) b.progress[i] = 0;
}

/* ---- the ring ------------------------------------------------------------------------------------------ */

DEV u32 parity_of(const block &b, int slot, u32 lap) { return (b.parity >> slot ^ lap) & 1; }

/* `uses` of the first `slots` slots, one after the other from slot 0 on, are over. */
DEV void used(block &b, int slots, int uses) {
    b.parity ^= (uses / slots & 1 ? (1u << slots) - 1 : 0) ^ ((1u << uses % slots) - 1);
}

DEV ring_place use_of(const block &b, int slot, u32 lap) { return {(u32)slot, parity_of(b, slot, lap)}; }
DEV void await_empty(const block &b, int slot, u32 lap) {
    ring_await_empty(slots_of(b), use_of(b, slot, lap));
}
DEV void await_all_empty(const block &b) {
#pragma unroll 1
    for (int s = 0; s < SLOTS; s++) await_empty(b, s, 0);
}
DEV void await_full(const block &b, int slot, u32 lap) {
    ring_await_full(slots_of(b), use_of(b, slot, lap));
}
/* A warp that has read the slot, for `times` warps: all eight have to. */
DEV void leave(const block &b, int slot, u32 times) {
    ring_leave_for(slots_of(b), {(u32)slot, 0}, b.lane, times);
}

#endif
