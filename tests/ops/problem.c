/* One op with random operands on the host and what the scalar definition makes of them.
 *
 * Note: outputs, rows after the last one and cache places that nothing writes start as poison, on the host as
 * on the device; what the definition leaves poisoned must stay so bit for bit. */
#include "maker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reference.h"

enum { SPARE_ROWS = 3, TOKENS = OPENPI_IMAGE_TOKENS };

double random_uniform(dice *r) {
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = r->state ^ r->state >> 29;
    return (double)((x * UINT64_C(0x9E3779B97F4A7C15)) >> 40) * 0x1p-23 - 1;
}

int random_below(dice *r, int n) { return (int)((random_uniform(r) + 1) * 0.5 * n); }

double problem_value(const void *data, dtype type, size_t i) {
    return type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)data)[i]) : ((const float *)data)[i];
}

static const uint32_t poison_f32 = 0x7fc0dead;
static const bf16 poison_bf16 = 0x7fde;

void poison(void *data, dtype type, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (type == DTYPE_BF16)
            ((bf16 *)data)[i] = poison_bf16;
        else
            memcpy((float *)data + i, &poison_f32, sizeof poison_f32);
}

int is_poison(const void *data, dtype type, size_t i) {
    return type == DTYPE_BF16 ? ((const bf16 *)data)[i] == poison_bf16
                              : !memcmp((const float *)data + i, &poison_f32, sizeof poison_f32);
}

static void set(void *data, dtype type, size_t i, double value) {
    if (type == DTYPE_BF16)
        ((bf16 *)data)[i] = float_to_bf16((float)value);
    else
        ((float *)data)[i] = (float)value;
}

/* ---- operands ------------------------------------------------------------------------------------- */

static void *take(maker *m, size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) m->failed = 1;
    return memory;
}

void *maker_add(maker *m, const char *name, size_t field, role role, dtype type, size_t count, size_t used,
                double scale, double mean) {
    buffer *b = &m->p->buffers[m->p->buffer_count];
    void *data = take(m, count * dtype_bytes(type));
    if (!data) return NULL;
    m->p->buffer_count++;
    *b = (buffer){name, field, role, type, count, data, NULL, NULL};
    if (type != DTYPE_U8) poison(data, type, count);
    for (size_t i = 0; i < used; i++) set(data, type, i, mean + scale * 1.7320508 * random_uniform(m->r));
    memcpy((char *)&m->p->op + field, &data, sizeof data);
    return data;
}

static void add_ints(maker *m, const char *name, size_t field, const int32_t *values, size_t count) {
    buffer *b = &m->p->buffers[m->p->buffer_count];
    int32_t *data = take(m, count * sizeof *data);
    if (!data) return;
    m->p->buffer_count++;
    *b = (buffer){name, field, ROLE_IN, DTYPE_I32, count, data, NULL, NULL};
    memcpy(data, values, count * sizeof *data);
    memcpy((char *)&m->p->op + field, &data, sizeof data);
}

/* Element (i, j) of a matrix before it is encoded. */
static double weight_value(const maker *m, const matrix *form, size_t i, size_t j) {
    return m->p->shape.options & SHAPE_COPY ? i == j : 1.7320508 / sqrt(form->k) * random_uniform(m->r);
}

/* Row i of a matrix: made, encoded, and measured as it is decoded. `row`: k floats of scratch. */
static void fill_row(maker *m, problem_matrix *w, const matrix *form, size_t i, float *row) {
    const weight_format *format = &weight_formats[form->type];
    size_t k = (size_t)form->k, groups = (size_t)weight_groups(format, form->k);
    char *codes = (char *)w->data + i * weight_row_bytes(format, form->k);
    float *scales = w->scales ? w->scales + i * groups : NULL;
    double sum = 0;
    for (size_t j = 0; j < k; j++) set(row, DTYPE_F32, j, weight_value(m, form, i, j));
    for (size_t j = 0; j < k && !format->encode; j++) set(codes, format->source, j, row[j]);
    if (format->encode) weight_encode(format, row, form->k, codes, scales);
    weight_decode(format, codes, scales, form->k, 0, form->k, row);
    for (size_t j = 0; j < k; j++) {
        sum += (double)row[j] * row[j];
        w->top = fmaxf(w->top, fabsf(row[j]));
    }
    w->norms[i] = (float)sqrt(sum);
}

