/* Gzipped text through zlib. Reading looks ahead by a block of its own, since zlib's call for one byte is
 * slow. */
#include "gz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "cli/input.h"
#include "cli/output.h"

enum { BLOCK = 1 << 16 };

struct gz {
    const verb *verb;
    const char *path; /* the caller's                                                          */
    gzFile file;
    int writing, failed, why; /* why: errno of the first failure                                       */
    int at, count; /* place in the block; bytes in it                                       */
    unsigned char block[BLOCK];
};

static gz *make(const verb *verb, const char *path, int fd, const char *mode) {
    gzFile file = fd >= 0 ? gzdopen(fd, mode) : NULL;
    if (!file) {
        if (fd >= 0) close(fd);
        input_error(verb, *mode == 'w' ? "%s: cannot be written: %s" : "%s: cannot be opened: %s", path,
                    strerror(errno ? errno : ENOMEM));
        return NULL;
    }
    gz *g = allocate(sizeof *g);
    *g = (gz){.verb = verb, .path = path, .file = file, .writing = *mode == 'w'};
    return g;
}

gz *gz_create(const verb *verb, const char *path) {
    size_t length = strlen(path);
    errno = 0;
    return make(verb, path, dup(fileno(output_file(path))),
                length > 3 && !strcmp(path + length - 3, ".gz") ? "wb6" : "wbT");
}

gz *gz_open(const verb *verb, const char *path) {
    if (input_once(verb, path) != END_FINE) return NULL;
    errno = 0;
    return make(verb, input_name(path), strcmp(path, "-") ? open(path, O_RDONLY) : dup(STDIN_FILENO), "rb");
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

/* A file that is cut off gives what there is, and then says so. */
static void refill(gz *g) {
    errno = 0;
    g->at = 0;
    g->count = g->failed ? 0 : gzread(g->file, g->block, BLOCK);
    int code = Z_OK;
    if (g->count < BLOCK && !g->failed) gzerror(g->file, &code);
    if (g->count >= 0 && code == Z_OK) return;
    g->failed = 1;
    g->why = code == Z_ERRNO ? errno : 0;
    if (g->count < 0) g->count = 0;
}

int gz_next(gz *g) {
    if (g->at == g->count) refill(g);
    return g->at < g->count ? g->block[g->at++] : -1;
}

int gz_close(gz *g) {
    const verb *verb = g->verb;
    const char *path = g->path;
    int writing = g->writing, failed = g->failed, why = g->why;
    errno = 0;
    int code = gzclose(g->file);
    free(g);
    if (!failed && code != Z_OK) {
        failed = 1;
        why = code == Z_ERRNO ? errno : 0;
    }
    if (!failed) return END_FINE;
    if (writing) return input_error(verb, "%s: cannot be written: %s", path, strerror(why ? why : EIO));
    if (why) return input_error(verb, "%s: cannot be read: %s", path, strerror(why));
    return input_error(verb, "%s: its gzip data is damaged or cut off, expected a whole file", path);
}
