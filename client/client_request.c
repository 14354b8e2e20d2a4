/* An observation as the bytes of a request; see client.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_bytes.h"

static const struct {
    const char *dtype;
    size_t bytes;
} kinds[] = {[CLIENT_U8] = {"|u1", 1}, [CLIENT_F32] = {"<f4", 4}, [CLIENT_F64] = {"<f8", 8}};

/* ---- what can be said ----------------------------------------------------------------------------- */

/* Elements of an array; 0: a size is none. */
static size_t elements(const client_field *f) {
    size_t count = 1;
    if (f->rank < 1 || f->rank > 3) return 0;
    for (int i = 0; i < f->rank; i++) count *= f->shape[i] > 0 ? (size_t)f->shape[i] : 0;
    return count;
}

static int check_field(const client_field *f, int place, char why[CLIENT_SENTENCE]) {
    if (!f->key || !f->key[0])
        snprintf(why, CLIENT_SENTENCE, "field %d of the request has no name", place);
    else if (!f->data)
        snprintf(why, CLIENT_SENTENCE, "\"%.100s\" of the request has no data", f->key);
    else if (f->kind != CLIENT_TEXT && !elements(f))
        snprintf(why, CLIENT_SENTENCE, "\"%.100s\" of the request has rank %d and sizes %d, %d, %d, expected "
                 "1 to 3 sizes of at least 1", f->key, f->rank, f->shape[0], f->shape[1], f->shape[2]);
    else return 1;
    return 0;
}

static int check(const client_request *r, char why[CLIENT_SENTENCE]) {
    for (int i = 0; i < r->field_count; i++)
        if (!check_field(&r->fields[i], i, why)) return 0;
    if (r->rtc && (r->rtc->executed < 0 || r->rtc->delay < 0 || r->rtc->horizon < 0))
        snprintf(why, CLIENT_SENTENCE, "executed %d, delay %d and horizon %d of the request, expected no "
                 "negative one", r->rtc->executed, r->rtc->delay, r->rtc->horizon);
    else if (r->noise && (r->noise_rows < 1 || r->noise_dims < 1))
        snprintf(why, CLIENT_SENTENCE, "the request's noise has %d rows of %d, expected at least 1 of each",
                 r->noise_rows, r->noise_dims);
    else return 1;
    return 0;
}

/* ---- its bytes ------------------------------------------------------------------------------------ */

/* As numpy's arrays are packed by openpi-client: keys are bytes. */
static int put_array(client_message *m, const client_field *f) {
    int good = client_put_map(m, 4) && client_put_bin(m, "__ndarray__", 11) && client_put_true(m) &&
               client_put_bin(m, "data", 4) &&
               client_put_bin(m, f->data, elements(f) * kinds[f->kind].bytes) &&
               client_put_bin(m, "dtype", 5) && client_put_text(m, kinds[f->kind].dtype) &&
               client_put_bin(m, "shape", 5) && client_put_array_head(m, (size_t)f->rank);
    for (int i = 0; i < f->rank; i++) good = good && client_put_uint(m, (uint64_t)f->shape[i]);
    return good;
}

static int put_field(client_message *m, const client_field *f) {
    if (!client_put_text(m, f->key)) return 0;
    return f->kind == CLIENT_TEXT ? client_put_text(m, f->data) : put_array(m, f);
}

/* 1: both stand in the same map, neither in the observation itself. */
static int same_map(const client_field *a, const client_field *b) {
    return a->map && b->map && !strcmp(a->map, b->map);
}

/* How many fields from f on stand in the map of the first one. */
static int fields_of_map(const client_field *f, int count) {
    int n = 1;
    while (n < count && same_map(f, f + n)) n++;
    return n;
}

static int put_fields(client_message *m, const client_field *fields, int count) {
    int good = 1;
    for (int i = 0; i < count && good; i++) {
        const client_field *f = &fields[i];
        if (f->map && (!i || !same_map(f, f - 1)))
            good = client_put_text(m, f->map) &&
                   client_put_map(m, (size_t)fields_of_map(f, count - i));
        good = good && put_field(m, f);
    }
    return good;
}

static int put_rtc(client_message *m, const client_rtc *rtc) {
    const int more = (rtc->mode != NULL) + (rtc->schedule != NULL) + (rtc->horizon > 0) +
                     (rtc->max_weight > 0);
    int good = client_put_text(m, "openpi/rtc") && client_put_map(m, 2 + (size_t)more) &&
               client_put_text(m, "executed") && client_put_uint(m, (uint64_t)rtc->executed) &&
               client_put_text(m, "delay") && client_put_uint(m, (uint64_t)rtc->delay);
    if (rtc->mode) good = good && client_put_text(m, "mode") && client_put_text(m, rtc->mode);
    if (rtc->horizon > 0)
        good = good && client_put_text(m, "horizon") && client_put_uint(m, (uint64_t)rtc->horizon);
    if (rtc->schedule) good = good && client_put_text(m, "schedule") && client_put_text(m, rtc->schedule);
    if (rtc->max_weight > 0)
        good = good && client_put_text(m, "max_weight") && client_put_double(m, rtc->max_weight);
    return good;
}

static int put_runner(client_message *m, const client_runner *told) {
    const int more = (told->executed >= 0) + (told->reason != NULL);
    int good = client_put_text(m, "openpi/runner") && client_put_map(m, 1 + (size_t)more) &&
               client_put_text(m, "held_ms") && client_put_double(m, told->held_ms);
    if (told->executed >= 0)
        good = good && client_put_text(m, "executed") && client_put_uint(m, (uint64_t)told->executed);
    if (told->reason) good = good && client_put_text(m, "reason") && client_put_text(m, told->reason);
    return good;
}

/* Entries of the observation's own map. */
static size_t entries(const client_request *r) {
    size_t count = (r->rtc != NULL) + (r->runner != NULL) + (r->noise != NULL) + (r->deadline_ms > 0);
    for (int i = 0; i < r->field_count; i++) count += !i || !same_map(&r->fields[i], &r->fields[i - 1]);
    return count;
}

int client_request_write(const client_request *r, client_message *out, char why[CLIENT_SENTENCE]) {
    const client_field noise = {NULL, "openpi/noise", CLIENT_F32, r->noise, 2,
                                {r->noise_rows, r->noise_dims}};
    out->count = 0;
    if (!check(r, why)) return 0;
    int good = client_put_map(out, entries(r)) && put_fields(out, r->fields, r->field_count);
    if (r->rtc) good = good && put_rtc(out, r->rtc);
    if (r->runner) good = good && put_runner(out, r->runner);
    if (r->noise) good = good && put_field(out, &noise);
    if (r->deadline_ms > 0)
        good = good && client_put_text(out, "openpi/deadline_ms") && client_put_double(out, r->deadline_ms);
    if (good) return 1;
    out->count = 0;
    snprintf(why, CLIENT_SENTENCE, "out of memory: a request");
    return 0;
}

void client_message_free(client_message *m) {
    free(m->bytes);
    *m = (client_message){NULL, 0, 0};
}
