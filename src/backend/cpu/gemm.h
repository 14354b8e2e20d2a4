/* Rows times packed weights, whatever is done to the rows before and to the result after. */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "backend/cpu/blocking.h"
#include "backend/cpu/kernels.h"
#include "base/threads.h"

typedef struct cpu_gemm {
    const cpu_kernels *kernels;
    pool *pool;
    int rows;                    /* in use; while measuring, the most there can be                         */
    const matrix *weight;
    /* A: rows of x, k elements each, normalised and rounded to type; or the patches of pictures. */
    const void *x;
    dtype type;
    norm norm;
    const row_set *set;          /* the op's rows: some may have a modulation of their own                */
    int group, stride, offset;   /* x row of r: r / group · stride + offset + r % group; group 0: r        */
    const op_patch_embed *patches;         /* not NULL: x, norm are not used                               */
    cpu_finisher finisher;
    cpu_finish finish;
    cpu_blocking blocking;
} cpu_gemm;

/* 1 where gemm->rows are so few that panels pass as a stream. */
int cpu_gemm_streams(const cpu_gemm *gemm);

/* Bytes of work block, for any number of rows up to gemm->rows. */
size_t cpu_gemm_bytes(const cpu_gemm *gemm);
void cpu_gemm_run(const cpu_gemm *gemm, void *work);

#endif
