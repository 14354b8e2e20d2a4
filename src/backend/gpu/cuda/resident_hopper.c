/* resident_hopper.cu: the layers of a denoise step as one kernel. Are these ops such layers, can the
 * kernel run them here, and with what arguments.
 *
 * Legal are all layers of a step of one sample in bf16, in the sizes of resident.h, with caches at even
 * distances. The action embedding before and the velocity after are kernels of their own, and everything
 * else is left to the ops' kernels.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include <string.h>

#include "backend/gpu/cuda/resident.h"
#include "backend/gpu/cuda/vendor.h"

enum {
    QKV,
    ATTENTION,
    OUT,
    GATE_UP,
    DOWN,
    LAYER_OPS,
};

static const gpu_kernel kernels[] = {{"resident_denoise", 1, 0}};

static const gpu_grid whole = {.x = RESIDENT_CLUSTER * RESIDENT_CLUSTERS,
                               .y = 1,
                               .threads = RESIDENT_THREADS,
                               .shared = RESIDENT_SHARED,
                               .cluster = RESIDENT_CLUSTER,
                               .together = 1};

/* ---- the exchange ----------------------------------------------------------------------------------- */

enum { EXCHANGE_BYTES = RESIDENT_SUMS_BYTES + RESIDENT_LAYERS * RESIDENT_NEW_BYTES };

/* Asks whether the card holds the kernel, and takes the memory of its exchange if so: that is the family's
 * state. */
static int open_exchange(gpu_device *device, int family, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const gpu_launch launch = {.function = gpu_function(device, family, 0),
                               .grid = {(unsigned)whole.x, 1, 1},
                               .block = {(unsigned)whole.threads, 1, 1},
                               .cluster = RESIDENT_CLUSTER,
                               .shared_bytes = RESIDENT_SHARED};
    int clusters = 0, code;
    gpu_address exchange = 0;
    if (gpu_shared_bytes(device) < RESIDENT_SHARED) return 0;
    if ((code = cuda_most_clusters(driver, &launch, &clusters))) return code;
    if (clusters < RESIDENT_CLUSTERS) return 0;
    if ((code = driver->allocate(driver, &exchange, EXCHANGE_BYTES))) return code;
    *state = (void *)(uintptr_t)exchange;
    if ((code = driver->fill(driver, exchange, 0, RESIDENT_SUMS_BYTES, gpu_stream(device)))) return code;
    return driver->fill(driver, exchange + RESIDENT_SUMS_BYTES, 0xff, EXCHANGE_BYTES - RESIDENT_SUMS_BYTES,
                        gpu_stream(device));
}

static void close_exchange(gpu_device *device, void *state) {
    const gpu_driver *driver = gpu_driver_of(device);
    driver->release(driver, (gpu_address)(uintptr_t)state);
}

/* ---- are these the layers --------------------------------------------------------------------------- */

static int is_matrix(const matrix *m, matrix_form form, int n, int k) {
    return m->data && !m->raw && m->type == WEIGHT_BF16 && m->form == form && m->n == n && m->k == k;
}

static int same_rows(const row_set *a, const row_set *b) {
    return a->capacity == b->capacity && a->count == b->count && a->position == b->position &&
           a->keys == b->keys && a->known == b->known && a->known_at == b->known_at;
}

/* The modulation: all norms have a shift, or none has. */
static int is_rms(const norm *n, const norm *first) {
    return n->kind == NORM_RMS && n->weight && n->eps == first->eps && !n->bias == !first->bias;
}

