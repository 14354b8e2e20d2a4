/* The functions of NVML in use, a table that nvml_open fills from libnvidia-ml.so.1. Every function
 * but `error_text` returns 0 or NVML's error number. A test fills a table of its own. */
#ifndef BACKEND_GPU_CUDA_NVML_H
#define BACKEND_GPU_CUDA_NVML_H

#include <stddef.h>

/* X(member, symbol, needed, result, parameters) */
#define NVML_LIST(X)                                                                                         \
    X(init, "nvmlInit_v2", 1, int, (void))                                                                   \
    X(shutdown, "nvmlShutdown", 1, int, (void))                                                              \
    X(error_text, "nvmlErrorString", 1, const char *, (int error))                                           \
    X(by_address, "nvmlDeviceGetHandleByPciBusId_v2", 1, int, (const char *address, void **device))          \
    X(by_index, "nvmlDeviceGetHandleByIndex_v2", 1, int, (unsigned index, void **device))                    \
    X(driver_version, "nvmlSystemGetDriverVersion", 1, int, (char *text, unsigned bytes))                    \
    X(device_name, "nvmlDeviceGetName", 1, int, (void *device, char *text, unsigned bytes))                  \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", 1, int,                                                 \
      (void *device, unsigned long long *millijoules))                                                       \
    X(power, "nvmlDeviceGetPowerUsage", 1, int, (void *device, unsigned *milliwatts))                        \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", 0, int, (void *device, unsigned *milliwatts))          \
    X(clock, "nvmlDeviceGetClockInfo", 1, int, (void *device, int which, unsigned *mhz))                     \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", 0, int, (void *device, int which, unsigned *mhz))              \
    X(held, "nvmlDeviceGetCurrentClocksThrottleReasons", 0, int, (void *device, unsigned long long *reasons))

enum { NVML_CLOCK_CORE = 1, NVML_CLOCK_MEMORY = 2 };

typedef struct nvml {
#define X(member, symbol, needed, result, parameters) result (*member) parameters;
    NVML_LIST(X)
#undef X
    /* PCI address of the N-th CUDA device, "0000:19:00.0": CUDA and NVML count in different orders. From
     * libcuda.so.1; 0 or -1. */
    int (*cuda_address)(int ordinal, char *text, int bytes);
} nvml;

/* Fills the table; 0, or -1 with the reason in `why` (at least 200 bytes). */
int nvml_open(nvml *nvml, char *why, size_t why_bytes);

#endif
