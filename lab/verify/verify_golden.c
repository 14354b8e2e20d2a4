/* A golden's files: tensors of a type and shape, metadata, JSON and bytes, all in the case's memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "lab/verify/verify_case.h"

void case_close_tensors(void *thing) { tensors_close(thing); }
void case_close_json(void *thing) { json_decref(thing); }

openpi_status case_open(verify_case *c, const char *path, tensors **out, openpi_error *error) {
    TRY(tensors_open(path, out, error));
    TRY(case_close_later(c, case_close_tensors, *out, error));
    return tensors_load(*out, error);
}

static const char *kind_text(dtype type) {
    return dtype_name(type);
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
    TRY(case_close_later(c, case_close_json, value, error));
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
    return case_close_later(c, case_close_json, *out, error);
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
