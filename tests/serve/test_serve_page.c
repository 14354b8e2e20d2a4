/* labels: server threads */
/* The admin page of `openpi serve`: its files, and what they show of robots. Pictures as the model saw them
 * are compared with openpi's own, chunks with the replies that the robot got. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "admin_client.h"
#include "robot_message.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --horizon 8 --admin 127.0.0.1:0"

enum { H = 8, DIMS = 14, SIDE = 224, BMP_HEAD = 54 };

/* ---- the files -------------------------------------------------------------------------------------- */

/* The policy allows files of this port only, so nothing may stand inline. */
static void page_is_strict(void **state) {
    (void)state;
    static const struct { const char *path, *type; } files[] = {{"/", "text/html"},
                                                                {"/page.css", "text/css"},
                                                                {"/page.js", "text/javascript"},
                                                                {"/icon.svg", "image/svg+xml"}};
    static const char *const inlined[] = {"<style", "style=\"", " onclick",
                                          " onload", "javascript:", "http:"};
    served server;
    served_start(&server, &box, TINY);
    for (int i = 0; i < 4; i++) {
        answer a = admin_request(server.admin, "GET", files[i].path, "localhost", "");
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.head, files[i].type));
        assert_non_null(strstr(a.head, "Content-Security-Policy: default-src 'none'; script-src 'self'; "));
        assert_null(strstr(a.head, "unsafe"));
        assert_non_null(strstr(a.head, "X-Content-Type-Options: nosniff"));
        assert_true(a.bytes > 100);
        for (int k = 0; !i && k < 6; k++)
            if (strstr(a.body, inlined[k])) fail_msg("the page has \"%s\"", inlined[k]);
        for (const char *script = strstr(a.body, "<script"); script; script = strstr(script + 1, "<script"))
            assert_memory_equal(script, "<script src=\"/", 14);
        free(a.body);
    }
    must_answer(server.admin, "GET", "/page", "localhost", "", 404);
    must_answer(server.admin, "GET", "/page.js", "evil.example", "", 403);
    served_stop(&server);
}

/* ---- the state -------------------------------------------------------------------------------------- */

static json_t *get_state(int port, const char *path) {
    json_error_t where;
    answer a = admin_request(port, "GET", path, "localhost", "");
    if (a.status != 200) fail_msg("%s: %d %s", path, a.status, a.body);
    assert_non_null(strstr(a.head, "Content-Type: application/json"));
    json_t *value = json_loads(a.body, JSON_REJECT_DUPLICATES, &where);
    if (!value) fail_msg("%s at %d of:\n%s", where.text, where.position, a.body);
    free(a.body);
    return value;
}

/* Whether the first message to who connects has `text`. */
static int greets_with(int port, const char *text) {
    int fd = ws_open(port, "/"), found = 0;
    ws_frame frame = ws_expect(fd, WS_BINARY);
    size_t count = strlen(text);
    for (size_t i = 0; i + count <= frame.bytes && !found; i++)
        found = !memcmp(frame.data + i, text, count);
    free(frame.data);
    close(fd);
    return found;
}

/* That 8 bits change actions is told wherever notes are: page, metrics, log, first message. */
static void formats_are_told(void **state) {
    (void)state;
    static const char told[] = "weights are bf16,ffn=int8x8,expert=int8: products of 8 bits change the "
                               "actions";
    for (int eight = 0; eight < 2; eight++) {
        served server;
        int noted = 0;
        served_start(&server, &box, TINY " --log-format json --weights %s",
                     eight ? "expert=int8,ffn=int8x8" : "expert=f32");
        json_t *top = get_state(server.admin, "/state"), *notes = json_object_get(top, "notes");
        for (size_t i = 0; i < json_array_size(notes); i++) {
            const json_t *note = json_array_get(notes, i);
            if (!strstr(json_string_value(json_object_get(note, "text")), told)) continue;
            assert_string_equal(json_string_value(json_object_get(note, "level")), "note");
            noted++;
        }
        assert_int_equal(noted, eight);
        assert_true(metric(server.admin, "openpi_model_notes{level=\"note\"}") +
                        metric(server.admin, "openpi_model_notes{level=\"warning\"}") ==
                    (double)json_array_size(notes));
        assert_int_equal(greets_with(server.port, told), eight);
        char *log = served_log(&server);
        assert_int_equal(strstr(log, told) != NULL, eight);
        free(log);
        json_decref(top);
        served_stop(&server);
    }
}

