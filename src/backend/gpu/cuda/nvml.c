/* Fills the NVML table from the driver's library, where there is one. */
#include "backend/gpu/cuda/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Never unmapped: the driver keeps threads of its own. */
static void *open_library(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

/* POSIX says a symbol's address may be kept in a function pointer; ISO C has no cast for it. */
static int find(void *library, const char *symbol, void *function, size_t bytes) {
    void *address = library ? dlsym(library, symbol) : NULL;
    memcpy(function, &address, bytes);
    return address != NULL;
}

/* The first characters of the address in the process's own counting, which CUDA_VISIBLE_DEVICES may have
 * changed. */
static int cuda_address(int ordinal, char *text, int bytes) {
    int (*init)(unsigned), (*get)(int *, int), (*address)(char *, int, int), device;
    void *library = open_library("libcuda.so.1");
    int found = find(library, "cuInit", &init, sizeof init) &&
                find(library, "cuDeviceGet", &get, sizeof get) &&
                find(library, "cuDeviceGetPCIBusId", &address, sizeof address);
    int fine = found && !init(0) && !get(&device, ordinal) && !address(text, bytes, device);
    if (library) dlclose(library);
    return fine ? 0 : -1;
}

int nvml_open(nvml *nvml, char *why, size_t why_bytes) {
    *nvml = (struct nvml){.cuda_address = cuda_address};
    void *library = open_library("libnvidia-ml.so.1");
    if (!library) {
        snprintf(why, why_bytes, "NVML is not on this machine (libnvidia-ml.so.1 does not open)");
        return -1;
    }
    const char *missing = NULL;
#define X(member, symbol, needed, result, parameters) \
    if (!find(library, symbol, &nvml->member, sizeof nvml->member) && needed) missing = symbol;
    NVML_LIST(X)
#undef X
    dlclose(library);
    if (!missing) return 0;
    snprintf(why, why_bytes, "libnvidia-ml.so.1 is too old: it has no %s", missing);
    return -1;
}
