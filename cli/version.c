/* openpi --version: one line, whose second word is the version alone. */
#include <stdio.h>

#include "cli.h"
#include "head.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* cmake's: OPENPI_CPU_KERNELS "avx2 to amx", OPENPI_GPU_KERNELS "CUDA 12.8 for 80 86 90a, AMD none". */
void version_show(void) {
    printf("openpi %s (revision %s; %s; kernels: CPU %s, %s)\n", openpi_version(), openpi_revision, COMPILER,
           OPENPI_CPU_KERNELS, OPENPI_GPU_KERNELS);
}
