/* RAPL: the kernel's energy counters of CPU packages and their memory, below /sys/class/powercap. */
#ifndef MEASURE_RAPL_H
#define MEASURE_RAPL_H

#include <stddef.h>
#include <stdint.h>

enum { RAPL_ZONES = 32, RAPL_PATH = 512 };

typedef struct rapl {
    struct rapl_zone {
        char path[RAPL_PATH];    /* of energy_uj                                                          */
        uint64_t range_uj;       /* the value after which the counter restarts at 0                       */
        uint64_t last_uj;
    } zones[RAPL_ZONES];
    int count;
    double energy_j;             /* since rapl_open                                                       */
} rapl;

/* 0, or -1 with the reason in `why`. */
int rapl_open(rapl *rapl, const char *powercap, char *why, size_t why_bytes);
/* Adds the energy since the last reading; a counter may wrap once in between. 0 or -1. */
int rapl_read(rapl *rapl, char *why, size_t why_bytes);

#endif
