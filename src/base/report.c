#include "base/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/boundary.h"
#include "base/utf8.h"

/* What an error's size leaves for its message; 0 where it is no openpi_error. */
static size_t message_bytes(const openpi_error *error) {
    if (!error || !boundary_size_is_good(BOUNDARY_openpi_error, error->size)) return 0;
    return (error->size < sizeof *error ? error->size : sizeof *error) - offsetof(openpi_error, message);
}

openpi_status report(openpi_error *error, openpi_status status, const char *format, ...) {
    size_t bytes = message_bytes(error);
    if (!bytes) return status;
    va_list list;
    va_start(list, format);
    int length = ascii_print_list(error->message, bytes, format, list);
    va_end(list);
    error->status = status;
    if (length >= (int)bytes) {
        size_t end = bytes - 1;
        while (end && ((unsigned char)error->message[end - 1] & 0xc0) == 0x80)
            end--;                                                        /* back over continuation bytes */
        if (end && (unsigned char)error->message[end - 1] >= 0xc0) end--; /* and their lead byte */
        error->message[end] = 0;
    }
    for (size_t at = 0, end = strlen(error->message); at < end; at++) { /* a name may be cut by its format */
        at += utf8_valid_prefix(error->message + at, end - at);
        if (at < end) error->message[at] = '?';
    }
    for (char *c = error->message; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' '; /* one sentence, one line */
    if (error->size > sizeof *error) memset((char *)error + sizeof *error, 0, error->size - sizeof *error);
    return status;
}

openpi_status report_again(openpi_error *error, const openpi_error *other) {
    return report(error, other->status, "%s", other->message);
}

openpi_status report_more(openpi_error *error, openpi_status status, const char *more) {
    static const char cut[] = "…";
    char said[sizeof error->message];
    size_t bytes = message_bytes(error), needed = strlen(more) + sizeof cut;
    if (bytes <= needed) return status;
    size_t length = strlen(error->message), most = bytes - needed;
    memcpy(said, error->message, length + 1);
    if (length < bytes - strlen(more)) return report(error, status, "%s%s", said, more);
    while (most && ((unsigned char)said[most] & 0xc0) == 0x80) most--;
    return report(error, status, "%.*s%s%s", (int)most, said, cut, more);
}

openpi_status report_status(openpi_error *error, openpi_status status) {
    if (message_bytes(error)) error->status = status;
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
