/* Hopper's barriers and copy engine. Only for chips of compute capability 9.0. */
#ifndef KERNELS_CUDA_HOPPER_CUH
#define KERNELS_CUDA_HOPPER_CUH

#include "common.cuh"

DEV void barrier_init(u32 barrier, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }
/* The copy engine and the cluster see the barriers. */
DEV void barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEV void barrier_arm(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEV void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
DEV void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
DEV int barrier_passed(u32 barrier, u32 parity) {
    u32 there;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(there) : "r"(barrier), "r"(parity) : "memory");
    return (int)there;
}
DEV void group_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void group_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/* Boxes of a tensor map, and plain bytes. */
DEV void copy_box2(u32 to, const gpu_tensor_map *map, int a, int b, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(a), "r"(b),
                 "r"(barrier) : "memory");
}
DEV void copy_box3(u32 to, const gpu_tensor_map *map, int a, int b, int c, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(a),
                 "r"(b), "r"(c), "r"(barrier) : "memory");
}
/* The map itself comes nearer, before it is needed. */
DEV void prefetch_map(const gpu_tensor_map *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
DEV void copy_bytes(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
/* Read once: the second-level cache is kept for what comes again. */
DEV void copy_bytes_once(u32 to, const void *from, u32 bytes, u32 barrier) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier), "l"(policy) : "memory");
}

/* This block's share of what a later kernel reads. One thread. */
DEV void fetch_ahead(const gpu_ahead &a) {
    const u32 blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x, all = a.bytes / GPU_ATOM_BYTES,
              first = all * block / blocks, end = all * (block + 1) / blocks;
    if (first < end)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)a.data + (size_t)first * GPU_ATOM_BYTES),
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
/* The blocks of the cluster are there and have made their barriers. Relaxed: a release would wait for copies in flight.
 * A warp does these together; one that has sent a single thread ahead is not together by itself. */
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
/* All threads of the cluster; what each wrote before, to shared memory too, the others see. */
DEV void cluster_meet(void) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* 16 bytes of a block of the cluster. */
DEV float4 peer_read16(u32 address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
}
/* 16 bytes into a block of the cluster, counted by a barrier of that block. */
DEV void send16(u32 to, u32 barrier, float a, float b, float c, float d) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(__float_as_uint(a)),
                 "r"(__float_as_uint(b)), "r"(__float_as_uint(c)), "r"(__float_as_uint(d)), "r"(barrier) : "memory");
}

#endif
