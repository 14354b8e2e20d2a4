/* Standard input as a file: memory that has a descriptor and so a path, /proc/self/fd/N, which can be opened,
 * read from any place and read again. */
#define _GNU_SOURCE /* memfd_create */
#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char standard_input[] = "standard input";
static char kept[32]; /* the path of the kept file; "": none is kept */

const char *input_name(const char *path) { return strcmp(path, "-") ? path : standard_input; }

int input_once(const verb *verb, const char *path) {
    static int taken;
    if (!*path) return input_error(verb, "the path of a file to read is empty");
    if (strcmp(path, "-") || !taken++) return END_FINE;
    return usage_error(verb, "two inputs are '-', but standard input can be read once");
}

/* Whether the bytes may begin a PNG or a JPEG. */
static int begins_picture(const char *bytes, size_t count) {
    return (count >= 4 && !memcmp(bytes, "\x89PNG", 4)) || (count >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3));
}

/* A pipe has no end to be seen beforehand: what is no picture is not read on. */
static int load(const verb *verb, const char *path, int picture, char **bytes, size_t *count) {
    enum { STEP = 1 << 20, PICTURE = 1 << 28, LIMIT = 1 << 30 };
    int end = input_once(verb, path), standard = !strcmp(path, "-");
    if (end != END_FINE) return end;
    FILE *file = standard ? fdopen(dup(STDIN_FILENO), "rb") : fopen(path, "rb");
    path = input_name(path);
    if (!file) return input_error(verb, "%s: cannot be opened: %s", path, strerror(errno));
    size_t capacity = STEP, at = 0, got;
    char *data = allocate(capacity);
    while ((got = fread(data + at, 1, capacity - at, file)) > 0) {
        at += got;
        if (picture && !begins_picture(data, at)) break;
        if (at < capacity) continue;
        char *more = capacity < (picture ? PICTURE : LIMIT) ? realloc(data, capacity * 2) : NULL;
        if (!more) {
            fclose(file);
            free(data);
            return input_error(verb, "%s: over %zu bytes, expected fewer", path, at);
        }
        data = more;
        capacity *= 2;
    }
    int why = ferror(file) ? errno : 0;
    fclose(file);
    if (why) {
        free(data);
        return input_error(verb, "%s: cannot be read: %s", path, strerror(why));
    }
    *bytes = data;
    *count = at;
    return END_FINE;
}

int file_load(const verb *verb, const char *path, char **bytes, size_t *count) {
    return load(verb, path, 0, bytes, count);
}

int picture_load(const verb *verb, const char *path, char **bytes, size_t *count) {
    return load(verb, path, 1, bytes, count);
}

/* ---- for the library ------------------------------------------------------------------------------ */

/* Returns errno. */
static int write_all(int fd, const char *bytes, size_t count) {
    for (size_t at = 0; at < count;) {
        ssize_t put = write(fd, bytes + at, count - at);
        if (put < 0 && errno != EINTR) return errno;
        if (put > 0) at += (size_t)put;
    }
    return 0;
}

int input_keep(const verb *verb, const char *path) {
    char *bytes;
    size_t count;
    if (!path || strcmp(path, "-")) return END_FINE;
    int end = file_load(verb, path, &bytes, &count);
    if (end != END_FINE) return end;
    int fd = memfd_create("openpi", MFD_CLOEXEC), why = fd < 0 ? errno : write_all(fd, bytes, count);
    free(bytes);
    if (why) return input_error(verb, "%s: cannot be kept in memory: %s", standard_input, strerror(why));
    snprintf(kept, sizeof kept, "/proc/self/fd/%d", fd);
    return END_FINE;
}

const char *input_path(const char *path) { return *kept && path && !strcmp(path, "-") ? kept : path; }

const char *input_shown(const char *path) { return *kept && !strcmp(path, kept) ? standard_input : path; }

void input_rename_in(char *text) {
    const size_t path = strlen(kept), name = sizeof standard_input - 1; /* the name is never longer */
    for (char *at = *kept ? strstr(text, kept) : NULL; at; at = strstr(at, kept)) {
        memcpy(at, standard_input, name);
        memmove(at + name, at + path, strlen(at + path) + 1);
    }
}
