#include "base/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

openpi_status report(openpi_error *error, openpi_status status, const char *format, ...) {
    if (!error) return status;
    va_list list;
    va_start(list, format);
    int length = vsnprintf(error->message, sizeof error->message, format, list);
    va_end(list);
    error->status = status;
    if (length >= (int)sizeof error->message) {
        size_t end = sizeof error->message - 1;
        while (end && ((unsigned char)error->message[end - 1] & 0xc0) == 0x80) end--;   /* back over continuation bytes */
        if (end && (unsigned char)error->message[end - 1] >= 0xc0) end--;               /* and their lead byte */
        error->message[end] = 0;
    }
    for (size_t at = 0, end = strlen(error->message); at < end; at++) {                 /* of a name cut by its format */
        at += utf8_valid_prefix(error->message + at, end - at);
        if (at < end) error->message[at] = '?';
    }
    for (char *c = error->message; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' ';                                         /* one sentence, one line */
    return status;
}

openpi_status report_no_memory(openpi_error *error, size_t bytes, const char *what) {
    return report(error, OPENPI_NO_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

const char *openpi_status_text(openpi_status status) {
    switch (status) {
#define X(name, value, text) \
    case name: return text;
        OPENPI_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}
