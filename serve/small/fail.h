/* Error sentences of the server. */
#ifndef SERVE_FAIL_H
#define SERVE_FAIL_H

#include "openpi.h"

/* Writes status and sentence into *error, which may be NULL. Returns the status. */
openpi_status fail(openpi_error *error, openpi_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the status of a call that did not succeed. */
#define SERVE_TRY(call)                                \
    do {                                               \
        openpi_status status_ = (call);                \
        if (status_ != OPENPI_OK) return status_;      \
    } while (0)

#endif
