/* What headers that kernels share with the host need of the C library's <string.h>. */
#ifndef HIP_MACHINE_STRING_H
#define HIP_MACHINE_STRING_H

#include <stddef.h>

#define memcpy __builtin_memcpy

#endif
