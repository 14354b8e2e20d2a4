/* Everything that works element by element, written once over sixteen floats (an architecture's vec_*.h,
 * included before this file) and compiled for each level: norms, softmax, activations, and what happens to
 * a finished tile.
 *
 * Errors of the functions, against the exact value, largest found over all of their range (tests/ops
 * measures them):
 *   exp   2 units in the last place for -87 <= x <= 80; beyond, it stays what it is there
 *   gelu  3e-7 · |x|          silu  3e-7 · |x|
 * Note: gelu needs no tanh: 0.5·(1 + tanh u) = 1 / (1 + exp(-2u)), which also keeps small results exact. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/pack.h"

/* exp by 2ⁿ·p(r), |r| <= ln2/2. max and min are ordered so that NaN passes through. */
static inline vec vec_exp(vec x) {
    x = vec_min(vec_set(80), vec_max(vec_set(-87.33f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.44269504f)));
    vec r = vec_fnma(n, vec_set(0.693359375f), x);
    r = vec_fnma(n, vec_set(-2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(vec_mul(r, r), p, vec_add(r, vec_set(1)));
    return vec_scale(p, n);
}

static inline vec vec_silu(vec x) {
    return vec_mul(x, vec_inverse(vec_add(vec_set(1), vec_exp(vec_sub(vec_set(0), x)))));
}

static inline vec vec_gelu(vec x) {
    vec square = vec_mul(x, x);
    vec slope = vec_fma(square, vec_set(-2 * 0.7978845608f * 0.044715f), vec_set(-2 * 0.7978845608f));
    return vec_mul(x, vec_inverse(vec_add(vec_set(1), vec_exp(vec_mul(x, slope)))));
}

static inline vec vec_activate(activation activation, vec x) {
    switch (activation) {
    case ACT_NONE: return x;
    case ACT_GELU:
    case ACT_GEGLU: return vec_gelu(x);
    case ACT_SILU: return vec_silu(x);
    }
    return x;
}

static void elements_function(int which, const float *x, int count, float *out) {
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        vec v = vec_load_n(x + i, n);
        vec_store_n(out + i, which == 0 ? vec_exp(v) : which == 1 ? vec_gelu(v) : vec_silu(v), n);
    }
}

/* ---- activations in memory ----------------------------------------------------------------------------- */

static inline vec load_act(const void *x, dtype type, size_t at, int count) {
    return type == DTYPE_BF16 ? vec_load_bf16_n((const bf16 *)x + at, count)
                              : vec_load_n((const float *)x + at, count);
}

static inline void store_act(void *x, dtype type, size_t at, vec value, int count) {
    if (type == DTYPE_BF16)
        vec_store_bf16_n((bf16 *)x + at, value, count);
    else
        vec_store_n((float *)x + at, value, count);
}

static void elements_scale(const void *x, dtype x_type, int count, float scale, void *out, dtype type) {
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        store_act(out, type, (size_t)i, vec_mul(load_act(x, x_type, (size_t)i, n), vec_set(scale)), n);
    }
}

static void elements_store(const float *x, int count, void *out, dtype type) {
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        store_act(out, type, (size_t)i, vec_load_n(x + i, n), n);
    }
}

/* ---- rows of integers ---------------------------------------------------------------------------------- */

/* Zero times what is not finite is NaN, and a sum keeps it. */
static uint32_t elements_int8_top(const float *x, int count, uint32_t top) {
    vec largest = vec_set(0), zero = vec_set(0), strange = vec_set(0);
    float sizes[2];
    uint32_t bits;
    for (int i = 0; i < count; i += 16) {
        vec value = vec_load_n(x + i, count - i < 16 ? count - i : 16);
        largest = vec_max(largest, vec_max(value, vec_sub(zero, value)));
        strange = vec_fma(value, zero, strange);
    }
    sizes[0] = vec_top(largest), sizes[1] = vec_sum(strange);
    memcpy(&bits, &sizes[isnan(sizes[1]) ? 1 : 0], sizeof bits);
    bits &= UINT32_C(0x7fffffff);
    return bits > top ? bits : top;
}

