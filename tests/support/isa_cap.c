/* The level of instructions that a run of the tests is held to: OPENPI_TEST_ISA names it, and without it
 * nothing changes here. Linked into every test program, and with the command into openpi_capped, before the
 * library's own choice (the linker's --wrap), for the library itself reads no environment. tools/check-all
 * runs the tests that run a model once a level.
 *
 * "amx" on a processor without it: the kernels of level amx over tiles in plain C
 * (tests/ops/amx_emulation.h). AVX-512 is not emulated: its kernels use dozens of instructions, AMX is six,
 * and the lower levels run the same drivers and layouts. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"

cpu_isa __real_cpu_isa_choose(cpu_isa cap);
cpu_isa __wrap_cpu_isa_choose(cpu_isa cap);
const cpu_kernels *__real_cpu_kernels_of(cpu_isa isa);
const cpu_kernels *__wrap_cpu_kernels_of(cpu_isa isa);
extern const cpu_product cpu_bf16_bf16_amx_emulated;

/* A level that cannot run must not be taken for one that did. */
static cpu_isa level_asked_for(void) {
    const char *name = getenv("OPENPI_TEST_ISA");
    if (!name || !*name) return ISAS;
    int isa = cpu_isa_find(name);
    if (isa < 0 || !(cpu_isa_available((cpu_isa)isa) || isa == ISA_AMX)) {
        fprintf(stderr, "OPENPI_TEST_ISA is %s, which this machine does not have\n", name);
        exit(70);
    }
    return (cpu_isa)isa;
}

cpu_isa __wrap_cpu_isa_choose(cpu_isa cap) {
    cpu_isa level = level_asked_for();
    if (level == ISAS) return __real_cpu_isa_choose(cap);
    if (level < cap) cap = level;
    return cap == ISA_AMX ? ISA_AMX : __real_cpu_isa_choose(cap);
}

/* The fp32 kernels of this machine around emulated tiles. */
const cpu_kernels *__wrap_cpu_kernels_of(cpu_isa isa) {
    static cpu_kernels emulated;
    if (isa != ISA_AMX || cpu_isa_available(ISA_AMX)) return __real_cpu_kernels_of(isa);
    emulated = *__real_cpu_kernels_of(__real_cpu_isa_choose(ISA_AVX512));
    emulated.product[1][WEIGHT_BF16] = &cpu_bf16_bf16_amx_emulated;
    return &emulated;
}
