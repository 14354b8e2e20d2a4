/* resident_kernel.cuh: denoise steps as one kernel. Can the device run it, which steps does it take, with
 * what arguments, its launch.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include <string.h>

#include "backend/gpu/cuda/resident/few/resident.h"
#include "backend/gpu/cuda/resident/few/resident_family.h"

static const gpu_kernel kernels[] = {{"resident_denoise", 1, 0}};

/* ---- the exchange ----------------------------------------------------------------------------------- */

enum { EXCHANGE_BYTES = RESIDENT_SUMS_BYTES + RESIDENT_LAYERS * RESIDENT_NEW_BYTES };

static gpu_grid resident_grid_of(size_t shared) {
    return (gpu_grid){.x = RESIDENT_CLUSTER * RESIDENT_CLUSTERS,
                      .y = 1,
                      .threads = RESIDENT_THREADS,
                      .shared = shared,
                      .cluster = RESIDENT_CLUSTER,
                      .together = 1};
}

int resident_open(gpu_device *device, int family, size_t shared, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const gpu_grid grid = resident_grid_of(shared);
    int code = cuda_open_resident(device, family, 0, &grid, EXCHANGE_BYTES, state);
    if (code || !*state) return code;
    const gpu_address exchange = (gpu_address)(uintptr_t)*state;
    if ((code = driver->fill(driver, exchange, 0, RESIDENT_SUMS_BYTES, gpu_stream(device)))) return code;
    return driver->fill(driver, exchange + RESIDENT_SUMS_BYTES, 0xff, EXCHANGE_BYTES - RESIDENT_SUMS_BYTES,
                        gpu_stream(device));
}

/* ---- what is legal ---------------------------------------------------------------------------------- */

static int resident_matrix(const matrix *m, weight_type type, matrix_form form, int n, int k) {
    return !m->raw && m->type == type && m->form == form && m->n == n && m->k == k;
}

int resident_layers_fit(const op_block *block, weight_type weights) {
    const op *ops = block->ops;
    if (block->kind != BLOCK_EXPERT_STEPS || ops->type != DTYPE_BF16 || block->layers > RESIDENT_LAYERS)
        return 0;
    const matrix *qkv = &ops[LAYER_QKV].norm_qkv.weight;
    return qkv->heads == RESIDENT_HEADS && qkv->head_dim == RESIDENT_HEAD &&
           resident_matrix(qkv, weights, MATRIX_QKV, (RESIDENT_HEADS + 2) * RESIDENT_HEAD, RESIDENT_WIDTH) &&
           resident_matrix(&ops[LAYER_OUT].linear_residual.weight, weights, MATRIX_PLAIN, RESIDENT_WIDTH,
                           RESIDENT_HEADS * RESIDENT_HEAD) &&
           resident_matrix(&ops[LAYER_UP].norm_linear.weight, weights, MATRIX_GATED, 2 * RESIDENT_HIDDEN,
                           RESIDENT_WIDTH) &&
           resident_matrix(&ops[LAYER_DOWN].linear_residual.weight, weights, MATRIX_PLAIN, RESIDENT_WIDTH,
                           RESIDENT_HIDDEN);
}

int resident_shifts_of(const op_norm_qkv *q) { return q->norm.bias ? 1 + (q->rows.known != NULL) : 0; }

static int is_int8(resident_rows kind) { return kind == RESIDENT_INT8_FEW || kind == RESIDENT_INT8_APART; }
static int is_apart(resident_rows kind) { return kind == RESIDENT_APART || kind == RESIDENT_INT8_APART; }

/* One sample's rows, with their shifts as many as the kernel is for, and keys of earlier tokens. Rows may be
 * known where there are modulations: a known row then differs in those alone. */
