/* Fills the NVML table from the driver's library, where there is one. */
#include "backend/gpu/cuda/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/dynamic.h"

static void *open_library(const char *name) {
    return dynamic_open((const char *const[]){name, NULL}, NULL);
}

/* The first characters of the address in the process's own counting, which CUDA_VISIBLE_DEVICES may have
 * changed. */
static int cuda_address(int ordinal, char *text, int bytes) {
    int (*init)(unsigned), (*get)(int *, int), (*address)(char *, int, int), device;
    void *library = open_library("libcuda.so.1");
    int found = dynamic_find(library, "cuInit", &init, sizeof init) &&
                dynamic_find(library, "cuDeviceGet", &get, sizeof get) &&
                dynamic_find(library, "cuDeviceGetPCIBusId", &address, sizeof address);
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
    if (!dynamic_find(library, symbol, &nvml->member, sizeof nvml->member) && needed) missing = symbol;
    NVML_LIST(X)
#undef X
    dlclose(library);
    if (!missing) return 0;
    snprintf(why, why_bytes, "libnvidia-ml.so.1 is too old: it has no %s", missing);
    return -1;
}
