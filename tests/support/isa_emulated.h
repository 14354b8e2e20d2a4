/* A level of instructions that this processor lacks, with a part of its kernels in plain C. One file an
 * architecture: isa_emulated_x86.c, isa_emulated_arm.c. */
#ifndef TESTS_ISA_EMULATED_H
#define TESTS_ISA_EMULATED_H

#include "backend/cpu/kernels.h"

/* NULL: nothing emulates the level. `level` may be -1. */
const cpu_kernels *isa_emulated(int level);

#endif
