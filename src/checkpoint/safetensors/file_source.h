/* A file as the source of tensors: their bytes lie in it one after the other. */
#ifndef CHECKPOINT_FILE_SOURCE_H
#define CHECKPOINT_FILE_SOURCE_H

#include <jansson.h>

#include "base/file.h"
#include "checkpoint/tensors.h"

typedef struct file_source file_source;

/* The list owns the file from here on. Takes over the reader and the metadata (an object of strings, or
 * NULL), also when it fails; *out stays until tensors_close, and so does its path. */
openpi_status file_source_add(tensors *tensors, const char *path, file_reader reader, json_t *metadata,
                              file_source **out, openpi_error *error);
const char *file_source_path(const file_source *file);
/* The tensor's bytes begin at `at` in the file. */
void file_source_set(file_source *file, uint64_t at, tensor *tensor);

#endif
