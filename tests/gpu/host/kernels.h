/* What the host's kernel families share. */
#ifndef TESTS_GPU_HOST_KERNELS_H
#define TESTS_GPU_HOST_KERNELS_H

#include "backend/gpu/family.h"
#include "host.h"
#include "ops/scalar.h"

/* A block of a launch's grid: its place, and shared memory, undefined at the beginning. */
typedef struct host_block {
    int x, y;
    void *shared;
} host_block;

typedef void host_kernel(const void *arguments, host_block block);

/* An image is an array of these, ended by one without a name. */
typedef struct host_function {
    const char *name;
    host_kernel *run;
} host_function;

extern const gpu_family gpu_family_host_products, gpu_family_host_attention, gpu_family_host_pointwise,
    gpu_family_host_copies, gpu_family_host_marks;
extern const host_function host_image_products[], host_image_attention[], host_image_pointwise[],
    host_image_copies[];

static inline dtype type_of(int f32) { return f32 ? DTYPE_F32 : DTYPE_BF16; }

/* n values as fp32. */
static inline void widen(const void *from, dtype type, size_t at, int n, float *out) {
    if (type == DTYPE_F32) memcpy(out, (const float *)from + at, (size_t)n * sizeof *out);
    else for (int i = 0; i < n; i++) out[i] = bf16_to_float(((const bf16 *)from)[at + (size_t)i]);
}

/* Σ a[i]·b[i] in fp32, in eight partial sums. */
static inline float sum_products(const float *a, const float *b, int n) {
    float sums[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sums[i % 8] += a[i] * b[i];
    return (sums[0] + sums[4]) + (sums[1] + sums[5]) + (sums[2] + sums[6]) + (sums[3] + sums[7]);
}

static inline double activated(int activation, double x) {
    return activation == GPU_ACT_GELU ? gelu(x) : activation == GPU_ACT_SILU ? silu(x) : x;
}

static inline size_t row_of(const gpu_row_map *m, int r) {
    if (m->map) return (size_t)m->map[r];
    return (size_t)(m->group ? r / m->group * m->stride + m->offset + r % m->group : r);
}

/* What is to be added to the addresses of row r's norm weight, norm bias and gate. */
static inline int known_at(const gpu_known *k, int r) { return k->rows ? k->rows[r] * k->at : 0; }

static inline norm norm_of(int kind, const float *weight, const float *bias, int own, float eps) {
    norm_kind as = kind == GPU_NORM_LAYER ? NORM_LAYER : kind == GPU_NORM_RMS ? NORM_RMS : NORM_NONE;
    return (norm){as, weight ? weight + own : NULL, bias ? bias + own : NULL, eps};
}

/* Where input i of packed column `column` stands (the layout: args.h). */
static inline size_t packed_at(int f32, int k, int column, int i) {
    size_t pitch = (size_t)(k + 3) / 4 * 4, blocks = (size_t)(k + GPU_ATOM_K - 1) / GPU_ATOM_K;
    size_t atom = (size_t)(column / 8) * blocks + (size_t)(i / GPU_ATOM_K);
    if (f32) return (size_t)column * pitch + (size_t)i;
    return atom * (GPU_ATOM_BYTES / 2) + (size_t)(column % 8 * 64 + ((i / 8 ^ column) & 7) * 8 + i % 8);
}

/* Input i (channel, row, column) of patch r, 256 an image. */
static inline float pixel_at(const void *images, int floats, int r, int i) {
    enum { PATCH = 14, ACROSS = 16, IMAGE = 224, CHANNELS = 3 };
    int patch = r % OPENPI_IMAGE_TOKENS, image = r / OPENPI_IMAGE_TOKENS, inside = i % (PATCH * PATCH);
    int y = patch / ACROSS * PATCH + inside / PATCH, x = patch % ACROSS * PATCH + inside % PATCH;
    size_t at = ((size_t)(image * IMAGE + y) * IMAGE + (size_t)x) * CHANNELS + (size_t)(i / (PATCH * PATCH));
    return floats ? ((const float *)images)[at] : (float)((const uint8_t *)images)[at] / 255.0f * 2.0f - 1.0f;
}

#endif
