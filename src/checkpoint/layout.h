/* Every tensor of a checkpoint in openpi's PyTorch layout. */
#ifndef CHECKPOINT_LAYOUT_H
#define CHECKPOINT_LAYOUT_H

#include "openpi.h"

/* Calls `each` for every tensor of a checkpoint of these dims in openpi's file order (embedding under
 * paligemma.lm_head.weight); used for synthesis and for checking. Stops at the first failure. */
typedef openpi_status (*checkpoint_tensor)(void *user, const char *name, int rank, const int64_t *shape,
                                           openpi_error *error);
openpi_status checkpoint_tensors(const openpi_dims *dims, openpi_variant variant, checkpoint_tensor each,
                                 void *user, openpi_error *error);

#endif