static void add_matrix(maker *m, size_t field, matrix form) {
    const weight_format *format = &weight_formats[form.type];
    problem_matrix *w = &m->p->matrices[m->p->matrix_count++];
    size_t n = (size_t)form.n;
    *w = (problem_matrix){.field = field,
                          .scale_bytes = n * (size_t)weight_groups(format, form.k) * sizeof *w->scales};
    w->data = take(m, n * weight_row_bytes(format, form.k));
    w->norms = take(m, n * sizeof *w->norms);
    w->scales = w->scale_bytes ? take(m, w->scale_bytes) : NULL;
    float *row = take(m, (size_t)form.k * sizeof *row);
    for (size_t i = 0; i < n && !m->failed; i++) fill_row(m, w, &form, i, row);
    free(row);
    form.data = w->data;
    form.scales = w->scales;
    memcpy((char *)&m->p->op + field, &form, sizeof form);
}

static matrix matrix_of(const problem *p, int n, int k, matrix_form form) {
    return (matrix){.n = n,
                    .k = k,
                    .type = p->weights,
                    .input = p->input,
                    .row_scale = p->input == INPUT_INT8 && p->shape.options & SHAPE_FIXED ? 0.02f : 0,
                    .form = form,
                    .heads = p->shape.heads,
                    .head_dim = p->shape.head_dim,
                    .raw = (p->shape.options & SHAPE_RAW) != 0};
}

void maker_add_norm(maker *m, size_t field) {
    norm *n = (norm *)((char *)&m->p->op + field);
    const op_shape *s = &m->p->shape;
    n->kind = s->norm;
    n->eps = 1e-6f;
    if (s->norm == NORM_NONE) return;
    maker_add_modulation(m, "norm weight", field + offsetof(norm, weight), s->k, 0.3,
                         s->norm == NORM_LAYER ? 1 : 0);
    if (s->norm == NORM_LAYER || s->options & SHAPE_SHIFT)
        maker_add_modulation(m, "norm bias", field + offsetof(norm, bias), s->k, 0.3, 0);
}

/* As in a model, whose columns are scale, shift and gate. */
static int known_at(const op_shape *s) { return 3 * (s->options & SHAPE_GATE ? s->n : s->k); }

void maker_add_modulation(maker *m, const char *name, size_t field, int count, double scale, double mean) {
    int known = m->p->shape.options & SHAPE_KNOWN, at = known ? known_at(&m->p->shape) : 0;
    float *data = maker_add(m, name, field, ROLE_IN, DTYPE_F32, (size_t)(at + count), (size_t)count, scale,
                            mean);
    for (int i = 0; data && known && i < count; i++)
        data[at + i] = (float)(mean + scale * 1.7320508 * random_uniform(m->r));
}

/* Neighbours, and samples that have none. */
static void add_known(maker *m, size_t field) {
    row_set *set = (row_set *)((char *)&m->p->op + field);
    int rows = m->p->shape.rows, capacity = set->capacity;
    int32_t *known = take(m, (size_t)capacity * sizeof *known);
    if (!known) return;
    for (int i = 0; i < capacity; i++) known[i] = i >= rows ? -1 : i % 7 < 2 || i == rows - 1;
    add_ints(m, "known", field + offsetof(row_set, known), known, (size_t)capacity);
    set->known_at = known_at(&m->p->shape);
    free(known);
}

