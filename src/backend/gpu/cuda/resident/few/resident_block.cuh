/* A block of the resident denoise kernel: its shared memory, its barriers, its threads.
 *
 * Shared memory; some parts hold different things at different times:
 *   ring     chunks of weights, keys or values
 *   new      of the last rank of a head's cluster the new keys and values; of any other block 4 more chunks
 *   operand  q, then attention's output, then hidden values, [k/8][row][8]; after a step π0's hidden values
 *            of the embedding
 *   sums     [warpgroup][row][68]; after a step the other ranks' parts of the velocity, then x embedded
 *   weights  of the keys, [key/8][row][8]; after a step the own part of the velocity
 *   stats    [rank][row] maximum and sum of the softmax
 *   actions  x_t, [row][32], the 16-byte units of a row swizzled
 *   x        the rank's columns of all rows, [k/8][row][8]; with shifts apart [row/8][k/8][row%8][8], the
 *            shifts as 8 rows more
 *   inbox    boxes of sums over x of each rank; during attention partial sums of 8 ranks
 *   squares  [rank][row] sums of squares of x
 *   scales   of int8 weights: of each stage [column][first or last 64 k]; of rows of the operand [32 k][row],
 *            of rows of x
 *
 * RESIDENT_APART 1: up to 16 rows, and shifts are none of them (resident_shifts_hopper.cu); else up to 12.
 * RESIDENT_INT8 1: weights are int8 (resident_int8.cuh).
 *
 * Note: in a cluster a shared-memory address carries the block's rank in its upper bits. */
#ifndef KERNELS_CUDA_RESIDENT_BLOCK_CUH
#define KERNELS_CUDA_RESIDENT_BLOCK_CUH

#include "backend/gpu/cuda/hopper.cuh"
#include "resident.h"

#ifndef RESIDENT_APART
#define RESIDENT_APART 0
#endif
#ifndef RESIDENT_INT8
#define RESIDENT_INT8 0
#endif

enum {
    APART = RESIDENT_APART,
    INT8 = RESIDENT_INT8,
    CS = RESIDENT_CLUSTER,
    STAGE = RESIDENT_STAGE,
    STAGES = INT8 ? APART ? RESIDENT_INT8_APART_STAGES : RESIDENT_INT8_STAGES
             : APART ? RESIDENT_APART_STAGES : RESIDENT_STAGES,
    SHARED = INT8 ? APART ? RESIDENT_INT8_APART_SHARED : RESIDENT_INT8_SHARED
             : APART ? RESIDENT_APART_SHARED : RESIDENT_SHARED,
    PITCH = 68,                            /* floats of a row of sums                                       */
    SUM_ROWS = APART ? RESIDENT_ROWS : RESIDENT_FEW_ROWS,
    X_K = APART ? 128 : 256,               /* from 8 k of x to the next ones                                */
    X_GROUP = APART ? 2048 : 128,          /* from 8 rows to the next ones                                  */
    X_SUMS = APART ? 12 : 8,               /* a thread's sums of a tile over x: 24 or 16 rows               */
    SENT_ROWS = APART ? RESIDENT_ROWS + RESIDENT_SHIFTS : RESIDENT_FEW_ROWS,         /* most, and even      */
    NEW_KEYS = 32,                         /* 16 rows of this launch, 16 keys that the TMA leaves out       */
    PART_ROWS = 4 * RESIDENT_ROWS,         /* a rank's part of the velocity: sums of squares, then rows     */
    PART = PART_ROWS + SENT_ROWS * RESIDENT_ACTION * 4,

    /* Boxes of sums: 16 columns of SENT_ROWS rows. In the inbox first two or four of each rank, then where
     * one more of each begins. */
    BOX = SENT_ROWS * 64,
    PARTS = CS * 2048,                     /* attention's, in the inbox, too: not over boxes of k and v     */
    QKV_UNITS = CS * 2 * BOX > PARTS ? CS * 2 * BOX : PARTS,
    GATE_UNITS = CS * 4 * BOX,
    FIFTH_UNITS = INT8 ? GATE_UNITS : CS * BOX,
    DIGITS_X_K = APART ? 784 : 528,        /* int8: from 16 k of x to the next ones; 16 bytes are for banks */
    X_BYTES = INT8 ? APART ? 6400 : 4352 : APART ? 6144 : 4096,

    MOST_STAGES = STAGES + RESIDENT_MORE_STAGES,
    AT_NEW_V = STAGES * STAGE,
    AT_NEW_K = AT_NEW_V + 16384,
    AT_OPERAND = MOST_STAGES * STAGE,
    AT_SUMS = AT_OPERAND + CS * (RESIDENT_UNITS + 1 + INT8) * 256,
    AT_VELOCITY_PARTS = AT_SUMS,           /* 8 parts                                                       */
    AT_WEIGHTS = AT_SUMS + (APART ? CS * PART : 4 * SUM_ROWS * PITCH * 4),
    AT_STATS = AT_WEIGHTS + 4096,
    AT_ACTIONS = AT_STATS + 1024,
    AT_X = AT_ACTIONS + RESIDENT_ROWS * RESIDENT_ACTION * 4,
    AT_INBOX = AT_X + X_BYTES,
    AT_SQUARES = AT_INBOX + GATE_UNITS + FIFTH_UNITS,
    /* barriers */
    AT_FULL = AT_SQUARES + CS * RESIDENT_ROWS * 4,
    AT_FREE = AT_FULL + 8 * MOST_STAGES,   /* stages are free                                               */
    AT_GIVEN = AT_FREE + 8 * MOST_STAGES,  /* the inbox is full                                             */
    AT_EARLY = AT_GIVEN + 8,               /* squares are there, and boxes of k or v                        */
    AT_Q = AT_EARLY + 8,
    AT_PARTS = AT_Q + 8,
    AT_ATTENDED = AT_PARTS + 8,
    AT_HIDDEN = AT_ATTENDED + 8,
    AT_VELOCITY = AT_HIDDEN + 8,
    AT_QUIET = AT_VELOCITY + 8,            /* no rank reads its sums any more                               */
    AT_END = AT_QUIET + 8,

