/* Names in a file of openpi's PyTorch layout. LeRobot's have "model." before them (tensors_strip_prefix). */
#ifndef MODEL_TENSOR_NAMES_H
#define MODEL_TENSOR_NAMES_H

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

#endif
