/* The kernels of 64-bit ARM, a file each for the instructions that it may use. */
#ifndef CPU_ARM_KERNELS_H
#define CPU_ARM_KERNELS_H

#include "backend/cpu/kernels.h"

extern const cpu_elements cpu_elements_neon;
extern const cpu_product cpu_f32_f32_neon, cpu_f32_bf16_neon, cpu_f32_int8_neon;
extern const cpu_product cpu_int8_int8_neon, cpu_int8_int8_neondot;
extern const cpu_product cpu_bf16_bf16_neonbf16, cpu_int8_int8_neonbf16;

#endif
