/* What a call takes of energy: the session runs for some seconds while its device's counter is read.
 *
 * Surprising: a counter moves in steps (tens of milliseconds on a GPU), so the window starts and ends where it moves, and
 * is a little longer than asked for. */
#ifndef MEASURE_ENERGY_H
#define MEASURE_ENERGY_H

#include "measure/bench.h"
#include "measure/power.h"

typedef struct energy_report {
    double window_s, energy_j;
    int calls;                   /* in the window                                                         */
    double core_mhz, memory_mhz; /* mean of the looks, ten a second; 0: not known                         */
    char held[64];               /* what held the clocks down at the last look                            */
} energy_report;

/* OPENPI_UNSUPPORTED where the counter does not move. */
openpi_status energy_run(openpi_session *session, const bench_workload *workload, power *power, double seconds,
                         energy_report *report, openpi_error *error);

#endif
