/* Finds the functions of NVIDIA's driver library, where there is one. */
#include "backend/gpu/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int cuda_library_open(cuda_library *library, char *why, size_t why_bytes) {
    const char *missing = NULL;
    memset(library, 0, sizeof *library);
    /* Never unmapped: the driver keeps threads of its own. */
    library->handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library->handle) {
        snprintf(why, why_bytes, "no NVIDIA driver on this machine (libcuda.so.1 does not open)");
        return -1;
    }
    /* POSIX says a symbol's address may be kept in a function pointer; ISO C has no cast for it. */
#define X(member, symbol, needed, parameters)                                                               \
    {                                                                                                       \
        void *address = dlsym(library->handle, symbol);                                                     \
        memcpy(&library->member, &address, sizeof address);                                                 \
        if (needed && !address) missing = symbol;                                                           \
    }
    CUDA_LIBRARY_LIST(X)
#undef X
    if (!missing) return 0;
    snprintf(why, why_bytes, "the NVIDIA driver is too old: it has no %s (12.4 or newer is needed)", missing);
    dlclose(library->handle);
    return -1;
}
