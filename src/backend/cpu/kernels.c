/* Which kernels make up a level. */
#include "backend/cpu/kernels.h"

static const cpu_kernels levels[ISAS] = {
    [ISA_AVX2] = {&cpu_elements_avx2, {{&cpu_f32_f32_avx2, &cpu_f32_bf16_avx2}, {NULL, NULL}}},
    [ISA_AVX512] = {&cpu_elements_avx512, {{&cpu_f32_f32_avx512, &cpu_f32_bf16_avx512}, {NULL, NULL}}},
    [ISA_AVX512_BF16] = {&cpu_elements_avx512, {{&cpu_f32_f32_avx512, &cpu_f32_bf16_avx512}, {NULL, &cpu_bf16_bf16_avx512bf16}}},
    [ISA_AMX] = {&cpu_elements_avx512, {{&cpu_f32_f32_avx512, &cpu_f32_bf16_avx512}, {NULL, &cpu_bf16_bf16_amx}}},
};

const cpu_kernels *cpu_kernels_of(cpu_isa isa) { return isa == ISA_REFERENCE ? NULL : &levels[isa]; }
