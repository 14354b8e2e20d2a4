/* Error sentences. A failing function writes one, at the place that knows file, tensor, value and
 * expectation. */
#ifndef BASE_REPORT_H
#define BASE_REPORT_H

#include "openpi.h"

/* Writes the sentence (cut at the buffer's end, never inside a UTF-8 character) and returns `status`.
 * `error` may be NULL. At most error->size bytes of the caller's struct are written (base/boundary.h). */
openpi_status report(openpi_error *error, openpi_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "out of memory: %zu bytes for WHAT" */
openpi_status report_no_memory(openpi_error *error, size_t bytes, const char *what);

/* Copies another error's sentence and status into `error`. */
openpi_status report_again(openpi_error *error, const openpi_error *other);

/* Ends the error's sentence with `more`, for which its own end makes room; returns the status. */
openpi_status report_more(openpi_error *error, openpi_status status, const char *more);

/* Replaces the status and keeps the sentence; returns the status. */
openpi_status report_status(openpi_error *error, openpi_status status);

/* Returns a failure to the caller. */
#define TRY(call)                                     \
    do {                                              \
        openpi_status try_status_ = (call);           \
        if (try_status_ != OPENPI_OK) return try_status_; \
    } while (0)

#endif