static void wrong_formats_are_refused(void **state) {
    (void)state;
    must_refuse("serve " TINY " --port 0 --weights exprt=int8",
                "--weights is \"exprt=int8\": \"exprt\" is no group, expected vision, attention, ffn, expert "
                "or heads; did you mean \"expert\"?");
}

static json_t *watch_state(int port, int64_t id, json_t **watch) {
    char path[64];
    snprintf(path, sizeof path, "/state/%lld", (long long)id);
    json_t *state = get_state(port, path);
    *watch = json_object_get(state, "watch");
    assert_non_null(*watch);
    assert_int_equal(json_integer_value(json_object_get(*watch, "id")), id);
    return state;
}

/* The newest connection comes first. */
static int64_t newest_id(int port) {
    json_t *state = get_state(port, "/state");
    json_t *robot = json_array_get(json_object_get(state, "robots"), 0);
    int64_t id = json_integer_value(json_object_get(robot, "id"));
    assert_true(id > 0);
    json_decref(state);
    return id;
}

/* Asks with "openpi/rtc", where executed is not negative, and keeps the reply's actions. */
static void ask_rtc(int fd, int executed, int delay, double actions[H * DIMS]) {
    msgpack_sbuffer message, entry;
    msgpack_packer packer;
    load_request("aloha_sim", &message);
    if (executed >= 0) {
        msgpack_sbuffer_init(&entry);
        msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
        pack_text(&packer, "openpi/rtc");
        msgpack_pack_map(&packer, 2);
        pack_text(&packer, "executed"), msgpack_pack_int(&packer, executed);
        pack_text(&packer, "delay"), msgpack_pack_int(&packer, delay);
        add_entry(&message, &entry);
        msgpack_sbuffer_destroy(&entry);
    }
    ws_frame reply = ask(fd, &message);
    if (reply.opcode != WS_BINARY) fail_msg("%s", reply.data ? (char *)reply.data : "no reply");
    size_t at = 0;
    while (at + 4 < reply.bytes && memcmp(reply.data + at, "data\xc5", 5)) at++;
    at += 7;                                 /* the name, the type, a length of two bytes                  */
    assert_true(at + H * DIMS * sizeof *actions < reply.bytes);
    memcpy(actions, reply.data + at, H * DIMS * sizeof *actions);
    free(reply.data);
    msgpack_sbuffer_destroy(&message);
}

static void must_be_chunk(const json_t *watch, const char *which, const double *actions, int executed,
                          int applied, int delay) {
    const json_t *chunk = json_object_get(watch, which), *state = json_object_get(watch, "state");
    const json_t *numbers = json_object_get(chunk, "actions");
    assert_int_equal(json_integer_value(json_object_get(chunk, "executed")), executed);
    assert_int_equal(json_is_true(json_object_get(chunk, "applied")), applied);
    assert_int_equal(json_integer_value(json_object_get(chunk, "delay")), delay);
    assert_int_equal(json_array_size(numbers), H * DIMS);
    const json_t *starts = json_object_get(chunk, "starts");
    assert_int_equal(json_array_size(starts), DIMS);
    for (size_t i = 0; i < DIMS; i++) {                        /* joints: the state as the page shows it    */
        double start = json_number_value(json_array_get(starts, i)),
               came = json_number_value(json_array_get(state, i));
        if (i % 7 != 6) assert_true(fabs(start - came) <= 1e-4 * fabs(came));
        else assert_true(json_is_number(json_array_get(starts, i)) && fabs(start - came) > 1e-3);
    }
    for (int i = 0; i < H * DIMS; i++) {
        double shown = json_number_value(json_array_get(numbers, (size_t)i));
        if (fabs(shown - actions[i]) > 1e-4 * fabs(actions[i]))
            fail_msg("number %d is %g, expected %g", i, shown, actions[i]);
    }
}

