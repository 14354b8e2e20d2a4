/* Other weights for an engine that runs: packed beside its calls, put in place between two of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/report.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/open.h"
#include "checkpoint/tensors_build.h"
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

/* What waits beside an engine's calls. */
typedef struct waiting_update {
    openpi_engine *engine;
    engine_change change;
    model_update *fresh;
    char identity[IDENTITY_TEXT], plain[IDENTITY_TEXT];    /* plain: engine_origin.identity                 */
} waiting_update;

/* With the update_lock. */
static void note_origin(waiting_update *u) {
    engine_origin *o = &u->engine->origin;
    memcpy(o->marks, u->change.marks, (size_t)tensors_count(u->engine->checkpoint->tensors));
    memcpy(o->identity, u->plain, sizeof o->identity);
}

/* New calls wait until it has ended, and it waits for those that run. */
static openpi_status put_in_place(waiting_update *u, openpi_error *error) {
    openpi_engine *e = u->engine;
    pthread_mutex_lock(&e->lock);
    e->updating = 1;
    while (e->running) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    openpi_status status = model_update_apply(u->fresh, error);
    pthread_mutex_lock(&e->lock);
    e->updating = 0;
    e->version++;
    if (status == OPENPI_OK) memcpy(e->identity, u->identity, sizeof e->identity);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (status == OPENPI_OK) note_origin(u);
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

/* The caller's tensor, under its own name. */
static openpi_status take(const openpi_field *field, tensor *out, openpi_error *error) {
    if (!field->name || !field->data || field->element != OPENPI_FLOAT32)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s has %s, expected float32 numbers",
                      field->name ? field->name : "a tensor without a name",
                      field->data ? "another type" : "no data");
    if (field->rank < 0 || field->rank > TENSOR_RANK)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s has %d dimensions, expected 0 to %d",
                      field->name, field->rank, (int)TENSOR_RANK);
    *out = (tensor){.name = field->name,
                    .file = by_caller,
                    .type = DTYPE_F32,
                    .rank = field->rank,
                    .count = 1,
                    .data = field->data};
    for (int i = 0; i < field->rank; i++) {
        out->shape[i] = field->shape[i];
        if (field->shape[i] < 1 || field->shape[i] > INT32_MAX || out->count > INT32_MAX)
            return report(error, OPENPI_BAD_ARGUMENT,
                          "engine update: axis %d of %s is %lld, expected 1 to %d", i, field->name,
                          (long long)field->shape[i], (int)INT32_MAX);
        out->count *= field->shape[i];
    }
    return OPENPI_OK;
}

/* The caller's as a list: they are in memory. */
static openpi_status list_given(const openpi_field *given, int count, tensors *list, openpi_error *error) {
    for (int i = 0; i < count; i++) {
        openpi_field field;
        tensor t;
        TRY(BOUNDARY_TAKE_AT(openpi_field, given, i, &field, error));
        TRY(take(&field, &t, error));
        TRY(tensors_add(list, &t, error));
        for (int k = 0; k < i; k++)
            if (!strcmp(tensors_at(list, k)->name, t.name))
                return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s is there twice", t.name);
    }
    return tensors_finish(list, error);
}

/* The tensors of a list as the checkpoint has them. */
static openpi_status take_list(const openpi_engine *e, const tensors *list, const char *from,
                               engine_change *change, openpi_error *error) {
    TRY(engine_change_make(e, tensors_count(list), change, error));
    for (int i = 0; i < tensors_count(list); i++) {
        const tensor *own, *given = tensors_at(list, i);
        TRY(find_own(e, from, given->name, &own, error));
        TRY(check_shape(from, given->name, given->rank, given->shape, own, error));
        if (given->type != DTYPE_F32 && given->type != DTYPE_BF16 && given->type != DTYPE_F16)
            return report(error, OPENPI_BAD_ARGUMENT, "%s: %s is %s, expected F32, BF16 or F16", from,
                          given->name, dtype_name(given->type));
        tensor *t = &change->taken[change->count++];
        *t = *given;
        t->name = own->name;
        t->rounded = tensor_is_bf16(own);
        change->marks[tensors_index(e->checkpoint->tensors, own->name)] = BY_TENSORS;
    }
    return OPENPI_OK;
}

