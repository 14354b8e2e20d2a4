/* The checkpoint's own weights, read again beside an engine that runs: under an adapter that replaces the one
 * before, and to go back.
 *
 * An engine keeps packed weights only. So what an adapter changes is read from the checkpoint's files, and
 * nothing else is: no adapter is ever added to weights that another one has changed. */
#define _XOPEN_SOURCE 700       /* realpath */
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/tensors_build.h"
#include "openpi_internal.h"

/* ---- where weights are from ------------------------------------------------------------------------- */

static openpi_status resolve(const char *path, char **out, openpi_error *error) {
    if (!path) return OPENPI_OK;
    *out = realpath(path, NULL);
    if (!*out) *out = strdup(path);
    return *out ? OPENPI_OK : report_no_memory(error, strlen(path) + 1, path);
}

openpi_status engine_keep_origin(openpi_engine *e, const checkpoint_source *source, openpi_error *error) {
    engine_origin *o = &e->origin;
    size_t count = (size_t)tensors_count(e->checkpoint->tensors);
    if (source->synthetic) o->synthetic = *source->synthetic;
    o->missing_chunks_are_zero = source->missing_chunks_are_zero;
    TRY(resolve(source->path, &o->path, error));
    TRY(resolve(source->adapter, &o->adapter, error));
    TRY(checkpoint_stamp(e->checkpoint, &o->stamp, error));
    o->marks = calloc(count, sizeof *o->marks);
    if (!o->marks) return report_no_memory(error, count, "which weights change");
    checkpoint_mark_changed(e->checkpoint, o->marks, BY_ADAPTER);
    return OPENPI_OK;
}

void engine_forget_origin(openpi_engine *e) {
    free(e->origin.path);
    free(e->origin.adapter);
    free(e->origin.marks);
}

int engine_has_adapter(const openpi_engine *e) {
    int any = 0;
    for (int i = 0; i < tensors_count(e->checkpoint->tensors); i++) any |= e->origin.marks[i] == BY_ADAPTER;
    return any;
}

void engine_name_origin(openpi_engine *e) {
    if (engine_has_adapter(e)) return;
    memcpy(e->origin.own, e->identity, sizeof e->origin.own);
    memcpy(e->origin.identity, e->identity, sizeof e->origin.identity);
}

/* The checkpoint without any adapter. */
static openpi_status open_base(openpi_engine *e, checkpoint **out, openpi_error *error) {
    engine_origin *o = &e->origin;
    const checkpoint_source source = {.path = o->path,
                                      .synthetic = o->path ? NULL : &o->synthetic,
                                      .adapter = o->adapter,
                                      .without_lora = o->path != NULL,
                                      .missing_chunks_are_zero = o->missing_chunks_are_zero};
    uint64_t stamp;
    TRY(checkpoint_open_source(&source, out, error));
    TRY(checkpoint_stamp(*out, &stamp, error));
    if (stamp != o->stamp)
        return report(error, OPENPI_BAD_FILE,
                      "%s: has changed since the engine was opened, expected the same files: an adapter is "
                      "added to the weights that are in them",
                      o->path);
    if (o->own[0]) return OPENPI_OK;
    TRY(checkpoint_identity(*out, o->own, error));
    if (!o->identity[0]) memcpy(o->identity, o->own, sizeof o->own);
    return OPENPI_OK;
}

/* ---- what changes ----------------------------------------------------------------------------------- */

openpi_status engine_change_make(const openpi_engine *e, int count, engine_change *change,
                                 openpi_error *error) {
    size_t marks = (size_t)tensors_count(e->checkpoint->tensors);
    change->taken = calloc((size_t)count + 1, sizeof *change->taken);
    change->marks = malloc(marks);
    if (!change->taken || !change->marks)
        return report_no_memory(error, (size_t)count * sizeof *change->taken + marks, "tensors that change");
    memcpy(change->marks, e->origin.marks, marks);
    return OPENPI_OK;
}

void engine_change_free(engine_change *change) {
    free(change->taken);
    free(change->marks);
    checkpoint_close(change->base);
}

/* Where the adapter would be added to what is no longer the checkpoint's. What a target is packed with was
 * replaced with it, if at all. */
static openpi_status check_targets(const openpi_engine *e, const engine_change *change,
                                   const struct adapter *adapter, openpi_error *error) {
    for (int i = 0; i < tensors_count(e->checkpoint->tensors); i++)
        if (change->marks[i] == BY_ADAPTER && e->origin.marks[i] == BY_TENSORS)
            return report(error, OPENPI_BAD_ARGUMENT,
                          "%s: changes %s, which an earlier update has replaced, expected the checkpoint's: "
                          "an adapter is added to those, so go back to them first",
                          adapter_folder(adapter), tensors_at(e->checkpoint->tensors, i)->name);
    return OPENPI_OK;
}

/* Both lists have the same names. change->marks becomes what it is with this adapter, or
 * without any. */
static openpi_status mark(const openpi_engine *e, engine_change *change, const struct adapter *adapter,
                          openpi_error *error) {
    const tensors *base = change->base->tensors, *own = e->checkpoint->tensors;
    uint8_t *there = calloc((size_t)tensors_count(base), 1);
    if (!there) return report_no_memory(error, (size_t)tensors_count(base), "which weights change");
    checkpoint_mark_changed(change->base, there, BY_ADAPTER);
    for (int i = 0; i < tensors_count(own); i++) {
        int at = tensors_index(base, tensors_at(own, i)->name), kept = change->marks[i] == BY_TENSORS;
        change->marks[i] = at >= 0 && there[at] ? BY_ADAPTER : adapter && kept ? BY_TENSORS : AS_STORED;
    }
    free(there);
    return adapter ? check_targets(e, change, adapter, error) : OPENPI_OK;
}

/* All that is the adapter's now, or was another one's, or another update's that is given up. */
static void take_changed(const openpi_engine *e, engine_change *change) {
    for (int i = 0; i < tensors_count(e->checkpoint->tensors); i++) {
        const tensor *own = tensors_at(e->checkpoint->tensors, i);
        int same = change->marks[i] == e->origin.marks[i] && change->marks[i] != BY_ADAPTER;
        const tensor *from = same ? NULL : tensors_find(change->base->tensors, own->name);
        if (!from) continue;
        tensor *t = &change->taken[change->count++];
        *t = *from;
        t->name = own->name;
        t->rounded |= tensor_is_bf16(own);
    }
}

openpi_status engine_change_base(openpi_engine *e, struct adapter *adapter, engine_change *change,
                                 openpi_error *error) {
    openpi_status status = engine_change_make(e, tensors_count(e->checkpoint->tensors), change, error);
    if (status == OPENPI_OK) status = open_base(e, &change->base, error);
    if (status != OPENPI_OK) {
        adapter_close(adapter);
        return status;
    }
    if (adapter) TRY(checkpoint_change(change->base, adapter, error));
    TRY(mark(e, change, adapter, error));
    tensors_round(change->base->tensors, model_rounds(e->model));
    take_changed(e, change);
    return OPENPI_OK;
}
