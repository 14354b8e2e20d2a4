/* labels: long server threads cost */
/* Other weights for a server that runs, by POST /weights/NAME of its admin port, while robots ask: every
 * reply is wholly of the weights before or of those after, bit for bit what `openpi run` answers. What is
 * wrong with a file is a sentence, and the weights stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>

#include "adapter_write.h"
#include "checkpoint/open.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "admin_client.h"
#include "robot_message.h"

enum { H = 5, ARMS = 14, NUMBERS = H * ARMS, ACTIONS = NUMBERS * 8, MODELS = 2, ROBOTS = 3 };
enum { ADAPTED = MODELS, KINDS };                              /* the first model with an adapter           */

static const char *const folders[MODELS] = {"one", "two"};
static msgpack_sbuffer request;                                /* with noise of its own                     */
static double want[KINDS][NUMBERS];

static void put(const char *name, const void *data, size_t bytes) {
    unlink(scratch_path(&box, name));
    assert_int_equal(scratch_write(&box, name, data, bytes), 0);
}

/* ---- what is asked and what must come --------------------------------------------------------------- */

static void write_noise(const float *noise, size_t bytes) {
    static char text[128 + H * OPENPI_ACTION_DIM * sizeof(float)];
    memcpy(text, "\x93NUMPY\x01\x00\x76\x00", 10);
    memset(text + 10, ' ', 117);
    int length = snprintf(text + 10, 117, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", H,
                          OPENPI_ACTION_DIM);
    text[10 + length] = ' ';
    text[127] = '\n';
    memcpy(text + 128, noise, bytes);
    put("noise.npy", text, sizeof text);
}

/* The models differ in their weights only. */
static void share_statistics(void) {
    size_t bytes;
    char *text = slurp(scratch_path(&box, "one/assets/synthetic/norm_stats.json"), &bytes);
    put("two/assets/synthetic/norm_stats.json", text, bytes);
    free(text);
}

static void expect_run(int kind, const char *model) {
    size_t bytes;
    if (run("run %s --robot robot.json --threads 2 --steps 1 --request request.msgpack --noise noise.npy "
            "--format npy --out actions%d.npy", model, kind))
        fail_msg("openpi run: %s", err);
    char name[32];
    snprintf(name, sizeof name, "actions%d.npy", kind);
    char *npy = slurp(scratch_path(&box, name), &bytes);
    assert_int_equal(bytes, 128 + ACTIONS);
    memcpy(want[kind], npy + 128, ACTIONS);
    free(npy);
}

static void expect(int model) {
    if (run("synth %s --preset tiny --seed %d", folders[model], model + 1)) fail_msg("openpi synth: %s", err);
    if (model) share_statistics();
    expect_run(model, folders[model]);
}

/* "updates/adapter", a folder of peft's for the first model. */
static void expect_adapted(void) {
    static const char module[] = "paligemma_with_expert.gemma_expert.model.layers.0.mlp.down_proj";
    static tensor_list list;
    openpi_error error = OPENPI_ERROR_INIT;
    char name[200];
    tensors *base;
    if (tensors_open(scratch_path(&box, "one/model.safetensors"), &base, &error))
        fail_msg("%s", error.message);
    snprintf(name, sizeof name, "%s.weight", module);
    const tensor *t = tensors_find(base, name);
    assert_non_null(t);
    snprintf(name, sizeof name, "model.%s", module);
    pair_add(&list, name, DTYPE_F32, 2, t->shape[1], t->shape[0], 0.5f);
    assert_int_equal(mkdir(scratch_path(&box, "updates/adapter"), 0755), 0);
    adapter_write(&list, scratch_path(&box, "updates/adapter"), "\"r\": 2, \"lora_alpha\": 2");
    list_free(&list);
    tensors_close(base);
    expect_run(ADAPTED, "one --adapter updates/adapter");
}

/* Where these bytes begin in the header of a safetensors file. */
static char *header_at(char *file, const char *part) {
    uint64_t bytes;
    memcpy(&bytes, file, sizeof bytes);
    for (char *at = file + 8; at < file + 8 + bytes; at++)
        if (!memcmp(at, part, strlen(part))) return at;
    fail_msg("the header has no %s", part);
    return NULL;
}

