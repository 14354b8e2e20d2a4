/* What is neither product nor whole attention.
 *
 *   norm_rows      LayerNorm or RMSNorm. A wave a row
 *   embed_text     rows of the embedding table, scaled. A block a row
 *   patches        pixels as bf16 + bf16: upper parts, then what is left of each. A block a row
 *   guide          real-time chunking: x_t moves towards the target. A block a row
 *   activate       x = activation(x + bias)·up. A block a row
 *   add            x += gate·(y + bias). A block a row
 *   rope_cache     rotates q and k (RoPE), stores k and v in the cache. A block a row and head; the last two
 *                  heads are k and v
 *   softmax_rows   scores to probabilities. A block a row and head
 *   scores, values     of attention in steps. A block a row and head; a thread a key, a dimension
 *   pack_raw       row-major weights into the layout of args.h. A block 8 packed columns
 *   generate       synthetic weights, made where they will lie. A block 1,024 units of 8 packed columns
 *
 *   blocks   256 threads, norm_rows 64 a row
 *   legal    any shape and type
 *
 * pointwise.c of the folder above launches. */
#include "backend/gpu/hip/kernels/common.h"

#include "backend/gpu/kernels/generate.h"
#include "backend/gpu/kernels/guide.h"

enum { THREADS = 256, NORM_THREADS = 256 };

/* ---- norms and gathers --------------------------------------------------------------------------------- */

KERNEL(NORM_THREADS, norm_rows, gpu_norm) {
    const int lane = thread_id() & (WAVE - 1), r = block_x() * (block_threads() / WAVE) + thread_id() / WAVE;
    if (r >= *p->count) return;
    const size_t from = (size_t)row_of(&p->from, r) * (size_t)p->k, to = (size_t)r * (size_t)p->k;
    float sum = 0, squares = 0, mean = 0;
    if (p->kind == GPU_NORM_LAYER) {
        for (int i = lane * 4; i < p->k; i += WAVE * 4) {
            f32x4 x = load4(p->x, p->f32, from + (size_t)i, p->k - i);
            sum += x[0] + x[1] + x[2] + x[3];
        }
        mean = wave_sum(sum) / (float)p->k;
    }
    for (int i = lane * 4; i < p->k; i += WAVE * 4) {
        f32x4 x = load4(p->x, p->f32, from + (size_t)i, p->k - i);
        UNROLL
        for (int j = 0; j < 4; j++) {
            float d = i + j < p->k ? x[j] - mean : 0;
            squares += d * d;
        }
    }
    const float factor = 1 / root_of(wave_sum(squares) / (float)p->k + p->eps),
                one = p->kind == GPU_NORM_RMS ? 1 : 0;
    const size_t own = known_at(&p->known, r);
    for (int i = lane * 4; i < p->k; i += WAVE * 4) {
        f32x4 x = load4(p->x, p->f32, from + (size_t)i, p->k - i),
              weight = load_f32x4(p->weight, own + (size_t)i, p->k - i);
        x = (x - mean) * factor * (one + weight);
        if (p->bias) x += load_f32x4(p->bias, own + (size_t)i, p->k - i);
        store4(p->out, p->f32, to + (size_t)i, p->k - i, x);
    }
}

KERNEL(THREADS, embed_text, gpu_text) {
    const int r = block_x();
    if (r >= *p->count) return;
    const size_t from = (size_t)p->ids[r] * (size_t)p->width, to = (size_t)p->out_row[r] * (size_t)p->width;
    for (int i = thread_id() * 4; i < p->width; i += THREADS * 4)
        store4(p->out, p->f32, to + (size_t)i, p->width - i,
               load4(p->table, p->table_f32, from + (size_t)i, p->width - i) * p->scale);
}

KERNEL(THREADS, patches, gpu_patches) {
    const int r = block_x(), floats = *p->pixels;
    if (r >= *p->count) return;
    u16 *high = (u16 *)p->out + (size_t)r * 2 * (size_t)p->ld, *low = high + p->ld;
    for (int i = thread_id(); i < p->ld; i += THREADS) {
        float x = i < PATCH_INPUTS ? pixel_at(p->images, floats, r, i) : 0;
        high[i] = to_bf16(x);
        low[i] = to_bf16(x - round_bf16(x));
    }
}

