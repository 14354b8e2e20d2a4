/* Writes a checkpoint as Orbax lays out arrays, a folder each and a file a chunk, from PyTorch's tensors: the
 * inverse of src/checkpoint/jax/orbax.c, written from openpi's converter
 * (examples/convert_jax_model_to_pytorch.py) by strides. Every array is cut in two along one of its axes,
 * and where that does not go evenly the last chunk is padded, as zarr does. Include after cmocka.h. */
#ifndef TESTS_ORBAX_WRITE_H
#define TESTS_ORBAX_WRITE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/tensors.h"

#define ORBAX_VISION "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
#define ORBAX_LANGUAGE "paligemma_with_expert.paligemma.model.language_model."
#define ORBAX_EXPERT "paligemma_with_expert.gemma_expert.model."

enum { ORBAX_AXES = 5, ORBAX_SELECT = -1 };

/* One array: extents of its axes after the layer's, and what a step along each is in the PyTorch tensor, in
 * elements; ORBAX_SELECT: the axis selects the tensor. */
typedef struct orbax_array {
    const char *name, *tensors[2];
    int layers;                  /* 0: no axis of layers                                              */
    int rank;
    int64_t extent[ORBAX_AXES], stride[ORBAX_AXES];
} orbax_array;

/* Which of an array's tensors was found last: NULL, none yet. */
typedef struct orbax_source {
    const tensor *tensor;
    int which, layer;
} orbax_source;

/* The element at `index` (the layer first, where there is one). */
static inline bf16 orbax_element(const tensors *from, const orbax_array *a, const int64_t *index,
                                 orbax_source *source) {
    const int64_t *inner = index + (a->layers > 0);
    int64_t at = 0;
    int which = 0, layer = a->layers ? (int)index[0] : 0;
    bf16 value;
    for (int i = 0; i < a->rank; i++) {
        if (a->stride[i] == ORBAX_SELECT) which = (int)inner[i];
        else at += inner[i] * a->stride[i];
    }
    if (!source->tensor || source->which != which || source->layer != layer) {
        char name[256];
        snprintf(name, sizeof name, a->tensors[which], layer);
        *source = (orbax_source){tensors_find(from, name), which, layer};
        if (!source->tensor) fail_msg("%s is not there", name);
    }
    assert_true(at < source->tensor->count);
    memcpy(&value, (const char *)source->tensor->data + (size_t)at * sizeof value, sizeof value);
    return value;
}

static inline void orbax_put(const char *folder, const char *name, const void *data, size_t bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *path = file_join(folder, name);
    assert_non_null(path);
    if (file_write(path, data, bytes, &error) != OPENPI_OK) fail_msg("%s", error.message);
    free(path);
}

/* Makes the folder of an array and its header; `type` as zarr calls it. */
static inline void orbax_write_header(const char *params, const char *name, const char *type, int rank,
                                      const int64_t *shape, const int64_t *chunk, char folder[600]) {
    char header[600], *end = header;
    snprintf(folder, 600, "%.300s/params.%.200s.value", params, name);
    assert_int_equal(mkdir(folder, 0777), 0);
    end += sprintf(end, "{\"zarr_format\": 2, \"dtype\": \"%s\", \"compressor\": null, \"order\": \"C\", ",
                   type);
    end +=
        sprintf(end, "\"fill_value\": null, \"filters\": null, \"dimension_separator\": \".\", \"shape\": [");
    for (int i = 0; i < rank; i++) end += sprintf(end, "%s%d", i ? ", " : "", (int)shape[i]);
    end += sprintf(end, "], \"chunks\": [");
    for (int i = 0; i < rank; i++) end += sprintf(end, "%s%d", i ? ", " : "", chunk[i] ? (int)chunk[i] : 1);
    end += sprintf(end, "]}");
    orbax_put(folder, ".zarray", header, (size_t)(end - header));
}

