/* Which level of kernels runs: a level is its place in the architecture's list (levels.h). */
#ifndef CPU_ISA_H
#define CPU_ISA_H

#include <stddef.h>

struct cpu_kernels;

/* How many levels there are; the highest is this - 1. */
int cpu_isa_count(void);

/* "avx512_bf16" */
const char *cpu_isa_name(int level);

/* By name; -1 if this architecture has none such. */
int cpu_isa_find(const char *name);

/* All names for a sentence: "reference, avx2 or avx512". */
void cpu_isa_names(char *text, size_t size);

/* The processor has the instructions and the system lets this process use them (asks for AMX's state). */
int cpu_isa_available(int level);

/* The fastest available level not above `cap`. A level that is slower than the one below on this processor
 * is taken only where it is the cap itself. */
int cpu_isa_choose(int cap);

/* NULL for the reference, which has no kernels. */
const struct cpu_kernels *cpu_kernels_of(int level);

#endif
