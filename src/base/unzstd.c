#include "base/unzstd.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"

#if defined(OPENPI_ZSTD)

#include <zstd.h>

/* The largest window that a frame may ask for, 2^23 bytes, which every decoder has (RFC 8878, 3.1.1.1.2):
 * many chunks are decoded side by side. Orbax's own need 2^19. */
enum { WINDOW_LOG = 23 };

struct unzstd {
    ZSTD_DCtx *context;
    char name[300];
};

openpi_status unzstd_create(const char *name, unzstd **out, openpi_error *error) {
    unzstd *d = calloc(1, sizeof *d);
    if (d) d->context = ZSTD_createDCtx();
    if (!d || !d->context) {
        free(d);
        return report_no_memory(error, sizeof *d, name);
    }
    ZSTD_DCtx_setParameter(d->context, ZSTD_d_windowLogMax, WINDOW_LOG);
    size_t length = strlen(name);
    if (length >= sizeof d->name) length = sizeof d->name - 1;
    memcpy(d->name, name, length);
    *out = d;
    return OPENPI_OK;
}

void unzstd_close(unzstd *d) {
    if (!d) return;
    ZSTD_freeDCtx(d->context);
    free(d);
}

openpi_status unzstd_step(unzstd *d, const void *from, size_t count, size_t *taken, void *to, size_t capacity,
                          size_t *given, int *ended, openpi_error *error) {
    ZSTD_inBuffer in = {from, count, 0};
    ZSTD_outBuffer out = {to, capacity, 0};
    size_t left = ZSTD_decompressStream(d->context, &out, &in);
    *taken = in.pos;
    *given = out.pos;
    *ended = left == 0;
    if (ZSTD_isError(left))
        return report(error, OPENPI_BAD_FILE, "%s: its zstd data is damaged: %s", d->name,
                      ZSTD_getErrorName(left));
    return OPENPI_OK;
}

#else

openpi_status unzstd_create(const char *name, unzstd **out, openpi_error *error) {
    (void)out;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: compressed with zstd, and this openpi was built without libzstd: install libzstd-dev "
                  "and build again",
                  name);
}

void unzstd_close(unzstd *d) { (void)d; }

openpi_status unzstd_step(unzstd *d, const void *from, size_t count, size_t *taken, void *to, size_t capacity,
                          size_t *given, int *ended, openpi_error *error) {
    (void)d, (void)from, (void)count, (void)to, (void)capacity;
    *taken = *given = 0;
    *ended = 0;
    return report(error, OPENPI_UNSUPPORTED, "this openpi was built without libzstd");
}

#endif

static openpi_status decode_all(unzstd *d, const char *name, const unsigned char *from, size_t count,
                                size_t limit, unsigned char **data, size_t *bytes, openpi_error *error) {
    size_t capacity = 0, used = 0, at = 0;
    for (int ended = 0; !ended;) {
        size_t taken, given;
        if (used == capacity) {
            size_t larger = capacity ? 2 * capacity : 4096;
            unsigned char *grown = used < limit ? realloc(*data, larger) : NULL;
            if (used >= limit)
                return report(error, OPENPI_BAD_FILE,
                              "%s: its zstd data is larger than %zu bytes, expected at most that", name,
                              limit);
            if (!grown) return report_no_memory(error, larger, name);
            *data = grown;
            capacity = larger;
        }
        TRY(unzstd_step(d, from + at, count - at, &taken, *data + used, capacity - used, &given, &ended,
                        error));
        at += taken;
        used += given;
        if (!ended && !taken && !given && used < capacity)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is cut short", name);
    }
    if (at != count)
        return report(error, OPENPI_BAD_FILE, "%s: %zu bytes follow its zstd data, expected none", name,
                      count - at);
    *bytes = used;
    return OPENPI_OK;
}

openpi_status unzstd_all(const char *name, const void *from, size_t count, size_t limit, unsigned char **data,
                         size_t *bytes, openpi_error *error) {
    unzstd *d = NULL;
    *data = NULL;
    TRY(unzstd_create(name, &d, error));
    openpi_status status = decode_all(d, name, from, count, limit, data, bytes, error);
    unzstd_close(d);
    if (status != OPENPI_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}
