/* The work block: memory that one op after the other has for itself, each from its beginning. Ops run in
 * order, and none touches the block before all earlier ones have ended. Ops that a family takes together
 * share it. */
#include "backend/gpu/gpu.h"

static size_t round_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

void gpu_work_begin(gpu_work *work) { work->used = 0; }

void *gpu_work_take(gpu_issue *issue, size_t bytes) {
    gpu_work *work = &issue->work;
    size_t at = work->used;
    work->used = at + round_256(bytes);
    if (work->used > work->most) work->most = work->used;
    return work->memory ? work->memory + at : NULL;
}
