/* The definition of every operation in scalar C. The formulas are in ops.h; MODEL.md says where in the
 * model each is used. */
#include "ops/int8_rows.h"
#include "ops/limits.h"
#include "ops/reference.h"
#include "ops/scalar.h"

enum { PATCH = 14, PATCHES = 16, IMAGE = 224, CHANNELS = 3, PATCH_INPUTS = PATCH * PATCH * CHANNELS };

/* Weights first … first+count-1 of row o of a matrix. All definitions read weights through here. */
static void read_weights(const matrix *w, int o, int first, int count, float *out) {
    const weight_format *format = &weight_formats[w->type];
    const char *codes = (const char *)w->data + (size_t)o * weight_row_bytes(format, w->k);
    const float *scales = w->scales ? w->scales + (size_t)o * (size_t)weight_groups(format, w->k) : NULL;
    weight_decode(format, codes, scales, w->k, first, count, out);
}

/* A row as products read it. */
typedef struct input {
    const float *row;            /* [k]; INPUT_INT8: its codes                                            */
    float scale;                 /* INPUT_INT8 only                                                       */
} input;

static input fixed_input(const matrix *weight, float *row) {
    const int8_row fixed = int8_row_fixed(weight->row_scale);
    int8_lost lost = {0};
    for (int i = 0; i < weight->k; i++) row[i] = int8_fixed_code(row[i], fixed.inverse, &lost);
    int8_row_count(weight->counts, lost);
    return (input){row, fixed.scale};
}

/* `row` [k] becomes its codes where the matrix wants them. */
static input input_of(const matrix *weight, float *row) {
    if (weight->input == INPUT_ACT) return (input){row, 1};
    if (weight->row_scale > 0) return fixed_input(weight, row);
    int8_row own = int8_row_of(int8_row_top(row, weight->k, 0));
    int8_row_codes(own, row, weight->k, row);
    return (input){row, own.scale};
}

_Static_assert((int64_t)LIMIT_INPUTS * 127 * 127 <= INT32_MAX, "a sum of 8-bit products fits int32");

static double integer_product(input x, const matrix *weight, int o) {
    const int8_t *codes = (const int8_t *)weight->data + (size_t)o * (size_t)weight->k;
    int32_t sum = 0;
    for (int i = 0; i < weight->k; i++) sum += (int32_t)x.row[i] * codes[i];
    return (float)sum * (x.scale * weight->scales[o]);
}

/* Output o of x·Wᵀ. */
static double product(input x, const matrix *weight, int o) {
    enum { PIECE = 256 };
    if (weight->input == INPUT_INT8) return integer_product(x, weight, o);
    double sum[PARTIAL_SUMS] = {0};
    float weights[PIECE];
    for (int at = 0, count; at < weight->k; at += count) {
        count = weight->k - at < PIECE ? weight->k - at : PIECE;
        read_weights(weight, o, at, count, weights);
        dot_add(sum, x.row + at, weights, count);
    }
    return dot_end(sum);
}

void reference_patch_embed(const op *op, int first, int end, void *scratch) {
    const op_patch_embed *a = &op->patch_embed;
    int n = a->weight.n, floats = *a->pixels == OPENPI_PIXELS_F32;
    float row[PATCH_INPUTS];
    (void)scratch;
    for (int r = first; r < end; r++) {
        int patch = r % (PATCHES * PATCHES), top = patch / PATCHES * PATCH, left = patch % PATCHES * PATCH;
        size_t image = (size_t)(r / (PATCHES * PATCHES)) * IMAGE * IMAGE * CHANNELS;
        for (int i = 0; i < PATCH_INPUTS; i++) {
            int c = i / (PATCH * PATCH), y = top + i / PATCH % PATCH, x = left + i % PATCH;
            size_t at = image + ((size_t)y * IMAGE + (size_t)x) * CHANNELS + (size_t)c;
            row[i] = floats ? ((const float *)a->images)[at]
                            : (float)((const uint8_t *)a->images)[at] / 255.0f * 2.0f - 1.0f;
        }
        for (int o = 0; o < n; o++) {
            float value = (float)(product((input){row, 1}, &a->weight, o) + a->bias[o]) +
                          a->position[(size_t)patch * (size_t)n + (size_t)o];
            store(a->out, op->type, (size_t)r * (size_t)n + (size_t)o, value);
        }
    }
}