KERNEL(THREADS, guide, gpu_guide) {
    const int r = block_x();
    if (r >= *p->count) return;
    const float weight = p->weight[r], gain = p->gain[p->sample[r]];
    for (int i = thread_id(); i < p->n && weight != 0; i += THREADS) {
        size_t at = (size_t)r * (size_t)p->n + (size_t)i;
        float x = p->x_t[at], ahead = x - p->t * p->velocity[at];
        p->x_t[at] = x + gain * ((p->target[at] - ahead) * weight);
    }
}

/* ---- parts of fused operations ------------------------------------------------------------------------- */

KERNEL(THREADS, activate, gpu_activate) {
    const int r = block_x();
    if (r >= *p->count) return;
    const size_t to = (size_t)(p->row ? p->row[r] : r) * (size_t)p->n, from = (size_t)r * (size_t)p->n;
    const float *bias = p->bias ? p->bias + known_at(&p->known, r) : 0;
    for (int i = thread_id(); i < p->n; i += THREADS) {
        float y = load_act(p->x, p->f32, to + (size_t)i) + (bias ? bias[i] : 0);
        y = activated(p->activation, y);
        if (p->up) y *= load_act(p->up, p->f32, from + (size_t)i);
        store_act(p->x, p->f32, to + (size_t)i, y);
    }
}

KERNEL(THREADS, add, gpu_add) {
    const int r = block_x();
    if (r >= *p->count) return;
    const float *gate = p->gate ? p->gate + known_at(&p->known, r) : 0;
    const float factor = p->factor ? p->factor[r] : 1;
    if (factor == 0) return;
    for (int i = thread_id(); i < p->n; i += THREADS) {
        size_t at = (size_t)r * (size_t)p->n + (size_t)i;
        float y = load_act(p->y, p->f32, at) + (p->bias ? p->bias[i] : 0);
        store_act(p->x, p->f32, at, load_act(p->x, p->f32, at) + y * (gate ? gate[i] : factor));
    }
}

KERNEL(THREADS, rope_cache, gpu_rope_cache) {
    const int r = block_x(), h = block_y(), d = p->head_dim, half = d / 2;
    if (r >= *p->count) return;
    const int place = p->position[r];
    const size_t kv = (size_t)r * (size_t)p->kv_stride, head = (size_t)h * (size_t)d,
                 cached = ((size_t)p->sample[r] * (size_t)p->capacity + (size_t)place) * (size_t)d;
    if (h == p->heads + 1) {
        for (int i = thread_id(); i < d; i += THREADS)
            store_act(p->v, p->f32, cached + (size_t)i, load_act(p->v_in, p->f32, kv + (size_t)i));
        return;
    }
    const void *in = h < p->heads ? p->q_in : p->k_in;
    void *out = h < p->heads ? p->q : p->k;
    const size_t from = h < p->heads ? (size_t)r * (size_t)p->q_stride + head : kv,
                 to = h < p->heads ? (size_t)r * (size_t)p->heads * (size_t)d + head : cached;
    const float *rope = p->rope + (size_t)place * (size_t)d;
    for (int i = thread_id(); i < half; i += THREADS) {
        float c = rope[2 * i], s = rope[2 * i + 1];
        float x = load_act(in, p->f32, from + (size_t)i), y = load_act(in, p->f32, from + (size_t)(i + half));
        store_act(out, p->f32, to + (size_t)i, x * c - y * s);
        store_act(out, p->f32, to + (size_t)(i + half), y * c + x * s);
    }
}

LOCAL(float, softmax_shares, THREADS / WAVE);

/* x of every wave's first lane, combined. */
DEV float over_waves(float x, int sum) {
    float all = sum ? 0 : x;
    block_wait();
    if (!(thread_id() & (WAVE - 1))) local_put(softmax_shares, thread_id() / WAVE, x);
    block_wait();
    UNROLL
    for (int i = 0; i < THREADS / WAVE; i++) {
        float share = local_get(softmax_shares, i);
        all = sum ? all + share : larger(all, share);
    }
    return all;
}

