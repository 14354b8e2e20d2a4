/* Goldens of single steps, without a model: resize, prompt, tokenizer, normalisation (steps.json), the
 * Hugging Face tokenizer (encode.json), and the bytes of synthetic checkpoints (synth_hashes.json). All but
 * the normalisation are exact. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/synthetic/synth.h"
#include "lab/verify/verify_case.h"
#include "policy/pictures/image.h"
#include "policy/normalize.h"
#include "policy/prompt.h"

enum { RESIZED = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3, MAX_IDS = 4096 };

static openpi_status folder_of(verify_case *c, const char *path, char **folder, openpi_error *error) {
    const char *slash = strrchr(path, '/');
    if (!slash) return case_join(c, ".", "", folder, error);
    TRY(case_take(c, (size_t)(slash - path) + 2, 1, folder, error));
    memcpy(*folder, path, (size_t)(slash - path) + 1);
    return OPENPI_OK;
}

/* The rows of one section (key NULL: of the file): an array of objects, not empty. Texts may hold NUL. */
static openpi_status section(verify_case *c, const char *path, const char *key, json_t **rows,
                             openpi_error *error) {
    json_t *root;
    char *bytes;
    size_t count;
    TRY(case_manifest(c, path, error));
    TRY(case_read(c, path, &bytes, &count, error));
    TRY(json_parse_by(bytes, count, path, &(json_rules){.nul = 1}, &root, error));
    TRY(case_close_later(c, case_close_json, root, error));
    *rows = key ? json_object_get(root, key) : root;
    if (!json_is_array(*rows) || !json_array_size(*rows))
        return report(error, OPENPI_BAD_FILE, "%s: %s is no array with entries", path,
                      key ? key : "the file");
    return OPENPI_OK;
}

/* An array of numbers or, one level down, of arrays of them. -1: it is neither. */
static int numbers(const json_t *array, double *out, int capacity) {
    int count = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (json_is_array(item)) {
            int more = numbers(item, out + count, capacity - count);
            if (more < 0) return -1;
            count += more;
        } else {
            if (!json_is_number(item) || count == capacity) return -1;
            out[count++] = json_number_value(item);
        }
    }
    return json_is_array(array) ? count : -1;
}

/* ---- resize ----------------------------------------------------------------------------------------- */

static void free_scratch(void *thing) { image_scratch_free(thing); }

static openpi_status resize_one(verify_case *c, const char *path, const json_t *row, const tensors *whole,
                                image_scratch *scratch, openpi_error *error) {
    const char *name = json_string_value(json_object_get(row, "name")),
               *hash = json_string_value(json_object_get(row, "fnv1a64"));
    int height = (int)json_integer_value(json_object_get(row, "height")),
        width = (int)json_integer_value(json_object_get(row, "width"));
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(row, "seed"));
    char found[17], what[80];
    uint8_t *pixels, *out, *expected;
    if (!name || !hash || height < 1 || width < 1 || height > 16384 || width > 16384)
        return report(error, OPENPI_BAD_FILE, "%s: an entry of resize lacks name, height, width or fnv1a64",
                      path);
    size_t count = (size_t)height * (size_t)width * 3;
    TRY(case_take(c, count, 1, &pixels, error));
    TRY(case_take(c, RESIZED, 1, &out, error));
    uint64_t key = hash_key(name, strlen(name), seed);
    for (size_t i = 0; i < count; i++) pixels[i] = (uint8_t)(hash_uniform(key, i) * 128 + 128);
    openpi_image image = {
        .size = sizeof image, .name = name, .data = pixels, .element = OPENPI_U8, .layout = OPENPI_HWC,
            .height = height, .width = width};
    TRY(image_resize_openpi(&image, scratch, out, error));
    snprintf(found, sizeof found, "%016" PRIx64, fnv1a64(out, RESIZED));
    if (strcmp(found, hash))
        case_fail(c, "%s (%d × %d): FNV-1a64 %s, expected %s", name, height, width, found, hash);
    if (!tensors_find(whole, name)) return OPENPI_OK;
    int64_t shape[] = {OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE, 3};
    TRY(golden_u8(c, whole, name, 3, shape, &expected, error));
    snprintf(what, sizeof what, "%.40s of resize.safetensors", name);
    case_same_u8(c, what, out, expected, RESIZED);
    return OPENPI_OK;
}

static openpi_status resize_case(verify_case *c, const char *path, openpi_error *error) {
    json_t *rows, *row;
    tensors *whole;
    char *folder, *file;
    size_t i;
    image_scratch *scratch;
    TRY(section(c, path, "resize", &rows, error));
    TRY(folder_of(c, path, &folder, error));
    TRY(case_join(c, folder, "resize.safetensors", &file, error));
    TRY(case_manifest(c, file, error));
    TRY(case_open(c, file, &whole, error));
    TRY(case_take(c, 1, sizeof *scratch, &scratch, error));
    TRY(case_close_later(c, free_scratch, scratch, error));
    json_array_foreach(rows, i, row) TRY(resize_one(c, path, row, whole, scratch, error));
    return OPENPI_OK;
}

