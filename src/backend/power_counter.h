/* A counter of the energy, power and clocks of a device. The instruments read it (lab/measure/power.h); the
 * library does not contain it.
 *
 * A vendor of GPUs whose boards have a counter fills in a table, in counter.c of its folder, and is a line in
 * lab/measure/power_counters.c. */
#ifndef BACKEND_POWER_COUNTER_H
#define BACKEND_POWER_COUNTER_H

#include "openpi.h"

/* Unknown strings are "" and unknown numbers 0. */
typedef struct power_facts {
    char counter[48];            /* "RAPL"; "": energy cannot be read, see `reason`                       */
    char reason[300];
    char name[96];               /* name of the board                                                     */
    char driver[96];             /* "580.159.04"                                                          */
    char matched[96];            /* how the device was found: "PCI address 0000:19:00.0"                  */
    double limit_w;              /* the board's power limit in force                                      */
    double core_max_mhz, memory_max_mhz;
    char mode[96];               /* the board's power mode: "MAXN, nvpmodel 0"                            */
    char advice[200];            /* what holds figures back that its owner can change                     */
} power_facts;

/* Unknown numbers are 0. */
typedef struct power_reading {
    double energy_j;             /* since the counter was opened                                          */
    double watts;                /* the board's current reading                                           */
    double core_mhz, memory_mhz; /* now; of a CPU the mean of its processors                              */
    char held[64];               /* what limits the clocks now: "power cap"; "": nothing                  */
} power_reading;

typedef struct power_counter {
    const char *name;            /* in reports: "RAPL"                                                    */

    /* 1: it is the counter of this device, written as --device takes it. */
    int (*serves)(const char *device);
    /* A device whose energy cannot be read is no error: `facts->reason` then says why. Fills in the other
     * facts that are known, but not `counter`. `*state` may stay NULL: then there is nothing to sample or to
     * close. */
    openpi_status (*open)(const char *device, power_facts *facts, void **state, openpi_error *error);
    void (*close)(void *state);
    /* Joules since open. Called only where open gave no reason. */
    openpi_status (*energy)(void *state, double *joules, openpi_error *error);
    /* Everything but the energy, also where that cannot be read. `out` is zero on entry. */
    void (*sample)(const void *state, power_reading *out);
} power_counter;

#endif
