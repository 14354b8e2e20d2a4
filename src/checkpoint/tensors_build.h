/* How a list of tensors is built: functions of tensors.c for the folders beside it, which fill one, and for
 * checkpoint.c, which strips prefixes. */
#ifndef MODEL_TENSORS_BUILD_H
#define MODEL_TENSORS_BUILD_H

#include "checkpoint/tensors.h"

tensors *tensors_create(void);                                     /* NULL when out of memory */

/* The tensor at `place` has `rows` and `columns` (a vector: rows) from here on, with zeros around what is
 * stored; 0 and 0: as it is stored. */
void tensors_widen(tensors *tensors, int place, int64_t rows, int64_t columns);
/* The tensor at `place`, to be changed. Its name stays (tensors_rename). */
tensor *tensors_edit(tensors *tensors, int place);
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

/* "[2, 3]" for sentences. */
const char *tensor_shape_text(int rank, const int64_t *shape, char *text, size_t bytes);

#endif
