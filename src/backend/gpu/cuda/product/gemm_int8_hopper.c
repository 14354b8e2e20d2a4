/* gemm_int8_hopper.cu: products of many rows of 8-bit integers on Hopper, behind a kernel that makes rows
 * into them and takes the norm, where there is one. */
#include <string.h>

#include "backend/gpu/cuda/product/gemm_hopper.h"
#include "backend/gpu/cuda/product/hopper_int8.h"
#include "backend/gpu/cuda/product/int8_rows.h"

#define TILE(rows, stages, store, name, residual, parts) \
    {{"hopper_int8_128x" #rows "_" name, 1, 0}, 128, rows, 2, stages, store, residual, parts}
#define GATED_TILES(name)                      \
    TILE(208, 4, STORE_GATED, name, 0, 0),     \
        TILE(192, 4, STORE_GATED, name, 0, 0), \
        TILE(160, 4, STORE_GATED, name, 0, 0), \
        TILE(144, 5, STORE_GATED, name, 0, 0)

/* The gated tiles are the first; those that leave codes follow all in the same order: choices name the
 * others. */
enum { GATED = 4, TILES = 9, CODED = TILES, ROWS = CODED + GATED, MOST_PARTS = 8 };

static const hopper_tile kernels[] = {
    GATED_TILES("gated"),
    TILE(192, 4, STORE_PLAIN, "pingpong", 0, 0),
    TILE(144, 5, STORE_PLAIN, "pingpong", 0, 0),
    TILE(208, 4, STORE_TRANSPOSED, "parts", 1, MOST_PARTS),
    TILE(144, 5, STORE_TRANSPOSED, "parts", 1, MOST_PARTS),
    TILE(128, 5, STORE_TRANSPOSED, "parts", 1, MOST_PARTS),
    GATED_TILES("coded"),
    INT8_ROWS_TABLE(.kernel, ROWS),
};

/* A tile, and how many blocks share its k. */
typedef struct usual_tile {
    const hopper_tile *tile;
    int parts;
} usual_tile;

static int legal(const gpu_device *device, const hopper_tile *t, const gpu_linear *p) {
    return hopper_tile_legal(t, p) && hopper_tile_shared(t, 1) <= gpu_shared_bytes(device);
}

/* Blocks that run at the same time, in clusters of `parts`: those of more than two leave some
 * multiprocessors of each part of the card without a block. */
static int places_of(const gpu_device *device, int parts) {
    const int all = gpu_multiprocessors(device);
    return parts > 2 ? all * 10 / 11 / parts * parts : all;
}

/* Cycles, roughly: a tile's multiplications times the waves, then what comes after the last product, of
 * ping-pong once, else of each wave; with parts a block also waits for the others of its cluster. A tile
 * takes as long as if it had 40 rows more. On an H200 this takes the fastest tile, with k in the fastest
 * number of parts, of gate_up and down at 276, 304, 532, 560, 788 and 816 rows. */
static double cost_of(const gpu_device *device, const hopper_tile *t, int rows, const gpu_linear *p,
                      int parts) {
    const double multiply = ceil_div(p->k_blocks, parts) * 4.0 * (t->rows + 40),
                 end = 0.15 * t->columns * t->rows + (parts > 1 ? 2500 : 0);
    const int blocks = ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns) * parts,
              waves = ceil_div(blocks, places_of(device, parts));
    return waves * multiply + (hopper_pingpong(t) ? 1 : waves) * end;
}

static const int shared_by[] = {1, 2, 3, 4};

static usual_tile usual_of(const gpu_device *device, int rows, const gpu_linear *p) {
    usual_tile best = {NULL, 1};
    double least_cost = 0;
    for (int i = 0; i < TILES; i++)
        for (size_t j = 0; j < sizeof shared_by / sizeof *shared_by; j++) {
            const hopper_tile *t = &kernels[i];
            const int parts = shared_by[j];
            if (!legal(device, t, p) || (parts > 1 && (!t->parts || parts > p->k_blocks))) continue;
            const double cost = cost_of(device, t, rows, p, parts);
            if (best.tile && cost >= least_cost) continue;
            best = (usual_tile){t, parts};
            least_cost = cost;
        }
    return best;
}

static void add_tile(const gpu_linear *p, int i, const usual_tile *usual, int rank, gpu_choices *to) {
    const hopper_tile *t = &kernels[i];
    for (int parts = 1; parts <= (t->parts ? t->parts : 1) && parts <= p->k_blocks; parts++) {
        if (parts > 4 && parts < MOST_PARTS) continue;
        const int taken = t == usual->tile && parts == usual->parts;
        gpu_choices_add(to, (gpu_choice){.rank = taken ? rank : GPU_RANK_NEVER,
                                         .kernel = i,
                                         .count = t->parts ? parts : 0});
    }
}

static void gemm_int8_hopper_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (task->kind != GPU_PRODUCT || !cuda_int8_product(p)) return;
    const usual_tile usual = usual_of(device, task->rows, p);
    const int rank = task->rows > FEW_ROWS ? RANK_GEMM_HOPPER : GPU_RANK_NEVER;
    for (int i = 0; i < TILES; i++)
        if (legal(device, &kernels[i], p)) add_tile(p, i, &usual, rank, to);
}

static void gemm_int8_hopper_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const hopper_tile *tile = &kernels[choice->kernel];
    const int leaves = task->leaves.scale > 0;
    gpu_hopper_coded a;
    gpu_hopper_int8 *product = &a.product;
    memset(&a, 0, sizeof a);
    product->scales = cuda_int8_rows(issue, ROWS, task, &task->product);
    if (leaves) a.fixed = cuda_int8_left(&task->leaves, &task->product, product->scales);
    hopper_tile_emit(issue, tile, choice->kernel + (leaves ? CODED : 0), task->rows,
                     choice->count ? choice->count : 1, 1, &task->product, &product->product, &a,
                     leaves ? sizeof a : sizeof *product);
}

const gpu_family gpu_family_gemm_int8_hopper = {.name = "gemm_int8_hopper",
                                                GPU_KERNELS(kernels),
                                                .list = gemm_int8_hopper_list,
                                                .launch = gemm_int8_hopper_launch};
