/* Which kernels make up a level. */
#include "backend/cpu/kernels.h"

static const cpu_kernels levels[ISAS] = {
    [ISA_AVX2] = {.elements = &cpu_elements_avx2,
                  .product = {[0] = {[WEIGHT_F32] = &cpu_f32_f32_avx2, [WEIGHT_BF16] = &cpu_f32_bf16_avx2}}},
    [ISA_AVX512] =
        {.elements = &cpu_elements_avx512,
         .product = {[0] = {[WEIGHT_F32] = &cpu_f32_f32_avx512, [WEIGHT_BF16] = &cpu_f32_bf16_avx512}}},
    [ISA_AVX512_BF16] =
        {.elements = &cpu_elements_avx512,
         .product = {[0] = {[WEIGHT_F32] = &cpu_f32_f32_avx512, [WEIGHT_BF16] = &cpu_f32_bf16_avx512},
                     [1] = {[WEIGHT_BF16] = &cpu_bf16_bf16_avx512bf16}}},
    [ISA_AMX] = {.elements = &cpu_elements_avx512,
                 .product = {[0] = {[WEIGHT_F32] = &cpu_f32_f32_avx512, [WEIGHT_BF16] = &cpu_f32_bf16_avx512},
                             [1] = {[WEIGHT_BF16] = &cpu_bf16_bf16_amx}}},
};

const cpu_kernels *cpu_kernels_of(cpu_isa isa) { return isa == ISA_REFERENCE ? NULL : &levels[isa]; }