/* Codes are whole and a row's sum is below 2²⁴: fp32 holds it, whatever the order. */
static int32_t elements_int8_codes(const float *x, int count, float inverse, int8_t *out) {
    vec sum = vec_set(0), factor = vec_set(inverse);
    if (!(inverse > 0)) {
        memset(out, 0, (size_t)count);
        return 0;
    }
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        vec code = vec_round(vec_mul(vec_load_n(x + i, n), factor));
        sum = vec_add(sum, code);
        vec_store_int8_n(out + i, code, n);
    }
    return (int32_t)vec_sum(sum);
}

static void elements_scale_add(float *c, const float *sums, int count, const float *scales, int accumulate) {
    for (int half = 0; half < PANEL; half += HALF_PANEL) {
        vec scale = vec_load(scales + half);
        for (int at = half; at < count * PANEL; at += PANEL) {
            vec before = accumulate ? vec_load(c + at) : vec_set(0);
            vec_store(c + at, vec_fma(vec_load(sums + at), scale, before));
        }
    }
}

static void elements_int8_scale(float *c, int count, const int32_t *bias, const float *rows,
                                const float *columns) {
    for (int half = 0; half < PANEL; half += HALF_PANEL) {
        vec column = vec_load(columns + half);
        for (int r = 0; r < count; r++) {
            float *at = c + r * PANEL + half;
            vec_store(at, vec_mul(vec_load_int32(at, bias[r]), vec_mul(vec_set(rows[r]), column)));
        }
    }
}

static void elements_read(const void *memory, size_t bytes) {
    vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    for (size_t i = 0; i < bytes / sizeof(float); i += 64)
        for (int j = 0; j < 4; j++) sums[j] = vec_add(sums[j], vec_load((const float *)memory + i + 16 * j));
    volatile float kept = vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
    (void)kept;
}

/* ---- norms --------------------------------------------------------------------------------------------- */

/* Σ (x - mean)ᵖ, p 1 or 2, in four chains. */
static inline float sum_row(const void *x, dtype type, int k, float mean, int squares) {
    vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)}, m = vec_set(mean);
    for (int i = 0; i < k; i += 64)
        for (int j = 0; j < 4; j++) {
            int at = i + 16 * j, n = k - at < 16 ? k - at : 16;
            if (n <= 0) break;
            vec d = vec_sub(load_act(x, type, (size_t)at, n), m);
            if (n < 16) d = vec_keep(d, n, 0);
            sums[j] = squares ? vec_fma(d, d, sums[j]) : vec_add(sums[j], d);
        }
    return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static cpu_statistics elements_statistics(const norm *norm, const void *x, dtype type, int k) {
    float mean = 0;
    if (norm->kind == NORM_NONE) return (cpu_statistics){0, 1};
    if (norm->kind == NORM_LAYER) mean = sum_row(x, type, k, 0, 0) / (float)k;
    return (cpu_statistics){mean, 1 / sqrtf(sum_row(x, type, k, mean, 1) / (float)k + norm->eps)};
}

static inline vec normalise_vec(const norm *norm, cpu_statistics s, vec x, int at, int n) {
    if (norm->kind == NORM_NONE) return x;
    vec y = vec_mul(vec_sub(x, vec_set(s.mean)), vec_set(s.factor)), w = vec_load_n(norm->weight + at, n);
    if (norm->kind == NORM_RMS) w = vec_add(w, vec_set(1));
    return norm->bias ? vec_fma(y, w, vec_load_n(norm->bias + at, n)) : vec_mul(y, w);
}

static void elements_normalise(const norm *norm, cpu_statistics s, const void *x, dtype type, int at,
                               int count, void *out, dtype out_type) {
    for (int i = 0; i < count; i += 16) {
        int n = count - i < 16 ? count - i : 16;
        vec y = normalise_vec(norm, s, load_act(x, type, (size_t)(at + i), n), at + i, n);
        if (type == DTYPE_BF16 && out_type == DTYPE_F32) y = vec_round_bf16(y);
        store_act(out, out_type, (size_t)i, y, n);
    }
}

