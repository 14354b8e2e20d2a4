/* gemm_hopper.cu: products of many rows on Hopper, operands by the TMA. A norm goes first. What a store
 * can do is in the kernel's head. */
#include <string.h>

#include "backend/gpu/cuda/product/gemm_hopper.h"

/* The heuristic takes the last three for residuals only, and never shares k: where that wins, a table
 * says so. */
static const hopper_tile tiles[] = {
    {{"hopper_160x128", 1, 0}, 160, 128, 2, 6, STORE_ROWS, 0, 0},
    {{"hopper_200x128", 1, 0}, 200, 128, 2, 5, STORE_ROWS, 0, 0},
    {{"hopper_256x128", 1, 0}, 256, 128, 2, 4, STORE_ROWS, 0, 0},
    {{"hopper_256x64", 1, 0}, 256, 64, 1, 5, STORE_ROWS, 0, 0},
    {{"hopper_128x64", 1, 0}, 128, 64, 1, 8, STORE_ROWS, 1, 0},
    {{"hopper_64x200_transposed", 1, 0}, 64, 200, 1, 6, STORE_TRANSPOSED, 1, 0},
    {{"hopper_64x208_transposed", 1, 0}, 64, 208, 1, 5, STORE_TRANSPOSED, 1, 0},
    {{"hopper_128x200_gated", 1, 0}, 128, 200, 2, 4, STORE_GATED, 0, 0},
    {{"hopper_128x184_gated", 1, 0}, 128, 184, 2, 4, STORE_GATED, 0, 0},
    {{"hopper_128x168_gated", 1, 0}, 128, 168, 2, 4, STORE_GATED, 0, 0},
    {{"hopper_128x144_gated", 1, 0}, 128, 144, 2, 5, STORE_GATED, 0, 0},
    {{"hopper_128x192_pingpong", 1, 0}, 128, 192, 2, 4, STORE_PLAIN, 0, 0},
    {{"hopper_128x144_pingpong", 1, 0}, 128, 144, 2, 5, STORE_PLAIN, 0, 0},
    {{"hopper_128x200_parts", 1, 0}, 128, 200, 2, 4, STORE_TRANSPOSED, 1, 8},
    {{"hopper_128x144_parts", 1, 0}, 128, 144, 2, 5, STORE_TRANSPOSED, 1, 8},
    {{"hopper_128x128_parts", 1, 0}, 128, 128, 2, 5, STORE_TRANSPOSED, 1, 8},
};
enum { TILES = sizeof tiles / sizeof *tiles, MOST_PARTS = 8 };

int hopper_tile_legal(const hopper_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    if (e->f32 || e->x_t || e->split || e->to.group) return 0;
    switch (e->kind) {
    case GPU_EPILOGUE_GATED:
        if (t->store == STORE_TRANSPOSED || t->store == STORE_PLAIN) return 0;
        return t->columns % 32 == 0 && !e->bias && e->n % 8 == 0 && !(t->store == STORE_GATED && e->to.map);
    case GPU_EPILOGUE_QKV: return t->store == STORE_ROWS && t->columns % 32 == 0 && e->head_dim % 16 == 0;
    }
    if (t->store == STORE_PLAIN && (e->gate || e->add || e->to.map || e->activation == GPU_ACT_SILU))
        return 0;
    return t->store != STORE_GATED && e->n % 8 == 0;
}

static int waves_of(const gpu_device *device, const hopper_tile *t, int rows, const gpu_linear *p) {
    return ceil_div(ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns),
                    gpu_multiprocessors(device));
}

/* Cycles, roughly: a tile's multiplications or its bytes from the second-level cache, whichever is longer,
 * times the waves. Of gated products, which are long enough to heat the card, bytes count a quarter more: at
 * 6304 rows 128x200 takes 1130 µs and 128x144 1332. A tile with one group of consumers multiplies nothing
 * while it stores. The plain ones that ping-pong store while they multiply, but for the last tile, so they
 * are for three waves and more, and bytes count an eighth more: vision's qkv takes 670 µs at 49152 rows on
 * 128x192, on 256x128 833.
 *
 * Tried on the shapes that tune/ has times of: what is chosen takes 1.2 % longer than the best, in the mean
 * (docs/speed/products.md, T19). */
static double gemm_hopper_cost(const gpu_device *device, const hopper_tile *t, int rows,
                               const gpu_linear *p) {
    int waves = waves_of(device, t, rows, p), k = p->k_blocks * GPU_ATOM_K;
    double multiply = (double)t->columns * t->rows * k / 2048,
           move = (double)(t->columns + t->rows) * 2 * k / 72;
    double store = t->store == STORE_PLAIN                  ? move / 8
                   : t->store == STORE_GATED                ? move / 4
                   : p->epilogue.kind == GPU_EPILOGUE_GATED ? 9000.0 / (256 * 128) * t->columns * t->rows
                                                            : 1500;
    double alone = t->consumers == 1 && waves > 1 ? 1.2 : 1;
    return waves * ((multiply > move ? multiply : move) * alone + store);
}

