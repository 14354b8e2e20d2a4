/* From a message's fields to an observation: which key is a camera, which the state, which the prompt. */
#ifndef POLICY_UNPACK_H
#define POLICY_UNPACK_H

#include "policy/policy.h"
#include "policy/wire/wire.h"

enum {
    UNPACK_PICTURES = 16,        /* most pictures a request, unused ones included                         */
    UNPACK_CAME = 200,           /* bytes of the list of its keys                                         */
    UNPACK_STRANGERS = 400,      /* bytes of the list of those that nothing reads                         */
};

/* An observation whose parts lie here and in the message. */
typedef struct unpacked {
    openpi_observation observation;
    openpi_image images[UNPACK_PICTURES];
    double state[OPENPI_ACTION_DIM];
    char came[UNPACK_CAME];      /* "; the request has "state", …": ends sentences about what is missing  */
    char strangers[UNPACK_STRANGERS];      /* "stat promt ": keys that nothing reads                       */
} unpacked;

openpi_status unpack_message(const openpi_policy *policy, const wire_message *message, unpacked *out,
                             openpi_error *error);

#endif
