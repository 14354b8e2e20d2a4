/* The kernels of x86-64, a file each for the instructions that it may use. */
#ifndef CPU_X86_KERNELS_H
#define CPU_X86_KERNELS_H

#include "backend/cpu/kernels.h"

extern const cpu_elements cpu_elements_avx2, cpu_elements_avx512;
extern const cpu_product cpu_f32_f32_avx2, cpu_f32_bf16_avx2, cpu_f32_int8_avx2;
extern const cpu_product cpu_f32_f32_avx512, cpu_f32_bf16_avx512, cpu_f32_int8_avx512;
extern const cpu_product cpu_int8_int8_avx2, cpu_int8_int8_avx512, cpu_int8_int8_avx512vnni;
extern const cpu_product cpu_bf16_bf16_avx512bf16, cpu_bf16_bf16_amx, cpu_bf16_int8_amx, cpu_int8_int8_amx;

#endif
