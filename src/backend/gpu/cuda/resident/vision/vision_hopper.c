/* vision_hopper.cu: the layers of the vision tower as one kernel. Can the device run it, with what arguments,
 * its launch.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include "backend/gpu/cuda/resident/vision/vision.h"

#include <string.h>

#include "backend/gpu/cuda/vendor.h"
#include "backend/gpu/cuda/resident/vision/vision_layers.h"

enum { LAYERS, FOLD };
static const gpu_kernel kernels[] = {[LAYERS] = {"resident_vision", 1, 0}, [FOLD] = {"fold_norm", 0, 0}};

enum { MOST_ROWS = VISION_IMAGES * IMAGE_KEYS, MOST_ARGUMENTS = 32764 };
_Static_assert(VISION_IMAGE_BYTES % 128 == 0, "whole lines");
_Static_assert(sizeof(gpu_vision) <= MOST_ARGUMENTS, "a kernel's arguments are no more");

/* A block a multiprocessor. */
static gpu_grid grid_of(const gpu_device *device) {
    return (gpu_grid){.x = gpu_multiprocessors(device),
                      .y = 1,
                      .threads = VISION_THREADS,
                      .shared = VISION_SHARED,
                      .together = 1};
}

static size_t hidden_at(const gpu_device *device) {
    return VISION_SUMS_AT + (size_t)gpu_multiprocessors(device) * VISION_SUMS;
}

/* ---- what the family keeps on a device --------------------------------------------------------------- */

static int open_state(gpu_device *device, int family, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const gpu_grid grid = grid_of(device);
    if (grid.x < VISION_IMAGES) return 0;
    const size_t bytes = hidden_at(device) + VISION_HIDDEN_BYTES;
    const int code = cuda_open_resident(device, family, LAYERS, &grid, bytes, state);
    if (code || !*state) return code;
    return driver->fill(driver, (gpu_address)(uintptr_t)*state, 0, VISION_SUMS_AT, gpu_stream(device));
}

/* ---- what is legal ---------------------------------------------------------------------------------- */

static int is_matrix(const matrix *m, int n, int k) {
    return !m->raw && m->type == WEIGHT_BF16 && m->form == MATRIX_PLAIN && m->n == n && m->k == k;
}

static int is_tower(const block_weights *tower) {
    if (tower->kind != BLOCK_VISION_LAYERS || tower->type != DTYPE_BF16) return 0;
    const op_weights *ops = tower->layer->ops;
    return is_matrix(&ops[LAYER_QKV].weight, 3 * VISION_WIDTH, VISION_WIDTH) &&
           is_matrix(&ops[LAYER_OUT].weight, VISION_WIDTH, VISION_WIDTH) &&
           is_matrix(&ops[LAYER_UP].weight, VISION_HIDDEN, VISION_WIDTH) &&
           is_matrix(&ops[LAYER_DOWN].weight, VISION_WIDTH, VISION_HIDDEN);
}

int vision_layers_of(const op_block *block) {
    if (!is_tower(block->weights)) return 0;
    const op_image_attention *attention = &block->ops[LAYER_ATTENTION].image_attention;
    const int fits = block->samples <= VISION_IMAGES && attention->heads == VISION_HEADS &&
                     attention->head_dim == IMAGE_HEAD;
    return fits ? least(block->layers, VISION_LAYERS) : 0;
}

/* ---- what is prepared: norms, folded into what comes after the products ------------------------------- */

/* A layer's floats: sums and bias' of qkv, then of fc1 (gpu_vision_fold). Whole lines. */
enum {
    FOLDS_QKV = 0,
    FOLDS_FC1 = 2 * 3 * VISION_WIDTH,
    FOLDS = (FOLDS_FC1 + 2 * VISION_HIDDEN + 63) / 64 * 64
};

static void vision_fold(gpu_issue *issue, const op_weights *op, float *out) {
    const matrix *m = &op->weight;
    const gpu_vision_fold p = {.weight = m->data,
                               .norm_weight = op->norm.weight,
                               .norm_bias = op->norm.bias,
                               .bias = op->bias,
                               .out = out,
                               .n = m->n,
                               .k = m->k};
    gpu_emit(issue, FOLD, (gpu_grid){.x = ceil_div(m->n, 8), .y = 1, .threads = 256}, &p, sizeof p);
}

