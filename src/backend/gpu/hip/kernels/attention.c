/* Attention over images and over caches: scores, softmax and values in one kernel.
 *
 *   attention_image_T_D, attention_cache_T_D    T: bf16 or f32; D: heads of at most 80 or 256 dimensions
 *   attention_combine    joins what blocks have left that took a part of the keys each: a wave a query
 *
 *   blocks   256 threads, 64 queries. Images: a query is a row of one head; grid = rows / 64 x heads. Caches:
 *            a query is a row and a head, whose heads share their keys (multi-query attention); grid =
 *            rows · heads / 64 x splits of the keys. Where queries of several samples meet in a
 *            block, it runs over the keys of each
 *   masks    a row's `keys` say how many places it attends; nothing beyond the most of a block is read
 *   legal    head_dim <= D
 *
 * Sums have one order, whatever queries are computed beside one: keys that it does not attend add exact
 * zeros.
 *
 * attention.c of the folder above launches. */
#include "backend/gpu/hip/kernels/common.h"

enum { THREADS = 256, QUERIES = 64 };
#define LOWEST (-3.0e38f)

/* Both kinds of attention. */
typedef struct attended {
    const void *q, *k, *v;
    void *out;
    const int32_t *sample, *keys;          /* NULL: images                                                 */
    int queries;                           /* in use                                                       */
    int heads;                             /* a row's heads that are queries of one block: images 1        */
    int head, head_dim, f32;
    int q_stride, out_stride, stride;      /* elements from row to row, from key to key                    */
    size_t k_offset;                       /* elements at which a sample's keys begin …                    */
    size_t sample_stride;                  /* … and from sample to sample                                  */
    float scale;
    int first, end;                        /* keys of a sample that this block takes                       */
    float *part, *part_stats;              /* results of this split; NULL: it writes outputs               */
} attended;

DEV attended attended_image(const gpu_image_attention *p) {
    attended a = {.q = p->qkv, .out = p->out, .queries = *p->count, .heads = 1, .head = block_y(),
                  .head_dim = p->head_dim, .f32 = p->f32, .q_stride = p->stride,
                  .out_stride = p->heads * p->head_dim, .stride = p->stride, .scale = p->scale, .end = 256};
    size_t wide = p->f32 ? 4 : 2;
    a.k = (const char *)p->qkv + (size_t)p->next * wide;
    a.v = (const char *)p->qkv + (size_t)p->next * 2 * wide;
    a.k_offset = (size_t)a.head * (size_t)p->head_dim;
    a.sample_stride = 256 * (size_t)p->stride;
    return a;
}

DEV attended attended_cache(const gpu_cache_attention *p) {
    attended a = {.q = p->q, .k = p->k, .v = p->v, .out = p->out, .sample = p->sample, .keys = p->keys,
                  .queries = *p->count * p->heads, .heads = p->heads, .head_dim = p->head_dim,
                  .f32 = p->f32, .q_stride = p->heads * p->head_dim,
                  .out_stride = p->heads * p->head_dim, .stride = p->head_dim,
                  .sample_stride = (size_t)p->capacity * (size_t)p->head_dim, .scale = p->scale,
                  .first = block_y() * p->span, .end = (block_y() + 1) * p->span};
    if (p->splits > 1) {
        size_t before = (size_t)block_y() * (size_t)p->part_rows;
        a.part = p->part + before * (size_t)p->head_dim;
        a.part_stats = p->part_stats + before * 2;
    }
    return a;
}

typedef struct query {
    int there, sample, keys;
    size_t q_at, out_at;
} query;

DEV query query_of(const attended *a, int i) {
    query q = {.there = i < a->queries, .sample = -1};
    int r = i / a->heads, head = a->heads > 1 ? i % a->heads : a->head;
    if (!q.there) return q;
    q.sample = a->sample ? a->sample[r] : r / 256;
    q.keys = a->keys ? a->keys[r] : 256;
    q.q_at = (size_t)r * (size_t)a->q_stride + (size_t)(head * a->head_dim);
    q.out_at = (size_t)r * (size_t)a->out_stride + (size_t)(head * a->head_dim);
    return q;
}

typedef struct samples {
    int first, last;
} samples;

/* The samples (images) that a block's queries belong to. */
DEV samples samples_of(const attended *a, int tile) {
    int end = smaller(tile + QUERIES, a->queries) - 1;
    if (tile >= a->queries) return (samples){0, -1};
    return a->sample ? (samples){a->sample[tile / a->heads], a->sample[end / a->heads]}
                     : (samples){tile / 256, end / 256};
}

/* Most keys of any of a block's rows of sample s. */
DEV int most_keys(const attended *a, int tile, int s) {
    int most = 0, end = (smaller(tile + QUERIES, a->queries) - 1) / a->heads;
    if (!a->keys) return 256;
    for (int r = tile / a->heads; r <= end; r++)
        if (a->sample[r] == s && a->keys[r] > most) most = a->keys[r];
    return most;
}

