/* Safetensors files, read: their tensors join a list. */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include "checkpoint/tensors.h"

/* One file's tensors join the list. Call tensors_finish afterwards. */
openpi_status safetensors_read(tensors *tensors, const char *path, openpi_error *error);
/* Those of the shards that an index names: its path, and the folder that it is in. Calls tensors_finish. */
openpi_status safetensors_read_shards(tensors *tensors, const char *folder, const char *index,
                                      openpi_error *error);
/* One file as a list of its own. */
openpi_status safetensors_open(const char *path, tensors **out, openpi_error *error);

#endif
