/* LoRA factors under openpi's own names, as its JAX arrays hold them, stacked over the layers:
 * "PaliGemma.llm.layers.attn.q_einsum.lora_a" and "….lora_b" ("/" may stand for "."). W [..., rows, columns]
 * becomes W + a·b, with a [..., rows, rank] and b [..., rank, columns] (MODEL.md, "LoRA in a JAX
 * checkpoint"). */
#ifndef CHECKPOINT_GEMMA_FACTORS_H
#define CHECKPOINT_GEMMA_FACTORS_H

#include "checkpoint/tensors.h"

enum { FACTOR_A, FACTOR_B, FACTOR_NAME = 256 };

/* Whose factor a name is. */
typedef struct gemma_factor {
    const struct gemma_rule *rule;         /* NULL: it is no factor's name                                  */
    int expert, which;                     /* expert: else the language model; which: FACTOR_A or _B        */
} gemma_factor;

gemma_factor gemma_factor_of(const char *name);
/* Tensors that a layer of the array becomes: 2 of keys and values, and of gate and up. */
int gemma_factor_parts(const gemma_factor *factor);
/* "….layers.3.self_attn.q_proj.weight" */
void gemma_factor_target(const gemma_factor *factor, int layer, int part, char target[FACTOR_NAME]);
/* The shape is that of a model of these sizes; *rank is the factor's own. */
openpi_status gemma_factor_check(const gemma_factor *factor, const tensor *t, const openpi_dims *dims,
                                 int *rank, openpi_error *error);

/* A layer's factors as a pair of peft's: W [out][in] + B·A, where each run of `rows` rows has an A of its
 * own. */
typedef struct gemma_pair {
    float *a, *b;                          /* malloc: [out / rows][rank][in], [out][rank]                   */
    int64_t rows;
} gemma_pair;
/* `factor`: of either; both were checked. Numbers are as they are stored. */
openpi_status gemma_factor_pair(const gemma_factor *factor, const openpi_dims *dims, const tensor *a,
                                const tensor *b, int layer, int part, gemma_pair *pair, openpi_error *error);

#endif
