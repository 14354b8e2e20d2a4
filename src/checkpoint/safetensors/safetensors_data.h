/* The elements of safetensors files, from their sources to their places. Headers are written before
 * (safetensors_write.c). */
#ifndef MODEL_SAFETENSORS_DATA_H
#define MODEL_SAFETENSORS_DATA_H

#include "checkpoint/safetensors/safetensors_write.h"

/* Where a tensor is written. */
typedef struct safetensors_place {
    int shard;
    uint64_t at;                 /* in its file */
} safetensors_place;

typedef struct safetensors_files {
    const safetensors_order *order;
    safetensors_place *places;   /* [count]                                                               */
    int *starts;                 /* [shards + 1]: the first tensor of each                                */
    int shards;
    uint64_t total;              /* bytes that are written: those of tensors that have a source           */
} safetensors_files;

static inline uint64_t tensor_bytes(const tensor *t) { return (uint64_t)t->count * dtype_bytes(t->type); }

/* Writes bytes to a file that is there. It is opened and closed each time: there may be more shards than a
 * process may open. Any thread. */
openpi_status safetensors_put(const safetensors_files *files, int shard, const void *data, size_t bytes,
                              uint64_t at, openpi_error *error);

openpi_status safetensors_write_data(const safetensors_files *files, openpi_error *error);

#endif
