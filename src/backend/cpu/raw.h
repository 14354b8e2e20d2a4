/* Weights that lie row-major in memory, because they are raw or because a level has no product for their
 * format and rows: they are packed, decoded where they have to be, before every product that reads them.
 * Decoded weights are fp32; where rows are integers they are the codes, and gemm.c scales the sums. */
#ifndef CPU_RAW_H
#define CPU_RAW_H

#include "backend/cpu/kernels.h"
#include "base/threads.h"

/* rows[c]: the k elements of the panel's column c, NULL for none. */
void cpu_pack_panel(const cpu_kernels *kernels, const matrix *matrix, const void *const rows[PANEL],
                    char *to);

int cpu_in_rows(const cpu_kernels *kernels, const matrix *matrix);
/* The op's matrices become what its products will see, but for their data. */
void cpu_raw_types(const cpu_kernels *kernels, op *op);

/* Bytes at the beginning of the work block, before the op's own. */
size_t cpu_raw_bytes(const cpu_kernels *kernels, pool *pool, const op *op);
/* Packs the op's row-major matrices into `work` and points them there; returns the rest of the work block. */
void *cpu_raw_pack(const cpu_kernels *kernels, pool *pool, op *op, void *work);

#endif
