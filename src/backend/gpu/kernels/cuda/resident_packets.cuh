/* How the blocks of the resident kernel talk: packets of 16 bytes that carry their own proof of arrival.
 *
 * A packet is 96 bits of data and a tag, written and read as one 128-bit access. No fence anywhere: a release on a block
 * with bulk copies in flight costs microseconds. A reader polls until the tag is the one it waits for. Who may overwrite a
 * packet is settled by the data itself: nobody gets that far before all readers' results have been needed on the way.
 *
 * Activations go in units of 8 columns: pair p = 4·row + column/2 of a unit stands in packet p / 3, so a quad of packets is
 * three rows of 16 bytes, which is how they are stored. Quads are always written whole. */
#ifndef KERNELS_CUDA_RESIDENT_PACKETS_CUH
#define KERNELS_CUDA_RESIDENT_PACKETS_CUH

#include "../resident.h"
#include "hopper.cuh"

enum { READERS = RESIDENT_THREADS - 32 };

#ifndef PATIENCE
#define PATIENCE (1u << 25)                /* polls, more than ten seconds */
#endif

DEV void put_packet(char *to, u32 a, u32 b, u32 c, u32 tag) {
    asm volatile(
        "{\n.reg .b128 t;\n.reg .b64 low, high;\nmov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 t, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], t;\n}" ::"l"(to),
        "r"(a), "r"(b), "r"(c), "r"(tag)
        : "memory");
}
DEV uint4 get_packet(const char *from) {
    uint4 v;
    asm volatile("{\n.reg .b128 t;\n.reg .b64 low, high;\nld.relaxed.gpu.global.b128 t, [%4];\nmov.b128 {low, high}, t;\nmov.b64 "
                 "{%0, %1}, low;\n"
                 "mov.b64 {%2, %3}, high;\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* A wait for packets that would last for ever ends the kernel: the host sees an error instead of a device that hangs. */
DEV void lose_patience(u32 &tries) {
    if (++tries == PATIENCE) __trap();
}

/* Quotients of small numbers by one that stays: `reciprocal` is what reciprocal_of says. */
DEV u32 reciprocal_of(int divisor) { return 0xffffffffu / (u32)divisor + 1; }
DEV int divide(int a, u32 reciprocal) { return reciprocal ? (int)__umulhi((u32)a, reciprocal) : a; }     /* 0: by one */

/* threadIdx.x, looked up anew: what is computed from it then is not kept through the whole loop, where registers are short. */
DEV int thread(void) {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

DEV int quads_of(int rows) { return (rows + 2) / 3; }

/* Four packets, `pitch` bytes apart, of each of N places, asked for all at once until all are there: polling one and then
 * asking for the rest costs one more way to the second-level cache, and that is what a phase mostly waits for. */
template <int N> DEV void read_quads(uint4 (&v)[N][4], const char *const (&at)[N], u32 pitch, u32 tag) {
    u32 tries = 0, missing;
    do {
        missing = 0;
#pragma unroll
        for (int i = 0; i < 4 * N; i++) v[i / 4][i % 4] = get_packet(at[i / 4] + (i % 4) * pitch);
#pragma unroll
        for (int i = 0; i < 4 * N; i++) missing |= v[i / 4][i % 4].w ^ tag;
        lose_patience(tries);
    } while (missing);
}

/* Row 0, 1 or 2 of a quad. */
template <int ROW> DEV uint4 row_of_quad(const uint4 (&v)[4]) {
    if (ROW == 0) return make_uint4(v[0].x, v[0].y, v[0].z, v[1].x);
    if (ROW == 1) return make_uint4(v[1].y, v[1].z, v[2].x, v[2].y);
    return make_uint4(v[2].z, v[3].x, v[3].y, v[3].z);
}

/* Reads units first … first + units - 1 of an exchange of `all` units, N quads a thread at once, and gives each row's 8 columns
 * to store(unit - first, row, 16 bytes). */
template <int N, typename STORE>
DEV void gather(const char *from, int all, int first, int units, u32 reciprocal, int rows, u32 tag, STORE store) {
    const int tasks = units * quads_of(rows);
    const u32 pitch = all * 16;
#pragma unroll 1
    for (int i0 = thread(); i0 < tasks; i0 += N * READERS) {
        const char *at[N];
        int unit[N], quad[N];
        uint4 v[N][4];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = min(i0 + k * READERS, tasks - 1);
            quad[k] = divide(i, reciprocal), unit[k] = i - quad[k] * units;
            at[k] = from + (u32)(quad[k] * 4 * pitch + (first + unit[k]) * 16);
        }
        read_quads<N>(v, at, pitch, tag);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int row = quad[k] * 3;
            if (k && i0 + k * READERS >= tasks) break;
            store(unit[k], row, row_of_quad<0>(v[k]));
            if (row + 1 < rows) store(unit[k], row + 1, row_of_quad<1>(v[k]));
            if (row + 2 < rows) store(unit[k], row + 2, row_of_quad<2>(v[k]));
        }
    }
}

/* Lanes 6·i + 2·j and the next of a warp (i < 5) hold pair j of the i-th packet; the whole warp takes part. */
DEV void send_pairs(u32 pair, int there, char *to, u32 tag) {
    const int lane = thread() & 31, base = lane - lane % 6;
    const u32 a = __shfl_sync(0xffffffffu, pair, base), b = __shfl_sync(0xffffffffu, pair, base + 2),
              c = __shfl_sync(0xffffffffu, pair, base + 4);
    if (there && lane == base) put_packet(to, a, b, c, tag);
}

#endif
