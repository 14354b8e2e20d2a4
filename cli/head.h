/* The head of every JSON that this command writes: which file, of which build, of when, of which machine. */
#ifndef CLI_HEAD_H
#define CLI_HEAD_H

#include <jansson.h>

#include "cli.h"

enum { HARDWARE_TEXT = 128, HEAD_FORMAT = 1 };

/* The sources that this build is of, as `git describe` names them. Written at build time. */
extern const char openpi_revision[];

/* {"kind", "format", "version", "revision", "date"}: a new reference. date: now, "2026-03-04T05:06:07Z". */
json_t *head_json(const char *kind);

/* A string; null where there is none or it is not UTF-8, which JSON cannot hold. */
json_t *head_text(const char *text);

/* What a device is called, "NVIDIA H200": as its driver says (`name`, "" where it says nothing), else as
 * `openpi devices` describes it. `device`: "cpu", "cuda:0". */
void head_hardware(const char *device, const char *name, char text[HARDWARE_TEXT]);

/* {"source", "variant", "parameters"} and {"device", "hardware", "path", "dtype", "threads", "without",
 * "table"}, "weights" where they are not of the dtype, and "w8" where they are a plan's: {"measure", "error",
 * "bound", "error_accepted"}. */
json_t *head_model(const openpi_engine_info *info, const char *source);
json_t *head_machine(const openpi_engine_info *info, const char *hardware);
/* Where the plan has static scales, what a session's codes have lost so far, in "w8": "clipped",
 * "clipped_rows", "not_finite". */
void head_lost(json_t *machine, const openpi_engine_info *info, const openpi_session_info *session);

#endif
