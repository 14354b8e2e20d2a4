/* The levels of 64-bit ARM: which instructions each needs, and which kernels it is made of.
 *
 * Note: SVE has no level. Its vectors are 128 bits long on Grace, Thor and Spark, as NEON's are, and a
 * product over whole panels has no use for its predicates. Where they are 256 bits long (Graviton 3) an fp32
 * or bf16 instruction would do twice the work, on half as many units. */
#include "backend/cpu/levels.h"

#include <sys/auxv.h>

#include "backend/cpu/arm/kernels.h"

/* Bits of AT_HWCAP and AT_HWCAP2 (the kernel's HWCAP_…, HWCAP2_…). */
enum { HAS_FP = 1 << 0, HAS_ASIMD = 1 << 1, HAS2_BF16 = 1 << 14 };

static int always(void) { return 1; }

static int has_neon(void) {
    return (getauxval(AT_HWCAP) & (HAS_FP | HAS_ASIMD)) == (HAS_FP | HAS_ASIMD);
}

static int has_bf16(void) { return (getauxval(AT_HWCAP2) & HAS2_BF16) != 0; }

static const cpu_kernels neon = {
    .elements = &cpu_elements_neon,
    .product = {[CPU_F32] = {[WEIGHT_F32] = &cpu_f32_f32_neon, [WEIGHT_BF16] = &cpu_f32_bf16_neon}}};
static const cpu_kernels neon_bf16 = {
    .elements = &cpu_elements_neon,
    .product = {[CPU_F32] = {[WEIGHT_F32] = &cpu_f32_f32_neon, [WEIGHT_BF16] = &cpu_f32_bf16_neon},
                [CPU_BF16] = {[WEIGHT_BF16] = &cpu_bf16_bf16_neonbf16}}};

const cpu_level cpu_levels[] = {
    {"reference", always, NULL, NULL},
    {"neon", has_neon, NULL, &neon},
    {"neon_bf16", has_bf16, NULL, &neon_bf16},
    {0},
};