size_t hopper_tile_shared(const hopper_tile *t, int scaled) {
    size_t stage = (size_t)t->columns / 8 * GPU_ATOM_BYTES + (size_t)t->rows * 128,
           after = t->residual ? (size_t)t->columns * (size_t)t->rows * sizeof(bf16) : 0,
           scales = scaled ? (size_t)(t->columns + t->rows) * sizeof(float) : 0;
    if (hopper_pingpong(t)) {
        after = (size_t)t->consumers * (size_t)t->rows * 128;
        scales *= (size_t)t->consumers;
    }
    return (size_t)t->stages * (stage + 16) + 16 + after + scales +
           (hopper_pingpong(t) ? 0 : 2 * (size_t)t->columns * sizeof(float));
}

/* The heuristic's tile: the first of the lowest cost. */
static const hopper_tile *gemm_hopper_usual_tile(const gpu_device *device, int rows, const gpu_linear *p) {
    const hopper_tile *best = NULL;
    double least_cost = 0;
    for (int i = 0; i < TILES; i++) {
        if (!hopper_tile_legal(&tiles[i], p) ||
            (tiles[i].parts && p->epilogue.kind != GPU_EPILOGUE_RESIDUAL))
            continue;
        if (tiles[i].store == STORE_PLAIN && waves_of(device, &tiles[i], rows, p) < 3) continue;
        double this_cost = gemm_hopper_cost(device, &tiles[i], rows, p);
        if (best && this_cost >= least_cost) continue;
        best = &tiles[i];
        least_cost = this_cost;
    }
    return best;
}

/* With `norm` rows a block of a norm that goes first, 0: there is none. */
static void gemm_hopper_add(const gpu_device *device, const gpu_task *task, gpu_choices *to, int norm) {
    const gpu_linear *p = &task->product;
    const hopper_tile *usual = gemm_hopper_usual_tile(device, task->rows, p);
    for (int i = 0; i < TILES; i++) {
        const hopper_tile *t = &tiles[i];
        if (!hopper_tile_legal(t, p) || hopper_tile_shared(t, 0) > gpu_shared_bytes(device)) continue;
        gpu_choice choice = {.rank = t == usual ? gpu_usual(norm, RANK_GEMM_HOPPER) : GPU_RANK_NEVER,
                             .kernel = i,
                             .norm = norm};
        if (!t->parts) gpu_choices_add(to, choice);
        /* of the same rank, the first is the heuristic's: k not shared */
        for (choice.count = 1; choice.count <= t->parts && choice.count <= p->k_blocks; choice.count++)
            if (choice.count <= 4 || choice.count == MOST_PARTS) gpu_choices_add(to, choice);
    }
}

static void gemm_hopper_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(p)) return;
    for (int i = 0; i < gpu_norms_first(p); i++) {
        int norm = gpu_norm_first(p, i);
        if (!cuda_scattered(p) || norm) gemm_hopper_add(device, task, to, norm);
    }
}

/* Whole atoms of W; boxes of x, 128 bytes of k each, which the copy swizzles; outputs that a residual adds
 * to. */
static void gemm_hopper_make_maps(gpu_issue *issue, gpu_hopper *h, const hopper_tile *t, int rows,
                                  int element) {
    const gpu_linear *p = &h->linear;
    const uint64_t capacity = (uint64_t)rows, n = (uint64_t)p->epilogue.n,
                   row = (uint64_t)p->ldx * (uint64_t)element;
    cuda_map_weights(issue, &h->weights, p->weights, (unsigned)t->columns / 8);
    cuda_make_map(issue, &h->x, 1, 2, p->x, (uint64_t[]){row / sizeof(bf16), capacity}, (uint64_t[]){row},
                  (unsigned[]){GPU_ATOM_K, (unsigned)t->rows});
    if (t->residual && p->epilogue.kind == GPU_EPILOGUE_RESIDUAL)
        cuda_make_map(issue, &h->residual, 0, 2, p->epilogue.out, (uint64_t[]){n, capacity},
                      (uint64_t[]){n * sizeof(bf16)}, (unsigned[]){64, (unsigned)t->rows});
}

void hopper_tile_emit(gpu_issue *issue, const hopper_tile *t, int kernel, int rows, int parts, int scaled,
                      const gpu_linear *p, gpu_hopper *h, const void *arguments, size_t bytes) {
    int blocks = ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns),
        multiprocessors = gpu_multiprocessors(gpu_device_of(issue));
    if (!gpu_emitting(issue)) return;
    h->linear = *p;
    gemm_hopper_make_maps(issue, h, t, rows, scaled ? 1 : (int)sizeof(bf16));
    gpu_grid grid = {.x = hopper_pingpong(t) && blocks > multiprocessors ? multiprocessors : blocks * parts,
                     .y = 1,
                     .threads = (t->consumers + 1) * 128,
                     .shared = hopper_tile_shared(t, scaled),
                     .cluster = parts};
    gpu_emit(issue, kernel, grid, arguments, bytes);
}

static void gemm_hopper_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_hopper h;
    memset(&h, 0, sizeof h);
    hopper_tile_emit(issue, &tiles[choice->kernel], choice->kernel, task->rows,
                     choice->count ? choice->count : 1, 0, &task->product, &h, &h, sizeof h);
}

const gpu_family gpu_family_gemm_hopper = {
    .name = "gemm_hopper", GPU_KERNELS(tiles), .list = gemm_hopper_list, .launch = gemm_hopper_launch};