/* ---- tokenizer -------------------------------------------------------------------------------------- */

typedef struct reader {
    tokenizer *tokenizer;
    tokenizer_scratch *scratch;
    prompt_buffer *buffer;
    int32_t ids[MAX_IDS], expected[MAX_IDS];
    int count, expected_count;
} reader;

static void close_reader(void *thing) {
    reader *r = thing;
    prompt_buffer_close(r->buffer);
    tokenizer_scratch_close(r->scratch);
    tokenizer_close(r->tokenizer);
}

static openpi_status open_reader(verify_case *c, const char *path, reader **out, openpi_error *error) {
    TRY(case_take(c, 1, sizeof **out, out, error));
    TRY(case_close_later(c, close_reader, *out, error));
    TRY(tokenizer_open(path, &(*out)->tokenizer, error));
    TRY(tokenizer_scratch_create(1024, &(*out)->scratch, error));
    return prompt_buffer_create(1024, OPENPI_ACTION_DIM, &(*out)->buffer, error);
}

static openpi_status read_ids(reader *r, const json_t *array, const char *path, openpi_error *error) {
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count > MAX_IDS)
        return report(error, OPENPI_BAD_FILE, "%s: an entry has no array of ids", path);
    for (size_t i = 0; i < count; i++) r->expected[i] = (int32_t)json_integer_value(json_array_get(array, i));
    r->expected_count = (int)count;
    return OPENPI_OK;
}

static void compare_ids(verify_case *c, const reader *r, const char *text) {
    for (int i = 0; i < r->count && i < r->expected_count; i++)
        if (r->ids[i] != r->expected[i]) {
            case_fail(c, "\"%.60s\": id %d is %d, expected %d", text, i, (int)r->ids[i], (int)r->expected[i]);
            return;
        }
    if (r->count != r->expected_count)
        case_fail(c, "\"%.60s\": %d ids, expected %d", text, r->count, r->expected_count);
}

/* Whole prompts: {"prompt", "pi0": padded ids, "length"} or {"prompt", "state", "pi05", "length"}. */
static openpi_status tokenize_case(verify_case *c, const char *path, openpi_error *error) {
    json_t *rows, *row;
    char *folder, *model;
    reader *r;
    size_t i;
    TRY(section(c, path, "tokenize", &rows, error));
    TRY(folder_of(c, path, &folder, error));
    TRY(case_tokenizer(c, folder, &model, error));
    TRY(open_reader(c, model, &r, error));
    json_array_foreach(rows, i, row) {
        const json_t *prompt = json_object_get(row, "prompt"), *pi05 = json_object_get(row, "pi05");
        double state[OPENPI_ACTION_DIM];
        int states = pi05 ? numbers(json_object_get(row, "state"), state, OPENPI_ACTION_DIM) : 0;
        int length = (int)json_integer_value(json_object_get(row, "length"));
        if (!json_is_string(prompt) || states < 0)
            return report(error, OPENPI_BAD_FILE, "%s: entry %zu of tokenize lacks prompt or state", path, i);
        TRY(read_ids(r, pi05 ? pi05 : json_object_get(row, "pi0"), path, error));
        int max = r->expected_count;
        TRY(prompt_openpi(r->tokenizer, r->scratch, r->buffer, json_string_value(prompt),
                          json_string_length(prompt), state, states, r->ids, max, &r->count, error));
        if (r->count != length)
            case_fail(c, "\"%.60s\": %d ids, expected %d", json_string_value(prompt), r->count, length);
        for (int at = r->count; at < max; at++) r->ids[at] = TOKEN_PAD;
        r->count = max;
        compare_ids(c, r, json_string_value(prompt));
    }
    return OPENPI_OK;
}

/* Raw pieces: {"text", "ids"}. */
static openpi_status encode_case(verify_case *c, const char *path, openpi_error *error) {
    json_t *rows, *row;
    char *folder, *model;
    size_t i;
    reader *r;
    TRY(section(c, path, "encode", &rows, error));
    TRY(folder_of(c, path, &folder, error));
    TRY(case_tokenizer(c, folder, &model, error));
    TRY(open_reader(c, model, &r, error));
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text");
        if (!json_is_string(text))
            return report(error, OPENPI_BAD_FILE, "%s: entry %zu of encode has no text", path, i);
        TRY(read_ids(r, json_object_get(row, "ids"), path, error));
        TRY(tokenizer_encode(r->tokenizer, r->scratch, json_string_value(text), json_string_length(text),
                             r->ids, MAX_IDS, &r->count, error));
        compare_ids(c, r, json_string_value(text));
    }
    return OPENPI_OK;
}