/* "updates": each model's weights, and files that are wrong in one way each. */
static void write_updates(void) {
    size_t bytes;
    char name[64], *file = NULL;
    assert_int_equal(mkdir(scratch_path(&box, "updates"), 0755), 0);
    assert_int_equal(mkdir(scratch_path(&box, "updates/folder"), 0755), 0);
    for (int i = 0; i < MODELS; i++) {
        free(file);
        snprintf(name, sizeof name, "%s/model.safetensors", folders[i]);
        file = slurp(scratch_path(&box, name), &bytes);
        snprintf(name, sizeof name, "updates/%s.safetensors", folders[i]);
        put(name, file, bytes);
    }
    put("updates/half", file, bytes / 2);
    char *last = file + bytes - 4, kept[4];
    memcpy(kept, last, 4);
    memset(last, 0xFF, 4);
    put("updates/nan", file, bytes);
    memcpy(last, kept, 4);
    *strchr(header_at(file, "action_out_proj.weight"), 'w') = 'W';
    put("updates/stranger", file, bytes);
    put("updates/text", "no tensors", 10);
    put("outside.safetensors", file, bytes);
    free(file);
}

static int set_up(void **state) {
    static const char robot[] =
        "{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"assets\": \"synthetic\"}";
    float noise[H * OPENPI_ACTION_DIM];
    if (open_box(state)) return -1;
    put("robot.json", robot, sizeof robot - 1);
    load_request("aloha_sim", &request);
    openpi_noise(5, 1, noise, (size_t)H * OPENPI_ACTION_DIM);
    add_noise(&request, noise, H);
    put("request.msgpack", request.data, request.size);
    write_noise(noise, sizeof noise);
    for (int i = 0; i < MODELS; i++) expect(i);
    assert_memory_not_equal(want[0], want[1], ACTIONS);
    write_updates();
    expect_adapted();
    assert_memory_not_equal(want[0], want[ADAPTED], ACTIONS);
    return 0;
}

static int tear_down(void **state) {
    msgpack_sbuffer_destroy(&request);
    return close_box(state);
}

static void start(served *server, const char *more) {
    served_start(server, &box, "'%s/one' --robot '%s/robot.json' --threads 2 --steps 1 --admin 127.0.0.1:0 "
                 "%s", box.folder, box.folder, more);
}

static void start_with_updates(served *server, const char *more) {
    char all[600];
    snprintf(all, sizeof all, "--updates '%s/updates' %s", box.folder, more);
    start(server, all);
}

static void send_request(int fd) { ws_send(fd, WS_BINARY, 1, request.data, request.size); }

/* Whose weights computed a reply. */
static int take_reply(int fd) {
    ws_frame frame = ws_expect(fd, WS_BINARY);
    size_t at = 0;
    while (at + 7 < frame.bytes && memcmp(frame.data + at, "data\xc5", 5)) at++;
    assert_true(at + 7 + ACTIONS < frame.bytes);
    int from = 0;
    while (from < KINDS && memcmp(frame.data + at + 7, want[from], ACTIONS)) from++;
    if (from == KINDS) fail_msg("a reply that no model gives");
    free(frame.data);
    return from;
}

static int ask_one(int fd) {
    send_request(fd);
    return take_reply(fd);
}

/* ---- the admin port --------------------------------------------------------------------------------- */

/* The answer's body must begin so. */
static void must_say(int port, const char *method, const char *path, int status, const char *begins) {
    answer a = admin_request(port, method, path, "127.0.0.1", "Content-Length: 0\r\n");
    if (a.status != status || strncmp(a.body, begins, strlen(begins)))
        fail_msg("%s %s: got %d \"%s\", expected %d \"%s\"", method, path, a.status, a.body, status, begins);
    free(a.body);
}

/* 1: the last update is over, and *outcome what became of it. */
static int is_over(int port, char outcome[1024]) {
    answer a = admin_request(port, "GET", "/weights", "127.0.0.1", "");
    assert_int_equal(a.status, 200);
    snprintf(outcome, 1024, "%s", a.body);
    free(a.body);
    return strcmp(outcome, "updating\n") != 0;
}

static void await_update(int port, char outcome[1024]) {
    for (int i = 0; i < WS_SECONDS * 100; i++) {
        if (is_over(port, outcome)) return;
        served_sleep(10);
    }
    fail_msg("an update does not end");
}

/* ---- updates under load ----------------------------------------------------------------------------- */

/* Replies change from old to new once, and never back. A reply is read ahead while the update ends. */
static void update_once(const served *server, const int *robots, int to) {
    char path[64], outcome[1024];
    int changed[ROBOTS] = {0};
    snprintf(path, sizeof path, "/weights/%s.safetensors", folders[to]);
    must_say(server->admin, "POST", path, 200, "updating\n");
    for (int rest = 3; rest; rest -= is_over(server->admin, outcome)) {
        for (int i = 0; i < ROBOTS; i++) {
            int from = take_reply(robots[i]);
            send_request(robots[i]);
            if (changed[i] && from != to) fail_msg("robot %d had the new weights, and then the old ones", i);
            changed[i] |= from == to;
        }
    }
    if (strncmp(outcome, "updated at 20", 13)) fail_msg("the update: %s", outcome);
    if (!strstr(outcome, " tensors of ") || !strstr(outcome, " ms\n")) fail_msg("the update: %s", outcome);
    for (int i = 0; i < ROBOTS; i++) assert_true(changed[i]);
}

