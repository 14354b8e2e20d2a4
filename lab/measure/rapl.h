/* RAPL: the kernel's energy counters of CPU packages and their memory, below /sys/class/powercap. */
#ifndef MEASURE_RAPL_H
#define MEASURE_RAPL_H

#include "backend/power_counter.h"

extern const power_counter power_counter_rapl;

/* Tests: its `open` with another folder. */
openpi_status rapl_open(const char *powercap, power_facts *facts, void **state, openpi_error *error);

#endif