static const uint64_t hash_start = 0xCBF29CE484222325u, hash_step = 0x100000001B3u;

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * hash_step;
    return hash;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
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
        for (size_t i = 0; i < count; i++) *hash = (*hash ^ bits_of(values[i])) * hash_step;
    }
    return OPENPI_OK;
}

/* ---- which weights these are ------------------------------------------------------------------------ */

static openpi_status mix_list(const char *from, const tensors *list, uint64_t *hash, openpi_error *error) {
    for (int i = 0; i < tensors_count(list); i++) TRY(mix_tensor(from, tensors_at(list, i), hash, error));
    return OPENPI_OK;
}

static void write_identity(uint64_t hash, char text[IDENTITY_TEXT]) {
    snprintf(text, IDENTITY_TEXT, "%016llx", (unsigned long long)hash);
}

/* Those before, and all that replaces some of them. *content: the list's names and numbers; 0: not yet read,
 * which is done for the first engine that takes the list. */
static openpi_status name_replaced(waiting_update *u, const tensors *list, const char *from,
                                   uint64_t *content, openpi_error *error) {
    const engine_origin *o = &u->engine->origin;
    uint64_t hash = hash_start;
    if (!*content) {
        TRY(mix_list(from, list, &hash, error));
        *content = hash;
    }
    write_identity(mix_text(*content, u->engine->identity), u->identity);
    write_identity(mix_text(*content, o->identity), u->plain);
    if (!engine_has_adapter(u->engine)) memcpy(u->plain, u->identity, sizeof u->plain);
    return OPENPI_OK;
}

/* Those without an adapter, its numbers and its factors, whatever was before. */
static openpi_status name_adapted(waiting_update *u, const struct adapter *adapter, const char *from,
                                  openpi_error *error) {
    uint64_t hash = hash_start;
    TRY(mix_list(from, adapter_list(adapter), &hash, error));
    for (int i = 0; i < adapter_count(adapter); i++) {
        double factor;
        int rank = adapter_rank(adapter, i, &factor);
        hash = mix_text(hash, adapter_target(adapter, i));
        hash = (hash ^ (uint64_t)rank) * hash_step;
        hash = (hash ^ bits_of((float)factor)) * hash_step;
    }
    memcpy(u->plain, u->engine->origin.identity, sizeof u->plain);
    write_identity(mix_text(hash, u->plain), u->identity);
    return OPENPI_OK;
}

/* ---- one engine's update ---------------------------------------------------------------------------- */

static openpi_status pack(waiting_update *u, openpi_error *error) {
    const engine_change *c = &u->change;
    const tensors *rest = c->base ? c->base->tensors : NULL;
    if (rest) TRY(tensors_stage(rest, 0, u->engine->pool, error));
    TRY(model_update_make(u->engine->model, c->taken, c->count, rest, u->engine->pool, &u->fresh, error));
    return rest ? tensors_check(rest, error) : OPENPI_OK;
}

/* Takes the list over. */
static openpi_status pack_adapter(waiting_update *u, tensors *list, const char *from, const char *folder,
                                  openpi_error *error) {
    openpi_engine *e = u->engine;
    struct adapter *adapter;
    TRY(adapter_open_list(list, from, folder, &e->checkpoint->dims, &adapter, error));
    TRY(engine_change_base(e, adapter, &u->change, error));
    TRY(name_adapted(u, adapter, from, error));
    return pack(u, error);
}