static void under_load(void **state) {
    (void)state;
    int robots[ROBOTS];
    served server;
    start_with_updates(&server, "--max-block 2");
    for (int i = 0; i < ROBOTS; i++) {
        robots[i] = greet(server.port);
        assert_int_equal(ask_one(robots[i]), 0);
        send_request(robots[i]);
    }
    must_say(server.admin, "GET", "/weights", 200, "not updated since the start\n");
    for (int i = 1; i <= 3; i++) update_once(&server, robots, i % MODELS);
    for (int i = 0; i < ROBOTS; i++) {
        assert_int_equal(take_reply(robots[i]), 1);
        close(robots[i]);
    }
    metric_await(server.admin, "openpi_weight_updates_total{result=\"ok\"}", 3);
    metric_await(server.admin, "openpi_weight_updates_total{result=\"refused\"}", 0);
    served_stop(&server);
}

/* Both devices change before the update is over; a reload reads the checkpoint again. */
static void on_two_devices(void **state) {
    (void)state;
    served server;
    char outcome[1024];
    start_with_updates(&server, "--device cpu,cpu");
    int one = greet(server.port), other = greet(server.port);
    must_say(server.admin, "POST", "/weights/two.safetensors", 200, "updating\n");
    await_update(server.admin, outcome);
    for (int i = 0; i < 4; i++) {
        send_request(one);
        send_request(other);
        assert_int_equal(take_reply(one), 1);
        assert_int_equal(take_reply(other), 1);
    }
    must_say(server.admin, "POST", "/reload", 200, "reloading\n");
    for (int i = 0; i < WS_SECONDS * 100 && ask_one(one); i++) served_sleep(10);
    assert_int_equal(ask_one(one), 0);
    close(one);
    close(other);
    served_stop(&server);
}

/* ---- the verb --------------------------------------------------------------------------------------- */

static void must_update(const served *server, const char *what, const char *part) {
    if (run("update %s --admin 127.0.0.1:%d", what, server->admin))
        fail_msg("openpi update %s: %s", what, err);
    if (strncmp(out, "updated at 20", 13) || !strstr(out, part))
        fail_msg("openpi update %s: \"%s\", expected \"%s\"", what, out, part);
}

static void must_show(const served *server, const char *part) {
    answer a = admin_request(server->admin, "GET", "/state", "127.0.0.1", "");
    assert_int_equal(a.status, 200);
    if (!strstr(a.body, part)) fail_msg("the state has no %s", part);
    free(a.body);
}

/* An adapter and back, as a user does it; what is served is shown, also after what was refused. */
static void by_the_verb(void **state) {
    (void)state;
    served server;
    start_with_updates(&server, "");
    int fd = greet(server.port);
    must_show(&server, "\"update\":null");
    must_update(&server, "adapter", " 1 tensors of adapter in ");
    assert_int_equal(ask_one(fd), ADAPTED);
    must_show(&server, "\"update\":{\"tensors\":1,\"name\":\"adapter\",\"when\":\"20");
    if (!run("update stranger --admin 127.0.0.1:%d", server.admin)) fail_msg("a stranger is taken");
    assert_non_null(strstr(err, "refused: "));
    assert_non_null(strstr(err, "has no tensor \"action_out_proj.Weight\""));
    if (!run("update --status --admin 127.0.0.1:%d", server.admin)) fail_msg("the last one was refused");
    must_show(&server, "\"name\":\"adapter\"");
    must_update(&server, "--restore", " 1 tensors of the checkpoint in ");
    assert_int_equal(ask_one(fd), 0);
    must_show(&server, "\"update\":null");
    must_update(&server, "two.safetensors", " tensors of two.safetensors in ");
    assert_int_equal(ask_one(fd), 1);
    must_update(&server, "--restore", " tensors of the checkpoint in ");
    assert_int_equal(ask_one(fd), 0);
    close(fd);
    served_stop(&server);
}

