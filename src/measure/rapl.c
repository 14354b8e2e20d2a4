/* Counters of packages, and of memory, which no package includes. "core" and "uncore" are part of a package,
 * "psys" contains it, so they are not added.
 *
 * Note: since 2020 only root may read them, unless the administrator allows others. */
#include "measure/rapl.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
        snprintf(why, why_bytes, "%.200s: %s", zone->path, errno ? strerror(errno) : "not a number");
        return -1;
    }
    rapl->count++;
    return 1;
}

int rapl_open(rapl *rapl, const char *powercap, char *why, size_t why_bytes) {
    int bad = 0;
    *rapl = (struct rapl){0};
    DIR *folder = opendir(powercap);
    for (struct dirent *entry; folder && !bad && (entry = readdir(folder)) != NULL;)
        bad = add_zone(rapl, powercap, entry->d_name, why, why_bytes) < 0;
    if (folder) closedir(folder);
    if (bad) return -1;
    if (rapl->count) return 0;
    snprintf(why, why_bytes, "no RAPL counter below %.200s", powercap);
    return -1;
}

int rapl_read(rapl *rapl, char *why, size_t why_bytes) {
    for (int i = 0; i < rapl->count; i++) {
        struct rapl_zone *zone = &rapl->zones[i];
        uint64_t now;
        errno = 0;
        if (read_number(zone->path, &now)) {
            snprintf(why, why_bytes, "%.200s: %s", zone->path, errno ? strerror(errno) : "not a number");
            return -1;
        }
        uint64_t used = now >= zone->last_uj ? now - zone->last_uj : now + zone->range_uj - zone->last_uj;
        rapl->energy_j += (double)used * 1e-6;
        zone->last_uj = now;
    }
    return 0;
}
