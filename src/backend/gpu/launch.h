/* Inside the launching of ops: what launch.c and launch_linear.c share.
 *
 *   launch.c          one launch; attention, gathers, and which product an op is
 *   launch_linear.c   products: the ways there are, the rule that picks one, how each is launched
 *
 * An op may have several ways. Whoever has listed them asks gpu_pick, which is the one place where op.choice is read. */
#ifndef BACKEND_GPU_LAUNCH_H
#define BACKEND_GPU_LAUNCH_H

#include "backend/gpu/gpu.h"

/* One way to run an op. */
typedef struct gpu_way {
    gpu_kernel kernel;
    int tile;                              /* place in the table of its kind                                  */
    int count;                             /* stages, splits or parts, named "x COUNT"; 0: nothing of the sort */
    int norm;                              /* rows a block of the norm that goes first; 0: none does          */
} gpu_way;

enum { GPU_WAYS = 192 };
typedef struct gpu_ways {
    gpu_way list[GPU_WAYS];
    int count, rule;                       /* the built-in rule's place, -1 while it has none                 */
} gpu_ways;

/* What is beyond the list's end is left out. */
void gpu_ways_add(gpu_ways *ways, gpu_way way, int is_rule);
/* The way to go. NULL: the ways are only being listed. */
const gpu_way *gpu_pick(gpu_issue *issue, const gpu_ways *ways);

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* In clusters of `cluster` blocks (1: none), x a multiple of it. */
void gpu_launch_cluster(gpu_issue *issue, gpu_kernel kernel, int x, int y, int cluster, int threads, size_t shared,
                        const void *arguments);
static inline void launch(gpu_issue *issue, gpu_kernel kernel, int x, int y, int threads, size_t shared, const void *arguments) {
    gpu_launch_cluster(issue, kernel, x, y, 1, threads, shared, arguments);
}
/* `bytes` of the work block behind `*used`. */
void *gpu_work_at(gpu_issue *issue, size_t *used, size_t bytes);
/* A map of rank 2 or 3 over bf16, `swizzled` by 128 bytes, or (-1) over fp32 words. */
void gpu_make_map(gpu_issue *issue, gpu_tensor_map *map, int swizzled, unsigned rank, const void *base, const uint64_t *dims,
                  const uint64_t *strides, const unsigned *box);

/* x·Wᵀ; p.x is act or fp32 (not pixels), p.k_blocks as W's or twice that. `used` of the work block is taken. */
void gpu_launch_linear(gpu_issue *issue, const row_set *rows, gpu_linear p, size_t used);
/* 1 where skinny_hopper can take a plain product of k inputs from rows that are bf16 + bf16. */
int gpu_split_legal(const gpu_device *device, int rows, int k);


/* launch_pointwise.c: what fused ops are made of. */
#define X(kind, member, type) void gpu_issue_##member(gpu_issue *issue, const op *op);
OP_PART_LIST(X)
#undef X
/* Packs the op's raw weights at the work block's beginning and points it there; returns how many bytes that took. */
size_t gpu_raw_pack(gpu_issue *issue, op *op);

#endif
