/* π0's action_in_proj and the action half of action_time_mlp_in as one matrix: nothing non-linear is between
 * them. With W_in and b_in of action_time_mlp_in, A and b_A of action_in_proj:
 *   weight = W_in[:, :w]·A
 *   bias   = b_in + W_in[:, :w]·b_A
 * Summed in double, rounded once. */
#ifndef MODEL_MERGED_H
#define MODEL_MERGED_H

#include "base/threads.h"
#include "checkpoint/tensors.h"

typedef struct merged {
    float *weight, *bias;                  /* [width][32] [width]                                          */
    void *block;
} merged;

/* What it is made of: W_in, b_in, A and b_A. */
enum { MERGED_PARTS = 4 };
extern const char *const merged_names[MERGED_PARTS];
/* After a failure there is nothing to free. */
openpi_status merged_make(const tensor *const parts[MERGED_PARTS], int width, pool *pool, merged *out,
                          openpi_error *error);
void merged_free(merged *merged);

#endif
