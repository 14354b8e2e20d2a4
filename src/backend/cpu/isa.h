/* What this processor can run. */
#ifndef CPU_ISA_H
#define CPU_ISA_H

/* In climbing order. */
typedef enum cpu_isa { ISA_REFERENCE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX, ISAS } cpu_isa;

/* "avx512_bf16" */
const char *cpu_isa_name(cpu_isa isa);

/* By name; -1 if there is none such. */
int cpu_isa_find(const char *name);

/* The processor has the instructions and the system lets this process use them (asks for the AMX state). */
int cpu_isa_available(cpu_isa isa);

/* The fastest available level not above `cap`. A level that is slower than the one below on this vendor's
 * processors is taken only where it is the cap itself. */
cpu_isa cpu_isa_choose(cpu_isa cap);

/* "AMD EPYC 9R14": the processor's brand string, at most 48 characters and a NUL. */
void cpu_isa_brand(char brand[49]);

#endif
