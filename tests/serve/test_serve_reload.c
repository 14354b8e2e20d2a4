/* labels: long server threads cost */
#define _GNU_SOURCE              /* prlimit */
/* Another checkpoint in the place of the one that `openpi serve` runs, while robots ask: every reply is
 * wholly of one or of the other, bit for bit what `openpi run` answers, in order, and none is missing. What
 * does not fit is refused with a sentence, and the old one goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/resource.h>

#include "base/sanitizer.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "robot_message.h"

enum { H = 5, ARMS = 14, NUMBERS = H * ARMS, ACTIONS = NUMBERS * 8, CHECKPOINTS = 2, KINDS = 2 };

static const char robot[] =
    "{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"assets\": \"synthetic\"}";
static msgpack_sbuffer requests[KINDS];                        /* [kind]: each with noise of its own        */
static double want[CHECKPOINTS][KINDS][NUMBERS];

static void write_text(const char *name, const char *text) {
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
}

/* "link" leads to this folder from now on; there is no moment at which it is not there. */
static void link_to(const char *folder) {
    char link[500];
    snprintf(link, sizeof link, "%s", scratch_path(&box, "link"));
    const char *fresh = scratch_path(&box, "fresh_link");
    unlink(fresh);
    assert_int_equal(symlink(folder, fresh), 0);
    assert_int_equal(rename(fresh, link), 0);
}

/* ---- what is asked and what must come --------------------------------------------------------------- */

static void make_noise(int kind, float noise[H * OPENPI_ACTION_DIM]) {
    openpi_noise(5, (uint64_t)kind, noise, (size_t)H * OPENPI_ACTION_DIM);
}

static void write_noise(int kind) {
    float noise[H * OPENPI_ACTION_DIM];
    char bytes[128 + sizeof noise] = "\x93NUMPY\x01\x00\x76\x00";
    make_noise(kind, noise);
    memset(bytes + 10, ' ', 118);
    int length = snprintf(bytes + 10, 118, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", H,
                          OPENPI_ACTION_DIM);
    bytes[10 + length] = ' ';
    bytes[127] = '\n';
    memcpy(bytes + 128, noise, sizeof noise);
    assert_int_equal(scratch_write(&box, "noise.npy", bytes, sizeof bytes), 0);
}

static void expect(const char *folder, int kind, double actions[NUMBERS]) {
    size_t bytes;
    write_noise(kind);
    assert_int_equal(scratch_write(&box, "request.msgpack", requests[kind].data, requests[kind].size), 0);
    if (run("run %s --robot robot.json --threads 2 --steps 1 --request request.msgpack --noise noise.npy "
            "--format npy --out actions.npy", folder))
        fail_msg("openpi run: %s", err);
    char *npy = slurp(scratch_path(&box, "actions.npy"), &bytes);
    assert_int_equal(bytes, 128 + ACTIONS);
    memcpy(actions, npy + 128, ACTIONS);
    free(npy);
}

static int set_up(void **state) {
    float noise[H * OPENPI_ACTION_DIM];
    static const char *const folders[CHECKPOINTS] = {"one", "two"};
    if (open_box(state)) return -1;
    write_text("robot.json", robot);
    for (int kind = 0; kind < KINDS; kind++) {
        load_request("aloha_sim", &requests[kind]);
        make_noise(kind, noise);
        add_noise(&requests[kind], noise, H);
    }
    for (int i = 0; i < CHECKPOINTS; i++) {
        if (run("synth %s --preset tiny --seed %d", folders[i], i + 1)) return -1;
        for (int kind = 0; kind < KINDS; kind++) expect(folders[i], kind, want[i][kind]);
    }
    assert_memory_not_equal(want[0][0], want[1][0], ACTIONS);
    assert_memory_not_equal(want[0][0], want[0][1], ACTIONS);
    return 0;
}

static int tear_down(void **state) {
    for (int kind = 0; kind < KINDS; kind++) msgpack_sbuffer_destroy(&requests[kind]);
    return close_box(state);
}

