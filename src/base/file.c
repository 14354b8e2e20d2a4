#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/report.h"

static openpi_status cannot_open(const char *path, int why, openpi_error *error) {
    char target[200];
    ssize_t length = why == ENOENT ? readlink(path, target, sizeof target - 1) : -1;
    if (length < 0)
        return report(error, why == ENOENT ? OPENPI_NOT_FOUND : OPENPI_BAD_FILE, "%s: cannot be opened: %s",
                      path, ascii_errno(why));
    target[length] = 0;
    return report(error, OPENPI_NOT_FOUND,
                  "%s: a link that leads nowhere: %s is not there; download or copy it too", path, target);
}

static openpi_status not_regular(const char *path, mode_t mode, openpi_error *error) {
    const char *kind = S_ISDIR(mode)    ? "folder"
                       : S_ISFIFO(mode) ? "pipe (FIFO)"
                       : S_ISSOCK(mode) ? "socket"
                                        : "device";
    return report(error, OPENPI_BAD_FILE, "%s: not a regular file but a %s", path, kind);
}

/* A pipe would make the reader wait for a writer, and opening a device may do something: neither is
 * opened. */
static openpi_status open_regular(const char *path, int *fd, size_t *bytes, openpi_error *error) {
    struct stat st;
    if (stat(path, &st)) return cannot_open(path, errno, error);
    if (!S_ISREG(st.st_mode)) return not_regular(path, st.st_mode, error);
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);    /* it may be another file by now */
    if (*fd < 0) return cannot_open(path, errno, error);
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        return not_regular(path, st.st_mode, error);
    }
    *bytes = (size_t)st.st_size;
    return OPENPI_OK;
}

openpi_status file_reader_open(const char *path, file_reader *reader, openpi_error *error) {
    int fd;
    size_t bytes;
    TRY(open_regular(path, &fd, &bytes, error));
    *reader = (file_reader){fd, bytes};
    return OPENPI_OK;
}

void file_reader_close(file_reader *reader) {
    if (reader->fd >= 0) close(reader->fd);
    reader->fd = -1;
}

openpi_status file_reader_read(const file_reader *reader, const char *path, uint64_t from, size_t bytes,
                               void *to, openpi_error *error) {
    for (size_t at = 0; at < bytes;) {
        ssize_t got = pread(reader->fd, (char *)to + at, bytes - at, (off_t)(from + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return report(error, OPENPI_BAD_FILE, "%s: cannot be read: %s", path, ascii_errno(errno));
        if (!got)
            return report(error, OPENPI_BAD_FILE,
                          "%s: ends at byte %llu, expected the %llu bytes that it had when it was opened",
                          path, (unsigned long long)(from + at), (unsigned long long)reader->bytes);
        at += (size_t)got;
    }
    return OPENPI_OK;
}

void file_forget_pages(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

openpi_status file_read(const char *path, size_t limit, char **data, size_t *bytes, openpi_error *error) {
    int fd;
    size_t size, at = 0;
    TRY(open_regular(path, &fd, &size, error));
    if (size > limit) {
        close(fd);
        return report(error, OPENPI_BAD_FILE, "%s: %zu bytes, at most %zu expected", path, size, limit);
    }
    char *buffer = malloc(size + 1);
    if (!buffer) {
        close(fd);
        return report_no_memory(error, size + 1, path);
    }
    while (at < size) {
        ssize_t got = read(fd, buffer + at, size - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int why = errno;
            close(fd);
            free(buffer);
            return report(error, OPENPI_BAD_FILE, "%s: cannot be read: %s", path, ascii_errno(why));
        }
        if (!got) break;
        at += (size_t)got;
    }
    close(fd);
    buffer[at] = 0;
    *data = buffer;
    *bytes = at;
    return OPENPI_OK;
}

openpi_status file_write(const char *path, const void *data, size_t bytes, openpi_error *error) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), why = 0;
    if (fd < 0) return report(error, OPENPI_SYSTEM, "%s: cannot be created: %s", path, ascii_errno(errno));
    for (size_t at = 0; at < bytes && !why;) {
        ssize_t put = write(fd, (const char *)data + at, bytes - at);
        if (put >= 0) at += (size_t)put;
        else if (errno != EINTR) why = errno;
    }
    if (close(fd) && !why) why = errno;
    if (!why) return OPENPI_OK;
    unlink(path);
    return report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", path, ascii_errno(why));
}

int file_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

int file_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t file_free_space(const char *path) {
    struct statvfs st;
    return statvfs(path, &st) ? UINT64_MAX : (uint64_t)st.f_bavail * st.f_frsize;
}

char *file_join(const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    char *path = malloc(a + b + 2);
    if (!path) return NULL;
    memcpy(path, folder, a);
    if (a && path[a - 1] != '/') path[a++] = '/';
    memcpy(path + a, name, b + 1);
    return path;
}

openpi_status file_is_in(const char *folder, const char *name, int *there, openpi_error *error) {
    char *path = file_join(folder, name);
    if (!path) return report_no_memory(error, strlen(folder) + strlen(name) + 2, "a path");
    *there = file_exists(path);
    free(path);
    return OPENPI_OK;
}

size_t file_last_name(const char *path, size_t *end) {
    for (*end = strlen(path); *end > 1 && path[*end - 1] == '/';) --*end;
    size_t at = *end;
    while (at && path[at - 1] != '/') at--;
    return at;
}

int file_has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), end = strlen(ending);
    return length >= end && !strcmp(name + length - end, ending);
}
