/* The ops that have no product in them, one row a task or several: the level's element functions over rows
 * widened to fp32.
 *
 * A worker's scratch is two rows of fp32. Note: a key's place is a column of a panel, so RoPE writes it
 * element by element, and what pads head_dim there becomes zero, for a product reads it. */
#include "backend/cpu/pointwise.h"

#include <string.h>

#include "backend/cpu/layout.h"
#include "ops/reference.h"

enum { ALIGN = 256, ROWS_A_TASK = 4 };

typedef struct loop {
    const cpu_elements *elements;
    const op *op;
    int rows, step;
    char *workers;
    size_t worker_bytes;
} loop;

/* Elements of the longest row that a worker widens. */
static size_t widest(const op *op) {
    switch (op->kind) {
    case OP_ACTIVATE: return (size_t)op->activate.n;
    case OP_ADD: return (size_t)op->add.n;
    case OP_ROPE_CACHE: return (size_t)op->rope_cache.cache.head_dim;
    case OP_SOFTMAX: return (size_t)op->softmax.places;
    default: return 0;
    }
}

static size_t line_bytes(const op *op) { return (widest(op) * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN; }

static const norm no_norm = {NORM_NONE, NULL, NULL, 0};

static void widen(const loop *l, const void *row, int count, float *out) {
    l->elements->normalise(&no_norm, (cpu_statistics){0, 1}, row, l->op->type, 0, count, out, DTYPE_F32);
}

static const char *at(const loop *l, const void *base, size_t element) {
    return (const char *)base + element * dtype_bytes(l->op->type);
}

static void norm_row(const loop *l, int r) {
    const op_norm *a = &l->op->norm;
    dtype type = l->op->type;
    const char *x = at(l, a->x, (size_t)r * (size_t)a->n);
    const norm own = norm_of_row(&a->norm, &a->rows, r);
    cpu_statistics s = l->elements->statistics(&own, x, type, a->n);
    l->elements->normalise(&own, s, x, type, 0, a->n, (char *)a->out + (x - (const char *)a->x), type);
}

static void activate_row(const loop *l, int r, float *y, float *other) {
    const op_activate *a = &l->op->activate;
    char *x = (char *)(uintptr_t)at(l, a->x, (size_t)(a->row ? a->row[r] : r) * (size_t)a->n);
    widen(l, x, a->n, y);
    if (a->bias)
        for (int i = 0; i < a->n; i++) y[i] += a->bias[i];
    if (a->activation != ACT_NONE) l->elements->function(a->activation == ACT_SILU ? 2 : 1, y, a->n, y);
    if (a->up) {
        widen(l, at(l, a->up, (size_t)r * (size_t)a->n), a->n, other);
        for (int i = 0; i < a->n; i++) y[i] *= other[i];
    }
    l->elements->store(y, a->n, x, l->op->type);
}

static void add_row(const loop *l, int r, float *y, float *x) {
    const op_add *a = &l->op->add;
    char *to = (char *)(uintptr_t)at(l, a->x, (size_t)r * (size_t)a->n);
    widen(l, at(l, a->y, (size_t)r * (size_t)a->n), a->n, y);
    widen(l, to, a->n, x);
    if (a->bias)
        for (int i = 0; i < a->n; i++) y[i] += a->bias[i];
    if (a->gate)
        for (int i = 0; i < a->n; i++) y[i] *= a->gate[modulation_of(&a->rows, r) + i];
    for (int i = 0; i < a->n; i++) x[i] += y[i];
    l->elements->store(x, a->n, to, l->op->type);
}

/* One head, rotated; out may not be in. */
static void rotate(const float *in, int d, const float *rope, float *out) {
    int half = d / 2;
    for (int i = 0; i < half; i++) {
        float c = rope[2 * i], s = rope[2 * i + 1], x = in[i], y = in[i + half];
        out[i] = x * c - y * s;
        out[i + half] = y * c + x * s;
    }
}

static void put(void *block, dtype type, size_t where, float value) {
    if (type == DTYPE_BF16)
        ((bf16 *)block)[where] = float_to_bf16(value);
    else
        ((float *)block)[where] = value;
}

static void rope_row(const loop *l, int r, float *in, float *out) {
    const op_rope_cache *a = &l->op->rope_cache;
    dtype type = l->op->type;
    int d = a->cache.head_dim, place = a->rows.position[r];
    size_t block = (size_t)a->rows.sample[r] * layout_cache_bytes(a->cache.capacity, d, type);
    const float *rope = a->rope + (size_t)place * (size_t)d;
    char *k = (char *)a->cache.k + block, *v = (char *)a->cache.v + block;
    for (int h = 0; h < a->heads; h++) {
        widen(l, at(l, a->q_in, (size_t)r * (size_t)a->q_stride + (size_t)(h * d)), d, in);
        rotate(in, d, rope, out);
        l->elements->store(
            out, d, (char *)(uintptr_t)at(l, a->q, ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)d),
            type);
    }
    widen(l, at(l, a->k_in, (size_t)r * (size_t)a->kv_stride), d, in);
    rotate(in, d, rope, out);
    for (int i = 0; i < d; i++) put(k, type, layout_key(type, d, place, i), out[i]);
    for (int i = d; i < round_up(d, PANEL); i++) put(k, type, layout_key(type, d, place, i), 0);
    widen(l, at(l, a->v_in, (size_t)r * (size_t)a->kv_stride), d, in);
    for (int i = 0; i < d; i++) put(v, type, layout_value(type, a->cache.capacity, place, i), in[i]);
}

