/* Weights that stay row-major in memory are packed before every product that reads them. */
#ifndef CPU_RAW_H
#define CPU_RAW_H

#include "backend/cpu/kernels.h"
#include "base/threads.h"

/* rows[c]: the k elements of the panel's column c, NULL for none. */
void cpu_pack_panel(const cpu_kernels *kernels, const matrix *matrix, const void *const rows[PANEL],
                    char *to);

/* Bytes at the beginning of the work block, before the op's own. */
size_t cpu_raw_bytes(const op *op);
/* Packs the op's raw matrices into `work` and points them there; returns the rest of the work block. */
void *cpu_raw_pack(const cpu_kernels *kernels, pool *pool, op *op, void *work);

#endif
