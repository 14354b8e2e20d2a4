#include "model/orbax.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/file.h"
#include "base/first_failure.h"
#include "base/report.h"
#include "model/lora.h"
#include "model/ocdbt.h"
#include "model/tensors_build.h"
#include "model/values.h"
#include "model/zarr.h"

/* ---- names ---- */

#define IMG "PaliGemma.img."
#define BLOCK IMG "Transformer.encoderblock."
#define MHA BLOCK "MultiHeadDotProductAttention_0."
#define LLM "PaliGemma.llm."
#define TOWER "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
#define LANGUAGE "paligemma_with_expert.paligemma.model.language_model."
#define EXPERT "paligemma_with_expert.gemma_expert.model."

/* What an array's axes are:
 *   L  the layer: one tensor each                     1  an axis of 1
 *   p  the tensor, of the two that the array holds    i  inputs
 *   b  outputs that stand before i                    c  inputs before s
 *   o  outputs                                        s  places of a patch
 * The tensor is [b·o][i], or [o][c][s] of a patch; without inputs as the array has it. */
typedef struct array_rule {
    const char *array, *axes, *tensors[2];
} array_rule;

/* Both stacks of Gemma: `x` is "" or "_1". */
#define ATTENTION "layers.%d.self_attn."
#define MLP "layers.%d.mlp."
#define GEMMA_RULES(x, to)                                                                                 \
    {LLM "layers.attn.q_einsum" x ".w", "Lbio", {to ATTENTION "q_proj.weight"}},                          \
    {LLM "layers.attn.kv_einsum" x ".w", "Lp1io", {to ATTENTION "k_proj.weight", to ATTENTION "v_proj.weight"}}, \
    {LLM "layers.attn.attn_vec_einsum" x ".w", "Liio", {to ATTENTION "o_proj.weight"}},                   \
    {LLM "layers.mlp" x ".gating_einsum", "Lpio", {to MLP "gate_proj.weight", to MLP "up_proj.weight"}},  \
    {LLM "layers.mlp" x ".linear", "Lio", {to MLP "down_proj.weight"}},                                   \
    {LLM "layers.pre_attention_norm" x ".scale", "Lo", {to "layers.%d.input_layernorm.weight"}},          \
    {LLM "layers.pre_ffw_norm" x ".scale", "Lo", {to "layers.%d.post_attention_layernorm.weight"}},       \
    {LLM "final_norm" x ".scale", "o", {to "norm.weight"}}

#define LINEAR_RULES(name) {name ".kernel", "io", {name ".weight"}}, {name ".bias", "o", {name ".bias"}}

/* An adaptive norm of π0.5's expert. */
#define ADAPTIVE_RULES(kernel, bias, from, to)                          \
    {LLM from ".Dense_0.kernel", kernel, {EXPERT to ".dense.weight"}}, \
    {LLM from ".Dense_0.bias", bias, {EXPERT to ".dense.bias"}}

