#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* The number behind `key` in a file of lines "key  number", times `unit`; the first number of the file where the key is
 * "". 0 where it is not there. */
static uint64_t read_number(const char *path, const char *key, uint64_t unit) {
    char line[256];
    unsigned long long value = 0;
    size_t length = strlen(key);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && sscanf(line + length, "%llu", &value) == 1) break;
    fclose(file);
    return value * unit;
}

void memory_available(uint64_t *available, uint64_t *total) {
    *available = read_number("/proc/meminfo", "MemAvailable:", 1024);
    *total = read_number("/proc/meminfo", "MemTotal:", 1024);
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "", 1);      /* "max" where there is none: 0 */
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "", 1);
    uint64_t cached = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ", 1);
    if (!limit || limit >= *total) return;
    uint64_t kept = used > cached ? used - cached : 0, left = limit > kept ? limit - kept : 0;
    *total = limit;
    if (left < *available) *available = left;
}