/* Whole vectors are read and written: in the scratch, not in the row. */
static void softmax_row(const loop *l, int r, float *line, float *p) {
    const op_softmax *a = &l->op->softmax;
    int keys = a->rows.keys[r];
    for (int h = 0; h < a->heads; h++) {
        float *scores = a->scores + ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)a->places;
        memcpy(line, scores, (size_t)keys * sizeof *line);
        l->elements->softmax(line, PANEL, keys, keys, 1, l->op->type, p, DTYPE_F32);
        memcpy(scores, p, (size_t)keys * sizeof *p);
    }
}

/* Plain C: a chunk is 50 rows of 32 numbers, a product before it reads a thousand times as much. */
static void guide_row(const loop *l, int r) {
    const op_guide *a = &l->op->guide;
    size_t first = (size_t)r * (size_t)a->n;
    const float *target = a->target + first, *v = a->velocity + first;
    float *x = a->x_t + first, w = a->weight[r], gain = a->gain[a->rows.sample[r]];
    for (int i = 0; i < a->n && w != 0; i++) x[i] += gain * ((target[i] - (x[i] - a->t * v[i])) * w);
}

static void rows_task(void *argument, int task, int worker) {
    const loop *l = argument;
    float *a = (float *)(l->workers + (size_t)worker * l->worker_bytes),
          *b = (float *)((char *)a + line_bytes(l->op));
    int end = (task + 1) * l->step < l->rows ? (task + 1) * l->step : l->rows;
    for (int r = task * l->step; r < end; r++) switch (l->op->kind) {
        case OP_NORM: norm_row(l, r); break;
        case OP_ACTIVATE: activate_row(l, r, a, b); break;
        case OP_ADD: add_row(l, r, a, b); break;
        case OP_ROPE_CACHE: rope_row(l, r, a, b); break;
        case OP_SOFTMAX: softmax_row(l, r, a, b); break;
        case OP_GUIDE: guide_row(l, r); break;
        default: break;
        }
}

int cpu_is_pointwise(op_kind kind) {
    return kind == OP_NORM || kind == OP_ACTIVATE || kind == OP_ADD || kind == OP_ROPE_CACHE ||
           kind == OP_SOFTMAX || kind == OP_GUIDE;
}

size_t cpu_pointwise_bytes(pool *pool, const op *op) {
    return 2 * line_bytes(op) * (size_t)pool_threads(pool);
}

void cpu_pointwise_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work) {
    int rows = *op_rows(op)->count, step = rows / (pool_threads(pool) * ROWS_A_TASK) + 1;
    loop l = {.elements = kernels->elements,
              .op = op,
              .rows = rows,
              .step = step,
              .workers = work,
              .worker_bytes = 2 * line_bytes(op)};
    pool_run(pool, rows_task, &l, (rows + step - 1) / step);
}