static void wrong_words(void **state) {
    (void)state;
    static const struct {
        const char *words, *part;
    } wrong[] = {
        {"", "expected the NAME of a file, --restore or --status"},
        {"folder/x", "is no name of a file in the folder of `openpi serve --updates`"},
        {"x --restore", "the weights are a file's or the checkpoint's"},
        {"x --admin 8642", "--admin is '8642', expected HOST:PORT"},
        {"x --admin 127.0.0.1:1", "127.0.0.1:1: no server's admin port takes a connection there"},
    };
    served server;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (run("update %s", wrong[i].words) != 2)
            fail_msg("openpi update %s ends otherwise", wrong[i].words);
        if (!strstr(err, wrong[i].part)) fail_msg("got \"%s\", expected \"%s\"", err, wrong[i].part);
    }
    start(&server, "");
    if (run("update x --admin 127.0.0.1:%d", server.admin) != 2) fail_msg("a server without a folder");
    assert_non_null(strstr(err, "the server was started without --updates FOLDER"));
    if (run("update x --admin 127.0.0.1:%d", server.port) != 2) fail_msg("the robots' port");
    served_stop(&server);
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *name, *part;
    } wrong[] = {
        {"nothing", "updates/nothing: "},
        {"folder", "updates/folder: is a folder without adapter_config.json, expected a .safetensors"},
        {"text", "updates/text: "},
        {"half", "updates/half: "},
        {"nan", "has a NaN or an infinity"},
        {"stranger", "updates/stranger: the checkpoint has no tensor \"action_out_proj.Weight\""},
    };
    enum { WRONG = sizeof wrong / sizeof *wrong };
    served server;
    char path[64], outcome[1024];
    start_with_updates(&server, "");
    int fd = greet(server.port);
    for (int i = 0; i < WRONG; i++) {
        snprintf(path, sizeof path, "/weights/%s", wrong[i].name);
        must_say(server.admin, "POST", path, 200, "updating\n");
        await_update(server.admin, outcome);
        if (strncmp(outcome, "refused: ", 9) || !strstr(outcome, wrong[i].part))
            fail_msg("%s: got \"%s\", expected \"%s\"", wrong[i].name, outcome, wrong[i].part);
        assert_int_equal(ask_one(fd), 0);
    }
    metric_await(server.admin, "openpi_weight_updates_total{result=\"refused\"}", WRONG);
    served_must_log(&server, "not updated, the weights stay: ");
    must_say(server.admin, "POST", "/weights/two.safetensors", 200, "updating\n");
    await_update(server.admin, outcome);
    assert_int_equal(ask_one(fd), 1);
    close(fd);
    served_stop(&server);
}

/* No name leads out of the folder, and a web page of others changes nothing. */
static void who_may(void **state) {
    (void)state;
    static const char *const names[] = {"", "../outside.safetensors", "..%2foutside.safetensors", ".", "..",
                                        ".hidden", "folder/x", "a%20b", "x:y"};
    static const char path[] = "/weights/two.safetensors";
    served server;
    start_with_updates(&server, "");
    int fd = greet(server.port);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char full[80];
        snprintf(full, sizeof full, "/weights/%s", names[i]);
        answer a = admin_request(server.admin, "POST", full, "127.0.0.1", "Content-Length: 0\r\n");
        if (a.status == 200) fail_msg("POST %s is taken", full);
        free(a.body);
    }
    must_answer(server.admin, "GET", "/restore", "127.0.0.1", "", 405);
    must_answer(server.admin, "GET", path, "127.0.0.1", "", 405);
    must_answer(server.admin, "POST", path, "robots.example", "Content-Length: 0\r\n", 403);
    must_answer(server.admin, "POST", path, "127.0.0.1",
                "Content-Length: 0\r\nOrigin: http://robots.example\r\n", 403);
    must_say(server.admin, "GET", "/weights", 200, "not updated since the start\n");
    assert_int_equal(ask_one(fd), 0);
    close(fd);
    served_stop(&server);
}

static void without_a_folder(void **state) {
    (void)state;
    served server;
    start(&server, "");
    must_say(server.admin, "POST", "/weights/two.safetensors", 403, "the server was started without");
    served_stop(&server);
    if (!run("serve one --robot robot.json --updates robot.json --port 0")) fail_msg("a file is no folder");
    assert_non_null(strstr(err, "--updates is '"));
    if (!run("serve one --robot robot.json --updates updates --record records --port 0")) fail_msg("both");
    assert_non_null(strstr(err, "--updates and --record exclude each other"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_load),  cmocka_unit_test(on_two_devices), cmocka_unit_test(wrong_files),
        cmocka_unit_test(who_may),     cmocka_unit_test(without_a_folder), cmocka_unit_test(by_the_verb),
        cmocka_unit_test(wrong_words),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