KERNEL(THREADS, softmax_rows, gpu_softmax) {
    const int r = block_x();
    if (r >= *p->count) return;
    float *s = p->scores + ((size_t)r * (size_t)p->heads + (size_t)block_y()) * (size_t)p->places;
    const int keys = p->keys[r];
    float top = -3.0e38f, sum = 0;
    for (int j = thread_id(); j < keys; j += THREADS) top = larger(top, s[j]);
    top = over_waves(wave_max(top), 0);
    for (int j = thread_id(); j < keys; j += THREADS) sum += exp2_of((s[j] - top) * 1.4426950408889634f);
    sum = over_waves(wave_sum(sum), 1);
    for (int j = thread_id(); j < keys; j += THREADS) {
        float y = exp2_of((s[j] - top) * 1.4426950408889634f) / sum;
        s[j] = p->f32 ? y : round_bf16(y);
    }
}

/* Element at which head h's keys or values of row r begin: of its image, or of its sample's cache. */
DEV size_t attended_at(const gpu_attend *p, int r, int h) {
    return p->stride ? (size_t)(r & ~255) * (size_t)p->stride + (size_t)h * (size_t)p->head_dim
                     : (size_t)p->sample[r] * (size_t)p->capacity * (size_t)p->head_dim;
}

KERNEL(THREADS, scores, gpu_attend) {
    const int r = block_x(), h = block_y();
    if (r >= *p->count) return;
    const int keys = p->keys[r];
    const size_t from = attended_at(p, r, h), stride = (size_t)(p->stride ? p->stride : p->head_dim),
                 q = (size_t)r * (size_t)p->q_stride + (size_t)(h * p->head_dim);
    float *out = p->scores + ((size_t)r * (size_t)p->heads + (size_t)h) * (size_t)p->places;
    for (int j = thread_id(); j < keys; j += THREADS) {
        float sum = 0;
        for (int i = 0; i < p->head_dim; i++)
            sum += load_act(p->q, p->f32, q + (size_t)i) *
                   load_act(p->from, p->f32, from + (size_t)j * stride + (size_t)i);
        out[j] = sum * p->scale;
    }
}

KERNEL(THREADS, values, gpu_attend) {
    const int r = block_x(), h = block_y();
    if (r >= *p->count) return;
    const int keys = p->keys[r];
    const size_t from = attended_at(p, r, h), stride = (size_t)(p->stride ? p->stride : p->head_dim),
                 row = (size_t)r * (size_t)p->heads + (size_t)h;
    const float *shares = p->scores + row * (size_t)p->places;
    for (int i = thread_id(); i < p->head_dim; i += THREADS) {
        float sum = 0;
        for (int j = 0; j < keys; j++)
            sum += shares[j] * load_act(p->from, p->f32, from + (size_t)j * stride + (size_t)i);
        store_act(p->out, p->f32, row * (size_t)p->head_dim + (size_t)i, sum);
    }
}

/* ---- weights ------------------------------------------------------------------------------------------- */

KERNEL(THREADS, pack_raw, gpu_raw) {
    const int group = block_x();
    int rows;
    const int row = gpu_group_rows(&p->order, group, &rows);
    const int padded = p->f32 ? (p->k + 3) & ~3 : p->blocks * GPU_ATOM_K;
    for (int i = thread_id(); i < 8 * padded; i += THREADS) {
        int column = i / padded, k = i % padded, there = column < rows && k < p->k;
        size_t from = (size_t)(row + column) * (size_t)p->k + (size_t)k;
        if (p->f32) {
            ((float *)p->out)[(size_t)(group * 8 + column) * (size_t)padded + (size_t)k] =
                there ? ((const float *)p->rows)[from] : 0;
            continue;
        }
        size_t unit = (size_t)(group >> 1) * (size_t)p->blocks * 8 + (size_t)(k / 8);
        ((u16 *)p->out)[(unit * GPU_UNIT + (size_t)((group & 1) * 8 + column)) * 8 + (size_t)(k % 8)] =
            there ? ((const u16 *)p->rows)[from] : 0;
    }
}

KERNEL(GPU_GENERATE_THREADS, generate, gpu_generate) {
    const int end = smaller(p->units, (block_y() + 1) * GPU_GENERATE_UNITS);
    for (int unit = block_y() * GPU_GENERATE_UNITS + thread_id(); unit < end; unit += GPU_GENERATE_THREADS)
        gpu_generate_unit(p, block_x(), unit);
}
