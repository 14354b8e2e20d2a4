/* resident_mma.cu: the layers of a denoise step as one kernel, on any tensor core since sm_80. Can the device
 * run it, which steps does it take, with what arguments, its launch.
 *
 * It takes the layers of a step of the full model on cards whose kernels cannot start early, and wherever a
 * tuning table names one of its kernels for the step's first product. Where that product runs alone, the
 * kernel computes no more than that.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet. */
#include "backend/gpu/cuda/resident/portable/resident_mma.h"

#include <string.h>

#include "backend/gpu/cuda/vendor.h"

typedef struct ring {
    gpu_kernel kernel;
    int slots;                             /* in the ring of each warp                                      */
} ring;

/* For blocks of 99, 163 and 227 KB. */
static const ring rings[] = {
    {{"resident_mma_6", 1, 0}, 6}, {{"resident_mma_14", 1, 0}, 14}, {{"resident_mma_22", 1, 0}, 22}};
enum {
    RINGS = sizeof rings / sizeof *rings,
    RESIDENT_MMA_LEAST = 58,               /* multiprocessors from which on it was measured to win          */
    PARTS_BYTES = RESIDENT_MMA_TILES * RESIDENT_MMA_QUERIES * RESIDENT_MMA_PART * (int)sizeof(float),
    X_BYTES = RESIDENT_MMA_ROWS * RESIDENT_MMA_WIDTH * (int)sizeof(bf16),
    ATTENDED_BYTES = RESIDENT_MMA_ROWS * RESIDENT_MMA_ATTENDED * (int)sizeof(bf16),
    HIDDEN_BYTES = RESIDENT_MMA_ROWS * RESIDENT_MMA_HIDDEN * (int)sizeof(bf16)
};

static size_t shared_of(const ring *r) {
    return (size_t)r->slots * RESIDENT_MMA_SLOT + RESIDENT_MMA_BESIDE;
}

/* ---- what the family keeps on a device --------------------------------------------------------------- */

/* Not on Hopper's path, which has kernels of its own. */
static int resident_mma_open(gpu_device *device, int family, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    gpu_address memory = 0;
    int code;
    if (strcmp(gpu_path(device), "portable")) return 0;
    for (int i = 0; i < RINGS && shared_of(&rings[i]) <= gpu_shared_bytes(device); i++) {
        int blocks;
        code = cuda_most_blocks(device, family, i, RESIDENT_MMA_THREADS, shared_of(&rings[i]), &blocks);
        if (code || !blocks) return code;
    }
    if (shared_of(&rings[0]) > gpu_shared_bytes(device)) return 0;
    if ((code = driver->allocate(driver, &memory, sizeof(uint64_t)))) return code;
    *state = (void *)(uintptr_t)memory;
    return driver->fill(driver, memory, 0, sizeof(uint64_t), gpu_stream(device));
}

static void resident_mma_close(gpu_device *device, void *state) {
    if (state) cuda_close_resident(device, state);
}

/* ---- what is legal ---------------------------------------------------------------------------------- */

/* The first product of a layer. */
static int product_fits(const gpu_linear *p, int rows) {
    const gpu_epilogue *e = &p->epilogue;
    return e->kind == GPU_EPILOGUE_QKV && cuda_tensor_legal(p) && rows <= RESIDENT_MMA_ROWS &&
           e->head_dim == RESIDENT_MMA_HEAD && rows * e->heads <= RESIDENT_MMA_QUERIES && e->heads > 0 &&
           e->heads * RESIDENT_MMA_HEAD <= RESIDENT_MMA_ATTENDED && p->ldx <= RESIDENT_MMA_WIDTH &&
           p->norm == GPU_NORM_RMS && !cuda_scattered(p) && p->k_blocks == p->weights.blocks;
}

static int matrix_fits(const matrix *m, matrix_form form, int most_k) {
    return !m->raw && m->type == WEIGHT_BF16 && m->input == INPUT_ACT && m->form == form && m->k % 8 == 0 &&
           m->k <= most_k;
}

