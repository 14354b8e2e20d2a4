/* The backends of a program that is linked with this file: it stands in for src/backend/backends.c. */
#include "backend/gpu/gpu.h"

GPU_BACKEND(host);

const backend *const backends[] = {&backend_cpu, &backend_host, NULL};
