/* The backends of this build. */
#include "backend/gpu/gpu.h"

/* A GPU vendor is a folder of backend/gpu and one line here. */
#define GPU_VENDOR_LIST(X) X(cuda) X(hip)

#define X(vendor) GPU_BACKEND(vendor);
GPU_VENDOR_LIST(X)
#undef X

const backend *const backends[] = {
    &backend_cpu,
#define X(vendor) &backend_##vendor,
    GPU_VENDOR_LIST(X)
#undef X
        NULL,
};
