/* A checkpoint's tensors from a path or a recipe, whatever kind of checkpoint it is. */
#ifndef CHECKPOINT_OPEN_H
#define CHECKPOINT_OPEN_H

#include "checkpoint/jax/orbax.h"
#include "checkpoint/tensors.h"

/* Opens a folder (model.safetensors, the shards that model.safetensors.index.json names, or a JAX
 * checkpoint) or one .safetensors file. */
openpi_status tensors_open(const char *path, tensors **out, openpi_error *error);
/* The same with options about a JAX checkpoint. */
openpi_status tensors_open_with(const char *path, const orbax_options *options, tensors **out,
                                openpi_error *error);

#endif
