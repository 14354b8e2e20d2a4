/* Attention over the cache on Hopper.
 *
 * attention_cluster: for few rows (the denoise loop): keys split over a cluster, joined inside it.
 * A cluster of up to 16 blocks takes 16 rows; block `rank` the keys rank·span … of each (attention.cuh). Then the first
 * eight blocks own 32 of the 256 dims each: every block sends its unscaled sums of those dims, and all its maxima and
 * sums of weights, by st.async onto the owner's barrier; the owner adds what has come, in the order of ranks. No second
 * kernel, nothing through global memory.
 *
 * Legal as attention.cuh, with 8 to 16 blocks a cluster (more than 8 must be allowed for the kernel).
 *
 * attention_wgmma: for many rows (the prefix), head_dim 256. A block takes 64 of the rows f = row·heads + head; two
 * warpgroups take its tiles of 64 keys in turn, each with a K and a V buffer of its own, so that one multiplies while the
 * other is at its softmax; in the end each joins half of the dims.
 *
 *   thread 256    copies K tiles         scores = Q·Kᵀ     Q, K in shared memory, 4 boxes of [64 rows][64 dims] swizzled
 *   thread 288    copies V tiles         out += P·V        P in registers, V as it lies (turned operand)
 *
 * Rows of several samples: as in attention.cuh. What surprises: places of the cache behind a sample's keys hold anything,
 * and 0·NaN is NaN, so those rows of V are cleared in shared memory first. */
#include "attention.cuh"
#include "wgmma.cuh"
#include "hopper.cuh"

enum { OWNERS = 8 };

