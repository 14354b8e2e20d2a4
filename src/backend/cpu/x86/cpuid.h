/* What an x86 processor says of itself, and what the system lets a process use of it. */
#ifndef CPU_X86_CPUID_H
#define CPU_X86_CPUID_H

typedef struct cpuid_bit {
    unsigned leaf, subleaf;
    enum { EBX, ECX, EDX, EAX } word;
    int bit;
} cpuid_bit;

/* XCR0 bits: xmm, ymm; opmask, upper zmm, zmm16-31; tile config, tile data. */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };

/* The processor has all these bits, the last followed by one of leaf 0, and the system saves these register
 * states. */
int cpuid_has(const cpuid_bit *bits, unsigned states);

int cpuid_is_intel(void);

#endif