void reference_norm_linear(const op *op, int first, int end, void *scratch) {
    const op_norm_linear *a = &op->norm_linear;
    int gated = a->weight.form == MATRIX_GATED, m = gated ? a->weight.n / 2 : a->weight.n;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->weight.k,
               to = (size_t)(a->out_row ? a->out_row[r] : r) * (size_t)m;
        norm own = norm_of_row(&a->norm, &a->rows, r);
        norm_row(&own, a->x, op->type, at, a->weight.k, row);
        input in = input_of(&a->weight, row);
        for (int o = 0; o < m; o++) {
            double y = product(in, &a->weight, o) + (a->bias ? a->bias[o] : 0);
            y = a->activation == ACT_NONE ? y : a->activation == ACT_SILU ? silu(y) : gelu(y);
            if (gated) y *= product(in, &a->weight, m + o) + (a->bias ? a->bias[m + o] : 0);
            store(a->out, op->type, to + (size_t)o, (float)y);
        }
    }
}

/* Softmax-weighted sum for one query and head: keys and values are `stride` elements apart. */
typedef struct attend {
    const void *q, *k, *v;
    void *out;
    size_t q_at, k_at, v_at, out_at, stride;
    int keys, head_dim;
    float scale;
    dtype type;
} attend;

static void attend_one(double *p, const attend *a) { /* p [keys] */
    double out[LIMIT_HEAD_DIM] = {0}, top = -HUGE_VAL, sum = 0;
    float q[LIMIT_HEAD_DIM], row[LIMIT_HEAD_DIM];
    load_acts(a->q, a->type, a->q_at, a->head_dim, q);
    for (int j = 0; j < a->keys; j++) {
        load_acts(a->k, a->type, a->k_at + (size_t)j * a->stride, a->head_dim, row);
        p[j] = dot(q, row, a->head_dim) * a->scale;
        top = fmax(top, p[j]);
    }
    for (int j = 0; j < a->keys; j++) sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < a->keys; j++) {
        double share = round_to(a->type, (float)(p[j] / sum));
        load_acts(a->v, a->type, a->v_at + (size_t)j * a->stride, a->head_dim, row);
        for (int i = 0; i < a->head_dim; i++) out[i] += share * row[i];
    }
    for (int i = 0; i < a->head_dim; i++) store(a->out, a->type, a->out_at + (size_t)i, (float)out[i]);
}

void reference_image_attention(const op *op, int first, int end, void *scratch) {
    const op_image_attention *a = &op->image_attention;
    size_t width = (size_t)a->heads * (size_t)a->head_dim, stride = a->planar ? width : 3 * width;
    size_t next = a->planar ? (size_t)a->rows.capacity * width : width;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            size_t head = (size_t)h * (size_t)a->head_dim,
                   image = (size_t)(r / OPENPI_IMAGE_TOKENS * OPENPI_IMAGE_TOKENS) * stride;
            attend_one(scratch, &(attend){.q = a->qkv,
                                          .k = a->qkv,
                                          .v = a->qkv,
                                          .out = a->out,
                                          .q_at = (size_t)r * stride + head,
                                          .k_at = image + next + head,
                                          .v_at = image + 2 * next + head,
                                          .out_at = (size_t)r * width + head,
                                          .stride = stride,
                                          .keys = OPENPI_IMAGE_TOKENS,
                                          .head_dim = a->head_dim,
                                          .scale = a->scale,
                                          .type = op->type});
        }
}

