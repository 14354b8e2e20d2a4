/* A block of the resident kernel for many rows: its shared memory, its rings, how blocks meet.
 *
 * Shared memory:
 *   weights   a ring that one warp fills as early as it can: a slot has 16 atoms of packed columns,
 *             [column/8][k/64][1024 bytes], or 128 dims of 64 keys or values, [dim/64][place][64], swizzled
 *   rows      a ring that another warp fills after each meeting: a slot has 128 k of all rows,
 *             [k/64][row][64], swizzled, or keys and values as new as the queries. At the end of attention
 *             its output on its way to memory
 *   sums      what the warpgroups of a block, or the blocks of a cluster, give each other
 *   shifted   of each warpgroup, sums of the shift's row
 *   barriers  full and empty, one a slot; the blocks have met; sums of the cluster are there
 *
 * A phase is what all blocks do between two meetings. Meeting is counting: a block that has written its part
 * of a phase adds one, and whoever reads what others wrote waits for as many as there are blocks. */
#ifndef KERNELS_CUDA_LONG_BLOCK_CUH
#define KERNELS_CUDA_LONG_BLOCK_CUH

#include "backend/gpu/cuda/resident/meeting.cuh"
#include "backend/gpu/cuda/ring.cuh"
#include "resident_long.h"
#include "backend/gpu/cuda/wgmma.cuh"

enum {
    SLOT = LONG_SLOT,
    ROW_SLOT = LONG(ROW_SLOT),
    WEIGHTS = LONG(WEIGHT_SLOTS),
    ROWS = LONG(ROW_SLOTS),
    TILES = LONG(TILES),
    CLUSTER = LONG(CLUSTER),
    CONSUMERS = LONG(CONSUMERS),
    IN_FLIGHT = 2,                         /* slots of weights on their way                                 */
    AT_ROWS = WEIGHTS * SLOT,
    AT_SUMS = AT_ROWS + ROWS * ROW_SLOT,
    AT_SHIFTED = AT_SUMS + LONG(SUMS_BYTES),
    AT_BARRIERS = AT_SHIFTED + 2 * 64 * 4,
    AT_MET = AT_BARRIERS + 16 * (WEIGHTS + ROWS),
    AT_GIVEN = AT_MET + 8,
    AT_QUIET = AT_GIVEN + 8,               /* a word: no copy of weights begins while it is not 0           */
    USED_BYTES = AT_QUIET + 8,
    GIVEN_BYTES = 2 * CLUSTER * TILES * 128 * 16, /* sums for a block: of each warpgroup of the cluster    */
    CONSUMER_WARPS = CONSUMERS / 32,
    HEAD_KGROUPS = RESIDENT_HEAD / 8,
    CHUNKS = LONG_SLOT_K / 64,             /* chunks in a slot of rows                                      */
    BOX_BYTES = LONG_PART_KEYS * 128,      /* box of 64 dims of keys or values                              */
};
static_assert(USED_BYTES <= (int)LONG(SHARED), "shared memory");

#ifdef RESIDENT_WATCHDOG
/* In debug builds a wait of seconds ends the kernel with an error. */
DEV void watch(u32 &tries) {
    if (++tries > 1u << 24) __trap();
}
#else
DEV void watch(u32 &) {}
#endif

typedef struct block {
    char *memory;                          /* shared memory, and                                            */
    u32 base;                              /* its address                                                   */
    u32 *progress;
    int rank, side;                        /* the block's place in the grid, in its cluster                 */
    int lane, warp;                        /* the thread's place                                            */
    int group, tile;                       /* its warpgroup: which slots of rows, which 64 rows             */
    int height;                            /* rows with the shift, a multiple of 8                          */
    int used;                              /* rows in use, without the shift                                */
    ring weights, rows;
    u32 phase;                             /* meetings so far                                               */
    u32 norms, exchanges, issued;          /* so far; issued: slots of weights                              */
} block;

/* ---- rings --------------------------------------------------------------------------------------------- */

/* A warp leaves a slot, for `times` warps: all eight have to. */
DEV void leave(const block &b, const ring &r, const ring_place &p, u32 times) {
    ring_leave_for(r, p, b.lane, times);
}

/* One thread: the next slot, once nobody reads it, for copies of `bytes` that it is to begin. Returns its
 * address. size: of the ring's slots. */
DEV u32 begin_slot(ring &r, u32 size, u32 bytes, u32 &full) {
    const ring_place p = {r.next, r.lap};
    full = ring_begin(r, p, bytes);
    ring_move(r, ring_after(r, p, 1));
    return ring_address(r, p, size);
}

/* ---- meetings ------------------------------------------------------------------------------------------ */

DEV void consumers_meet(void) { group_sync(1, CONSUMERS); }

/* One thread: until all blocks have ended `phase` phases. What they wrote may be read from here on, also by
 * the TMA. */
DEV void await_phase(const block &b, u32 phase) {
    await_count(b.progress, LONG_BLOCKS * phase);
    async_fence();
}
/* All consumers: until the copying warp has seen that. */
DEV void await_met(const block &b) { await(b.base + AT_MET, (b.phase & 1) ^ 1); }

/* From here on no copy of weights begins (1), or they may again (0). All consumers, when none of the block
 * waits for weights in this phase any more. Atomic, so that racecheck, too, knows that either may come first;
 * no branch, or the compiler serialises wgmma. */
DEV void be_quiet(const block &b, u32 quiet) {
    asm volatile("{\n.reg .pred p;\n.reg .b32 before;\nsetp.eq.u32 p, %2, 0;\n"
                 "@p atom.shared.exch.b32 before, [%0], %1;\n}"
                 ::"r"(b.base + AT_QUIET), "r"(quiet), "r"(threadIdx.x) : "memory");
}
DEV u32 is_quiet(const block &b) {
    u32 quiet;
    asm volatile("atom.shared.or.b32 %0, [%1], 0;" : "=r"(quiet) : "r"(b.base + AT_QUIET) : "memory");
    return quiet;
}
/* All consumers: the block's part of the phase is written. With two tiles new values lie over sums: their
 * copies, too, come after all that has been read there. */
DEV void end_phase(block &b) {
    if (TILES > 1) asm volatile("fence.proxy.async;" ::: "memory");
    else async_fence();
    consumers_meet();
    if (!threadIdx.x) count_up(b.progress);
    be_quiet(b, 0);
    b.phase++;
}

/* Instead of the last meeting: the last block leaves zeros as they were found. */
DEV void end_launch(const block &b) {
    u32 before;
    consumers_meet();
    if (threadIdx.x) return;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(b.progress + 1) : "memory");
    if (before == LONG_BLOCKS - 1)
        for (int i = 0; i < LONG(ZEROS) / 4; i++) b.progress[i] = 0;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* begin_slot for weights. Stores and fences wait behind copies in flight: so there are few at a time, and
 * none begins where a phase is about to end. */
DEV u32 begin_weights(block &b, u32 &full) {
    const u32 slot = b.weights.next + WEIGHTS - IN_FLIGHT;
    const ring_place before = {slot % WEIGHTS, b.weights.lap ^ (b.weights.next < IN_FLIGHT)};
    u32 tries = 0;
    if (b.issued >= IN_FLIGHT) ring_await_full(b.weights, before);
    b.issued++;
    while (is_quiet(b)) watch(tries);
    return begin_slot(b.weights, SLOT, SLOT, full);
}

#endif