/* ---- normalisation ---------------------------------------------------------------------------------- */

static openpi_status normalize_one(verify_case *c, const json_t *row, const char *path, int at,
                                   openpi_error *error) {
    static const char *const results[] = {"normalized", "unnormalized"};
    norm_stats stats = {.epsilon = 1e-6};
    double x[8 * NORM_DIMS], expected[8 * NORM_DIMS], got[8 * NORM_DIMS];
    char what[64];
    int quantile = json_is_true(json_object_get(row, "quantile")),
        count = numbers(json_object_get(row, "x"), x, 8 * NORM_DIMS);
    int rows = (int)json_array_size(json_object_get(row, "x"));
    stats.dims = numbers(json_object_get(row, "mean"), stats.mean, NORM_DIMS);
    stats.quantiles = quantile;
    if (stats.dims < 1 || numbers(json_object_get(row, "std"), stats.std, NORM_DIMS) != stats.dims ||
        count < 1 || count % rows)
        return report(error, OPENPI_BAD_FILE, "%s: entry %d of normalize lacks mean, std or x", path, at);
    if (quantile && (numbers(json_object_get(row, "q01"), stats.q01, NORM_DIMS) != stats.dims ||
                     numbers(json_object_get(row, "q99"), stats.q99, NORM_DIMS) != stats.dims))
        return report(error, OPENPI_BAD_FILE, "%s: entry %d of normalize lacks q01 or q99", path, at);
    for (int i = 0; i < 2; i++) {
        const json_t *result = json_object_get(row, results[i]);
        if (!result) continue;
        if (numbers(result, expected, 8 * NORM_DIMS) != count)
            return report(error, OPENPI_BAD_FILE, "%s: entry %d of normalize: %s is not as long as x", path,
                          at, results[i]);
        memcpy(got, x, sizeof got);
        for (int b = 0; b < rows; b++)
            (i ? normalize_invert : normalize_apply)(quantile ? STATS_QUANTILE : STATS_ZSCORE, &stats,
                                                     got + b * (count / rows), count / rows);
        snprintf(what, sizeof what, "%s of entry %d", results[i], at);
        case_near(c, what, got, expected, count, 1e-12);
    }
    return OPENPI_OK;
}

static openpi_status normalize_case(verify_case *c, const char *path, openpi_error *error) {
    json_t *rows, *row;
    size_t i;
    snprintf(c->row.dtype, sizeof c->row.dtype, "f64");
    TRY(section(c, path, "normalize", &rows, error));
    json_array_foreach(rows, i, row) TRY(normalize_one(c, row, path, (int)i, error));
    return OPENPI_OK;
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void row_name(const char *path, const char *section_name, char *name, size_t bytes) {
    verify_name(path, name, bytes);
    char *slash = strrchr(name, '/');
    if (slash) memmove(name, slash + 1, strlen(slash));
    size_t at = strlen(name);
    snprintf(name + at, bytes - at, "/%s", section_name);
}

openpi_status verify_steps(verify_walk *walk, const char *path, openpi_error *error) {
    static const struct {
        const char *name;
        openpi_status (*run)(verify_case *c, const char *path, openpi_error *error);
    } cases[] = {{"resize", resize_case},
                 {"tokenize", tokenize_case},
                 {"encode", encode_case},
                 {"normalize", normalize_case}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        verify_case c;
        char name[sizeof c.row.name];
        row_name(path, cases[i].name, name, sizeof name);
        case_begin(&c, walk, name);
        case_end(&c, walk, cases[i].run(&c, path, error), error);
    }
    return OPENPI_OK;
}

/* lerobot/encode.json: {"text", "ids" with BOS, "sentencepiece" where that differs}. */
static openpi_status hugging_face_case(verify_case *c, const char *path, openpi_error *error) {
    json_t *rows, *row;
    char *folder, *hub, *model;
    reader *r, *pieces;
    size_t i;
    TRY(section(c, path, NULL, &rows, error));
    TRY(folder_of(c, path, &folder, error));
    TRY(case_join(c, folder, "pi05/checkpoint/tokenizer/tokenizer.json", &hub, error));
    TRY(case_manifest(c, hub, error));
    TRY(case_tokenizer(c, folder, &model, error));
    TRY(open_reader(c, hub, &r, error));
    TRY(open_reader(c, model, &pieces, error));
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *other = json_object_get(row, "sentencepiece");
        if (!json_is_string(text))
            return report(error, OPENPI_BAD_FILE, "%s: entry %zu has no text", path, i);
        for (int which = 0; which < 2; which++) {
            reader *now = which ? pieces : r;
            TRY(read_ids(now, which && other ? other : json_object_get(row, "ids"), path, error));
            now->ids[0] = TOKEN_BOS;
            TRY(tokenizer_encode(now->tokenizer, now->scratch, json_string_value(text),
                                 json_string_length(text), now->ids + 1, MAX_IDS - 1, &now->count, error));
            now->count++;
            compare_ids(c, now, json_string_value(text));
        }
    }
    return OPENPI_OK;
}