static void start(served *server, const char *more) {
    write_text("robot.json", robot);
    link_to("one");
    served_start(server, &box, "'%s/link' --robot '%s/robot.json' --threads 2 --steps 1 %s", box.folder,
                 box.folder, more);
}

static void send_kind(int fd, int kind) {
    ws_send(fd, WS_BINARY, 1, requests[kind].data, requests[kind].size);
}

/* Which checkpoint answered a request of this kind. */
static int take_reply(int fd, int kind) {
    ws_frame frame = ws_expect(fd, WS_BINARY);
    size_t at = 0;
    while (at + 7 < frame.bytes && memcmp(frame.data + at, "data\xc5", 5)) at++;
    assert_true(at + 7 + ACTIONS < frame.bytes);
    int from = 0;
    while (from < CHECKPOINTS && memcmp(frame.data + at + 7, want[from][kind], ACTIONS)) from++;
    if (from == CHECKPOINTS) fail_msg("a reply that neither checkpoint gives to a request of kind %d", kind);
    free(frame.data);
    return from;
}

static int ask_kind(int fd, int kind) {
    send_kind(fd, kind);
    return take_reply(fd, kind);
}

/* ---- reloads ---------------------------------------------------------------------------------------- */

static int count_lines(const served *server, const char *part) {
    int found = 0;
    char *log = served_log(server);
    for (const char *at = strstr(log, part); at; at = strstr(at + 1, part)) found++;
    free(log);
    return found;
}

/* Waits until the log has this text so often. */
static void await_lines(const served *server, const char *part, int count) {
    for (int i = 0; i < WS_SECONDS * 100; i++) {
        if (count_lines(server, part) >= count) return;
        served_sleep(10);
    }
    char *log = served_log(server);
    fail_msg("\"%s\" is not %d times in\n%s", part, count, log);
}

/* A robot that always has one request computed and one read ahead. */
typedef struct arm {
    int fd;
    int sent, received;          /* requests; the next one is of the kind sent % KINDS                     */
    int from;                    /* the checkpoint of the last reply                                       */
} arm;

static void turn(arm *robots, int count) {
    for (int i = 0; i < count; i++) {
        robots[i].from = take_reply(robots[i].fd, robots[i].received++ % KINDS);
        send_kind(robots[i].fd, robots[i].sent++ % KINDS);
    }
}

/* The link is switched and SIGHUP sent: replies change from old to new once, and never back. When the log
 * says that it is done, two more replies may be there already. */
static void reload_once(const served *server, arm *robots, int count, int to, int number) {
    int changed[8] = {0};
    static const char *const folders[CHECKPOINTS] = {"one", "two"};
    link_to(folders[to]);
    kill(server->pid, SIGHUP);
    for (int rest = 4; rest; rest -= count_lines(server, "reloaded: model") >= number) {
        turn(robots, count);
        for (int i = 0; i < count; i++) {
            if (changed[i]) assert_int_equal(robots[i].from, to);
            changed[i] |= robots[i].from == to;
        }
    }
    for (int i = 0; i < count; i++) assert_int_equal(robots[i].from, to);
}

static void under_load(const char *options, int reloads) {
    enum { ROBOTS = 3 };
    arm robots[ROBOTS] = {{0}};
    served server;
    start(&server, options);
    for (int i = 0; i < ROBOTS; i++) {
        robots[i].fd = greet(server.port);
        for (int k = 0; k < 2; k++) send_kind(robots[i].fd, robots[i].sent++ % KINDS);
    }
    turn(robots, ROBOTS);
    for (int i = 0; i < ROBOTS; i++) assert_int_equal(robots[i].from, 0);
    for (int i = 1; i <= reloads; i++) reload_once(&server, robots, ROBOTS, i % CHECKPOINTS, i);
    for (int i = 0; i < ROBOTS; i++) {
        while (robots[i].received < robots[i].sent) take_reply(robots[i].fd, robots[i].received++ % KINDS);
        close(robots[i].fd);
    }
    assert_int_equal(count_lines(&server, "not reloaded"), 0);
    served_stop(&server);
}

