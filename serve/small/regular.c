/* See regular.h. */
#include "regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Returns 1 where why has been written. */
static int is_wrong(const struct stat *about, int most_bytes, char why[REGULAR_WHY]) {
    if (!S_ISREG(about->st_mode)) {
        const char *kind = S_ISFIFO(about->st_mode) ? "Is a pipe" : "Is a device";
        snprintf(why, REGULAR_WHY, "%s, expected a regular file",
                 S_ISDIR(about->st_mode) ? strerror(EISDIR) : kind);
        return 1;
    }
    if (about->st_size <= most_bytes) return 0;
    snprintf(why, REGULAR_WHY, "%lld bytes, expected at most %d", (long long)about->st_size, most_bytes);
    return 1;
}

/* O_NONBLOCK: to open a pipe waits for its writer, too. */
FILE *regular_open(const char *path, int most_bytes, struct stat *about, char why[REGULAR_WHY]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    FILE *file = NULL;
    if (fd >= 0 && !fstat(fd, about)) {
        if (is_wrong(about, most_bytes, why)) {
            close(fd);
            return NULL;
        }
        file = fdopen(fd, "rb");
    }
    if (file) return file;
    snprintf(why, REGULAR_WHY, "%s", strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
}
