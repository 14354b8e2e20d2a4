/* labels: server threads links=serve */
/* What the admin page polls (serve/admin/state.c): the model's notes, the warnings of the log and the last
 * two minutes, written for a server that is made up. And what those keep: serve/admin/history.c,
 * serve/log/log_recent.c. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "serve/admin/state.h"

enum { H = 5, ARMS = 14 };

static openpi_error error = OPENPI_ERROR_INIT;

static serve_model *open_robot(const char *robot) {
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    serve_model *opened;
    WORKS(openpi_synthetic_parse("tiny", &synthetic, &error));
    options.synthetic = &synthetic;
    options.robot = robot;
    WORKS(model_open(NULL, &options, H, 1, &opened, &error));
    return opened;
}

static json_t *read_state(const serve_model *model, const history *history, const log_recent *warnings,
                          double now) {
    static const state_about about = {.checkpoint = "pi\"0",
                                      .cards = {"a card"},
                                      .kernels = "k",
                                      .address = "ws://[::1]:8000"};
    static metrics_counts counts = {.device_count = 1, .devices = {{.name = "cuda:0"}}};
    state state = {.version = "1",
                   .about = &about,
                   .model = model,
                   .horizon = H,
                   .action_dim = model->info.action_dim,
                   .now_ms = now,
                   .counts = &counts,
                   .history = history,
                   .warnings = warnings};
    text text = {.data = NULL};
    json_error_t where;
    state_write(&state, &text);
    json_t *value = json_loads(text.data, JSON_REJECT_DUPLICATES, &where);
    if (!value) fail_msg("%s at %d of:\n%s", where.text, where.position, text.data);
    text_close(&text);
    return value;
}

static void must_be(const json_t *object, const char *name, const char *value) {
    const char *found = json_string_value(json_object_get(object, name));
    if (!found || strcmp(found, value)) fail_msg("%s is \"%s\", expected \"%s\"", name, found, value);
}

static void notes_and_warnings_are_shown(void **state) {
    (void)state;
    serve_model *model = open_robot("aloha");
    static history history;
    log_recent warnings = {.count = 0};
    log_entry entry = {.level = LOG_LEVEL_WARNING, .address = "192.0.2.7", .robot = "arm\"", .id = 12};
    model->variant = OPENPI_PI05;
    model->rtc.steps = 7;
    model->notes[0] = (model_note){.warning = 1, .text = "the statistics are missing"};
    model->notes[1] = (model_note){.warning = 0, .text = "a base model"};
    model->note_count = 2;
    log_recent_add(&warnings, &entry, "refused: \xe2\x80\xa6", 4000);
    log_recent_add(&warnings, &entry, "refused: \xe2\x80\xa6", 5000);
    json_t *top = read_state(model, &history, &warnings, 6500);
    const json_t *notes = json_object_get(top, "notes"), *list = json_object_get(top, "warnings");
    const json_t *about = json_object_get(top, "model");
    must_be(about, "variant", "pi05");
    assert_int_equal(json_integer_value(json_object_get(about, "steps")), 7);
    assert_int_equal(json_array_size(notes), 2);
    must_be(json_array_get(notes, 0), "level", "warning");
    must_be(json_array_get(notes, 0), "text", "the statistics are missing");
    must_be(json_array_get(notes, 1), "level", "note");
    must_be(json_object_get(top, "model"), "checkpoint", "pi\"0");
    must_be(json_array_get(json_object_get(top, "devices"), 0), "card", "a card");
    assert_int_equal(json_array_size(list), 1);
    const json_t *one = json_array_get(list, 0);
    must_be(one, "address", "192.0.2.7");
    must_be(one, "robot", "arm\"");
    must_be(one, "text", "refused: \xe2\x80\xa6");
    assert_int_equal(json_integer_value(json_object_get(one, "id")), 12);
    assert_int_equal(json_integer_value(json_object_get(one, "times")), 2);
    assert_true(json_number_value(json_object_get(one, "seconds_ago")) == 1.5);
    json_decref(top);
    model_drop(model);
}

/* Shapes and units come from the robot, not from the server. */
static void what_to_send_is_the_robots(void **state) {
    (void)state;
    static history history;
    static const log_recent warnings;
    static const struct { const char *robot, *camera, *part, *action, *unit; int parts; } known[] = {
        {"aloha", "images/cam_high", "state", "left_waist", "rad", 1},
        {"droid", "observation/exterior_image_1_left", "observation/joint_position", NULL, NULL, 2},
        {"none", "base", "state", "", "", 1},
    };
    for (int i = 0; i < 3; i++) {
        serve_model *model = open_robot(known[i].robot);
        json_t *top = read_state(model, &history, &warnings, 1000);
        const json_t *send = json_object_get(top, "send"), *actions = json_object_get(top, "actions");
        const json_t *picture = json_array_get(json_object_get(send, "pictures"), 0);
        const json_t *parts = json_object_get(send, "state"), *shape = json_object_get(actions, "shape");
        const char *python = json_string_value(json_object_get(send, "python"));
        must_be(picture, "key", known[i].camera);
        must_be(picture, "slot", "base");
        must_be(picture, "type", "uint8");
        must_be(json_array_get(parts, 0), "key", known[i].part);
        assert_int_equal(json_array_size(parts), known[i].parts);
        assert_int_equal(json_integer_value(json_array_get(shape, 0)), H);
        assert_int_equal(json_integer_value(json_array_get(shape, 1)), model->info.action_dim);
        assert_int_equal(json_array_size(json_object_get(actions, "names")), model->info.action_dim);
        assert_int_equal(json_array_size(json_object_get(actions, "units")), model->info.action_dim);
        if (known[i].action) {
            assert_string_equal(json_string_value(json_array_get(json_object_get(actions, "names"), 0)),
                                known[i].action);
            assert_string_equal(json_string_value(json_array_get(json_object_get(actions, "units"), 0)),
                                known[i].unit);
        }
        assert_non_null(strstr(python, known[i].camera));
        assert_non_null(strstr(python, "WebsocketClientPolicy(\"ws://[::1]:8000\")"));
        json_decref(top);
        model_drop(model);
    }
}