static const array_rule rules[] = {
    {IMG "embedding.kernel", "ssco", {TOWER "embeddings.patch_embedding.weight"}},
    {IMG "embedding.bias", "o", {TOWER "embeddings.patch_embedding.bias"}},
    {IMG "pos_embedding", "1bo", {TOWER "embeddings.position_embedding.weight"}},
    {BLOCK "LayerNorm_0.scale", "Lo", {TOWER "encoder.layers.%d.layer_norm1.weight"}},
    {BLOCK "LayerNorm_0.bias", "Lo", {TOWER "encoder.layers.%d.layer_norm1.bias"}},
    {BLOCK "LayerNorm_1.scale", "Lo", {TOWER "encoder.layers.%d.layer_norm2.weight"}},
    {BLOCK "LayerNorm_1.bias", "Lo", {TOWER "encoder.layers.%d.layer_norm2.bias"}},
    {MHA "query.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.q_proj.weight"}},
    {MHA "query.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.q_proj.bias"}},
    {MHA "key.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.k_proj.weight"}},
    {MHA "key.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.k_proj.bias"}},
    {MHA "value.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.v_proj.weight"}},
    {MHA "value.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.v_proj.bias"}},
    {MHA "out.kernel", "Liio", {TOWER "encoder.layers.%d.self_attn.out_proj.weight"}},
    {MHA "out.bias", "Lo", {TOWER "encoder.layers.%d.self_attn.out_proj.bias"}},
    {BLOCK "MlpBlock_0.Dense_0.kernel", "Lio", {TOWER "encoder.layers.%d.mlp.fc1.weight"}},
    {BLOCK "MlpBlock_0.Dense_0.bias", "Lo", {TOWER "encoder.layers.%d.mlp.fc1.bias"}},
    {BLOCK "MlpBlock_0.Dense_1.kernel", "Lio", {TOWER "encoder.layers.%d.mlp.fc2.weight"}},
    {BLOCK "MlpBlock_0.Dense_1.bias", "Lo", {TOWER "encoder.layers.%d.mlp.fc2.bias"}},
    {IMG "Transformer.encoder_norm.scale", "o", {TOWER "post_layernorm.weight"}},
    {IMG "Transformer.encoder_norm.bias", "o", {TOWER "post_layernorm.bias"}},
    {IMG "head.kernel", "io", {"paligemma_with_expert.paligemma.model.multi_modal_projector.linear.weight"}},
    {IMG "head.bias", "o", {"paligemma_with_expert.paligemma.model.multi_modal_projector.linear.bias"}},
    {LLM "embedder.input_embedding", "bo", {"paligemma_with_expert.paligemma.lm_head.weight"}},
    GEMMA_RULES("", LANGUAGE),
    GEMMA_RULES("_1", EXPERT),
    ADAPTIVE_RULES("Lio", "Lo", "layers.pre_attention_norm_1", "layers.%d.input_layernorm"),
    ADAPTIVE_RULES("Lio", "Lo", "layers.pre_ffw_norm_1", "layers.%d.post_attention_layernorm"),
    ADAPTIVE_RULES("io", "o", "final_norm_1", "norm"),
    LINEAR_RULES("state_proj"),
    LINEAR_RULES("action_in_proj"),
    LINEAR_RULES("action_out_proj"),
    LINEAR_RULES("action_time_mlp_in"),
    LINEAR_RULES("action_time_mlp_out"),
    LINEAR_RULES("time_mlp_in"),
    LINEAR_RULES("time_mlp_out"),
};

enum { RULES = sizeof rules / sizeof *rules, MOST_LAYERS = 1024 };

/* ---- arrays and their tensors ---- */

typedef struct array {
    const array_rule *rule;
    zarr_array zarr;
    lora *lora;                  /* NULL: none                                                            */
    dtype type;                  /* of its tensors: the array's, F32 where LoRA is merged                 */
    zarr_reader *reader;         /* NULL: not begun                                                       */
    int layers, parts, next;     /* next: the layer that the reader stands before                         */
    int64_t batch, inputs, channels, outputs;      /* of one tensor: see array_rule                       */
    int64_t group;               /* lines that hold one input's outputs                                   */
    int stage;                   /* of its first layer; 0: all of it is in stage 0                        */
    int sequential;
    int64_t line;                /* sequential: the one that the reader stands before                     */
    char *last;                  /* sequential: the line last_line, which was wanted in pieces; or NULL   */
    int64_t last_line;
    struct orbax *orbax;
    orbax_part *tensors;         /* [layers][parts]                                                       */
} array;

struct orbax_part {
    array *array;
    char *data;                  /* NULL: not staged                                                      */
};

struct orbax {
    char *folder;
    values *values;
    array arrays[RULES];
    int count, stages, staged;   /* staged: the stage that is in memory, -1: none                         */
    first_failure failure;       /* of a read                                                             */
};

