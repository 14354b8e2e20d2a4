/* gemm_mma.cu: products of many rows on any tensor core. A norm goes first.
 *
 * Here is also how gemm_mma.cuh's tiles are chosen, whatever their numbers. The heuristic's tile and parts
 * are those whose estimated time is least: waves of blocks over the multiprocessors, each as long as its
 * share of k. Large tiles read the fewest bytes a multiplication; k is shared only where the tiles are fewer
 * than the multiprocessors. */
#include "backend/gpu/cuda/product/gemm_mma.h"

#include "backend/gpu/cuda/product/join_norm.h"

enum { LEAST_BLOCKS = 8, JOIN_THREADS = 256 };

/* Times are in units of 16 rows x 8 columns x 64 k of a tensor core at its best (of int8 128 k): 4.3 ns of a
 * multiprocessor of an H200. `percent`: what a tile takes of that, above 100 where shared memory or the
 * second-level cache is the limit. Fitted on that card to 1,884 times: --path portable and --as rtx4090, 1 to
 * 3 cameras, horizons 10 and 50, batches of 1 and 8 (docs/speed/portable.md). */
#define TILE(rows, columns, ...) \
    GEMM_TILE("gemm_mma_" #rows "_" #columns, 1, 0, rows, columns, __VA_ARGS__)
#define TILE_HALF(rows, columns, ...) \
    GEMM_TILE("gemm_mma_" #rows "_" #columns "_half", 2, 0, rows, columns, __VA_ARGS__)

enum { SMALL = 2, TILES = 12, JOIN = TILES, JOIN_NORM };
static const gemm_tile tiles[] = {
    TILE(160, 256, 256, 3, 1, 103),
    TILE(128, 128, 256, 3, 1, 123),
    TILE(64, 64, 128, 4, 3, 198),
    TILE_HALF(160, 256, 256, 3, 1, 110),
    TILE_HALF(160, 192, 256, 4, 1, 114),
    TILE_HALF(192, 192, 256, 4, 1, 115),
    TILE_HALF(128, 256, 256, 4, 1, 109),
    TILE_HALF(128, 192, 256, 4, 1, 111),
    TILE_HALF(160, 128, 256, 5, 1, 137),
    TILE_HALF(128, 160, 256, 5, 1, 121),
    TILE_HALF(128, 128, 256, 3, 2, 120),
    TILE_HALF(64, 64, 128, 4, 3, 171),
    {{"gemm_mma_join", 1, 0}, 0, 0, JOIN_THREADS, 0, 0, 0, 0, 0},
    {{"gemm_mma_join_norm", 1, 0}, 0, 0, 0, 0, 0, 0, 0, 0},
};

/* In the same units: a tile's first stages; from asking for an atom of k to its arrival. */
enum { AROUND = 490, ARRIVAL = 197 };
/* A tile's end, a thousand sums; how much longer that takes with a bias, for parts, and where blocks share
 * the multiprocessor; how much longer a block alone takes, of a tile that is made for several; and what the
 * join takes of a multiprocessor, a thousand parts of sums. */
static const double end_of_sums = 13.7, end_with_bias = 1.15, end_of_parts = 1.24, end_together = 1.15,
                    step_alone = 1.62, join_of_sums = 21.3;

static gemm_numbers bf16_of(const gpu_device *device) {
    return (gemm_numbers){tiles, TILES, SMALL, JOIN, gpu_multiprocessor_tflops(device), 650.0 / 132};
}

/* An atom of k of a block, where the multiprocessor has no other: products take longer where tensor cores are
 * slower; of what a tile takes beyond them half is taken to remain there, as more bytes a product cost power.
 * It also decides between tiles that would be equal. */
static double step_of(const gemm_numbers *n, const gemm_tile *t) {
    const double slower = n->rate > 0 && n->rate < n->fitted_rate ? n->fitted_rate / n->rate : 1;
    return slower > 1 ? slower * (t->products + t->cost) / 2 : t->cost;
}

static int tiles_of(const gemm_tile *t, int rows, const gpu_linear *p) {
    return ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns);
}

/* From the last product to the last output of a block. */
static double end_of(const gemm_tile *t, const gpu_linear *p, int parts, int together) {
    double end = end_of_sums * t->rows * t->columns / 1000;
    if (parts > 1) end *= end_of_parts;
    else if (p->epilogue.bias) end *= end_with_bias;
    return together > 1 ? end * end_together : end;
}

static double time_of(const gpu_device *device, const gemm_numbers *n, const gemm_tile *t, int rows,
                      const gpu_linear *p, int parts) {
    int multiprocessors = gpu_multiprocessors(device), blocks = tiles_of(t, rows, p) * parts,
        places = multiprocessors * gpu_blocks_held(device, t->shared, t->blocks),
        together = ceil_div(least(blocks, places), multiprocessors);
    double step = step_of(n, t) * (together > 1 ? together : t->blocks > 1 ? step_alone : 1),
           arrives = ARRIVAL / t->ahead,
           wave = ceil_div(p->k_blocks, parts) * (step > arrives ? step : arrives) + AROUND +
                  end_of(t, p, parts, together),
           sums = join_of_sums * rows * p->weights.columns / 1000 * parts / multiprocessors;
    return ceil_div(blocks, places) * wave + (parts > 1 ? sums : 0);
}

/* k is shared while the tiles leave multiprocessors idle, and a part has some stages. 0: not for this
 * device. */
static int most_parts(const gpu_device *device, const gemm_tile *t, int rows, const gpu_linear *p) {
    int blocks = tiles_of(t, rows, p);
    if (!gpu_blocks_held(device, t->shared, t->blocks)) return 0;
    if (blocks >= gpu_multiprocessors(device)) return 1;
    int parts = least(GPU_MOST_PARTS, ceil_div(2 * gpu_multiprocessors(device), blocks));
    return p->k_blocks < 2 * LEAST_BLOCKS ? 1 : least(parts, p->k_blocks / LEAST_BLOCKS);
}

gemm_usual gemm_mma_usual(const gpu_device *device, const gemm_numbers *n, int rows, const gpu_linear *p) {
    gemm_usual best = {n->small, 1};
    double least_time = time_of(device, n, &n->tiles[n->small], rows, p, 1);
    for (int t = 0; t < n->count; t++) {
        int most = most_parts(device, &n->tiles[t], rows, p);
        for (int parts = 1; parts <= most; parts++) {
            double time = time_of(device, n, &n->tiles[t], rows, p, parts);
            if (time >= least_time) continue;
            least_time = time;
            best = (gemm_usual){t, parts};
        }
    }
    return best;
}

void gemm_mma_add(const gpu_device *device, const gemm_numbers *n, const gpu_task *task, gemm_usual usual,
                  gpu_choice choice, gpu_choices *to) {
    const int rank = choice.rank;
    for (int t = 0; t < n->count; t++) {
        int most = most_parts(device, &n->tiles[t], ceil_div(task->rows, OPENPI_CAMERAS), &task->product);
        for (int parts = 1; parts <= most; parts++) {
            choice.rank = t == usual.tile && parts == usual.parts ? rank : GPU_RANK_NEVER;
            choice.kernel = t;
            choice.count = parts > 1 ? parts : 0;
            gpu_choices_add(to, choice);
        }
    }
}

/* The product, whole or in parts whose sums take memory of their own. */
static void emit_tiles(gpu_issue *issue, const gemm_numbers *n, int rows, const gpu_choice *choice,
                       gpu_linear_parts *parts, const void *arguments, size_t bytes) {
    const gemm_tile *t = &n->tiles[choice->kernel];
    const gpu_linear *p = &parts->linear;
    size_t sums = (size_t)p->capacity * (size_t)p->weights.columns;
    parts->parts = choice->count ? choice->count : 1;
    if (parts->parts > 1)
        parts->sums = gpu_work_take(issue, (size_t)parts->parts * sums * sizeof *parts->sums);
    gpu_grid grid = {.x = ceil_div(rows, t->rows),
                     .y = ceil_div(p->weights.columns, t->columns) * parts->parts,
                     .threads = t->threads,
                     .shared = t->shared};
    gpu_emit(issue, choice->kernel, grid, arguments, bytes);
}

void gemm_mma_emit(gpu_issue *issue, const gemm_numbers *n, int rows, const gpu_choice *choice,
                   gpu_linear_parts *parts, const void *arguments, size_t bytes) {
    const int quarters = parts->linear.capacity * (parts->linear.weights.columns / 4);
    const gpu_grid join = {.x = ceil_div(quarters, JOIN_THREADS), .y = 1, .threads = JOIN_THREADS};
    emit_tiles(issue, n, rows, choice, parts, arguments, bytes);
    if (parts->parts > 1) gpu_emit(issue, n->join, join, arguments, bytes);
}

/* Numbers between products as bf16 + bf16, over W twice; few rows have kernels of their own for that. */
static void gemm_mma_list_chain(const gpu_task *task, gpu_choices *to) {
    if (task->chain.bf16 && task->rows > FEW_ROWS && task->chain.k % GPU_ATOM_K == 0)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_GEMM_MMA, .kernel = SMALL, .split = 1});
}