static int is_layer(const op *ops, const op *first) {
    static const op_kind kinds[LAYER_OPS] = {OP_NORM_QKV, OP_CACHE_ATTENTION, OP_LINEAR_RESIDUAL,
                                             OP_NORM_LINEAR, OP_LINEAR_RESIDUAL};
    const op_norm_qkv *q = &ops[QKV].norm_qkv, *q0 = &first[QKV].norm_qkv;
    const op_cache_attention *a = &ops[ATTENTION].cache_attention;
    const op_linear_residual *o = &ops[OUT].linear_residual, *d = &ops[DOWN].linear_residual;
    const op_norm_linear *g = &ops[GATE_UP].norm_linear;
    const row_set *rows = &q0->rows;
    for (int i = 0; i < LAYER_OPS; i++)
        if (ops[i].kind != kinds[i] || ops[i].type != DTYPE_BF16 || ops[i].stage != OPENPI_STAGE_DENOISE)
            return 0;
    if (!same_rows(&q->rows, rows) || !same_rows(&a->rows, rows) || !same_rows(&o->rows, rows) ||
        !same_rows(&g->rows, rows) || !same_rows(&d->rows, rows))
        return 0;
    if (q->x != q0->x || g->x != q0->x || o->x != q0->x || d->x != q0->x || a->q != q->q || o->a != a->out ||
        d->a != g->out)
        return 0;
    if (!is_rms(&q->norm, &q0->norm) || !is_rms(&g->norm, &q0->norm) || q->rope != q0->rope) return 0;
    if (a->heads != RESIDENT_HEADS || a->scale != first[ATTENTION].cache_attention.scale ||
        a->cache.k != q->cache.k || a->cache.v != q->cache.v || q->cache.capacity != q0->cache.capacity ||
        q->cache.head_dim != RESIDENT_HEAD)
        return 0;
    if (q->weight.heads != RESIDENT_HEADS || q->weight.head_dim != RESIDENT_HEAD ||
        g->activation != ACT_GEGLU || g->bias || g->out_row || o->bias || d->bias)
        return 0;
    return is_matrix(&q->weight, MATRIX_QKV, (RESIDENT_HEADS + 2) * RESIDENT_HEAD, RESIDENT_WIDTH) &&
           is_matrix(&o->weight, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_HEADS * RESIDENT_HEAD) &&
           is_matrix(&g->weight, MATRIX_GATED, 2 * RESIDENT_HIDDEN, RESIDENT_WIDTH) &&
           is_matrix(&d->weight, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_HIDDEN);
}

/* Bytes from a layer's keys (values) to the next layer's; the layers after it must keep the distance. */
static ptrdiff_t cache_distance(const op *ops, int layer, int values) {
    const kv_cache *a = &ops[0].norm_qkv.cache, *b = &ops[layer * LAYER_OPS].norm_qkv.cache;
    return values ? (const char *)b->v - (const char *)a->v : (const char *)b->k - (const char *)a->k;
}

/* Rows that shifts take: the step's, and that of known rows. */
static int shifts_of(const op_norm_qkv *q) { return q->norm.bias ? 1 + (q->rows.known != NULL) : 0; }

/* Layers of the step that begins at ops[0]; 0: this is no such step, or not for this kernel. */
static int depth_of(const op *ops, int count) {
    int depth = 0;
    while ((depth + 1) * LAYER_OPS <= count && ops[depth * LAYER_OPS].step == ops[0].step &&
           is_layer(ops + depth * LAYER_OPS, ops))
        depth++;
    if (!depth || depth > RESIDENT_LAYERS || depth * LAYER_OPS == count) return 0;
    const op_velocity *v = &ops[depth * LAYER_OPS].velocity;
    const row_set *rows = &ops[QKV].norm_qkv.rows;
    const kv_cache *cache = &ops[QKV].norm_qkv.cache;
    if (ops[depth * LAYER_OPS].kind != OP_VELOCITY || v->x != ops[QKV].norm_qkv.x) return 0;
    if (v->rows.capacity != v->horizon || rows->capacity != v->x_stride) return 0; /* more than one sample */
    if (rows->capacity + shifts_of(&ops[QKV].norm_qkv) > RESIDENT_ROWS) return 0;
    if (cache->capacity - rows->capacity > RESIDENT_MOST_KEYS) return 0;
    for (int i = 2; i < depth; i++)
        for (int values = 0; values < 2; values++)
            if (cache_distance(ops, i, values) != i * cache_distance(ops, 1, values)) return 0;
    return depth == 1 || (cache_distance(ops, 1, 0) > 0 && cache_distance(ops, 1, 1) > 0) ? depth : 0;
}

/* ---- arguments -------------------------------------------------------------------------------------- */

