/* The files of openpi trace: writing one, and reading one of any engine. */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <jansson.h>

#include "cli/cli.h"
#include "lab/measure/breakdown.h"
#include "lab/measure/trace.h"

/* Writes a trace; `head` is its "otherData", given up. Gzip where the path ends in .gz. */
int trace_write(const verb *verb, const char *path, const trace *trace, const char *device, json_t *head);

/* A trace file read back. */
typedef struct trace_file {
    char engine[160];            /* what made it: "openpi 0.1.0, synthetic tiny:pi0:7 on cpu"             */
    int ours;
    int calls, steps;            /* as the file says; 0: it does not                                      */
    breakdown *breakdown;
    breakdown_sums sums;
} trace_file;

/* Returns END_FINE or the code to end with, having said why; trace_file_free in any case. */
int trace_read(const verb *verb, const char *path, trace_file *out);
void trace_file_free(trace_file *file);

typedef struct trace_reading_options {
    int calls, steps, top;       /* calls 0: as the file says; steps: where it does not; top 0: all rows  */
    const char *json;            /* NULL: none                                                            */
} trace_reading_options;

int trace_analyze(const verb *verb, const trace_reading_options *options, char **paths, int count);

#endif