void maker_add_rows(maker *m, size_t field, int start) {
    problem *p = m->p;
    int rows = p->shape.rows, capacity = rows + SPARE_ROWS;
    row_set *set = (row_set *)((char *)&p->op + field);
    int32_t *sample = take(m, (size_t)capacity * 4), *position = take(m, (size_t)capacity * 4),
            *keys = take(m, (size_t)capacity * 4);
    p->capacity = set->capacity = capacity;
    if (sample && position && keys) {
        for (int i = 0, place = 0; i < capacity; i++, place++) {
            sample[i] = i < rows ? (int)((int64_t)i * p->samples / rows) : -1;
            if (i && sample[i] != sample[i - 1]) place = 0;
            position[i] = i < rows ? start + place : -1;
            keys[i] = i < rows ? 1 + random_below(m->r, p->shape.keys > 0 ? p->shape.keys : 1) : -1;
            if (i % 3 == 0 && i < rows) keys[i] = p->shape.keys;
        }
        add_ints(m, "count", field + offsetof(row_set, count), &(int32_t){rows}, 1);
        add_ints(m, "sample", field + offsetof(row_set, sample), sample, (size_t)capacity);
        add_ints(m, "position", field + offsetof(row_set, position), position, (size_t)capacity);
        add_ints(m, "keys", field + offsetof(row_set, keys), keys, (size_t)capacity);
        if (p->shape.options & SHAPE_KNOWN) add_known(m, field);
    }
    free(sample);
    free(position);
    free(keys);
}

/* Rows go to every second one, backwards: an order that nothing could hit by accident. */
void maker_add_out_rows(maker *m, size_t field) {
    int rows = m->p->shape.rows, capacity = rows + SPARE_ROWS;
    int32_t *to = take(m, (size_t)capacity * 4);
    if (!to) return;
    for (int i = 0; i < capacity; i++) to[i] = i < rows ? 2 * (rows - 1 - i) + 1 : -1;
    add_ints(m, "out_row", field, to, (size_t)capacity);
    free(to);
}

/* x: act [capacity][k], rows in use random. */
void maker_add_act(maker *m, const char *name, size_t field, role role, int rows, int columns) {
    size_t width = (size_t)columns;
    maker_add(m, name, field, role, m->p->type, (size_t)(rows + SPARE_ROWS) * width,
              role == ROLE_OUT ? 0 : (size_t)rows * width, 1, 0);
}

void maker_add_floats(maker *m, const char *name, size_t field, int count, double scale) {
    if (m->p->shape.options & SHAPE_COPY) scale = 0;
    maker_add(m, name, field, ROLE_IN, DTYPE_F32, (size_t)count, (size_t)count, scale, 0);
}

static void make_patch_embed(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    size_t pixels = (size_t)(s->rows / TOKENS) * 224 * 224 * 3;
    int floats = s->options & SHAPE_COPY ? 0 : random_below(m->r, 2);
    maker_add_rows(m, AT(patch_embed.rows), 0);
    add_ints(m, "pixels", AT(patch_embed.pixels), &(int32_t){floats ? OPENPI_PIXELS_F32 : OPENPI_PIXELS_U8},
             1);
    add_matrix(m, AT(patch_embed.weight), matrix_of(p, s->n, s->k, MATRIX_PLAIN));
    maker_add_floats(m, "bias", AT(patch_embed.bias), s->n, 1);
    maker_add_floats(m, "position", AT(patch_embed.position), TOKENS * s->n, 1);
    maker_add_act(m, "out", AT(patch_embed.out), ROLE_OUT, s->rows, s->n);
    if (floats) {
        maker_add(m, "images", AT(patch_embed.images), ROLE_IN, DTYPE_F32, pixels, pixels, 0.5, 0);
        return;
    }
    uint8_t *bytes = maker_add(m, "images", AT(patch_embed.images), ROLE_IN, DTYPE_U8, pixels, 0, 0, 0);
    for (size_t i = 0; bytes && i < pixels; i++) bytes[i] = (uint8_t)random_below(m->r, 256);
}

static void make_norm_linear(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    int gated = (s->options & SHAPE_GATED) != 0, columns = gated ? s->n / 2 : s->n,
        scatter = (s->options & SHAPE_SCATTER) != 0;
    maker_add_rows(m, AT(norm_linear.rows), 0);
    maker_add_act(m, "x", AT(norm_linear.x), ROLE_IN, s->rows, s->k);
    maker_add_norm(m, AT(norm_linear.norm));
    add_matrix(m, AT(norm_linear.weight), matrix_of(p, s->n, s->k, gated ? MATRIX_GATED : MATRIX_PLAIN));
    if (s->options & SHAPE_BIAS) maker_add_floats(m, "bias", AT(norm_linear.bias), s->n, 1);
    if (scatter) maker_add_out_rows(m, AT(norm_linear.out_row));
    p->op.norm_linear.activation = s->activation;
    maker_add_act(m, "out", AT(norm_linear.out), ROLE_OUT, scatter ? 2 * s->rows : s->rows, columns);
}

