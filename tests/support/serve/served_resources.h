/* What a running server has open and in memory. Include after served.h. */
#ifndef TESTS_SERVED_RESOURCES_H
#define TESTS_SERVED_RESOURCES_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static inline int served_descriptors(const served *s) {
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static inline long served_resident_kb(const served *s) {
    char path[64], line[200];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "VmRSS: %ld", &kb);
    fclose(file);
    return kb;
}

/* The time that its threads have run. */
static inline long served_cpu_ms(const served *s) {
    char path[64];
    long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)s->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int found = fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &kernel);
    fclose(file);
    assert_int_equal(found, 2);
    return (user + kernel) * 1000 / sysconf(_SC_CLK_TCK);
}

/* Connections that are gone are noticed by and by. */
static inline void served_await_descriptors(const served *s, int most) {
    int count = served_descriptors(s);
    for (int i = 0; i < 12000 && count > most; i++, count = served_descriptors(s)) served_sleep(10);
    if (count > most) fail_msg("%d descriptors are open, expected at most %d", count, most);
}

#endif