/* OPENPI_TEST_RELOADS=200 for a long run. */
static int reloads(void) {
    const char *text = getenv("OPENPI_TEST_RELOADS");
    return text ? atoi(text) : SANITIZED ? 1 : 2;
}

static void one_by_one(void **state) {
    (void)state;
    under_load("", reloads());
}

static void in_batches(void **state) {
    (void)state;
    under_load("--max-block 2", (reloads() + 1) / 2);
}

static void on_two_devices(void **state) {
    (void)state;
    under_load("--device cpu,cpu", (reloads() + 1) / 2);
}

/* A chunk of other weights leads nothing. */
static void chunks_are_dropped(void **state) {
    (void)state;
    msgpack_sbuffer message, entry;
    msgpack_packer packer;
    served server;
    load_request("aloha_sim", &message);
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, "openpi/rtc"), msgpack_pack_map(&packer, 2);
    pack_text(&packer, "executed"), msgpack_pack_int(&packer, 1);
    pack_text(&packer, "delay"), msgpack_pack_int(&packer, 1);
    add_entry(&message, &entry);
    start(&server, "");
    int fd = greet(server.port);
    assert_int_equal(ask_kind(fd, 0), 0);
    for (int i = 0; i < 4; i++) {
        if (i == 2) {
            kill(server.pid, SIGHUP);
            await_lines(&server, "reloaded: model", 1);
        }
        ws_frame frame = ask(fd, &message);
        assert_int_equal(frame.opcode, WS_BINARY);
        size_t at = 0;
        while (at + 9 < frame.bytes && memcmp(frame.data + at, "\xa7" "applied", 8)) at++;
        assert_int_equal(frame.data[at + 8], i == 2 ? 0xc2 : 0xc3);
        free(frame.data);
    }
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&message);
    msgpack_sbuffer_destroy(&entry);
}

/* Whether the first message of who connects now has a note of the robot's limits. */
static int tells_limits(const served *server) {
    int fd = ws_open(server->port, "/"), found = 0;
    ws_frame frame = ws_expect(fd, WS_BINARY);
    static const char part[] = "has limits for 1 of its 14 actions";
    for (size_t i = 0; i + sizeof part <= frame.bytes && !found; i++)
        found = !memcmp(frame.data + i, part, sizeof part - 1);
    free(frame.data);
    close(fd);
    return found;
}

