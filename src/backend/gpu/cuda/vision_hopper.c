/* vision_hopper.cu: the layers of the vision tower as one kernel. Can the device run it, with what arguments,
 * its launch. Which ops it takes is in vision_layers.c.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include "backend/gpu/cuda/vision.h"

#include <string.h>

#include "backend/gpu/cuda/vendor.h"
#include "backend/gpu/cuda/vision_layers.h"

static const gpu_kernel kernels[] = {{"resident_vision", 1, 0}};

enum { MOST_ROWS = VISION_IMAGES * IMAGE_KEYS, MOST_ARGUMENTS = 32764 };
_Static_assert((int)VISION_PROGRESS_BYTES <= (int)VISION_SUMS_AT, "sums come after the counters");
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

/* ---- progress --------------------------------------------------------------------------------------- */

static int open_progress(gpu_device *device, int family, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const gpu_grid grid = grid_of(device);
    const gpu_launch launch = {.function = gpu_function(device, family, 0),
                               .grid = {(unsigned)grid.x, 1, 1},
                               .block = {VISION_THREADS, 1, 1},
                               .cluster = 1,
                               .shared_bytes = VISION_SHARED};
    int blocks = 0, code;
    gpu_address progress = 0;
    if (gpu_shared_bytes(device) < VISION_SHARED || grid.x < VISION_IMAGES) return 0;
    if ((code = cuda_most_clusters(driver, &launch, &blocks))) return code;
    if (blocks < grid.x) return 0;
    if ((code = driver->allocate(driver, &progress, hidden_at(device) + VISION_HIDDEN_BYTES)))
        return code;
    *state = (void *)(uintptr_t)progress;
    return driver->fill(driver, progress, 0, VISION_PROGRESS_BYTES, gpu_stream(device));
}

static void close_progress(gpu_device *device, void *state) {
    const gpu_driver *driver = gpu_driver_of(device);
    driver->release(driver, (gpu_address)(uintptr_t)state);
}

/* ---- arguments -------------------------------------------------------------------------------------- */

/* Rows of k numbers. */
static void map_rows(gpu_issue *issue, gpu_tensor_map *map, const void *base, int k, int pitch,
                     int capacity) {
    const uint64_t dims[2] = {(uint64_t)k, (uint64_t)capacity}, strides[1] = {(uint64_t)pitch * sizeof(bf16)};
    static const unsigned box[2] = {GPU_ATOM_K, IMAGE_ROWS};
    cuda_make_map(issue, map, 1, 2, base, dims, strides, box);
}

static void fill_layer(gpu_issue *issue, vision_layer_weights *to, const op *ops) {
    static const unsigned boxes[VISION_MATRICES][VISION_MAPS] = VISION_BOXES;
    const op_norm_linear *qkv = &ops[VISION_QKV].norm_linear, *fc1 = &ops[VISION_FC1].norm_linear;
    const op_linear_residual *out = &ops[VISION_OUT].linear_residual,
                             *fc2 = &ops[VISION_FC2].linear_residual;
    const matrix *matrices[VISION_MATRICES] = {&qkv->weight, &out->weight, &fc1->weight, &fc2->weight};
    const float *biases[VISION_MATRICES] = {qkv->bias, out->bias, fc1->bias, fc2->bias};
    for (int i = 0; i < VISION_MATRICES; i++) {
        for (int j = 0; j < VISION_MAPS; j++)
            cuda_map_weights(issue, &to->maps[i][j], gpu_weights_of(matrices[i]), boxes[i][j]);
        to->bias[i] = biases[i];
    }
    to->norm[0] = (vision_norm){qkv->norm.weight, qkv->norm.bias};
    to->norm[1] = (vision_norm){fc1->norm.weight, fc1->norm.bias};
}

static void fill(gpu_issue *issue, gpu_vision *p, const op *ops, int depth) {
    const op_norm_linear *qkv = &ops[VISION_QKV].norm_linear;
    const op_image_attention *attention = &ops[VISION_ATTENTION].image_attention;
    const int capacity = qkv->rows.capacity;
    const gpu_image_attention qkv_rows = {.qkv = qkv->out,
                                          .heads = VISION_HEADS,
                                          .head_dim = IMAGE_HEAD,
                                          .stride = 3 * VISION_WIDTH,
                                          .next = VISION_WIDTH};
    memset(p, 0, sizeof *p);
    p->count = qkv->rows.count;
    p->x = ops[VISION_OUT].linear_residual.x;
    p->to_normed = gpu_work_take(issue, (size_t)capacity * VISION_WIDTH * sizeof(bf16));
    p->to_qkv = qkv->out;
    p->to_attended = attention->out;
    p->progress = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    p->sums = (char *)p->progress + VISION_SUMS_AT;
    p->to_hidden = (char *)p->progress + hidden_at(gpu_device_of(issue));
    p->depth = depth;
    p->eps = qkv->norm.eps;
    p->scale = attention->scale;
    map_rows(issue, &p->normed, p->to_normed, VISION_WIDTH, VISION_WIDTH, capacity);
    map_rows(issue, &p->attended, p->to_attended, VISION_WIDTH, VISION_WIDTH, capacity);
    map_rows(issue, &p->hidden, p->to_hidden, VISION_HIDDEN, VISION_HIDDEN_PITCH, capacity);
    cuda_map_image_heads(issue, &p->heads_main, &qkv_rows, capacity, IMAGE_MAIN, IMAGE_ROWS);
    cuda_map_image_heads(issue, &p->heads_rest, &qkv_rows, capacity, IMAGE_REST, IMAGE_ROWS);
    for (int i = 0; i < depth; i++) fill_layer(issue, &p->layers[i], ops + i * VISION_OPS);
}

static int take(gpu_issue *issue, const op *ops, int count) {
    gpu_vision p;
    const int depth = vision_depth_of(ops, count);
    if (!depth) return 0;
    gpu_take(issue, depth * VISION_OPS);
    fill(issue, &p, ops, depth);
    gpu_emit(issue, 0, grid_of(gpu_device_of(issue)), &p, sizeof p);
    return depth * VISION_OPS;
}

/* ---- the family ------------------------------------------------------------------------------------- */

const gpu_family gpu_family_vision_hopper = {
    .name = "vision_hopper",
    GPU_KERNELS(kernels),
    .take = take,
    .take_switches = 1u << SWITCH_PERSISTENT_VISION,
    .whole_device = 1,
    .take_bytes = (size_t)MOST_ROWS * VISION_WIDTH * sizeof(bf16),
    .open = open_progress,
    .close = close_progress,
};
