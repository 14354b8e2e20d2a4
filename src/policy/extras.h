/* The keys of a message that are about its call and not of the observation: "openpi/noise",
 * "openpi/samples", "openpi/deadline_ms", "openpi/last_action" and the maps "openpi/rtc" and "openpi/runner".
 * openpi's own server ignores them. Any other key that begins with "openpi/" is refused, because a misspelt
 * one would be ignored in silence. */
#ifndef POLICY_EXTRAS_H
#define POLICY_EXTRAS_H

#include "openpi_runner.h"
#include "policy/wire/wire.h"

typedef struct extras {
    float *noise;                /* [noise_chunks][noise_rows][32], 0 beyond the model's; owned            */
    int noise_rows;              /* 0: absent                                                              */
    int noise_chunks;            /* 0: the noise is that of one chunk, without a dimension for it          */
    int samples;                 /* 0: absent                                                              */
    int model_dims;              /* columns that noise may have instead of 32                              */
    double deadline_ms;          /* 0: absent                                                              */
    double last[OPENPI_ACTION_DIM];           /* [last_count], the action that was sent before             */
    int last_count;              /* 0: absent                                                              */
    int rtc_given;               /* bits of extras.c, of the entries of "openpi/rtc"; 0: absent            */
    int rtc_executed, rtc_delay, rtc_horizon;
    openpi_rtc_mode rtc_mode;
    openpi_rtc_schedule rtc_schedule;
    double rtc_max_weight;
    int runner_given;            /* 1: "openpi/runner" is there                                            */
    int runner_executed;         /* -1: it does not say                                                    */
    double runner_held_ms;
    openpi_reason runner_reason;
} extras;

/* All absent, and no memory. */
void extras_clear(extras *extras);
/* What "openpi/rtc" and "openpi/runner" say, into openpi.h's struct. */
void extras_give_maps(const extras *extras, openpi_extras *out);

/* dims: the model's action dimensions, which noise may have instead of 32. */
openpi_status extras_read(const wire_message *message, int dims, extras *out, openpi_error *error);

#endif
