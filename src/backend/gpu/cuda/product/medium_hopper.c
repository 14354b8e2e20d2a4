/* medium_hopper.cu: products of 17 to 64 rows on Hopper, the denoise loop's at long horizons: all rows and 64
 * columns a cluster, k in `parts`. A norm inside needs the sums of squares of x. A kernel of its own makes
 * them; where a residual comes before the norm, the two products are taken together and the residual leaves
 * them: the same sums, bit for bit. */
#include <string.h>

#include "backend/gpu/cuda/product/medium.h"
#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int kind, parts;
    int usual;                             /* from so many rows on the heuristic's                          */
    int threads;
} tile;

enum {
    LEAST_ROWS = 17,
    ROWS = 64,
    COLUMNS = 64, GROUPS = COLUMNS / 8,
    MOST_BLOCKS = 16,                      /* of 64 k a block                                               */
    STAGES = 4,                            /* of x; of qkv also the most blocks                             */
    SUMS_BYTES = ROWS * COLUMNS * (int)sizeof(float),
    W_STAGES = 10,                         /* of the gated kernel: with more, down's blocks start late      */
    MOST_WIDTH = 1024,                     /* of a norm                                                     */
    NORM_FIRST_ROWS = 48,                  /* from here on gate and up are quicker after a norm of its own, */
    NORM_ROWS = 2,                         /* of so many rows a block: it ends sooner than with 4           */
};

enum { QKV, RESIDUAL, GATED, SQUARES };

static const tile tiles[] = {
    [QKV] = {{"medium_hopper_qkv", 1, 0}, GPU_EPILOGUE_QKV, 4, 48, 256},
    [RESIDUAL] = {{"medium_hopper_residual", 1, 0}, GPU_EPILOGUE_RESIDUAL, 8, LEAST_ROWS, 256},
    [GATED] = {{"medium_hopper_gated", 1, 0}, GPU_EPILOGUE_GATED, 1, LEAST_ROWS, 192},
    [SQUARES] = {{"medium_hopper_squares", 1, 0}, -1, 0, 0, 128},
};

/* Bytes of 64 k of x. */
static int slot_of(int rows) { return ceil_div(rows, 8) * 8 * GPU_ATOM_K * (int)sizeof(bf16); }

static int gated_stages(const gpu_linear *p) { return least(p->k_blocks, W_STAGES); }

/* x and W, over which sums arrive; the gated kernel's rings and norm. Note: two kilobytes more of any of
 * these kernels cost up to 2 µs, where a multiprocessor then holds no block of the next kernel any more. */
static size_t medium_shared_of(const tile *t, const gpu_linear *p, int rows) {
    int blocks = p->k_blocks / t->parts, slot = slot_of(rows),
        w = GROUPS * (int)cuda_atom_of(p->weights.type).bytes;
    if (t->kind == GPU_EPILOGUE_GATED)
        return (size_t)(gated_stages(p) * w + least(blocks, GATED_X_BYTES / slot) * slot) +
               (p->norm ? (size_t)p->ldx * 2 * sizeof(float) : 0);
    int operands = least(blocks, STAGES) * slot + blocks * w;
    return (size_t)(operands > SUMS_BYTES ? operands : SUMS_BYTES);
}

static int most_blocks(const tile *t) { return t->kind == GPU_EPILOGUE_QKV ? STAGES : MOST_BLOCKS; }

static int norm_legal(const tile *t, const gpu_linear *p) {
    return p->norm == GPU_NORM_RMS && t->kind != GPU_EPILOGUE_RESIDUAL && !p->epilogue.known.rows &&
           p->ldx <= MOST_WIDTH;
}

static int medium_legal(const gpu_device *device, const tile *t, const gpu_linear *p, int rows) {
    const gpu_epilogue *e = &p->epilogue;
    if (e->kind != t->kind || e->f32 || e->x_t || e->add || e->split || e->to.map || e->to.group ||
        p->ldx % GPU_ATOM_K || cuda_scattered(p) || !cuda_tensor_legal(p))
        return 0;
    if (rows < LEAST_ROWS || rows > ROWS) return 0;
    if (p->k_blocks % t->parts || p->k_blocks / t->parts > most_blocks(t) ||
        p->weights.blocks != p->k_blocks || p->weights.columns % COLUMNS ||
        medium_shared_of(t, p, rows) > gpu_shared_bytes(device))
        return 0;
    if (p->norm && !norm_legal(t, p)) return 0;
    if (e->kind == GPU_EPILOGUE_GATED && e->bias) return 0;
    return e->kind == GPU_EPILOGUE_QKV ? e->head_dim % 16 == 0 : e->n % 8 == 0;
}

/* Gate and up are listed after a norm too, which may have known rows. */
static void list_norm_first(const gpu_device *device, const gpu_task *task, int usual, gpu_choices *to) {
    gpu_linear p = task->product;
    p.norm = GPU_NORM_NONE;
    p.from = (gpu_row_map){0};
    if (!medium_legal(device, &tiles[GATED], &p, task->rows)) return;
    for (int i = 0; i < gpu_norms_first(&task->product); i++) {
        int norm = gpu_norm_first(&task->product, i);
        int rank = usual && norm == NORM_ROWS ? RANK_MEDIUM_HOPPER : GPU_RANK_NEVER;
        gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = GATED, .norm = norm});
    }
}