/* Rows a block of the norm: one, as long as blocks of more rows would not give each multiprocessor enough.
 * Others were never more than 2 % of a product quicker. */
static int usual_norm(const gpu_device *device, const gpu_task *task) {
    if (!task->product.norm) return 0;
    return task->rows < 4 * GPU_NORM_ROWS * gpu_multiprocessors(device) ? 1 : GPU_NORM_ROWS;
}

static void gemm_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    const gemm_numbers bf16 = bf16_of(device);
    if (task->kind == GPU_PRODUCT_CHAIN) gemm_mma_list_chain(task, to);
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(p)) return;
    gemm_usual usual = gemm_mma_usual(device, &bf16, task->rows, p);
    int norm = usual_norm(device, task);
    if (norm || !cuda_scattered(p))
        gemm_mma_add(device, &bf16, task, usual, (gpu_choice){.rank = RANK_GEMM_MMA, .norm = norm}, to);
}

static void gemm_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gemm_numbers bf16 = bf16_of(gpu_device_of(issue));
    gpu_linear_parts a = {.linear = task->product};
    gemm_mma_emit(issue, &bf16, task->rows, choice, &a, &a, sizeof a);
}

/* ---- a residual in parts, and the product that norms what it makes ----------------------------------- */

enum { MOST_NORMED = 2048 };

