/* Other weights for an engine that runs: packed beside its calls, put in place between two of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/finite.h"
#include "base/report.h"
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

static openpi_status check_shape(const openpi_field *field, const tensor *t, openpi_error *error) {
    char found[160] = "", expected[160] = "";
    int same = field->rank == t->rank;
    for (int i = 0; i < field->rank && i < 8; i++) {
        same = same && field->shape[i] == t->shape[i];
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%lld", i ? "," : "",
                 (long long)field->shape[i]);
    }
    for (int i = 0; i < t->rank; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%lld", i ? "," : "",
                 (long long)t->shape[i]);
    if (same) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s has shape [%s], expected [%s]", field->name,
                  found, expected);
}

/* A tensor of the checkpoint with the caller's numbers. */
static openpi_status take(const openpi_engine *e, const openpi_field *field, tensor *out,
                          openpi_error *error) {
    if (!field->name || !field->data || field->element != OPENPI_FLOAT32)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s has %s, expected float32 numbers",
                      field->name ? field->name : "a tensor without a name",
                      field->data ? "another type" : "no data");
    const tensor *t = tensors_find(e->checkpoint->tensors, field->name);
    if (!t)
        return report(error, OPENPI_NOT_FOUND, "engine update: the checkpoint has no tensor \"%s\"",
                      field->name);
    TRY(check_shape(field, t, error));
    if (!all_finite_f32(field->data, (size_t)t->count))
        return report(error, OPENPI_BAD_INPUT, "engine update: %s has a NaN or an infinity", field->name);
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

/* Which weights these are: those before, and all that replaced some of them. */
static void mix_identity(const openpi_engine *e, const tensor *given, int count, char out[IDENTITY_TEXT]) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *c = e->identity; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001B3u;
    for (int i = 0; i < count; i++) {
        const uint8_t *bytes = given[i].data;
        size_t size = (size_t)given[i].count * sizeof(float);
        for (const char *c = given[i].name; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001B3u;
        for (size_t b = 0; b < size; b++) hash = (hash ^ bytes[b]) * 0x100000001B3u;
    }
    snprintf(out, IDENTITY_TEXT, "%016llx", (unsigned long long)hash);
}

static openpi_status update(openpi_engine *e, const openpi_field *given, int count, tensor *taken,
                            openpi_error *error) {
    model_update *fresh = NULL;
    char identity[IDENTITY_TEXT];
    TRY(take_all(e, given, count, taken, error));
    TRY(model_update_make(e->model, taken, count, e->pool, &fresh, error));
    mix_identity(e, taken, count, identity);
    openpi_status status = put_in_place(e, fresh, identity, error);
    model_update_close(fresh);
    return status;
}

openpi_status openpi_engine_update(openpi_engine *e, const openpi_field *tensors, int count,
                                   openpi_error *error) {
    if (!e || !tensors || count < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s",
                      !e ? "the engine is NULL" : !tensors ? "the tensors are NULL" : "there are no tensors");
    TRY(engine_check_process(e, "engine update", error));
    if (e->w8 || e->base || formats_smooth(&e->model->types))
        return report(error, OPENPI_UNSUPPORTED,
                      "engine update: the weights are a plan's (w8), which was measured on those that are "
                      "there");
    tensor *taken = calloc((size_t)count, sizeof *taken);
    if (!taken) return report_no_memory(error, (size_t)count * sizeof *taken, "tensors that change");
    pthread_mutex_lock(&e->update_lock);
    openpi_status status = update(e, tensors, count, taken, error);
    pthread_mutex_unlock(&e->update_lock);
    free(taken);
    return status;
}
