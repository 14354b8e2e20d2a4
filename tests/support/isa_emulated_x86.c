/* Level amx: its kernels over tiles in plain C (tests/ops/amx_emulation.h), between the fp32 kernels of this
 * machine. AVX-512 is not emulated: its kernels use dozens of instructions, AMX is seven, and the lower
 * levels run the same drivers and layouts. */
#include <string.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/levels.h"
#include "isa_emulated.h"

extern const cpu_product cpu_bf16_bf16_amx_emulated, cpu_bf16_int8_amx_emulated, cpu_int8_int8_amx_emulated;

/* The kernels of the highest level up to avx512 that this machine has. */
static const cpu_kernels *around(void) {
    int level = cpu_isa_find("avx512");
    while (level > 0 && !cpu_isa_available(level)) level--;
    return cpu_levels[level].kernels;
}

const cpu_kernels *isa_emulated(int level) {
    static cpu_kernels emulated;
    if (level < 0 || strcmp(cpu_isa_name(level), "amx") != 0 || !around()) return NULL;
    emulated = *around();
    emulated.product[CPU_BF16][WEIGHT_BF16] = &cpu_bf16_bf16_amx_emulated;
    emulated.product[CPU_BF16][WEIGHT_INT8] = &cpu_bf16_int8_amx_emulated;
    emulated.product[CPU_INT8][WEIGHT_INT8_ROW] = &cpu_int8_int8_amx_emulated;
    return &emulated;
}
