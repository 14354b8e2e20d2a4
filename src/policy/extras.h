/* The keys of a message that are about its call and not of the observation: "openpi/noise",
 * "openpi/deadline_ms". openpi's own server ignores them. Any other key that begins with "openpi/" is
 * refused, because a misspelt one would be ignored in silence. */
#ifndef POLICY_EXTRAS_H
#define POLICY_EXTRAS_H

#include "policy/wire.h"

typedef struct extras {
    float noise[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];      /* [noise_rows][32]                           */
    int noise_rows;              /* 0: absent                                                              */
    double deadline_ms;          /* 0: absent                                                              */
} extras;

openpi_status extras_read(const wire_message *message, extras *out, openpi_error *error);

#endif