static int block_fits(const gpu_issue *issue, const op_block *block) {
    const op *ops = block->ops;
    if (block->kind != BLOCK_EXPERT_STEPS || ops->type != DTYPE_BF16 || block->samples != 1 ||
        block->layers > RESIDENT_MMA_LAYERS)
        return 0;
    const op_norm_qkv *q = &ops[LAYER_QKV].norm_qkv;
    const gpu_task first = gpu_product_of(issue, &ops[LAYER_QKV]);
    return product_fits(&first.product, block->rows) &&
           q->cache.capacity <= RESIDENT_MMA_TILES * KEY_TILE &&
           matrix_fits(&q->weight, MATRIX_QKV, RESIDENT_MMA_WIDTH) &&
           matrix_fits(&ops[LAYER_OUT].linear_residual.weight, MATRIX_PLAIN, RESIDENT_MMA_ATTENDED) &&
           matrix_fits(&ops[LAYER_UP].norm_linear.weight, MATRIX_GATED, RESIDENT_MMA_WIDTH) &&
           matrix_fits(&ops[LAYER_DOWN].linear_residual.weight, MATRIX_PLAIN, RESIDENT_MMA_HIDDEN);
}

/* ---- arguments -------------------------------------------------------------------------------------- */

/* Paired columns are two groups. */
static resident_mma_size size_of(const gpu_weights *w, int groups) {
    return (resident_mma_size){w->columns / (8 * groups), groups, w->blocks};
}

/* What the first product tells of a step. It takes the memory of a whole step also where it runs alone: so
 * that is measured. */
static void fill_product(gpu_issue *issue, gpu_resident_mma *p, const gpu_linear *l) {
    const gpu_epilogue *e = &l->epilogue;
    memset(p, 0, sizeof *p);
    p->depth = p->stop_early = 1;
    p->layers[0].weights[RESIDENT_MMA_QKV] = l->weights.data;
    p->layers[0].scale_in = l->norm_weight, p->layers[0].shift_in = l->norm_bias;
    p->width = l->ldx;
    p->heads = e->heads;
    p->sizes[RESIDENT_MMA_QKV] = size_of(&l->weights, 2);
    p->count = l->count;
    p->sample = e->sample, p->position = e->position;
    p->known = e->known;
    p->rope = e->rope;
    p->x = (void *)(uintptr_t)l->x;
    p->q = e->out;
    p->k = e->k, p->v = e->v;
    p->capacity = e->capacity;
    p->eps = l->eps;
    p->arrivals = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    p->tiles = ceil_div(e->capacity, KEY_TILE);
    p->parts = gpu_work_take(issue, (size_t)p->tiles * RESIDENT_MMA_QUERIES * RESIDENT_MMA_PART *
                                        sizeof *p->parts);
    p->x_pieces = gpu_work_take(issue, X_BYTES);
    p->attended = gpu_work_take(issue, ATTENDED_BYTES);
    p->hidden_rows = gpu_work_take(issue, HIDDEN_BYTES);
}

static void fill_mma_layer(resident_mma_layer *to, const op *ops) {
    const norm *in = &ops[LAYER_QKV].norm_qkv.norm, *post = &ops[LAYER_UP].norm_linear.norm;
    const op_linear_residual *o = &ops[LAYER_OUT].linear_residual, *down = &ops[LAYER_DOWN].linear_residual;
    to->weights[RESIDENT_MMA_QKV] = ops[LAYER_QKV].norm_qkv.weight.data;
    to->weights[RESIDENT_MMA_O] = o->weight.data;
    to->weights[RESIDENT_MMA_GATE_UP] = ops[LAYER_UP].norm_linear.weight.data;
    to->weights[RESIDENT_MMA_DOWN] = down->weight.data;
    to->scale_in = in->weight, to->shift_in = in->bias, to->gate_in = o->gate;
    to->scale_post = post->weight, to->shift_post = post->bias, to->gate_post = down->gate;
}

