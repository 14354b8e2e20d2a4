/* Weights that are NaN or infinite: a checkpoint that contains one is refused when it is loaded, because
 * every action would be NaN too.
 *
 * Packing examines the weights it reads while they are in the cache, and sets a flag; only where that is set
 * are the files read again, to name the tensors. */
#ifndef MODEL_DAMAGE_H
#define MODEL_DAMAGE_H

#include <stdatomic.h>

#include "checkpoint/checkpoint.h"

/* Looks at `count` floats, or bf16, and sets the flag. */
void damage_look(dtype type, const void *values, size_t count, atomic_int *damaged);

/* OPENPI_BAD_FILE with the first tensor of the checkpoint that is damaged, how many of its elements are and
 * which is the first, and how many tensors more. type: what the model keeps weights in; a float beyond bf16
 * or f16 becomes infinite. */
openpi_status damage_report(const checkpoint *checkpoint, dtype type, openpi_error *error);

#endif
