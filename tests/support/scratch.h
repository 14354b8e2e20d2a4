/* A temporary folder of a test: made by scratch_open, removed with all it holds by scratch_close. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct scratch {
    char folder[64];
    char path[400];              /* the last one asked for */
} scratch;

static inline int scratch_open(scratch *s) {
    strcpy(s->folder, "/tmp/openpi_test_XXXXXX");
    return mkdtemp(s->folder) ? 0 : -1;
}

/* The path of a name in the folder, valid until the next call. */
static inline const char *scratch_path(scratch *s, const char *name) {
    snprintf(s->path, sizeof s->path, "%s/%s", s->folder, name);
    return s->path;
}

static inline int scratch_write(scratch *s, const char *name, const void *data, size_t bytes) {
    unlink(scratch_path(s, name));       /* a file system may wait for the disk when a file is overwritten */
    FILE *file = fopen(s->path, "wb");
    if (!file) return -1;
    size_t put = fwrite(data, 1, bytes, file);
    return fclose(file) || put != bytes ? -1 : 0;
}

static inline void scratch_remove(const char *path) {
    struct stat st;
    if (lstat(path, &st)) return;
    if (S_ISDIR(st.st_mode)) {
        DIR *list = opendir(path);
        const struct dirent *entry;
        while (list && (entry = readdir(list))) {
            char inner[1024];
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) < (int)sizeof inner)
                scratch_remove(inner);
        }
        if (list) closedir(list);
    }
    remove(path);
}

static inline void scratch_close(scratch *s) { scratch_remove(s->folder); }

#endif