/* ---- packing ------------------------------------------------------------------------------------------- */

static void elements_columns(uint32_t *to, const void *const *rows, int words) {
    int holes = 0;
    for (int i = 0; i < PANEL; i++) holes |= !rows[i];
    if (!holes) {
        transpose_words(to, rows, PANEL, words, PANEL);
        return;
    }
    for (int i = 0; i < PANEL; i++)
        for (int w = 0; w < words; w++) to[(size_t)w * PANEL + (size_t)i] = rows[i] ? word_at(rows[i], w) : 0;
}

static void elements_pairs(uint32_t *to, const bf16 *even, const bf16 *odd, int count) {
    for (int i = 0; i < count; i++) to[i] = (uint32_t)even[i] | (uint32_t)odd[i] << 16;
}

/* ---- softmax ------------------------------------------------------------------------------------------- */

static void elements_softmax(float *scores, int stride, int keys, int padded, float scale, dtype type,
                             void *p, dtype p_type) {
    vec top = vec_set(-INFINITY), sum = vec_set(0);
    for (int j = 0; j < keys; j += 16) {
        vec s = vec_load(scores + (size_t)(j / PANEL) * (size_t)stride + (size_t)(j % PANEL));
        top = vec_max(top, keys - j < 16 ? vec_keep(s, keys - j, -INFINITY) : s);
    }
    vec highest = vec_set(vec_top(top)), factor = vec_set(scale);
    for (int j = 0; j < keys; j += 16) {
        float *at = scores + (size_t)(j / PANEL) * (size_t)stride + (size_t)(j % PANEL);
        vec e = vec_exp(vec_mul(vec_sub(vec_load(at), highest), factor));
        if (keys - j < 16) e = vec_keep(e, keys - j, 0);
        vec_store(at, e);
        sum = vec_add(sum, e);
    }
    vec inverse = vec_set(1 / vec_sum(sum));
    for (int j = 0; j < padded; j += 16) {
        int n = padded - j < 16 ? padded - j : 16;
        vec e = vec_set(0);
        if (j < keys)
            e = vec_mul(vec_load(scores + (size_t)(j / PANEL) * (size_t)stride + (size_t)(j % PANEL)),
                        inverse);
        if (type == DTYPE_BF16 && p_type == DTYPE_F32) e = vec_round_bf16(e);
        store_act(p, p_type, (size_t)j, e, n);
    }
}

/* ---- what happens to a finished tile ------------------------------------------------------------------- */

static void finish_linear(const cpu_finish *f, int panel, int first_row, int rows, const float *c) {
    for (int half = 0; half < PANEL; half += HALF_PANEL) {
        int column = panel * PANEL + half, n = f->n - column < 16 ? f->n - column : 16;
        if (n <= 0) return;
        vec bias = f->bias ? vec_load_n(f->bias + column, n) : vec_set(0);
        for (int r = 0; r < rows; r++) {
            if (f->set) bias = vec_load_n(f->bias + modulation_of(f->set, first_row + r) + column, n);
            vec y = vec_activate(f->activation, vec_add(vec_load(c + r * PANEL + half), bias));
            if (f->row_add) {
                size_t at = (size_t)((first_row + r) % f->row_add_period) * (size_t)f->n + (size_t)column;
                y = vec_add(y, vec_load_n(f->row_add + at, n));
            }
            store_act(f->out, f->type, (size_t)finish_row(f, first_row + r) * (size_t)f->n + (size_t)column,
                      y, n);
        }
    }
}