/* The first `columns` of each row. */
static void make_loud(const problem *p, void *data, size_t width, size_t columns) {
    for (size_t r = 0; data && r < (size_t)p->shape.rows; r++)
        for (size_t i = r * width; i < r * width + columns; i++)
            set(data, p->type, i, LOUD * problem_value(data, p->type, i));
}

static void make_image_attention(maker *m) {
    const op_shape *s = &m->p->shape;
    size_t width = (size_t)s->heads * (size_t)s->head_dim;
    maker_add_rows(m, AT(image_attention.rows), 0);
    maker_add_act(m, "qkv", AT(image_attention.qkv), ROLE_IN, s->rows, (int)(3 * width));
    buffer *qkv = problem_buffer(m->p, "qkv");
    if (qkv && s->options & SHAPE_LOUD) make_loud(m->p, qkv->data, 3 * width, width);
    maker_add_act(m, "out", AT(image_attention.out), ROLE_OUT, s->rows, s->heads * s->head_dim);
    m->p->op.image_attention.heads = s->heads;
    m->p->op.image_attention.head_dim = s->head_dim;
    m->p->op.image_attention.scale = 1 / sqrtf((float)s->head_dim);
}

/* By turns zeros of both signs, one channel 2¹⁴ times as large as the others, numbers too small for 8-bit
 * codes, and two ordinary rows. */
static void make_hard(const problem *p, void *data) {
    size_t k = (size_t)p->shape.k;
    for (size_t r = 0; data && r < (size_t)p->shape.rows; r++)
        for (size_t i = 0; i < k; i++) {
            double value = problem_value(data, p->type, r * k + i);
            if (r % 5 == 0) value = i % 2 ? -0.0 : 0.0;
            if (r % 5 == 1 && i == k / 3) value *= 0x1p14;
            if (r % 5 == 2) value *= 0x1p-110;
            set(data, p->type, r * k + i, value);
        }
}

static void make_linear_residual(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    maker_add_rows(m, AT(linear_residual.rows), 0);
    maker_add_act(m, "a", AT(linear_residual.a), ROLE_IN, s->rows, s->k);
    if (s->options & SHAPE_HARD && !m->failed) make_hard(p, problem_buffer(p, "a")->data);
    add_matrix(m, AT(linear_residual.weight), matrix_of(p, s->n, s->k, MATRIX_PLAIN));
    if (s->options & SHAPE_BIAS) maker_add_floats(m, "bias", AT(linear_residual.bias), s->n, 1);
    if (s->options & SHAPE_GATE) maker_add_modulation(m, "gate", AT(linear_residual.gate), s->n, 1, 0);
    maker_add_act(m, "x", AT(linear_residual.x), ROLE_INOUT, s->rows, s->n);
}

/* Any rows of the table, among them the first and the last. */
static void add_ids(maker *m, size_t field) {
    int rows = m->p->shape.rows, vocabulary = m->p->shape.k, capacity = rows + SPARE_ROWS;
    int32_t *ids = take(m, (size_t)capacity * sizeof *ids);
    if (!ids) return;
    for (int i = 0; i < capacity; i++) ids[i] = i < rows ? random_below(m->r, vocabulary) : -1;
    ids[0] = vocabulary - 1;
    ids[rows - 1] = 0;
    add_ints(m, "ids", field, ids, (size_t)capacity);
    free(ids);
}

