/* Operands of the ops that fused ones are made of, and how far a fast version may be from their
 * definition. */
#include <math.h>

#include "bounds.h"
#include "maker.h"
#include "ops/reference.h"

enum { SPARE = 3 };

static int has(const problem *p, int option) { return (p->shape.options & option) != 0; }

/* ---- operands ------------------------------------------------------------------------------------- */

void make_norm(maker *m) {
    const op_shape *s = &m->p->shape;
    maker_add_rows(m, AT(norm.rows), 0);
    maker_add_act(m, "x", AT(norm.x), ROLE_IN, s->rows, s->k);
    maker_add_norm(m, AT(norm.norm));
    m->p->op.norm.n = s->k;
    maker_add_act(m, "out", AT(norm.out), ROLE_OUT, s->rows, s->k);
}

void make_activate(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    maker_add_rows(m, AT(activate.rows), 0);
    if (has(p, SHAPE_BIAS)) maker_add_floats(m, "bias", AT(activate.bias), s->n, 1);
    if (has(p, SHAPE_GATED)) maker_add_act(m, "up", AT(activate.up), ROLE_IN, s->rows, s->n);
    if (has(p, SHAPE_SCATTER)) maker_add_out_rows(m, AT(activate.row));
    p->op.activate.n = s->n;
    p->op.activate.activation = s->activation;
    maker_add_act(m, "x", AT(activate.x), ROLE_INOUT, has(p, SHAPE_SCATTER) ? 2 * s->rows : s->rows, s->n);
}

void make_add(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    maker_add_rows(m, AT(add.rows), 0);
    maker_add_act(m, "y", AT(add.y), ROLE_IN, s->rows, s->n);
    if (has(p, SHAPE_BIAS)) maker_add_floats(m, "bias", AT(add.bias), s->n, 1);
    if (has(p, SHAPE_GATE)) maker_add_modulation(m, "gate", AT(add.gate), s->n, 1, 0);
    p->op.add.n = s->n;
    maker_add_act(m, "x", AT(add.x), ROLE_INOUT, s->rows, s->n);
}

/* Strides wider than the rows. */
void make_rope_cache(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_rope_cache *a = &p->op.rope_cache;
    int start = 1 + random_below(m->r, 40), capacity = start + s->rows + random_below(m->r, 40);
    a->heads = s->heads;
    a->q_stride = s->heads * s->head_dim + 5;
    a->kv_stride = s->head_dim + 3;
    maker_add_rows(m, AT(rope_cache.rows), start);
    if (s->heads) maker_add_act(m, "q_in", AT(rope_cache.q_in), ROLE_IN, s->rows, a->q_stride);
    maker_add_act(m, "k_in", AT(rope_cache.k_in), ROLE_IN, s->rows, a->kv_stride);
    maker_add_act(m, "v_in", AT(rope_cache.v_in), ROLE_IN, s->rows, a->kv_stride);
    maker_add_rope(m, AT(rope_cache.rope), capacity);
    if (s->heads) maker_add_act(m, "q", AT(rope_cache.q), ROLE_OUT, s->rows, s->heads * s->head_dim);
    maker_add_cache(m, AT(rope_cache.cache), capacity, 0);
}

static int places_of(const op_shape *s) { return (s->keys + 31) / 32 * 32; }

static void add_attended(maker *m, size_t field, attended *a) {
    const op_shape *s = &m->p->shape;
    if (!has(m->p, SHAPE_IMAGE)) {
        maker_add_cache(m, field + offsetof(attended, cache), places_of(s) + random_below(m->r, 40), s->keys);
        return;
    }
    a->stride = s->heads * s->head_dim + 7;
    maker_add_act(m, "image", field + offsetof(attended, image), ROLE_IN, s->rows, a->stride);
}

static size_t score_count(const op_shape *s, int rows) {
    return (size_t)rows * (size_t)s->heads * (size_t)places_of(s);
}

void make_scores(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_scores *a = &p->op.scores;
    a->heads = s->heads;
    a->head_dim = s->head_dim;
    a->scale = 1 / sqrtf((float)s->head_dim);
    a->q_stride = s->heads * s->head_dim + (has(p, SHAPE_IMAGE) ? 7 : 0);
    a->places = places_of(s);
    maker_add_rows(m, AT(scores.rows), 0);
    maker_add_act(m, "q", AT(scores.q), ROLE_IN, s->rows, a->q_stride);
    add_attended(m, AT(scores.keys), &a->keys);
    maker_add(m, "scores", AT(scores.scores), ROLE_OUT, DTYPE_F32, score_count(s, s->rows + SPARE), 0, 0, 0);
}

/* Scores where there are keys, poison after them. `shares`: they are probabilities already, values of act. */
static void add_scores(maker *m, size_t field, role role, int shares) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    int places = places_of(s);
    float *scores = maker_add(m, "scores", field, role, DTYPE_F32, score_count(s, s->rows + SPARE), 0, 0, 0);
    const buffer *keys = problem_buffer(p, "keys");
    if (!scores || !keys) return;
    for (int r = 0; r < s->rows; r++)
        for (int h = 0; h < s->heads; h++)
            for (int j = 0, count = ((const int32_t *)keys->data)[r]; j < count; j++) {
                double x = random_uniform(m->r);
                float y = (float)(shares ? (1 + x) / count : has(p, SHAPE_LOUD) ? 4 * LOUD * x : 4 * x);
                scores[((size_t)r * (size_t)s->heads + (size_t)h) * (size_t)places + (size_t)j] =
                    p->type == DTYPE_BF16 && shares ? bf16_to_float(float_to_bf16(y)) : y;
            }
}

