/* Finds the functions of NVIDIA's driver library, where there is one. */
#include "backend/gpu/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/dynamic.h"

int cuda_compiler_for(const cuda_library *library, int driver_version) {
    const int *versions = library->compilers ? library->compilers : cuda_compilers;
    for (int i = 0; i < CUDA_COMPILERS; i++)
        if (versions[i] && versions[i] / 1000 <= driver_version / 1000) return i;
    return -1;
}

int cuda_library_open(cuda_library *library, char *why, size_t why_bytes) {
    static const char *const names[] = {"libcuda.so.1", NULL};
    const char *missing = NULL;
    memset(library, 0, sizeof *library);
    library->handle = dynamic_open(names, NULL);
    if (!library->handle) {
        snprintf(why, why_bytes, "no NVIDIA driver on this machine (libcuda.so.1 does not open)");
        return -1;
    }
#define X(member, symbol, needed, parameters)                                                               \
    if (!dynamic_find(library->handle, symbol, &library->member, sizeof library->member) && needed)         \
        missing = symbol;
    CUDA_LIBRARY_LIST(X)
#undef X
    if (!missing) return 0;
    snprintf(why, why_bytes, "the NVIDIA driver is too old: it has no %s (12.4 or newer is needed)", missing);
    dlclose(library->handle);
    return -1;
}
