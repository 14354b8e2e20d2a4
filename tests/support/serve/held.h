/* What a process keeps of a temporary folder. Include after cmocka.h. */
#ifndef TESTS_HELD_H
#define TESTS_HELD_H

#include "scratch.h"

/* The process has nothing of the folder open (a link of /proc/self/fd) or mapped. */
static inline void nothing_is_held(const scratch *s) {
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    DIR *open = opendir("/proc/self/fd");
    const struct dirent *entry;
    if (!maps || !open) skip();
    while (fgets(line, sizeof line, maps))
        if (strstr(line, s->folder)) fail_msg("still mapped: %s", line);
    while ((entry = readdir(open))) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, line, sizeof line - 1);
        line[length < 0 ? 0 : length] = 0;
        if (strstr(line, s->folder)) fail_msg("still open: %s", line);
    }
    closedir(open);
    fclose(maps);
}

#endif