static void chunks_are_shown(void **state) {
    (void)state;
    served server;
    double first[H * DIMS], second[H * DIMS], other[H * DIMS];
    json_t *watch, *top;
    served_start(&server, &box, TINY);
    int robot = greet(server.port);
    int64_t id = newest_id(server.admin);
    int neighbour = greet(server.port);
    int64_t beside = newest_id(server.admin);
    assert_true(id != beside);
    top = watch_state(server.admin, id, &watch);
    assert_true(json_is_true(json_object_get(watch, "open")));
    assert_true(json_is_null(json_object_get(watch, "last")));
    json_decref(top);
    ask_rtc(robot, -1, 0, first);
    ask_rtc(neighbour, -1, 0, other);
    assert_memory_not_equal(first, other, sizeof first);       /* the noise differs                         */
    top = watch_state(server.admin, id, &watch);
    must_be_chunk(watch, "last", first, -1, 0, 0);
    assert_true(json_is_null(json_object_get(watch, "before")));
    json_decref(top);
    ask_rtc(robot, 2, 1, second);
    top = watch_state(server.admin, id, &watch);
    must_be_chunk(watch, "last", second, 2, 1, 1);
    must_be_chunk(watch, "before", first, -1, 0, 0);
    assert_int_equal(json_integer_value(json_object_get(watch, "replies")), 2);
    json_decref(top);
    ask_rtc(robot, H, 1, first);             /* nothing is left                                             */
    top = watch_state(server.admin, id, &watch);
    must_be_chunk(watch, "last", first, H, 0, 0);
    json_decref(top);
    top = watch_state(server.admin, beside, &watch);           /* nobody had looked at it                   */
    assert_true(json_is_null(json_object_get(watch, "last")));
    json_decref(top);
    close(robot);
    close(neighbour);
    served_stop(&server);
}

/* Each picture is openpi's own preparation of the same request, to the bit. */
static void pictures_are_shown(void **state) {
    (void)state;
    static const char *const goldens[] = {"aloha_sim", "droid_pi0"};
    static const char *const robots[] = {"aloha", "droid"};
    for (int g = 0; g < 2; g++) {
        served server;
        char path[512];
        msgpack_sbuffer message;
        served_start(&server, &box, "--synthetic tiny --robot %s --threads 2 --steps 1 --admin 127.0.0.1:0",
                     robots[g]);
        snprintf(path, sizeof path, GOLDEN "/policy/%s/expected.safetensors", goldens[g]);
        tensors *golden = golden_open(path);
        const uint8_t *images = golden_data(golden, "images", DTYPE_U8, 3 * SIDE * SIDE * 3);
        const uint8_t *mask = golden_data(golden, "image_mask", DTYPE_U8, 3);
        int robot = greet(server.port), shown = 0;
        int64_t id = newest_id(server.admin);
        json_t *watch, *top = watch_state(server.admin, id, &watch);
        json_decref(top);
        snprintf(path, sizeof path, "/picture/%lld/0", (long long)id);
        must_answer(server.admin, "GET", path, "localhost", "", 404);
        load_request(goldens[g], &message);
        ws_frame reply = ask(robot, &message);
        assert_int_equal(reply.opcode, WS_BINARY);
        free(reply.data);
        msgpack_sbuffer_destroy(&message);
        for (int slot = 0; slot < 3; slot++) {
            snprintf(path, sizeof path, "/picture/%lld/%d", (long long)id, slot);
            answer a = admin_request(server.admin, "GET", path, "localhost", "");
            assert_int_equal(a.status, mask[slot] ? 200 : 404);
            shown += mask[slot];
            if (mask[slot]) {
                assert_int_equal(a.bytes, BMP_HEAD + SIDE * SIDE * 3);
                assert_memory_equal(a.body, "BM", 2);
                const uint8_t *bgr = (const uint8_t *)a.body + BMP_HEAD;
                const uint8_t *rgb = images + slot * SIDE * SIDE * 3;
                for (int i = 0; i < SIDE * SIDE * 3; i++)
                    if (bgr[i] != rgb[i - i % 3 + 2 - i % 3])
                        fail_msg("%s: byte %d of picture %d is %d, expected %d", goldens[g], i, slot, bgr[i],
                                 rgb[i - i % 3 + 2 - i % 3]);
            }
            free(a.body);
        }
        assert_true(shown >= 1);
        tensors_close(golden);
        close(robot);
        served_stop(&server);
    }
}

