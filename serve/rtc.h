/* Real-time chunking over the wire: a request with "openpi/rtc" is computed so that its chunk follows on from
 * the one before it of the same connection (MODEL.md, "Real-time chunking").
 *
 *   device.c       keeps the chunk of every reply in its job           openpi_request_keep
 *   connection.c   takes it from the job, and passes it to the next one
 *   rtc.c          what is left of it, relative to the new state       openpi_request_previous */
#ifndef SERVE_RTC_H
#define SERVE_RTC_H

#include "job.h"

/* What the checkpoint and the sessions can do. */
rtc_offer rtc_offered(const openpi_engine_info *engine, const openpi_session_info *session);

/* A value that does not fit is refused, with or without a last chunk. */
openpi_status rtc_check(const rtc_offer *offer, const openpi_extras *extras, openpi_error *error);
/* Sets the prepared job's `rtc` from its request's extras, which fit; OFF where nothing is left of the last
 * chunk, or where another model made it. */
openpi_status rtc_prepare(const rtc_offer *offer, const openpi_extras *extras, job *job, openpi_error *error);

#endif
