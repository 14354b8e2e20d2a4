/* The definition of every operation in scalar C. Formulas stand in ops.h; MODEL.md ties them to the papers. */
#include "ops/reference.h"

#include <math.h>

enum { PATCH = 14, PATCHES = 16, IMAGE = 224, CHANNELS = 3, PATCH_INPUTS = PATCH * PATCH * CHANNELS };

static float load(const void *act, dtype type, size_t index) {
    return type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)act)[index]) : ((const float *)act)[index];
}

static void store(void *act, dtype type, size_t index, float value) {
    if (type == DTYPE_BF16)
        ((bf16 *)act)[index] = float_to_bf16(value);
    else
        ((float *)act)[index] = value;
}

static float round_to(dtype type, float value) { return type == DTYPE_BF16 ? bf16_to_float(float_to_bf16(value)) : value; }

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double silu(double x) { return x / (1 + exp(-x)); }

/* The norm of one row of k values, element by element: statistics first, then norm_at. */
typedef struct row_norm {
    const norm *norm;
    double mean, factor;
} row_norm;

static row_norm norm_row(const norm *norm, const void *x, dtype type, size_t at, int k) {
    double sum = 0, squares = 0, mean = 0;
    if (norm->kind == NORM_NONE) return (row_norm){norm, 0, 1};
    if (norm->kind == NORM_LAYER) {
        for (int i = 0; i < k; i++) sum += load(x, type, at + (size_t)i);
        mean = sum / k;
    }
    for (int i = 0; i < k; i++) {
        double d = load(x, type, at + (size_t)i) - mean;
        squares += d * d;
    }
    return (row_norm){norm, mean, 1 / sqrt(squares / k + norm->eps)};
}

/* Rounded to act, as the product that follows reads it. */
static float norm_at(const row_norm *row, float x, int i, dtype type) {
    const norm *norm = row->norm;
    double y = (x - row->mean) * row->factor;
    switch (norm->kind) {
    case NORM_NONE: return x;
    case NORM_LAYER: y = y * norm->weight[i] + norm->bias[i]; break;
    case NORM_RMS: y = y * (1.0 + norm->weight[i]) + (norm->bias ? norm->bias[i] : 0); break;
    }
    return round_to(type, (float)y);
}

/* Output o of norm(x row)·Wᵀ. */
static double product(const row_norm *row, const void *x, dtype type, size_t at, const matrix *weight, int o) {
    double sum = 0;
    size_t w = (size_t)o * (size_t)weight->k;
    for (int i = 0; i < weight->k; i++)
        sum += (double)norm_at(row, load(x, type, at + (size_t)i), i, type) * load(weight->data, weight->type, w + (size_t)i);
    return sum;
}

static const norm no_norm = {NORM_NONE, NULL, NULL, 0};

void reference_patch_embed(const op *op, int first, int end) {
    const op_patch_embed *a = &op->patch_embed;
    int n = a->weight.n, floats = *a->pixels == OPENPI_PIXELS_F32;
    for (int r = first; r < end; r++) {
        int patch = r % (PATCHES * PATCHES), top = patch / PATCHES * PATCH, left = patch % PATCHES * PATCH;
        size_t image = (size_t)(r / (PATCHES * PATCHES)) * IMAGE * IMAGE * CHANNELS;
        for (int o = 0; o < n; o++) {
            double sum = 0;
            for (int i = 0; i < PATCH_INPUTS; i++) {
                int c = i / (PATCH * PATCH), y = top + i / PATCH % PATCH, x = left + i % PATCH;
                size_t at = image + ((size_t)y * IMAGE + (size_t)x) * CHANNELS + (size_t)c;
                float pixel = floats ? ((const float *)a->images)[at] : (float)((const uint8_t *)a->images)[at] / 255.0f * 2.0f - 1.0f;
                sum += (double)pixel * load(a->weight.data, a->weight.type, (size_t)o * PATCH_INPUTS + (size_t)i);
            }
            float value = (float)(sum + a->bias[o]) + a->position[(size_t)patch * (size_t)n + (size_t)o];
            store(a->out, op->type, (size_t)r * (size_t)n + (size_t)o, value);
        }
    }
}