static size_t vision_prepare(gpu_issue *issue, const block_weights *block, void *place) {
    if (!is_tower(block)) return 0;
    for (int i = 0; i < block->layers && gpu_emitting(issue); i++) {
        float *folds = (float *)place + (size_t)i * FOLDS;
        vision_fold(issue, &block->layer[i].ops[LAYER_QKV], folds + FOLDS_QKV);
        vision_fold(issue, &block->layer[i].ops[LAYER_UP], folds + FOLDS_FC1);
    }
    return (size_t)block->layers * FOLDS * sizeof(float);
}

/* ---- arguments -------------------------------------------------------------------------------------- */

/* Rows of k numbers. */
static void map_rows(gpu_issue *issue, gpu_tensor_map *map, const void *base, int k, int pitch,
                     int capacity) {
    const uint64_t dims[2] = {(uint64_t)k, (uint64_t)capacity}, strides[1] = {(uint64_t)pitch * sizeof(bf16)};
    static const unsigned box[2] = {GPU_ATOM_K, IMAGE_ROWS};
    cuda_make_map(issue, map, 1, 2, base, dims, strides, box);
}

/* Where so many columns are stored. */
static void map_store(gpu_issue *issue, gpu_tensor_map *map, const void *base, int columns, int pitch,
                      int capacity, const unsigned box[2]) {
    const uint64_t dims[2] = {(uint64_t)columns, (uint64_t)capacity},
                   strides[1] = {(uint64_t)pitch * sizeof(bf16)};
    const unsigned whole[2] = {box[0] * 8, box[1]};
    cuda_make_map(issue, map, 0, 2, base, dims, strides, whole);
}

static void map_stores(gpu_issue *issue, gpu_vision *p, int capacity) {
    static const unsigned boxes[VISION_IMAGES][VISION_STORES][2] = VISION_STORE_BOXES;
    const struct {
        const void *to;
        int columns, pitch;
    } list[VISION_STORES] = {[VISION_STORE_QKV] = {p->to_qkv, 3 * VISION_WIDTH, 3 * VISION_WIDTH},
                             [VISION_STORE_ATTENDED] = {p->to_attended, VISION_WIDTH, VISION_WIDTH},
                             [VISION_STORE_OUT] = {p->to_scaled, VISION_WIDTH, VISION_WIDTH},
                             [VISION_STORE_HIDDEN] = {p->to_hidden, VISION_HIDDEN, VISION_HIDDEN_PITCH},
                             [VISION_STORE_FC2] = {p->to_scaled, VISION_WIDTH, VISION_WIDTH},
                             [VISION_STORE_X] = {p->x, VISION_WIDTH, VISION_WIDTH}};
    for (int images = 0; images < VISION_IMAGES; images++)
        for (int i = 0; i < VISION_STORES; i++)
            map_store(issue, &p->stores[images][i], list[i].to, list[i].columns, list[i].pitch, capacity,
                      boxes[images][i]);
}

static void fill_layer(gpu_issue *issue, vision_layer_weights *to, const op *ops, const float *prepared) {
    static const unsigned boxes[VISION_MATRICES][VISION_MAPS] = VISION_BOXES;
    const op_norm_linear *qkv = &ops[LAYER_QKV].norm_linear, *fc1 = &ops[LAYER_UP].norm_linear;
    const op_linear_residual *out = &ops[LAYER_OUT].linear_residual,
                             *fc2 = &ops[LAYER_DOWN].linear_residual;
    const matrix *matrices[VISION_MATRICES] = {&qkv->weight, &out->weight, &fc1->weight, &fc2->weight};
    const float *folds = prepared + (size_t)ops->layer * FOLDS, *sums_qkv = folds + FOLDS_QKV,
                *sums_fc1 = folds + FOLDS_FC1;
    const float *biases[VISION_MATRICES] = {sums_qkv + qkv->weight.n, out->bias, sums_fc1 + fc1->weight.n,
                                            fc2->bias};
    for (int i = 0; i < VISION_MATRICES; i++) {
        for (int j = 0; j < VISION_MAPS; j++)
            cuda_map_weights(issue, &to->maps[VISION_MAP_AT(i, j)], gpu_weights_of(matrices[i]), boxes[i][j]);
        to->bias[i] = biases[i];
    }
    to->sums[0] = sums_qkv;
    to->sums[1] = sums_fc1;
    to->norm_weight[0] = qkv->norm.weight;
    to->norm_weight[1] = fc1->norm.weight;
}

