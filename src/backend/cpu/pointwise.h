/* Ops without a product: norm, activate, add, rope_cache, softmax, guide. */
#ifndef CPU_POINTWISE_H
#define CPU_POINTWISE_H

#include "backend/cpu/kernels.h"
#include "base/threads.h"

int cpu_is_pointwise(op_kind kind);
size_t cpu_pointwise_bytes(pool *pool, const op *op);
void cpu_pointwise_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work);

#endif
