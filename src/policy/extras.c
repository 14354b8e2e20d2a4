/* See extras.h. */
#include "policy/extras.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/guess.h"
#include "base/report.h"
#include "checkpoint/checkpoint.h"
#include "policy/wire/wire_parts.h"

enum { PREFIX = sizeof "openpi/" - 1, DESCRIPTION = 96 };

static openpi_status wrong_noise(const wire_field *field, int dims, openpi_error *error) {
    char what[DESCRIPTION], narrow[32] = "";
    if (dims < OPENPI_ACTION_DIM) snprintf(narrow, sizeof narrow, " or [horizon,%d]", dims);
    return report(error, OPENPI_BAD_INPUT,
                  "\"%s\" of the request is %s, expected float32 [horizon,%d]%s with a horizon of 1 to %d, "
                  "and as many of them as \"openpi/samples\" says",
                  field->key, wire_describe(field, what, sizeof what), OPENPI_ACTION_DIM, narrow,
                  OPENPI_MAX_HORIZON);
}

/* [horizon][32], or [horizon][dims] of a model with fewer dimensions, which reads no others; for several
 * chunks with a dimension before these. */
static openpi_status read_noise(const wire_field *field, extras *out, openpi_error *error) {
    int dims = out->model_dims, is_float = field->element == WIRE_F32 || field->element == WIRE_F64;
    if (field->kind != WIRE_ARRAY || field->rank < 2 || field->rank > 3 || !is_float)
        return wrong_noise(field, dims, error);
    const int64_t *shape = field->shape + field->rank - 2;
    int64_t chunks = field->rank == 3 ? field->shape[0] : 1, rows = shape[0], columns = shape[1];
    if ((columns != OPENPI_ACTION_DIM && columns != dims) || rows < 1 || rows > OPENPI_MAX_HORIZON ||
        chunks < 1 || chunks > OPENPI_MAX_BATCH)
        return wrong_noise(field, dims, error);
    size_t bytes = (size_t)(chunks * rows) * OPENPI_ACTION_DIM * sizeof *out->noise;
    free(out->noise);
    out->noise = calloc(1, bytes);
    if (!out->noise) return report_no_memory(error, bytes, "the noise of a request");
    for (int64_t i = 0; i < field->count; i++) {
        float number = (float)wire_element_at(field->data, field->element, (size_t)i);
        if (!isfinite(number))
            return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request: element %lld is %f, expected a "
                          "finite number", field->key, (long long)i, (double)number);
        out->noise[i / columns * OPENPI_ACTION_DIM + i % columns] = number;
    }
    out->noise_rows = (int)rows;
    out->noise_chunks = field->rank == 3 ? (int)chunks : 0;
    return OPENPI_OK;
}

/* The noise has a row of chunks where several are asked for, and as many. */
static openpi_status check_samples(const extras *extras, openpi_error *error) {
    int chunks = extras->noise_chunks;
    if (!extras->noise_rows || chunks == extras->samples || (!chunks && extras->samples == 1))
        return OPENPI_OK;
    if (!extras->samples)
        return report(error, OPENPI_BAD_INPUT,
                      "\"openpi/noise\" of the request is for %d chunks, expected [horizon,%d] without "
                      "\"openpi/samples\"", chunks, OPENPI_ACTION_DIM);
    return report(error, OPENPI_BAD_INPUT,
                  "\"openpi/noise\" of the request is for %d chunks, expected [%d,horizon,%d]: "
                  "\"openpi/samples\" is %d", chunks ? chunks : 1, extras->samples, OPENPI_ACTION_DIM,
                  extras->samples);
}

static openpi_status read_deadline(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    if (field->kind != WIRE_NUMBER)
        return report(error, OPENPI_BAD_INPUT,
                      "\"%s\" of the request is %s, expected a number of milliseconds", field->key,
                      wire_describe(field, what, sizeof what));
    if (!(field->number > 0 && isfinite(field->number)))
        return report(error, OPENPI_BAD_INPUT,
                      "\"%s\" of the request is %g, expected a number of milliseconds above 0", field->key,
                      field->number);
    out->deadline_ms = field->number;
    return OPENPI_OK;
}