    AT_UNITS = AT_END,                     /* units of the rows, as at the beginning of the launch          */
    AT_SIGNALS = AT_UNITS + 4 * RESIDENT_ROWS,       /* a word a rank, that nobody reads                    */
    AT_SCALES = AT_SIGNALS + 4 * CS,
    AT_ROW_UNITS = AT_SCALES + INT8 * MOST_STAGES * RESIDENT_SCALES,
    AT_X_UNITS = AT_ROW_UNITS + INT8 * 12 * 64,
};
static_assert(AT_X_UNITS + INT8 * 96 <= (int)SHARED && AT_SCALES % 16 == 0 && 8 * DIGITS_X_K <= 6400 &&
                  (APART || 8 * DIGITS_X_K <= 4352) && STAGES % RESIDENT_COPIERS == 0 &&
                  MOST_STAGES % RESIDENT_COPIERS == 0 && AT_OPERAND - AT_NEW_V == 2 * 16384 &&
                  AT_X % 128 == 0 && AT_FULL % 8 == 0,
              "shared memory");
static_assert(AT_VELOCITY_PARTS + CS * PART <= AT_WEIGHTS && AT_WEIGHTS + PART <= AT_STATS &&
                  4 * SUM_ROWS * PITCH * 4 <= AT_WEIGHTS - AT_SUMS,
              "sums, parts of the velocity over them, the own part over weights");
static_assert(QKV_UNITS + CS * BOX <= AT_SQUARES - AT_INBOX, "boxes of k and v are in the inbox");

typedef struct worker {
    u32 base;                              /* start of shared memory                                        */
    int rank, cluster, head;               /* head: the cluster is a head's                                 */
    int units, extra;                      /* hidden units in groups of 8: the rank's, 4 or 5; how many
                                              ranks have 5                                                  */
    int rows, parties;                     /* parties: warps that meet before hidden values are sent        */
    int lane, warp, group, quarter;        /* group: warpgroup, quarter: warp of it                         */
    int owner;                             /* this warp owns row `warp` of x                                */
    u32 row_at;                            /* that row's place in an operand                                */
    int known, shift;                      /* what the row adds to addresses of scales, shifts and gates
                                              in this step; its shift's row                                 */
    int later;                             /* apart: from the first step's parameters to those of this step */
    u32 stage, lap;                        /* place of the next chunk in the ring; parity of the lap        */
    u32 parity, parity_x;
    float x[4];                            /* row `warp`, columns 128·rank + 4·lane …                       */
    float unit;                            /* unit of the row's sums over clusters: sum·unit is an integer  */
    u64 last[4][2];                        /* words of sums as they were: o, down, down of the layer before,
                                              embedding                                                     */
} worker;

#ifdef RESIDENT_WATCHDOG
/* In debug builds a wait of seconds ends the kernel with an error. */
DEV void watch(u32 &tries) {
    if (++tries > 1u << 20) __trap();
}
#else
DEV void watch(u32 &) {}
#endif

/* Stages of the block's ring. */
DEV u32 stages_of(const worker &w) {
    return w.head && w.rank == CS - 1 ? (u32)STAGES : (u32)MOST_STAGES;
}

/* The row of the step's shift. */
DEV int first_shift(const gpu_resident &p) { return APART ? (int)RESIDENT_ROWS : p.rows; }

DEV void async_fence(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void readers_meet(void) { group_sync(1, RESIDENT_READERS); }
DEV void parties_meet(const worker &w) { group_sync(2, w.parties * 32); }

DEV void store2(u32 at, u32 v) { asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"((u16)v) : "memory"); }
DEV void store4(u32 at, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
DEV void store8(u32 at, u32 a, u32 b) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
DEV void store16(u32 at, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV float load4(u32 at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
DEV float2 load8(u32 at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
/* The values of 8 neighbouring lanes as 8 bf16, in all of them. */
DEV uint4 pack_lanes(float v, int lane) {
    const float o = __shfl_xor_sync(0xffffffffu, v, 1);
    const u32 a = lane & 1 ? pack_bf16(o, v) : pack_bf16(v, o), b = __shfl_xor_sync(0xffffffffu, a, 2);
    const u32 p = lane & 2 ? b : a, q = lane & 2 ? a : b;
    const u32 r = __shfl_xor_sync(0xffffffffu, p, 4), s = __shfl_xor_sync(0xffffffffu, q, 4);
    return lane & 4 ? make_uint4(r, s, p, q) : make_uint4(p, q, r, s);
}

#endif
