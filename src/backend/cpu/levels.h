/* What an architecture's folder gives: its levels of instructions and the processor's name. Each architecture
 * has a folder, x86/ or arm/, of which the build takes one (cmake/cpu.cmake). */
#ifndef CPU_LEVELS_H
#define CPU_LEVELS_H

#include "backend/cpu/kernels.h"

typedef struct cpu_level {
    const char *name;                /* "avx512_bf16"                                                      */
    int (*available)(void);          /* the processor has the instructions, besides those of the levels
                                        below, and the system lets this process use them                   */
    int (*slow)(void);               /* slower than the level below on this processor; NULL: on none       */
    const cpu_kernels *kernels;      /* NULL: the scalar definitions                                       */
} cpu_level;

/* In climbing order. The first is "reference" on every architecture; a row without a name ends the list. */
extern const cpu_level cpu_levels[];

/* "AMD EPYC 9R14": the processor's name, at most 48 characters and a NUL; "" where it has none. */
void cpu_brand(char brand[49]);

#endif