static void vision_fill(gpu_issue *issue, gpu_vision *p, const op_block *block, int depth,
                        const float *prepared) {
    const op *ops = block->ops;
    const op_norm_linear *qkv = &ops[LAYER_QKV].norm_linear;
    const op_image_attention *attention = &ops[LAYER_ATTENTION].image_attention;
    const int capacity = qkv->rows.capacity;
    const gpu_image_attention qkv_rows = {.qkv = qkv->out,
                                          .heads = VISION_HEADS,
                                          .head_dim = IMAGE_HEAD,
                                          .stride = 3 * VISION_WIDTH,
                                          .next = VISION_WIDTH};
    memset(p, 0, sizeof *p);
    p->count = qkv->rows.count;
    p->x = ops[LAYER_OUT].linear_residual.x;
    p->to_scaled = gpu_work_take(issue, (size_t)capacity * VISION_WIDTH * sizeof(bf16));
    p->to_qkv = qkv->out;
    p->to_attended = attention->out;
    p->images = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    p->sums = (char *)p->images + VISION_SUMS_AT;
    p->to_hidden = (char *)p->images + hidden_at(gpu_device_of(issue));
    p->depth = depth;
    p->eps = qkv->norm.eps;
    p->scale = attention->scale;
    map_rows(issue, &p->scaled, p->to_scaled, VISION_WIDTH, VISION_WIDTH, capacity);
    map_rows(issue, &p->attended, p->to_attended, VISION_WIDTH, VISION_WIDTH, capacity);
    map_rows(issue, &p->hidden, p->to_hidden, VISION_HIDDEN, VISION_HIDDEN_PITCH, capacity);
    cuda_map_image_heads(issue, &p->rows_main, &qkv_rows, capacity, IMAGE_MAIN, IMAGE_ROWS);
    cuda_map_image_heads(issue, &p->rows_rest, &qkv_rows, capacity, IMAGE_REST, IMAGE_ROWS);
    cuda_map_image_heads(issue, &p->keys_main, &qkv_rows, capacity, IMAGE_MAIN, IMAGE_KEYS);
    cuda_map_image_heads(issue, &p->keys_rest, &qkv_rows, capacity, IMAGE_REST, IMAGE_KEYS);
    map_stores(issue, p, capacity);
    for (int i = 0; i < depth; i++) fill_layer(issue, &p->layers[i], block_layer(block, i), prepared);
}

static int vision_take(gpu_issue *issue, const op_block *block) {
    gpu_vision p;
    const int depth = vision_layers_of(block);
    const float *prepared = gpu_prepared(issue, block);
    if (!depth || !prepared) return 0;
    gpu_take(issue, depth * LAYER_OPS);
    vision_fill(issue, &p, block, depth, prepared);
    gpu_emit(issue, LAYERS, grid_of(gpu_device_of(issue)), &p, sizeof p);
    return depth * LAYER_OPS;
}

/* ---- the family ------------------------------------------------------------------------------------- */

const gpu_family gpu_family_vision_hopper = {
    .name = "vision_hopper",
    GPU_KERNELS(kernels),
    .take_block = vision_take,
    .take_switches = 1u << SWITCH_PERSISTENT_VISION,
    .whole_device = 1,
    .take_bytes = (size_t)MOST_ROWS * VISION_WIDTH * sizeof(bf16),
    .prepare = vision_prepare,
    .open = open_state,
    .close = cuda_close_resident,
};
