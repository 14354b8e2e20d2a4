/* Calls of openpi_host's device that stand still after SIGUSR1. Include after served.h. */
#ifndef TESTS_STALLED_H
#define TESTS_STALLED_H

#include <dirent.h>

/* How many of its threads have stood still. */
static inline int stalled_threads(const served *server) {
    char path[300], name[32] = "";
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)server->pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        snprintf(path, sizeof path, "/proc/%d/task/%.100s/comm", (int)server->pid, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file) continue;
        count += fgets(name, sizeof name, file) && !strcmp(name, "stalled\n");
        fclose(file);
    }
    closedir(folder);
    return count;
}

static inline void await_stalled(const served *server, int threads) {
    for (int i = 0; i < 60000 && stalled_threads(server) < threads; i++) served_sleep(10);
    assert_true(stalled_threads(server) >= threads);
}

#endif
