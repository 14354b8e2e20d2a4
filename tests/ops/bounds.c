/* How far a fast version may be from the definition, which sums in double.
 *
 * A product of a row h and a weight row w, zero-mean and random, summed in fp32: every addition rounds a
 * partial sum of about |h||w|·√j/k by 2⁻²⁴, so the errors add up to about 0.4·2⁻²⁴·|h||w| whatever k is.
 * Allowed: 12 units of 2⁻²⁴·|h||w|, which one product left out or taken twice (|h||w|/k) exceeds for every k
 * below half a million. A norm in bf16 rounds h; a version that is off by 1e-6 before rounding lands on the
 * neighbour for 1e-6·2⁹ of the elements: allowed are four of them and two in a thousand. A result stored as
 * bf16 may be the neighbour.
 * Integer rows: sums are exact, and without a norm codes too, so that only the result's own roundings are
 * left: allowed are 2 units in the place of 12, and one digit of a sum is more for k below 1500. After a
 * norm the same elements may have the neighbouring code: in bf16 that is less than the neighbour in bf16, in
 * fp32 it happens to 127·1e-6 of them, allowed are four and one in two thousand. Where the row's largest
 * element may be its neighbour in bf16, all codes may differ by one: by chance, of deviation 0.41 steps;
 * allowed are six deviations of the sum.
 *   bf16 units: ulp(x) = 2^(exponent - 7), fp32: 2^(exponent - 23). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bounds.h"
#include "ops/reference.h"

const double bounds_unit = 0x1p-24, bounds_products = 12;
#define unit bounds_unit
#define products bounds_products
static const double results = 2;

static double ulp(double x, dtype type) {
    int exponent;
    if (x == 0) return 0;
    frexp(x, &exponent);
    return ldexp(1, exponent - 1 - (type == DTYPE_BF16 ? 7 : 23));
}

/* The stored result may be the neighbour of the expected one. */
static double stored(double x, double error, dtype type) { return error + ulp(fabs(x) + error, type); }

/* ---- rows ----------------------------------------------------------------------------------------- */

/* 1: two fast versions of y, whose terms are as large as `size`, may round to different bf16 numbers. */
static int may_round(double y, double size) {
    double step = ulp(y, DTYPE_BF16), at = step > 0 ? fabs(y) / step : 0;
    return step > 0 && fabs(at - floor(at) - 0.5) * step < 4e-6 * size;
}

row_size bounds_row(const norm *norm, const void *x, dtype type, size_t at, int k) {
    double mean = 0, square = 0, sum = 0, top = 0, factor = 1, largest = 0;
    int rounds = 0;
    if (norm->kind == NORM_LAYER) {
        for (int i = 0; i < k; i++) mean += problem_value(x, type, at + (size_t)i) / k;
    }
    for (int i = 0; i < k; i++) {
        double d = problem_value(x, type, at + (size_t)i) - mean;
        square += d * d;
    }
    if (norm->kind != NORM_NONE) factor = 1 / sqrt(square / k + norm->eps);
    for (int i = 0; i < k; i++) {
        double y = (problem_value(x, type, at + (size_t)i) - mean) * factor;
        if (norm->kind != NORM_NONE) {
            y = y * (norm->weight[i] + (norm->kind == NORM_RMS)) + (norm->bias ? norm->bias[i] : 0);
            /* the statistics' own error and the three operations of the norm, on the larger of its terms */
            double size = fabs(y) + (norm->bias ? fabs(norm->bias[i]) : 0);
            int near = fabs(y) > largest * (1 - 0x1p-7), above = fabs(y) >= largest * (1 + 0x1p-7);
            if (near) rounds = (rounds && !above) || may_round(y, size);
            largest = fmax(largest, fabs(y));
            y = size;
        }
        sum += y * y;
        top = fmax(top, fabs(y));
    }
    return (row_size){sqrt(sum), top, rounds};
}

/* Error of h·w, w being row `o` of matrix `which`. */
static double product_error(const problem *p, int which, row_size h, int o, int normed) {
    const problem_matrix *w = &p->matrices[which];
    double error = (p->input == INPUT_INT8 ? results : products) * unit * h.length * w->norms[o];
    if (normed && p->type == DTYPE_BF16) error += (4 + 2e-3 * p->shape.k) * 0x1p-7 * h.top * w->top;
    if (normed && p->input == INPUT_INT8) {
        double step = h.top / 127;
        if (p->type == DTYPE_F32) error += (4 + 5e-4 * p->shape.k) * step * w->top;
        else if (h.top_may_round) error += 6 * 0.41 * step * w->norms[o];
    }
    return error;
}

/* A size that a sum of random products does not exceed: six standard deviations. */
static double likely(const problem *p, int which, row_size h, int o, int k) {
    return 6 * h.length * p->matrices[which].norms[o] / sqrt(k) + 1;
}

