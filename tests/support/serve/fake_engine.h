/* An engine over the driver that is not there (fake_gpu.h), and a call of its sessions. */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include "fake_gpu.h"
#include "openpi_internal.h"

/* `off`: switches, as in device_options. */
static inline openpi_status fake_engine_open(const backend *backend, const openpi_synthetic *synthetic,
                                             const char *path, uint32_t off, openpi_engine **out,
                                             openpi_error *error) {
    openpi_engine *e = engine_new();
    device_options options = {.path = path, .off = off};
    assert_int_equal(pool_create(1, 0, &e->pool, error), OPENPI_OK);
    e->dtype = OPENPI_BF16;
    options.pool = e->pool;
    openpi_status status = gpu_open(fake_vendor(), backend, "cuda:0", &options, &e->device, error);
    if (status == OPENPI_OK) status = checkpoint_open(NULL, synthetic, &e->checkpoint, error);
    model_types types = formats_all(DTYPE_BF16, FORMAT_BF16);
    if (status == OPENPI_OK)
        status = model_load(e->checkpoint, e->device, types, off, e->pool, NULL, NULL, &e->model, error);
    if (status == OPENPI_OK) {
        *out = e;
        return status;
    }
    openpi_engine_close(e);
    return status;
}

/* One sample, with two of its three cameras. */
static inline openpi_status fake_infer(openpi_session *session, int prompt, openpi_timing *timing,
                                       openpi_error *error) {
    static uint8_t image[224 * 224 * 3];
    static const float state[OPENPI_ACTION_DIM];
    static float actions[10 * OPENPI_ACTION_DIM];
    static const int32_t tokens[48] = {2, 5, 9};
    openpi_sample sample = {.size = sizeof(openpi_sample),
                            .images = {image, image, image},
                            .image_mask = {1, 0, 1},
                            .tokens = tokens,
                            .token_count = prompt,
                            .state = state};
    return openpi_session_run(session, &sample, 1, NULL, actions, timing, error);
}

#endif
