/* The synthetic checkpoint's recipe, and its generator in plain C: the definition that the vector versions
 * are tested against. tests/golden/SYNTH.md is its specification.
 *
 * value(i) = offset + scale·u(i) in double, without fused multiply-add; then to float, then to bf16. */
#include "checkpoint/synthetic/synth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/report.h"
#include "checkpoint/layout.h"
#include "checkpoint/presets.h"
#include "checkpoint/source.h"
#include "checkpoint/tensors_build.h"
#include "checkpoint/variant.h"

static inline double value(const tensor_recipe *r, int64_t i) {
    double product = r->scale * hash_uniform(r->key, (uint64_t)i);
    double sum = r->offset + product;
    return i >= r->raise_from ? sum + r->raise : sum;
}

static void read_f32(const tensor_recipe *r, int64_t first, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = bf16_to_float(float_to_bf16((float)value(r, first + i)));
}

static void read_bf16(const tensor_recipe *r, int64_t first, int64_t count, bf16 *out) {
    for (int64_t i = 0; i < count; i++) out[i] = float_to_bf16((float)value(r, first + i));
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

tensor_recipe synth_recipe(const tensor *t, uint64_t seed) {
    const recipe *r = recipes;
    while (!ends(t->name, r->tail) || (r->inside && !strstr(t->name, r->inside)) ||
           (r->not_inside && strstr(t->name, r->not_inside)))
        r++;
    double fan_in = 1.0;
    for (int i = 1; i < t->rank; i++) fan_in *= (double)t->shape[i];
    return (tensor_recipe){.key = hash_key(t->name, strlen(t->name), seed),
                           .offset = r->offset,
                           .scale = r->linear ? r->scale * sqrt(3.0 / fan_in) : r->scale,
                           .raise = SYNTH_RAISE,
                           .raise_from = ends(t->name, "dense.bias") ? 2 * (t->count / 3) : t->count};
}

/* ---- a list of tensors that nothing stores ---- */

static void read_generated(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out) {
    const synth_kernel *kernel = synth_kernel_best();
    if (type == DTYPE_BF16) kernel->read_bf16(tensor->place, first, count, out);
    else kernel->read_f32(tensor->place, first, count, out);
}

static const tensor_recipe *recipe_of(const tensor *tensor) { return tensor->place; }

static const tensor_source source = {.read = read_generated, .recipe = recipe_of};
static const tensor_store recipes_store = {.close = free};

typedef struct builder {
    tensors *tensors;
    tensor_recipe *recipes;      /* [count] */
    uint64_t seed;
    int count;
} builder;

static openpi_status count_one(void *user, const char *name, int rank, const int64_t *shape,
                               openpi_error *error) {
    builder *b = user;
    (void)name, (void)rank, (void)shape, (void)error;
    b->count++;
    return OPENPI_OK;
}

static openpi_status add(void *user, const char *name, int rank, const int64_t *shape, openpi_error *error) {
    builder *b = user;
    tensor_recipe *recipe = &b->recipes[tensors_count(b->tensors)];
    tensor t = {.name = name, .file = "synthetic", .type = DTYPE_BF16, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) t.count *= t.shape[i] = shape[i];
    *recipe = synth_recipe(&t, b->seed);
    t.source = &source;
    t.place = recipe;
    return tensors_add(b->tensors, &t, error);
}

static openpi_status build(builder *b, const openpi_synthetic *synthetic, openpi_error *error) {
    TRY(checkpoint_tensors(&synthetic->dims, synthetic->variant, count_one, b, error));
    size_t bytes = (size_t)b->count * sizeof *b->recipes;
    b->recipes = malloc(bytes);
    if (!b->recipes) return report_no_memory(error, bytes, "the synthetic checkpoint");
    TRY(tensors_own(b->tensors, &recipes_store, b->recipes, error));
    TRY(checkpoint_tensors(&synthetic->dims, synthetic->variant, add, b, error));
    return tensors_finish(b->tensors, error);
}

openpi_status tensors_synthetic(const openpi_synthetic *synthetic, tensors **out, openpi_error *error) {
    TRY(dims_check(&synthetic->dims, "the synthetic checkpoint", error));
    TRY(variant_check(synthetic->variant, "the synthetic checkpoint's variant", error));
    builder b = {.tensors = tensors_create(), .seed = synthetic->seed};
    if (!b.tensors) return report_no_memory(error, sizeof(void *), "the synthetic checkpoint");
    openpi_status status = build(&b, synthetic, error);
    if (status == OPENPI_OK) *out = b.tensors;
    else tensors_close(b.tensors);
    return status;
}