DEV size_t base_of(const attended *a, int tile, int s) {
    (void)tile;
    return (size_t)s * a->sample_stride + a->k_offset;
}

/* Four matrix instructions of 4 k each, in the same order of k for both operands. */
DEV f32x4 multiply_f32(f32x4 a, f32x4 b, f32x4 c) {
    UNROLL
    for (int i = 0; i < 4; i++) c = mma_f32(a[i], b[i], c);
    return c;
}
DEV f32x4 as_it_is(f32x4 x) { return x; }

/* c + A·Bᵀ for 16 k and 16 more. */
DEV f32x4 multiply_two_f32(f32x4 a, f32x4 a2, f32x4 b, f32x4 b2, f32x4 c) {
    return multiply_f32(a2, b2, multiply_f32(a, b, c));
}
DEV bf16x8 both(bf16x4 x, bf16x4 y) { return (bf16x8){x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]}; }
DEV f32x4 multiply_two_bf16(bf16x4 a, bf16x4 a2, bf16x4 b, bf16x4 b2, f32x4 c) {
    return mma_wide_bf16(both(a, a2), both(b, b2), c);
}

#define TILE attention_image_bf16_80
#define ARGUMENTS gpu_image_attention
#define ATTENDED attended_image
#define DIMS 80
#define KEYS 32
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define MULTIPLY_TWO multiply_two_bf16
#define LOAD load_bf16x4
#define NARROW narrow4
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_image_bf16_256
#define ARGUMENTS gpu_image_attention
#define ATTENDED attended_image
#define DIMS 256
#define KEYS 32
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define MULTIPLY_TWO multiply_two_bf16
#define LOAD load_bf16x4
#define NARROW narrow4
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_cache_bf16_80
#define ARGUMENTS gpu_cache_attention
#define ATTENDED attended_cache
#define DIMS 80
#define KEYS 32
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define MULTIPLY_TWO multiply_two_bf16
#define LOAD load_bf16x4
#define NARROW narrow4
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_cache_bf16_256
#define ARGUMENTS gpu_cache_attention
#define ATTENDED attended_cache
#define DIMS 256
#define KEYS 32
#define QUAD bf16x4
#define MULTIPLY mma_bf16
#define MULTIPLY_TWO multiply_two_bf16
#define LOAD load_bf16x4
#define NARROW narrow4
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_image_f32_80
#define ARGUMENTS gpu_image_attention
#define ATTENDED attended_image
#define DIMS 80
#define KEYS 16
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define MULTIPLY_TWO multiply_two_f32
#define LOAD load_f32x4
#define NARROW as_it_is
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_image_f32_256
#define ARGUMENTS gpu_image_attention
#define ATTENDED attended_image
#define DIMS 256
#define KEYS 16
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define MULTIPLY_TWO multiply_two_f32
#define LOAD load_f32x4
#define NARROW as_it_is
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_cache_f32_80
#define ARGUMENTS gpu_cache_attention
#define ATTENDED attended_cache
#define DIMS 80
#define KEYS 16
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define MULTIPLY_TWO multiply_two_f32
#define LOAD load_f32x4
#define NARROW as_it_is
#include "backend/gpu/hip/kernels/attention_tile.h"

#define TILE attention_cache_f32_256
#define ARGUMENTS gpu_cache_attention
#define ATTENDED attended_cache
#define DIMS 256
#define KEYS 16
#define QUAD f32x4
#define MULTIPLY multiply_f32
#define MULTIPLY_TWO multiply_two_f32
#define LOAD load_f32x4
#define NARROW as_it_is
#include "backend/gpu/hip/kernels/attention_tile.h"

/* ---- parts --------------------------------------------------------------------------------------------- */

/* Parts of a query's keys, each with its own maximum: what they have left is scaled to the common one. A part
 * without keys for the query has left zeros. */
KERNEL(THREADS, attention_combine, gpu_cache_attention) {
    const int lane = thread_id() & (WAVE - 1), query = block_x() * (THREADS / WAVE) + wave_id();
    const size_t d = (size_t)p->head_dim;
    float top = LOWEST, total = 0;
    if (query >= *p->count * p->heads) return;
    for (int s = 0; s < p->splits; s++)
        top = larger(top, p->part_stats[((size_t)s * (size_t)p->part_rows + (size_t)query) * 2]);
    for (int s = 0; s < p->splits; s++) {
        const float *stats = p->part_stats + ((size_t)s * (size_t)p->part_rows + (size_t)query) * 2;
        total += stats[1] * exp2_of(stats[0] - top);
    }
    for (int i = lane * 4; i < p->head_dim; i += WAVE * 4) {
        f32x4 sum = {0, 0, 0, 0};
        for (int s = 0; s < p->splits; s++) {
            size_t row = (size_t)s * (size_t)p->part_rows + (size_t)query;
            sum += load_f32x4(p->part, row * d + (size_t)i, p->head_dim - i) *
                   exp2_of(p->part_stats[row * 2] - top);
        }
        store4(p->out, p->f32, (size_t)query * d + (size_t)i, p->head_dim - i, sum / total);
    }
}