static openpi_status pack_tensors(waiting_update *u, const tensors *list, const char *from,
                                  uint64_t *content, openpi_error *error) {
    TRY(take_list(u->engine, list, from, &u->change, error));
    TRY(name_replaced(u, list, from, content, error));
    return pack(u, error);
}

static void free_update(waiting_update *u) {
    model_update_close(u->fresh);
    engine_change_free(&u->change);
}

static openpi_status check_engine(const openpi_engine *e, openpi_error *error) {
    TRY(engine_check_process(e, by_caller, error));
    if (e->w8 || e->base || formats_smooth(&e->model->types) || e->model->types.fixed)
        return report(error, OPENPI_UNSUPPORTED,
                      "engine update: the weights are a plan's (w8), which was measured on those that are "
                      "there");
    return OPENPI_OK;
}

/* Takes the list over. */
static openpi_status update(waiting_update *u, tensors *list, openpi_error *error) {
    if (adapter_is(list)) TRY(pack_adapter(u, list, by_caller, NULL, error));
    else {
        uint64_t content = 0;
        openpi_status status = pack_tensors(u, list, by_caller, &content, error);
        tensors_close(list);
        TRY(status);
    }
    return put_in_place(u, error);
}

openpi_status openpi_engine_update(openpi_engine *e, const openpi_field *given, int count,
                                   openpi_error *error) {
    if (!e || !given || count < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: %s",
                      !e ? "the engine is NULL" : !given ? "the tensors are NULL" : "there are no tensors");
    waiting_update u = {.engine = e};
    TRY(check_engine(e, error));
    tensors *list = tensors_create();
    if (!list) return report_no_memory(error, sizeof(void *), "tensors that change");
    openpi_status status = list_given(given, count, list, error);
    if (status != OPENPI_OK) {
        tensors_close(list);
        return status;
    }
    pthread_mutex_lock(&e->update_lock);
    status = update(&u, list, error);
    free_update(&u);
    pthread_mutex_unlock(&e->update_lock);
    return status;
}

/* ---- several engines -------------------------------------------------------------------------------- */

/* What becomes of all of them: from a file, from the folder of an adapter, or, where there is no path, back
 * to the checkpoint. */
typedef struct update_source {
    const char *path;
    char *file, *folder;         /* malloc: the tensors, and where adapter_config.json lies; NULL: nowhere  */
    tensors *list;               /* those of the file, for all engines; NULL: not open                      */
    uint64_t content;            /* its names and numbers (name_replaced)                                   */
    int count;                   /* tensors that changed, of each engine                                    */
} update_source;

/* An adapter's list is taken over, so each engine opens its own. */
static openpi_status pack_file(waiting_update *u, update_source *from, openpi_error *error) {
    if (!from->list) TRY(tensors_open(from->file, &from->list, error));
    if (adapter_is(from->list)) {
        tensors *list = from->list;
        from->list = NULL;
        return pack_adapter(u, list, from->file, from->folder, error);
    }
    if (!tensors_count(from->list))
        return report(error, OPENPI_BAD_FILE, "%s: there are no tensors, expected those that change",
                      from->path);
    TRY(pack_tensors(u, from->list, from->file, &from->content, error));
    return tensors_check(from->list, error);
}

static openpi_status pack_back(waiting_update *u, openpi_error *error) {
    TRY(engine_change_base(u->engine, NULL, &u->change, error));
    memcpy(u->plain, u->engine->origin.own, sizeof u->plain);
    memcpy(u->identity, u->plain, sizeof u->identity);
    return pack(u, error);
}

/* Packed for all of them before the first one changes. */
static openpi_status update_all(waiting_update *list, int count, update_source *from, openpi_error *error) {
    for (int i = 0; i < count; i++) {
        TRY(from->path ? pack_file(&list[i], from, error) : pack_back(&list[i], error));
        from->count = list[i].change.count;
    }
    for (int i = 0; i < count; i++) TRY(put_in_place(&list[i], error));
    return OPENPI_OK;
}

