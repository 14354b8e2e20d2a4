/* Sizes of a model: the named ones, those a user writes as JSON, and what sizes this code can run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/guess.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/presets.h"
#include "checkpoint/variant.h"
#include "ops/limits.h"

static const struct {
    const char *name;
    openpi_dims dims;
} presets[] = {
    {.name = "full",
     .dims = {.size = sizeof(openpi_dims),
              .vision_width = 1152, .vision_depth = 27, .vision_heads = 16, .vision_mlp = 4304,
              .width = 2048, .depth = 18, .heads = 8, .head_dim = 256, .mlp = 16384,
              .expert_width = 1024, .expert_mlp = 4096, .vocab = 257152}},
    {.name = "tiny",
     .dims = {.size = sizeof(openpi_dims),
              .vision_width = 144, .vision_depth = 2, .vision_heads = 2, .vision_mlp = 208,
              .width = 128, .depth = 3, .heads = 8, .head_dim = 256, .mlp = 272,
              .expert_width = 64, .expert_mlp = 144, .vocab = 2048}},
    {.name = "odd",
     .dims = {.size = sizeof(openpi_dims),
              .vision_width = 72, .vision_depth = 3, .vision_heads = 1, .vision_mlp = 88,
              .width = 96, .depth = 2, .heads = 3, .head_dim = 256, .mlp = 136,
              .expert_width = 40, .expert_mlp = 104, .vocab = 2048}},
};

enum { PRESETS = sizeof presets / sizeof *presets };

const openpi_dims *dims_released(void) { return &presets[0].dims; }

openpi_status dims_check(const openpi_dims *d, const char *name, openpi_error *error) {
    const struct {
        const char *what;
        int value, low, high, multiple;
    } limits[] = {
        {.what = "vision width", .value = d->vision_width, .low = 1, .high = LIMIT_WIDTH, .multiple = 1},
        {.what = "vision depth", .value = d->vision_depth, .low = 1, .high = LIMIT_DEPTH, .multiple = 1},
        {.what = "vision heads", .value = d->vision_heads, .low = 1, .high = LIMIT_HEADS, .multiple = 1},
        {.what = "vision mlp", .value = d->vision_mlp, .low = 1, .high = LIMIT_INPUTS, .multiple = 1},
        {.what = "language width", .value = d->width, .low = 1, .high = LIMIT_WIDTH, .multiple = 1},
        {.what = "language depth", .value = d->depth, .low = 1, .high = LIMIT_DEPTH, .multiple = 1},
        {.what = "heads", .value = d->heads, .low = 1, .high = LIMIT_HEADS, .multiple = 1},
        {.what = "head dimension", .value = d->head_dim, .low = 2, .high = LIMIT_HEAD_DIM, .multiple = 2},
        {.what = "language mlp", .value = d->mlp, .low = 1, .high = LIMIT_INPUTS, .multiple = 1},
        {.what = "expert width",
         .value = d->expert_width,
         .low = 4,
         .high = LIMIT_WIDTH,
         .multiple = 2}, /* sine and cosine halves of the time */
        {.what = "expert mlp", .value = d->expert_mlp, .low = 1, .high = LIMIT_INPUTS, .multiple = 1},
        {.what = "vocabulary", .value = d->vocab, .low = 1, .high = LIMIT_VOCAB, .multiple = 1},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < limits[i].low || limits[i].value > limits[i].high ||
            limits[i].value % limits[i].multiple)
            return report(error, OPENPI_BAD_ARGUMENT, "%s: %s is %d, expected %s number from %d to %d", name,
                          limits[i].what, limits[i].value, limits[i].multiple == 2 ? "an even" : "a",
                          limits[i].low, limits[i].high);
    if (d->vision_width % d->vision_heads)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: vision width is %d, expected a multiple of its %d heads", name, d->vision_width,
                      d->vision_heads);
    if (d->vision_width / d->vision_heads > LIMIT_HEAD_DIM)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: a vision head is %d wide (vision width %d, %d heads), expected at most %d", name,
                      d->vision_width / d->vision_heads, d->vision_width, d->vision_heads, LIMIT_HEAD_DIM);
    if (d->heads * d->head_dim > LIMIT_INPUTS)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: %d heads of dimension %d are %d wide together, expected at most %d", name,
                      d->heads, d->head_dim, d->heads * d->head_dim, LIMIT_INPUTS);
    return OPENPI_OK;
}

static int preset_find(const char *name, size_t length) {
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == length && !strncmp(presets[i].name, name, length)) return i;
    return -1;
}

void synthetic_text(const openpi_synthetic *synthetic, char *text, size_t bytes) {
    const char *name = "custom";
    for (int i = 0; i < PRESETS; i++)
        if (!memcmp(&presets[i].dims, &synthetic->dims, sizeof synthetic->dims)) name = presets[i].name;
    snprintf(text, bytes, "%s:%s:%llu", name, variant_of(synthetic->variant)->name,
             (unsigned long long)synthetic->seed);
}

/* Decimal digits only: strtoull would take signs and spaces. */
static int parse_seed(const char *text, uint64_t *seed) {
    uint64_t value = 0;
    if (!*text) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return 0;
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return 0;
    }
    *seed = value;
    return 1;
}

