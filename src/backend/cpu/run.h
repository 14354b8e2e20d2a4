/* Runs one op with a level's kernels. */
#ifndef CPU_RUN_H
#define CPU_RUN_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/threads.h"

size_t cpu_op_bytes(const cpu_kernels *kernels, pool *pool, const op *op);
int cpu_op_candidates(const cpu_kernels *kernels, pool *pool, const op *op, candidate *out, int capacity);
void cpu_op_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work);

#endif