/* An array in one chunk. */
static inline void orbax_write_whole(const char *params, const char *name, const char *type, int rank,
                                     const int64_t *shape, const void *data, size_t bytes) {
    static const char *const chunks[] = {"", "0", "0.0", "0.0.0", "0.0.0.0", "0.0.0.0.0"};
    char folder[600];
    orbax_write_header(params, name, type, rank, shape, shape, folder);
    orbax_put(folder, chunks[rank], data, bytes);
}

/* Row 1 of every matrix of a LoRA target is zeros in W, and a pair of rank 2 restores it exactly. Heads of
 * attn_vec_einsum share the sum of b, so its pair is zeros and W whole. */
enum { ORBAX_LORA_ROW = 1, ORBAX_LORA_RANK = 2 };

static inline int orbax_is_lora_target(const orbax_array *a) {
    return strstr(a->name, "einsum") || strstr(a->name, ".linear");
}

static inline int orbax_is_restored(const orbax_array *a) { return !strstr(a->name, "attn_vec_einsum"); }

static inline void orbax_write_lora_factor(const char *params, const tensors *from, const orbax_array *a,
                                           int rank, const int64_t *shape, int b) {
    int64_t factor[ORBAX_AXES], index[ORBAX_AXES], count = 1;
    orbax_source source = {NULL, 0, 0};
    char name[200];
    int length = (int)strlen(a->name), einsum = !strcmp(a->name + length - 2, ".w");
    snprintf(name, sizeof name, "%.*s%clora_%c", einsum ? length - 2 : length, a->name, einsum ? '.' : '_',
             b ? 'b' : 'a');
    memcpy(factor, shape, sizeof factor);
    factor[b ? rank - 2 : rank - 1] = ORBAX_LORA_RANK;
    for (int i = 0; i < rank; i++) count *= factor[i];
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n;
        for (int i = rank - 1; i >= 0; i--) {
            index[i] = rest % factor[i];
            rest /= factor[i];
        }
        int64_t k = index[b ? rank - 2 : rank - 1] | !orbax_is_restored(a);
        if (k) values[n] = b ? 0 : (float)(n % 13) - 6;
        else if (!b) values[n] = index[rank - 2] == ORBAX_LORA_ROW;
        else {
            index[rank - 2] = ORBAX_LORA_ROW;
            values[n] = bf16_to_float(orbax_element(from, a, index, &source));
        }
    }
    orbax_write_whole(params, name, "<f4", rank, factor, values, (size_t)count * sizeof *values);
    free(values);
}

/* How a checkpoint is written; together, or none of them. LOW_BITS: arrays are F32, whose values are not
 * bf16's but begin as theirs. */
enum { ORBAX_WITH_LORA = 1, ORBAX_LOW_BITS = 2 };

static inline float orbax_low_bits(bf16 value, int64_t n) {
    uint32_t bits = (uint32_t)value << 16;
    float number;
    if (value & 0x7fff) bits |= ((uint32_t)n * 2654435761u) >> 16;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline void orbax_put_values(const char *folder, const char *name, const bf16 *values, int64_t count,
                                    int low_bits) {
    if (!low_bits) {
        orbax_put(folder, name, values, (size_t)count * sizeof *values);
        return;
    }
    float *wide = malloc((size_t)count * sizeof *wide);
    assert_non_null(wide);
    for (int64_t n = 0; n < count; n++) wide[n] = orbax_low_bits(values[n], n);
    orbax_put(folder, name, wide, (size_t)count * sizeof *wide);
    free(wide);
}

/* The chunk at `place`; what lies beyond the array is 0x5a5a. */
static inline void orbax_write_chunk(const char *folder, const tensors *from, const orbax_array *a, int rank,
                                     const int64_t *shape, const int64_t *chunk, const int64_t *place,
                                     int lora, int low_bits) {
    int64_t count = 1, index[ORBAX_AXES];
    orbax_source source = {NULL, 0, 0};
    char name[64] = "", *end = name;
    for (int i = 0; i < rank; i++) count *= chunk[i];
    bf16 *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, inside = 1;
        for (int i = rank - 1; i >= 0; i--) {
            index[i] = place[i] * chunk[i] + rest % chunk[i];
            inside &= index[i] < shape[i];
            rest /= chunk[i];
        }
        if (lora && index[rank - 2] == ORBAX_LORA_ROW) values[n] = 0;
        else values[n] = inside ? orbax_element(from, a, index, &source) : 0x5a5a;
    }
    for (int i = 0; i < rank; i++) end += sprintf(end, "%s%d", i ? "." : "", (int)place[i]);
    orbax_put_values(folder, name, values, count, low_bits);
    free(values);
}