static void map_cache(gpu_issue *issue, gpu_tensor_map *map, const void *base, int64_t layer_bytes,
                      int capacity, int depth) {
    const uint64_t row = RESIDENT_HEAD * sizeof(bf16),
                   dims[3] = {RESIDENT_HEAD, (uint64_t)capacity, (uint64_t)depth};
    const uint64_t strides[2] = {row, depth > 1 ? (uint64_t)layer_bytes : row * (uint64_t)capacity};
    static const unsigned box[3] = {GPU_ATOM_K, RESIDENT_KEY_GROUP, 1};
    cuda_make_map(issue, map, 1, 3, base, dims, strides, box);
}

static void map_weights(gpu_issue *issue, gpu_tensor_map *map, const matrix *m, unsigned blocks,
                        unsigned groups) {
    const gpu_weights w = gpu_weights_of(m);
    const uint64_t words = GPU_ATOM_BYTES / sizeof(float),
                   dims[3] = {words, (uint64_t)w.blocks, (uint64_t)w.columns / 8};
    const uint64_t strides[2] = {GPU_ATOM_BYTES, (uint64_t)w.blocks * GPU_ATOM_BYTES};
    const unsigned box[3] = {(unsigned)words, blocks, groups};
    cuda_make_map(issue, map, -1, 3, m->data, dims, strides, box);
}

static void fill_layer(gpu_issue *issue, resident_layer *to, const op *ops) {
    const norm *in = &ops[QKV].norm_qkv.norm, *post = &ops[GATE_UP].norm_linear.norm;
    map_weights(issue, &to->qkv, &ops[QKV].norm_qkv.weight, 1, 2);
    map_weights(issue, &to->gate_up, &ops[GATE_UP].norm_linear.weight, 1, 8);
    map_weights(issue, &to->fifth, &ops[GATE_UP].norm_linear.weight, 4, 2);
    map_weights(issue, &to->o, &ops[OUT].linear_residual.weight, 1, 8);
    map_weights(issue, &to->down, &ops[DOWN].linear_residual.weight, 1, 8);
    to->scale_in = in->weight, to->shift_in = in->bias, to->gate_in = ops[OUT].linear_residual.gate;
    to->scale_post = post->weight, to->shift_post = post->bias,
    to->gate_post = ops[DOWN].linear_residual.gate;
}

static void fill(gpu_issue *issue, gpu_resident *p, const op *ops, int depth) {
    const op_norm_qkv *q = &ops[QKV].norm_qkv;
    char *exchange = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    memset(p, 0, sizeof *p);
    p->position = q->rows.position;
    p->keys = q->rows.keys;
    p->rope = q->rope;
    p->k_cache = q->cache.k;
    p->v_cache = q->cache.v;
    p->k_layer = depth > 1 ? cache_distance(ops, 1, 0) : 0;
    p->v_layer = depth > 1 ? cache_distance(ops, 1, 1) : 0;
    p->x = ops[OUT].linear_residual.x;
    p->sums = (uint64_t *)(void *)exchange;
    p->fresh = exchange + RESIDENT_SUMS_BYTES;
    p->rows = q->rows.capacity;
    p->depth = depth;
    p->known = (gpu_known){q->rows.known, q->rows.known_at};
    p->shifts = shifts_of(q);
    p->eps = q->norm.eps;
    p->scale = ops[ATTENTION].cache_attention.scale;
    map_cache(issue, &p->k, q->cache.k, p->k_layer, q->cache.capacity, depth);
    map_cache(issue, &p->v, q->cache.v, p->v_layer, q->cache.capacity, depth);
    for (int i = 0; i < depth; i++) fill_layer(issue, &p->layers[i], ops + i * LAYER_OPS);
}

static int take(gpu_issue *issue, const op *ops, int count) {
    const gpu_device *device = gpu_device_of(issue);
    gpu_resident p;
    if (!gpu_state(device, gpu_family_of(issue)) || switch_off(gpu_off(device), SWITCH_PERSISTENT_DENOISE))
        return 0;
    int depth = depth_of(ops, count);
    if (!depth) return 0;
    gpu_take(issue, depth * LAYER_OPS);
    fill(issue, &p, ops, depth);
    gpu_emit(issue, 0, whole, &p, sizeof p);
    return depth * LAYER_OPS;
}

const gpu_family gpu_family_resident_hopper = {
    .name = "resident_hopper",
    GPU_KERNELS(kernels),
    .take = take,
    .whole_device = 1,
    .open = open_exchange,
    .close = close_exchange,
};