static void fill_layers(gpu_issue *issue, gpu_resident_mma *p, const op_block *block) {
    const op *ops = block->ops;
    const op_cache_attention *a = &ops[LAYER_ATTENTION].cache_attention;
    const gpu_weights o = gpu_weights_of(&ops[LAYER_OUT].linear_residual.weight),
                      gate_up = gpu_weights_of(&ops[LAYER_UP].norm_linear.weight),
                      down = gpu_weights_of(&ops[LAYER_DOWN].linear_residual.weight);
    const gpu_task first = gpu_product_of(issue, &ops[LAYER_QKV]);
    fill_product(issue, p, &first.product);
    p->depth = block->layers;
    p->stop_early = 0;
    p->hidden = ops[LAYER_UP].norm_linear.weight.n / 2;
    p->sizes[RESIDENT_MMA_O] = size_of(&o, 1);
    p->sizes[RESIDENT_MMA_GATE_UP] = size_of(&gate_up, 2);
    p->sizes[RESIDENT_MMA_DOWN] = size_of(&down, 1);
    p->keys = a->rows.keys;
    p->scale = a->scale;
    p->cache_bytes = (int64_t)block->cache_bytes;
    for (int i = 0; i < block->layers; i++) fill_mma_layer(&p->layers[i], block_layer(block, i));
}

static void emit(gpu_issue *issue, int kernel, const gpu_resident_mma *p) {
    const gpu_grid grid = {.x = gpu_multiprocessors(gpu_device_of(issue)),
                           .y = 1,
                           .threads = RESIDENT_MMA_THREADS,
                           .shared = shared_of(&rings[kernel]),
                           .together = 1};
    gpu_emit(issue, kernel, grid, p, sizeof *p);
}

/* ---- the family ------------------------------------------------------------------------------------- */

/* A product alone is never better off here: a table's choice, which takes a step with it. */
static void resident_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind != GPU_PRODUCT || !gpu_state(device, to->family) ||
        !product_fits(&task->product, task->rows))
        return;
    for (int i = 0; i < RINGS && shared_of(&rings[i]) <= gpu_shared_bytes(device); i++)
        gpu_choices_add(to, (gpu_choice){.rank = GPU_RANK_NEVER, .kernel = i});
}

static void resident_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_resident_mma p;
    fill_product(issue, &p, &task->product);
    emit(issue, choice->kernel, &p);
}

/* The full model's steps, where every launch that goes saves its start. */
static int usual(const gpu_device *device, const gpu_linear *first) {
    return !gpu_facts_of(device)->overlap && gpu_multiprocessors(device) >= RESIDENT_MMA_LEAST &&
           first->ldx == RESIDENT_MMA_WIDTH &&
           first->epilogue.heads * RESIDENT_MMA_HEAD == RESIDENT_MMA_ATTENDED;
}

/* The ring of a table's choice, else the longest that fits; -1: the step is not this family's. Tables time
 * the first product alone, for which the heuristic never takes this family, so a choice of another family is
 * no word against it. */
static int ring_of(const gpu_issue *issue, const op *first) {
    const gpu_device *device = gpu_device_of(issue);
    const gpu_task task = gpu_product_of(issue, first);
    gpu_choice choice;
    int ring = RINGS - 1;
    if (gpu_choice_of(issue, first, &task, &choice) && choice.family == gpu_family_of(issue))
        return choice.kernel;
    if (!usual(device, &task.product)) return -1;
    while (shared_of(&rings[ring]) > gpu_shared_bytes(device)) ring--;
    return ring;
}

static int resident_mma_take(gpu_issue *issue, const op_block *block) {
    const int ops = block->layers * LAYER_OPS;
    gpu_resident_mma p;
    int ring;
    if (!block_fits(issue, block) || (ring = ring_of(issue, &block->ops[LAYER_QKV])) < 0) return 0;
    gpu_take(issue, ops);
    fill_layers(issue, &p, block);
    emit(issue, ring, &p);
    return ops;
}

const gpu_family gpu_family_resident_mma = {
    .name = "resident_mma",
    GPU_KERNELS(rings),
    .list = resident_mma_list,
    .launch = resident_mma_launch,
    .take_block = resident_mma_take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .take_bytes = PARTS_BYTES + X_BYTES + ATTENDED_BYTES + HIDDEN_BYTES,
    .whole_device = 1,
    .open = resident_mma_open,
    .close = resident_mma_close,
};