openpi_status verify_encode(verify_walk *walk, const char *path, openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name];
    verify_name(path, name, sizeof name);
    case_begin(&c, walk, name);
    case_end(&c, walk, hugging_face_case(&c, path, error), error);
    return OPENPI_OK;
}

/* ---- synthetic checkpoints -------------------------------------------------------------------------- */

/* {"tiny_pi05_seed7": {tensor: [shape, hash]}}; of "full" the first and last 256 elements are hashed. */
static openpi_status recipe(const char *key, openpi_synthetic *synthetic, openpi_error *error) {
    char preset[32], variant[8], spec[96];
    unsigned long long seed;
    if (sscanf(key, "%31[a-z]_%7[a-z0-9]_seed%llu", preset, variant, &seed) != 3)
        return report(error, OPENPI_BAD_FILE, "\"%.60s\" is no PRESET_VARIANT_seedN", key);
    snprintf(spec, sizeof spec, "%s:%s:%llu", preset, variant, seed);
    return openpi_synthetic_parse(spec, synthetic, error);
}

static openpi_status hash_one(verify_case *c, const tensor *t, const json_t *row, int ends, uint16_t *bits,
                              openpi_error *error) {
    const json_t *shape = json_array_get(row, 0);
    const char *expected = json_string_value(json_array_get(row, 1));
    char found[17];
    if (!expected || !json_is_array(shape))
        return report(error, OPENPI_BAD_FILE, "%s has no [shape, hash]", t->name);
    int same = (int)json_array_size(shape) == t->rank;
    for (int i = 0; same && i < t->rank; i++)
        same = json_integer_value(json_array_get(shape, (size_t)i)) == t->shape[i];
    if (!same) {
        case_fail(c, "%s has another shape", t->name);
        return OPENPI_OK;
    }
    uint64_t hash = HASH_FNV_START;
    int64_t piece = 1 << 16, first = ends && t->count > 256 ? 256 : t->count;
    for (int64_t at = 0; at < first; at += piece) {
        int64_t count = first - at < piece ? first - at : piece;
        tensor_read_bf16(t, at, count, bits);
        hash = hash_fnv1a64(hash, bits, (size_t)count * 2);
    }
    if (ends) {
        tensor_read_bf16(t, t->count - first, first, bits);
        hash = hash_fnv1a64(hash, bits, (size_t)first * 2);
    }
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    if (strcmp(found, expected)) case_fail(c, "%s: FNV-1a64 %s, expected %s", t->name, found, expected);
    return OPENPI_OK;
}

static openpi_status hashes_case(verify_case *c, const char *key, const json_t *expected,
                                 openpi_error *error) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    tensors *list;
    const char *name;
    json_t *row;
    uint16_t *bits;
    TRY(recipe(key, &synthetic, error));
    TRY(tensors_synthetic(&synthetic, &list, error));
    TRY(case_close_later(c, case_close_tensors, list, error));
    TRY(case_take(c, 1 << 16, sizeof *bits, &bits, error));
    if ((size_t)tensors_count(list) != json_object_size(expected))
        case_fail(c, "%d tensors, expected %zu", tensors_count(list), json_object_size(expected));
    json_object_foreach((json_t *)(uintptr_t)expected, name, row) {
        const tensor *t = tensors_find(list, name);
        if (!t) case_fail(c, "tensor %s is not made", name);
        else TRY(hash_one(c, t, row, !strncmp(key, "full", 4), bits, error));
    }
    return OPENPI_OK;
}

openpi_status verify_hashes(verify_walk *walk, const char *path, openpi_error *error) {
    verify_case c;
    json_t *root = NULL, *entry;
    const char *key;
    char name[sizeof c.row.name];
    verify_name(path, name, sizeof name);
    case_begin(&c, walk, name);
    openpi_status status = case_manifest(&c, path, error);
    if (status == OPENPI_OK) status = case_json(&c, path, &root, error);
    if (status == OPENPI_OK && !json_object_size(root))
        status = report(error, OPENPI_BAD_FILE, "%s: no object with entries", path);
    if (root) json_incref(root);
    if (status != OPENPI_OK || case_failed(&c)) {
        case_end(&c, walk, status, error);
        json_decref(root);
        return OPENPI_OK;
    }
    case_end(&c, walk, status, error);
    json_object_foreach(root, key, entry) {
        row_name(path, key, name, sizeof name);
        case_begin(&c, walk, name);
        case_end(&c, walk, hashes_case(&c, key, entry, error), error);
    }
    json_decref(root);
    return OPENPI_OK;
}