/* `cut`: the axis that is cut in two, taken by the array's rank. */
static inline void orbax_write_array(const char *params, const tensors *from, const orbax_array *a, int cut,
                                     int form) {
    int64_t shape[ORBAX_AXES], chunk[ORBAX_AXES], place[ORBAX_AXES] = {0};
    int rank = a->rank + (a->layers > 0);
    int lora = form & ORBAX_WITH_LORA && orbax_is_lora_target(a), low_bits = form & ORBAX_LOW_BITS;
    char folder[600];
    if (a->layers) shape[0] = a->layers;
    for (int i = 0; i < a->rank; i++) shape[i + (a->layers > 0)] = a->extent[i];
    memcpy(chunk, shape, sizeof chunk);
    cut %= rank;
    chunk[cut] = (shape[cut] + 1) / 2;
    orbax_write_header(params, a->name, low_bits ? "<f4" : "bfloat16", rank, shape, chunk, folder);
    for (place[cut] = 0; place[cut] * chunk[cut] < shape[cut]; place[cut]++)
        orbax_write_chunk(folder, from, a, rank, shape, chunk, place, lora && orbax_is_restored(a),
                          low_bits);
    for (int b = 0; lora && b < 2; b++) orbax_write_lora_factor(params, from, a, rank, shape, b);
}

/* Both stacks of Gemma: w wide, m its MLP. */
static inline int orbax_gemma(orbax_array *list, const openpi_dims *d, int w, int m, const char *const *names,
                              int adaptive) {
    int64_t h = d->heads, k = d->head_dim;
    int n = 0, l = d->depth;
    list[n++] = (orbax_array){names[0], {names[8]}, l, 3, {h, w, k}, {k * w, 1, w}};
    list[n++] = (orbax_array){names[1], {names[9], names[10]}, l, 4, {2, 1, w, k}, {ORBAX_SELECT, 0, 1, w}};
    list[n++] = (orbax_array){names[2], {names[11]}, l, 3, {h, k, w}, {k, 1, h * k}};
    list[n++] = (orbax_array){names[3], {names[12], names[13]}, l, 3, {2, w, m}, {ORBAX_SELECT, 1, w}};
    list[n++] = (orbax_array){names[4], {names[14]}, l, 2, {m, w}, {1, m}};
    if (adaptive) return n;
    list[n++] = (orbax_array){names[5], {names[15]}, l, 1, {w}, {1}};
    list[n++] = (orbax_array){names[6], {names[16]}, l, 1, {w}, {1}};
    list[n++] = (orbax_array){names[7], {names[17]}, 0, 1, {w}, {1}};
    return n;
}

#define ORBAX_GEMMA_NAMES(x, to) \
    {"PaliGemma.llm.layers.attn.q_einsum" x ".w", "PaliGemma.llm.layers.attn.kv_einsum" x ".w", \
     "PaliGemma.llm.layers.attn.attn_vec_einsum" x ".w", "PaliGemma.llm.layers.mlp" x ".gating_einsum", \
     "PaliGemma.llm.layers.mlp" x ".linear", "PaliGemma.llm.layers.pre_attention_norm" x ".scale", \
     "PaliGemma.llm.layers.pre_ffw_norm" x ".scale", "PaliGemma.llm.final_norm" x ".scale", \
     to "layers.%d.self_attn.q_proj.weight", to "layers.%d.self_attn.k_proj.weight", \
     to "layers.%d.self_attn.v_proj.weight", to "layers.%d.self_attn.o_proj.weight", \
     to "layers.%d.mlp.gate_proj.weight", to "layers.%d.mlp.up_proj.weight", \
     to "layers.%d.mlp.down_proj.weight", \
     to "layers.%d.input_layernorm.weight", to "layers.%d.post_attention_layernorm.weight", to "norm.weight"}

