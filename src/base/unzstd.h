/* Decoding a zstd frame piece by piece, with libzstd where this build has it. */
#ifndef BASE_UNZSTD_H
#define BASE_UNZSTD_H

#include <stddef.h>

#include "openpi.h"

typedef struct unzstd unzstd;

/* OPENPI_UNSUPPORTED in a build without libzstd; `name` leads the sentences. The decoder is one thread's at a
 * time. */
openpi_status unzstd_create(const char *name, unzstd **out, openpi_error *error);
void unzstd_close(unzstd *decoder);

/* Decodes from `from` (*taken of `count` bytes were used) into `to` (*given of `capacity` bytes were
 * written). *ended: the frame is complete. With neither input nor capacity left it returns with nothing taken
 * and nothing given. */
openpi_status unzstd_step(unzstd *decoder, const void *from, size_t count, size_t *taken, void *to,
                          size_t capacity, size_t *given, int *ended, openpi_error *error);

/* A whole frame of at most `limit` bytes into *data (malloc). */
openpi_status unzstd_all(const char *name, const void *from, size_t count, size_t limit, unsigned char **data,
                         size_t *bytes, openpi_error *error);

#endif
