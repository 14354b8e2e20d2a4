/* Finds the functions of AMD's HIP runtime, where there is one. */
#include "backend/gpu/hip/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/dynamic.h"

int hip_library_open(hip_library *library, char *why, size_t why_bytes) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", NULL};
    const char *missing = NULL, *name = NULL;
    memset(library, 0, sizeof *library);
    library->handle = dynamic_open(names, &name);
    if (!library->handle) {
        snprintf(why, why_bytes,
                 "no AMD runtime on this machine (none of libamdhip64.so.7, .so.6, .so opens)");
        return -1;
    }
#define X(member, symbol, type, parameters)                                                                 \
    if (!dynamic_find(library->handle, #symbol, &library->member, sizeof library->member)) missing = #symbol;
    HIP_LIBRARY_LIST(X)
#undef X
    if (!missing) return 0;
    snprintf(why, why_bytes, "the AMD runtime %s is too old: it has no %s (ROCm 6.0 or newer is needed)",
             name, missing);
    dlclose(library->handle);
    return -1;
}
