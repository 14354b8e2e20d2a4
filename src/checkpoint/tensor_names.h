/* Names in a file of openpi's PyTorch layout, and the prefix that LeRobot's files have before each. */
#ifndef MODEL_TENSOR_NAMES_H
#define MODEL_TENSOR_NAMES_H

#include <string.h>

#define LEROBOT_PREFIX "model."

#define PALIGEMMA "paligemma_with_expert.paligemma."
#define TOWER PALIGEMMA "model.vision_tower.vision_model."
#define LANGUAGE PALIGEMMA "model.language_model."
#define PROJECTOR PALIGEMMA "model.multi_modal_projector.linear"
#define EMBED_TOKENS LANGUAGE "embed_tokens.weight"
#define LM_HEAD PALIGEMMA "lm_head.weight"           /* the embedding once more, where a file has both */
#define GEMMA_EXPERT "paligemma_with_expert.gemma_expert."
#define EXPERT_MODEL GEMMA_EXPERT "model."
#define EXPERT_HEAD GEMMA_EXPERT "lm_head.weight"

enum { VISION_HEAD_DIM = 72 };                       /* SigLIP So400m */

/* The name as openpi's layout has it: without one LEROBOT_PREFIX, where it begins with one. */
static inline const char *without_lerobot_prefix(const char *name) {
    size_t length = sizeof LEROBOT_PREFIX - 1;
    return strncmp(name, LEROBOT_PREFIX, length) ? name : name + length;
}

/* 1: files may hold it, and inference does not need it, whatever stands before its name. The two names of the
 * embedding are not among these: one of them is needed. */
int tensor_is_unused(const char *name);

#endif
