/* The requests of a recording (`openpi serve --record`), for verbs that take a folder of requests. */
#ifndef CLI_RECORDED_H
#define CLI_RECORDED_H

#include "lab/measure/request_folder.h"
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

#endif
