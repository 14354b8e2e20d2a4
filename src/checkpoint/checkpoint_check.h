/* The tensors of a checkpoint against the model that they are said to be. c->tensors and c->name are set. */
#ifndef MODEL_CHECKPOINT_CHECK_H
#define MODEL_CHECKPOINT_CHECK_H

#include "checkpoint/checkpoint_config.h"

/* Sets c->variant: adaptive norms in the expert make π0.5, state_proj makes π0. */
openpi_status checkpoint_find_variant(checkpoint *c, openpi_error *error);
/* The type in LeRobot's config.json against the tensors, under the names that the file has. */
openpi_status checkpoint_check_type(const checkpoint *c, const checkpoint_config *config,
                                    openpi_error *error);
/* The axis of a tensor that has one place an action dimension; -1: it has none. */
int checkpoint_action_axis(const char *name);
/* Reads embedding, dims and action_dim off the shapes, then compares every tensor with them: all that are
 * missing are counted, and none may be there that the model does not have. */
openpi_status checkpoint_check_tensors(checkpoint *c, openpi_error *error);

#endif
