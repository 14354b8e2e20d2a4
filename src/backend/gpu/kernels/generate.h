/* A synthetic matrix as it is packed (args.h), made where it will lie: the whole of the kernel generate,
 * 16 bytes a call.
 *
 * Plain C, read by both compilers, so that tests run it without a GPU. Every bit is that of reading the
 * tensors on the host and packing them there: the product and the sum are rounded one after the other,
 * never fused. */
#ifndef BACKEND_GPU_KERNELS_GENERATE_H
#define BACKEND_GPU_KERNELS_GENERATE_H

#include <string.h>

#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/row_order.h"
#include "base/hash.h"

#ifndef GPU_PRODUCT                        /* nor does a vendor's compiler of kernels fuse them             */
#define GPU_PRODUCT(a, b) ((a) * (b))
#define GPU_SUM(a, b) ((a) + (b))
#endif

enum { GPU_GENERATED_PARTS = 3, GPU_GENERATE_THREADS = 256, GPU_GENERATE_UNITS = 1024 };

/* Rows of W: element i is offset + scale·hash_uniform(key, i), and `raise` more from raise_from on. */
typedef struct gpu_generated_part {
    uint64_t key;
    double offset, scale, raise;
    int64_t raise_from;
    int rows;
} gpu_generated_part;

typedef struct gpu_generate {
    void *out;
    gpu_row_order order;
    int k, f32, raw;
    int layout;                            /* GPU_LAYOUT_*                                                  */
    int units;                             /* 16 bytes each, of 8 packed columns (raw: rows)                */
    int column, row_length;                /* a part's first column; columns in a row                       */
    gpu_generated_part parts[GPU_GENERATED_PARTS];
} gpu_generate;

typedef struct gpu_16_bytes {
    uint32_t words[4];
} __attribute__((aligned(16))) gpu_16_bytes;

/* Element i as the host's float_to_bf16 rounds it (the values are finite); nothing where it is not there. */
GPU_BOTH uint32_t gpu_generated_bf16(const gpu_generated_part *part, int64_t i, int there) {
    if (!there) return 0;
    double product = GPU_PRODUCT(part->scale, hash_uniform(part->key, (uint64_t)i));
    double sum = GPU_SUM(part->offset, product);
    float value = (float)(i >= part->raise_from ? GPU_SUM(sum, part->raise) : sum);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* The column (of eight) and the first k of unit `unit` of a group in bf16, and the unit's place in p->out. */
typedef struct gpu_unit_place {
    int column, k;
    int64_t at;
} gpu_unit_place;

GPU_BOTH gpu_unit_place gpu_place_of(const gpu_generate *p, int group, int unit) {
    int swizzled = unit >> 3 & 7, lanes = unit & 7;
    int64_t first = (int64_t)group * p->units;
    int64_t pair = (int64_t)(group >> 1) * 2 * p->units;
    if (p->layout == GPU_LAYOUT_LANES)
        return (gpu_unit_place){lanes, unit >> 3 << 3, pair + (unit >> 3) * 16 + (group & 1) * 8 + lanes};
    return (gpu_unit_place){swizzled, (unit >> 6) * GPU_ATOM_K + ((unit ^ swizzled) & 7) * 8, first + unit};
}

/* Unit `unit` of packed columns 8·group … 8·group + 7: 8 bf16 or 4 fp32 of one column. */
GPU_BOTH void gpu_generate_unit(const gpu_generate *p, int group, int unit) {
    int most = p->f32 ? 4 : 8, atoms = !p->f32 && !p->raw, rows, from = 0, count = 0;
    int per_column = p->units >> 3;
    gpu_unit_place place = {unit / per_column, unit % per_column * most, (int64_t)group * p->units + unit};
    if (atoms) place = gpu_place_of(p, group, unit);
    int column = place.column, i = place.k;
    int row = gpu_group_rows(&p->order, group, &rows) + column;
    const gpu_generated_part *part = p->parts;
    gpu_16_bytes out;
    if (column < rows && i < p->k) {
        for (; row - from >= part->rows; part++) from += part->rows;
        count = p->k - i < most ? p->k - i : most;
    }
    int64_t at = (int64_t)(row - from) * p->row_length + p->column + i;
    for (int w = 0; w < 4; w++) {
        int j = p->f32 ? w : 2 * w;
        uint32_t bits = gpu_generated_bf16(part, at + j, j < count);
        out.words[w] = p->f32 ? bits << 16 : bits | gpu_generated_bf16(part, at + j + 1, j + 1 < count) << 16;
    }
    if (!p->raw) {
        *(gpu_16_bytes *)((char *)p->out + place.at * 16) = out;
        return;
    }
    int64_t to = (int64_t)row * p->k + i;
    for (int w = 0; w < 4; w++) {
        if (p->f32 && w < count) ((uint32_t *)p->out)[to + w] = out.words[w];
        if (!p->f32 && 2 * w < count) ((uint16_t *)p->out)[to + 2 * w] = (uint16_t)out.words[w];
        if (!p->f32 && 2 * w + 1 < count)
            ((uint16_t *)p->out)[to + 2 * w + 1] = (uint16_t)(out.words[w] >> 16);
    }
}

#endif