/* The join of a's parts can norm its rows for b. */
static int join_norms(const gpu_linear *a, const gpu_linear *b) {
    const gpu_epilogue *e = &a->epilogue;
    return e->out == b->x && e->n == b->ldx && e->n % 8 == 0 && e->n <= MOST_NORMED && a->count == b->count &&
           !cuda_scattered(b);
}

/* Where the first runs here and in parts, as it would alone, and the second behind a norm: the norm has no
 * launch of its own. Note: where kernels start early it has a quicker one, on all multiprocessors. */
static int gemm_mma_take(gpu_issue *issue, const op *ops, int count) {
    const gemm_numbers numbers = bf16_of(gpu_device_of(issue));
    gpu_choice first, second;
    if (gpu_facts_of(gpu_device_of(issue))->overlap || !gpu_is_pair(ops, count)) return 0;
    gpu_task a = gpu_product_of(issue, &ops[0]), b = gpu_product_of(issue, &ops[1]);
    if (!join_norms(&a.product, &b.product) || !gpu_choice_of(issue, &ops[0], &a, &first) ||
        !gpu_choice_of(issue, &ops[1], &b, &second) || first.family != gpu_family_of(issue) ||
        !first.count || !second.norm)
        return 0;
    const int n = a.product.epilogue.n, threads = 32 * ceil_div(n, 8 * 32);
    void *normed = gpu_work_take(issue, (size_t)a.rows * (size_t)n * sizeof(bf16));
    const size_t mark = gpu_work_mark(issue);
    gpu_join_norm join = {{.linear = a.product}, gpu_norm_of(&b.product, normed)};
    gpu_take(issue, 1);
    emit_tiles(issue, &numbers, a.rows, &first, &join.parts, &join.parts, sizeof join.parts);
    gpu_emit(issue, JOIN_NORM, (gpu_grid){.x = a.rows, .y = 1, .threads = threads}, &join, sizeof join);
    gpu_work_back(issue, mark);
    gpu_take_next(issue);
    gpu_launch_normed(issue, &b, &second, normed);
    return 2;
}

const gpu_family gpu_family_gemm_mma = {
    .name = "gemm_mma",
    GPU_KERNELS(tiles),
    .list = gemm_mma_list,
    .launch = gemm_mma_launch,
    .take = gemm_mma_take,
};