static void robots_are_listed(void **state) {
    (void)state;
    enum { ASKED = 3 };
    served server;
    double actions[H * DIMS];
    char key[65], header[400];
    /* so seldom that every machine has the time, also under a sanitizer */
    assert_int_equal(run("serve --new-token arm --class reserved --rate 1 | sed 's/ 1 / 0.01 /' >tokens"),
                     0);
    const char *colon = strstr(err, ": ");
    assert_non_null(colon);
    assert_int_equal(sscanf(colon, ": %64s", key), 1);
    snprintf(header, sizeof header, WS_UPGRADE "Authorization: Bearer %s\r\n", key);
    served_start(&server, &box, TINY " --tokens %s", scratch_path(&box, "tokens"));
    char head[1024];
    int fd = ws_request(server.port, "/", header, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(fd, WS_BINARY).data);
    for (int i = 0; i < ASKED; i++) ask_rtc(fd, -1, 0, actions);
    json_t *top = NULL, *robot = NULL;
    for (int i = 0; i < 6000; i++) {         /* counted when the kernel has the reply                       */
        top = get_state(server.admin, "/state");
        assert_int_equal(json_array_size(json_object_get(top, "robots")), 1);
        robot = json_array_get(json_object_get(top, "robots"), 0);
        if (json_integer_value(json_object_get(robot, "requests")) == ASKED) break;
        json_decref(top);
        top = NULL;
        served_sleep(10);
    }
    assert_non_null(top);
    assert_string_equal(json_string_value(json_object_get(robot, "name")), "arm");
    assert_string_equal(json_string_value(json_object_get(robot, "address")), "127.0.0.1");
    assert_string_equal(json_string_value(json_object_get(robot, "class")), "reserved");
    assert_true(json_number_value(json_object_get(robot, "declared")) == 0.01);
    assert_int_equal(json_integer_value(json_object_get(robot, "queue")), 0);
    double p50 = json_number_value(json_object_get(robot, "p50_ms"));
    double p99 = json_number_value(json_object_get(robot, "p99_ms"));
    assert_true(p50 > 0 && p99 >= p50);
    assert_string_equal(json_string_value(json_object_get(top, "robot")), "aloha");
    assert_int_equal(json_integer_value(json_object_get(top, "connections")), 1);
    assert_true(json_number_value(json_object_get(top, "reserved")) == 0.01);
    const json_t *counts = json_object_get(json_object_get(top, "requests"), "reserved");
    assert_int_equal(json_integer_value(json_object_get(counts, "ok")), ASKED);
    assert_int_equal(json_array_size(json_object_get(top, "stages")), 7);
    json_decref(top);
    close(fd);
    served_stop(&server);
}

/* At most WATCHES are looked at: one more takes the place of the one that was asked for longest ago. */
static void looking_has_limits(void **state) {
    (void)state;
    enum { WATCHES = 8 };
    served server;
    int fds[WATCHES + 1];
    double actions[H * DIMS];
    json_t *watch, *top;
    served_start(&server, &box, TINY);
    for (int i = 0; i <= WATCHES; i++) fds[i] = greet(server.port);
    int64_t last = newest_id(server.admin), first = last - WATCHES;
    for (int64_t id = first; id < first + 2; id++) {
        json_decref(watch_state(server.admin, id, &watch));
        ask_rtc(fds[id - first], -1, 0, actions);
    }
    for (int64_t id = first + 1; id <= last; id++) {
        top = watch_state(server.admin, id, &watch);
        assert_int_equal(json_integer_value(json_object_get(watch, "replies")), id == first + 1);
        json_decref(top);
    }
    top = watch_state(server.admin, first, &watch);
    assert_int_equal(json_integer_value(json_object_get(watch, "replies")), 0);
    assert_true(json_is_true(json_object_get(watch, "open")));
    json_decref(top);
    close(fds[0]);
    int open = 1;
    for (int i = 0; i < 6000 && open; i++) {
        top = watch_state(server.admin, first, &watch);
        open = json_is_true(json_object_get(watch, "open"));
        json_decref(top);
        if (open) served_sleep(10);
    }
    assert_int_equal(open, 0);
    must_answer(server.admin, "GET", "/state/", "localhost", "", 404);
    must_answer(server.admin, "GET", "/state/1x", "localhost", "", 404);
    must_answer(server.admin, "GET", "/state/-1", "localhost", "", 404);
    must_answer(server.admin, "GET", "/state/99999999999999999999", "localhost", "", 404);
    must_answer(server.admin, "GET", "/picture/1/3", "localhost", "", 404);
    must_answer(server.admin, "GET", "/picture/1/999999999", "localhost", "", 404);
    for (int i = 1; i <= WATCHES; i++) close(fds[i]);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_is_strict),
        cmocka_unit_test(formats_are_told),
        cmocka_unit_test(wrong_formats_are_refused),
        cmocka_unit_test(chunks_are_shown),
        cmocka_unit_test(pictures_are_shown),
        cmocka_unit_test(robots_are_listed),
        cmocka_unit_test(looking_has_limits),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