static void make_embed_text(maker *m) {
    const op_shape *s = &m->p->shape;
    size_t count = (size_t)s->k * (size_t)s->n;
    maker_add_rows(m, AT(embed_text.rows), 0);
    add_ids(m, AT(embed_text.ids));
    maker_add(m, "table", AT(embed_text.table.data), ROLE_IN, weight_formats[m->p->weights].source, count,
              count, 0.02, 0);
    matrix *table = &m->p->op.embed_text.table;
    *table = (matrix){
        .data = table->data, .n = s->k, .k = s->n, .type = m->p->weights, .form = MATRIX_PLAIN, .raw = 1};
    maker_add_out_rows(m, AT(embed_text.out_row));
    m->p->op.embed_text.scale = sqrtf((float)s->n);
    maker_add_act(m, "out", AT(embed_text.out), ROLE_OUT, 2 * s->rows, s->n);
}

void maker_add_cache(maker *m, size_t field, int capacity, int used) {
    problem *p = m->p;
    kv_cache *cache = (kv_cache *)((char *)&p->op + field);
    size_t block = (size_t)capacity * (size_t)p->shape.head_dim, count = (size_t)p->samples * block;
    cache->capacity = capacity;
    cache->head_dim = p->shape.head_dim;
    maker_add(m, "cache k", field + offsetof(kv_cache, k), ROLE_KEYS, p->type, count, 0, 0, 0);
    maker_add(m, "cache v", field + offsetof(kv_cache, v), ROLE_VALUES, p->type, count, 0, 0, 0);
    if (m->failed) return;
    for (int b = 0; b < p->samples; b++)
        for (size_t i = 0; i < (size_t)used * (size_t)p->shape.head_dim; i++) {
            set(cache->k, p->type, (size_t)b * block + i, 1.7320508 * random_uniform(m->r));
            set(cache->v, p->type, (size_t)b * block + i, 1.7320508 * random_uniform(m->r));
        }
}

void maker_add_rope(maker *m, size_t field, int places) {
    int half = m->p->shape.head_dim / 2;
    float *rope =
        maker_add(m, "rope", field, ROLE_IN, DTYPE_F32, (size_t)(places * m->p->shape.head_dim), 0, 0, 0);
    for (int i = 0; rope && i < places * half; i++) {
        double angle = i / half / pow(10000, (double)(i % half) / half);
        rope[2 * i] = (float)cos(angle);
        rope[2 * i + 1] = (float)sin(angle);
    }
}

static void make_norm_qkv(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    int start = 1 + random_below(m->r, 40), capacity = start + s->rows + random_below(m->r, 40);
    maker_add_rows(m, AT(norm_qkv.rows), start);
    maker_add_act(m, "x", AT(norm_qkv.x), ROLE_IN, s->rows, s->k);
    maker_add_norm(m, AT(norm_qkv.norm));
    add_matrix(m, AT(norm_qkv.weight), matrix_of(p, s->n, s->k, MATRIX_QKV));
    maker_add_rope(m, AT(norm_qkv.rope), capacity);
    if (s->heads) maker_add_act(m, "q", AT(norm_qkv.q), ROLE_OUT, s->rows, s->heads * s->head_dim);
    maker_add_cache(m, AT(norm_qkv.cache), capacity, 0);
}

/* In the denoise stage a kernel may read the keys before a sample's first position early. */
static void make_cache_attention(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    maker_add_rows(m, AT(cache_attention.rows), s->keys / 2);
    size_t width = (size_t)s->heads * (size_t)s->head_dim;
    maker_add_act(m, "q", AT(cache_attention.q), ROLE_IN, s->rows, (int)width);
    buffer *q = problem_buffer(p, "q");
    if (q && s->options & SHAPE_LOUD) make_loud(p, q->data, width, width);
    maker_add_cache(m, AT(cache_attention.cache), s->keys + random_below(m->r, 40), s->keys);
    p->op.cache_attention.heads = s->heads;
    p->op.cache_attention.scale = 1 / sqrtf((float)s->head_dim);
    maker_add_act(m, "out", AT(cache_attention.out), ROLE_OUT, s->rows, s->heads * s->head_dim);
}

