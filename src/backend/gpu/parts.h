/* The resident kernel's launch in parts, by the time stamps that it leaves. */
#ifndef BACKEND_GPU_PARTS_H
#define BACKEND_GPU_PARTS_H

#include "backend/backend.h"

/* How many parts the ops of one launch have: layers and what follows the last, in every step. */
int gpu_parts(const op *ops, int count);
/* Parts of launch, whose times are known, into `out`, which has room for them; stamps: nanoseconds, one more than parts.
 * Returns how many, or -1 where the stamps are not those of this launch. */
int gpu_parts_fill(const op *ops, const launch_record *launch, const uint64_t *stamps, launch_record *out);

#endif
