/* The instruction cpuid, and the register that says which states the system saves. */
#include "backend/cpu/x86/cpuid.h"

#include <cpuid.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/levels.h"

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

int cpuid_has(const cpuid_bit *bits, unsigned states) {
    if ((enabled_states() & states) != states) return 0;
    for (; bits->leaf; bits++)
        if (!has_bit(bits)) return 0;
    return 1;
}

int cpuid_is_intel(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_INTEL_ebx;
}

void cpu_brand(char brand[49]) {
    unsigned words[13] = {0};
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            break;
    memcpy(brand, words, 49);
    while (*brand == ' ') memmove(brand, brand + 1, 48);
    for (size_t n = strlen(brand); n && brand[n - 1] == ' '; n--) brand[n - 1] = 0;
}
