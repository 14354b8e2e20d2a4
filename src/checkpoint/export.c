/* Note: the file has a tensor that no JAX checkpoint holds and no inference reads, the output layer of the
 * expert's language model. openpi's loader refuses a file without it, and its converter writes random numbers
 * there. Here they are zeros, which take no space on the disk. */
#include "checkpoint/export.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "checkpoint/damage.h"
#include "checkpoint/tensor_names.h"

/* A tensor of the file and where its elements come from. */
typedef struct entry {
    tensor tensor;
    const struct tensor *source;           /* NULL: zeros                                                 */
} entry;

typedef struct entries {
    const checkpoint *checkpoint;
    dtype type;
    entry *list;
    int count, capacity;
} entries;

static openpi_status add(entries *e, const char *name, int rank, const int64_t *shape, const tensor *source,
                         openpi_error *error) {
    if (e->count == e->capacity) {
        int capacity = e->capacity ? 2 * e->capacity : 1024;
        entry *grown = realloc(e->list, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "the list of tensors");
        e->list = grown;
        e->capacity = capacity;
    }
    tensor t = {.name = name, .type = e->type, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) t.count *= t.shape[i] = shape[i];
    e->list[e->count++] = (entry){t, source};
    return OPENPI_OK;
}

/* A checkpoint_tensor. */
static openpi_status add_needed(void *user, const char *name, int rank, const int64_t *shape,
                                openpi_error *error) {
    entries *e = user;
    const checkpoint *c = e->checkpoint;
    const tensor *source = strcmp(name, LM_HEAD) ? tensors_find(c->tensors, name) : c->embedding;
    /* The callback's name is gone afterwards; a source's stays. */
    (void)shape;
    return add(e, source == c->embedding ? LM_HEAD : source->name, rank, source->shape, source, error);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->tensor.name, ((const entry *)b)->tensor.name);
}

/* By name, as the safetensors package orders tensors of one type. */
static openpi_status collect(entries *e, openpi_error *error) {
    const openpi_dims *d = &e->checkpoint->dims;
    const int64_t head[] = {d->vocab, d->expert_width};
    TRY(checkpoint_tensors(d, e->checkpoint->variant, add_needed, e, error));
    TRY(add(e, EXPERT_HEAD, 2, head, NULL, error));
    qsort(e->list, (size_t)e->count, sizeof *e->list, by_name);
    return OPENPI_OK;
}

/* The name that the embedding has as well; and sizes where shapes alone tell other vision heads. NULL: no
 * memory. */
static json_t *make_metadata(const checkpoint *c) {
    const char *alias = c->lerobot ? LEROBOT_PREFIX EMBED_TOKENS : EMBED_TOKENS,
               *name = c->lerobot ? LEROBOT_PREFIX LM_HEAD : LM_HEAD;
    json_t *metadata = json_pack("{s:s}", alias, name);
    if (!metadata || c->dims.vision_width == VISION_HEAD_DIM * c->dims.vision_heads) return metadata;
    json_t *object = dims_json(&c->dims);
    char *text = object ? json_text(object, JSON_COMPACT) : NULL;
    int failed = !text || json_object_set_new(metadata, "openpi_dims", json_string(text));
    free(text);
    json_decref(object);
    if (!failed) return metadata;
    json_decref(metadata);
    return NULL;
}

static openpi_status write_entries(const entries *e, const export_order *order, openpi_error *error) {
    size_t count = (size_t)e->count, bytes = 2 * count * sizeof(tensor *);
    const tensor **list = malloc(bytes);
    atomic_int damaged = 0;
    json_t *metadata = make_metadata(e->checkpoint);
    openpi_status status = OPENPI_OK;
    if (!list || !metadata) status = report_no_memory(error, bytes, "writing weights");
    for (size_t i = 0; i < count && status == OPENPI_OK; i++) {
        list[i] = &e->list[i].tensor;
        list[count + i] = e->list[i].source;
    }
    safetensors_order whole = {.folder = order->folder,
                               .list = list,
                               .sources = list + count,
                               .count = e->count,
                               .from = e->checkpoint->tensors,
                               .prefix = e->checkpoint->lerobot ? LEROBOT_PREFIX : "",
                               .metadata = metadata,
                               .shard_bytes = order->shard_bytes,
                               .pool = order->pool,
                               .created = order->created,
                               .created_user = order->created_user,
                               .progress = order->progress,
                               .cancel = order->cancel,
                               .progress_user = order->progress_user,
                               .damaged = &damaged};
    if (status == OPENPI_OK) status = safetensors_write(&whole, error);
    if (status == OPENPI_OK && atomic_load(&damaged))
        status = damage_report(e->checkpoint, order->type, error);
    json_decref(metadata);
    free(list);
    return status;
}

/* Its own action dimensions, not the 32 that zeros fill. */
openpi_status export_weights(const checkpoint *checkpoint, const export_order *order, openpi_error *error) {
    entries e = {.checkpoint = checkpoint, .type = order->type};
    tensors_round(checkpoint->tensors, order->type == DTYPE_BF16);
    checkpoint_widen(checkpoint, 0);
    openpi_status status = collect(&e, error);
    if (status == OPENPI_OK) status = write_entries(&e, order, error);
    checkpoint_widen(checkpoint, 1);
    free(e.list);
    return status;
}