/* Robots that connect after a reload read the new model's notes, also while one of before is connected. */
static void metadata_follow(void **state) {
    (void)state;
    static const char limited[] =
        "{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"assets\": \"synthetic\", "
        "\"limits\": {\"actions\": [[-9000, 9000], null, null, null, null, null, null, null, null, null, "
        "null, null, null, null]}}";
    served server;
    start(&server, "");
    int fd = greet(server.port);
    assert_int_equal(tells_limits(&server), 0);
    for (int i = 1; i <= 3; i++) {
        write_text("robot.json", i % 2 ? limited : robot);
        kill(server.pid, SIGHUP);
        await_lines(&server, "reloaded: model", i);
        assert_int_equal(tells_limits(&server), i % 2);
    }
    assert_int_equal(ask_kind(fd, 0), 0);
    close(fd);
    served_stop(&server);
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void must_refuse_reload(const served *server, int fd, int number, const char *part) {
    kill(server->pid, SIGHUP);
    await_lines(server, "not reloaded, the old model stays: ", number);
    if (count_lines(server, part) != 1) {
        char *log = served_log(server);
        fail_msg("\"%s\" is not once in\n%s", part, log);
    }
    for (int kind = 0; kind < KINDS; kind++) assert_int_equal(ask_kind(fd, kind), 0);
}

/* Half of the weights. */
static void write_broken(void) {
    size_t bytes;
    if (run("synth broken --preset tiny --seed 3")) fail_msg("%s", err);
    char *file = slurp(scratch_path(&box, "broken/model.safetensors"), &bytes);
    assert_int_equal(scratch_write(&box, "broken/model.safetensors", file, bytes / 2), 0);
    free(file);
}

static void what_does_not_fit(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } robots[] = {
        {"{\"like\": \"aloha\", \"name\": \"legs\", \"horizon\": 5}",
         "the new checkpoint's robot is legs, expected arms"},
        {"{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 6}",
         "the new checkpoint's chunks have 6 steps, expected 5"},
        {"{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"actions\": 13, \"delta\": [], "
         "\"transform\": \"none\"}",
         "the new checkpoint has 13 actions a step, expected 14"},
        {"{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"cameras\": {\"cam_other\": \"base\"}}",
         "camera 1 of the new checkpoint is 'cam_other', expected 'images/cam_high'"},
        {"{\"like\": \"aloha\", \"name\": \"arms\", \"horizon\": 5, \"reset_pose\": [1, 2, 3]}",
         "the new checkpoint has another reset_pose"},
        {"{\"like\": \"aloha\"", "robot.json"},
    };
    served server;
    int number = 0;
    start(&server, "");
    int fd = greet(server.port);
    link_to("two");
    for (size_t i = 0; i < sizeof robots / sizeof *robots; i++) {
        write_text("robot.json", robots[i].text);
        must_refuse_reload(&server, fd, ++number, robots[i].sentence);
    }
    write_text("robot.json", robot);
    write_broken();
    link_to("broken");
    must_refuse_reload(&server, fd, ++number, "broken/model.safetensors");
    link_to("nowhere");
    must_refuse_reload(&server, fd, ++number, "/link: ");
    link_to("two");
    kill(server.pid, SIGHUP);
    await_lines(&server, "reloaded: model", 1);
    for (int kind = 0; kind < KINDS; kind++) assert_int_equal(ask_kind(fd, kind), 1);
    close(fd);
    served_stop(&server);
}

