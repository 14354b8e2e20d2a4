/* A recording (`openpi serve --record`) for verbs: its requests where a folder of requests is taken, its
 * calls where goldens are. */
#ifndef CLI_RECORDED_H
#define CLI_RECORDED_H

#include "lab/measure/request_folder.h"
#include "lab/verify/verify.h"
#include "recording/call.h"

typedef struct recorded_requests {
    const char *path;
    recording_reader *reader;    /* stands before call `next`                                              */
    int next;
    char robot[256], config[128];          /* what was served; "": the recording does not say              */
} recorded_requests;

/* Fills both: the folder reads through `requests`, which must not move. recorded_close in any case. */
openpi_status recorded_open(const char *path, recorded_requests *requests, request_folder *folder,
                            openpi_error *error);
void recorded_close(recorded_requests *requests);

/* 1: the name ends as a recording's does. */
int recorded_is(const char *path);
/* As verify_path, on up to VERIFY_CALLS answered calls, evenly out of all. */
openpi_status recorded_verify(const char *path, const verify_options *options, verify_each row, void *user,
                              openpi_error *error);

#endif
