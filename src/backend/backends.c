/* The backends of this build. */
#include "backend/backend.h"

const backend *const backends[] = {&backend_cpu, &backend_cuda, NULL};