/* The process may have no more memory than it has. */
static void no_memory(void **state) {
    (void)state;
    if (SANITIZED) skip();
    served server;
    char path[64], text[4096];
    struct rlimit before, least;
    start(&server, "");
    int fd = greet(server.port);
    assert_int_equal(ask_kind(fd, 0), 0);
    snprintf(path, sizeof path, "/proc/%d/statm", (int)server.pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_int_equal(prlimit(server.pid, RLIMIT_AS, NULL, &before), 0);
    least = before;
    least.rlim_cur = strtoull(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE) + (1 << 20);
    assert_int_equal(prlimit(server.pid, RLIMIT_AS, &least, NULL), 0);
    kill(server.pid, SIGHUP);
    await_lines(&server, "not reloaded, the old model stays: ", 1);
    assert_int_equal(prlimit(server.pid, RLIMIT_AS, &before, NULL), 0);
    assert_int_equal(ask_kind(fd, 1), 0);
    link_to("two");
    kill(server.pid, SIGHUP);
    await_lines(&server, "reloaded: model", 1);
    assert_int_equal(ask_kind(fd, 0), 1);
    close(fd);
    served_stop(&server);
}

/* ---- the admin port --------------------------------------------------------------------------------- */

/* The body of an answer of the admin port. */
static void admin_asks(int port, const char *line, char body[1024]) {
    char head[2048];
    int fd = ws_socket(port);
    snprintf(head, sizeof head, "%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 0\r\n\r\n", line, port);
    ws_put(fd, head, strlen(head));
    ws_head(fd, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    const char *length = strstr(head, "Content-Length: ");
    assert_non_null(length);
    size_t count = (size_t)atoi(length + 16);
    assert_true(count < 1024);
    assert_true(ws_get(fd, body, count));
    body[count] = 0;
    close(fd);
}

/* Until the outcome begins like this. */
static void await_outcome(int port, const char *begins) {
    char body[1024] = "";
    for (int i = 0; i < WS_SECONDS * 100; i++) {
        admin_asks(port, "GET /reload", body);
        if (!strncmp(body, begins, strlen(begins))) return;
        served_sleep(10);
    }
    fail_msg("GET /reload says \"%s\", expected \"%s\"", body, begins);
}

static void by_the_admin_port(void **state) {
    (void)state;
    char body[1024];
    served server;
    start(&server, "--admin 127.0.0.1:0");
    char *log = served_log(&server), *line = strstr(log, "metrics on http://127.0.0.1:");
    assert_non_null(line);
    int port = atoi(strstr(line, "127.0.0.1:") + 10), fd = greet(server.port);
    free(log);
    await_outcome(port, "not reloaded since the start\n");
    link_to("nowhere");
    admin_asks(port, "POST /reload", body);
    assert_string_equal(body, "reloading\n");
    await_outcome(port, "refused: ");
    assert_int_equal(ask_kind(fd, 0), 0);
    link_to("two");
    admin_asks(port, "POST /reload", body);
    await_outcome(port, "reloaded at 20");
    assert_int_equal(ask_kind(fd, 0), 1);
    close(fd);
    served_stop(&server);
}

/* ---- at odd times ----------------------------------------------------------------------------------- */

/* Nothing is logged after it has drained. */
static void must_end_drained(const served *server) {
    static const char last[] = "openpi serve: drained\n";
    char *log = served_log(server), *at = strstr(log, last);
    if (!at || at[sizeof last - 1]) fail_msg("\"drained\" is not the last line of\n%s", log);
    free(log);
}

/* SIGTERM while it reloads: requests that came whole are answered by one or the other, then the end. */
static void while_draining(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        served server;
        start(&server, "");
        int fd = greet(server.port);
        assert_int_equal(ask_kind(fd, 0), 0);
        send_kind(fd, 0);
        send_kind(fd, 1);
        ws_send(fd, WS_PING, 1, "", 0);
        link_to("two");
        kill(server.pid, SIGHUP);
        if (i) await_lines(&server, "reloading", 1);
        ws_frame frame = ws_receive(fd);
        int replies = 0;
        kill(server.pid, SIGTERM);
        for (; frame.opcode == WS_BINARY || frame.opcode == WS_PONG; frame = ws_receive(fd)) {
            replies += frame.opcode == WS_BINARY;
            free(frame.data);
        }
        assert_true(replies >= 1);
        assert_int_equal(frame.opcode, WS_CLOSE);
        assert_int_equal(frame.data[0] << 8 | frame.data[1], 1001);
        ws_send(fd, WS_CLOSE, 1, frame.data, 2);
        free(frame.data);
        close(fd);
        assert_int_equal(served_wait(&server), 0);
        must_end_drained(&server);
    }
}

/* Many signals become few reloads; the last one has loaded what is there last. */
static void storm(void **state) {
    (void)state;
    enum { SIGNALS = 100 };
    served server;
    start(&server, "");
    int fd = greet(server.port);
    for (int i = 0; i < SIGNALS; i++) {
        if (i == SIGNALS - 1) link_to("two");
        kill(server.pid, SIGHUP);
        if (i % 50 == 0) ask_kind(fd, 0);
    }
    int from = 0;
    for (int i = 0; i < 2000 && !from; i++) from = ask_kind(fd, 1);
    assert_int_equal(from, 1);
    close(fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_by_one),        cmocka_unit_test(in_batches),
        cmocka_unit_test(on_two_devices),    cmocka_unit_test(chunks_are_dropped),
        cmocka_unit_test(metadata_follow),
        cmocka_unit_test(what_does_not_fit), cmocka_unit_test(no_memory),
        cmocka_unit_test(while_draining),    cmocka_unit_test(storm),
        cmocka_unit_test(by_the_admin_port),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
