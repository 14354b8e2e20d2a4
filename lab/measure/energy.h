/* The energy of a call: the session makes calls back to back for some seconds, and a second thread reads its
 * device's counter at both ends.
 *
 * Note: a counter moves in steps (tens of milliseconds on a GPU), so the window starts and ends when the
 * counter moves. It is a little longer than requested, and starts and ends inside calls. */
#ifndef MEASURE_ENERGY_H
#define MEASURE_ENERGY_H

#include "lab/measure/bench.h"
#include "lab/measure/power.h"

typedef struct energy_report {
    double window_s, energy_j;
    double calls;                /* in the window, with the parts of the first and the last               */
    double core_mhz, memory_mhz; /* mean of the samples, ten a second; 0: unknown                         */
    char held[64];               /* what limited the clocks at the last sample                            */
} energy_report;

/* OPENPI_UNSUPPORTED where the counter does not move. A thread of its own reads `power`; that thread has
 * ended when this returns. */
openpi_status energy_run(openpi_session *session, const bench_workload *workload, power *power,
                         double seconds, energy_report *report, openpi_error *error);

#endif