static const float no_weight[1];
static const norm no_norm = {NORM_NONE, no_weight, NULL, 0};

/* ---- ops ------------------------------------------------------------------------------------------ */

void bounds_fill_row(const problem *p, buffer *b, size_t at, int n, double error) {
    for (int o = 0; o < n; o++)
        b->bound[at + (size_t)o] =
            p->unknown ? INFINITY
                       : (float)stored(problem_value(b->expected, b->type, at + (size_t)o), error, b->type);
}

static void bound_patch_embed(problem *p, int r) {
    buffer *out = problem_buffer(p, "out");
    int n = p->shape.n;
    row_size h = {sqrt(588.0), 1, 0};
    for (int o = 0; o < n; o++)
        bounds_fill_row(p, out, (size_t)r * (size_t)n + (size_t)o, 1,
                        product_error(p, 0, h, o, 0) + 8 * unit);
}

static void bound_norm_linear(problem *p, int r) {
    const op_norm_linear *a = &p->op.norm_linear;
    buffer *out = problem_buffer(p, "out");
    int gated = a->weight.form == MATRIX_GATED, m = gated ? a->weight.n / 2 : a->weight.n, k = a->weight.k,
        normed = a->norm.kind != NORM_NONE;
    const norm own = norm_of_row(&a->norm, &a->rows, r);
    row_size h = bounds_row(&own, a->x, p->type, (size_t)r * (size_t)k, k);
    size_t to = (size_t)(a->out_row ? a->out_row[r] : r) * (size_t)m;
    for (int o = 0; o < m; o++) {
        double error = product_error(p, 0, h, o, normed) + 8 * unit;
        if (a->activation != ACT_NONE)
            error = 1.15 * error + 4e-7 * likely(p, 0, h, o, k); /* slope, and the function's own */
        if (gated)
            error = error * likely(p, 0, h, m + o, k) +
                    likely(p, 0, h, o, k) * (product_error(p, 0, h, m + o, normed) + 8 * unit);
        bounds_fill_row(p, out, to + (size_t)o, 1, error);
    }
}

static void bound_linear_residual(problem *p, int r) {
    const op_linear_residual *a = &p->op.linear_residual;
    buffer *x = problem_buffer(p, "x");
    int n = a->weight.n, k = a->weight.k;
    row_size h = bounds_row(&no_norm, a->a, p->type, (size_t)r * (size_t)k, k);
    int own = modulation_of(&a->rows, r);
    for (int o = 0; o < n; o++) {
        double error = product_error(p, 0, h, o, 0) + 16 * unit;
        bounds_fill_row(p, x, (size_t)r * (size_t)n + (size_t)o, 1,
                        error * (a->gate ? fabs(a->gate[own + o]) + 1e-3 : 1) + 4 * unit);
    }
}

static void bound_embed_text(problem *p, int r) {
    const op_embed_text *a = &p->op.embed_text;
    bounds_fill_row(p, problem_buffer(p, "out"), (size_t)a->out_row[r] * (size_t)a->table.k, a->table.k, 0);
}

static void bound_norm_qkv(problem *p, int r) {
    const op_norm_qkv *a = &p->op.norm_qkv;
    buffer *q = problem_buffer(p, "q"), *keys = problem_buffer(p, "cache k"),
           *values = problem_buffer(p, "cache v");
    int d = a->weight.head_dim, half = d / 2, heads = a->weight.heads, k = a->weight.k,
        normed = a->norm.kind != NORM_NONE;
    const norm own = norm_of_row(&a->norm, &a->rows, r);
    row_size h = bounds_row(&own, a->x, p->type, (size_t)r * (size_t)k, k);
    size_t place =
        ((size_t)a->rows.sample[r] * (size_t)a->cache.capacity + (size_t)a->rows.position[r]) * (size_t)d;
    for (int head = 0; head <= heads + 1; head++)
        for (int i = 0; i < d; i++) {
            double error = product_error(p, 0, h, head * d + i, normed);
            /* a rotation mixes the two halves, each by at most 1 */
            if (head <= heads) error += product_error(p, 0, h, head * d + (i + half) % d, normed) + 8 * unit;
            if (head < heads)
                bounds_fill_row(p, q, ((size_t)r * (size_t)heads + (size_t)head) * (size_t)d + (size_t)i, 1,
                                error);
            else
                bounds_fill_row(p, head == heads ? keys : values, place + (size_t)i, 1, error);
        }
}

/* One query over so many keys. Scores are about 1 apart (operands have deviation 1, scale 1/√d), so no
 * probability is likely to exceed 40 times the mean; of loud queries one key has all of it, and scores and
 * their errors are larger. */