static void finish_gated(const cpu_finish *f, int panel, int first_row, int rows, const float *c) {
    int column = panel * HALF_PANEL, n = f->n - column < 16 ? f->n - column : 16;
    vec gate_bias = f->bias ? vec_load_n(f->bias + column, n) : vec_set(0);
    vec up_bias = f->bias ? vec_load_n(f->bias + f->n + column, n) : vec_set(0);
    for (int r = 0; r < rows; r++) {
        vec gate = vec_activate(f->activation, vec_add(vec_load(c + r * PANEL), gate_bias));
        vec up = vec_add(vec_load(c + r * PANEL + HALF_PANEL), up_bias);
        store_act(f->out, f->type, (size_t)finish_row(f, first_row + r) * (size_t)f->n + (size_t)column,
                  vec_mul(gate, up), n);
    }
}

static void finish_residual(const cpu_finish *f, int panel, int first_row, int rows, const float *c) {
    for (int half = 0; half < PANEL; half += HALF_PANEL) {
        int column = panel * PANEL + half, n = f->n - column < 16 ? f->n - column : 16;
        if (n <= 0) return;
        vec bias = f->bias ? vec_load_n(f->bias + column, n) : vec_set(0);
        vec gate = f->gate ? vec_load_n(f->gate + column, n) : vec_set(1);
        for (int r = 0; r < rows; r++) {
            size_t at = (size_t)(first_row + r) * (size_t)f->n + (size_t)column;
            int known_at = f->gate ? modulation_of(f->set, first_row + r) : 0;
            vec x = load_act(f->out, f->type, at, n);
            vec own = known_at ? vec_load_n(f->gate + known_at + column, n) : gate;
            store_act(f->out, f->type, at, vec_fma(vec_add(vec_load(c + r * PANEL + half), bias), own, x), n);
        }
    }
}

static void finish_velocity(const cpu_finish *f, int panel, int first_row, int rows, const float *c) {
    for (int half = 0; half < PANEL; half += HALF_PANEL) {
        int column = panel * PANEL + half, n = f->n - column < 16 ? f->n - column : 16;
        if (n <= 0) return;
        vec bias = vec_load_n(f->bias + column, n);
        for (int r = 0; r < rows; r++) {
            size_t at = (size_t)(first_row + r) * (size_t)f->n + (size_t)column;
            vec v = vec_add(vec_load(c + r * PANEL + half), bias);
            vec_store_n((float *)f->out + at, v, n);
            float dt = dt_of_row(f->set, f->own_dt, f->dt, first_row + r);
            if (dt != 0) vec_store_n(f->x_t + at, vec_fma(vec_set(dt), v, vec_load_n(f->x_t + at, n)), n);
        }
    }
}

static inline void put(void *to, dtype type, size_t at, float value) {
    if (type == DTYPE_BF16)
        ((bf16 *)to)[at] = float_to_bf16(value);
    else
        ((float *)to)[at] = value;
}

/* cos and sin of n angles that are stored as pairs. */
static inline vec load_rope(const float *pairs, int n, vec *sine) {
    float part[32] = {0};
    if (n == 16) return vec_load_pairs(pairs, sine);
    memcpy(part, pairs, (size_t)n * 2 * sizeof *part);
    return vec_load_pairs(part, sine);
}

/* n elements i … of a key, whose pairs are 32 words apart. */
static inline void put_key_part(void *block, dtype type, int d, int place, int i, vec value, int n) {
    float values[16];
    bf16 pairs[16];
    if (type == DTYPE_BF16 && i % 2 == 0 && n == 16) {
        bf16 *to = (bf16 *)block + layout_key(type, d, place, i);
        vec_store_bf16_n(pairs, value, 16);
        for (int j = 0; j < 16; j += 2) memcpy(to + j * PANEL, pairs + j, 2 * sizeof *pairs);
        return;
    }
    vec_store(values, value);
    for (int j = 0; j < n; j++) put(block, type, layout_key(type, d, place, i + j), values[j]);
}

/* Writes a row's rotated half-heads to its place among the keys. The padding of head_dim becomes zero:
 * products read it. */
