/* Other weights for an engine that runs: packed beside its calls, put in place between two of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/report.h"
#include "checkpoint/open.h"
#include "openpi_internal.h"

/* ---- calls and updates ------------------------------------------------------------------------------ */

void engine_enter(openpi_engine *e) {
    pthread_mutex_lock(&e->lock);
    while (e->updating) pthread_cond_wait(&e->changed, &e->lock);
    e->running++;
    pthread_mutex_unlock(&e->lock);
}

void engine_leave(openpi_engine *e) {
    pthread_mutex_lock(&e->lock);
    if (!--e->running && e->updating) pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* New calls wait until it has ended, and it waits for those that run. */
static openpi_status put_in_place(openpi_engine *e, model_update *fresh, const char *identity,
                                  openpi_error *error) {
    pthread_mutex_lock(&e->lock);
    e->updating = 1;
    while (e->running) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    openpi_status status = model_update_apply(fresh, error);
    pthread_mutex_lock(&e->lock);
    e->updating = 0;
    e->version++;
    if (status == OPENPI_OK) memcpy(e->identity, identity, sizeof e->identity);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* ---- what is given ---------------------------------------------------------------------------------- */

static const char by_caller[] = "engine update";     /* in sentences, where no file is read                 */

static openpi_status check_shape(const char *from, const char *name, int rank, const int64_t *shape,
                                 const tensor *t, openpi_error *error) {
    char found[160] = "", expected[160] = "";
    int same = rank == t->rank;
    for (int i = 0; i < rank && i < 8; i++) {
        same = same && shape[i] == t->shape[i];
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%lld", i ? "," : "",
                 (long long)shape[i]);
    }
    for (int i = 0; i < t->rank; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%lld", i ? "," : "",
                 (long long)t->shape[i]);
    if (same) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s: %s has shape [%s], expected [%s]", from, name, found,
                  expected);
}

static openpi_status find_own(const openpi_engine *e, const char *from, const char *name, const tensor **out,
                              openpi_error *error) {
    *out = tensors_find(e->checkpoint->tensors, name);
    if (*out) return OPENPI_OK;
    return report(error, OPENPI_NOT_FOUND, "%s: the checkpoint has no tensor \"%s\"", from, name);
}

/* A tensor of the checkpoint with the caller's numbers. */
static openpi_status take(const openpi_engine *e, const openpi_field *field, tensor *out,
                          openpi_error *error) {
    if (!field->name || !field->data || field->element != OPENPI_FLOAT32)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s has %s, expected float32 numbers",
                      field->name ? field->name : "a tensor without a name",
                      field->data ? "another type" : "no data");
    const tensor *t;
    TRY(find_own(e, by_caller, field->name, &t, error));
    TRY(check_shape(by_caller, field->name, field->rank, field->shape, t, error));
    *out = (tensor){.name = t->name,
                    .file = t->file,
                    .type = DTYPE_F32,
                    .rank = t->rank,
                    .count = t->count,
                    .rounded = tensor_is_bf16(t),
                    .data = field->data};
    memcpy(out->shape, t->shape, sizeof out->shape);
    return OPENPI_OK;
}

static openpi_status take_all(const openpi_engine *e, const openpi_field *given, int count, tensor *out,
                              openpi_error *error) {
    for (int i = 0; i < count; i++) {
        openpi_field field;
        TRY(BOUNDARY_TAKE_AT(openpi_field, given, i, &field, error));
        TRY(take(e, &field, &out[i], error));
        for (int k = 0; k < i; k++)
            if (out[k].name == out[i].name)
                return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s is there twice", field.name);
    }
    return OPENPI_OK;
}

/* The tensors of a file as the checkpoint has them. */
static openpi_status take_file(const openpi_engine *e, const tensors *file, const char *path, tensor *out,
                               openpi_error *error) {
    for (int i = 0; i < tensors_count(file); i++) {
        const tensor *from = tensors_at(file, i), *t;
        TRY(find_own(e, path, from->name, &t, error));
        TRY(check_shape(path, from->name, from->rank, from->shape, t, error));
        if (from->type != DTYPE_F32 && from->type != DTYPE_BF16 && from->type != DTYPE_F16)
            return report(error, OPENPI_BAD_ARGUMENT, "%s: %s is %s, expected F32, BF16 or F16", path,
                          from->name, dtype_name(from->type));
        out[i] = *from;
        out[i].name = t->name;
        out[i].rounded = tensor_is_bf16(t);
    }
    return OPENPI_OK;
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001B3u;
    return hash;
}

/* Reads the tensor once, as the model will. */
static openpi_status mix_tensor(const char *from, const tensor *t, uint64_t *hash, openpi_error *error) {
    enum { PIECE = 2048 };
    float values[PIECE];
    *hash = mix_text(*hash, t->name);
    for (int64_t at = 0; at < t->count; at += PIECE) {
        size_t count = (size_t)(t->count - at < PIECE ? t->count - at : PIECE);
        tensor_read_f32(t, at, (int64_t)count, values);
        if (!all_finite_f32(values, count))
            return report(error, OPENPI_BAD_INPUT, "%s: %s has a NaN or an infinity", from, t->name);
        const uint8_t *bytes = (const uint8_t *)values;
        for (size_t b = 0; b < count * sizeof *values; b++) *hash = (*hash ^ bytes[b]) * 0x100000001B3u;
    }
    return OPENPI_OK;
}

/* ---- one engine's update ---------------------------------------------------------------------------- */

/* What waits beside an engine's calls. */
typedef struct waiting_update {
    openpi_engine *engine;
    tensor *taken;               /* [count] of the checkpoint's, with other numbers                         */
    model_update *fresh;
    char identity[IDENTITY_TEXT];
} waiting_update;

