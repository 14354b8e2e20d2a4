/* What the tests of a whole engine on a GPU share: random calls, and an engine on cuda:0 or the reason why
 * there is none.
 *
 *   OPENPI_TEST_GPU_PATH=portable   (environment of the test program only) the portable kernels
 *   OPENPI_TEST_GPU_AS=rtx4090      the same, as that card would run them */
#ifndef TESTS_GPU_ENGINE_H
#define TESTS_GPU_ENGINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/gpu.h"
#include "openpi_internal.h"
#include "random_numbers.h"

static openpi_error error = OPENPI_ERROR_INIT;

static inline void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

enum { BATCH = 3, HORIZON = 50, PROMPT = 200, PIXELS = 224 * 224 * 3 };

typedef struct inputs {
    openpi_sample samples[BATCH];
    uint8_t *images;
    int32_t tokens[BATCH][PROMPT];
    float state[BATCH][OPENPI_ACTION_DIM];
    float noise[BATCH * HORIZON * OPENPI_ACTION_DIM];
} inputs;

/* Cameras and prompt lengths differ from call to call and from sample to sample. */
static inline void draw(inputs *in) {
    for (int i = 0; i < BATCH * OPENPI_CAMERAS * PIXELS; i++) in->images[i] = (uint8_t)next_random();
    for (int b = 0; b < BATCH; b++) {
        openpi_sample *s = &in->samples[b];
        *s = (openpi_sample){.size = sizeof *s,
                             .tokens = in->tokens[b],
                             .token_count = (int)(next_random() % (PROMPT + 1)),
                             .state = in->state[b]};
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            s->images[c] = in->images + (size_t)(b * OPENPI_CAMERAS + c) * PIXELS;
            s->image_mask[c] = c == 0 || next_random() % 3;
        }
        for (int i = 0; i < PROMPT; i++) in->tokens[b][i] = (int32_t)(next_random() % 2000);
        for (int i = 0; i < OPENPI_ACTION_DIM; i++) in->state[b][i] = (float)next_random() * 0x1p-31f - 1;
    }
    openpi_noise(next_random(), 0, in->noise, sizeof in->noise / sizeof *in->noise);
}

/* What main returns: 77, which ctest counts as skipped, where nothing failed for want of a GPU. */
static int without_gpu;
static inline int verdict(int failed) { return failed ? failed : without_gpu ? 77 : 0; }

static inline int open_engine(const char *spec, openpi_dtype dtype, openpi_engine **engine) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = "cuda:0";
    options.dtype = dtype;
    options.path = getenv("OPENPI_TEST_GPU_PATH");
    options.as_card = getenv("OPENPI_TEST_GPU_AS");
    openpi_status status = openpi_engine_open(NULL, &options, engine, &error);
    if (status == OPENPI_NO_DEVICE) {
        print_message("skipped: %s\n", error.message);
        without_gpu = 1;
        return 0;
    }
    must(status);
    return 1;
}

static inline size_t free_bytes(const openpi_engine *engine) {
    const gpu_device *device = (const gpu_device *)engine->device;
    size_t left = 0, total = 0;
    assert_int_equal(device->driver.enter(&device->driver, device->context), 0);
    assert_int_equal(device->driver.memory_info(&device->driver, &left, &total), 0);
    return left;
}

#endif
