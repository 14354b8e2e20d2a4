/* See messages.h. */
#include "messages.h"

#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

/* Memory that msgpack-c writes into. */
typedef struct sink {
    uint8_t *data;
    size_t count, capacity;
} sink;

static int sink_write(void *data, const char *bytes, size_t count) {
    sink *s = data;
    if (count > s->capacity - s->count) return -1;
    memcpy(s->data + s->count, bytes, count);
    s->count += count;
    return 0;
}

static int put_text(msgpack_packer *p, const char *text) {
    return msgpack_pack_str(p, strlen(text)) | msgpack_pack_str_body(p, text, strlen(text));
}

static int put_bin(msgpack_packer *p, const void *data, size_t bytes) {
    return msgpack_pack_bin(p, bytes) | msgpack_pack_bin_body(p, data, bytes);
}

static int put_bin_text(msgpack_packer *p, const char *text) { return put_bin(p, text, strlen(text)); }

static int put_uint_entry(msgpack_packer *p, const char *key, uint64_t value) {
    return put_text(p, key) | msgpack_pack_uint64(p, value);
}

static int put_double_entry(msgpack_packer *p, const char *key, double value) {
    return put_text(p, key) | msgpack_pack_double(p, value);
}

/* A number of a Python list as Python packs it: whole ones are ints in openpi's configs. */
static int put_number(msgpack_packer *p, double value) {
    if (value == floor(value) && fabs(value) < 1e15) return msgpack_pack_int64(p, (int64_t)value);
    return msgpack_pack_double(p, value);
}

/* "notes": what loading the model told of, as openpi_inspect writes it. */
static int put_notes(msgpack_packer *p, const serve_model *m) {
    static const char warning[] = "warning: ";
    int failed = put_text(p, "notes") | msgpack_pack_array(p, (size_t)m->note_count);
    for (const model_note *note = m->notes; note < m->notes + m->note_count; note++) {
        size_t before = note->warning ? sizeof warning - 1 : 0, length = strlen(note->text);
        failed |= msgpack_pack_str(p, before + length);
        failed |= msgpack_pack_str_body(p, warning, before);
        failed |= msgpack_pack_str_body(p, note->text, length);
    }
    return failed;
}

size_t metadata_write(const metadata *m, uint8_t *out, size_t capacity) {
    sink s = {.data = out, .capacity = capacity};
    msgpack_packer p;
    msgpack_packer_init(&p, &s, sink_write);
    int failed = msgpack_pack_map(&p, m->reset_pose_count ? 2 : 1);
    if (m->reset_pose_count) {
        failed |= put_text(&p, "reset_pose");
        failed |= msgpack_pack_array(&p, (size_t)m->reset_pose_count);
        for (int i = 0; i < m->reset_pose_count; i++) failed |= put_number(&p, m->reset_pose[i]);
    }
    failed |= put_text(&p, "openpi_server");
    const int noted = m->model && m->model->note_count;
    failed |= msgpack_pack_map(&p, noted ? 8 : 7);
    failed |= put_text(&p, "version");
    failed |= put_text(&p, m->version);
    failed |= put_uint_entry(&p, "horizon", (uint64_t)m->horizon);
    failed |= put_uint_entry(&p, "action_dim", (uint64_t)m->action_dim);
    failed |= put_uint_entry(&p, "max_message_bytes", m->max_message_bytes);
    failed |= put_text(&p, "rtc_modes");
    failed |= put_text(&p, m->rtc_max_delay ? "guided,trained" : "guided");
    failed |= put_uint_entry(&p, "rtc_max_delay", (uint64_t)m->rtc_max_delay);
    failed |= put_uint_entry(&p, "runner", 1);
    if (noted) failed |= put_notes(&p, m->model);
    return failed ? 0 : s.count;
}

/* msgpack_numpy.py's map of an array of doubles: its keys are bytes. Sizes of 0 are no dimensions. */
static int put_array(msgpack_packer *p, const double *data, const int sizes[4]) {
    size_t bytes = sizeof *data, rank = 0;
    for (int i = 0; i < 4; i++)
        if (sizes[i]) bytes *= (size_t)sizes[i], rank++;
    int failed = msgpack_pack_map(p, 4);
    failed |= put_bin_text(p, "__ndarray__");
    failed |= msgpack_pack_true(p);
    failed |= put_bin_text(p, "data");
    failed |= put_bin(p, data, bytes);
    failed |= put_bin_text(p, "dtype");
    failed |= put_text(p, "<f8");
    failed |= put_bin_text(p, "shape");
    failed |= msgpack_pack_array(p, rank);
    for (int i = 0; i < 4; i++)
        if (sizes[i]) failed |= msgpack_pack_int(p, sizes[i]);
    return failed;
}