static void make_state_embed(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    maker_add_rows(m, AT(state_embed.rows), 0);
    maker_add_floats(m, "state", AT(state_embed.state), s->rows * s->k, 1);
    add_matrix(m, AT(state_embed.weight), matrix_of(p, s->n, s->k, MATRIX_PLAIN));
    maker_add_floats(m, "bias", AT(state_embed.bias), s->n, 1);
    p->op.state_embed.out_stride = 3;
    maker_add_act(m, "out", AT(state_embed.out), ROLE_OUT, 3 * s->rows, s->n);
}

static void make_action_embed(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_action_embed *a = &p->op.action_embed;
    a->horizon = s->rows % 2 ? s->rows : s->rows / 2;
    a->out_offset = 1;
    a->out_stride = a->horizon + 2;
    maker_add_rows(m, AT(action_embed.rows), 0);
    maker_add_floats(m, "x", AT(action_embed.x), s->rows * s->k, 1);
    matrix in = matrix_of(p, s->n, s->k, MATRIX_PLAIN);
    if (s->options & SHAPE_MERGED) in.type = WEIGHT_F32;
    else maker_add_floats(m, "in_bias", AT(action_embed.in_bias), s->n, 1);
    add_matrix(m, AT(action_embed.in), in);
    if (s->options & SHAPE_MLP) {
        if (!(s->options & SHAPE_MERGED))
            add_matrix(m, AT(action_embed.mlp_in), matrix_of(p, s->n, s->n, MATRIX_PLAIN));
        add_matrix(m, AT(action_embed.mlp_out), matrix_of(p, s->n, s->n, MATRIX_PLAIN));
        maker_add_floats(m, "time", AT(action_embed.time), s->n, 1);
        maker_add_floats(m, "mlp_out_bias", AT(action_embed.mlp_out_bias), s->n, 1);
    }
    maker_add_act(m, "out", AT(action_embed.out), ROLE_OUT, s->rows / a->horizon * a->out_stride, s->n);
}

static void make_velocity(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_velocity *a = &p->op.velocity;
    a->horizon = s->rows % 2 ? s->rows : s->rows / 2;
    a->x_offset = 1;
    a->x_stride = a->horizon + 2;
    a->dt = -0.1f;
    maker_add_rows(m, AT(velocity.rows), 0);
    maker_add_act(m, "x", AT(velocity.x), ROLE_IN, s->rows / a->horizon * a->x_stride, s->k);
    maker_add_norm(m, AT(velocity.norm));
    add_matrix(m, AT(velocity.weight), matrix_of(p, s->n, s->k, MATRIX_PLAIN));
    maker_add_floats(m, "bias", AT(velocity.bias), s->n, 1);
    size_t count = (size_t)(s->rows * s->n), capacity = (size_t)((s->rows + SPARE_ROWS) * s->n);
    maker_add(m, "velocity", AT(velocity.velocity), ROLE_OUT, DTYPE_F32, capacity, 0, 0, 0);
    maker_add(m, "x_t", AT(velocity.x_t), ROLE_INOUT, DTYPE_F32, capacity, count, 1, 0);
}

/* Every third row is not guided; its operands are random all the same. */
static void make_guide(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_guide *a = &p->op.guide;
    size_t count = (size_t)(s->rows * s->n), capacity = (size_t)((s->rows + SPARE_ROWS) * s->n);
    a->n = s->n;
    a->t = 0.7f;
    maker_add_rows(m, AT(guide.rows), 0);
    maker_add_floats(m, "target", AT(guide.target), s->rows * s->n, 1);
    maker_add_floats(m, "gain", AT(guide.gain), s->rows, 1);
    maker_add_floats(m, "velocity", AT(guide.velocity), s->rows * s->n, 1);
    float *weight = maker_add(m, "weight", AT(guide.weight), ROLE_IN, DTYPE_F32,
                              (size_t)(s->rows + SPARE_ROWS), (size_t)s->rows, 1, 0);
    for (int r = 0; weight && r < s->rows; r += 3) weight[r] = 0;
    maker_add(m, "x_t", AT(guide.x_t), ROLE_INOUT, DTYPE_F32, capacity, count, 1, 0);
}

static void (*const makers[OP_KINDS])(maker *m) = {
#define X(kind, member, type) [kind] = make_##member,
    OP_LIST(X)
#undef X
};