static int resident_rows_fit(const op_block *block, resident_rows kind) {
    const op_norm_qkv *q = &block->ops[LAYER_QKV].norm_qkv;
    const int rows = block->rows, shifts = resident_shifts_of(q);
    return block->samples == 1 && rows <= RESIDENT_ROWS &&
           (rows + shifts > RESIDENT_FEW_ROWS) == is_apart(kind) &&
           q->cache.capacity - rows <= RESIDENT_MOST_KEYS && (shifts || !q->rows.known);
}

/* In bf16 or fp32. */
static int is_exact(const matrix *m, int n, int k) {
    return resident_matrix(m, WEIGHT_BF16, MATRIX_PLAIN, n, k) ||
           resident_matrix(m, WEIGHT_F32, MATRIX_PLAIN, n, k);
}

/* The embeddings between steps that the kernel computes: π0.5's product, or π0's two (merged.c). */
static int embedding_fits(const op_action_embed *a) {
    return is_exact(&a->in, RESIDENT_WIDTH, RESIDENT_ACTION) && !a->mlp_in.n &&
           (!a->mlp_out.n ||
            resident_matrix(&a->mlp_out, WEIGHT_BF16, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_WIDTH));
}

int resident_steps_of(const op_block *block, resident_rows kind) {
    if (kind == RESIDENT_LONG) return resident_long_of(block);
    if (kind == RESIDENT_WIDE) return resident_wide_of(block);
    const weight_type weights = is_int8(kind) ? WEIGHT_INT8 : WEIGHT_BF16;
    if (!resident_layers_fit(block, weights) || !resident_rows_fit(block, kind)) return 0;
    const op_velocity *v = &block_velocity(block)->velocity;
    if (!is_exact(&v->weight, RESIDENT_ACTION, RESIDENT_WIDTH) || (v->x_offset && v->norm.bias)) return 0;
    return block->steps > 1 && embedding_fits(&block_embedding(block)->action_embed) ? block->steps : 1;
}

int resident_ops_of(const op_block *block, resident_rows kind, int steps) {
    if (kind >= RESIDENT_LONG) return block->layers * LAYER_OPS;
    return steps * block->step_ops - 1;
}

/* ---- arguments -------------------------------------------------------------------------------------- */

static void resident_map_cache(gpu_issue *issue, gpu_tensor_map *map, const void *base, int64_t layer_bytes,
                               int capacity, int depth) {
    const uint64_t row = RESIDENT_HEAD * sizeof(bf16),
                   dims[3] = {RESIDENT_HEAD, (uint64_t)capacity, (uint64_t)depth};
    const uint64_t strides[2] = {row, depth > 1 ? (uint64_t)layer_bytes : row * (uint64_t)capacity};
    static const unsigned box[3] = {GPU_ATOM_K, RESIDENT_KEY_GROUP, 1};
    cuda_make_map(issue, map, 1, 3, base, dims, strides, box);
}

static void resident_fill_layer(gpu_issue *issue, resident_layer *to, resident_scales *scales,
                                const op *ops) {
    const norm *in = &ops[LAYER_QKV].norm_qkv.norm, *post = &ops[LAYER_UP].norm_linear.norm;
    const gpu_weights qkv = gpu_weights_of(&ops[LAYER_QKV].norm_qkv.weight),
                      gate_up = gpu_weights_of(&ops[LAYER_UP].norm_linear.weight),
                      o = gpu_weights_of(&ops[LAYER_OUT].linear_residual.weight),
                      down = gpu_weights_of(&ops[LAYER_DOWN].linear_residual.weight);
    cuda_map_weights(issue, &to->qkv, qkv, 8);
    cuda_map_weights(issue, &to->gate_up, gate_up, 8);
    cuda_map_weights(issue, &to->fifth, gate_up, 2);
    cuda_map_weights(issue, &to->o, o, 8);
    cuda_map_weights(issue, &to->down, down, 8);
    *scales = (resident_scales){qkv.scales, gate_up.scales, o.scales, down.scales};
    to->scale_in = in->weight, to->shift_in = in->bias, to->gate_in = ops[LAYER_OUT].linear_residual.gate;
    to->scale_post = post->weight, to->shift_post = post->bias,
    to->gate_post = ops[LAYER_DOWN].linear_residual.gate;
}

