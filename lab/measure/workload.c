/* Synthetic calls. */
#include "lab/measure/workload.h"

#include <stdlib.h>

#include "base/report.h"
#include "openpi_internal.h"

enum { PICTURE = IMAGE_BYTES };

void workload_free(workload_inputs *in) {
    free(in->samples);
    free(in->pixels);
    free(in->tokens);
    free(in->state);
    free(in->noise);
    free(in->actions);
    free(in->previous);
    free(in->rtc);
    *in = (workload_inputs){0};
}

static uint64_t next_random(uint64_t *random) {
    return *random = *random * 6364136223846793005u + 1442695040888963407u;
}

static openpi_status take(const openpi_session *s, const workload *w, workload_inputs *in,
                          openpi_error *error) {
    size_t batch = (size_t)w->batch, rows = batch * (size_t)s->options.horizon * OPENPI_ACTION_DIM;
    in->samples = calloc(batch, sizeof *in->samples);
    in->pixels = malloc(batch * OPENPI_CAMERAS * PICTURE);
    in->tokens = malloc((batch * (size_t)w->prompt + 1) * sizeof *in->tokens);
    in->state = malloc(batch * OPENPI_ACTION_DIM * sizeof *in->state);
    in->noise = malloc(rows * sizeof *in->noise);
    in->actions = malloc(rows * sizeof *in->actions);
    if (in->samples && in->pixels && in->tokens && in->state && in->noise && in->actions) return OPENPI_OK;
    return report_no_memory(error, batch * OPENPI_CAMERAS * PICTURE, "the workload's inputs");
}

/* The robot has executed nothing of its last chunk yet. */
static openpi_status make_chunking(const openpi_session *s, const workload *w, workload_inputs *in,
                                   openpi_error *error) {
    size_t batch = (size_t)w->batch, one = (size_t)s->options.horizon * OPENPI_ACTION_DIM;
    in->previous = malloc(batch * one * sizeof *in->previous);
    in->rtc = calloc(batch, sizeof *in->rtc);
    if (!in->previous || !in->rtc)
        return report_no_memory(error, batch * one * sizeof *in->previous, "the workload's inputs");
    openpi_noise(w->seed, 2, in->previous, batch * one);
    for (size_t b = 0; b < batch; b++) {
        in->rtc[b] = (openpi_rtc)OPENPI_RTC_INIT;
        in->rtc[b].mode = w->rtc;
        in->rtc[b].delay = w->delay;
        in->rtc[b].previous = in->previous + b * one;
        in->rtc[b].rows = s->options.horizon;
        in->rtc[b].dims = OPENPI_ACTION_DIM;
    }
    return OPENPI_OK;
}

openpi_status workload_make(const openpi_session *s, const workload *w, workload_inputs *in,
                            openpi_error *error) {
    *in = (workload_inputs){0};
    if (w->batch < 1 || w->batch > s->options.batch || w->prompt < 0 || w->prompt > s->options.max_prompt)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "workload: batch %d with %d prompt tokens, expected at most batch %d and %d tokens "
                      "(the session's)",
                      w->batch, w->prompt, s->options.batch, s->options.max_prompt);
    TRY(take(s, w, in, error));
    if (w->rtc) TRY(make_chunking(s, w, in, error));
    size_t batch = (size_t)w->batch, prompt = (size_t)w->prompt;
    int vocab = s->engine->checkpoint->dims.vocab;
    uint64_t random = w->seed * 2 + 1;
    in->batch = w->batch;
    for (size_t i = 0; i < batch * OPENPI_CAMERAS * PICTURE; i++)
        in->pixels[i] = (uint8_t)(next_random(&random) >> 56);
    for (size_t i = 0; i < batch * prompt; i++)
        in->tokens[i] = (int32_t)((next_random(&random) >> 33) % (uint64_t)vocab);
    openpi_noise(w->seed, 1, in->state, batch * OPENPI_ACTION_DIM);
    openpi_noise(w->seed, 0, in->noise, batch * (size_t)s->options.horizon * OPENPI_ACTION_DIM);
    for (size_t b = 0; b < batch; b++) {
        openpi_sample *sample = &in->samples[b];
        sample->size = sizeof *sample;
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            sample->images[c] = in->pixels + (b * OPENPI_CAMERAS + (size_t)c) * PICTURE;
            sample->image_mask[c] = w->cameras[c];
        }
        sample->tokens = in->tokens + b * prompt;
        sample->token_count = w->prompt;
        sample->state = in->state + b * OPENPI_ACTION_DIM;
    }
    return OPENPI_OK;
}

static int greatest_divisor(int a, int b) { return b ? greatest_divisor(b, a % b) : a; }

/* Lengths one stride apart, modulo their number; a stride coprime with that number visits them all. */
void workload_change_prompts(workload_inputs *in, const workload *w, int call) {
    if (w->prompt < 2) return;
    uint64_t random = w->seed * 2 + 1, lengths = (uint64_t)w->prompt;
    int stride = (int)((next_random(&random) >> 33) % lengths);
    while (greatest_divisor(w->prompt, stride) != 1) stride = (stride + 1) % w->prompt;
    for (int b = 0; b < in->batch; b++) {
        uint64_t place = ((uint64_t)call + (uint64_t)b) * (uint64_t)stride % lengths;
        in->samples[b].token_count = call < 0 ? (w->prompt + 1) / 2 : (int)place + 1;
    }
}

openpi_status workload_run(openpi_session *s, workload_inputs *in, openpi_timing *timing,
                           openpi_error *error) {
    return openpi_session_run_rtc(s, in->samples, in->rtc, in->batch, in->noise, in->actions, timing, error);
}