static openpi_status no_synthetic(const char *spec, openpi_error *error) {
    char word[16];
    report(error, OPENPI_BAD_ARGUMENT,
           "synthetic model is \"%s\", expected full, tiny or odd, then maybe :pi0 or :pi05, then maybe "
           ":SEED",
           spec);
    snprintf(word, sizeof word, "%.*s", (int)strcspn(spec, ":"), spec);
    return guess_add(error, OPENPI_BAD_ARGUMENT, word, "full, tiny, odd");
}

openpi_status openpi_synthetic_parse(const char *spec, openpi_synthetic *synthetic, openpi_error *error) {
    if (!synthetic)
        return report(error, OPENPI_BAD_ARGUMENT, "synthetic is NULL, expected where to write the result");
    TRY(BOUNDARY_CHECK(openpi_synthetic, synthetic, error));
    openpi_synthetic s = {.size = sizeof s, .dims = presets[0].dims, .variant = OPENPI_PI0, .seed = 7};
    if (spec && *spec) {
        size_t length = strcspn(spec, ":");
        int preset = preset_find(spec, length);
        const char *rest = spec + length;
        int good = preset >= 0;
        if (good) s.dims = presets[preset].dims;
        if (good && *rest == ':') {
            length = strcspn(++rest, ":");
            good = variant_parse(rest, length, &s.variant);
            rest += length;
            if (good && *rest == ':') good = parse_seed(rest + 1, &s.seed);
        }
        if (!good) return no_synthetic(spec, error);
    }
    BOUNDARY_GIVE(openpi_synthetic, &s, synthetic);
    return OPENPI_OK;
}

/* ---- dims as JSON ---- */

static openpi_status read_dims(const json_t *root, openpi_dims *d, openpi_error *error) {
    int vocab = 0;
    const struct {
        const char *key;
        int count;
        int *to[5];
    } members[] = {
        {"vision", 4, {&d->vision_width, &d->vision_depth, &d->vision_heads, &d->vision_mlp, NULL}},
        {"vlm", 5, {&d->width, &d->depth, &d->heads, &d->head_dim, &d->mlp}},
        {"expert", 2, {&d->expert_width, &d->expert_mlp, NULL, NULL, NULL}},
    };
    if (!json_is_object(root))
        return report(error, OPENPI_BAD_ARGUMENT, "dims are %s, expected an object", json_kind(root));
    if (json_object_size(root) != 4)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "dims have %zu members, expected vision, vlm, expert and vocab",
                      json_object_size(root));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *list = json_object_get(root, members[i].key);
        if (!json_is_array(list) || json_array_size(list) != (size_t)members[i].count)
            return report(error, OPENPI_BAD_ARGUMENT, "dims: \"%s\" is %s, expected %d integers",
                          members[i].key, json_is_array(list) ? "of another length" : json_kind(list),
                          members[i].count);
        for (int j = 0; j < members[i].count; j++) {
            const json_t *number = json_array_get(list, (size_t)j);
            json_int_t value = json_integer_value(number);
            if (!json_is_integer(number) || value < 1 || value > 1 << 30)
                return report(error, OPENPI_BAD_ARGUMENT,
                              "dims: \"%s\"[%d] is %s, expected a positive integer", members[i].key, j,
                              json_is_integer(number) ? "out of range" : json_kind(number));
            *members[i].to[j] = (int)value;
        }
    }
    TRY(json_get_int(root, "vocab", "dims", 1, LIMIT_VOCAB, &vocab, error));
    d->vocab = vocab;
    return dims_check(d, "dims", error);
}

openpi_status openpi_dims_parse(const char *json, openpi_dims *dims, openpi_error *error) {
    if (!json || !dims)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "dims are NULL, expected a JSON object or full, tiny or odd");
    TRY(BOUNDARY_CHECK(openpi_dims, dims, error));
    int preset = preset_find(json, strlen(json));
    if (preset >= 0) {
        BOUNDARY_GIVE(openpi_dims, &presets[preset].dims, dims);
        return OPENPI_OK;
    }
    if (json[strspn(json, " \t\r\n")] != '{')
        return report(error, OPENPI_BAD_ARGUMENT,
                      "dims are \"%.80s\", expected a JSON object or full, tiny or odd", json);
    json_t *root;
    openpi_dims d = OPENPI_DIMS_INIT;
    openpi_status status = json_parse(json, strlen(json), "dims", &root, error);
    if (status == OPENPI_OK) {
        status = read_dims(root, &d, error);
        json_decref(root);
    }
    if (status == OPENPI_OK) BOUNDARY_GIVE(openpi_dims, &d, dims);
    if (status == OPENPI_OK || status == OPENPI_NO_MEMORY) return status;
    return report_status(error, OPENPI_BAD_ARGUMENT); /* where the text came from, files are not to blame */
}

json_t *dims_json(const openpi_dims *d) {
    return json_pack("{s:[iiii],s:[iiiii],s:[ii],s:i}", "vision", d->vision_width, d->vision_depth,
                     d->vision_heads, d->vision_mlp, "vlm", d->width, d->depth, d->heads, d->head_dim, d->mlp,
                     "expert", d->expert_width, d->expert_mlp, "vocab", d->vocab);
}
