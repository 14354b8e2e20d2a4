/* Softmax attention over packed keys and values. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "backend/cpu/kernels.h"
#include "base/threads.h"

/* Bytes of work block; `op` is an image_attention or a cache_attention, `units` queries are worked on at
 * once. */
size_t cpu_attention_bytes(const cpu_kernels *kernels, pool *pool, const op *op, int units);
void cpu_attention_run(const cpu_kernels *kernels, pool *pool, const op *op, int units, void *work);

#endif
