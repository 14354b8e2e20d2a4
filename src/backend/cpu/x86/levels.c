/* The levels of x86-64: which instructions each needs, and which kernels it is made of.
 *
 * Note: having an instruction is no reason to use it. Measured, per core: vdpbf16ps on Intel (Emerald
 * Rapids) 0.115 TFLOP/s against 0.235 for fp32 FMA; on AMD (Zen 5) 0.47 against 0.236. */
#define _GNU_SOURCE
#include "backend/cpu/levels.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/x86/cpuid.h"
#include "backend/cpu/x86/kernels.h"

static int always(void) { return 1; }

static int has_avx2(void) {
    static const cpuid_bit bits[] = {
        {1, 0, ECX, 12} /* fma */, {1, 0, ECX, 29} /* f16c */, {7, 0, EBX, 5} /* avx2 */, {0}};
    return cpuid_has(bits, STATE_AVX);
}

static int has_avx512(void) {
    static const cpuid_bit bits[] = {{7, 0, EBX, 16} /* f */,
                                     {7, 0, EBX, 17} /* dq */,
                                     {7, 0, EBX, 30} /* bw */,
                                     {7, 0, EBX, 31} /* vl */,
                                     {0}};
    return cpuid_has(bits, STATE_AVX512);
}

static int has_avx512_vnni(void) {
    static const cpuid_bit bits[] = {{7, 0, ECX, 11}, {0}};
    return cpuid_has(bits, STATE_AVX512);
}

static int has_avx512_bf16(void) {
    static const cpuid_bit bits[] = {{7, 1, EAX, 5}, {0}};
    return cpuid_has(bits, STATE_AVX512);
}

/* Linux allows the tile state on request only; threads started afterwards inherit it. */
static int has_amx(void) {
    enum { XCOMP_TILE_DATA = 18, ARCH_REQUEST_XCOMP_PERMISSION = 0x1023 };
    static const cpuid_bit bits[] = {{7, 0, EDX, 24} /* tile */, {7, 0, EDX, 22} /* bf16 */,
                                     {7, 0, EDX, 25} /* int8 */, {0}};
    return cpuid_has(bits, STATE_AMX) &&
           syscall(SYS_arch_prctl, ARCH_REQUEST_XCOMP_PERMISSION, XCOMP_TILE_DATA) == 0;
}

static const cpu_kernels avx2 = {
    .elements = &cpu_elements_avx2,
    .product = {[CPU_F32] = {[WEIGHT_F32] = &cpu_f32_f32_avx2, [WEIGHT_BF16] = &cpu_f32_bf16_avx2,
                             [WEIGHT_INT8] = &cpu_f32_int8_avx2},
                [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_avx2}}};
/* Rows of fp32 from level avx512 up. */
#define FLOATS_AVX512 \
    [CPU_F32] = {[WEIGHT_F32] = &cpu_f32_f32_avx512, [WEIGHT_BF16] = &cpu_f32_bf16_avx512, \
                 [WEIGHT_INT8] = &cpu_f32_int8_avx512}

static const cpu_kernels avx512 = {
    .elements = &cpu_elements_avx512,
    .product = {FLOATS_AVX512, [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_avx512}}};
static const cpu_kernels avx512_vnni = {
    .elements = &cpu_elements_avx512,
    .product = {FLOATS_AVX512, [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_avx512vnni}}};
static const cpu_kernels avx512_bf16 = {
    .elements = &cpu_elements_avx512,
    .product = {FLOATS_AVX512,
                [CPU_BF16] = {[WEIGHT_BF16] = &cpu_bf16_bf16_avx512bf16},
                [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_avx512vnni}}};
static const cpu_kernels amx = {
    .elements = &cpu_elements_avx512,
    .product = {FLOATS_AVX512,
                [CPU_BF16] = {[WEIGHT_BF16] = &cpu_bf16_bf16_amx, [WEIGHT_INT8] = &cpu_bf16_int8_amx},
                [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_amx}}};

const cpu_level cpu_levels[] = {
    {"reference", always, NULL, NULL},
    {"avx2", has_avx2, NULL, &avx2},
    {"avx512", has_avx512, NULL, &avx512},
    {"avx512_vnni", has_avx512_vnni, NULL, &avx512_vnni},
    {"avx512_bf16", has_avx512_bf16, cpuid_is_intel, &avx512_bf16},
    {"amx", has_amx, NULL, &amx},
    {0},
};
