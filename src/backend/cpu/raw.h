/* Weights that stay row-major in memory are packed in front of every product that reads them. */
#ifndef CPU_RAW_H
#define CPU_RAW_H

#include "backend/cpu/kernels.h"
#include "base/threads.h"

/* rows[c]: the k elements of the panel's column c, NULL for none. */
void cpu_pack_panel(const cpu_kernels *kernels, const matrix *matrix, const void *const rows[PANEL], char *to);

/* Bytes of work block in front of the op's own. */
size_t cpu_raw_bytes(const op *op);
/* Packs the op's raw matrices into `work` and points them there; returns the work block behind. */
void *cpu_raw_pack(const cpu_kernels *kernels, pool *pool, op *op, void *work);

#endif
