/* What a policy saw and what it told, call by call, in an MCAP file that Foxglove and ROS 2's tools open
 * (docs/recording.md):
 *
 *   /camera/KEY      sensor_msgs/msg/Image or CompressedImage: a picture of the request under this key
 *   /openpi/call     json, schema openpi.Call: who, when, the prompt, actions in the robot's units
 *   /openpi/exact    msgpack: the rest of the request, the reply, the model's actions, the
 *                    noise's seed, real-time chunking: all that a second computation needs
 *
 * Messages of one call have its order as their sequence and lie in one chunk. A metadata record
 * "openpi.Model" says which model it was; each later call is of it. */
#ifndef RECORDING_CALL_H
#define RECORDING_CALL_H

#include "openpi.h"
#include "recording/mcap.h"

typedef struct recorded_call {
    uint64_t order;              /* its place among the server's calls                                     */
    uint64_t connection;         /* a robot's; its calls follow on from each other                          */
    const char *robot, *address; /* who sent it, "" where that is not known                                */
    uint64_t arrived_ns, sent_ns;          /* since 1970, UTC                                              */
    double model_ms;             /* the call that computed it took so long, with its batch's other samples  */
    int batch;                   /* samples of that call                                                   */
    const uint8_t *request;      /* [request_bytes] msgpack, as it came                                    */
    size_t request_bytes;
    const uint8_t *reply;        /* [reply_bytes] as it went; a refusal's sentence                         */
    size_t reply_bytes;
    openpi_status status;        /* not OK: what follows is not there                                      */
    uint64_t seed, stream;       /* openpi_noise's, where the request had no noise of its own              */
    int horizon;
    const float *model_actions;  /* [horizon][32]                                                          */
    openpi_rtc rtc;              /* as the call was computed; previous [rows][dims]                        */
} recorded_call;

/* ---- writing ------------------------------------------------------------------------------------------ */

typedef struct recording recording;

/* A new file; `about` [count]: the model. */
openpi_status recording_create(const char *path, const mcap_entry *about, int count, recording **out,
                               openpi_error *error);
/* Written as a whole before it returns. */
openpi_status recording_add(recording *recording, const recorded_call *call, openpi_error *error);
uint64_t recording_bytes(const recording *recording);
openpi_status recording_close(recording *recording, openpi_error *error);

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct recording_reader recording_reader;

openpi_status recording_open(const char *path, recording_reader **out, openpi_error *error);
void recording_reader_close(recording_reader *reader);
/* The next call; *more 0: there is none. Its pointers are the reader's, until the next call. */
openpi_status recording_next(recording_reader *reader, recorded_call *call, int *more, openpi_error *error);
/* A text of the model of the last call, such as "checkpoint"; NULL: the recording does not say. */
const char *recording_about(const recording_reader *reader, const char *key);
/* 1, at the end: the file was not closed, as where power was lost; its whole calls were given. */
int recording_is_cut(const recording_reader *reader);

#endif