void reference_norm_linear(const op *op, int first, int end) {
    const op_norm_linear *a = &op->norm_linear;
    int gated = a->weight.form == MATRIX_GATED, m = gated ? a->weight.n / 2 : a->weight.n;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->weight.k, to = (size_t)(a->out_row ? a->out_row[r] : r) * (size_t)m;
        row_norm row = norm_row(&a->norm, a->x, op->type, at, a->weight.k);
        for (int o = 0; o < m; o++) {
            double y = product(&row, a->x, op->type, at, &a->weight, o) + (a->bias ? a->bias[o] : 0);
            y = a->activation == ACT_NONE ? y : a->activation == ACT_SILU ? silu(y) : gelu(y);
            if (gated) y *= product(&row, a->x, op->type, at, &a->weight, m + o) + (a->bias ? a->bias[m + o] : 0);
            store(a->out, op->type, to + (size_t)o, (float)y);
        }
    }
}

/* Softmax-weighted sum for one query and head: keys and values `stride` elements apart. */
typedef struct attend {
    const void *q, *k, *v;
    void *out;
    size_t q_at, k_at, v_at, out_at, stride;
    int keys, head_dim;
    float scale;
    dtype type;
} attend;

static double score(const attend *a, int key) {
    double sum = 0;
    for (int i = 0; i < a->head_dim; i++)
        sum += (double)load(a->q, a->type, a->q_at + (size_t)i) * load(a->k, a->type, a->k_at + (size_t)key * a->stride + (size_t)i);
    return sum * a->scale;
}

/* Scores are computed anew in each of the three passes (maximum, sum, output): slow, and needs no memory. */
static void attend_one(const attend *a) {
    double top = -HUGE_VAL, sum = 0;
    double out[1024] = {0};
    for (int j = 0; j < a->keys; j++) top = fmax(top, score(a, j));
    for (int j = 0; j < a->keys; j++) sum += exp(score(a, j) - top);
    for (int j = 0; j < a->keys; j++) {
        double p = round_to(a->type, (float)(exp(score(a, j) - top) / sum));
        for (int i = 0; i < a->head_dim; i++) out[i] += p * load(a->v, a->type, a->v_at + (size_t)j * a->stride + (size_t)i);
    }
    for (int i = 0; i < a->head_dim; i++) store(a->out, a->type, a->out_at + (size_t)i, (float)out[i]);
}

void reference_image_attention(const op *op, int first, int end) {
    const op_image_attention *a = &op->image_attention;
    size_t width = (size_t)a->heads * (size_t)a->head_dim, stride = 3 * width;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            size_t head = (size_t)h * (size_t)a->head_dim, image = (size_t)(r / OPENPI_IMAGE_TOKENS * OPENPI_IMAGE_TOKENS) * stride;
            attend_one(&(attend){a->qkv, a->qkv, a->qkv, a->out, (size_t)r * stride + head, image + width + head, image + 2 * width + head,
                                 (size_t)r * width + head, stride, OPENPI_IMAGE_TOKENS, a->head_dim, a->scale, op->type});
        }
}

void reference_linear_residual(const op *op, int first, int end) {
    const op_linear_residual *a = &op->linear_residual;
    int n = a->weight.n, k = a->weight.k;
    row_norm none = {&no_norm, 0, 1};
    for (int r = first; r < end; r++)
        for (int o = 0; o < n; o++) {
            size_t at = (size_t)r * (size_t)n + (size_t)o;
            double y = product(&none, a->a, op->type, (size_t)r * (size_t)k, &a->weight, o) + (a->bias ? a->bias[o] : 0);
            store(a->x, op->type, at, (float)(load(a->x, op->type, at) + y * (a->gate ? a->gate[o] : 1)));
        }
}

void reference_embed_text(const op *op, int first, int end) {
    const op_embed_text *a = &op->embed_text;
    for (int r = first; r < end; r++)
        for (int i = 0; i < a->width; i++)
            store(a->out, op->type, (size_t)a->out_row[r] * (size_t)a->width + (size_t)i,
                  a->text[(size_t)r * (size_t)a->width + (size_t)i] * a->scale);
}

