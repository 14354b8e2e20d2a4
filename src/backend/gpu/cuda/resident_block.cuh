/* A block of the resident denoise kernel: its shared memory, its barriers, its threads.
 *
 * Shared memory; some parts hold different things at different times:
 *   ring     16 or 12 chunks of weights, keys or values
 *   x        8 slices of the rows, one a rank: [k/8][row][8] bf16 and the rows' sums of squares; during
 *            attention the inbox, partial sums of 8 ranks; after a step the own slice, for the velocity.
 *            With shifts apart: sums of squares, [row/8][k/8][row%8][8], and the shifts as 8 rows more, which
 *            each block writes for itself
 *   operand  q, then attention's output, then hidden values, [k/8][row][8]; after q the last rank's new
 *            values; after a step the parts of the velocity (also over new keys) and π0's hidden values of
 *            the embedding
 *   new      the last rank's new keys, or a fifth unit's sums: clusters that have one are no head's
 *   sums     [warpgroup][row][68]
 *   weights  of the keys, [key/8][row][8]
 *   stats    [rank][row] maximum and sum of the softmax
 *   actions  x_t, [row][32], the 16-byte units of a row swizzled
 *
 * RESIDENT_APART 1: shifts are no rows of the 16 (resident_shifts_hopper.cu).
 *
 * Note: in a cluster a shared-memory address carries the block's rank in its upper bits. */
#ifndef KERNELS_CUDA_RESIDENT_BLOCK_CUH
#define KERNELS_CUDA_RESIDENT_BLOCK_CUH

#include "hopper.cuh"
#include "resident.h"

#ifndef RESIDENT_APART
#define RESIDENT_APART 0
#endif

enum {
    APART = RESIDENT_APART,
    CS = RESIDENT_CLUSTER,
    STAGE = RESIDENT_STAGE,
    STAGES = APART ? RESIDENT_APART_STAGES : RESIDENT_STAGES,
    SHARED = APART ? RESIDENT_APART_SHARED : RESIDENT_SHARED,
    PITCH = 68,                            /* floats of a row of sums                                       */
    SUM_ROWS = RESIDENT_ROWS + (APART ? RESIDENT_SHIFTS : 0),
    SLICE_OPERAND = 4096,                  /* 128 k of 16 rows                                              */
    SLICE_SENT = SLICE_OPERAND + 64,       /* and the sums of squares                                       */
    SLICE = SLICE_SENT + (APART ? 2048 : 0),
    SLICE_ROWS = APART ? 64 : 0,           /* where the rows begin                                          */
    SLICE_SQUARES = APART ? 0 : SLICE_OPERAND,
    X_K = APART ? 128 : 256,               /* from 8 k of x to the next ones                                */
    X_GROUP = APART ? 2048 : 128,          /* from 8 rows to the next ones                                  */
    X_SUMS = APART ? 12 : 8,               /* a thread's sums of a tile over x: 24 or 16 rows               */
    X_GROUPS = X_SUMS / 4,
    NEW_KEYS = 32,                         /* 16 rows of this launch, 16 keys that the TMA leaves out       */
    PART_ROWS = 4 * RESIDENT_ROWS,         /* a rank's part of the velocity: sums of squares, then rows     */
    PART = PART_ROWS + SUM_ROWS * RESIDENT_ACTION * 4,