static int64_t axis_product(const array *a, const char *which) {
    int64_t product = 1;
    for (int i = 0; i < a->zarr.rank; i++)
        if (strchr(which, a->rule->axes[i])) product *= a->zarr.shape[i];
    return product;
}

/* The sizes that the axes say. */
static openpi_status learn(array *a, openpi_error *error) {
    const char *axes = a->rule->axes;
    int rank = (int)strlen(axes);
    if (a->zarr.rank != rank)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" has %d axes, expected %d", a->zarr.name,
                      a->zarr.rank, rank);
    for (int i = 0; i < rank; i++) {
        int64_t expected = axes[i] == '1' ? 1 : axes[i] == 'p' ? 2 : axes[i] == 's' ? 14 : a->zarr.shape[i];
        if (a->zarr.shape[i] != expected || !expected)
            return report(error, OPENPI_BAD_FILE, "array \"%s\": axis %d is %lld, expected %lld",
                          a->zarr.name, i, (long long)a->zarr.shape[i], (long long)(expected ? expected : 1));
    }
    a->layers = (int)axis_product(a, "L");
    a->parts = (int)axis_product(a, "p");
    a->batch = axis_product(a, "b");
    a->inputs = axis_product(a, "ics");
    a->channels = strchr(axes, 'c') ? axis_product(a, "c") : 0;
    a->outputs = axis_product(a, "o");
    a->group = a->outputs / (rank < 2 ? 1 : a->zarr.shape[rank - 1]);
    a->sequential = !strcmp(a->rule->array, LLM "embedder.input_embedding");
    if (a->layers > MOST_LAYERS)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" has %d layers, expected at most %d", a->zarr.name,
                      a->layers, MOST_LAYERS);
    a->tensors = calloc((size_t)a->layers * (size_t)a->parts, sizeof *a->tensors);
    return a->tensors ? OPENPI_OK
                      : report_no_memory(error, (size_t)a->layers * sizeof *a->tensors, a->zarr.name);
}

static size_t part_bytes(const array *a) {
    return (size_t)(a->batch * a->outputs * a->inputs) * dtype_bytes(a->type);
}

static openpi_status add_tensors(array *a, tensors *list, const char *folder, openpi_error *error) {
    int vector = !strpbrk(a->rule->axes, "ibcs");
    tensor t = {.file = folder,
                .type = a->type,
                .rank = vector ? 1 : 2,
                .count = a->batch * a->outputs * a->inputs};
    t.shape[0] = a->batch * a->outputs;
    t.shape[1] = a->inputs;
    if (!vector && a->inputs == 1 && strchr(a->rule->axes, 'b'))
        t.shape[0] = a->batch, t.shape[1] = a->outputs;
    if (a->channels) {
        t.rank = 4;
        t.shape[1] = a->channels;
        t.shape[2] = t.shape[3] = 14;
    }
    t.raise_from = t.count;
    for (int layer = 0; layer < a->layers; layer++)
        for (int part = 0; part < a->parts; part++) {
            char name[256];
            snprintf(name, sizeof name, a->rule->tensors[part], layer);
            t.name = name;
            t.part = &a->tensors[layer * a->parts + part];
            t.part->array = a;
            TRY(tensors_add(list, &t, error));
        }
    return OPENPI_OK;
}

/* Matrices of all layers: what is too large for stage 0. */
static int is_stacked(const array *a) { return *a->rule->axes == 'L' && a->inputs > 1; }

static int is_vision(const array *a) { return !strncmp(a->rule->array, IMG, sizeof IMG - 1); }

/* Layers of matrices of the vision tower come first, then those of both stacks of Gemma together. */
static void set_stages(orbax *o) {
    int vision = 0, language = 0;
    for (int i = 0; i < o->count; i++) {
        const array *a = &o->arrays[i];
        int *most = is_vision(a) ? &vision : &language;
        if (is_stacked(a) && a->layers > *most) *most = a->layers;
    }
    for (int i = 0; i < o->count; i++) {
        array *a = &o->arrays[i];
        if (is_stacked(a)) a->stage = is_vision(a) ? 1 : 1 + vision;
    }
    o->stages = 1 + vision + language;
}

