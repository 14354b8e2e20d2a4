/* Guidance of real-time chunking, after an Euler step: where a row has a weight,
 * x_t += gain·(target - (x_t - t·v))·weight.
 *
 *   guide    a warp a row, a lane every 32nd number of it
 *   blocks   256 threads, 8 rows; grid = rows / 8
 *   legal    any shape; all is fp32
 *   early    weights, gains and samples, which come with the upload, are read before wait_before(); the rest
 *            and start_next() come after it. Note: the target of a row without weight holds anything.
 *
 * guide.c launches. */
#include "backend/gpu/cuda/common.cuh"
#include "backend/gpu/kernels/guide.h"

enum { ROWS = 8 };

KERNEL(256) guide(const __grid_constant__ gpu_guide p) {
    const int lane = threadIdx.x & 31, r = blockIdx.x * ROWS + (threadIdx.x >> 5), there = r < *p.count;
    const float weight = there ? __ldg(p.weight + r) : 0;
    const float gain = weight != 0 ? __ldg(p.gain + __ldg(p.sample + r)) : 0;
    wait_before();
    start_next();
    if (weight == 0) return;
    for (int i = lane; i < p.n; i += 32) {
        const size_t at = (size_t)r * p.n + i;
        const float x = __ldcg(p.x_t + at), ahead = x - p.t * __ldcg(p.velocity + at);
        p.x_t[at] = x + gain * ((__ldg(p.target + at) - ahead) * weight);
    }
}
