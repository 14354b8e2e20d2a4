/* What an open CPU device is. */
#ifndef CPU_DEVICE_H
#define CPU_DEVICE_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/threads.h"

typedef struct cpu_device {
    device base;
    pool *pool;
    const cpu_kernels *kernels;  /* NULL: the scalar definitions, on canonical layouts                    */
} cpu_device;

#endif
