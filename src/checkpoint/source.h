/* What stands behind a tensor: a table of functions that each kind of checkpoint fills in its own folder.
 * tensors.c calls these tables and names no kind.
 *
 * A tensor has the table of its source and `place`, the source's own pointer. A list of tensors owns stores:
 * the files, folders and recipes that its tensors are read from. An adapter's source wraps the one that the
 * tensor had before. */
#ifndef CHECKPOINT_SOURCE_H
#define CHECKPOINT_SOURCE_H

#include "checkpoint/tensors.h"

/* Functions on one tensor. Threads: as tensors.h says of the function that calls them. A function that is
 * NULL: there is nothing to do, or what its comment says. */
typedef struct tensor_source {
    /* Bytes from … of the tensor as it is stored, of tensor.type; tensors.c converts them. */
    void (*bytes)(const tensor *tensor, uint64_t from, size_t bytes, void *out);
    /* In place of `bytes`: elements in the type that is asked for. */
    void (*read)(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out);
    /* NULL: the tensor is not generated. */
    const tensor_recipe *(*recipe)(const tensor *tensor);
    /* Its bytes in memory once its store was loaded; NULL: they are not there. */
    const void *(*loaded)(const tensor *tensor);
    /* tensor.type after the store was told to round; NULL: it stays. */
    dtype (*type)(const tensor *tensor);
    /* NULL: tensor.type */
    dtype (*stored_type)(const tensor *tensor);
    /* NULL: at any place, at any time */
    tensor_order (*order)(const tensor *tensor);
    openpi_status (*hold)(const tensor *tensor, const decode_watch *watch, openpi_error *error);
    void (*release)(const tensor *tensor);
    /* Its elements stay as they are stored whatever the store rounds: something is to be added to them. */
    void (*keep)(const tensor *tensor);
    /* 1: LoRA of its own checkpoint is added to what is stored; NULL: none ever is. */
    int (*has_lora)(const tensor *tensor);
} tensor_source;

/* Functions on what a list owns; `store` is the pointer that tensors_own was given. Only `close` must be
 * there. */
typedef struct tensor_store {
    void (*close)(void *store);
    /* Closes its files, frees what was decoded. Reading may begin anew where the kind of store can. */
    void (*close_files)(void *store);
    /* The sentence of the first read that failed. */
    openpi_status (*check)(const void *store, openpi_error *error);
    int (*stages)(const void *store);
    openpi_status (*stage)(void *store, int stage, struct pool *pool, openpi_error *error);
    void (*round)(void *store, int on);
    openpi_status (*load)(void *store, openpi_error *error);
    /* Files that are read, and the path and size of one. */
    int (*files)(const void *store);
    const char *(*file)(const void *store, int index, uint64_t *bytes);
    const char *(*metadata)(const void *store, const char *key);
} tensor_store;

/* The list owns the store from here on, and closes it also where this fails. Stores are staged from the last
 * to the first: what wraps another comes before it. Everything else goes from the first to the last. */
openpi_status tensors_own(tensors *tensors, const tensor_store *functions, void *store, openpi_error *error);
/* The first store with these functions; NULL: there is none. */
void *tensors_owned(const tensors *tensors, const tensor_store *functions);

#endif
