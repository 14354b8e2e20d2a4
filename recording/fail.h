/* A failure's sentence. */
#ifndef RECORDING_FAIL_H
#define RECORDING_FAIL_H

#include <stdarg.h>
#include <stdio.h>

#include "openpi.h"

/* error may be NULL. Returns status. */
__attribute__((format(printf, 3, 4))) static inline openpi_status fail(openpi_error *error,
                                                                       openpi_status status,
                                                                       const char *format, ...) {
    va_list arguments;
    if (!error) return status;
    error->status = status;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

#endif
