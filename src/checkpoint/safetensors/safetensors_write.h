/* Writes safetensors files, one or several, from tensors that are read, decoded or generated on the way.
 *
 * All sizes are known before the first element is: headers are written first, and each piece of a tensor goes
 * to its place as soon as it can be read. So memory is one piece a thread and what the source itself keeps,
 * and the bytes do not depend on the number of threads. */
#ifndef MODEL_SAFETENSORS_WRITE_H
#define MODEL_SAFETENSORS_WRITE_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/threads.h"
#include "checkpoint/tensors.h"

/* Called with each file's path just before it is created, so that a failed write can be undone. */
typedef openpi_status (*safetensors_created)(void *user, const char *path, openpi_error *error);

typedef struct safetensors_order {
    const char *folder;                    /* exists                                                      */
    const tensor *const *list;             /* [count] in file order: name, shape and type as they will be */
    const tensor *const *sources;          /* [count] where their elements come from; NULL: they are zeros */
    int count;
    const tensors *from;                   /* the sources' list                                           */
    const char *prefix;                    /* before each name, or ""                                     */
    json_t *metadata;                      /* an object of strings for every file; NULL: none             */
    uint64_t shard_bytes;                  /* 0: model.safetensors; else shards of at most so many bytes of
                                              data, and model.safetensors.index.json                      */
    pool *pool;
    safetensors_created created;
    void *created_user;
    openpi_progress progress;              /* "writing weights", in bytes                                 */
    openpi_cancel cancel;                  /* asked after each report; NULL: never                        */
    void *progress_user;                   /* context of both functions                                   */
    atomic_int *damaged;                   /* set, and writing stops, at an element that is NaN or infinite in
                                              the type that it is written in; NULL: nobody looks          */
} safetensors_order;

/* Elements become F32, BF16 or F16, rounded once to nearest even. Zeros are left to the file system, which
 * need not store them. OPENPI_SYSTEM where a file cannot be written or less space is free than needed. */
openpi_status safetensors_write(const safetensors_order *order, openpi_error *error);

/* The bytes before the data of a file that holds these tensors one after the other: the length and the
 * JSON, padded to 8 bytes. Each name gets `prefix`; metadata: an object of strings, or NULL. *out: malloc. */
openpi_status safetensors_header(const tensor *const *list, int count, const char *prefix, json_t *metadata,
                                 char **out, size_t *bytes, openpi_error *error);

#endif