static void put_key(const op_norm_qkv *a, dtype type, void *block, int place, int first, vec low, vec high,
                    int n) {
    int d = a->cache.head_dim;
    put_key_part(block, type, d, place, first, low, n);
    put_key_part(block, type, d, place, first + d / 2, high, n);
    if (first == 0)
        for (int i = d; i < round_up(d, PANEL); i++) put(block, type, layout_key(type, d, place, i), 0);
}

/* Rows of values. In bf16 two places share their words: where the next row is the neighbour both are
 * written at once, else each row its halves, for the other may belong to another thread. Returns how many
 * rows were done. */
static int put_values(const op_norm_qkv *a, dtype type, int row, int rows, int first, const float *c) {
    int d = a->cache.head_dim, place = a->rows.position[row], sample = a->rows.sample[row];
    int n = d - first < PANEL ? d - first : PANEL;
    char *block = (char *)a->cache.v + (size_t)sample * layout_cache_bytes(a->cache.capacity, d, type);
    size_t at = layout_value(type, a->cache.capacity, place, first);
    if (type == DTYPE_F32) {
        memcpy((float *)block + at, c, (size_t)n * sizeof *c);
        return 1;
    }
    if (place % 2 == 0 && rows > 1 && a->rows.sample[row + 1] == sample &&
        a->rows.position[row + 1] == place + 1) {
        uint32_t *to = (uint32_t *)block + at / 2;
        vec_store_bf16_pairs(to, vec_load(c), vec_load(c + PANEL));
        vec_store_bf16_pairs(to + 16, vec_load(c + 16), vec_load(c + PANEL + 16));
        return 2;
    }
    for (int i = 0; i < n; i++) put(block, type, at + 2 * (size_t)i, c[i]);
    return 1;
}

static void finish_qkv(const cpu_finish *f, int panel, int first_row, int rows, const float *c) {
    const op_norm_qkv *a = f->qkv;
    int heads = a->weight.heads, d = a->weight.head_dim, half = d / 2;
    qkv_panel p = layout_qkv_panel(heads, d, panel);
    size_t block_bytes = layout_cache_bytes(a->cache.capacity, d, f->type);
    if (p.head > heads) {
        for (int r = 0; r < rows;)
            r += put_values(a, f->type, first_row + r, rows - r, p.first, c + r * PANEL);
        return;
    }
    for (int r = 0; r < rows; r++, c += PANEL) {
        int row = first_row + r, place = a->rows.position[row], n = half - p.first < 16 ? half - p.first : 16;
        vec sine, cosine = load_rope(a->rope + (size_t)place * (size_t)d + 2 * (size_t)p.first, n, &sine);
        vec x = vec_load(c), y = vec_load(c + HALF_PANEL);
        vec low = vec_fnma(y, sine, vec_mul(x, cosine)), high = vec_fma(x, sine, vec_mul(y, cosine));
        if (p.head < heads) {
            size_t at = ((size_t)row * (size_t)heads + (size_t)p.head) * (size_t)d + (size_t)p.first;
            store_act(a->q, f->type, at, low, n);
            store_act(a->q, f->type, at + (size_t)half, high, n);
        } else {
            put_key(a, f->type, (char *)a->cache.k + (size_t)a->rows.sample[row] * block_bytes, place,
                    p.first, low, high, n);
        }
    }
}

#define ELEMENTS_TABLE                      \
    {                                       \
        .statistics = elements_statistics,  \
        .normalise = elements_normalise,    \
        .columns = elements_columns,        \
        .pairs = elements_pairs,            \
        .softmax = elements_softmax,        \
        .scale = elements_scale,            \
        .store = elements_store,            \
        .int8_top = elements_int8_top,      \
        .int8_codes = elements_int8_codes,  \
        .int8_scale = elements_int8_scale,  \
        .scale_add = elements_scale_add,    \
        .read = elements_read,              \
        .linear = finish_linear,            \
        .gated = finish_gated,              \
        .residual = finish_residual,        \
        .qkv = finish_qkv,                  \
        .velocity = finish_velocity,        \
        .function = elements_function       \
    }