/* ---- opening ---- */

/* Where `tail` begins, if something stands before it and nothing after. */
static const char *tail_of(const char *key, const char *tail) {
    size_t length = strlen(key), end = strlen(tail);
    return length > end && !strcmp(key + length - end, tail) ? key + length - end : NULL;
}

/* "params.PaliGemma.img.head.kernel.value" without its ends, or NULL. */
static const char *array_name(const char *key, char *name, size_t bytes) {
    static const char head[] = "params.";
    const char *end = tail_of(key, "/.zarray");
    if (!end || strncmp(key, head, sizeof head - 1)) return NULL;
    key += sizeof head - 1;
    snprintf(name, bytes, "%.*s", (int)(end - key), key);
    const char *value = tail_of(name, ".value");
    if (value) name[value - name] = 0;
    return name;
}

/* -1: it is not there. */
static int find_array(const orbax *o, const char *name) {
    int i = 0;
    while (i < o->count && strcmp(o->arrays[i].rule->array, name)) i++;
    return i < o->count ? i : -1;
}

static openpi_status add_array(orbax *o, const char *key, const char *name, openpi_error *error) {
    const array_rule *rule = NULL;
    for (int i = 0; i < RULES; i++)
        if (!strcmp(rules[i].array, name)) rule = &rules[i];
    if (!rule)
        return report(error, OPENPI_UNSUPPORTED, "%s: array \"%s\" is none of a π0 or π0.5 checkpoint",
                      o->folder, name);
    if (find_array(o, name) >= 0)
        return report(error, OPENPI_BAD_FILE, "%s: array \"%s\" is there twice", o->folder, name);
    array *a = &o->arrays[o->count++];
    size_t bytes = strlen(key) - strlen("/.zarray");
    char *prefix = strndup(key, bytes);
    if (!prefix) return report_no_memory(error, bytes, name);
    *a = (array){.rule = rule, .zarr.name = prefix, .orbax = o, .last_line = -1};
    openpi_status status = zarr_open(o->values, prefix, &a->zarr, error);
    a->zarr.name = prefix;
    TRY(status);
    a->type = a->zarr.type;
    return learn(a, error);
}

/* A factor of a LoRA pair, beside the array that it changes, which was added before. */
static openpi_status add_lora(orbax *o, const char *key, const char *name, openpi_error *error) {
    char target[300], prefix[300];
    int which, at = lora_names(name, target, sizeof target, &which) ? find_array(o, target) : -1;
    if (at < 0)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: array \"%s\" is LoRA of an unknown target, expected a q_einsum, kv_einsum, "
                      "attn_vec_einsum, gating_einsum or linear that is there",
                      o->folder, name);
    array *a = &o->arrays[at];
    if (!a->lora && !(a->lora = calloc(1, sizeof *a->lora)))
        return report_no_memory(error, sizeof *a->lora, name);
    a->type = DTYPE_F32;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(key) - strlen("/.zarray")), key);
    return lora_add(a->lora, which, o->values, prefix, error);
}

