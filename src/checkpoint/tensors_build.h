/* How a list of tensors is built: functions of tensors.c for safetensors.c and synth.c, which fill one,
 * and for checkpoint.c, which strips prefixes. */
#ifndef MODEL_TENSORS_BUILD_H
#define MODEL_TENSORS_BUILD_H

#include <jansson.h>

#include "base/file.h"
#include "checkpoint/tensors.h"

tensors *tensors_create(void);                                     /* NULL when out of memory */

/* Takes over the reader and the metadata (may be NULL), also when it fails; *file stays until
 * tensors_close, and so does its path. */
openpi_status tensors_add_file(tensors *tensors, const char *path, file_reader reader, json_t *metadata,
                               struct tensor_file **file, openpi_error *error);
const char *tensor_file_path(const struct tensor_file *file);
/* The tensors of a JAX checkpoint (orbax.h). */
openpi_status tensors_add_orbax(tensors *tensors, const char *params, const tensors_options *options,
                                openpi_error *error);
/* The list owns the adapter from here on, also where it fails. */
void tensors_add_adapter(tensors *tensors, struct adapter *adapter);
/* The tensor at `place` has `rows` and `columns` (a vector: rows) from here on, with zeros around what is
 * stored; 0 and 0: as it is stored. */
void tensors_widen(tensors *tensors, int place, int64_t rows, int64_t columns);
/* The index-th change of the adapter is applied to the tensor at `place`. */
openpi_status tensors_change(tensors *tensors, int place, int index, openpi_error *error);
/* Copies the tensor and its name. */
openpi_status tensors_add(tensors *tensors, const tensor *tensor, openpi_error *error);
/* Once all are there, and again after names changed: orders names for tensors_find, refuses two of one
 * name. */
openpi_status tensors_finish(tensors *tensors, openpi_error *error);

/* Where tensors_find finds it, -1 if absent. */
int tensors_index(const tensors *tensors, const char *name);
/* A tensor's name in its file. */
const char *tensors_stored_name(const tensors *tensors, int index);
/* Takes off what stands before the names of all tensors where that is none of openpi's or LeRobot's own
 * ("module.", "_orig_mod.", "policy."). It is copied to `prefix`, "" where there is none. Call tensors_finish
 * afterwards. */
void tensors_unwrap(tensors *tensors, char *prefix, size_t bytes);
/* Takes one LEROBOT_PREFIX off every name that begins with it. Call tensors_finish afterwards. */
void tensors_strip_prefix(tensors *tensors);
/* `name` must outlive the list. Call tensors_finish afterwards. */
void tensors_rename(tensors *tensors, int index, const char *name);
void tensors_drop(tensors *tensors, int index);

int tensors_files(const tensors *tensors);
const char *tensors_file(const tensors *tensors, int index, uint64_t *bytes);
/* What orbax_describe tells; *out NULL: it is no JAX checkpoint. */
openpi_status tensors_describe_orbax(const tensors *tensors, json_t **out, openpi_error *error);

/* "[2, 3]" for sentences. */
const char *tensor_shape_text(int rank, const int64_t *shape, char *text, size_t bytes);

/* Where no checkpoint was found (wrong_checkpoint.c): one sentence that says what is there and what to do,
 * and its status. `first`: the first WRONG_FILE_BYTES of the file's `bytes`, or all; the first 8 do not
 * lead to a header within the file and `limit`. */
enum { WRONG_FILE_BYTES = 1024 };
openpi_status wrong_file(const char *path, const uint8_t *first, uint64_t bytes, uint64_t limit,
                         openpi_error *error);
openpi_status wrong_folder(const char *folder, openpi_error *error);

#endif