static inline int orbax_vision(orbax_array *list, const openpi_dims *d) {
#define BLOCK "PaliGemma.img.Transformer.encoderblock."
#define HEADS BLOCK "MultiHeadDotProductAttention_0."
#define LAYER ORBAX_VISION "encoder.layers.%d."
    int64_t w = d->vision_width, h = d->vision_heads, k = w / h, m = d->vision_mlp;
    int l = d->vision_depth;
    const orbax_array all[] = {
        {"PaliGemma.img.embedding.kernel",
         {ORBAX_VISION "embeddings.patch_embedding.weight"},
         0,
         4,
         {14, 14, 3, w},
         {14, 1, 196, 588}},
        {"PaliGemma.img.embedding.bias", {ORBAX_VISION "embeddings.patch_embedding.bias"}, 0, 1, {w}, {1}},
        {"PaliGemma.img.pos_embedding",
         {ORBAX_VISION "embeddings.position_embedding.weight"},
         0,
         3,
         {1, 256, w},
         {0, w, 1}},
        {BLOCK "LayerNorm_0.scale", {LAYER "layer_norm1.weight"}, l, 1, {w}, {1}},
        {BLOCK "LayerNorm_0.bias", {LAYER "layer_norm1.bias"}, l, 1, {w}, {1}},
        {BLOCK "LayerNorm_1.scale", {LAYER "layer_norm2.weight"}, l, 1, {w}, {1}},
        {BLOCK "LayerNorm_1.bias", {LAYER "layer_norm2.bias"}, l, 1, {w}, {1}},
        {HEADS "query.kernel", {LAYER "self_attn.q_proj.weight"}, l, 3, {w, h, k}, {1, k * w, w}},
        {HEADS "query.bias", {LAYER "self_attn.q_proj.bias"}, l, 2, {h, k}, {k, 1}},
        {HEADS "key.kernel", {LAYER "self_attn.k_proj.weight"}, l, 3, {w, h, k}, {1, k * w, w}},
        {HEADS "key.bias", {LAYER "self_attn.k_proj.bias"}, l, 2, {h, k}, {k, 1}},
        {HEADS "value.kernel", {LAYER "self_attn.v_proj.weight"}, l, 3, {w, h, k}, {1, k * w, w}},
        {HEADS "value.bias", {LAYER "self_attn.v_proj.bias"}, l, 2, {h, k}, {k, 1}},
        {HEADS "out.kernel", {LAYER "self_attn.out_proj.weight"}, l, 3, {h, k, w}, {k, 1, w}},
        {HEADS "out.bias", {LAYER "self_attn.out_proj.bias"}, l, 1, {w}, {1}},
        {BLOCK "MlpBlock_0.Dense_0.kernel", {LAYER "mlp.fc1.weight"}, l, 2, {w, m}, {1, w}},
        {BLOCK "MlpBlock_0.Dense_0.bias", {LAYER "mlp.fc1.bias"}, l, 1, {m}, {1}},
        {BLOCK "MlpBlock_0.Dense_1.kernel", {LAYER "mlp.fc2.weight"}, l, 2, {m, w}, {1, m}},
        {BLOCK "MlpBlock_0.Dense_1.bias", {LAYER "mlp.fc2.bias"}, l, 1, {w}, {1}},
        {"PaliGemma.img.Transformer.encoder_norm.scale",
         {ORBAX_VISION "post_layernorm.weight"},
         0,
         1,
         {w},
         {1}},
        {"PaliGemma.img.Transformer.encoder_norm.bias", {ORBAX_VISION "post_layernorm.bias"}, 0, 1, {w}, {1}},
    };
#undef BLOCK
#undef HEADS
#undef LAYER
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static inline int orbax_linear(orbax_array *list, const char *array, const char *tensor, int64_t in,
                               int64_t out) {
    static char names[64][4][128];
    static int used;
    char (*name)[128] = names[used++ % 64];
    snprintf(name[0], 128, "%.100s.kernel", array);
    snprintf(name[1], 128, "%.100s.bias", array);
    snprintf(name[2], 128, "%.100s.weight", tensor);
    snprintf(name[3], 128, "%.100s.bias", tensor);
    list[0] = (orbax_array){name[0], {name[2]}, 0, 2, {in, out}, {1, in}};
    list[1] = (orbax_array){name[1], {name[3]}, 0, 1, {out}, {1}};
    return 2;
}

static inline int orbax_adaptive(orbax_array *list, const openpi_dims *d) {
    static const char *const names[][3] = {{"layers.pre_attention_norm_1", "layers.%d.input_layernorm"},
                                           {"layers.pre_ffw_norm_1", "layers.%d.post_attention_layernorm"},
                                           {"final_norm_1", "norm"}};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        char array[128], tensor[128];
        snprintf(array, sizeof array, "PaliGemma.llm.%s.Dense_0", names[i][0]);
        snprintf(tensor, sizeof tensor, ORBAX_EXPERT "%s.dense", names[i][1]);
        orbax_linear(list + n, array, tensor, d->expert_width, 3 * d->expert_width);
        list[n].layers = list[n + 1].layers = i < 2 ? d->depth : 0;
        n += 2;
    }
    return n;
}

