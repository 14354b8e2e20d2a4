/* The synthetic checkpoint's recipe, and its generator in plain C: the definition that the vector versions
 * are tested against. tests/golden/SYNTH.md is its specification.
 *
 * value(i) = offset + scale·u(i) in double, without fused multiply-add; then to float, then to bf16. */
#include "checkpoint/synthetic/synth.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/report.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors_build.h"
#include "checkpoint/variant.h"

static inline double value(const tensor *t, int64_t i) {
    double product = t->scale * hash_uniform(t->key, (uint64_t)i);
    double sum = t->offset + product;
    return i >= t->raise_from ? sum + SYNTH_RAISE : sum;
}

static void read_f32(const tensor *t, int64_t first, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = bf16_to_float(float_to_bf16((float)value(t, first + i)));
}

static void read_bf16(const tensor *t, int64_t first, int64_t count, bf16 *out) {
    for (int64_t i = 0; i < count; i++) out[i] = float_to_bf16((float)value(t, first + i));
}

const synth_kernel synth_scalar = {"scalar", read_f32, read_bf16};

const synth_kernel *synth_kernel_at(int level) {
    if (level == 0) return &synth_scalar;
#if defined(__x86_64__)
    if (level == 1 && synth_avx2.read_f32 && __builtin_cpu_supports("avx2")) return &synth_avx2;
    if (level == 2 && synth_avx512.read_f32 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &synth_avx512;
#endif
    return NULL;
}

const synth_kernel *synth_kernel_best(void) {
    for (int level = SYNTH_KERNELS - 1; level > 0; level--)
        if (synth_kernel_at(level)) return synth_kernel_at(level);
    return &synth_scalar;
}

/* ---- the recipe ---- */

static int ends(const char *name, const char *tail) {
    size_t a = strlen(name), b = strlen(tail);
    return a >= b && !strcmp(name + a - b, tail);
}

/* The first row whose name fits holds. linear: scale is a gain over √(3 / fan-in). */
typedef struct recipe {
    const char *tail, *inside, *not_inside;
    int linear;
    double offset, scale;
} recipe;

static const recipe recipes[] = {
    {.tail = "position_embedding.weight", .scale = 0.5},
    {.tail = "lm_head.weight", .linear = 1, .scale = 1.0},
    {.tail = "embed_tokens.weight", .linear = 1, .scale = 1.0},
    {.tail = "dense.weight", .linear = 1, .scale = 0.5},
    {.tail = "dense.bias", .scale = 0.2},
    {.tail = ".weight", .inside = "layer_norm", .offset = 1.0, .scale = 0.2},          /* SigLIP's norms */
    {.tail = "", .inside = "layer_norm", .scale = 0.1},
    {.tail = ".weight", .inside = "post_layernorm", .offset = 1.0, .scale = 0.2},
    {.tail = "", .inside = "post_layernorm", .scale = 0.1},
    {.tail = "norm.weight", .scale = 0.2},              /* Gemma's, w of 1 + w */
    {.tail = ".bias", .scale = 0.1},
    {.tail = "patch_embedding.weight", .linear = 1, .scale = 2.0},
    {.tail = "q_proj.weight", .linear = 1, .scale = 1.5},
    {.tail = "k_proj.weight", .linear = 1, .scale = 1.5},
    {.tail = "o_proj.weight", .not_inside = "action", .linear = 1, .scale = 1.5},
    {.tail = "out_proj.weight", .not_inside = "action", .linear = 1, .scale = 1.5},
    {.tail = "down_proj.weight", .not_inside = "action", .linear = 1, .scale = 1.5},
    {.tail = "fc2.weight", .not_inside = "action", .linear = 1, .scale = 1.5},
    {.tail = "", .linear = 1, .scale = 1.0},
};

void synth_recipe(tensor *t, uint64_t seed) {
    const recipe *r = recipes;
    while (!ends(t->name, r->tail) || (r->inside && !strstr(t->name, r->inside)) ||
           (r->not_inside && strstr(t->name, r->not_inside)))
        r++;
    double fan_in = 1.0;
    for (int i = 1; i < t->rank; i++) fan_in *= (double)t->shape[i];
    t->key = hash_key(t->name, strlen(t->name), seed);
    t->offset = r->offset;
    t->scale = r->linear ? r->scale * sqrt(3.0 / fan_in) : r->scale;
    t->raise_from = ends(t->name, "dense.bias") ? 2 * (t->count / 3) : t->count;
}

/* ---- a list of tensors that nothing stores ---- */

typedef struct builder {
    tensors *tensors;
    uint64_t seed;
} builder;

static openpi_status add(void *user, const char *name, int rank, const int64_t *shape, openpi_error *error) {
    builder *b = user;
    tensor t = {.name = name, .file = "synthetic", .type = DTYPE_BF16, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) t.count *= t.shape[i] = shape[i];
    synth_recipe(&t, b->seed);
    return tensors_add(b->tensors, &t, error);
}

openpi_status tensors_synthetic(const openpi_synthetic *synthetic, tensors **out, openpi_error *error) {
    TRY(dims_check(&synthetic->dims, "the synthetic checkpoint", error));
    TRY(variant_check(synthetic->variant, "the synthetic checkpoint's variant", error));
    builder b = {tensors_create(), synthetic->seed};
    if (!b.tensors) return report_no_memory(error, sizeof(void *), "the synthetic checkpoint");
    openpi_status status = checkpoint_tensors(&synthetic->dims, synthetic->variant, add, &b, error);
    if (status == OPENPI_OK) status = tensors_finish(b.tensors, error);
    if (status != OPENPI_OK) {
        tensors_close(b.tensors);
        return status;
    }
    *out = b.tensors;
    return OPENPI_OK;
}
