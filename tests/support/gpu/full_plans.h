/* Models of which only the sizes are known, for tests that look at plans of the full model: no weight is
 * read or made, and no GPU is needed. */
#ifndef TESTS_FULL_PLANS_H
#define TESTS_FULL_PLANS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "openpi_internal.h"

static openpi_error error = OPENPI_ERROR_INIT;

static inline void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

typedef struct subject {
    pool *pool;
    device *device;
    checkpoint *checkpoint;
    model *model;
} subject;

/* On a device that the subject closes. dims: instead of the spec's, or NULL. off: as in model_measure. */
static inline subject open_subject_on(device *device, const char *spec, const char *dims, openpi_dtype dtype,
                                      const char *formats, uint32_t off) {
    subject s = {.device = device};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    const checkpoint_source source = {.synthetic = &synthetic};
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    if (dims) must(openpi_dims_parse(dims, &synthetic.dims, &error));
    must(checkpoint_open_source(&source, &s.checkpoint, &error));
    model_types types = engine_types(dtype, OPENPI_WEIGHTS_AUTO);
    if (formats) must(formats_parse(formats, &types, &error));
    must(model_measure(s.checkpoint, s.device, types, off, &s.model, &error));
    return s;
}

/* On the CPU. */
static inline subject open_subject(const char *spec, const char *dims, openpi_dtype dtype,
                                   const char *formats, uint32_t off) {
    pool *pool;
    device *device;
    must(pool_create(1, 0, &pool, &error));
    must(backend_cpu.open("cpu", &(device_options){.pool = pool}, &device, &error));
    subject s = open_subject_on(device, spec, dims, dtype, formats, off);
    s.pool = pool;
    return s;
}

static inline void close_subject(subject *s) {
    model_close(s->model);
    checkpoint_close(s->checkpoint);
    s->device->backend->close(s->device);
    pool_close(s->pool);
}

#endif
