/* Launches of the ops that fused ones are made of, and of what packs raw weights in front of a product. */
#include "backend/gpu/launch.h"

enum { TILE = 64, COLUMNS = 1024 };

static int activation_of(activation a) {
    return a == ACT_GELU || a == ACT_GEGLU ? GPU_ACT_GELU : a == ACT_SILU ? GPU_ACT_SILU : GPU_ACT_NONE;
}

void gpu_issue_norm(gpu_issue *issue, const op *op) {
    const op_norm *a = &op->norm;
    int f32 = op->type == DTYPE_F32, fast = !f32 && a->n % 8 == 0 && a->n <= 2048;
    int kind = a->norm.kind == NORM_LAYER ? GPU_NORM_LAYER : GPU_NORM_RMS;
    gpu_norm p = {a->rows.count, a->x, {NULL, 0, 0, 0}, f32, a->n, kind, a->norm.weight, a->norm.bias, a->norm.eps, a->out};
    launch(issue, fast ? GPU_norm_rows_bf16 : GPU_norm_rows, ceil_div(a->rows.capacity, 4), 1, 128, 0, &p);
}

void gpu_issue_activate(gpu_issue *issue, const op *op) {
    const op_activate *a = &op->activate;
    gpu_activate p = {a->rows.count, a->bias, activation_of(a->activation), a->up, a->row, a->n, op->type == DTYPE_F32, a->x};
    launch(issue, GPU_activate, a->rows.capacity, ceil_div(a->n, COLUMNS), 256, 0, &p);
}

void gpu_issue_add(gpu_issue *issue, const op *op) {
    const op_add *a = &op->add;
    gpu_add p = {a->rows.count, a->y, a->bias, a->gate, a->n, op->type == DTYPE_F32, a->x};
    launch(issue, GPU_add, a->rows.capacity, ceil_div(a->n, COLUMNS), 256, 0, &p);
}

void gpu_issue_rope_cache(gpu_issue *issue, const op *op) {
    const op_rope_cache *a = &op->rope_cache;
    gpu_rope_cache p = {a->rows.count,     a->rows.sample,        a->rows.position, a->q_in,  a->k_in,
                        a->v_in,           a->q_stride,           a->kv_stride,     a->heads, a->cache.head_dim,
                        a->cache.capacity, op->type == DTYPE_F32, a->rope,          a->q,     a->cache.k,
                        a->cache.v};
    launch(issue, GPU_rope_cache, a->rows.capacity, a->heads + 2, 128, 0, &p);
}

void gpu_issue_softmax(gpu_issue *issue, const op *op) {
    const op_softmax *a = &op->softmax;
    gpu_softmax p = {a->rows.count, a->rows.keys, a->heads, a->places, op->type == DTYPE_F32, a->scores};
    launch(issue, GPU_softmax_rows, a->rows.capacity, a->heads, 128, 0, &p);
}

/* outputs: keys or dimensions, a tile in y. */
static void launch_attend(gpu_issue *issue, gpu_kernel simt, gpu_kernel mma, const row_set *rows, gpu_attend p,
                          const attended *from, int outputs) {
    int units = rows->capacity * (from->stride ? 1 : p.heads);
    p.count = rows->count;
    p.sample = rows->sample;
    p.keys = rows->keys;
    p.stride = from->stride;
    p.capacity = from->stride ? OPENPI_IMAGE_TOKENS : from->cache.capacity;
    p.tiles = ceil_div(outputs, TILE);
    launch(issue, p.f32 ? simt : mma, ceil_div(units, TILE), p.tiles * (from->stride ? p.heads : 1), p.f32 ? 256 : 128, 0, &p);
}

void gpu_issue_scores(gpu_issue *issue, const op *op) {
    const op_scores *a = &op->scores;
    gpu_attend p = {.q = a->q, .q_stride = a->q_stride, .heads = a->heads, .head_dim = a->head_dim, .f32 = op->type == DTYPE_F32,
                    .scale = a->scale, .from = a->keys.stride ? a->keys.image : a->keys.cache.k, .scores = a->scores,
                    .places = a->places};
    int keys = a->keys.stride ? OPENPI_IMAGE_TOKENS : a->keys.cache.capacity;
    launch_attend(issue, GPU_scores_simt, GPU_scores_mma, &a->rows, p, &a->keys, keys);
}

void gpu_issue_values(gpu_issue *issue, const op *op) {
    const op_values *a = &op->values;
    gpu_attend p = {.heads = a->heads, .head_dim = a->head_dim, .f32 = op->type == DTYPE_F32,
                    .from = a->values.stride ? a->values.image : a->values.cache.v, .scores = (float *)(uintptr_t)a->scores,
                    .places = a->places, .out = a->out};
    launch_attend(issue, GPU_values_simt, GPU_values_mma, &a->rows, p, &a->values, a->head_dim);
}

/* ---- raw weights ------------------------------------------------------------------------------------------ */

static void launch_pack(gpu_issue *issue, const matrix *m, void *out) {
    gpu_weights w = gpu_weights_of(m);
    matrix packed = *m;
    packed.raw = 0;
    gpu_raw p = {m->data, out, m->k, w.columns, w.blocks, w.f32, gpu_row_order_of(&packed)};
    int chunks = w.f32 ? ceil_div(m->k, 4) : w.blocks * 8;
    launch(issue, GPU_pack_raw, (int)(((int64_t)chunks * w.columns + 255) / 256), 1, 256, 0, &p);
}

size_t gpu_raw_pack(gpu_issue *issue, op *op) {
    matrix *list[OP_MATRICES];
    size_t used = 0;
    for (int i = 0, count = op_matrices(op, list); i < count; i++) {
        matrix packed = *list[i];
        if (!packed.raw) continue;
        packed.raw = 0;
        size_t bytes = (gpu_matrix_bytes(&issue->device->base, &packed) + 255) & ~(size_t)255;
        if (!issue->measure) packed.data = issue->work + used;
        launch_pack(issue, list[i], (void *)(uintptr_t)packed.data);
        *list[i] = packed;
        used += bytes;
        issue->first = 1;                  /* products fetch weights before they wait for the kernel in front */
    }
    return used;
}