static void fill_actions(gpu_issue *issue, gpu_resident *p, const op_block *block, int steps) {
    const op_velocity *v = &block_velocity(block)->velocity;
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
    if (block->guided) {
        const op_guide *g = &block_guide(block)->guide;
        to->target = g->target, to->weight = g->weight, to->gain = g->gain, to->t = g->t;
    }
    if (steps < 2) return;
    const op_action_embed *a = &block_embedding(block)->action_embed;
    to->in = gpu_weights_of(&a->in);
    to->in_bias = embedding_bias(a);
    to->in_floats = block->embed_floats;
    to->mlp = a->mlp_out.n > 0;
    to->mlp_bias = a->mlp_out_bias;
    if (to->mlp) cuda_map_weights(issue, &p->mlp, gpu_weights_of(&a->mlp_out), 8);
}

static void resident_fill(gpu_issue *issue, gpu_resident *p, const op_block *block, int steps) {
    const op *ops = block->ops;
    const op_norm_qkv *q = &ops[LAYER_QKV].norm_qkv;
    const int depth = block->layers;
    char *exchange = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    memset(p, 0, sizeof *p);
    p->position = q->rows.position;
    p->keys = q->rows.keys;
    p->rope = q->rope;
    p->k_cache = q->cache.k;
    p->v_cache = q->cache.v;
    p->k_layer = p->v_layer = (int64_t)block->cache_bytes;
    p->x = ops[LAYER_OUT].linear_residual.x;
    p->sums = (uint64_t *)(void *)exchange;
    p->fresh = exchange + RESIDENT_SUMS_BYTES;
    p->rows = block->rows;
    p->depth = depth;
    p->steps = steps;
    p->step_floats = block->norm_floats;
    fill_actions(issue, p, block, steps);
    p->known = (gpu_known){q->rows.known, q->rows.known_at, 0};
    p->shifts = resident_shifts_of(q);
    p->eps = q->norm.eps;
    p->scale = ops[LAYER_ATTENTION].cache_attention.scale;
    resident_map_cache(issue, &p->k, q->cache.k, p->k_layer, q->cache.capacity, depth);
    resident_map_cache(issue, &p->v, q->cache.v, p->v_layer, q->cache.capacity, depth);
    for (int i = 0; i < depth; i++)
        resident_fill_layer(issue, &p->layers[i], &p->scales[i], block_layer(block, i));
}

static const size_t shared_bytes[] = {[RESIDENT_FEW] = RESIDENT_SHARED,
                                      [RESIDENT_APART] = RESIDENT_APART_SHARED,
                                      [RESIDENT_INT8_FEW] = RESIDENT_INT8_SHARED,
                                      [RESIDENT_INT8_APART] = RESIDENT_INT8_APART_SHARED};

int resident_take(gpu_issue *issue, const op_block *block, resident_rows kind) {
    gpu_resident p;
    const int steps = resident_steps_of(block, kind), ops = resident_ops_of(block, kind, steps);
    if (!steps) return 0;
    gpu_take(issue, ops);
    resident_fill(issue, &p, block, steps);
    gpu_emit(issue, 0, resident_grid_of(shared_bytes[kind]), &p, sizeof p);
    return ops;
}

/* ---- the family ------------------------------------------------------------------------------------- */

static int resident_open_exchange(gpu_device *device, int family, void **state) {
    return resident_open(device, family, RESIDENT_SHARED, state);
}

static int resident_hopper_take(gpu_issue *issue, const op_block *block) {
    return resident_take(issue, block, RESIDENT_FEW);
}

const gpu_family gpu_family_resident_hopper = {
    .name = "resident_hopper",
    GPU_KERNELS(kernels),
    .take_block = resident_hopper_take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .whole_device = 1,
    .open = resident_open_exchange,
    .close = cuda_close_resident,
};