void make_softmax(maker *m) {
    const op_shape *s = &m->p->shape;
    maker_add_rows(m, AT(softmax.rows), 0);
    m->p->op.softmax.heads = s->heads;
    m->p->op.softmax.places = places_of(s);
    add_scores(m, AT(softmax.scores), ROLE_INOUT, 0);
}

void make_values(maker *m) {
    problem *p = m->p;
    const op_shape *s = &p->shape;
    op_values *a = &p->op.values;
    a->heads = s->heads;
    a->head_dim = s->head_dim;
    a->places = places_of(s);
    maker_add_rows(m, AT(values.rows), 0);
    add_scores(m, AT(values.scores), ROLE_IN, 1);
    add_attended(m, AT(values.values), &a->values);
    maker_add_act(m, "out", AT(values.out), ROLE_OUT, s->rows, s->heads * s->head_dim);
}

/* ---- bounds --------------------------------------------------------------------------------------- */

/* The statistics, the three operations of the norm. */
void bound_norm(problem *p, int r) {
    const op_norm *a = &p->op.norm;
    const norm own = norm_of_row(&a->norm, &a->rows, r);
    row_size size = bounds_row(&own, a->x, p->type, (size_t)r * (size_t)a->n, a->n);
    bounds_fill_row(p, problem_buffer(p, "out"), (size_t)r * (size_t)a->n, a->n,
                    16 * bounds_unit * (size.top + 1));
}

/* The function's own error; a slope of at most 1.15. */
void bound_activate(problem *p, int r) {
    const op_activate *a = &p->op.activate;
    size_t at = (size_t)(a->row ? a->row[r] : r) * (size_t)a->n;
    for (int i = 0; i < a->n; i++) {
        double x = fabs(problem_value(a->x, p->type, at + (size_t)i)) + (a->bias ? fabs(a->bias[i]) : 0);
        double error = 4 * bounds_unit * (x + 1) + (a->activation == ACT_NONE ? 0 : 6e-7 * (x + 1));
        if (a->up) error *= fabs(problem_value(a->up, p->type, (size_t)r * (size_t)a->n + (size_t)i)) + 1;
        bounds_fill_row(p, problem_buffer(p, "x"), at + (size_t)i, 1, error);
    }
}

void bound_add(problem *p, int r) {
    const op_add *a = &p->op.add;
    int own = modulation_of(&a->rows, r);
    for (int i = 0; i < a->n; i++) {
        size_t at = (size_t)r * (size_t)a->n + (size_t)i;
        double y = (fabs(problem_value(a->y, p->type, at)) + (a->bias ? fabs(a->bias[i]) : 0)) *
                   (a->gate ? fabs(a->gate[own + i]) : 1);
        bounds_fill_row(p, problem_buffer(p, "x"), at, 1,
                        4 * bounds_unit * (fabs(problem_value(a->x, p->type, at)) + y));
    }
}

void bound_rope_cache(problem *p, int r) {
    const op_rope_cache *a = &p->op.rope_cache;
    int d = a->cache.head_dim;
    size_t place =
        ((size_t)a->rows.sample[r] * (size_t)a->cache.capacity + (size_t)a->rows.position[r]) * (size_t)d;
    if (a->heads)
        bounds_fill_row(p, problem_buffer(p, "q"), (size_t)r * (size_t)(a->heads * d), a->heads * d,
                        16 * bounds_unit);
    bounds_fill_row(p, problem_buffer(p, "cache k"), place, d, 16 * bounds_unit);
    bounds_fill_row(p, problem_buffer(p, "cache v"), place, d, 0);
}

static size_t line_of(const problem *p, int r, int h) {
    return ((size_t)r * (size_t)p->shape.heads + (size_t)h) * (size_t)places_of(&p->shape);
}

void bound_scores(problem *p, int r) {
    double error = 1.5 * bounds_products * bounds_unit * sqrt(p->shape.head_dim) + 16 * bounds_unit;
    for (int h = 0; h < p->shape.heads; h++)
        bounds_fill_row(p, problem_buffer(p, "scores"), line_of(p, r, h), p->op.scores.rows.keys[r], error);
}

/* exp's error grows with its argument, 8 at most, and LOUD times that; in bf16 the neighbour. A share too
 * small for fp32's normal numbers may be 0. */
void bound_softmax(problem *p, int r) {
    const buffer *b = problem_buffer(p, "scores");
    double part = has(p, SHAPE_LOUD) ? LOUD * 3e-6 : 3e-6, least = has(p, SHAPE_LOUD) ? 0x1p-120 : 0;
    for (int h = 0; h < p->shape.heads; h++)
        for (int j = 0; j < p->op.softmax.rows.keys[r]; j++) {
            double share = problem_value(b->expected, DTYPE_F32, line_of(p, r, h) + (size_t)j);
            bounds_fill_row(p, problem_buffer(p, "scores"), line_of(p, r, h) + (size_t)j, 1,
                            least + share * (p->type == DTYPE_BF16 ? 0x1p-7 + (part - 3e-6) : part));
        }
}

void bound_values(problem *p, int r) {
    int width = p->shape.heads * p->shape.head_dim;
    bounds_fill_row(p, problem_buffer(p, "out"), (size_t)r * (size_t)width, width,
                    2 * 1.7320508 * bounds_products * bounds_unit);
}
