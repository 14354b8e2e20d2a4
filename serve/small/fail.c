/* See fail.h. */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>

openpi_status fail(openpi_error *error, openpi_status status, const char *format, ...) {
    if (!error) return status;
    va_list list;
    va_start(list, format);
    vsnprintf(error->message, sizeof error->message, format, list);
    va_end(list);
    error->status = status;
    return status;
}
