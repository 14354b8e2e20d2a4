/* A case's row, memory, comparisons, and its ways to the files and to the engine: see verify_case.h. */
#define _XOPEN_SOURCE 700            /* realpath */
#include "measure/verify_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/report.h"
#include "openpi_internal.h"

/* ---- rows and memory -------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    max_align_t data[];
} block;

typedef struct closer {
    struct closer *next;
    void (*close)(void *thing);
    void *thing;
} closer;

void case_begin(verify_case *c, const verify_walk *walk, const char *name) {
    *c = (verify_case){.options = &walk->options, .row = {.max = NAN, .rms = NAN}};
    snprintf(c->row.name, sizeof c->row.name, "%s", name);
    snprintf(c->row.device, sizeof c->row.device, "-");
    snprintf(c->row.dtype, sizeof c->row.dtype, "exact");
}

void case_end(verify_case *c, verify_walk *walk, openpi_status status, const openpi_error *error) {
    if (status != OPENPI_OK) case_fail(c, "%s", error->message);
    for (closer *next, *at = c->closers; at; at = next) {
        next = at->next;
        at->close(at->thing);
        free(at);
    }
    for (block *next, *at = c->blocks; at; at = next) {
        next = at->next;
        free(at);
    }
    c->closers = c->blocks = NULL;
    walk->rows++;
    walk->each(walk->user, &c->row);
}

void *case_alloc(verify_case *c, size_t count, size_t size) {
    if (size && count > (SIZE_MAX / 2) / size) return NULL;
    block *b = calloc(1, sizeof *b + count * size);
    if (!b) return NULL;
    b->next = c->blocks;
    c->blocks = b;
    return b->data;
}

openpi_status case_take(verify_case *c, size_t count, size_t size, void *out, openpi_error *error) {
    void *memory = case_alloc(c, count, size);
    if (!memory) return report_no_memory(error, count * size, "a golden");
    memcpy(out, &memory, sizeof memory);
    return OPENPI_OK;
}

openpi_status case_close_later(verify_case *c, void (*close)(void *thing), void *thing, openpi_error *error) {
    closer *l = malloc(sizeof *l);
    if (!l) {
        close(thing);
        return report_no_memory(error, sizeof *l, "a golden");
    }
    *l = (closer){c->closers, close, thing};
    c->closers = l;
    return OPENPI_OK;
}

void case_fail(verify_case *c, const char *format, ...) {
    if (c->row.result == VERIFY_FAIL) return;
    openpi_error cut = OPENPI_ERROR_INIT; /* report cuts between characters and keeps one line */
    va_list list;
    va_start(list, format);
    char text[sizeof cut.message];
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    report(&cut, OPENPI_BAD_INPUT, "%.*s", (int)sizeof c->row.detail - 1, text);
    snprintf(c->row.detail, sizeof c->row.detail, "%.*s", (int)sizeof c->row.detail - 1, cut.message);
    c->row.result = VERIFY_FAIL;
}

int case_failed(const verify_case *c) { return c->row.result == VERIFY_FAIL; }

/* ---- distances -------------------------------------------------------------------------------------- */

void distance_add(distance *d, double got, double expected) {
    double off = fabs(got - expected);
    if (isnan(off)) off = INFINITY;
    if (off > d->max || !d->count) {
        d->max = off;
        d->worst = d->count;
    }
    d->sum += off * off;
    d->count++;
}

double distance_rms(const distance *d) { return d->count ? sqrt(d->sum / (double)d->count) : 0; }

void case_actions(verify_case *c, const char *what, const distance *d, double bound_max, double bound_rms) {
    double rms = distance_rms(d);
    if (!(c->row.max >= d->max)) c->row.max = d->max;
    if (!(c->row.rms >= rms)) c->row.rms = rms;
    c->row.bound_max = bound_max;
    c->row.bound_rms = bound_rms;
    if (!(d->max <= bound_max))
        case_fail(c, "%s: element %" PRId64 " is off by %.2e, allowed %.2e", what, d->worst, d->max,
                  bound_max);
    if (bound_rms > 0 && !(rms <= bound_rms))
        case_fail(c, "%s: rms %.2e, allowed %.2e", what, rms, bound_rms);
}

void case_same_i32(verify_case *c, const char *what, const int32_t *got, const int32_t *expected,
                   int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (got[i] != expected[i]) {
            case_fail(c, "%s: element %" PRId64 " is %d, expected %d", what, i, (int)got[i],
                      (int)expected[i]);
            return;
        }
}

void case_same_u8(verify_case *c, const char *what, const uint8_t *got, const uint8_t *expected,
                  int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (got[i] != expected[i]) {
            case_fail(c, "%s: element %" PRId64 " is %d, expected %d", what, i, got[i], expected[i]);
            return;
        }
}