void reference_norm_qkv(const op *op, int first, int end) {
    const op_norm_qkv *a = &op->norm_qkv;
    int d = a->weight.head_dim, half = d / 2, heads = a->weight.heads;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->weight.k;
        size_t place = (size_t)a->rows.sample[r] * (size_t)a->cache.capacity + (size_t)a->rows.position[r];
        const float *rope = a->rope + (size_t)a->rows.position[r] * (size_t)d;
        row_norm row = norm_row(&a->norm, a->x, op->type, at, a->weight.k);
        for (int h = 0; h <= heads; h++) {            /* q heads, then k */
            void *out = h < heads ? a->q : a->cache.k;
            size_t to = h < heads ? ((size_t)r * (size_t)heads + (size_t)h) * (size_t)d : place * (size_t)d;
            for (int i = 0; i < half; i++) {
                double x = product(&row, a->x, op->type, at, &a->weight, h * d + i);
                double y = product(&row, a->x, op->type, at, &a->weight, h * d + i + half);
                double c = rope[2 * i], s = rope[2 * i + 1];
                store(out, op->type, to + (size_t)i, (float)(x * c - y * s));
                store(out, op->type, to + (size_t)(i + half), (float)(y * c + x * s));
            }
        }
        for (int i = 0; i < d; i++)
            store(a->cache.v, op->type, place * (size_t)d + (size_t)i,
                  (float)product(&row, a->x, op->type, at, &a->weight, (heads + 1) * d + i));
    }
}

void reference_cache_attention(const op *op, int first, int end) {
    const op_cache_attention *a = &op->cache_attention;
    int d = a->cache.head_dim;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            size_t q = ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)d;
            size_t block = (size_t)a->rows.sample[r] * (size_t)a->cache.capacity * (size_t)d;
            attend_one(&(attend){a->q, a->cache.k, a->cache.v, a->out, q, block, block, q, (size_t)d, a->rows.keys[r], d, a->scale, op->type});
        }
}

void reference_state_embed(const op *op, int first, int end) {
    const op_state_embed *a = &op->state_embed;
    row_norm none = {&no_norm, 0, 1};
    for (int r = first; r < end; r++)
        for (int o = 0; o < a->weight.n; o++)
            store(a->out, op->type, (size_t)r * (size_t)a->out_stride * (size_t)a->weight.n + (size_t)o,
                  (float)(product(&none, a->state, DTYPE_F32, (size_t)r * (size_t)a->weight.k, &a->weight, o) + a->bias[o]));
}

void reference_action_embed(const op *op, int first, int end) {
    const op_action_embed *a = &op->action_embed;
    int n = a->in.n;
    row_norm none = {&no_norm, 0, 1};
    float in[4096], hidden[4096];                     /* widths up to 4096: checkpoint_open refuses more */
    for (int r = first; r < end; r++) {
        size_t to = ((size_t)(r / a->horizon) * (size_t)a->out_stride + (size_t)(a->out_offset + r % a->horizon)) * (size_t)n;
        for (int o = 0; o < n; o++)
            in[o] = (float)(product(&none, a->x, DTYPE_F32, (size_t)r * (size_t)a->in.k, &a->in, o) + a->in_bias[o]);
        if (a->mlp_in.data) {
            for (int o = 0; o < n; o++) hidden[o] = (float)silu(product(&none, in, DTYPE_F32, 0, &a->mlp_in, o) + a->time[o]);
            for (int o = 0; o < n; o++) in[o] = (float)(product(&none, hidden, DTYPE_F32, 0, &a->mlp_out, o) + a->mlp_out_bias[o]);
        }
        for (int o = 0; o < n; o++) store(a->out, op->type, to + (size_t)o, in[o]);
    }
}

void reference_velocity(const op *op, int first, int end) {
    const op_velocity *a = &op->velocity;
    int n = a->weight.n, k = a->weight.k;
    for (int r = first; r < end; r++) {
        size_t at = ((size_t)(r / a->horizon) * (size_t)a->x_stride + (size_t)(a->x_offset + r % a->horizon)) * (size_t)k;
        row_norm row = norm_row(&a->norm, a->x, op->type, at, k);
        for (int o = 0; o < n; o++) {
            size_t to = (size_t)r * (size_t)n + (size_t)o;
            float v = (float)(product(&row, a->x, op->type, at, &a->weight, o) + a->bias[o]);
            a->velocity[to] = v;
            a->x_t[to] += a->dt * v;
        }
    }
}

const reference_op reference_ops[OP_KINDS] = {
#define X(kind, member, type) [kind] = reference_##member,
    OP_LIST(X)
#undef X
};

const row_set *op_rows(const op *op) {
    switch (op->kind) {
#define X(kind, member, type) \
    case kind: return &op->member.rows;
        OP_LIST(X)
#undef X
    case OP_KINDS: break;
    }
    return NULL;
}
