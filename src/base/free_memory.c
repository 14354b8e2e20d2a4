/* Reads /proc/meminfo and the files of control groups, versions 2 and 1.
 *
 * Note: a group's usage includes cached pages of files that it has read, such as a checkpoint. The kernel
 * drops them before it runs short, so they count as free here. */
#include "base/free_memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, TEXT_BYTES = 16384, GROUPS_BYTES = 8192, NUMBER_BYTES = 64 };

/* Reads a small file, or its beginning, without allocating: memory may be exhausted. 0: it cannot be read. */
static int read_text(const char *folder, const char *file, char *text, size_t capacity) {
    char path[PATH_BYTES];
    size_t bytes = 0;
    ssize_t got;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return 0;
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0) return 0;
    while (bytes < capacity - 1 && (got = read(in, text + bytes, capacity - 1 - bytes)) > 0)
        bytes += (size_t)got;
    close(in);
    text[bytes] = 0;
    return 1;
}

/* Removes the first line from *text and returns it; NULL: there is none. */
static char *next_line(char **text) {
    char *line = *text, *end = strchr(line, '\n');
    if (!*line) return NULL;
    *text = end ? end + 1 : line + strlen(line);
    if (end) *end = 0;
    return line;
}

/* The number in a file that holds one number. 0: there is no such file, or it holds "max". */
static int read_number(const char *folder, const char *file, uint64_t *out) {
    char text[NUMBER_BYTES];
    return read_text(folder, file, text, sizeof text) && sscanf(text, "%" SCNu64, out) == 1;
}

/* The sum of the values of the lines that begin with the word `first` or `second`. */
static uint64_t sum_of(const char *folder, const char *file, const char *first, const char *second,
                       int *found) {
    char text[TEXT_BYTES], name[64], *rest = text, *line;
    uint64_t sum = 0, value;
    *found = 0;
    if (!read_text(folder, file, text, sizeof text)) return 0;
    while ((line = next_line(&rest))) {
        if (sscanf(line, "%63s %" SCNu64, name, &value) != 2) continue;
        if (strcmp(name, first) && strcmp(name, second)) continue;
        sum += value;
        *found = 1;
    }
    return sum;
}

static const struct version {
    const char *folder, *limit, *use, *file_pages[2];
} versions[] = {
    {"", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

/* A number of the group in this folder; UINT64_MAX: it has none. */
typedef uint64_t group_figure(const struct version *v, const char *folder);

static uint64_t limit_in(const struct version *v, const char *folder) {
    uint64_t limit;
    return read_number(folder, v->limit, &limit) ? limit : UINT64_MAX;
}

/* The group's limit minus its usage. */
static uint64_t left_in(const struct version *v, const char *folder) {
    uint64_t limit, use;
    int found;
    if (!read_number(folder, v->limit, &limit) || !read_number(folder, v->use, &use)) return UINT64_MAX;
    uint64_t pages = sum_of(folder, "memory.stat", v->file_pages[0], v->file_pages[1], &found);
    use = pages < use ? use - pages : 0;
    return use < limit ? limit - use : 0;
}

/* The least of a group and its ancestors: each has a limit of its own. In a container `group` may be the
 * host's path, of which only the root's files are visible. */
static uint64_t least_along(group_figure *figure, const struct version *v, const char *groups,
                            const char *group) {
    char folder[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    int length = snprintf(folder, sizeof folder, "%s%s%s", groups, *v->folder ? "/" : "", v->folder);
    size_t root = (size_t)length;
    if (length < 0 || root + strlen(group) >= sizeof folder) return least;
    strcpy(folder + root, group);
    for (;;) {
        uint64_t here = figure(v, folder);
        if (here < least) least = here;
        char *slash = strrchr(folder + root, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: "0::/path" is version 2's, "N:memory:/path" version 1's. */
static uint64_t least_in_groups(group_figure *figure, const char *proc, const char *groups) {
    char text[GROUPS_BYTES], *rest = text, *line;
    uint64_t least = UINT64_MAX;
    if (!read_text(proc, "self/cgroup", text, sizeof text)) return least;
    while ((line = next_line(&rest))) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        const struct version *v = !strcmp(names, ":")         ? &versions[0]
                                  : !strcmp(names, ":memory") ? &versions[1]
                                                              : NULL;
        uint64_t here = v ? least_along(figure, v, groups, group) : UINT64_MAX;
        if (here < least) least = here;
    }
    return least;
}

/* The sum of two lines of meminfo in bytes, but at most the least figure of the groups. */
static uint64_t least_of(const char *proc, const char *groups, const char *memory, const char *swap,
                         group_figure *figure) {
    int found;
    uint64_t machine = sum_of(proc, "meminfo", memory, swap, &found);
    uint64_t group = least_in_groups(figure, proc, groups);
    machine = found ? machine * 1024 : UINT64_MAX;
    return machine < group ? machine : group;
}

uint64_t free_memory_at(const char *proc, const char *groups) {
    return least_of(proc, groups, "MemAvailable:", "SwapFree:", left_in);
}

uint64_t total_memory_at(const char *proc, const char *groups) {
    return least_of(proc, groups, "MemTotal:", "SwapTotal:", limit_in);
}

uint64_t available_memory_at(const char *proc) {
    int found;
    return sum_of(proc, "meminfo", "MemAvailable:", "MemAvailable:", &found) * 1024;
}

uint64_t free_memory(void) { return free_memory_at("/proc", "/sys/fs/cgroup"); }

uint64_t total_memory(void) { return total_memory_at("/proc", "/sys/fs/cgroup"); }
