/* Smoothing: channels that a product reads are made alike before its weights become 8 bits. A channel that is
 * large in the rows is divided where it is made, and its column of weights is multiplied by as much:
 *
 *   set       channels                        divided                      multiplied
 *   norm1     of the norm before q, k and v   its weight and bias          columns of q, k, v
 *   norm2     of the norm before the MLP      its weight and bias          columns of gate, up; fc1
 *   hidden    of GeGLU's rows                 rows of up                   columns of down
 *   values    of a head's values              rows of v, and its bias      columns of o
 *
 * Where norms are adaptive, rows of scale and shift are divided. Heads of a Gemma stack share their values,
 * and so do both stacks, since the expert attends to the prefix's. SigLIP's fc2 reads a GELU: it has no set.
 *
 * Factors are powers of two. So nothing is rounded but a norm's weight, 1 + w: the model without 8 bits
 * remains the same function, to the bit where norms have a bias. Operations know nothing of it: weights are
 * multiplied while they are packed.
 *
 * A list of powers has a number for every channel of every set: channel i is divided by 2^powers[i]. */
#ifndef MODEL_SMOOTHING_H
#define MODEL_SMOOTHING_H

#include "model/formats.h"

typedef enum smooth_tower {
    SMOOTH_VISION,
    SMOOTH_PREFIX,
    SMOOTH_EXPERT,
    SMOOTH_TOWERS
} smooth_tower;

typedef enum smooth_set {
    SMOOTH_NORM1,
    SMOOTH_NORM2,
    SMOOTH_HIDDEN,               /* not vision                                                             */
    SMOOTH_VALUES,               /* the expert has the prefix's                                            */
    SMOOTH_SETS
} smooth_set;

enum { SMOOTH_MOST = 12 };       /* the largest power, either way: 1 + w of a gain keeps 13 bits           */

/* Channels of a set; 0: the tower has no such set. */
int smooth_channels(const openpi_dims *dims, smooth_tower tower, smooth_set set);
/* Where a set's first channel is in a list, and how long a list is. */
size_t smooth_at(const openpi_dims *dims, smooth_tower tower, int layer, smooth_set set);
size_t smooth_count(const openpi_dims *dims);
/* 1: a group that is to be smoothed reads it. */
int smooth_asked(const model_types *types, smooth_tower tower, smooth_set set);

/* Powers from the largest magnitudes of a list's channels, in rows and in columns of weights. A channel that
 * is always 0 keeps its size. */
void smooth_powers(const openpi_dims *dims, const float *rows, const float *weights, int8_t *powers);

#endif
