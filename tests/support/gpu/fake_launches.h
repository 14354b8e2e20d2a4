/* What a session over the driver that is not there (fake_gpu.h) launches, and what is asked of it and of its
 * device when they close or do not open. */
#ifndef TESTS_FAKE_LAUNCHES_H
#define TESTS_FAKE_LAUNCHES_H

#include "fake_engine.h"

typedef struct launches {
    int count, resident;                   /* resident: those of the kernel that was asked for              */
    launch_record list[LOG];
} launches;

/* An engine of synthetic weights with those sizes. off: switches, as in device_options. */
static inline openpi_status fake_engine_of(const char *dims, openpi_variant variant, const char *path,
                                           uint32_t off, openpi_engine **engine, openpi_error *error) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    synthetic.variant = variant;
    assert_int_equal(openpi_dims_parse(dims, &synthetic.dims, error), OPENPI_OK);
    return fake_engine_open(&backend_cuda, &synthetic, path, off, engine, error);
}

static inline openpi_session *fake_session(openpi_engine *engine, int batch, int horizon, int steps) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    if (openpi_session_create(engine, &options, &session, &why) != OPENPI_OK) fail_msg("%s", why.message);
    assert_non_null(session->kinds.recordings[CALL_ANY]);
    return session;
}

/* kernel: the name whose launches are counted. */
static inline void fake_launches(openpi_session *session, const char *kernel, launches *to) {
    device *device = session->engine->device;
    memset(to, 0, sizeof *to);
    to->count = device->backend->launches(device, session->kinds.recordings[CALL_ANY], to->list, LOG);
    assert_in_range(to->count, 1, LOG);
    for (int i = 0; i < to->count; i++) to->resident += !strcmp(to->list[i].kernel, kernel);
}

static inline void fake_launches_same(const launches *a, const launches *b) {
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        const launch_record *l = &a->list[i], *m = &b->list[i];
        assert_int_equal(l->op, m->op);
        assert_int_equal(l->ops, m->ops);
        assert_string_equal(l->kernel, m->kernel);
        assert_memory_equal(l->grid, m->grid, sizeof l->grid);
        assert_memory_equal(l->block, m->block, sizeof l->block);
        assert_int_equal(l->cluster, m->cluster);
        assert_int_equal(l->shared_bytes, m->shared_bytes);
    }
}

static inline void fake_nothing_kept(void) {
    assert_int_equal(fake.alive, 0);
    assert_int_equal(fake.memory, 0);
}

static inline void fake_close(openpi_session *session, openpi_engine *engine) {
    openpi_session_close(session);
    openpi_engine_close(engine);
    fake_nothing_kept();
}

/* The number, as for fail_at, of the call of that name that follows `before` others of it. */
static inline int fake_call_at(const char *name, int before) {
    int seen = 0, at = 0;
    assert_true(fake.calls <= LOG);
    for (; at < fake.calls && seen <= before; at++) seen += !strcmp(fake.log[at], name);
    assert_int_equal(seen, before + 1);
    return at - 1;
}

/* From call `at` on every call of that name fails with that code. */
static inline void fake_fail_from(int at, const char *name, int code) {
    fake.fail_at = at;
    fake.fail_name = name;
    fake.code = code;
}

/* After an open that failed: no engine, a message with `says` in it, and nothing kept. */
static inline void fake_refused(const openpi_engine *engine, const openpi_error *error, const char *says) {
    assert_null(engine);
    assert_non_null(strstr(error->message, says));
    fake_nothing_kept();
}

#endif
