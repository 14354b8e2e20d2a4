/* A ring: slots of shared memory that copies fill and warps read, one after the other and round again. Every
 * slot has two barriers:
 *
 *   full     the slot's copies have arrived: one thread arms it with their bytes
 *   empty    the warps that read the slot have left it: a lane of each arrives
 *
 * A place is a slot and the parity of its lap, which tells this use of the slot from the one before it:
 *
 *   who copies   ring_begin (await empty, arm full), copies to ring_address that report to ring_full
 *   who reads    ring_await_full, reads, ring_leave
 *
 * Both go from place to place: by ring_after or by counting uses (ring_use), or in a loop with two variables,
 * `if (++slot == slots) slot = 0, lap ^= 1`. A thread that keeps its place from call to call has it in the
 * ring (next, lap; ring_ahead, ring_move).
 *
 * Note: parity tells the lap that is over from the one before it, and no more. No thread may wait for a slot
 * that others free, or it can come too late, when the slot has been filled twice. */
#ifndef KERNELS_CUDA_RING_CUH
#define KERNELS_CUDA_RING_CUH

#include "hopper.cuh"

typedef struct ring {
    u32 at, barriers;                      /* addresses: slot 0; full [slots], then empty [slots]           */
    u32 slots;
    u32 next, lap;                         /* the next slot, and its lap's parity                           */
} ring;

typedef struct ring_place {
    u32 slot, lap;                         /* the lap's parity                                              */
} ring_place;

DEV ring ring_of(u32 at, u32 slots, u32 barriers) {
    return {.at = at, .barriers = barriers, .slots = slots, .next = 0, .lap = 0};
}

/* The place of use number `use`, from 0. */
DEV ring_place ring_use(const ring &r, int use) {
    const int slots = (int)r.slots;
    return {(u32)(use % slots), (u32)(use / slots & 1)};
}
/* `slots` after a place, at most as many as the ring has. */
DEV ring_place ring_after(const ring &r, const ring_place &p, u32 slots) {
    const u32 slot = p.slot + slots;
    return slot < r.slots ? ring_place{slot, p.lap} : ring_place{slot - r.slots, p.lap ^ 1};
}
/* `slots` after the next one. */
DEV ring_place ring_ahead(const ring &r, u32 slots) { return ring_after(r, {r.next, r.lap}, slots); }
DEV void ring_move(ring &r, const ring_place &p) { r.next = p.slot, r.lap = p.lap; }

DEV u32 ring_full(const ring &r, const ring_place &p) { return r.barriers + 8 * p.slot; }
DEV u32 ring_empty(const ring &r, const ring_place &p) { return r.barriers + 8 * (r.slots + p.slot); }
/* `bytes`: from one slot to the next. */
DEV u32 ring_address(const ring &r, const ring_place &p, u32 bytes) { return r.at + p.slot * bytes; }

DEV void ring_await_full(const ring &r, const ring_place &p) { await(ring_full(r, p), p.lap); }
/* Until the place is free: the warps of the lap before have left its slot. */
DEV void ring_await_empty(const ring &r, const ring_place &p) { await(ring_empty(r, p), p.lap ^ 1); }
/* The same in two steps: the lap before, and until the warps that read there have left. */
DEV ring_place ring_lap_before(const ring_place &p) { return {p.slot, p.lap ^ 1}; }
DEV void ring_await_left(const ring &r, const ring_place &p) { await(ring_empty(r, p), p.lap); }

/* One thread: the slot, once no warp reads it, for copies of `bytes` that this thread begins. Returns the
 * barrier that they report to. */
DEV u32 ring_begin(const ring &r, const ring_place &p, u32 bytes) {
    ring_await_empty(r, p);
    const u32 full = ring_full(r, p);
    barrier_arm(full, bytes);
    return full;
}

/* A warp that no longer reads the slot. */
DEV void ring_leave(const ring &r, const ring_place &p, int lane) {
    if (!lane) barrier_arrive(ring_empty(r, p));
}
/* The same for `times` warps. */
DEV void ring_leave_for(const ring &r, const ring_place &p, int lane, u32 times) {
    if (!lane)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
                     ::"r"(ring_empty(r, p)), "r"(times) : "memory");
}

/* One thread, before barrier_init_done(): the barriers of a slot, which `readers` warps leave each time. */
DEV void ring_init_full(const ring &r, u32 slot) { barrier_init(ring_full(r, {slot, 0}), 1); }
DEV void ring_init_empty(const ring &r, u32 slot, u32 readers) {
    barrier_init(ring_empty(r, {slot, 0}), readers);
}
/* Both. */
DEV void ring_init(const ring &r, u32 slot, u32 readers) {
    const ring_place p = {slot, 0};
    barrier_init(ring_full(r, p), 1);
    barrier_init(ring_empty(r, p), readers);
}

#endif