void reference_linear_residual(const op *op, int first, int end, void *scratch) {
    const op_linear_residual *a = &op->linear_residual;
    int n = a->weight.n, k = a->weight.k;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        const float *gate = a->gate ? a->gate + modulation_of(&a->rows, r) : NULL;
        load_acts(a->a, op->type, (size_t)r * (size_t)k, k, row);
        input in = input_of(&a->weight, row);
        for (int o = 0; o < n; o++) {
            size_t at = (size_t)r * (size_t)n + (size_t)o;
            double y = product(in, &a->weight, o) + (a->bias ? a->bias[o] : 0);
            store(a->x, op->type, at, (float)(load(a->x, op->type, at) + y * (gate ? gate[o] : 1)));
        }
    }
}

void reference_embed_text(const op *op, int first, int end, void *scratch) {
    const op_embed_text *a = &op->embed_text;
    int width = a->table.k;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        read_weights(&a->table, a->ids[r], 0, width, row);
        for (int i = 0; i < width; i++)
            store(a->out, op->type, (size_t)a->out_row[r] * (size_t)width + (size_t)i, row[i] * a->scale);
    }
}

void reference_norm_qkv(const op *op, int first, int end, void *scratch) {
    const op_norm_qkv *a = &op->norm_qkv;
    int d = a->weight.head_dim, half = d / 2, heads = a->weight.heads;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->weight.k;
        size_t place = (size_t)a->rows.sample[r] * (size_t)a->cache.capacity + (size_t)a->rows.position[r];
        const float *rope = a->rope + (size_t)a->rows.position[r] * (size_t)d;
        norm own = norm_of_row(&a->norm, &a->rows, r);
        norm_row(&own, a->x, op->type, at, a->weight.k, row);
        input in = input_of(&a->weight, row);
        for (int h = 0; h <= heads; h++) {            /* q heads, then k */
            void *out = h < heads ? a->q : a->cache.k;
            size_t to = h < heads ? ((size_t)r * (size_t)heads + (size_t)h) * (size_t)d : place * (size_t)d;
            for (int i = 0; i < half; i++) {
                double x = product(in, &a->weight, h * d + i);
                double y = product(in, &a->weight, h * d + i + half);
                double c = rope[2 * i], s = rope[2 * i + 1];
                store(out, op->type, to + (size_t)i, (float)(x * c - y * s));
                store(out, op->type, to + (size_t)(i + half), (float)(y * c + x * s));
            }
        }
        for (int i = 0; i < d; i++)
            store(a->cache.v, op->type, place * (size_t)d + (size_t)i,
                  (float)product(in, &a->weight, (heads + 1) * d + i));
    }
}

void reference_cache_attention(const op *op, int first, int end, void *scratch) {
    const op_cache_attention *a = &op->cache_attention;
    int d = a->cache.head_dim;
    for (int r = first; r < end; r++)
        for (int h = 0; h < a->heads; h++) {
            size_t q = ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)d;
            size_t block = (size_t)a->rows.sample[r] * (size_t)a->cache.capacity * (size_t)d;
            attend_one(scratch, &(attend){.q = a->q,
                                          .k = a->cache.k,
                                          .v = a->cache.v,
                                          .out = a->out,
                                          .q_at = q,
                                          .k_at = block,
                                          .v_at = block,
                                          .out_at = q,
                                          .stride = (size_t)d,
                                          .keys = a->rows.keys[r],
                                          .head_dim = d,
                                          .scale = a->scale,
                                          .type = op->type});
        }
}

void reference_state_embed(const op *op, int first, int end, void *scratch) {
    const op_state_embed *a = &op->state_embed;
    (void)scratch;
    for (int r = first; r < end; r++) {
        input in = {a->state + (size_t)r * (size_t)a->weight.k, 1};
        for (int o = 0; o < a->weight.n; o++)
            store(a->out, op->type, (size_t)r * (size_t)a->out_stride * (size_t)a->weight.n + (size_t)o,
                  (float)(product(in, &a->weight, o) + a->bias[o]));
    }
}