void case_same_f32(verify_case *c, const char *what, const float *got, const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(got[i] == expected[i])) {
            case_fail(c, "%s: element %" PRId64 " is %.9g, expected %.9g", what, i, (double)got[i],
                      (double)expected[i]);
            return;
        }
}

void case_near(verify_case *c, const char *what, const double *got, const double *expected, int64_t count,
               double bound) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= bound * fmax(1, fabs(expected[i])))) {
            case_fail(c, "%s: element %" PRId64 " is %.17g, expected %.17g within %g", what, i, got[i],
                      expected[i], bound);
            return;
        }
}

void case_prompt(verify_case *c, const char *what, const int32_t *ids, int count, const int32_t *tokens,
                 const uint8_t *mask, int length) {
    int valid = 0;
    while (valid < length && mask[valid] == 1) valid++;
    for (int i = 0; i < length; i++) {
        if (mask[i] != (i < valid)) case_fail(c, "%s: the golden's mask has a hole at token %d", what, valid);
        if (i >= valid && tokens[i])
            case_fail(c, "%s: the golden's padding has id %d at %d", what, (int)tokens[i], i);
    }
    for (int i = 0; i < valid && i < count; i++)
        if (ids[i] != tokens[i]) {
            case_fail(c, "%s: token %d is %d, expected %d", what, i, (int)ids[i], (int)tokens[i]);
            return;
        }
    if (count != valid) case_fail(c, "%s: %d tokens, expected %d", what, count, valid);
}

/* ---- reading goldens -------------------------------------------------------------------------------- */

static void close_tensors(void *thing) { tensors_close(thing); }
static void close_json(void *thing) { json_decref(thing); }

openpi_status case_open(verify_case *c, const char *path, tensors **out, openpi_error *error) {
    TRY(tensors_open(path, out, error));
    TRY(case_close_later(c, close_tensors, *out, error));
    return tensors_load(*out, error);
}

static const char *kind_text(dtype type) {
    static const char *const text[DTYPES] = {"F32", "BF16", "F16", "F64", "I64", "I32", "U8"};
    return text[type];
}

/* The tensor's bytes in the case's memory, aligned. */
static openpi_status golden_bytes(verify_case *c, const tensors *file, const char *name, dtype type, int rank,
                                  int64_t *shape, void *out, openpi_error *error) {
    const tensor *t = tensors_find(file, name);
    if (!t) return report(error, OPENPI_BAD_FILE, "tensor %s is missing from the golden", name);
    if (t->type != type)
        return report(error, OPENPI_BAD_FILE, "%s: tensor %s is %s, expected %s", t->file, name,
                      kind_text(t->type), kind_text(type));
    if (t->rank != rank)
        return report(error, OPENPI_BAD_FILE, "%s: tensor %s has %d dimensions, expected %d", t->file, name,
                      t->rank, rank);
    for (int i = 0; i < rank; i++) {
        if (shape[i] >= 0 && t->shape[i] != shape[i])
            return report(error, OPENPI_BAD_FILE,
                          "%s: dimension %d of tensor %s is %" PRId64 ", expected %" PRId64, t->file, i, name,
                          t->shape[i], shape[i]);
        shape[i] = t->shape[i];
    }
    void *data;
    size_t bytes = (size_t)t->count * dtype_bytes(type);
    TRY(case_take(c, (size_t)t->count + 1, dtype_bytes(type), &data, error));
    if (bytes) memcpy(data, t->data, bytes);
    memcpy(out, &data, sizeof data);
    return OPENPI_OK;
}

openpi_status golden_f32(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         float **out, openpi_error *error) {
    return golden_bytes(c, file, name, DTYPE_F32, rank, shape, out, error);
}

openpi_status golden_f64(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         double **out, openpi_error *error) {
    return golden_bytes(c, file, name, DTYPE_F64, rank, shape, out, error);
}

openpi_status golden_i32(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                         int32_t **out, openpi_error *error) {
    return golden_bytes(c, file, name, DTYPE_I32, rank, shape, out, error);
}

openpi_status golden_u8(verify_case *c, const tensors *file, const char *name, int rank, int64_t *shape,
                        uint8_t **out, openpi_error *error) {
    return golden_bytes(c, file, name, DTYPE_U8, rank, shape, out, error);
}