/* All arrays of `from`, whose bytes must be in memory (tensors_load) and bf16, below FOLDER/params; with LoRA
 * pairs they give the same tensors merged. */
static inline void orbax_write(const char *folder, const tensors *from, const openpi_dims *d, int pi05,
                               int form) {
    static const char *const language[] = ORBAX_GEMMA_NAMES("", ORBAX_LANGUAGE);
    static const char *const expert[] = ORBAX_GEMMA_NAMES("_1", ORBAX_EXPERT);
    static const char *const heads[2][5] = {
        {"state_proj", "action_in_proj", "action_time_mlp_in", "action_time_mlp_out", "action_out_proj"},
        {NULL, "action_in_proj", "time_mlp_in", "time_mlp_out", "action_out_proj"}};
    int64_t w = d->expert_width, in[2][5] = {{32, 32, 2 * w, w, w}, {0, 32, w, w, w}};
    orbax_array list[80];
    char params[600];
    int n = orbax_vision(list, d);
    n += orbax_linear(list + n, "PaliGemma.img.head",
                      "paligemma_with_expert.paligemma.model.multi_modal_projector.linear", d->vision_width,
                      d->width);
    list[n++] = (orbax_array){"PaliGemma.llm.embedder.input_embedding",
                              {"paligemma_with_expert.paligemma.lm_head.weight"},
                              0,
                              2,
                              {d->vocab, d->width},
                              {d->width, 1}};
    n += orbax_gemma(list + n, d, d->width, d->mlp, language, 0);
    n += orbax_gemma(list + n, d, d->expert_width, d->expert_mlp, expert, pi05);
    if (pi05) n += orbax_adaptive(list + n, d);
    for (int i = 0; i < 5; i++)
        if (heads[pi05][i])
            n += orbax_linear(list + n, heads[pi05][i], heads[pi05][i], in[pi05][i], i == 4 ? 32 : w);
    snprintf(params, sizeof params, "%s/params", folder);
    assert_int_equal(mkdir(params, 0777), 0);
    for (int i = 0; i < n; i++) orbax_write_array(params, from, &list[i], i, form);
}

#endif
