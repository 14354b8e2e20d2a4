/* Which level of kernels to run: what the processor and the system allow, and what is fast on this
 * vendor's parts.
 *
 * Note: having an instruction is no reason to use it. Measured, per core: vdpbf16ps on Intel (Emerald
 * Rapids) 0.115 TFLOP/s against 0.235 for fp32 FMA; on AMD (Zen 5) 0.47 against 0.236. */
#define _GNU_SOURCE
#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { XCOMP_TILE_DATA = 18, ARCH_REQUEST_XCOMP_PERMISSION = 0x1023 };

/* XCR0 bits: xmm, ymm; opmask, upper zmm, zmm16-31; tile config, tile data. */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };

typedef struct cpuid_bit {
    unsigned leaf, subleaf;
    enum { EBX, ECX, EDX, EAX } word;
    int bit;
} cpuid_bit;

typedef struct level {
    const char *name;
    unsigned state;              /* XCR0 bits that the system must have enabled            */
    int slow_on_intel;           /* slower than the level below on Intel: measured            */
    cpuid_bit bits[6];           /* all needed, beside those of the levels below; leaf 0 ends */
} level;

static const level levels[ISAS] = {
    [ISA_REFERENCE] = {"reference", 0, 0, {{0}}},
    [ISA_AVX2] = {"avx2", STATE_AVX, 0,
                  {{1, 0, ECX, 12} /* fma */, {1, 0, ECX, 29} /* f16c */, {7, 0, EBX, 5} /* avx2 */}},
    [ISA_AVX512] = {"avx512", STATE_AVX512, 0,
                    {{7, 0, EBX, 16} /* f */, {7, 0, EBX, 17} /* dq */, {7, 0, EBX, 30} /* bw */,
                     {7, 0, EBX, 31} /* vl */}},
    [ISA_AVX512_BF16] = {"avx512_bf16", STATE_AVX512, 1, {{7, 1, EAX, 5}}},
    [ISA_AMX] = {"amx", STATE_AMX, 0, {{7, 0, EDX, 24} /* tile */, {7, 0, EDX, 22} /* bf16 */}},
};

static int has_bit(const cpuid_bit *bit) {
    unsigned words[4] = {0};
    if (!__get_cpuid_count(bit->leaf, bit->subleaf, &words[EAX], &words[EBX], &words[ECX], &words[EDX]))
        return 0;
    return (int)(words[bit->word] >> bit->bit & 1);
}

/* The register states that the operating system saves. */
static uint64_t enabled_states(void) {
    static const cpuid_bit osxsave = {1, 0, ECX, 27};
    uint32_t low, high;
    if (!has_bit(&osxsave)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int level_available(const level *level) {
    if ((enabled_states() & level->state) != level->state) return 0;
    for (const cpuid_bit *bit = level->bits; bit->leaf; bit++)
        if (!has_bit(bit)) return 0;
    return 1;
}

const char *cpu_isa_name(cpu_isa isa) { return levels[isa].name; }

int cpu_isa_find(const char *name) {
    for (int i = 0; i < ISAS; i++)
        if (!strcmp(levels[i].name, name)) return i;
    return -1;
}

int cpu_isa_available(cpu_isa isa) {
    for (int i = 0; i <= (int)isa; i++)
        if (!level_available(&levels[i])) return 0;
    /* Linux allows the tile state on request only; threads started afterwards inherit it. */
    if (isa == ISA_AMX) return syscall(SYS_arch_prctl, ARCH_REQUEST_XCOMP_PERMISSION, XCOMP_TILE_DATA) == 0;
    return 1;
}

static int is_intel(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_INTEL_ebx;
}

cpu_isa cpu_isa_choose(cpu_isa cap) {
    for (int i = (int)cap; i > 0; i--) {
        if (i != (int)cap && levels[i].slow_on_intel && is_intel()) continue;
        if (cpu_isa_available((cpu_isa)i)) return (cpu_isa)i;
    }
    return ISA_REFERENCE;
}

void cpu_isa_brand(char brand[49]) {
    unsigned words[13] = {0};
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            break;
    memcpy(brand, words, 49);
    while (*brand == ' ') memmove(brand, brand + 1, 48);
    for (size_t n = strlen(brand); n && brand[n - 1] == ' '; n--) brand[n - 1] = 0;
}
