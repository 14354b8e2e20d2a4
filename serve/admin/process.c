/* See process.h. Reads /proc, which needs no disk. */
#include "process.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE_BYTES = 128 << 10 };          /* what has pages of its own: glibc's first value              */

/* After the name, which may hold anything, the fields of proc(5)'s stat begin with the third. */
static void read_stat(process *p) {
    char line[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return;
    size_t count = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[count] = 0;
    const char *at = strrchr(line, ')');
    unsigned long long user, system, start, bytes;
    long pages, ticks = sysconf(_SC_CLK_TCK);
    if (!at || ticks <= 0 ||
        sscanf(at + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %llu %ld",
               &user, &system, &start, &bytes, &pages) != 5)
        return;
    p->cpu_seconds = (double)(user + system) / (double)ticks;
    p->start_seconds = (double)start / (double)ticks;          /* since the system started                  */
    p->virtual_bytes = bytes;
    p->resident_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double system_start(void) {
    char line[256];
    unsigned long long seconds = 0;
    FILE *file = fopen("/proc/stat", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "btime %llu", &seconds) == 1) break;
    fclose(file);
    return (double)seconds;
}

/* From Linux 6.2 on the folder's size is the number of its entries. */
static uint64_t count_fds(void) {
    struct stat status;
    uint64_t count = 0;
    if (!stat("/proc/self/fd", &status) && status.st_size > 0) return (uint64_t)status.st_size;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count ? count - 1 : 0;            /* the folder itself                                          */
}

process process_look(void) {
    process p = {.cpu_seconds = 0};
    struct rlimit most;
    read_stat(&p);
    double system = system_start();
    p.start_seconds = system > 0 ? system + p.start_seconds : 0;
    p.open_fds = count_fds();
    if (!getrlimit(RLIMIT_NOFILE, &most)) p.max_fds = most.rlim_cur;
    if (!getrlimit(RLIMIT_AS, &most)) p.max_virtual_bytes = most.rlim_cur;
    return p;
}

int process_allow_files(int count) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)count;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted) return count;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    return (int)limit.rlim_cur;
}

void process_return_memory(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
#endif
}
