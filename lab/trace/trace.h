/* The files of openpi trace. */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <jansson.h>

#include "cli/cli.h"
#include "lab/measure/trace.h"

/* Writes a trace; `head` is its "otherData", given up. Gzip where the path ends in .gz. */
int trace_write(const verb *verb, const char *path, const trace *trace, const char *device, json_t *head);

#endif