openpi_status golden_json(verify_case *c, const tensors *file, const char *name, const char *key,
                          json_t **out, openpi_error *error) {
    const char *text = tensors_metadata(file, key);
    char place[512];
    json_t *value;
    *out = NULL;
    if (!text) return OPENPI_OK;
    snprintf(place, sizeof place, "%.400s: metadata %.80s", name, key);
    TRY(json_parse_by(text, strlen(text), place, &(json_rules){.any_value = 1}, &value, error));
    TRY(case_close_later(c, close_json, value, error));
    *out = value;
    return OPENPI_OK;
}

openpi_status golden_integer(const tensors *file, const char *name, const char *key, int64_t low,
                             int64_t high, int64_t absent, int64_t *out, openpi_error *error) {
    const char *text = tensors_metadata(file, key);
    if (!text && absent >= low) {
        *out = absent;
        return OPENPI_OK;
    }
    if (!text)
        return report(error, OPENPI_BAD_FILE, "%s: metadata %s is absent, expected an integer", name, key);
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < low || value > high)
        return report(error, OPENPI_BAD_FILE,
                      "%s: metadata %s is %s, expected an integer from %" PRId64 " to %" PRId64, name, key,
                      text, low, high);
    *out = value;
    return OPENPI_OK;
}

openpi_status golden_boolean(const tensors *file, const char *name, const char *key, int absent, int *out,
                             openpi_error *error) {
    const char *text = tensors_metadata(file, key);
    *out = text ? !strcmp(text, "true") : absent;
    if (text && !*out && strcmp(text, "false"))
        return report(error, OPENPI_BAD_FILE, "%s: metadata %s is %s, expected true or false", name, key,
                      text);
    return OPENPI_OK;
}

openpi_status golden_variant(const tensors *file, const char *name, openpi_variant *out,
                             openpi_error *error) {
    int pi05 = 0;
    if (!tensors_metadata(file, "pi05"))
        return report(error, OPENPI_BAD_FILE, "%s: metadata pi05 is absent, expected true or false", name);
    TRY(golden_boolean(file, name, "pi05", 0, &pi05, error));
    *out = variant_by_norms(pi05);
    return OPENPI_OK;
}

openpi_status case_json(verify_case *c, const char *path, json_t **out, openpi_error *error) {
    TRY(json_read(path, out, error));
    return case_close_later(c, close_json, *out, error);
}

openpi_status case_join(verify_case *c, const char *folder, const char *name, char **out,
                        openpi_error *error) {
    char *path = file_join(folder, name);
    if (!path) return report_no_memory(error, strlen(folder) + strlen(name) + 2, "a path");
    *out = path;
    return case_close_later(c, free, path, error);
}

openpi_status case_read(verify_case *c, const char *path, char **data, size_t *bytes, openpi_error *error) {
    TRY(file_read(path, (size_t)1 << 30, data, bytes, error));
    return case_close_later(c, free, *data, error);
}

openpi_status case_tokenizer(verify_case *c, const char *folder, char **out, openpi_error *error) {
    static const char *const places[] = {"tokenizer.model", "../tokenizer.model", "../../tokenizer.model"};
    if (c->options->tokenizer) {
        TRY(case_take(c, strlen(c->options->tokenizer) + 1, 1, out, error));
        memcpy(*out, c->options->tokenizer, strlen(c->options->tokenizer));
        return OPENPI_OK;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        TRY(case_join(c, folder, places[i], out, error));
        if (file_exists(*out)) return case_manifest(c, *out, error);
    }
    return report(error, OPENPI_NOT_FOUND, "%s: no tokenizer.model here or up to two folders above", folder);
}

/* ---- running ---------------------------------------------------------------------------------------- */

static void close_engine(void *thing) { openpi_engine_close(thing); }
static void close_session(void *thing) { openpi_session_close(thing); }
static void close_policy(void *thing) { openpi_policy_close(thing); }
static void close_request(void *thing) { openpi_request_close(thing); }

static openpi_status open_engine(verify_case *c, const char *checkpoint, const openpi_synthetic *synthetic,
                                 openpi_engine **out, openpi_error *error) {
    const verify_options *v = c->options;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.device = v->device;
    options.isa = v->isa;
    options.path = v->path;
    options.without = v->without;
    options.table = v->table;
    options.dtype = v->dtype;
    options.threads = v->threads;
    options.synthetic = synthetic;
    options.progress = v->progress;
    options.progress_user = v->progress_user;
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", v->dtype == OPENPI_F32 ? "f32" : "bf16");
    return openpi_engine_open(checkpoint, &options, out, error);
}

void case_on_engine(verify_case *c, const openpi_engine *engine) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_engine_get_info(engine, &info, NULL);
    snprintf(c->row.device, sizeof c->row.device, "%s/%.12s", info.device, info.path);
}

