/* The arrays of openpi's JAX checkpoints and the tensors that they become (MODEL.md, "Tensors in a JAX
 * checkpoint"). */
#ifndef MODEL_ORBAX_NAMES_H
#define MODEL_ORBAX_NAMES_H

/* What an array's axes are:
 *   L  the layer: one tensor each                     1  an axis of 1
 *   p  the tensor, of the two that the array holds    i  inputs
 *   b  outputs that stand before i                    c  inputs before s
 *   o  outputs                                        s  places of a patch
 * The tensor is [b·o][i], or [o][c][s] of a patch; without inputs as the array has it. */
typedef struct array_rule {
    const char *array, *axes, *tensors[2];
} array_rule;

enum { MOST_ARRAYS = 64 };       /* most arrays of a checkpoint, without LoRA's */

/* NULL: no array of π0 or π0.5 has this name. */
const array_rule *array_rule_find(const char *array);
/* 1: of the vision tower. */
int array_rule_vision(const array_rule *rule);
/* 1: too large to be in memory as a whole (the embedding table). */
int array_rule_sequential(const array_rule *rule);

/* The vision tower's array that has an axis of heads. */
extern const char array_vision_heads[];

#endif