static openpi_status add_arrays(orbax *o, tensors *list, openpi_error *error) {
    char name[256];
    for (int i = 0; i < values_count(o->values); i++) {
        const char *key = values_at(o->values, i)->key;
        if (tail_of(key, "/zarr.json"))
            return report(
                error, OPENPI_UNSUPPORTED,
                "%s: \"%s\" is an array of zarr v3, expected v2, which openpi saves (use_zarr3=False)",
                o->folder, key);
        if (array_name(key, name, sizeof name) && !strstr(name, "lora"))
            TRY(add_array(o, key, name, error));
    }
    if (!o->count) return report(error, OPENPI_BAD_FILE, "%s: no array of a checkpoint is in it", o->folder);
    for (int i = 0; i < values_count(o->values); i++) {
        const char *key = values_at(o->values, i)->key;
        if (array_name(key, name, sizeof name) && strstr(name, "lora")) TRY(add_lora(o, key, name, error));
    }
    for (int i = 0; i < o->count; i++) {
        array *a = &o->arrays[i];
        if (a->lora) TRY(lora_check(a->lora, &a->zarr, error));
        TRY(add_tensors(a, list, o->folder, error));
    }
    set_stages(o);
    return OPENPI_OK;
}

/* A folder an array, a file a chunk (Orbax's use_ocdbt=False). */
static openpi_status list_array_files(values *list, const char *folder, const char *array,
                                      openpi_error *error) {
    DIR *files = opendir(folder);
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while (files && status == OPENPI_OK && (entry = readdir(files))) {
        char key[600];
        file_reader reader;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(key, sizeof key, "%.300s/%.255s", array, entry->d_name);
        char *path = file_join(folder, entry->d_name);
        if (!path) status = report_no_memory(error, strlen(folder) + 256, folder);
        else if ((status = file_reader_open(path, &reader, error)) == OPENPI_OK) {
            status = values_add(list, key, path, 0, reader.bytes, NULL, error);
            file_reader_close(&reader);
        }
        free(path);
    }
    if (files) closedir(files);
    return status;
}

static openpi_status list_files(const char *folder, values **out, openpi_error *error) {
    values *list = values_create();
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    openpi_status status = list ? OPENPI_OK : report_no_memory(error, sizeof(void *), folder);
    while (entries && status == OPENPI_OK && (entry = readdir(entries))) {
        if (strncmp(entry->d_name, "params.", 7)) continue;
        char *path = file_join(folder, entry->d_name);
        if (!path) status = report_no_memory(error, strlen(folder) + 256, folder);
        else if (file_is_folder(path)) status = list_array_files(list, path, entry->d_name, error);
        free(path);
    }
    if (entries) closedir(entries);
    if (status == OPENPI_OK) status = values_finish(list, folder, error);
    if (status == OPENPI_OK)
        *out = list;
    else
        values_close(list);
    return status;
}

static int has(const char *folder, const char *name) {
    char *path = file_join(folder, name);
    int there = path && file_exists(path);
    free(path);
    return there;
}

/* 1: the folder holds arrays, in one layout or the other. */
static int is_params(const char *folder) {
    return has(folder, "manifest.ocdbt") || has(folder, "params.PaliGemma.img.head.kernel") ||
           has(folder, "params.PaliGemma.img.head.kernel.value");
}