openpi_status case_engine(verify_case *c, const openpi_synthetic *synthetic, openpi_engine **out,
                          openpi_error *error) {
    TRY(open_engine(c, NULL, synthetic, out, error));
    TRY(case_close_later(c, close_engine, *out, error));
    case_on_engine(c, *out);
    if (c->options->on_engine) c->options->on_engine(c->options->hook_user, *out);
    return OPENPI_OK;
}

openpi_status case_checkpoint(verify_case *c, openpi_engine **out, openpi_error *error) {
    TRY(open_engine(c, c->options->checkpoint, NULL, out, error));
    if (c->options->on_engine) c->options->on_engine(c->options->hook_user, *out);
    return OPENPI_OK;
}

openpi_status case_session(verify_case *c, openpi_engine *engine, int batch, int horizon, int steps,
                           int max_prompt, openpi_session **out, openpi_error *error) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = max_prompt;
    TRY(session_create(engine, &options, c->options->state_every_step, out, error));
    TRY(case_close_later(c, close_session, *out, error));
    if (c->options->on_session) c->options->on_session(c->options->hook_user, *out);
    return OPENPI_OK;
}

openpi_status case_policy(verify_case *c, const char *checkpoint, const openpi_policy_options *options,
                          openpi_policy **policy, openpi_request **request, openpi_error *error) {
    TRY(openpi_policy_open(checkpoint, options, policy, error));
    TRY(case_close_later(c, close_policy, *policy, error));
    if (c->options->on_policy) c->options->on_policy(c->options->hook_user, *policy);
    TRY(openpi_request_create(*policy, request, error));
    return case_close_later(c, close_request, *request, error);
}

/* ---- MANIFEST --------------------------------------------------------------------------------------- */

uint64_t fnv1a64(const void *bytes, size_t count) { return hash_fnv1a64(HASH_FNV_START, bytes, count); }

static openpi_status check_listed(verify_case *c, const char *root, const char *name, const char *hex,
                                  openpi_error *error) {
    char *path, found[17], piece[1 << 16];
    file_reader reader;
    uint64_t hash = HASH_FNV_START;
    TRY(case_join(c, root, name, &path, error));
    TRY(file_reader_open(path, &reader, error));
    openpi_status status = OPENPI_OK;
    for (uint64_t at = 0; at < reader.bytes && status == OPENPI_OK; at += sizeof piece) {
        size_t bytes = reader.bytes - at < sizeof piece ? (size_t)(reader.bytes - at) : sizeof piece;
        status = file_reader_read(&reader, path, at, bytes, piece, error);
        if (status == OPENPI_OK) hash = hash_fnv1a64(hash, piece, bytes);
    }
    file_reader_close(&reader);
    if (status != OPENPI_OK) return status;
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    if (strcmp(found, hex))
        case_fail(c, "%s differs from MANIFEST: FNV-1a64 %s, listed %s", name, found, hex);
    return OPENPI_OK;
}

/* Every listed file that is `inside` (relative to root; "" for all) or below it. */
static openpi_status check_manifest(verify_case *c, const char *root, const char *manifest,
                                    const char *inside, openpi_error *error) {
    char *text, *line, *rest;
    size_t bytes, length = strlen(inside);
    TRY(case_read(c, manifest, &text, &bytes, error));
    for (line = text; line && *line; line = rest) {
        rest = strchr(line, '\n');
        if (rest) *rest++ = 0;
        if (strlen(line) < 19 || line[16] != ' ' || line[17] != ' ')
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"%.40s\", expected 16 hex digits, two spaces and a path", manifest, line);
        line[16] = 0;
        const char *name = line + 18;
        if (!length || (!strncmp(name, inside, length) && (!name[length] || name[length] == '/')))
            TRY(check_listed(c, root, name, line, error));
    }
    return OPENPI_OK;
}

openpi_status case_manifest(verify_case *c, const char *path, openpi_error *error) {
    char *full = realpath(path, NULL), *root = NULL, *manifest;
    if (!full) return report(error, OPENPI_NOT_FOUND, "%s: no such file or folder", path);
    TRY(case_close_later(c, free, full, error));
    size_t end = strlen(full);
    TRY(case_take(c, end + 1, 1, &root, error));             /* a copy to cut folder by folder */
    memcpy(root, full, end);
    for (int folders = 0, folder = file_is_folder(full); folders < 3; folders++, folder = 0) {
        if (!folder) {
            char *slash = strrchr(root, '/');
            if (!slash || slash == root) return OPENPI_OK;
            *slash = 0;
        }
        TRY(case_join(c, root, "MANIFEST", &manifest, error));
        size_t cut = strlen(root);
        if (file_exists(manifest))
            return check_manifest(c, root, manifest, cut < end ? full + cut + 1 : "", error);
    }
    return OPENPI_OK;
}
