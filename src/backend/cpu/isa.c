/* Chooses among the levels of this architecture. Which there are, and what the processor must have for each,
 * its folder says. */
#include "backend/cpu/isa.h"

#include <stdio.h>
#include <string.h>

#include "backend/cpu/levels.h"

int cpu_isa_count(void) {
    int count = 0;
    while (cpu_levels[count].name) count++;
    return count;
}

const char *cpu_isa_name(int level) { return cpu_levels[level].name; }

int cpu_isa_find(const char *name) {
    for (int i = 0; cpu_levels[i].name; i++)
        if (!strcmp(cpu_levels[i].name, name)) return i;
    return -1;
}

void cpu_isa_names(char *text, size_t size) {
    size_t at = 0;
    for (int i = 0; cpu_levels[i].name && at < size; i++) {
        const char *before = !i ? "" : cpu_levels[i + 1].name ? ", " : " or ";
        at += (size_t)snprintf(text + at, size - at, "%s%s", before, cpu_levels[i].name);
    }
}

int cpu_isa_available(int level) {
    for (int i = 0; i <= level; i++)
        if (!cpu_levels[i].available()) return 0;
    return 1;
}

int cpu_isa_choose(int cap) {
    for (int i = cap; i > 0; i--) {
        if (i != cap && cpu_levels[i].slow && cpu_levels[i].slow()) continue;
        if (cpu_isa_available(i)) return i;
    }
    return 0;
}

const cpu_kernels *cpu_kernels_of(int level) { return cpu_levels[level].kernels; }
