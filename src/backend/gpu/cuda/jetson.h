/* A Jetson's power and clocks, below /sys: the INA3221 monitors of its rails and the GPU's devfreq clock. Its
 * NVML has neither (Orin), or the clock alone (Thor).
 *
 * The monitors tell volts and amperes now, not joules. A thread reads them while the counter is open and adds
 * watts times the time between readings. */
#ifndef BACKEND_GPU_CUDA_JETSON_H
#define BACKEND_GPU_CUDA_JETSON_H

#include "backend/power_counter.h"

extern const power_counter power_counter_jetson;

/* Tests: its `serves` and `open` with another folder in place of "", the root of all files. */
int jetson_serves(const char *root, const char *device);
openpi_status jetson_open(const char *root, power_facts *facts, void **state, openpi_error *error);

#endif