/* ---- what the definition makes of them ------------------------------------------------------------ */

typedef struct row_loop {
    const op *op;
    const problem *problem;
    char *scratch;               /* [threads][bytes] */
    size_t bytes;
} row_loop;

/* The first and the last row, and others evenly between them. */
static int checked_row(const problem *p, int i) {
    if (p->checked >= p->shape.rows) return i;
    return p->checked < 2 ? 0 : (int)((int64_t)i * (p->shape.rows - 1) / (p->checked - 1));
}

int problem_checks(const problem *p, int row) {
    if (p->checked >= p->shape.rows) return 1;
    int near = (int)((int64_t)row * (p->checked - 1) / (p->shape.rows - 1));
    for (int i = near > 0 ? near - 1 : 0; i <= near + 1 && i < p->checked; i++)
        if (checked_row(p, i) == row) return 1;
    return 0;
}

static void run_rows(void *argument, int task, int worker) {
    const row_loop *l = argument;
    int row = checked_row(l->problem, task);
    reference_ops[l->op->kind](l->op, row, row + 1, l->scratch + (size_t)worker * l->bytes);
}

static int compute_expected(problem *p, pool *pool) {
    op op = p->op;
    for (int i = 0; i < p->buffer_count; i++) {
        buffer *b = &p->buffers[i];
        if (b->role == ROLE_IN) continue;
        b->expected = malloc(b->count * dtype_bytes(b->type));
        b->bound = calloc(b->count, sizeof *b->bound);
        if (!b->expected || !b->bound) return 0;
        memcpy(b->expected, b->data, b->count * dtype_bytes(b->type));
        memcpy((char *)&op + b->field, &b->expected, sizeof b->expected);
    }
    row_loop loop = {&op, p, NULL, reference_bytes(&op)};
    if (!(loop.scratch = malloc(loop.bytes * (size_t)pool_threads(pool) + 1))) return 0;
    pool_run(pool, run_rows, &loop, p->checked < p->shape.rows ? p->checked : p->shape.rows);
    free(loop.scratch);
    bounds_fill(p);
    return 1;
}

static matrix_input input_of(op_kind kind, weight_type weights) {
    int takes = kind == OP_NORM_LINEAR || kind == OP_LINEAR_RESIDUAL || kind == OP_NORM_QKV;
    return takes && weights == WEIGHT_INT8_ROW ? INPUT_INT8 : INPUT_ACT;
}

int problem_make(problem *p, const op_shape *shape, dtype type, weight_type weights, int samples, dice *r,
                 pool *pool, int checked) {
    maker m = {p, r, 0};
    *p = (problem){.shape = *shape,
                   .type = type,
                   .weights = weights,
                   .input = input_of(shape->kind, weights),
                   .samples = samples,
                   .checked = checked};
    if (shape->options & SHAPE_BATCH) p->samples = OPENPI_MAX_BATCH;
    if (p->samples > shape->rows) p->samples = shape->rows;
    p->op = (op){.kind = shape->kind, .type = type, .step = -1, .layer = -1, .name = shape->name};
    makers[shape->kind](&m);
    int few = shape->rows / p->samples <= OPENPI_MAX_HORIZON;
    if (few && (random_below(r, 2) || shape->options & SHAPE_SUFFIX))
        p->op.stage = OPENPI_STAGE_DENOISE;
    if (!m.failed && (!checked || compute_expected(p, pool))) return 1;
    problem_free(p);
    return 0;
}

void problem_free(problem *p) {
    for (int i = 0; i < p->buffer_count; i++) {
        free(p->buffers[i].data);
        free(p->buffers[i].expected);
        free(p->buffers[i].bound);
    }
    for (int i = 0; i < p->matrix_count; i++) {
        free(p->matrices[i].data);
        free(p->matrices[i].norms);
        free(p->matrices[i].scales);
    }
    *p = (problem){.buffer_count = 0};
}

buffer *problem_buffer(problem *p, const char *name) {
    for (int i = 0; i < p->buffer_count; i++)
        if (!strcmp(p->buffers[i].name, name)) return &p->buffers[i];
    return NULL;
}
