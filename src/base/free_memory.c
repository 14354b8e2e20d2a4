/* Reads /proc/meminfo and the files of control groups, version 2 and 1. What surprises: a group's use counts the
 * pages of files that it has read, a checkpoint say; the kernel drops them before it runs short, so they are free. */
#include "base/free_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024 };

/* A number that stands alone in a file. 0: there is no such file, or "max". */
static int read_number(const char *folder, const char *file, uint64_t *out) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return 0;
    FILE *in = fopen(path, "r");
    if (!in) return 0;
    int found = fscanf(in, "%" SCNu64, out) == 1;
    fclose(in);
    return found;
}

/* The sum of the values whose words at the start of a line are `first` and `second`. */
static uint64_t sum_of(const char *folder, const char *file, const char *first, const char *second,
                       int *found) {
    char path[PATH_BYTES], line[256], name[64];
    uint64_t sum = 0, value;
    *found = 0;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return 0;
    FILE *in = fopen(path, "r");
    if (!in) return 0;
    while (fgets(line, sizeof line, in)) {
        if (sscanf(line, "%63s %" SCNu64, name, &value) != 2) continue;
        if (strcmp(name, first) && strcmp(name, second)) continue;
        sum += value;
        *found = 1;
    }
    fclose(in);
    return sum;
}

static const struct version {
    const char *folder, *limit, *use, *file_pages[2];
} versions[] = {
    {"", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

/* What the group in this folder leaves. */
static uint64_t left_in(const struct version *v, const char *folder) {
    uint64_t limit, use;
    int found;
    if (!read_number(folder, v->limit, &limit) || !read_number(folder, v->use, &use)) return UINT64_MAX;
    uint64_t pages = sum_of(folder, "memory.stat", v->file_pages[0], v->file_pages[1], &found);
    use = pages < use ? use - pages : 0;
    return use < limit ? limit - use : 0;
}

/* The least of a group and all above it: each has a limit of its own. In a container the path may be the host's, of
 * which only the root's files are seen. */
static uint64_t left_along(const struct version *v, const char *groups, const char *group) {
    char folder[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    int length = snprintf(folder, sizeof folder, "%s%s%s", groups, *v->folder ? "/" : "", v->folder);
    size_t root = (size_t)length;
    if (length < 0 || root + strlen(group) >= sizeof folder) return least;
    strcpy(folder + root, group);
    for (;;) {
        uint64_t left = left_in(v, folder);
        if (left < least) least = left;
        char *slash = strrchr(folder + root, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: "0::/path" is version 2's, "N:memory:/path" version 1's. */
static uint64_t left_in_groups(const char *proc, const char *groups) {
    char path[PATH_BYTES], line[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    if (snprintf(path, sizeof path, "%s/self/cgroup", proc) >= (int)sizeof path) return least;
    FILE *in = fopen(path, "r");
    if (!in) return least;
    while (fgets(line, sizeof line, in)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        const struct version *v = !strcmp(names, ":")         ? &versions[0]
                                  : !strcmp(names, ":memory") ? &versions[1]
                                                              : NULL;
        uint64_t left = v ? left_along(v, groups, group) : UINT64_MAX;
        if (left < least) least = left;
    }
    fclose(in);
    return least;
}

uint64_t free_memory_at(const char *proc, const char *groups) {
    int found;
    uint64_t machine = sum_of(proc, "meminfo", "MemAvailable:", "SwapFree:", &found);
    uint64_t group = left_in_groups(proc, groups);
    machine = found ? machine * 1024 : UINT64_MAX;
    return machine < group ? machine : group;
}

uint64_t free_memory(void) { return free_memory_at("/proc", "/sys/fs/cgroup"); }
