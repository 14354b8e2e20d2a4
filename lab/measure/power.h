/* Energy, power and clocks of a device while something runs on it.
 *
 * Note: a device without a readable counter is no error. power_open then returns a handle whose facts hold
 * the reason, and power_read returns zeros. */
#ifndef MEASURE_POWER_H
#define MEASURE_POWER_H

#include "backend/power_counter.h"

typedef struct power power;

/* The counters of this build, NULL-terminated. */
extern const power_counter *const power_counters[];

/* `device` as --device takes it: "cpu", "VENDOR", "VENDOR:1"; NULL: "cpu". */
openpi_status power_open(const char *device, power **out, openpi_error *error);
void power_close(power *power);

const power_facts *power_get_facts(const power *power);
/* Fails where a counter that could be read no longer can. */
openpi_status power_read(power *power, power_reading *out, openpi_error *error);
/* Only the energy since power_open. A reading may take some milliseconds. */
openpi_status power_energy(power *power, double *joules, openpi_error *error);
/* All but the energy, whose counter is not read: `energy_j` is 0. */
void power_clocks(const power *power, power_reading *out);

/* Tests: with these counters, NULL-terminated, instead of the build's. They outlive the handle. */
openpi_status power_open_with(const char *device, const power_counter *const *counters, power **out,
                              openpi_error *error);

#endif