static void medium_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(p)) return;
    for (int i = QKV; i <= GATED; i++) {
        int inside = medium_legal(device, &tiles[i], p, task->rows),
            after = i == GATED && p->norm && (!inside || task->rows >= NORM_FIRST_ROWS),
            usual = task->rows >= tiles[i].usual && !after;
        int rank = usual ? RANK_MEDIUM_HOPPER : GPU_RANK_NEVER;
        if (inside) gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = i});
        if (i == GATED && p->norm) list_norm_first(device, task, after, to);
    }
}

/* ---- launches --------------------------------------------------------------------------------------- */

static size_t squares_bytes(int rows, int width) {
    return (size_t)rows * (size_t)(width / GPU_UNIT) * sizeof(float);
}

static void medium_make_maps(gpu_issue *issue, gpu_hopper *h, const tile *t, int rows) {
    const gpu_linear *p = &h->linear;
    cuda_make_map(issue, &h->x, 1, 3, p->x,
                  (uint64_t[]){GPU_ATOM_K, (uint64_t)rows, (uint64_t)p->k_blocks},
                  (uint64_t[]){(uint64_t)p->ldx * sizeof(bf16), GPU_ATOM_K * sizeof(bf16)},
                  (unsigned[]){GPU_ATOM_K, (unsigned)ceil_div(rows, 8) * 8, 1});
    if (t->kind == GPU_EPILOGUE_GATED) cuda_map_weights(issue, &h->weights, p->weights, GROUPS);
}

/* `squares`: of x where there is a norm, of the outputs of a residual, or NULL. */
static void medium_emit(gpu_issue *issue, int kernel, const gpu_task *task, float *squares) {
    const tile *t = &tiles[kernel];
    const gpu_linear *p = &task->product;
    gpu_medium m;
    if (!gpu_emitting(issue)) return;
    memset(&m, 0, sizeof m);
    m.hopper.linear = *p;
    m.hopper.linear.stages = gated_stages(p);
    m.squares = squares;
    m.slot = slot_of(task->rows);
    if (kernel != SQUARES) medium_make_maps(issue, &m.hopper, t, task->rows);
    gpu_grid grid = {.x = kernel == SQUARES ? ceil_div(task->rows, t->threads / 32)
                                            : p->weights.columns / COLUMNS * t->parts,
                     .y = 1,
                     .threads = t->threads,
                     .shared = kernel == SQUARES ? 0 : medium_shared_of(t, p, task->rows),
                     .cluster = kernel == SQUARES ? 1 : t->parts};
    gpu_emit(issue, kernel, grid, &m, sizeof m);
}

static void medium_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    float *squares = NULL;
    if (task->product.norm) {
        squares = gpu_work_take(issue, squares_bytes(task->rows, task->product.ldx));
        medium_emit(issue, SQUARES, task, squares);
    }
    medium_emit(issue, choice->kernel, task, squares);
}

/* ---- a residual and the product that norms what it makes ----------------------------------------------- */

/* 1: of the denoise loop, and quicker together. */
static int is_pair(const op *ops, int count) {
    return gpu_is_pair(ops, count) && ops[0].stage == OPENPI_STAGE_DENOISE &&
           ops[1].stage == OPENPI_STAGE_DENOISE &&
           (ops[1].kind == OP_NORM_QKV || (ops[1].norm_linear.weight.form == MATRIX_GATED &&
                                           ops[0].linear_residual.rows.capacity < NORM_FIRST_ROWS));
}

/* Whichever kernels the two ops' choices name: these are of single ops, and a pair is quicker. */
static int medium_take(gpu_issue *issue, const op *ops, int count) {
    const gpu_device *device = gpu_device_of(issue);
    if (!is_pair(ops, count)) return 0;
    gpu_task a = gpu_product_of(issue, &ops[0]), b = gpu_product_of(issue, &ops[1]);
    int next = ops[1].kind == OP_NORM_QKV ? QKV : GATED, width = b.product.ldx;
    if (!b.product.norm || a.product.epilogue.n != width ||
        !medium_legal(device, &tiles[RESIDUAL], &a.product, a.rows) ||
        !medium_legal(device, &tiles[next], &b.product, b.rows))
        return 0;
    float *squares = gpu_work_take(issue, squares_bytes(a.rows, width));
    gpu_take(issue, 1);
    medium_emit(issue, RESIDUAL, &a, squares);
    gpu_take_next(issue);
    medium_emit(issue, next, &b, squares);
    return 2;
}

const gpu_family gpu_family_medium_hopper = {
    .name = "medium_hopper",
    GPU_KERNELS(tiles),
    .list = medium_list,
    .launch = medium_launch,
    .take = medium_take,
    .take_bytes = ROWS * (MOST_WIDTH / GPU_UNIT) * sizeof(float),
};