/* ---- what is kept ----------------------------------------------------------------------------------- */

static void history_keeps_two_minutes(void **state) {
    (void)state;
    static history h;
    history_add(&h, 500, 1, 80);
    history_busy(&h, 900, 300);
    for (int i = 0; i < 99; i++) history_add(&h, 1000 + i, 1, 10);
    history_add(&h, 1999, 1, 200);
    history_add(&h, 1999, 0, 0);
    history_busy(&h, 1999, 1200);
    history_point last = history_look(&h, 2500, 1, 1), both = history_look(&h, 2500, 0, 10);
    assert_int_equal(last.answered, 100);
    assert_int_equal(last.bad, 1);
    assert_true(fabs(last.p50_ms / 10 - 1) < .03 && fabs(last.p99_ms / 10 - 1) < .03);
    assert_true(last.busy_ms == 900);
    assert_int_equal(both.answered, 101);
    assert_true(fabs(both.p99_ms / 80 - 1) < .03 && both.busy_ms == 1200);
    assert_int_equal(history_look(&h, 2500, 0, 1).answered, 0);
    assert_true(history_look(&h, 2500, 0, 1).p99_ms == 0);
    assert_int_equal(history_look(&h, 119500, 0, HISTORY_SECONDS).answered, 101);
    assert_int_equal(history_look(&h, 120500, 0, HISTORY_SECONDS).answered, 100);  /* without 0 */
    history_add(&h, 121500, 1, 1e9);         /* takes the place of second 1                                 */
    assert_int_equal(history_look(&h, 121500, 0, HISTORY_SECONDS).answered, 1);
    assert_true(history_look(&h, 121500, 0, 1).p99_ms > 50000);
}

static void warnings_are_the_newest_and_each_once(void **state) {
    (void)state;
    static log_recent r;
    char message[LOG_RECENT_BYTES + 50];
    log_entry entry = {.level = LOG_LEVEL_WARNING, .address = "192.0.2.7"}, flood = entry;
    flood.address = "192.0.2.9";
    log_recent_add(&r, &entry, "first", 1);
    for (int i = 0; i < 1000; i++) log_recent_add(&r, &flood, "again", 2 + i);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.items[0].times, 1000);
    assert_true(r.items[0].at_ms == 1001);
    assert_string_equal(r.items[1].message, "first");
    for (int i = 0; i < LOG_RECENT; i++) {
        snprintf(message, sizeof message, "number %d", i);
        log_recent_add(&r, &entry, message, 2000 + i);
    }
    assert_int_equal(r.count, LOG_RECENT);
    assert_string_equal(r.items[LOG_RECENT - 1].message, "number 0");
    /* a character that does not fit is left out whole */
    memset(message, 'x', sizeof message);
    memcpy(message + LOG_RECENT_BYTES - 3, "\xe2\x80\xa6", 4);
    log_recent_add(&r, &entry, message, 3000);
    assert_int_equal(strlen(r.items[0].message), LOG_RECENT_BYTES - 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notes_and_warnings_are_shown),
        cmocka_unit_test(what_to_send_is_the_robots),
        cmocka_unit_test(history_keeps_two_minutes),
        cmocka_unit_test(warnings_are_the_newest_and_each_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
