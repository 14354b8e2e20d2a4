/* A tuning table in memory: entries, and which of them an op of a plan takes. Its file: tuning_file.c. */
#include "tuning/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

tuning_machine tuning_machine_of(device *device, int threads) {
    tuning_machine machine = {.threads = device->backend->allocate_host ? 0 : threads};
    device_facts facts = {0};
    if (device->backend->facts && device->backend->facts(device, &facts, NULL) == OPENPI_OK)
        snprintf(machine.device, sizeof machine.device, "%s", facts.name);
    if (!machine.device[0]) snprintf(machine.device, sizeof machine.device, "%s", device->backend->name);
    snprintf(machine.path, sizeof machine.path, "%.*s", (int)strcspn(device->path, "+"), device->path);
    return machine;
}

void tuning_advice(device *device, char text[TUNING_ADVICE]) {
    const backend *backend = device->backend;
    const int percent = backend->untuned_percent ? backend->untuned_percent(device) : 0;
    const tuning_machine machine = tuning_machine_of(device, 0);
    *text = 0;
    if (percent)
        snprintf(text, TUNING_ADVICE,
                 "no tuning table for this card (%s, %s kernels): `openpi tune` may win %d %% of a call",
                 machine.device, machine.path, percent);
}

void tuning_close(tuning *t) {
    if (!t) return;
    free(t->entries);
    free(t);
}

openpi_status tuning_add(tuning *t, const tuning_entry *entry, openpi_error *error) {
    if (t->count == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 64;
        tuning_entry *more = realloc(t->entries, (size_t)capacity * sizeof *more);
        if (!more) return report_no_memory(error, (size_t)capacity * sizeof *more, "the tuning table");
        t->entries = more;
        t->capacity = capacity;
    }
    t->entries[t->count++] = *entry;
    return OPENPI_OK;
}

/* ---- shapes ----------------------------------------------------------------------------------------- */

static tuning_key matrix_key(tuning_key key, const row_set *rows, const matrix *w, norm_kind norm) {
    key.m = rows->capacity;
    key.n = w->n;
    key.k = w->k;
    key.form = w->form;
    key.heads = w->heads;
    key.head_dim = w->head_dim;
    key.weights = w->type;
    key.norm = norm;
    return key;
}

row_set *tuning_rows(op *op) {
    switch (op->kind) {
    case OP_PATCH_EMBED: return &op->patch_embed.rows;
    case OP_NORM_LINEAR: return &op->norm_linear.rows;
    case OP_LINEAR_RESIDUAL: return &op->linear_residual.rows;
    case OP_NORM_QKV: return &op->norm_qkv.rows;
    case OP_IMAGE_ATTENTION: return &op->image_attention.rows;
    case OP_CACHE_ATTENTION: return &op->cache_attention.rows;
    default: return NULL;
    }
}

tuning_key tuning_key_of(const op *op) {
    tuning_key key = {.op = op->kind, .type = op->type, .weights = weight_of(op->type)};
    switch (op->kind) {
    case OP_PATCH_EMBED: return matrix_key(key, &op->patch_embed.rows, &op->patch_embed.weight, NORM_NONE);
    case OP_NORM_LINEAR:
        return matrix_key(key, &op->norm_linear.rows, &op->norm_linear.weight, op->norm_linear.norm.kind);
    case OP_LINEAR_RESIDUAL:
        return matrix_key(key, &op->linear_residual.rows, &op->linear_residual.weight, NORM_NONE);
    case OP_NORM_QKV:
        return matrix_key(key, &op->norm_qkv.rows, &op->norm_qkv.weight, op->norm_qkv.norm.kind);
    case OP_STATE_EMBED: return matrix_key(key, &op->state_embed.rows, &op->state_embed.weight, NORM_NONE);
    case OP_VELOCITY:
        return matrix_key(key, &op->velocity.rows, &op->velocity.weight, op->velocity.norm.kind);
    case OP_ACTION_EMBED:
        key = matrix_key(key, &op->action_embed.rows, &op->action_embed.in, NORM_NONE);
        key.layers = action_embed_products(&op->action_embed);
        return key;
    case OP_EMBED_TEXT:
        key.m = op->embed_text.rows.capacity;
        key.n = op->embed_text.table.k;
        return key;
    case OP_IMAGE_ATTENTION:
        key.m = op->image_attention.rows.capacity;
        key.heads = op->image_attention.heads;
        key.head_dim = op->image_attention.head_dim;
        return key;
    case OP_CACHE_ATTENTION:
        key.m = op->cache_attention.rows.capacity;
        key.heads = op->cache_attention.heads;
        key.head_dim = op->cache_attention.cache.head_dim;
        key.capacity = op->cache_attention.cache.capacity;
        return key;
    default: return key;         /* the parts that fused ops are made of have one choice                  */
    }
}

int tuning_same(const tuning_key *a, const tuning_key *b) {
    return a->op == b->op && a->form == b->form && a->norm == b->norm && a->type == b->type &&
           a->weights == b->weights && a->m == b->m && a->n == b->n && a->k == b->k && a->heads == b->heads &&
           a->head_dim == b->head_dim && a->capacity == b->capacity && a->layers == b->layers &&
           a->cameras == b->cameras;
}

const tuning_entry *tuning_find(const tuning *t, const tuning_key *shape, int cameras) {
    tuning_key key = *shape;
    for (int pass = 0; pass < 2; pass++) {
        key.cameras = pass ? 0 : cameras;
        for (int i = 0; i < t->count; i++)
            if (tuning_same(&t->entries[i].key, &key)) return &t->entries[i];
    }
    return NULL;
}

int tuning_choice(const device *device, const op *op, const char *name) {
    candidate list[TUNING_CANDIDATES];
    int count =
        device->backend->candidates ? device->backend->candidates(device, op, list, TUNING_CANDIDATES) : 0;
    for (int i = 0; i < count && i < TUNING_CANDIDATES; i++)
        if (!strcmp(list[i].name, name)) return i + 1;
    return 0;
}
