/* Energy, power and clocks of a device while something runs on it.
 *
 * A GPU is read through NVML (libnvidia-ml.so.1, opened at run time): its counter holds the energy of the
 * whole board since the driver was loaded. A CPU is read through the kernel's RAPL counters, which count
 * packages and their memory.
 *
 * Note: a device without a readable counter is no error. power_open then returns a handle whose facts hold
 * the reason, and power_read returns zeros. */
#ifndef MEASURE_POWER_H
#define MEASURE_POWER_H

#include "backend/gpu/cuda/nvml.h"
#include "openpi.h"

typedef struct power power;

/* Unknown strings are "" and unknown numbers 0. */
typedef struct power_facts {
    char counter[48];            /* "NVML", "RAPL"; "": energy cannot be read, see `reason`               */
    char reason[300];
    char name[96];               /* "NVIDIA H200"                                                         */
    char driver[96];             /* "580.159.04"                                                          */
    char matched[96];            /* how the device was found: "PCI address 0000:19:00.0"                  */
    double limit_w;              /* the board's power limit in force                                      */
    double core_max_mhz, memory_max_mhz;
} power_facts;

/* Unknown numbers are 0. */
typedef struct power_reading {
    double energy_j;             /* since power_open                                                      */
    double watts;                /* the board's current reading (NVML)                                    */
    double core_mhz, memory_mhz; /* now; of a CPU the mean of its processors                              */
    char held[64];               /* what limits the clocks now: "power cap"; "": nothing                  */
} power_reading;

/* `device` as --device takes it: "cpu", "cuda", "cuda:1"; NULL: "cpu". */
openpi_status power_open(const char *device, power **out, openpi_error *error);
void power_close(power *power);

const power_facts *power_get_facts(const power *power);
/* Fails where a counter that could be read no longer can. */
openpi_status power_read(power *power, power_reading *out, openpi_error *error);
/* Only the energy since power_open. A reading takes NVML some milliseconds. */
openpi_status power_energy(power *power, double *joules, openpi_error *error);
/* All but the energy, whose counter is not read: `energy_j` is 0. */
void power_clocks(const power *power, power_reading *out);

/* Tests: `nvml` instead of the machine's, with `nvml_why` where it is NULL; `powercap` instead of
 * /sys/class/powercap. */
openpi_status power_open_with(const char *device, const nvml *nvml, const char *nvml_why,
                              const char *powercap, power **out, openpi_error *error);

#endif
