/* Real-time chunking from and into files: see previous.h. */
#include "previous.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "input.h"
#include "npy.h"
#include "output.h"

enum { DIMS = OPENPI_ACTION_DIM };

/* An option that means nothing without --rtc. */
static const char *stray_option(const previous_values *v) {
    return v->executed     ? "executed"
           : v->delay      ? "delay"
           : v->overlap    ? "overlap"
           : v->schedule   ? "schedule"
           : v->max_weight ? "max-weight"
                           : NULL;
}

static int check_options(const verb *verb, const previous_values *v, previous_chunk *out) {
    const char *stray = v->mode ? NULL : stray_option(v);
    if (stray) return usage_error(verb, "--%s has no effect without --rtc and --previous", stray);
    if (v->previous && !v->mode)
        return usage_error(verb, "--previous needs --rtc: guided for any checkpoint, or trained");
    if (v->mode && !v->previous)
        return usage_error(verb, "--rtc needs the chunk that the robot is executing: --previous FILE");
    if (v->mode == OPENPI_RTC_VJP)
        return usage_error(verb,
                           "--rtc vjp, guidance through the denoiser's Jacobian, needs a backward pass that "
                           "openpi does not have: expected guided or trained");
    if (v->mode == OPENPI_RTC_TRAINED && (v->overlap || v->schedule || v->max_weight))
        return usage_error(verb, "--%s belongs to --rtc guided, and --rtc is trained",
                           v->overlap    ? "overlap"
                           : v->schedule ? "schedule"
                                         : "max-weight");
    if (!v->max_weight) return END_FINE;
    char *end;
    out->rtc.max_weight = ascii_number(v->max_weight, &end);
    if (end != v->max_weight && !*end && isfinite(out->rtc.max_weight) && out->rtc.max_weight > 0)
        return END_FINE;
    return usage_error(verb, "--max-weight is '%s', expected a number above 0", v->max_weight);
}

static int check_shape(const verb *verb, const previous_values *v, const previous_chunk *c) {
    const char *path = input_name(v->previous);
    if (c->rows > OPENPI_MAX_HORIZON || c->dims > DIMS || (c->element == 8 && c->dims != DIMS))
        return input_error(verb, "%s: shape is [%d, %d], expected [steps, %s] of float%d, at most %d steps",
                           path, c->rows, c->dims, c->element == 8 ? "32" : "1 to 32", 8 * c->element,
                           OPENPI_MAX_HORIZON);
    if (v->executed < c->rows) return END_FINE;
    return usage_error(verb, "--executed is %d, but %s has %d steps: nothing is left to follow on from",
                       v->executed, path, c->rows);
}

int previous_read(const verb *verb, const previous_values *v, previous_chunk *out) {
    char *bytes, why[NPY_REASON];
    size_t count;
    out->rtc = (openpi_rtc){.size = sizeof out->rtc};
    int end = check_options(verb, v, out);
    if (end != END_FINE || !v->previous) return end;
    end = file_load(verb, v->previous, &bytes, &count);
    if (end != END_FINE) return end;
    const char *data = npy_read(bytes, count, &out->rows, &out->dims, &out->element, why);
    end = data ? check_shape(verb, v, out) : input_error(verb, "%s: %s", input_name(v->previous), why);
    if (end == END_FINE) {
        size_t need = (size_t)out->rows * (size_t)out->dims * (size_t)out->element;
        void *copy = allocate(need);
        memcpy(copy, data, need);
        if (out->element == 8) out->kept = copy;
        else out->previous = copy;
    }
    free(bytes);
    return end;
}

int previous_prepare(const verb *verb, const previous_values *v, const openpi_request *request,
                     previous_chunk *out) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_rtc *rtc = &out->rtc;
    if (!v->mode) return END_FINE;
    rtc->mode = (openpi_rtc_mode)v->mode;
    rtc->schedule = (openpi_rtc_schedule)v->schedule;
    rtc->horizon = v->overlap;
    rtc->delay = v->delay;
    if (out->element == 4) {
        rtc->previous = out->previous + v->executed * out->dims;
        rtc->rows = out->rows - v->executed;
        rtc->dims = out->dims;
        return END_FINE;
    }
    size_t capacity = (size_t)out->rows * DIMS;
    out->previous = allocate(capacity * sizeof *out->previous);
    if (openpi_request_previous(request, out->kept, out->rows, v->executed, out->previous, capacity,
                                &rtc->rows, &rtc->dims, &error) != OPENPI_OK)
        return library_error(verb, &error);
    rtc->previous = out->previous;
    return END_FINE;
}

void previous_say(const verb *verb, const previous_values *v, const previous_chunk *chunk,
                  const openpi_engine_info *engine, int steps) {
    double weight = v->max_weight ? chunk->rtc.max_weight : engine->rtc_max_weight;
    if (v->mode != OPENPI_RTC_GUIDED) return;
    if (engine->rtc_max_delay)
        fprintf(stderr,
                "openpi %s: warning: the checkpoint was trained for real-time chunking with delays up to %d "
                "steps and runs guided: --rtc trained runs it as it was trained\n", verb->name,
                engine->rtc_max_delay);
    if (weight <= steps) return;
    fprintf(stderr,
            "openpi %s: note: the weight of the pull, %g, is cut to %d, the number of denoising steps, at "
            "which a step lands on the previous chunk (--max-weight, --steps)\n", verb->name, weight, steps);
}

int previous_keep(const verb *verb, const previous_values *v, const openpi_request *request,
                  const float *model_actions, int horizon) {
    openpi_error error = OPENPI_ERROR_INIT;
    double kept[OPENPI_MAX_HORIZON * DIMS];
    if (!v->keep) return END_FINE;
    if (openpi_request_keep(request, model_actions, horizon, kept, OPENPI_MAX_HORIZON * DIMS, &error))
        return library_error(verb, &error);
    npy_write(output_file(v->keep), kept, horizon, DIMS);
    return END_FINE;
}

json_t *previous_json(const previous_values *v, const previous_chunk *c) {
    if (!v->mode) return json_null();
    return json_pack("{s:s,s:i,s:i,s:i}", "mode", v->mode == OPENPI_RTC_GUIDED ? "guided" : "trained", "rows",
                     c->rtc.rows, "executed", v->executed, "delay", v->delay);
}

void previous_free(previous_chunk *chunk) {
    free(chunk->previous);
    free(chunk->kept);
}
