/* Fills the driver table from NVIDIA's libcuda.so.1, where there is one. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/gpu/driver.h"

int gpu_driver_open_cuda(gpu_driver *driver, char *why, size_t why_bytes) {
    memset(driver, 0, sizeof *driver);
    /* Never unmapped: the driver keeps threads of its own. */
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!driver->library) {
        snprintf(why, why_bytes, "no NVIDIA driver on this machine (libcuda.so.1 does not open)");
        return -1;
    }
    /* POSIX says a symbol's address may be kept in a function pointer; ISO C has no cast for it. */
#define X(member, symbol, needed, parameters)                                                        \
    {                                                                                                \
        void *address = dlsym(driver->library, symbol);                                              \
        memcpy(&driver->member, &address, sizeof address);                                           \
        if (needed && !address) {                                                                    \
            snprintf(why, why_bytes, "the NVIDIA driver is too old: it has no %s (12.4 or newer is needed)", symbol); \
            gpu_driver_close(driver);                                                                \
            return -1;                                                                               \
        }                                                                                            \
    }
    GPU_DRIVER_LIST(X)
#undef X
    return 0;
}

void gpu_driver_close(gpu_driver *driver) {
    if (driver->library) dlclose(driver->library);
    driver->library = NULL;
}