static int by_place(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const waiting_update *)a)->engine;
    uintptr_t y = (uintptr_t)((const waiting_update *)b)->engine;
    return x < y ? -1 : x > y;
}

/* Two callers with the same engines lock them in one order. */
static openpi_status lock_and_update(waiting_update *list, int count, update_source *from,
                                     openpi_error *error) {
    qsort(list, (size_t)count, sizeof *list, by_place);
    for (int i = 1; i < count; i++)
        if (list[i].engine == list[i - 1].engine)
            return report(error, OPENPI_BAD_ARGUMENT, "engine update: an engine is there twice");
    for (int i = 0; i < count; i++) pthread_mutex_lock(&list[i].engine->update_lock);
    openpi_status status = update_all(list, count, from, error);
    for (int i = count; i--;) pthread_mutex_unlock(&list[i].engine->update_lock);
    return status;
}

static openpi_status update_from(openpi_engine *const *engines, int count, update_source *from,
                                 openpi_error *error) {
    waiting_update *list = calloc((size_t)count, sizeof *list);
    if (!list) return report_no_memory(error, (size_t)count * sizeof *list, "engines that change");
    for (int i = 0; i < count; i++) list[i].engine = engines[i];
    openpi_status status = lock_and_update(list, count, from, error);
    for (int i = 0; i < count; i++) free_update(&list[i]);
    free(list);
    if (from->list) tensors_close(from->list);
    return status;
}

static openpi_status check_engines(openpi_engine *const *engines, int count, openpi_error *error) {
    if (!engines || count < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine update: there are no engines");
    for (int i = 0; i < count; i++) {
        if (!engines[i]) return report(error, OPENPI_BAD_ARGUMENT, "engine update: engine %d is NULL", i);
        TRY(check_engine(engines[i], error));
    }
    return OPENPI_OK;
}

static const char adapter_config_name[] = "adapter_config.json";

/* The folder of a path, "." where it has none; malloc. */
static char *folder_of(const char *path) {
    size_t end, at = file_last_name(path, &end);
    return at ? strndup(path, at) : strdup(".");
}

static openpi_status find_source(update_source *from, openpi_error *error) {
    int is_folder = file_is_folder(from->path), there = 0;
    from->folder = is_folder ? strdup(from->path) : folder_of(from->path);
    from->file = is_folder ? file_join(from->path, "adapter_model.safetensors") : strdup(from->path);
    if (!from->folder || !from->file) return report_no_memory(error, strlen(from->path) + 1, from->path);
    TRY(file_is_in(from->folder, adapter_config_name, &there, error));
    if (is_folder && !there)
        return report(error, OPENPI_BAD_FILE,
                      "%s: is a folder without %s, expected a .safetensors file or the folder of an adapter",
                      from->path, adapter_config_name);
    if (there) return OPENPI_OK;
    free(from->folder);
    from->folder = NULL;
    return OPENPI_OK;
}

openpi_status openpi_engine_update_file(openpi_engine *const *engines, int engine_count, const char *file,
                                        int *count, openpi_error *error) {
    update_source from = {.path = file};
    TRY(check_engines(engines, engine_count, error));
    if (!file) return report(error, OPENPI_BAD_ARGUMENT, "engine update: the file is NULL");
    openpi_status status = find_source(&from, error);
    if (status == OPENPI_OK) status = update_from(engines, engine_count, &from, error);
    if (status == OPENPI_OK && count) *count = from.count;
    free(from.file);
    free(from.folder);
    return status;
}

openpi_status openpi_engine_restore(openpi_engine *const *engines, int engine_count, int *count,
                                    openpi_error *error) {
    update_source from = {.path = NULL};
    TRY(check_engines(engines, engine_count, error));
    TRY(update_from(engines, engine_count, &from, error));
    if (count) *count = from.count;
    return OPENPI_OK;
}
