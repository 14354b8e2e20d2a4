/* openpi --version: one line, whose second word is the version alone. */
#include <stdio.h>

#include "cli.h"
#include "head.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* OPENPI_GPU_KERNELS is cmake's: "CUDA 12.8 for 80 86 90a, AMD none". */
void version_show(void) {
    printf("openpi %s (revision %s; %s; kernels: CPU avx2 to amx, %s)\n", openpi_version(), openpi_revision,
           COMPILER, OPENPI_GPU_KERNELS);
}
