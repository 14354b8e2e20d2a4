/* Arithmetic of the definitions: one act value, one function, one row. */
#ifndef OPS_SCALAR_H
#define OPS_SCALAR_H

#include <math.h>

#include "ops/ops.h"

static inline float load(const void *act, dtype type, size_t index) {
    return type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)act)[index]) : ((const float *)act)[index];
}

static inline void store(void *act, dtype type, size_t index, float value) {
    if (type == DTYPE_BF16)
        ((bf16 *)act)[index] = float_to_bf16(value);
    else
        ((float *)act)[index] = value;
}

static inline float round_to(dtype type, float value) {
    return type == DTYPE_BF16 ? bf16_to_float(float_to_bf16(value)) : value;
}

static inline double gelu(double x) {
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static inline double silu(double x) { return x / (1 + exp(-x)); }

/* n act values from `at` on, as numbers; `out` may be where they are. */
static inline void load_acts(const void *act, dtype type, size_t at, int n, float *out) {
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) out[i] = bf16_to_float(((const bf16 *)act)[at + (size_t)i]);
    else
        for (int i = 0; i < n; i++) out[i] = ((const float *)act)[at + (size_t)i];
}

/* Eight partial sums, for the additions' latency alone. */
enum { PARTIAL_SUMS = 8 };

/* sum += Σ a[i]·b[i] in double. n: a multiple of PARTIAL_SUMS in all pieces of a sum but the last. */
static inline void dot_add(double sum[PARTIAL_SUMS], const float *a, const float *b, int n) {
    int i = 0;
    for (; i + PARTIAL_SUMS <= n; i += PARTIAL_SUMS)
        for (int j = 0; j < PARTIAL_SUMS; j++) sum[j] += (double)a[i + j] * b[i + j];
    for (; i < n; i++) sum[0] += (double)a[i] * b[i];
}

static inline double dot_end(const double sum[PARTIAL_SUMS]) {
    double all = 0;
    for (int j = 0; j < PARTIAL_SUMS; j++) all += sum[j];
    return all;
}

static inline double dot(const float *a, const float *b, int n) {
    double sum[PARTIAL_SUMS] = {0};
    dot_add(sum, a, b, n);
    return dot_end(sum);
}

/* One row of k act values as the product that follows reads it: normalised, rounded to act. */
static inline void norm_row(const norm *norm, const void *x, dtype type, size_t at, int k, float *row) {
    double sum = 0, squares = 0, mean = 0;
    load_acts(x, type, at, k, row);
    if (norm->kind == NORM_NONE) return;
    for (int i = 0; i < k; i++) sum += row[i];
    if (norm->kind == NORM_LAYER) mean = sum / k;
    for (int i = 0; i < k; i++) squares += (row[i] - mean) * (row[i] - mean);
    double factor = 1 / sqrt(squares / k + norm->eps);
    for (int i = 0; i < k; i++) {
        double y = (row[i] - mean) * factor;
        y *= norm->kind == NORM_LAYER ? norm->weight[i] : 1.0 + norm->weight[i];
        row[i] = round_to(type, (float)(norm->bias ? y + norm->bias[i] : y));
    }
}

#endif
