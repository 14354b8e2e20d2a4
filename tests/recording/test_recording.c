/* labels: links=recording */
/* Recordings: what is written is read, to the byte; files that were not closed, cut, edited or of others.
 * That other programs read them is scripts/peer/recording_peer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "recording/call.h"
#include "scratch.h"

enum { HORIZON = 10, COUNT = HORIZON * OPENPI_ACTION_DIM, CALLS = 5 };

static const mcap_entry about[] = {{"checkpoint", "tiny"}, {"device", "cpu"}};

/* A request of openpi's client, a chunk of numbers, what is left of another one. */
typedef struct made {
    char *request;
    size_t request_bytes;
    float actions[COUNT], previous[COUNT];
} made;

static recorded_call make_call(made *m, int index) {
    for (int i = 0; i < COUNT; i++) {
        m->actions[i] = (float)(i + 1000 * index) / 7;
        m->previous[i] = -m->actions[i];
    }
    recorded_call call = {.order = (uint64_t)index + 40, .connection = 3, .robot = "arm", .address = "::1",
                          .arrived_ns = 1700000000000000000u + (uint64_t)index,
                          .sent_ns = 1700000000123000000u,
                          .model_ms = 4.5, .batch = 2, .request = (const uint8_t *)m->request,
                          .request_bytes = m->request_bytes, .reply = (const uint8_t *)"\x80",
                          .reply_bytes = 1, .seed = UINT64_MAX, .stream = 64, .horizon = HORIZON,
                          .model_actions = m->actions, .rtc = OPENPI_RTC_INIT};
    if (index % 2) {
        call.rtc.mode = OPENPI_RTC_GUIDED;
        call.rtc.delay = 2;
        call.rtc.rows = HORIZON - 1;
        call.rtc.dims = 7;
        call.rtc.max_weight = 0.1;
        call.rtc.previous = m->previous;
    }
    return call;
}

static void must_equal(const recorded_call *a, const recorded_call *b) {
    assert_true(a->order == b->order && a->connection == b->connection && a->status == b->status);
    assert_string_equal(a->robot, b->robot);
    assert_string_equal(a->address, b->address);
    assert_true(a->arrived_ns == b->arrived_ns && a->sent_ns == b->sent_ns);
    assert_true(a->model_ms == b->model_ms && a->batch == b->batch);
    assert_true(a->seed == b->seed && a->stream == b->stream);
    assert_int_equal(a->request_bytes, b->request_bytes);
    assert_memory_equal(a->request, b->request, a->request_bytes);
    assert_int_equal(a->reply_bytes, b->reply_bytes);
    assert_memory_equal(a->reply, b->reply, a->reply_bytes);
    assert_int_equal(a->horizon, b->horizon);
    if (a->horizon) assert_memory_equal(a->model_actions, b->model_actions, COUNT * sizeof(float));
    assert_true(a->rtc.mode == b->rtc.mode && a->rtc.delay == b->rtc.delay && a->rtc.rows == b->rtc.rows);
    assert_true(a->rtc.dims == b->rtc.dims && a->rtc.max_weight == b->rtc.max_weight);
    if (a->rtc.mode)
        assert_memory_equal(a->rtc.previous, b->rtc.previous,
                            (size_t)a->rtc.rows * (size_t)a->rtc.dims * sizeof(float));
}

static void load(made *m, const char *robot) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", robot);
    m->request = golden_read(path, &m->request_bytes);
}

static int set_up(void **state) {
    static scratch box;
    *state = &box;
    return scratch_open(&box);
}

static int tear_down(void **state) {
    scratch_close(*state);
    return 0;
}

/* Writes CALLS calls, the last one refused. `closed` 0: as where power was lost. */
static const char *write_calls(scratch *box, const char *name, const char *robot, int closed) {
    made m;
    recording *out;
    openpi_error error = OPENPI_ERROR_INIT;
    const char *path = scratch_path(box, name);
    load(&m, robot);
    if (recording_create(path, about, 2, &out, &error) != OPENPI_OK) fail_msg("%s", error.message);
    for (int i = 0; i < CALLS; i++) {
        recorded_call call = make_call(&m, i);
        if (i == CALLS - 1) {
            call.status = OPENPI_BAD_INPUT;
            call.reply = (const uint8_t *)"no picture";
            call.reply_bytes = 10;
            call.horizon = 0;
            call.rtc = (openpi_rtc)OPENPI_RTC_INIT;
        }
        assert_int_equal(recording_add(out, &call, &error), OPENPI_OK);
        assert_true(recording_bytes(out) > m.request_bytes * (size_t)(i + 1));
        assert_true(recording_bytes(out) < (m.request_bytes + 12000) * (size_t)(i + 1));
    }
    if (!closed) {               /* its bytes are in the file already: a copy of them is the cut one        */
        size_t count;
        char copy[100];
        char *bytes = golden_read(path, &count);
        snprintf(copy, sizeof copy, "%.40s_open", name);
        assert_int_equal(scratch_write(box, copy, bytes, count), 0);
        free(bytes);
    }
    assert_int_equal(recording_close(out, &error), OPENPI_OK);
    free(m.request);
    return path;
}

