/* Gzipped text through zlib. */
#include "gz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "cli/input.h"
#include "cli/output.h"

struct gz {
    const verb *verb;
    const char *path; /* the caller's                                                          */
    gzFile file;
    int failed, why; /* why: errno of the first failure                                       */
};

gz *gz_create(const verb *verb, const char *path) {
    size_t length = strlen(path);
    errno = 0;
    int fd = dup(fileno(output_file(path)));
    const char *mode = length > 3 && !strcmp(path + length - 3, ".gz") ? "wb6" : "wbT";
    gzFile file = fd >= 0 ? gzdopen(fd, mode) : NULL;
    if (!file) {
        if (fd >= 0) close(fd);
        input_error(verb, "%s: cannot be written: %s", path, strerror(errno ? errno : ENOMEM));
        return NULL;
    }
    gz *g = allocate(sizeof *g);
    *g = (gz){.verb = verb, .path = path, .file = file};
    return g;
}

void gz_write(gz *g, const char *text, size_t bytes) {
    while (bytes && !g->failed) {
        unsigned piece = bytes > (1u << 30) ? 1u << 30 : (unsigned)bytes;
        errno = 0;
        if (gzwrite(g->file, text, piece) != (int)piece) {
            g->failed = 1;
            g->why = errno;
        }
        text += piece;
        bytes -= piece;
    }
}

int gz_close(gz *g) {
    const verb *verb = g->verb;
    const char *path = g->path;
    int failed = g->failed, why = g->why;
    errno = 0;
    int code = gzclose(g->file);
    free(g);
    if (!failed && code != Z_OK) {
        failed = 1;
        why = code == Z_ERRNO ? errno : 0;
    }
    if (!failed) return END_FINE;
    return input_error(verb, "%s: cannot be written: %s", path, strerror(why ? why : EIO));
}
