/* The chunks of a model in this process, as a source: a session, a request, and the chunk that is kept for
 * real-time chunking. */
#ifndef RUNNER_ENGINE_SOURCE_H
#define RUNNER_ENGINE_SOURCE_H

#include "openpi_runner.h"

/* `session` may be NULL; its field `rtc` is set by `mode`. On success source->close frees it. */
openpi_status engine_source(openpi_engine *engine, const openpi_policy *policy,
                            const openpi_session_options *session, openpi_rtc_mode mode,
                            openpi_source *source, openpi_error *error);

#endif
