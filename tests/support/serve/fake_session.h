/* A tiny model over the driver that is not there (fake_engine.h), its sessions and their calls. For one
 * source file of a test. */
#ifndef TESTS_FAKE_SESSION_H
#define TESTS_FAKE_SESSION_H

#include "fake_engine.h"

static openpi_error error = OPENPI_ERROR_INIT;
static const backend *used = &backend_cuda;

/* `off`: switches, as in device_options. */
static inline openpi_status open_model(openpi_engine **out, const openpi_synthetic *synthetic,
                                       const char *path, uint32_t off) {
    return fake_engine_open(used, synthetic, path, off, out, &error);
}

static inline openpi_status open_engine(openpi_engine **out, const char *path, int no_graph) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    assert_int_equal(openpi_synthetic_parse("tiny", &synthetic, &error), OPENPI_OK);
    return open_model(out, &synthetic, path, no_graph ? 1u << SWITCH_GRAPH_REPLAY : 0);
}

static inline openpi_status infer_prompt(openpi_session *session, int prompt, openpi_timing *timing) {
    return fake_infer(session, prompt, timing, &error);
}

static inline openpi_status infer(openpi_session *session, openpi_timing *timing) {
    return infer_prompt(session, 3, timing);
}

static inline openpi_status open_session(openpi_engine *engine, openpi_session **session) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = 10;
    return openpi_session_create(engine, &options, session, &error);
}

#endif
