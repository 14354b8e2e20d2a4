/* The levels of 64-bit ARM: which instructions each needs, and which kernels it is made of.
 *
 * Note: SVE has no level. Its vectors are 128 bits long on Grace, Thor and Spark, as NEON's are, and a
 * product over whole panels has no use for its predicates. Where they are 256 bits long (Graviton 3) an fp32
 * or bf16 instruction would do twice the work, on half as many units. */
#include "backend/cpu/levels.h"

#include <sys/auxv.h>

#include "backend/cpu/arm/kernels.h"

/* Bits of AT_HWCAP and AT_HWCAP2 (the kernel's HWCAP_…, HWCAP2_…). */
enum { HAS_FP = 1 << 0, HAS_ASIMD = 1 << 1, HAS_DOTPROD = 1 << 20, HAS2_I8MM = 1 << 13, HAS2_BF16 = 1 << 14 };

static int has(unsigned long entry, unsigned long bits) { return (getauxval(entry) & bits) == bits; }

static int always(void) { return 1; }

static int has_neon(void) { return has(AT_HWCAP, HAS_FP | HAS_ASIMD); }

static int has_dot(void) { return has(AT_HWCAP, HAS_DOTPROD); }

/* Armv8.6 has both, and so has every processor with one of them that is known. */
static int has_bf16(void) { return has(AT_HWCAP2, HAS2_BF16 | HAS2_I8MM); }

/* Rows of fp32 at every level. */
#define FLOATS                                                                                     \
    [CPU_F32] = {[WEIGHT_F32] = &cpu_f32_f32_neon, [WEIGHT_BF16] = &cpu_f32_bf16_neon,             \
                 [WEIGHT_INT8] = &cpu_f32_int8_neon}

static const cpu_kernels neon = {
    .elements = &cpu_elements_neon,
    .product = {FLOATS, [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_neon}}};
static const cpu_kernels neon_dot = {
    .elements = &cpu_elements_neon,
    .product = {FLOATS, [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_neondot}}};
static const cpu_kernels neon_bf16 = {
    .elements = &cpu_elements_neon,
    .product = {FLOATS,
                [CPU_BF16] = {[WEIGHT_BF16] = &cpu_bf16_bf16_neonbf16},
                [CPU_INT8] = {[WEIGHT_INT8_ROW] = &cpu_int8_int8_neonbf16}}};

const cpu_level cpu_levels[] = {
    {"reference", always, NULL, NULL},
    {"neon", has_neon, NULL, &neon},
    {"neon_dot", has_dot, NULL, &neon_dot},
    {"neon_bf16", has_bf16, NULL, &neon_bf16},
    {0},
};
