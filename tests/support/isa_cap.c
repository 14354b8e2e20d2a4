/* The level of instructions that a run of the tests is held to: OPENPI_TEST_ISA names it, and without it
 * nothing changes here. Linked into every test program, and with the command into openpi_capped, before the
 * library's own choice (the linker's --wrap), for the library itself reads no environment. tools/check-all
 * runs the tests that run a model once a level.
 *
 * A level that this processor lacks runs where something emulates it (isa_emulated.h). */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/isa.h"
#include "isa_emulated.h"

int __real_cpu_isa_choose(int cap);
int __wrap_cpu_isa_choose(int cap);
const cpu_kernels *__real_cpu_kernels_of(int level);
const cpu_kernels *__wrap_cpu_kernels_of(int level);

/* The level asked for, -1: none is. A level that cannot run must not be taken for one that did. */
static int level_asked_for(void) {
    const char *name = getenv("OPENPI_TEST_ISA");
    if (!name || !*name) return -1;
    int level = cpu_isa_find(name);
    if (level < 0 || !(cpu_isa_available(level) || isa_emulated(level))) {
        fprintf(stderr, "OPENPI_TEST_ISA is %s, which this machine does not have\n", name);
        exit(70);
    }
    return level;
}

int __wrap_cpu_isa_choose(int cap) {
    int level = level_asked_for();
    if (level < 0) return __real_cpu_isa_choose(cap);
    if (level < cap) cap = level;
    return isa_emulated(cap) ? cap : __real_cpu_isa_choose(cap);
}

/* Emulated where the processor cannot. */
const cpu_kernels *__wrap_cpu_kernels_of(int level) {
    return cpu_isa_available(level) ? __real_cpu_kernels_of(level) : isa_emulated(level);
}