char *orbax_find(const char *folder) {
    char *params = file_join(folder, "params");
    if (is_params(folder)) {
        free(params);
        return strdup(folder);
    }
    if (params && is_params(params)) return params;
    free(params);
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    char *best = NULL;
    long long newest = -1;
    while (entries && (entry = readdir(entries))) {
        char *end, inner[300];
        long long step = strtoll(entry->d_name, &end, 10);
        if (*end || step <= newest || entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        snprintf(inner, sizeof inner, "%.255s/params", entry->d_name);
        char *path = file_join(folder, inner);
        if (!path || !is_params(path)) {
            free(path);
            continue;
        }
        free(best);
        best = path;
        newest = step;
    }
    if (entries) closedir(entries);
    return best;
}

openpi_status orbax_open(const char *params, tensors *list, orbax **out, openpi_error *error) {
    orbax *o = calloc(1, sizeof *o);
    if (!o) return report_no_memory(error, sizeof *o, params);
    o->staged = -1;
    o->folder = strdup(params);
    openpi_status status = o->folder ? OPENPI_OK : report_no_memory(error, strlen(params), params);
    if (status == OPENPI_OK)
        status = has(o->folder, "manifest.ocdbt") ? ocdbt_open(o->folder, &o->values, error)
                                                  : list_files(o->folder, &o->values, error);
    if (status == OPENPI_OK) status = add_arrays(o, list, error);
    if (status == OPENPI_OK)
        *out = o;
    else
        orbax_close(o);
    return status;
}

static void forget(array *a) {
    for (int i = 0; i < a->layers * a->parts && a->tensors; i++) {
        free(a->tensors[i].data);
        a->tensors[i].data = NULL;
    }
}

static void rewind_array(array *a) {
    if (a->lora) lora_rewind(a->lora);
    zarr_reader_close(a->reader);
    a->reader = NULL;
    a->next = 0;
    a->line = 0;
    free(a->last);
    a->last = NULL;
    a->last_line = -1;
}

void orbax_release(orbax *o) {
    for (int i = 0; i < o->count; i++) {
        forget(&o->arrays[i]);
        rewind_array(&o->arrays[i]);
    }
    o->staged = -1;
}

void orbax_close(orbax *o) {
    if (!o) return;
    orbax_release(o);
    for (int i = 0; i < o->count; i++) {
        array *a = &o->arrays[i];
        free(a->tensors);
        lora_close(a->lora);
        free((char *)(uintptr_t)a->zarr.name);
    }
    values_close(o->values);
    free(o->folder);
    free(o);
}

/* ---- decoding ---- */

enum { COLUMNS = 16 };           /* inputs that are transposed at once                                    */

/* COLUMNS outputs of as many lines: whole pieces of lines are read, and whole pieces of rows written. */
#define TRANSPOSE_BLOCK(name, word)                                                                  \
    static void name(const char *lines, size_t line_bytes, char *to, size_t row_bytes) {             \
        word block[COLUMNS][COLUMNS], row[COLUMNS];                                                  \
        for (size_t i = 0; i < COLUMNS; i++) memcpy(block[i], lines + i * line_bytes, sizeof row);   \
        for (size_t o = 0; o < COLUMNS; o++) {                                                       \
            for (size_t i = 0; i < COLUMNS; i++) row[i] = block[i][o];                               \
            memcpy(to + o * row_bytes, row, sizeof row);                                             \
        }                                                                                            \
    }
TRANSPOSE_BLOCK(transpose_block_4, uint32_t)
TRANSPOSE_BLOCK(transpose_block_2, uint16_t)

/* lines[count][outputs] are inputs first … of a tensor [outputs][inputs]. */
static void transpose(const char *lines, int count, int64_t outputs, int64_t inputs, int64_t first,
                      size_t size, char *to) {
    size_t line = (size_t)outputs * size, row = (size_t)inputs * size;
    int64_t o = 0;
    to += (size_t)first * size;
    for (; count == COLUMNS && o + COLUMNS <= outputs; o += COLUMNS)
        (size == sizeof(uint32_t) ? transpose_block_4 : transpose_block_2)(lines + (size_t)o * size, line,
                                                                           to + (size_t)o * row, row);
    for (; o < outputs; o++)
        for (int i = 0; i < count; i++)
            memcpy(to + (size_t)o * row + (size_t)i * size, lines + (size_t)i * line + (size_t)o * size,
                   size);
}

/* Input i of the array is column … of the tensor: a patch's channels come first there. */
static int64_t column_of(const array *a, int64_t i) {
    return a->channels ? i % a->channels * (a->inputs / a->channels) + i / a->channels : i;
}

/* Buffers of a layer that is decoded: COLUMNS lines as they are stored, for LoRA merged, and as bf16. */
typedef struct lines {
    char *stored, *merged, *rounded, *ready;       /* ready: that of them which holds the result          */
    int64_t next;                /* of the layer */
} lines;

static dtype merged_type(const array *a) { return a->lora ? DTYPE_F32 : a->zarr.type; }

static openpi_status decode_lines(array *a, lines *l, int64_t count, openpi_error *error) {
    TRY(zarr_reader_lines(a->reader, count, l->stored, error));
    if (a->lora) lora_merge(a->lora, a->zarr.type, l->stored, l->next, count, (float *)(void *)l->merged);
    if (a->type != merged_type(a))
        convert_to_bf16(merged_type(a), l->merged, (size_t)(count * zarr_line_length(&a->zarr)),
                        (bf16 *)(void *)l->rounded);
    l->next += count;
    return OPENPI_OK;
}

static openpi_status decode_block(array *a, char *to, lines *l, openpi_error *error) {
    size_t size = dtype_bytes(a->type);
    if (a->inputs == 1 && a->type == a->zarr.type && !a->lora)
        return zarr_reader_lines(a->reader, a->group, to, error);
    for (int64_t i = 0; i < a->inputs;) {
        int most = a->channels ? 1 : COLUMNS, count = a->inputs - i < most ? (int)(a->inputs - i) : most;
        TRY(decode_lines(a, l, count * a->group, error));
        transpose(l->ready, count, a->outputs, a->inputs, column_of(a, i), size, to);
        i += count;
    }
    return OPENPI_OK;
}

/* The layer that the reader stands before. */
static openpi_status decode_layer(array *a, openpi_error *error) {
    size_t size = dtype_bytes(a->type), bytes = part_bytes(a),
           line = (size_t)(COLUMNS * a->outputs) * sizeof(float);
    lines l = {.stored = malloc(line)};
    l.merged = a->lora ? malloc(line) : l.stored;
    l.ready = l.rounded = a->type != merged_type(a) ? malloc(line / 2) : l.merged;
    openpi_status status =
        l.stored && l.merged && l.ready ? OPENPI_OK : report_no_memory(error, line, a->zarr.name);
    if (a->lora && status == OPENPI_OK) status = lora_layer(a->lora, a->next, error);
    for (int part = 0; part < a->parts && status == OPENPI_OK; part++) {
        orbax_part *t = &a->tensors[a->next * a->parts + part];
        if (!(t->data = malloc(bytes))) status = report_no_memory(error, bytes, a->zarr.name);
        for (int64_t b = 0; b < a->batch && status == OPENPI_OK; b++)
            status = decode_block(a, t->data + (size_t)(b * a->outputs * a->inputs) * size, &l, error);
    }
    if (l.rounded != l.merged) free(l.rounded);
    if (a->lora) free(l.merged);
    free(l.stored);
    if (++a->next == a->layers) rewind_array(a);                           /* closes its files */
    return status;
}

/* `layer`: the one wanted; stage 0 wants all. */
static openpi_status decode(array *a, int layer, openpi_error *error) {
    if (a->next > layer) rewind_array(a);
    if (!a->reader) TRY(zarr_reader_open(&a->zarr, &a->reader, error));
    if (layer > a->next) {
        int64_t lines = zarr_lines(&a->zarr) / a->layers * (layer - a->next);
        TRY(zarr_reader_lines(a->reader, lines, NULL, error));
        a->next = layer;
    }
    return decode_layer(a, error);
}

typedef struct staging {
    orbax *orbax;
    int stage;
    first_failure failure;
} staging;

static void stage_task(void *argument, int which, int worker) {
    staging *s = argument;
    array *a = &s->orbax->arrays[which];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    (void)worker;
    if (a->sequential) return;
    if (!s->stage && !a->stage)
        for (int layer = 0; layer < a->layers && status == OPENPI_OK; layer++)
            status = decode(a, layer, &error);
    int layer = s->stage - a->stage;
    if (a->stage && layer >= 0 && layer < a->layers) status = decode(a, layer, &error);
    if (status != OPENPI_OK) first_failure_keep(&s->failure, &error);
}

void orbax_round(orbax *o, int on) {
    orbax_release(o);
    for (int i = 0; i < o->count; i++) {
        array *a = &o->arrays[i];
        a->type = on && !a->sequential ? DTYPE_BF16 : merged_type(a);
    }
}

dtype orbax_part_type(const orbax_part *part) { return part->array->type; }

int orbax_stages(const orbax *o) { return o->stages; }

openpi_status orbax_stage(orbax *o, int stage, pool *pool, openpi_error *error) {
    staging s = {.orbax = o, .stage = stage};
    if (stage == o->staged || (!stage && o->staged > 0)) return OPENPI_OK;
    for (int i = 0; i < o->count; i++)
        if (o->arrays[i].stage) forget(&o->arrays[i]);
    if (pool)
        pool_run(pool, stage_task, &s, o->count);
    else
        for (int i = 0; i < o->count; i++) stage_task(&s, i, 0);
    TRY(first_failure_report(&s.failure, error));
    o->staged = stage;
    return OPENPI_OK;
}

int orbax_part_stage(const orbax_part *part) {
    const array *a = part->array;
    return a->stage ? a->stage + (int)(part - a->tensors) / a->parts : 0;
}

int orbax_part_is_sequential(const orbax_part *part) { return part->array->sequential; }

static openpi_status read_lines(array *a, int64_t line, int64_t count, char *out, openpi_error *error) {
    if (line < a->line) rewind_array(a);
    if (!a->reader) TRY(zarr_reader_open(&a->zarr, &a->reader, error));
    TRY(zarr_reader_lines(a->reader, line - a->line, NULL, error));
    a->line = line + count;
    return zarr_reader_lines(a->reader, count, out, error);
}

/* A line of which only a part is wanted is kept for whoever wants the rest. */
static openpi_status read_sequential(array *a, uint64_t from, size_t bytes, char *out, openpi_error *error) {
    size_t size = (size_t)zarr_line_length(&a->zarr) * dtype_bytes(a->zarr.type);
    while (bytes) {
        int64_t line = (int64_t)(from / size), whole = (int64_t)(bytes / size);
        size_t inside = from % size, taken = (size_t)whole * size;
        if (inside || !whole) {
            taken = size - inside < bytes ? size - inside : bytes;
            if (!a->last && !(a->last = malloc(size))) return report_no_memory(error, size, a->zarr.name);
            if (a->last_line != line) TRY(read_lines(a, line, 1, a->last, error));
            a->last_line = line;
            memcpy(out, a->last + inside, taken);
        } else {
            TRY(read_lines(a, line, whole, out, error));
        }
        from += taken;
        out += taken;
        bytes -= taken;
    }
    return OPENPI_OK;
}

void orbax_part_read(const orbax_part *part, uint64_t from, size_t bytes, void *out) {
    array *a = part->array;
    openpi_error error = OPENPI_ERROR_INIT;
    if (part->data) {
        memcpy(out, part->data + from, bytes);
        return;
    }
    openpi_status status = a->sequential
                               ? read_sequential(a, from, bytes, out, &error)
                               : report(&error, OPENPI_BAD_ARGUMENT,
                                        "array \"%s\" is read before its layer was decoded", a->zarr.name);
    if (status == OPENPI_OK) return;
    memset(out, 0, bytes);
    first_failure_keep(&a->orbax->failure, &error);
}

openpi_status orbax_check(const orbax *o, openpi_error *error) {
    return first_failure_report(&o->failure, error);
}

int orbax_lora(const orbax *o, int index, const char **array) {
    for (int i = 0; i < o->count; i++) {
        if (!o->arrays[i].lora || index--) continue;
        *array = o->arrays[i].rule->array;
        return (int)o->arrays[i].lora->rank;
    }
    return 0;
}

int orbax_vision_heads(const orbax *o) {
    int query = find_array(o, MHA "query.kernel");
    return query < 0 ? 0 : (int)o->arrays[query].zarr.shape[2];
}