static openpi_status read_last_action(const wire_field *field, extras *out, openpi_error *error) {
    if (field->kind != WIRE_ARRAY) return wire_refuse(field, "an array of numbers, one action", error);
    TRY(wire_read_doubles(field, out->last, OPENPI_ACTION_DIM, &out->last_count, error));
    for (int i = 0; i < out->last_count; i++)
        if (!isfinite(out->last[i]))
            return report(error, OPENPI_BAD_INPUT,
                          "\"%s\" of the request: number %d is %f, expected a finite number", field->key, i,
                          out->last[i]);
    return OPENPI_OK;
}

/* ---- real-time chunking ----------------------------------------------------------------------------- */

enum { RTC_EXECUTED = 1, RTC_DELAY = 2, RTC_OPTIONAL = 4, RTC_MAP = 8, STEPS_MOST = 1000000 };

static openpi_status read_int(const wire_field *field, int low, int high, int *out, openpi_error *error) {
    char what[DESCRIPTION];
    if (field->kind != WIRE_NUMBER)
        return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request is %s, expected a whole number from %d "
                      "to %d", field->key, wire_describe(field, what, sizeof what), low, high);
    if (!(field->number >= low && field->number <= high && field->number == floor(field->number)))
        return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request is %g, expected a whole number from %d "
                      "to %d", field->key, field->number, low, high);
    *out = (int)field->number;
    return OPENPI_OK;
}

/* The place of the field's text among names[count]. */
static openpi_status read_choice(const wire_field *field, const char *const *names, int count, int *out,
                                 openpi_error *error) {
    char what[DESCRIPTION], expected[DESCRIPTION] = "";
    int shown = field->bytes < 20 ? (int)field->bytes : 20;
    for (int i = 0; i < count; i++) {
        size_t used = strlen(expected);
        if (field->kind == WIRE_TEXT && field->bytes == strlen(names[i]) &&
            !memcmp(field->text, names[i], field->bytes)) {
            *out = i;
            return OPENPI_OK;
        }
        snprintf(expected + used, sizeof expected - used, "%s%s", i ? ", " : "", names[i]);
    }
    if (field->kind == WIRE_TEXT) snprintf(what, sizeof what, "\"%.*s\"", shown, field->text);
    else wire_describe(field, what, sizeof what);
    report(error, OPENPI_BAD_INPUT, "\"%s\" of the request is %s, expected one of %s", field->key, what,
           expected);
    return guess_add(error, OPENPI_BAD_INPUT, what, expected);
}

static openpi_status read_samples(const wire_field *field, extras *out, openpi_error *error) {
    return read_int(field, 1, OPENPI_MAX_BATCH, &out->samples, error);
}

static openpi_status read_executed(const wire_field *field, extras *out, openpi_error *error) {
    out->rtc_given |= RTC_EXECUTED;
    return read_int(field, 0, STEPS_MOST, &out->rtc_executed, error);
}

static openpi_status read_delay(const wire_field *field, extras *out, openpi_error *error) {
    out->rtc_given |= RTC_DELAY;
    return read_int(field, 0, OPENPI_MAX_HORIZON - 1, &out->rtc_delay, error);
}

static openpi_status read_horizon(const wire_field *field, extras *out, openpi_error *error) {
    out->rtc_given |= RTC_OPTIONAL;
    return read_int(field, 1, OPENPI_MAX_HORIZON, &out->rtc_horizon, error);
}

static openpi_status read_mode(const wire_field *field, extras *out, openpi_error *error) {
    enum { FIRST = OPENPI_RTC_GUIDED };
    int choice;
    out->rtc_given |= RTC_OPTIONAL;
    TRY(read_choice(field, rtc_mode_names + FIRST, RTC_MODES - FIRST, &choice, error));
    out->rtc_mode = (openpi_rtc_mode)(FIRST + choice);
    return OPENPI_OK;
}