static double attention_error(const problem *p, int d, int keys) {
    int loud = p->shape.options & SHAPE_LOUD ? LOUD : 1;
    double spread = 1.7320508, score_error = (products * unit * sqrt(d) + 16 * unit) * loud;
    double error = 2 * score_error * spread + products * unit * spread;
    if (p->type == DTYPE_BF16)
        error += 0x1p-7 * fmin(1, 40.0 * loud / keys) * spread *
                 (1 + 4e-3 * keys); /* probabilities that round in the other direction */
    return error;
}

static void bound_image_attention(problem *p, int r) {
    const op_image_attention *a = &p->op.image_attention;
    bounds_fill_row(p, problem_buffer(p, "out"), (size_t)r * (size_t)(a->heads * a->head_dim),
                    a->heads * a->head_dim, attention_error(p, a->head_dim, OPENPI_IMAGE_TOKENS));
}

static void bound_cache_attention(problem *p, int r) {
    const op_cache_attention *a = &p->op.cache_attention;
    int width = a->heads * a->cache.head_dim;
    bounds_fill_row(p, problem_buffer(p, "out"), (size_t)r * (size_t)width, width,
             attention_error(p, a->cache.head_dim, a->rows.keys[r]));
}

static void bound_state_embed(problem *p, int r) {
    const op_state_embed *a = &p->op.state_embed;
    int n = a->weight.n, k = a->weight.k;
    row_size h = bounds_row(&no_norm, a->state, DTYPE_F32, (size_t)r * (size_t)k, k);
    for (int o = 0; o < n; o++)
        bounds_fill_row(p, problem_buffer(p, "out"),
                        (size_t)r * (size_t)a->out_stride * (size_t)n + (size_t)o, 1,
                        product_error(p, 0, h, o, 0) + 8 * unit);
}

static void bound_action_embed(problem *p, int r) {
    const op_action_embed *a = &p->op.action_embed;
    int n = a->in.n, k = a->in.k;
    size_t to =
        ((size_t)(r / a->horizon) * (size_t)a->out_stride + (size_t)(a->out_offset + r % a->horizon)) *
        (size_t)n;
    row_size h = bounds_row(&no_norm, a->x, DTYPE_F32, (size_t)r * (size_t)k, k);
    double error = products * unit * h.length * 1.8 + 16 * unit;
    if (a->mlp_out.data) { /* each layer: its own error, and that of the row before it, random by random */
        row_size u = {sqrt(n) * (h.length / sqrt(k) + 1) * 2, 0, 0};
        if (a->mlp_in.data) error = (products * unit * u.length + 8 * error) * 1.8;
        error += 4e-7 * 8;       /* SiLU */
        error = (products * unit * u.length + 8 * error) * 1.8;
    }
    bounds_fill_row(p, problem_buffer(p, "out"), to, n, error);
}

static void bound_velocity(problem *p, int r) {
    const op_velocity *a = &p->op.velocity;
    buffer *v = problem_buffer(p, "velocity"), *x_t = problem_buffer(p, "x_t");
    int n = a->weight.n, k = a->weight.k;
    size_t at =
        ((size_t)(r / a->horizon) * (size_t)a->x_stride + (size_t)(a->x_offset + r % a->horizon)) * (size_t)k;
    const norm own = norm_of_row(&a->norm, &a->rows, r);
    row_size h = bounds_row(&own, a->x, p->type, at, k);
    for (int o = 0; o < n; o++) {
        double error = product_error(p, 0, h, o, 1) + 8 * unit;
        bounds_fill_row(p, v, (size_t)(r * n + o), 1, error);
        if (a->rows.known && a->rows.known[r]) continue;       /* its bits stay                           */
        bounds_fill_row(p, x_t, (size_t)(r * n + o), 1, error * fabs(a->dt) + 4 * unit);
    }
}

/* A row that is not guided keeps its bits. */
static void bound_guide(problem *p, int r) {
    const op_guide *a = &p->op.guide;
    double w = a->weight[r], gain = fabs(a->gain[a->rows.sample[r]]);
    for (int i = 0; i < a->n && w != 0; i++) {
        size_t at = (size_t)r * (size_t)a->n + (size_t)i;
        double size = fabs(a->target[at]) + fabs(a->x_t[at]) + fabs(a->velocity[at]);
        bounds_fill_row(p, problem_buffer(p, "x_t"), at, 1, 4 * unit * (gain * fabs(w) + 1) * size);
    }
}

static void (*const fillers[OP_KINDS])(problem *p, int row) = {
#define X(kind, member, type) [kind] = bound_##member,
    OP_LIST(X)
#undef X
};

void bounds_fill(problem *p) {
    /* Exact, but where a group's sum is scaled: 127·x and a 127th of it are two roundings. */
    if (p->shape.options & SHAPE_COPY && weight_formats[p->weights].group <= 0) return;
    for (int r = 0; r < p->shape.rows; r++) {
        p->unknown = !problem_checks(p, r);
        fillers[p->shape.kind](p, r);
    }
}