KERNEL(128) attention_cluster(const __grid_constant__ gpu_cache_attention p) {
    extern __shared__ __align__(1024) char cluster_memory[];
    __shared__ __align__(8) u64 barriers[1];
    const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3, kg = tid >> 5, d = p.head_dim, rank = cluster_rank();
    /* [rank][4 blocks of 8 dims][32 lanes] of 16 bytes, then [rank][16 rows] of (maximum, sum), 16 bytes a row */
    char *inbox = cluster_memory + (16 + 2 * KEYS) * 512 + 16 * (128 + 32);
    const u32 inbox_at = shared_address(inbox), stats_at = inbox_at + p.splits * 2048, there = shared_address(barriers);
    attended a;

    if (!tid) {
        barrier_init(there, 1);
        barrier_init_done();
    }
    cluster_arrive();                      /* the others' barriers are needed only in the end */
    if (tid == 32) fetch_ahead(p.ahead);
    if (!attend_cache<1>(p, blockIdx.x / p.splits, rank * p.span, rank * p.span + p.span, a)) {       /* the whole cluster alike */
        cluster_wait();
        return;
    }

    cluster_wait();
    if (t < 2) {                           /* rows g and g + 8, told to four owners a lane */
#pragma unroll
        for (int i = 0; i < OWNERS / 4; i++) {
            const u32 owner = kg * 2 + i;
            const float top = t ? a.top[1] : a.top[0], sum = t ? a.sum[1] : a.sum[0];
            send16(peer_address(stats_at + (rank * 16 + t * 8 + g) * 16, owner), peer_address(there, owner), top, sum, 0, 0);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {          /* dims 64·kg + 8·n …: owner 2·kg + n / 4 */
        const u32 owner = kg * 2 + n / 4;
        send16(peer_address(inbox_at + ((rank * 4 + n % 4) * 32 + lane) * 16, owner), peer_address(there, owner), a.out[n][0], a.out[n][1], a.out[n][2], a.out[n][3]);
    }
    if (rank >= OWNERS) return;
    if (!tid) barrier_arm(there, p.splits * (2048 + 256));     /* what is here by now counts as well */
    barrier_wait(there, 0);
    /* Warp kg finishes block kg of the 32 dims. */
    const float2 *stats = (const float2 *)(inbox + p.splits * 2048);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, out[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int s = 0; s < p.splits; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) top[h] = fmaxf(top[h], stats[(s * 16 + h * 8 + g) * 2].x);
#pragma unroll 4
    for (int s = 0; s < p.splits; s++) {
        const float4 v = *(const float4 *)(inbox + ((s * 4 + kg) * 32 + lane) * 16);
        const float2 low = stats[(s * 16 + g) * 2], high = stats[(s * 16 + 8 + g) * 2];
        const float w0 = exp2_fast(low.x - top[0]), w1 = exp2_fast(high.x - top[1]);
        sum[0] += low.y * w0, sum[1] += high.y * w1;
        out[0] += v.x * w0, out[1] += v.y * w0, out[2] += v.z * w1, out[3] += v.w * w1;
    }
    const int i = rank * 32 + kg * 8 + 2 * t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = a.f0 + h * 8 + g;
        const float factor = 1 / sum[h];
        if (f < a.total && i < d) *(u32 *)((u16 *)p.out + (size_t)f * d + i) = pack_bf16(out[2 * h] * factor, out[2 * h + 1] * factor);
    }
}

/* ---- many rows -------------------------------------------------------------------------------------------- */

enum { TILE_BYTES = 64 * 512, BOX_BYTES = 64 * 128 };

KERNEL(384) attention_wgmma(const __grid_constant__ gpu_wgmma_attention w) {
    extern __shared__ __align__(1024) char wgmma_memory[];
    __shared__ __align__(8) u64 barriers[10];
    __shared__ float stats[2][64][2];
    const gpu_cache_attention &p = w.attention;
    const u32 q_at = shared_address(wgmma_memory), k_at = q_at + TILE_BYTES, v_at = k_at + 2 * TILE_BYTES;
    const u32 q_there = shared_address(barriers), k_full = q_there + 8, k_empty = k_full + 16, v_full = k_empty + 16, v_empty = v_full + 16,
              halves_there = v_empty + 16;
    const int tid = threadIdx.x, lane = tid & 31, group = tid >> 7, f0 = blockIdx.x * 64, total = *p.count * p.heads;

    if (tid == 256) {
        prefetch_map(&w.q);
        prefetch_map(&w.k);
        prefetch_map(&w.v);
        barrier_init(q_there, 1);
        barrier_init(halves_there, 256);
        for (int i = 0; i < 2; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, 4);
            barrier_init(v_empty + 8 * i, 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    start_next();
    if (f0 >= total) {
        wait_before();
        return;
    }
    const int first_row = f0 / p.heads, last_row = (min(f0 + 64, total) - 1) / p.heads;
    const int first_sample = p.sample[first_row], last_sample = p.sample[last_row];
    auto keys_of = [&](int s) {
        int n = 0;
        for (int r = first_row + lane; r <= last_row; r += 32)
            if (p.sample[r] == s) n = max(n, p.keys[r]);
        return __reduce_max_sync(0xffffffffu, n);
    };

    if (group == 2) {                      /* the copies */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        wait_before();
        const int which = tid >> 5 & 3;    /* warp 0: Q and K, warp 1: V */
        if (which > 1) return;
        if (tid == 256) {
            barrier_arm(q_there, TILE_BYTES);
            for (int b = 0; b < 4; b++) copy_box2(q_at + b * BOX_BYTES, &w.q, b * 64, f0, q_there);
        }
        const u32 to = which ? v_at : k_at, full = which ? v_full : k_full, empty = which ? v_empty : k_empty;
        const gpu_tensor_map *map = which ? &w.v : &w.k;
        int item = 0;
        for (int s = first_sample; s <= last_sample; s++) {
            const int keys = keys_of(s);
            for (int key0 = 0; key0 < keys; key0 += KEYS, item++) {
                const int i = item & 1;
                if (lane) continue;
                barrier_wait(empty + 8 * i, (item >> 1 & 1) ^ 1);
                barrier_arm(full + 8 * i, TILE_BYTES);
                for (int b = 0; b < 4; b++) copy_box3(to + i * TILE_BYTES + b * BOX_BYTES, map, b * 64, key0, s, full + 8 * i);
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_before();
    const int warp = tid >> 5 & 3, g = lane >> 2, t = lane & 3;
    int row_sample[2], row_keys[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = f0 + warp * 16 + h * 8 + g, r = f < total ? f / p.heads : first_row;
        row_sample[h] = f < total ? p.sample[r] : -1;
        row_keys[h] = p.keys[r];
    }
    float out[128], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 128; i++) out[i] = 0;
    const float scale = p.scale * 1.4426950408889634f;
    const u32 k = k_at + group * TILE_BYTES, v = v_at + group * TILE_BYTES;
    char *v_memory = wgmma_memory + 3 * TILE_BYTES + group * TILE_BYTES;
    int item = 0;
    barrier_wait(q_there, 0);
    for (int s = first_sample; s <= last_sample; s++) {
        const int keys = keys_of(s);
        for (int key0 = 0; key0 < keys; key0 += KEYS, item++) {
            if ((item & 1) != group) continue;
            const int phase = item >> 1 & 1;
            float score[32];
            barrier_wait(k_full + 8 * group, phase);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < DIM / 16; i++)
                wgmma(score, wgmma_operand(q_at + i / 4 * BOX_BYTES + i % 4 * 32), wgmma_operand(k + i / 4 * BOX_BYTES + i % 4 * 32), i);
            wgmma_commit();
            wgmma_wait<0>();
            if (!lane) barrier_arrive(k_empty + 8 * group);
#pragma unroll
            for (int i = 0; i < 32; i++) asm volatile("" : "+f"(score[i])::"memory");
            float shrink[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int limit = (row_sample[h] == s ? row_keys[h] : 0) - key0 - 2 * t;
                float m = top[h];
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float &x = score[4 * n + 2 * h + i];
                        x = n * 8 + i < limit ? x * scale : -INFINITY;
                        m = fmaxf(m, x);
                    }
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
                const float base = m == -INFINITY ? 0 : m;
                float part = 0;
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float &x = score[4 * n + 2 * h + i];
                        x = exp2_fast(x - base);
                        part += x;
                    }
                shrink[h] = exp2_fast(top[h] - base);
                sum[h] = sum[h] * shrink[h] + part;
                top[h] = m;
            }
            u32 a[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) a[i][j] = pack_bf16(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
            if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
                for (int n = 0; n < 32; n++) out[4 * n] *= shrink[0], out[4 * n + 1] *= shrink[0], out[4 * n + 2] *= shrink[1], out[4 * n + 3] *= shrink[1];
            }
            barrier_wait(v_full + 8 * group, phase);
            if (key0 + KEYS > keys) {
                for (int i = tid & 127; i < (key0 + KEYS - keys) * 32; i += 128) {
                    const int r = keys - key0 + (i >> 5), c = i & 31;
                    *(uint4 *)(v_memory + (c >> 3) * BOX_BYTES + r * 128 + (c & 7) * 16) = make_uint4(0, 0, 0, 0);
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                group_sync(1 + group, 128);
            }
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) wgmma_values(out, a[i], wgmma_turned(v + i * 2048, BOX_BYTES));
            wgmma_commit();
            wgmma_wait<0>();
            if (!lane) barrier_arrive(v_empty + 8 * group);
#pragma unroll
            for (int i = 0; i < 128; i++) asm volatile("" : "+f"(out[i])::"memory");
        }
    }

    /* Each warpgroup finishes half of the dims: it hands the other half over through its own K buffer. */
    float4 *mine = (float4 *)(wgmma_memory + TILE_BYTES + group * TILE_BYTES), *theirs = (float4 *)(wgmma_memory + TILE_BYTES + (group ^ 1) * TILE_BYTES);
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float4 x;
        if (group) x = make_float4(out[4 * n], out[4 * n + 1], out[4 * n + 2], out[4 * n + 3]);
        else x = make_float4(out[4 * (n + 16)], out[4 * (n + 16) + 1], out[4 * (n + 16) + 2], out[4 * (n + 16) + 3]);
        mine[n * 128 + (tid & 127)] = x;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (!t) stats[group][warp * 16 + h * 8 + g][0] = top[h], stats[group][warp * 16 + h * 8 + g][1] = sum[h];
    }
    barrier_arrive(halves_there);          /* a bar.sync of the two would do, but racecheck does not follow it here */
    barrier_wait(halves_there, 0);
    float w0[2], w1[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *other = stats[group ^ 1][warp * 16 + h * 8 + g], m = fmaxf(top[h], other[0]);
        w0[h] = exp2_fast(top[h] - m), w1[h] = exp2_fast(other[0] - m);
        const float factor = 1 / (sum[h] * w0[h] + other[1] * w1[h]);
        w0[h] *= factor, w1[h] *= factor;
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float4 x = theirs[n * 128 + (tid & 127)];
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = group ? out[4 * (n + 16) + i] : out[4 * n + i];
        const int column = group * 128 + n * 8 + 2 * t;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int f = f0 + warp * 16 + h * 8 + g;
            if (f < total)
                *(u32 *)((u16 *)p.out + (size_t)f * DIM + column) =
                    pack_bf16(y[2 * h] * w0[h] + (h ? x.z : x.x) * w1[h], y[2 * h + 1] * w0[h] + (h ? x.w : x.y) * w1[h]);
        }
    }
}
