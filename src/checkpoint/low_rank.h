/* A change of low rank to rows of a matrix, of LoRA in a JAX checkpoint and of a PEFT adapter alike. */
#ifndef CHECKPOINT_LOW_RANK_H
#define CHECKPOINT_LOW_RANK_H

#include <stdint.h>

/* Columns at once: b's stay in the first cache. */
enum { LOW_RANK_BLOCK = 256 };

/* to[count] += factor · a[rank] · b[rank][count] in fp32, where b's rows are `columns` apart. */
void low_rank_add(const float *a, const float *b, int64_t rank, int64_t columns, float factor, int64_t count,
                  float *to);

#endif
