/* The definitions of what fused operations are made of: norms, activations, residuals, RoPE, scores,
 * softmax, values. */
#include "ops/limits.h"
#include "ops/reference.h"
#include "ops/scalar.h"

void reference_norm(const op *op, int first, int end, void *scratch) {
    const op_norm *a = &op->norm;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->n;
        norm own = norm_of_row(&a->norm, &a->rows, r);
        norm_row(&own, a->x, op->type, at, a->n, row);
        for (int i = 0; i < a->n; i++) store(a->out, op->type, at + (size_t)i, row[i]);
    }
}

void reference_activate(const op *op, int first, int end, void *scratch) {
    const op_activate *a = &op->activate;
    (void)scratch;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)(a->row ? a->row[r] : r) * (size_t)a->n;
        for (int i = 0; i < a->n; i++) {
            double y = load(a->x, op->type, at + (size_t)i) + (double)(a->bias ? a->bias[i] : 0);
            y = a->activation == ACT_NONE ? y : a->activation == ACT_SILU ? silu(y) : gelu(y);
            if (a->up) y *= load(a->up, op->type, (size_t)r * (size_t)a->n + (size_t)i);
            store(a->x, op->type, at + (size_t)i, (float)y);
        }
    }
}

void reference_add(const op *op, int first, int end, void *scratch) {
    const op_add *a = &op->add;
    (void)scratch;
    for (int r = first; r < end; r++) {
        const float *gate = a->gate ? a->gate + modulation_of(&a->rows, r) : NULL;
        for (int i = 0; i < a->n; i++) {
            size_t at = (size_t)r * (size_t)a->n + (size_t)i;
            double y = load(a->y, op->type, at) + (double)(a->bias ? a->bias[i] : 0);
            store(a->x, op->type, at, (float)(load(a->x, op->type, at) + y * (gate ? gate[i] : 1)));
        }
    }
}

/* One head of d elements from in to out, rotated by the angles of its position. */
static void rotate(const void *in, size_t from, void *out, size_t to, dtype type, int d, const float *rope) {
    for (int i = 0, half = d / 2; i < half; i++) {
        double x = load(in, type, from + (size_t)i), y = load(in, type, from + (size_t)(i + half));
        double c = rope[2 * i], s = rope[2 * i + 1];
        store(out, type, to + (size_t)i, (float)(x * c - y * s));
        store(out, type, to + (size_t)(i + half), (float)(y * c + x * s));
    }
}

void reference_rope_cache(const op *op, int first, int end, void *scratch) {
    const op_rope_cache *a = &op->rope_cache;
    int d = a->cache.head_dim;
    (void)scratch;
    for (int r = first; r < end; r++) {
        size_t place = (size_t)a->rows.sample[r] * (size_t)a->cache.capacity + (size_t)a->rows.position[r];
        size_t kv = (size_t)r * (size_t)a->kv_stride;
        const float *rope = a->rope + (size_t)a->rows.position[r] * (size_t)d;
        for (int h = 0; h < a->heads; h++)
            rotate(a->q_in, (size_t)r * (size_t)a->q_stride + (size_t)(h * d), a->q,
                 ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)d, op->type, d, rope);
        rotate(a->k_in, kv, a->cache.k, place * (size_t)d, op->type, d, rope);
        for (int i = 0; i < d; i++)
            store(a->cache.v, op->type, place * (size_t)d + (size_t)i,
                  load(a->v_in, op->type, kv + (size_t)i));
    }
}

/* Where head h of row r finds place 0 of its keys or values, and how far apart places are. */
static size_t attended_at(const attended *a, const void *cache, const row_set *rows, int r, int h,
                          int head_dim, const void **data, size_t *stride) {
    *data = a->stride ? a->image : cache;
    *stride = (size_t)(a->stride ? a->stride : head_dim);
    if (a->stride)
        return (size_t)(r / OPENPI_IMAGE_TOKENS * OPENPI_IMAGE_TOKENS) * *stride + (size_t)(h * head_dim);
    return (size_t)rows->sample[r] * (size_t)a->cache.capacity * *stride;
}

void reference_scores(const op *op, int first, int end, void *scratch) {
    const op_scores *a = &op->scores;
    float q[LIMIT_HEAD_DIM], key[LIMIT_HEAD_DIM];
    (void)scratch;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            const void *keys;
            size_t stride,
                at = attended_at(&a->keys, a->keys.cache.k, &a->rows, r, h, a->head_dim, &keys, &stride);
            float *out = a->scores + ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)a->places;
            size_t query = (size_t)r * (size_t)a->q_stride + (size_t)(h * a->head_dim);
            load_acts(a->q, op->type, query, a->head_dim, q);
            for (int j = 0; j < a->rows.keys[r]; j++) {
                load_acts(keys, op->type, at + (size_t)j * stride, a->head_dim, key);
                out[j] = (float)(dot(q, key, a->head_dim) * a->scale);
            }
        }
}

void reference_softmax(const op *op, int first, int end, void *scratch) {
    const op_softmax *a = &op->softmax;
    (void)scratch;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            float *s = a->scores + ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)a->places;
            double top = -HUGE_VAL, sum = 0;
            int keys = a->rows.keys[r];
            for (int j = 0; j < keys; j++)
                if (s[j] > top) top = s[j];        /* fmax() breaks gcc 12 for ARM                         */
            for (int j = 0; j < keys; j++) sum += exp(s[j] - top);
            for (int j = 0; j < keys; j++) s[j] = round_to(op->type, (float)(exp(s[j] - top) / sum));
        }
}

void reference_values(const op *op, int first, int end, void *scratch) {
    const op_values *a = &op->values;
    (void)scratch;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            const void *values;
            double out[LIMIT_HEAD_DIM] = {0};
            float value[LIMIT_HEAD_DIM];
            size_t stride, at = attended_at(&a->values, a->values.cache.v, &a->rows, r, h, a->head_dim,
                                            &values, &stride);
            size_t head = (size_t)r * (size_t)a->heads + (size_t)h;
            for (int j = 0; j < a->rows.keys[r]; j++) {
                double share = a->scores[head * (size_t)a->places + (size_t)j];
                load_acts(values, op->type, at + (size_t)j * stride, a->head_dim, value);
                for (int i = 0; i < a->head_dim; i++) out[i] += share * value[i];
            }
            for (int i = 0; i < a->head_dim; i++)
                store(a->out, op->type, head * (size_t)a->head_dim + (size_t)i, (float)out[i]);
        }
}
