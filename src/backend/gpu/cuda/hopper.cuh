/* Hopper's barriers, TMA (Tensor Memory Accelerator), early prefetch and clusters. Only for compute
 * capability 9.0.
 *
 * A barrier (mbarrier) counts arrivals and bytes: the TMA's copies report their bytes to it. Waiting names
 * the parity of the phase that has to be over: 0 for a barrier's first use, then 1, 0, … */
#ifndef KERNELS_CUDA_HOPPER_CUH
#define KERNELS_CUDA_HOPPER_CUH

#include "common.cuh"
#include "backend/gpu/cuda/maps.h"

DEV void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/* Makes the barriers visible to the TMA and to the cluster. */
DEV void barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* One arrival, and so many bytes that the phase has to receive. */
DEV void barrier_arm(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(barrier), "r"(bytes) : "memory");
}
DEV void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* So many bytes more come in this phase. */
DEV void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 ::"r"(barrier), "r"(bytes) : "memory");
}
DEV void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
}
/* barrier_wait of kernels whose blocks wait for each other: in debug builds a wait of seconds ends the kernel
 * with an error. The loop is in assembly: after a loop of its own the compiler takes the warps for divergent
 * and serialises wgmma. */
DEV void await(u32 barrier, u32 parity) {
#ifdef RESIDENT_WATCHDOG
    asm volatile("{\n.reg .pred p, q;\n.reg .u32 n;\nmov.u32 n, 0;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\n"
                 "add.u32 n, n, 1;\nsetp.lt.u32 q, n, 4194304;\n@q bra again;\ntrap;\ndone:\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
#else
    barrier_wait(barrier, parity);
#endif
}
/* 1 if the phase is over; does not wait. */
DEV int barrier_passed(u32 barrier, u32 parity) {
    u32 there;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(there) : "r"(barrier), "r"(parity) : "memory");
    return (int)there;
}
/* For group_sync; does not wait. */
DEV void group_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Copies by the TMA into this block's shared memory: a box of a tensor map at coordinates a, b (, c), or
 * plain bytes. */
DEV void copy_box2(u32 to, const gpu_tensor_map *map, int a, int b, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(barrier) : "memory");
}
DEV void copy_box3(u32 to, const gpu_tensor_map *map, int a, int b, int c, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(barrier) : "memory");
}
/* For bytes that are read once: they are the first to leave the second-level cache. */
DEV u64 once_policy(void) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEV void copy_box3_once(u32 to, const gpu_tensor_map *map, int a, int b, int c, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(barrier), "l"(once_policy()) : "memory");
}
/* Atoms of weights (maps of cuda_map_weights): a box from a group of 8 columns and a block of k on. */
DEV void copy_atoms(u32 to, const gpu_tensor_map *map, int group, int block, u32 barrier) {
    copy_box3(to, map, 0, block, group, barrier);
}
DEV void copy_atoms_once(u32 to, const gpu_tensor_map *map, int group, int block, u32 barrier) {
    copy_box3_once(to, map, 0, block, group, barrier);
}
DEV void copy_box4(u32 to, const gpu_tensor_map *map, int a, int b, int c, int d, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
}
DEV void copy_box5(u32 to, const gpu_tensor_map *map, int a, int b, int c, int d, int e, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(barrier) : "memory");
}
/* From shared memory, in a group of bulk copies. */
DEV void store_box2(const gpu_tensor_map *map, int a, int b, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(a), "r"(b), "r"(from) : "memory");
}
DEV void store_bytes(void *to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
/* The thread's stores so far, as a group, are there when it returns. */
DEV void stored(void) {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
/* Fetches the map itself before it is needed. */
DEV void prefetch_map(const gpu_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
DEV void copy_bytes(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEV void copy_bytes_once(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(once_policy()) : "memory");
}

/* One thread: prefetches this block's share of what a later kernel reads into the second-level cache. */
DEV void fetch_ahead(const gpu_ahead &a) {
    const u32 blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x,
              all = a.bytes / GPU_ATOM_BYTES, first = all * block / blocks, end = all * (block + 1) / blocks;
    if (first < end)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                     ::"l"((const char *)a.data + (size_t)first * GPU_ATOM_BYTES),
                        "r"((end - first) * GPU_ATOM_BYTES) : "memory");
}

DEV u32 cluster_rank(void) {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEV u32 cluster_blocks(void) {
    u32 n;
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    return n;
}
DEV u32 peer_address(u32 address, u32 rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
/* After the wait all blocks of the cluster run and have made their barriers. Relaxed: a release would wait
 * for copies in flight. The instructions need whole warps: __syncwarp joins a warp whose threads have
 * parted. */
DEV void cluster_arrive(void) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEV void cluster_wait(void) {
    __syncwarp();
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
DEV void cluster_sync(void) {
    cluster_arrive();
    cluster_wait();
}
/* All threads of the cluster; what each wrote before, also to shared memory, is visible to the others. */
DEV void cluster_meet(void) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Reads 16 bytes of the shared memory of a block of the cluster (peer_address). */
DEV float4 peer_read16(u32 address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
}
/* Writes 16 bytes into the shared memory of a block of the cluster; a barrier of that block counts them. */
DEV void send16(u32 to, u32 barrier, float a, float b, float c, float d) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                 "[%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)),
                    "r"(__float_as_uint(d)), "r"(barrier) : "memory");
}

#endif