static openpi_status read_schedule(const wire_field *field, extras *out, openpi_error *error) {
    enum { FIRST = OPENPI_RTC_ZEROS };
    int choice;
    out->rtc_given |= RTC_OPTIONAL;
    TRY(read_choice(field, rtc_schedule_names + FIRST, RTC_SCHEDULES - FIRST, &choice, error));
    out->rtc_schedule = (openpi_rtc_schedule)(FIRST + choice);
    return OPENPI_OK;
}

static openpi_status read_max_weight(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    out->rtc_given |= RTC_OPTIONAL;
    if (field->kind == WIRE_NUMBER && field->number > 0 && isfinite(field->number)) {
        out->rtc_max_weight = field->number;
        return OPENPI_OK;
    }
    if (field->kind == WIRE_NUMBER) ascii_print(what, sizeof what, "%g", field->number);
    else wire_describe(field, what, sizeof what);
    return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request is %s, expected a number above 0",
                  field->key, what);
}

static openpi_status read_map(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    if (field->kind == WIRE_MAP) {
        out->rtc_given |= RTC_MAP;
        return OPENPI_OK;
    }
    return report(error, OPENPI_BAD_INPUT,
                  "\"%s\" of the request is %s, expected a map with \"executed\" and \"delay\"", field->key,
                  wire_describe(field, what, sizeof what));
}

static openpi_status check_rtc(const extras *extras, openpi_error *error) {
    int both = RTC_EXECUTED | RTC_DELAY;
    if (!extras->rtc_given || (extras->rtc_given & both) == both) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT, "\"openpi/rtc\" of the request has no \"%s\"",
                  extras->rtc_given & RTC_EXECUTED ? "delay" : "executed");
}

/* ---- what a runner tells ---------------------------------------------------------------------------- */

/* In the order of openpi_reason, without NONE. */
static const char *const reasons[] = {"starting",     "no_actions", "old_observation", "frozen_camera",
                                      "black_camera", "lost",       "failed",          "limit",
                                      "asked"};
enum { REASONS = sizeof reasons / sizeof *reasons };
_Static_assert((int)REASONS == (int)OPENPI_REASON_ASKED, "every reason has a name");

static openpi_status read_runner(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    out->runner_given = 1;
    if (field->kind == WIRE_MAP) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "\"%s\" of the request is %s, expected a map of \"executed\", \"held_ms\" and \"reason\"",
                  field->key, wire_describe(field, what, sizeof what));
}

static openpi_status read_used(const wire_field *field, extras *out, openpi_error *error) {
    out->runner_given = 1;
    return read_int(field, 0, STEPS_MOST, &out->runner_executed, error);
}

static openpi_status read_held(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    out->runner_given = 1;
    if (field->kind == WIRE_NUMBER && field->number >= 0 && isfinite(field->number)) {
        out->runner_held_ms = field->number;
        return OPENPI_OK;
    }
    if (field->kind == WIRE_NUMBER) ascii_print(what, sizeof what, "%g", field->number);
    else wire_describe(field, what, sizeof what);
    return report(error, OPENPI_BAD_INPUT,
                  "\"%s\" of the request is %s, expected a number of milliseconds, 0 or more", field->key,
                  what);
}

static openpi_status read_reason(const wire_field *field, extras *out, openpi_error *error) {
    int choice;
    out->runner_given = 1;
    TRY(read_choice(field, reasons, REASONS, &choice, error));
    out->runner_reason = (openpi_reason)(choice + 1);
    return OPENPI_OK;
}

void extras_give_maps(const extras *extras, openpi_extras *out) {
    out->rtc = extras->rtc_given != 0;
    out->rtc_executed = extras->rtc_executed;
    out->rtc_delay = extras->rtc_delay;
    out->rtc_mode = extras->rtc_mode;
    out->rtc_schedule = extras->rtc_schedule;
    out->rtc_horizon = extras->rtc_horizon;
    out->rtc_max_weight = extras->rtc_max_weight;
    out->runner = extras->runner_given;
    out->runner_executed = extras->runner_executed;
    out->runner_held_ms = extras->runner_held_ms;
    out->runner_reason = extras->runner_reason;
}

