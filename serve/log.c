/* See log.h. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

void log_line(const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "openpi serve: %s\n", text);
}