/* How many calls the file gives; what it gives is what was written. */
static int read_calls(const char *path, const char *robot, int *cut) {
    made m;
    recording_reader *in;
    recorded_call call;
    int more, count = 0;
    openpi_error error = OPENPI_ERROR_INIT;
    load(&m, robot);
    assert_int_equal(recording_open(path, &in, &error), OPENPI_OK);
    for (;; count++) {
        if (recording_next(in, &call, &more, &error) != OPENPI_OK) fail_msg("%s", error.message);
        if (!more) break;
        recorded_call expected = make_call(&m, count);
        if (count == CALLS - 1) {
            expected.status = OPENPI_BAD_INPUT;
            expected.reply = (const uint8_t *)"no picture";
            expected.reply_bytes = 10;
            expected.horizon = 0;
            expected.rtc = (openpi_rtc)OPENPI_RTC_INIT;
        }
        must_equal(&call, &expected);
        assert_string_equal(recording_about(in, "checkpoint"), "tiny");
        assert_null(recording_about(in, "nothing"));
    }
    *cut = recording_is_cut(in);
    recording_reader_close(in);
    free(m.request);
    return count;
}

static const char *const robots[] = {"droid_pi0", "aloha_sim", "libero_pi05"};

static void the_same_comes_back(void **state) {
    scratch *box = *state;
    for (size_t i = 0; i < sizeof robots / sizeof *robots; i++) {
        char name[40], open[40];
        int cut;
        snprintf(name, sizeof name, "%.20s.mcap", robots[i]);
        snprintf(open, sizeof open, "%.30s_open", name);
        write_calls(box, name, robots[i], 0);
        assert_int_equal(read_calls(scratch_path(box, name), robots[i], &cut), CALLS);
        assert_int_equal(cut, 0);
        assert_int_equal(read_calls(scratch_path(box, open), robots[i], &cut), CALLS);
        assert_int_equal(cut, 1);
    }
}

/* Every prefix gives whole calls, and nothing else happens. */
static void cut_anywhere(void **state) {
    scratch *box = *state;
    size_t count;
    int last = 0, cut;
    char *bytes = golden_read(write_calls(box, "whole.mcap", "droid_pi0", 1), &count);
    for (size_t length = 8; length < count; length += length < 2000 ? 1 : 1999) {
        assert_int_equal(scratch_write(box, "cut.mcap", bytes, length), 0);
        int calls = read_calls(scratch_path(box, "cut.mcap"), "droid_pi0", &cut);
        assert_true(calls >= last);
        last = calls;
    }
    assert_int_equal(last, CALLS);
    free(bytes);
}

static void must_refuse(const char *path, const char *part) {
    recording_reader *in = NULL;
    recorded_call call;
    int more = 1;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = recording_open(path, &in, &error);
    while (status == OPENPI_OK && more) status = recording_next(in, &call, &more, &error);
    if (status == OPENPI_OK) fail_msg("%s: was read, expected \"%s\"", path, part);
    if (!strstr(error.message, part) || !strstr(error.message, path))
        fail_msg("\"%s\", expected the file and \"%s\"", error.message, part);
    recording_reader_close(in);
}

static void edited_and_foreign(void **state) {
    scratch *box = *state;
    size_t count;
    char *bytes = golden_read(write_calls(box, "good.mcap", "droid_pi0", 1), &count);
    bytes[count / 2] ^= 1;
    assert_int_equal(scratch_write(box, "bad.mcap", bytes, count), 0);
    must_refuse(scratch_path(box, "bad.mcap"), "checksum");
    assert_int_equal(scratch_write(box, "bad.mcap", "no recording at all", 19), 0);
    must_refuse(scratch_path(box, "bad.mcap"), "does not begin as an MCAP file does");
    must_refuse(scratch_path(box, "none.mcap"), "cannot be read: No such file");
    free(bytes);
}

/* One byte of any record's frame or content other than it was: an error or calls, never a crash. Without the
 * checksum, which would find it first. */
static void any_byte(void **state) {
    scratch *box = *state;
    size_t count;
    char *bytes = golden_read(write_calls(box, "good2.mcap", "libero_pi05", 1), &count);
    for (size_t i = 8; i < count; i += i < 3000 ? 5 : 19997) {
        recording_reader *in = NULL;
        recorded_call call;
        int more = 1;
        char before = bytes[i];
        bytes[i] = (char)(bytes[i] ^ (1 << i % 8));
        assert_int_equal(scratch_write(box, "bad2.mcap", bytes, count), 0);
        bytes[i] = before;
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_status status = recording_open(scratch_path(box, "bad2.mcap"), &in, &error);
        while (status == OPENPI_OK && more) status = recording_next(in, &call, &more, &error);
        assert_true(status == OPENPI_OK || error.message[0]);
        recording_reader_close(in);
    }
    free(bytes);
}

static void no_place(void **state) {
    scratch *box = *state;
    recording *out;
    openpi_error error = OPENPI_ERROR_INIT;
    const char *path = write_calls(box, "there.mcap", "droid_pi0", 1);
    assert_int_equal(recording_create(path, about, 2, &out, &error), OPENPI_SYSTEM);
    assert_non_null(strstr(error.message, "File exists"));
    assert_int_equal(recording_create("/nowhere/a.mcap", about, 2, &out, &error), OPENPI_SYSTEM);
    assert_non_null(strstr(error.message, "/nowhere/a.mcap"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_comes_back), cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(edited_and_foreign),  cmocka_unit_test(any_byte),
        cmocka_unit_test(no_place),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