static int put_actions(msgpack_packer *p, const reply *r, const double *actions, int observations) {
    return put_array(p, actions, (const int[4]){observations, r->chunks, r->horizon, r->action_dim});
}

/* Where observations were refused: a list with nil in their places, and their sentences by number. */
static int put_answered(msgpack_packer *p, const reply *r) {
    size_t chunks = (size_t)(r->chunks ? r->chunks : 1);
    size_t numbers = chunks * (size_t)r->horizon * (size_t)r->action_dim;
    int failed = msgpack_pack_array(p, (size_t)r->observations);
    for (int i = 0; i < r->observations; i++)
        failed |= r->errors[i] ? msgpack_pack_nil(p) : put_actions(p, r, r->actions + (size_t)i * numbers, 0);
    return failed;
}

static int put_errors(msgpack_packer *p, const reply *r) {
    size_t count = 0;
    for (int i = 0; i < r->observations; i++) count += r->errors[i] != NULL;
    int failed = put_text(p, "openpi/errors") | msgpack_pack_map(p, count);
    for (int i = 0; i < r->observations; i++) {
        char number[16];
        if (!r->errors[i]) continue;
        snprintf(number, sizeof number, "%d", i);
        failed |= put_text(p, number) | put_text(p, r->errors[i]);
    }
    return failed;
}

static int put_rtc(msgpack_packer *p, const reply *r) {
    int failed = put_text(p, "rtc");
    failed |= msgpack_pack_map(p, r->rtc_weight ? 3 : 2);
    failed |= put_text(p, "applied");
    failed |= r->rtc_applied ? msgpack_pack_true(p) : msgpack_pack_false(p);
    if (r->rtc_weight) failed |= put_uint_entry(p, "max_weight", (uint64_t)r->rtc_weight);
    return failed | put_uint_entry(p, "delay", (uint64_t)r->rtc_delay);
}

/* What docs/serve.md says of it. */
static int put_limited(msgpack_packer *p, const openpi_limited *l) {
    const struct { const char *key; int count; } counts[] = {
        {"changed", l->changed},       {"below_min", l->below_min},     {"above_max", l->above_max},
        {"beyond_step", l->beyond_step}, {"beyond_start", l->beyond_start}, {"held", l->held}};
    enum { COUNTS = sizeof counts / sizeof *counts };
    int failed = put_text(p, "openpi/limited") | msgpack_pack_map(p, COUNTS);
    for (int i = 0; i < COUNTS; i++) failed |= put_uint_entry(p, counts[i].key, (uint64_t)counts[i].count);
    return failed;
}

size_t reply_write(const reply *r, uint8_t *out, size_t capacity) {
    sink s = {.data = out, .capacity = capacity};
    msgpack_packer p;
    msgpack_packer_init(&p, &s, sink_write);
    unsigned more = (r->rtc ? 1u : 0u) + (r->limited.changed ? 1u : 0u) + (r->truncated ? 1u : 0u) +
                    (r->errors ? 1u : 0u);
    int failed = msgpack_pack_map(&p, 3u + more);
    failed |= put_text(&p, "actions");
    failed |= r->errors ? put_answered(&p, r) : put_actions(&p, r, r->actions, r->observations);
    failed |= put_text(&p, "policy_timing");
    failed |= msgpack_pack_map(&p, 1);
    failed |= put_double_entry(&p, "infer_ms", r->model_ms);
    failed |= put_text(&p, "server_timing");
    failed |= msgpack_pack_map(&p, r->prev_total_ms < 0 ? 1 : 2);
    failed |= put_double_entry(&p, "infer_ms", r->infer_ms);
    if (r->prev_total_ms >= 0) failed |= put_double_entry(&p, "prev_total_ms", r->prev_total_ms);
    if (r->rtc) failed |= put_rtc(&p, r);
    if (r->limited.changed) failed |= put_limited(&p, &r->limited);
    if (r->errors) failed |= put_errors(&p, r);
    if (r->truncated) failed |= put_text(&p, "openpi/prompt_truncated") | msgpack_pack_true(&p);
    return failed ? 0 : s.count;
}

size_t reply_most_bytes(int chunks, int horizon, int action_dim) {
    enum { AROUND = 400 };
    return (size_t)chunks * (size_t)horizon * (size_t)action_dim * sizeof(double) + AROUND;
}