    AT_X = STAGES * STAGE,
    AT_INBOX = AT_X,
    AT_BARRIERS = AT_X + CS * SLICE,       /* before the operand, which needs its alignment                 */
    AT_OPERAND = AT_X + (APART ? 50176 : 33792),
    AT_NEW_V = AT_OPERAND + 8192,
    AT_VELOCITY_PARTS = AT_OPERAND + 10240,          /* 8 parts                                             */
    AT_NEW_K = AT_OPERAND + 24576,
    FIFTH_BYTES = 8 * SUM_ROWS * 16 * 4,
    AT_SUMS = AT_NEW_K + 16384,
    AT_FIFTH = AT_SUMS - FIFTH_BYTES,      /* [8 warps][row][16]; not where parts of the velocity are sent  */
    AT_WEIGHTS = AT_SUMS + 4 * SUM_ROWS * PITCH * 4,
    AT_STATS = AT_WEIGHTS + 4096,
    AT_ACTIONS = AT_STATS + 1024,
    /* barriers */
    AT_FREE = AT_BARRIERS + 8 * STAGES,    /* stages are free; before these: stages are full                */
    AT_SLICES = AT_FREE + 8 * STAGES,      /* one a rank                                                    */
    AT_Q = AT_SLICES + 8 * CS,
    AT_PARTS = AT_Q + 8,
    AT_ATTENDED = AT_PARTS + 8,
    AT_HIDDEN = AT_ATTENDED + 8,
    AT_VELOCITY = AT_HIDDEN + 8,
    AT_END = AT_VELOCITY + 8,

    AT_UNITS = AT_END,                     /* of the rows, as at the beginning of the launch                */
};
static_assert(AT_UNITS + 4 * RESIDENT_ROWS <= AT_OPERAND && AT_NEW_V + 16384 <= AT_NEW_K &&
                  STAGES % RESIDENT_COPIERS == 0,
              "shared memory");
static_assert(CS * RESIDENT_UNITS * 256 <= AT_NEW_V - AT_OPERAND, "hidden values are not over new values");
static_assert(CS * (RESIDENT_UNITS + 1) * 256 <= AT_VELOCITY_PARTS - AT_OPERAND &&
                  AT_VELOCITY_PARTS + CS * PART <= AT_FIFTH,
              "parts of the velocity are neither over hidden values nor over sums of a fifth unit");
static_assert((int)(AT_ACTIONS + RESIDENT_ROWS * RESIDENT_ACTION * 4) <= (int)SHARED &&
                  AT_X % 1024 == 0 && AT_OPERAND % 1024 == 0 && AT_BARRIERS % 8 == 0,
              "shared memory");

typedef struct worker {
    u32 base;                              /* of shared memory                                              */
    int rank, cluster, head;               /* head: the cluster is a head's                                 */
    int units;                             /* of 8 hidden units each: 4 or 5                                */
    int rows, parties;                     /* parties: warps that meet before x is sent                     */
    int lane, warp, group, quarter;        /* group: warpgroup, quarter: warp of it                         */
    int owner;                             /* this warp owns row `warp` of x                                */
    u32 row_at;                            /* of that row in an operand                                     */
    int known, shift;                      /* what the row adds to addresses of scales, shifts and gates
                                              in this step; its shift's row                                 */
    int later;                             /* apart: from the first step's parameters to those of this step */
    u32 chunk;                             /* the next one of the ring                                      */
    u32 parity, parity_x;
    float x[4];                            /* row `warp`, columns 128·rank + 4·lane …                       */
    float unit;                            /* of the row's sums over clusters: sum·unit is an integer       */
    u64 last[4][2];                        /* words of sums as they were: o, down, down of the layer before,
                                              embedding                                                     */
} worker;

#ifdef RESIDENT_WATCHDOG
/* In debug builds a wait of seconds ends the kernel with an error. */
DEV void watch(u32 &tries) {
    if (++tries > 1u << 20) __trap();
}
/* The loop is in assembly: after a loop of its own the compiler takes the warps for divergent and serialises
 * wgmma. */
DEV void await(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred p, q;\n.reg .u32 n;\nmov.u32 n, 0;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\n"
                 "add.u32 n, n, 1;\nsetp.lt.u32 q, n, 4194304;\n@q bra again;\ntrap;\ndone:\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
}
#else
DEV void watch(u32 &) {}
DEV void await(u32 barrier, u32 parity) { barrier_wait(barrier, parity); }
#endif

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
