/* What the tests of the resident kernels on a GPU share: a random call, an engine whose device may run such a
 * kernel or the reason why there is none, and a session with or without the kernel. */
#ifndef TESTS_RESIDENT_CALLS_H
#define TESTS_RESIDENT_CALLS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "random_numbers.h"
#include "resident.h"

static openpi_error error = OPENPI_ERROR_INIT;

static inline void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

enum { PIXELS = 224 * 224 * 3, MOST_PROMPT = 200, MOST_VALUES = 64 * OPENPI_ACTION_DIM };

/* One sample. */
typedef struct inputs {
    openpi_sample sample;
    uint8_t *images;
    int32_t tokens[MOST_PROMPT];
    float state[OPENPI_ACTION_DIM], noise[MOST_VALUES];
    int prompt, values;                    /* how many tokens at most, and how much noise there is          */
    int cameras;                           /* that have a picture                                           */
} inputs;

static inline inputs *inputs_open(int prompt, int horizon) {
    inputs *in = calloc(1, sizeof *in);
    assert_non_null(in);
    in->prompt = prompt;
    in->values = horizon * OPENPI_ACTION_DIM;
    assert_true(prompt <= MOST_PROMPT && in->values <= MOST_VALUES);
    in->images = malloc((size_t)OPENPI_CAMERAS * PIXELS);
    assert_non_null(in->images);
    return in;
}

static inline void inputs_close(inputs *in) {
    free(in->images);
    free(in);
}

/* Instead of a mask: the first camera and by chance the others. */
enum { ANY_CAMERAS = -1 };

/* A random sample. mask: bit c for camera c, or ANY_CAMERAS; 0: no picture at all. */
static inline void draw(inputs *in, int mask) {
    openpi_sample *s = &in->sample;
    for (int i = 0; i < OPENPI_CAMERAS * PIXELS; i++) in->images[i] = (uint8_t)next_random();
    *s = (openpi_sample){.size = sizeof *s,
                         .tokens = in->tokens,
                         .token_count = 1 + (int)(next_random() % (uint32_t)in->prompt),
                         .state = in->state};
    in->cameras = 0;
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        const int on = mask == ANY_CAMERAS ? c == 0 || next_random() % 3 : mask >> c & 1;
        s->images[c] = in->images + (size_t)c * PIXELS;
        s->image_mask[c] = (uint8_t)on;
        in->cameras += on;
    }
    for (int i = 0; i < in->prompt; i++) in->tokens[i] = (int32_t)(next_random() % 2000);
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) in->state[i] = (float)next_random() * 0x1p-31f - 1;
    openpi_noise(next_random(), 0, in->noise, (size_t)in->values);
}

/* What main returns: 77, which ctest counts as skipped, where nothing failed for want of a GPU. */
static int without_gpu;
static inline int verdict(int failed) { return failed ? failed : without_gpu ? 77 : 0; }

/* An engine whose device may run the kernel of that switch, or NULL. card: what the device keeps to, NULL for
 * all it has. formats: as in openpi_engine_options. kernel: its name in words. */
static inline openpi_engine *open_resident_as(const char *card, const char *formats,
                                              const openpi_synthetic *synthetic, openpi_dtype dtype,
                                              op_switch which, const char *kernel) {
    openpi_engine *engine;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.synthetic = synthetic;
    options.device = "cuda:0";
    options.dtype = dtype;
    options.as_card = card;
    options.formats = formats;
    openpi_status status = openpi_engine_open(NULL, &options, &engine, &error);
    if (status == OPENPI_NO_DEVICE || status == OPENPI_UNSUPPORTED) {
        print_message("skipped: %s\n", error.message);
        without_gpu = 1;
        return NULL;
    }
    must(status);
    if (has_switch(engine, which)) return engine;
    print_message("skipped: this device has no %s\n", kernel);
    openpi_engine_close(engine);
    return NULL;
}

static inline openpi_engine *open_resident(const openpi_synthetic *synthetic, openpi_dtype dtype,
                                           op_switch which, const char *kernel) {
    return open_resident_as(NULL, NULL, synthetic, dtype, which, kernel);
}

/* A thread's calls of ten actions, always of the same inputs. */
typedef struct caller {
    openpi_session *session;
    inputs *in;
    float expected[MOST_VALUES];
    int calls, bad;                        /* bad: that fail or have other bits than expected               */
} caller;

static inline void *call_often(void *user) {
    caller *c = user;
    float actions[MOST_VALUES];
    openpi_error own;
    for (int n = 0; n < c->calls; n++) {
        const openpi_status status =
            openpi_session_run(c->session, &c->in->sample, 1, c->in->noise, actions, NULL, &own);
        c->bad += status != OPENPI_OK ||
                  memcmp(actions, c->expected, (size_t)(10 * OPENPI_ACTION_DIM) * sizeof *actions) != 0;
    }
    return NULL;
}

/* Two at the same time. */
static inline void call_together(caller callers[2]) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

/* A session with or without the kernel of that switch, which the engine has on afterwards. */
static inline openpi_session *open_switched(openpi_engine *engine, op_switch which, int on,
                                            const openpi_session_options *options) {
    openpi_session *session;
    set_switch(engine, which, on);
    must(openpi_session_create(engine, options, &session, &error));
    set_switch(engine, which, 1);
    assert_non_null(session->kinds.recordings[CALL_ANY]);
    return session;
}

#endif