void reference_action_embed(const op *op, int first, int end, void *scratch) {
    const op_action_embed *a = &op->action_embed;
    int n = a->in.n, products = action_embed_products(a);
    float *in = scratch, *hidden = in + n;
    for (int r = first; r < end; r++) {
        size_t to =
            ((size_t)(r / a->horizon) * (size_t)a->out_stride + (size_t)(a->out_offset + r % a->horizon)) *
            (size_t)n;
        const float *x = a->x + (size_t)r * (size_t)a->in.k;
        if (products != 2)
            for (int o = 0; o < n; o++) in[o] = (float)(product((input){x, 1}, &a->in, o) + a->in_bias[o]);
        if (products > 1) {
            const matrix *to_hidden = products == 3 ? &a->mlp_in : &a->in;
            if (products == 3) x = in;
            const float *time = a->time + modulation_of(&a->rows, r);
            for (int o = 0; o < n; o++)
                hidden[o] = (float)silu(product((input){x, 1}, to_hidden, o) + time[o]);
            for (int o = 0; o < n; o++)
                in[o] = (float)(product((input){hidden, 1}, &a->mlp_out, o) + a->mlp_out_bias[o]);
        }
        for (int o = 0; o < n; o++) store(a->out, op->type, to + (size_t)o, in[o]);
    }
}

void reference_velocity(const op *op, int first, int end, void *scratch) {
    const op_velocity *a = &op->velocity;
    int n = a->weight.n, k = a->weight.k;
    float *row = scratch;
    for (int r = first; r < end; r++) {
        size_t at =
            ((size_t)(r / a->horizon) * (size_t)a->x_stride + (size_t)(a->x_offset + r % a->horizon)) *
            (size_t)k;
        norm own = norm_of_row(&a->norm, &a->rows, r);
        float dt = dt_of_row(&a->rows, a->own_dt, a->dt, r);
        norm_row(&own, a->x, op->type, at, k, row);
        for (int o = 0; o < n; o++) {
            size_t to = (size_t)r * (size_t)n + (size_t)o;
            float v = (float)(product((input){row, 1}, &a->weight, o) + a->bias[o]);
            a->velocity[to] = v;
            if (dt != 0) a->x_t[to] += dt * v;
        }
    }
}

void reference_guide(const op *op, int first, int end, void *scratch) {
    const op_guide *a = &op->guide;
    (void)scratch;
    for (int r = first; r < end; r++) {
        float w = a->weight[r], gain = a->gain[a->rows.sample[r]];
        for (int i = 0; i < a->n && w != 0; i++) {
            size_t at = (size_t)r * (size_t)a->n + (size_t)i;
            double error = (a->target[at] - (a->x_t[at] - (double)a->t * a->velocity[at])) * w;
            a->x_t[at] = (float)(a->x_t[at] + gain * error);
        }
    }
}

size_t reference_bytes(const op *op) {
    size_t floats = 0;
    switch (op->kind) {
    case OP_NORM_LINEAR: floats = (size_t)op->norm_linear.weight.k; break;
    case OP_LINEAR_RESIDUAL: floats = (size_t)op->linear_residual.weight.k; break;
    case OP_NORM_QKV: floats = (size_t)op->norm_qkv.weight.k; break;
    case OP_VELOCITY: floats = (size_t)op->velocity.weight.k; break;
    case OP_EMBED_TEXT: floats = (size_t)op->embed_text.table.k; break;
    case OP_ACTION_EMBED: floats = 2 * (size_t)op->action_embed.in.n; break;
    case OP_NORM: floats = (size_t)op->norm.n; break;
    case OP_IMAGE_ATTENTION: return OPENPI_IMAGE_TOKENS * sizeof(double);
    case OP_CACHE_ATTENTION: return (size_t)op->cache_attention.cache.capacity * sizeof(double);
    default: break;
    }
    return (floats * sizeof(float) + 63) / 64 * 64;
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