/* Which weights these are: those before, and all that replaces some of them. */
static openpi_status mix_identity(waiting_update *u, const char *from, int count, openpi_error *error) {
    uint64_t hash = mix_text(0xCBF29CE484222325u, u->engine->identity);
    for (int i = 0; i < count; i++) TRY(mix_tensor(from, &u->taken[i], &hash, error));
    snprintf(u->identity, sizeof u->identity, "%016llx", (unsigned long long)hash);
    return OPENPI_OK;
}

static openpi_status pack(waiting_update *u, const char *from, int count, openpi_error *error) {
    TRY(mix_identity(u, from, count, error));
    return model_update_make(u->engine->model, u->taken, count, u->engine->pool, &u->fresh, error);
}

static openpi_status make_room(waiting_update *u, openpi_engine *engine, int count, openpi_error *error) {
    u->engine = engine;
    u->taken = calloc((size_t)count, sizeof *u->taken);
    return u->taken ? OPENPI_OK
                    : report_no_memory(error, (size_t)count * sizeof *u->taken, "tensors that change");
}

static void free_update(waiting_update *u) {
    model_update_close(u->fresh);
    free(u->taken);
}

static openpi_status check_engine(const openpi_engine *e, openpi_error *error) {
    TRY(engine_check_process(e, by_caller, error));
    if (e->w8 || e->base || formats_smooth(&e->model->types))
        return report(error, OPENPI_UNSUPPORTED,
                      "engine update: the weights are a plan's (w8), which was measured on those that are "
                      "there");
    return OPENPI_OK;
}

static openpi_status update(waiting_update *u, const openpi_field *given, int count, openpi_error *error) {
    TRY(take_all(u->engine, given, count, u->taken, error));
    TRY(pack(u, by_caller, count, error));
    return put_in_place(u->engine, u->fresh, u->identity, error);
}

openpi_status openpi_engine_update(openpi_engine *e, const openpi_field *tensors, int count,
                                   openpi_error *error) {
    if (!e || !tensors || count < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s",
                      !e ? "the engine is NULL" : !tensors ? "the tensors are NULL" : "there are no tensors");
    waiting_update u = {.engine = NULL};
    TRY(check_engine(e, error));
    TRY(make_room(&u, e, count, error));
    pthread_mutex_lock(&e->update_lock);
    openpi_status status = update(&u, tensors, count, error);
    free_update(&u);
    pthread_mutex_unlock(&e->update_lock);
    return status;
}

/* ---- a file for several engines --------------------------------------------------------------------- */

/* Packed for all of them before the first one changes. */
static openpi_status update_all(waiting_update *list, int count, const tensors *file, const char *path,
                                openpi_error *error) {
    for (int i = 0; i < count; i++) {
        TRY(take_file(list[i].engine, file, path, list[i].taken, error));
        TRY(pack(&list[i], path, tensors_count(file), error));
        TRY(tensors_check(file, error));
    }
    for (int i = 0; i < count; i++)
        TRY(put_in_place(list[i].engine, list[i].fresh, list[i].identity, error));
    return OPENPI_OK;
}

static int by_place(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const waiting_update *)a)->engine;
    uintptr_t y = (uintptr_t)((const waiting_update *)b)->engine;
    return x < y ? -1 : x > y;
}

/* Two callers with the same engines lock them in one order. */
static openpi_status lock_and_update(waiting_update *list, int count, const tensors *file, const char *path,
                                     openpi_error *error) {
    qsort(list, (size_t)count, sizeof *list, by_place);
    for (int i = 1; i < count; i++)
        if (list[i].engine == list[i - 1].engine)
            return report(error, OPENPI_BAD_ARGUMENT, "engine update: an engine is there twice");
    for (int i = 0; i < count; i++) pthread_mutex_lock(&list[i].engine->update_lock);
    openpi_status status = update_all(list, count, file, path, error);
    for (int i = count; i--;) pthread_mutex_unlock(&list[i].engine->update_lock);
    return status;
}

static openpi_status update_from(openpi_engine *const *engines, int count, const tensors *file,
                                 const char *path, openpi_error *error) {
    waiting_update *list = calloc((size_t)count, sizeof *list);
    if (!list) return report_no_memory(error, (size_t)count * sizeof *list, "engines that change");
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < count && status == OPENPI_OK; i++)
        status = make_room(&list[i], engines[i], tensors_count(file), error);
    if (status == OPENPI_OK) status = lock_and_update(list, count, file, path, error);
    for (int i = 0; i < count; i++) free_update(&list[i]);
    free(list);
    return status;
}

static openpi_status open_file(const char *path, tensors **out, openpi_error *error) {
    if (!path) return report(error, OPENPI_BAD_ARGUMENT, "engine update: the file is NULL");
    if (file_is_folder(path))
        return report(error, OPENPI_BAD_FILE, "%s: is a folder, expected a .safetensors file", path);
    TRY(tensors_open(path, out, error));
    if (tensors_count(*out)) return OPENPI_OK;
    tensors_close(*out);
    return report(error, OPENPI_BAD_FILE, "%s: there are no tensors, expected those that change", path);
}

openpi_status openpi_engine_update_file(openpi_engine *const *engines, int engine_count, const char *file,
                                        int *count, openpi_error *error) {
    tensors *opened;
    if (!engines || engine_count < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: there are no engines");
    for (int i = 0; i < engine_count; i++) {
        if (!engines[i]) return report(error, OPENPI_BAD_ARGUMENT, "engine update: engine %d is NULL", i);
        TRY(check_engine(engines[i], error));
    }
    TRY(open_file(file, &opened, error));
    openpi_status status = update_from(engines, engine_count, opened, file, error);
    if (status == OPENPI_OK && count) *count = tensors_count(opened);
    tensors_close(opened);
    return status;
}
