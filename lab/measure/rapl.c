/* Counters of packages, and of memory, which no package includes. "core" and "uncore" are part of a package,
 * "psys" contains it, so they are not added.
 *
 * Note: since 2020 only root may read them, unless the administrator allows others. */
#include "lab/measure/rapl.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"

enum { RAPL_ZONES = 32, RAPL_PATH = 512 };

typedef struct rapl {
    struct rapl_zone {
        char path[RAPL_PATH];    /* path to energy_uj                                                     */
        uint64_t range_uj;       /* the value after which the counter restarts at 0                       */
        uint64_t last_uj;
    } zones[RAPL_ZONES];
    int count;
    double energy_j;             /* since rapl_open                                                       */
} rapl;

static int read_text(const char *path, char *text, int bytes) {
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    int fine = fgets(text, bytes, file) != NULL;
    if (!fine && !errno) errno = EIO;
    fclose(file);
    text[fine ? strcspn(text, "\n") : 0] = 0;
    return fine ? 0 : -1;
}

static int read_number(const char *path, uint64_t *number) {
    char text[64];
    return read_text(path, text, sizeof text) || sscanf(text, "%" SCNu64, number) != 1 ? -1 : 0;
}

/* 1: added, 0: not a counter to add, -1: cannot be read. */
static int add_zone(rapl *rapl, const char *folder, const char *name, char *why, size_t why_bytes) {
    char path[RAPL_PATH], what[64];
    if (strncmp(name, "intel-rapl:", 11)) return 0;            /* AMD's processors have this name too */
    if (snprintf(path, sizeof path, "%s/%s/name", folder, name) >= (int)sizeof path) return 0;
    if (read_text(path, what, sizeof what) || (strncmp(what, "package", 7) && strcmp(what, "dram"))) return 0;
    struct rapl_zone *zone = &rapl->zones[rapl->count];
    if (rapl->count == RAPL_ZONES) return 0;
    if (snprintf(path, sizeof path, "%s/%s/max_energy_range_uj", folder, name) >= (int)sizeof path) return 0;
    if (read_number(path, &zone->range_uj)) zone->range_uj = 0;
    if (snprintf(zone->path, sizeof zone->path, "%s/%s/energy_uj", folder, name) >= (int)sizeof zone->path)
        return 0;
    errno = 0;
    if (read_number(zone->path, &zone->last_uj)) {
        snprintf(why, why_bytes, "%.200s: %s", zone->path, errno ? ascii_errno(errno) : "not a number");
        return -1;
    }
    rapl->count++;
    return 1;
}

/* 0, or -1 with the reason in `why`. */
static int find_zones(rapl *rapl, const char *powercap, char *why, size_t why_bytes) {
    int bad = 0;
    DIR *folder = opendir(powercap);
    for (struct dirent *entry; folder && !bad && (entry = readdir(folder)) != NULL;)
        bad = add_zone(rapl, powercap, entry->d_name, why, why_bytes) < 0;
    if (folder) closedir(folder);
    if (bad) return -1;
    if (rapl->count) return 0;
    snprintf(why, why_bytes, "no RAPL counter below %.200s", powercap);
    return -1;
}

/* The mean of the kernel's figures for each processor. */
static double cpu_mhz(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[4096];                       /* the line of flags is long */
    double sum = 0;
    int count = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "cpu MHz", 7) || !strchr(line, ':')) continue;
        sum += ascii_number(strchr(line, ':') + 1, NULL);
        count++;
    }
    fclose(file);
    return count ? sum / count : 0;
}

/* ---- the counter ------------------------------------------------------------------------------------ */

static int serves(const char *device) { return !strcmp(device, "cpu"); }

openpi_status rapl_open(const char *powercap, power_facts *facts, void **state, openpi_error *error) {
    rapl *r = calloc(1, sizeof *r);
    if (!r) return report_no_memory(error, sizeof *r, "the power reader");
    if (!find_zones(r, powercap, facts->reason, sizeof facts->reason))
        snprintf(facts->matched, sizeof facts->matched, "%d counters of packages and memory", r->count);
    *state = r;
    return OPENPI_OK;
}

static openpi_status open_counter(const char *device, power_facts *facts, void **state, openpi_error *error) {
    (void)device;
    return rapl_open("/sys/class/powercap", facts, state, error);
}

/* Adds what each counter has moved since the last reading; it may have wrapped once in between. */
static openpi_status energy(void *state, double *joules, openpi_error *error) {
    rapl *r = state;
    for (int i = 0; i < r->count; i++) {
        struct rapl_zone *zone = &r->zones[i];
        uint64_t now;
        errno = 0;
        if (read_number(zone->path, &now))
            return report(error, OPENPI_SYSTEM, "the energy counter can no longer be read: %.200s: %s",
                          zone->path, errno ? ascii_errno(errno) : "not a number");
        uint64_t used = now >= zone->last_uj ? now - zone->last_uj : now + zone->range_uj - zone->last_uj;
        r->energy_j += (double)used * 1e-6;
        zone->last_uj = now;
    }
    *joules = r->energy_j;
    return OPENPI_OK;
}

static void sample(const void *state, power_reading *out) {
    (void)state;
    out->core_mhz = cpu_mhz();
}

const power_counter power_counter_rapl = {
    .name = "RAPL",
    .serves = serves,
    .open = open_counter,
    .close = free,
    .energy = energy,
    .sample = sample,
};