/* ---- all keys --------------------------------------------------------------------------------------- */

static const struct {
    const char *name;            /* after "openpi/"                                                        */
    openpi_status (*read)(const wire_field *field, extras *out, openpi_error *error);
} known[] = {
    {"noise", read_noise},
    {"samples", read_samples},
    {"deadline_ms", read_deadline},
    {"last_action", read_last_action},
    {"rtc", read_map},
    {"rtc/executed", read_executed},
    {"rtc/delay", read_delay},
    {"rtc/horizon", read_horizon},
    {"rtc/mode", read_mode},
    {"rtc/schedule", read_schedule},
    {"rtc/max_weight", read_max_weight},
    {"runner", read_runner},
    {"runner/executed", read_used},
    {"runner/held_ms", read_held},
    {"runner/reason", read_reason},
};
enum { KNOWN = sizeof known / sizeof *known };

void extras_clear(extras *extras) {
    free(extras->noise);
    extras->noise = NULL;
    extras->noise_rows = extras->noise_chunks = extras->samples = 0;
    extras->deadline_ms = 0;
    extras->last_count = 0;
    extras->rtc_given = extras->rtc_executed = extras->rtc_delay = extras->rtc_horizon = 0;
    extras->rtc_mode = OPENPI_RTC_OFF;
    extras->rtc_schedule = OPENPI_RTC_SCHEDULE_DEFAULT;
    extras->rtc_max_weight = 0;
    extras->runner_given = 0;
    extras->runner_executed = -1;
    extras->runner_held_ms = 0;
    extras->runner_reason = OPENPI_REASON_NONE;
}

/* Maps and their entries. */
static const struct {
    const char *map, *entries;
} maps[] = {{"rtc", "executed, delay, horizon, mode, schedule and max_weight"},
            {"runner", "executed, held_ms and reason"}};
enum { MAPS = sizeof maps / sizeof *maps };

static openpi_status refuse_unknown(const wire_field *field, openpi_error *error) {
    static const char keys[] = "openpi/noise, openpi/samples, openpi/deadline_ms, openpi/last_action, "
                               "openpi/rtc and openpi/runner";
    const char *name = field->key + PREFIX;
    for (int i = 0; i < MAPS; i++) {
        size_t bytes = strlen(maps[i].map);
        if (strncmp(name, maps[i].map, bytes) || name[bytes] != '/') continue;
        report(error, OPENPI_BAD_INPUT,
               "\"openpi/%s\" of the request has an unknown entry \"%s\", known are %s", maps[i].map,
               name + bytes + 1, maps[i].entries);
        return guess_add(error, OPENPI_BAD_INPUT, name + bytes + 1, maps[i].entries);
    }
    report(error, OPENPI_BAD_INPUT, "the request has an unknown key \"%s\", known are %s", field->key, keys);
    return guess_add(error, OPENPI_BAD_INPUT, field->key, keys);
}

openpi_status extras_read(const wire_message *message, int dims, extras *out, openpi_error *error) {
    extras_clear(out);
    out->model_dims = dims;
    for (int i = 0; i < wire_count(message); i++) {
        const wire_field *field = wire_at(message, i);
        int which = 0;
        if (strncmp(field->key, "openpi/", PREFIX) || field->kind == WIRE_NIL) continue;
        if (field->sentence) return report(error, OPENPI_BAD_INPUT, "%s", field->sentence);
        while (which < KNOWN && strcmp(field->key + PREFIX, known[which].name)) which++;
        TRY(which == KNOWN ? refuse_unknown(field, error) : known[which].read(field, out, error));
    }
    TRY(check_samples(out, error));
    return check_rtc(out, error);
}
