/* simt.cu: anything on any chip, without tensor cores; norms, gathers, and products of few rows of any
 * type. */
#include "backend/gpu/cuda/vendor.h"
#include "ops/limits.h"

enum {
    NORM_ROWS_ANY,
    NORM_ROWS_BF16,
    EMBED_TEXT,
    PATCHES,
    LINEAR_SIMT,
    LINEAR_ROWS,
    LINEAR_SHORT,
    ATTENTION_IMAGE,
    ATTENTION_CACHE,
};

static const gpu_kernel kernels[] = {
    [NORM_ROWS_ANY] = {"norm_rows", 0, 0},
    [NORM_ROWS_BF16] = {"norm_rows_bf16", 0, 0},
    [EMBED_TEXT] = {"embed_text", 0, 0},
    [PATCHES] = {"patches", 0, 0},
    [LINEAR_SIMT] = {"linear_simt", 0, 0},
    [LINEAR_ROWS] = {"linear_rows", 1, 0},
    [LINEAR_SHORT] = {"linear_short", 0, 0},
    [ATTENTION_IMAGE] = {"attention_simt_image", 1, 0},
    [ATTENTION_CACHE] = {"attention_simt_cache", 1, 0},
};

/* ---- products --------------------------------------------------------------------------------------- */

enum { SHORT_INPUTS = 32 };

/* linear_rows keeps 16 rows of x. */
static size_t rows_shared(const gpu_linear *p) {
    return 16 * (size_t)((p->weights.k + 3) & ~3) * sizeof(float);
}

static int short_legal(const gpu_linear *p) {
    return p->x_type == GPU_X_F32 && !p->norm && p->epilogue.kind == GPU_EPILOGUE_STORE &&
           p->weights.k % 4 == 0 && p->weights.k <= SHORT_INPUTS;
}

static void simt_list_product(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    int few = task->rows <= FEW_ROWS && p->x_type != GPU_X_PIXELS;
    if (p->k_blocks != p->weights.blocks || !cuda_plain_weights(p))
        return; /* x in two parts: tensor cores only */
    if (few && rows_shared(p) <= gpu_shared_bytes(device))
        gpu_choices_add(to, (gpu_choice){.rank = RANK_ROWS, .kernel = LINEAR_ROWS});
    if (few && short_legal(p))
        gpu_choices_add(to, (gpu_choice){.rank = RANK_MADE_FOR_IT, .kernel = LINEAR_SHORT});
    for (int i = 0; i < gpu_norms_first(p); i++) {
        int norm = gpu_norm_first(p, i);
        gpu_choices_add(
            to, (gpu_choice){.rank = gpu_usual(norm, RANK_SIMT), .kernel = LINEAR_SIMT, .norm = norm});
    }
}

static void launch_product(gpu_issue *issue, const gpu_task *task, int kernel) {
    const gpu_linear *p = &task->product;
    int columns = p->weights.columns;
    gpu_grid grid = {.x = ceil_div(task->rows, 64), .y = ceil_div(columns, 64), .threads = 256};
    if (kernel == LINEAR_ROWS)
        grid = (gpu_grid){
            .x = columns / GPU_UNIT, .y = ceil_div(task->rows, 16), .threads = 256, .shared = rows_shared(p)};
    if (kernel == LINEAR_SHORT)
        grid = (gpu_grid){.x = ceil_div(columns, 64), .y = ceil_div(task->rows, 4), .threads = 128};
    gpu_emit(issue, kernel, grid, p, sizeof *p);
}

/* ---- attention -------------------------------------------------------------------------------------- */

/* What attention_simt_cache keeps of a row's scores in shared memory; every device has 48 KB a block. */
_Static_assert((LIMIT_KEYS + 31) / 32 * 32 * sizeof(float) <= 48 << 10, "the scores of the longest row fit");

static void launch_cache_attention(gpu_issue *issue, gpu_task *task) {
    gpu_cache_attention *p = &task->cache_attention;
    p->early = 0;
    gpu_grid grid = {
        .x = task->rows, .y = p->heads, .threads = 128, .shared = (size_t)p->capacity * sizeof(float)};
    gpu_emit(issue, ATTENTION_CACHE, grid, p, sizeof *p);
}

static void launch_image_attention(gpu_issue *issue, const gpu_task *task) {
    const gpu_image_attention *p = &task->image_attention;
    gpu_grid grid = {
        .x = task->rows, .y = p->heads, .threads = 128, .shared = OPENPI_IMAGE_TOKENS * sizeof(float)};
    gpu_emit(issue, ATTENTION_IMAGE, grid, p, sizeof *p);
}

/* ---- norms ------------------------------------------------------------------------------------------ */

static void launch_norm(gpu_issue *issue, const gpu_task *task) {
    const gpu_norm *p = &task->norm;
    int quick = !p->f32 && p->k % 8 == 0 && p->k <= 2048, warps = quick ? ceil_div(p->k, 8 * 32) : 1;
    gpu_grid grid = {
        .x = ceil_div(task->rows, task->rows_a_block), .y = 1, .threads = 32 * warps * task->rows_a_block};
    gpu_emit(issue, quick ? NORM_ROWS_BF16 : NORM_ROWS_ANY, grid, p, sizeof *p);
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static void simt_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    gpu_choice choice = {.rank = RANK_SIMT};
    switch (task->kind) {
    case GPU_PRODUCT: simt_list_product(device, task, to); return;
    case GPU_IMAGE_ATTENTION:
        choice.rank = RANK_IMAGE_SIMT;
        choice.kernel = ATTENTION_IMAGE;
        break;
    case GPU_CACHE_ATTENTION:
        choice.rank = RANK_CACHE_SIMT;
        choice.kernel = ATTENTION_CACHE;
        break;
    case GPU_PRODUCT_CHAIN:
        choice.rank = RANK_ROWS;
        choice.kernel = LINEAR_ROWS;
        break;
    case GPU_NORM:
        if (task->norm.known.times) return;
        choice.kernel = NORM_ROWS_ANY;
        break;
    case GPU_EMBED_TEXT: choice.kernel = EMBED_TEXT; break;
    case GPU_PATCHES: choice.kernel = PATCHES; break;
    default: return;
    }
    gpu_choices_add(to, choice);
}

static void simt_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    switch (task->kind) {
    case GPU_PRODUCT: launch_product(issue, task, choice->kernel); return;
    case GPU_IMAGE_ATTENTION: launch_image_attention(issue, task); return;
    case GPU_CACHE_ATTENTION: launch_cache_attention(issue, task); return;
    case GPU_NORM: launch_norm(issue, task); return;
    case GPU_EMBED_TEXT:
        gpu_emit(issue, EMBED_TEXT, (gpu_grid){.x = task->rows, .y = 1, .threads = 256}, &task->embed_text,
                 sizeof task->embed_text);
        return;
    case GPU_PATCHES:
        gpu_emit(issue, PATCHES, (gpu_grid){.x = task->rows, .y = 1, .threads = 128}, &task->patches,
                 sizeof task->patches);
        return;
    default: return;
    }
}

const gpu_family gpu_family_simt = {
    .name = "simt", GPU_KERNELS(kernels), .list = simt_list, .launch = simt_launch};
