/* resident_kernel.cuh: denoise steps as one kernel. Can the device run it, with what arguments, its launch.
 * Which ops it takes is in resident_steps.c.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include <string.h>

#include "backend/gpu/cuda/resident.h"
#include "backend/gpu/cuda/resident_family.h"

static const gpu_kernel kernels[] = {{"resident_denoise", 1, 0}};

/* ---- the exchange ----------------------------------------------------------------------------------- */

enum { EXCHANGE_BYTES = RESIDENT_SUMS_BYTES + RESIDENT_LAYERS * RESIDENT_NEW_BYTES };

static gpu_grid grid_of(size_t shared) {
    return (gpu_grid){.x = RESIDENT_CLUSTER * RESIDENT_CLUSTERS,
                      .y = 1,
                      .threads = RESIDENT_THREADS,
                      .shared = shared,
                      .cluster = RESIDENT_CLUSTER,
                      .together = 1};
}

int resident_open(gpu_device *device, int family, size_t shared, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const gpu_grid grid = grid_of(shared);
    int code = cuda_open_resident(device, family, 0, &grid, EXCHANGE_BYTES, state);
    if (code || !*state) return code;
    const gpu_address exchange = (gpu_address)(uintptr_t)*state;
    if ((code = driver->fill(driver, exchange, 0, RESIDENT_SUMS_BYTES, gpu_stream(device)))) return code;
    return driver->fill(driver, exchange + RESIDENT_SUMS_BYTES, 0xff, EXCHANGE_BYTES - RESIDENT_SUMS_BYTES,
                        gpu_stream(device));
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

static void fill_layer(gpu_issue *issue, resident_layer *to, const op *ops) {
    const norm *in = &ops[QKV].norm_qkv.norm, *post = &ops[GATE_UP].norm_linear.norm;
    cuda_map_weights(issue, &to->qkv, gpu_weights_of(&ops[QKV].norm_qkv.weight), 8);
    cuda_map_weights(issue, &to->gate_up, gpu_weights_of(&ops[GATE_UP].norm_linear.weight), 8);
    cuda_map_weights(issue, &to->fifth, gpu_weights_of(&ops[GATE_UP].norm_linear.weight), 2);
    cuda_map_weights(issue, &to->o, gpu_weights_of(&ops[OUT].linear_residual.weight), 8);
    cuda_map_weights(issue, &to->down, gpu_weights_of(&ops[DOWN].linear_residual.weight), 8);
    to->scale_in = in->weight, to->shift_in = in->bias, to->gate_in = ops[OUT].linear_residual.gate;
    to->scale_post = post->weight, to->shift_post = post->bias,
    to->gate_post = ops[DOWN].linear_residual.gate;
}

static void fill_actions(gpu_issue *issue, gpu_resident *p, const op *ops, const resident_chain *c) {
    const op *end = ops + c->depth * LAYER_OPS;
    const op_velocity *v = &end->velocity;
    resident_actions *to = &p->actions;
    to->rows = v->horizon;
    to->first = v->x_offset;
    to->out = gpu_weights_of(&v->weight);
    to->out_bias = v->bias;
    to->scale = v->norm.weight;
    to->shift = v->norm.bias;
    to->dt = v->dt;
    to->x_t = v->x_t;
    to->velocity = v->velocity;
    if (c->guided) {
        const op_guide *g = &end[1].guide;
        to->target = g->target, to->weight = g->weight, to->gain = g->gain, to->t = g->t;
    }
    if (c->steps < 2) return;
    const op_action_embed *a = &end[1 + c->guided].action_embed;
    to->in = gpu_weights_of(&a->in);
    to->in_bias = resident_embedding_bias(a);
    to->in_floats = c->in_floats;
    to->mlp = a->mlp_out.n > 0;
    to->mlp_bias = a->mlp_out_bias;
    if (to->mlp) cuda_map_weights(issue, &p->mlp, gpu_weights_of(&a->mlp_out), 8);
}

static void fill(gpu_issue *issue, gpu_resident *p, const op *ops, const resident_chain *c) {
    const op_norm_qkv *q = &ops[QKV].norm_qkv;
    const int depth = c->depth;
    char *exchange = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    memset(p, 0, sizeof *p);
    p->position = q->rows.position;
    p->keys = q->rows.keys;
    p->rope = q->rope;
    p->k_cache = q->cache.k;
    p->v_cache = q->cache.v;
    p->k_layer = depth > 1 ? resident_cache_distance(ops, 1, 0) : 0;
    p->v_layer = depth > 1 ? resident_cache_distance(ops, 1, 1) : 0;
    p->x = ops[OUT].linear_residual.x;
    p->sums = (uint64_t *)(void *)exchange;
    p->fresh = exchange + RESIDENT_SUMS_BYTES;
    p->rows = q->rows.capacity;
    p->depth = depth;
    p->steps = c->steps;
    p->step_floats = c->floats;
    if (c->velocity) fill_actions(issue, p, ops, c);
    p->known = (gpu_known){q->rows.known, q->rows.known_at};
    p->shifts = resident_shifts_of(q);
    p->eps = q->norm.eps;
    p->scale = ops[ATTENTION].cache_attention.scale;
    map_cache(issue, &p->k, q->cache.k, p->k_layer, q->cache.capacity, depth);
    map_cache(issue, &p->v, q->cache.v, p->v_layer, q->cache.capacity, depth);
    for (int i = 0; i < depth; i++) fill_layer(issue, &p->layers[i], ops + i * LAYER_OPS);
}

int resident_take(gpu_issue *issue, const op *ops, int count, resident_rows kind) {
    gpu_resident p;
    const resident_chain c = resident_chain_of(ops, count, kind);
    if (!c.depth) return 0;
    gpu_take(issue, c.ops);
    fill(issue, &p, ops, &c);
    const size_t shared = kind == RESIDENT_APART ? RESIDENT_APART_SHARED : RESIDENT_SHARED;
    gpu_emit(issue, 0, grid_of(shared), &p, sizeof p);
    return c.ops;
}

/* ---- the family ------------------------------------------------------------------------------------- */

static int open_exchange(gpu_device *device, int family, void **state) {
    return resident_open(device, family, RESIDENT_SHARED, state);
}

static int take(gpu_issue *issue, const op *ops, int count) {
    return resident_take(issue, ops, count, RESIDENT_FEW);
}

const gpu_family gpu_family_resident_hopper = {
    .name = "resident_hopper",
    GPU_KERNELS(kernels),
    .take = take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .whole_device = 1,
    .open = open_exchange,
    .close = cuda_close_resident,
};
