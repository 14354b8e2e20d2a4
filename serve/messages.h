/* What the server sends, as openpi's own server packs it: msgpack with numpy arrays, keys in openpi's order.
 */
#ifndef SERVE_MESSAGES_H
#define SERVE_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "openpi.h"

/* The first message of a connection: the config's metadata and one map, "openpi_server": scalars, and the
 * model's notes, a list of texts. */
typedef struct metadata {
    const double *reset_pose;    /* [reset_pose_count], NULL: none                                         */
    int reset_pose_count;
    const char *version;
    int horizon, action_dim;
    uint64_t max_message_bytes;
    int rtc_max_delay;           /* the mode trained's, of "openpi/rtc"; 0: only guided is offered         */
    const serve_model *model;    /* its notes; without any there is no key "notes"                         */
} metadata;

/* Returns the bytes written into out[capacity]; 0: they do not fit. */
size_t metadata_write(const metadata *metadata, uint8_t *out, size_t capacity);

typedef struct reply {
    const double *actions;       /* [observations][chunks][horizon][action_dim]                            */
    int horizon, action_dim;
    int observations, chunks;    /* 0: the actions have no dimension for it                                */
    double model_ms;             /* policy_timing.infer_ms                                                 */
    double infer_ms;             /* server_timing.infer_ms                                                 */
    double prev_total_ms;        /* the request before; negative: there was none                           */
    int rtc;                     /* 1: with "rtc", a map of what follows                                   */
    int rtc_applied, rtc_delay;
    int truncated;               /* 1: with "openpi/prompt_truncated", true                                */
    int rtc_weight;              /* "max_weight", what it was cut to; 0: not in the map                    */
    const char *const *errors;   /* [observations]: a sentence in place of its actions, NULL where there are
                                    some; NULL: all have theirs                                            */
    openpi_limited limited;      /* what the robot's limits changed; nothing: without "openpi/limited"     */
} reply;

size_t reply_write(const reply *reply, uint8_t *out, size_t capacity);
/* A sentence of `errors` takes at most so much. */
enum { REPLY_ERROR_BYTES = 640 };

/* Enough for every reply of these sizes without `errors`; chunks at least 1. */
size_t reply_most_bytes(int chunks, int horizon, int action_dim);

#endif
