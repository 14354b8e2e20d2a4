/* labels: server threads links=serve */
/* --shadow: requests that are computed again behind their replies. With the weights that are served nothing
 * differs, to the bit: noise of the server's seed and the robot's own, chunks that follow on, before and
 * after a reload. With other weights it does, and what is above the bound is told. */
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
#include "robot_message.h"
#include "admin_client.h"
#include "serve/shadow/shadow.h"

#define POLICY "--robot aloha_sim --norm-stats '" GOLDEN "/policy/aloha_sim/norm_stats.json' --tokenizer '"  \
               GOLDEN "/tokenizer.model' --threads 2 --steps 2 --horizon 6"
#define MODEL "--synthetic tiny " POLICY
#define RESULT(name) "openpi_shadow_requests_total{result=\"" name "\"}"

enum { H = 6 };

/* 0 plain, 1 with noise of its own, 2 as a chunk that follows on, 3 as several chunks. */
static void ask_once(int fd, int kind) {
    float noise[H * OPENPI_ACTION_DIM];
    msgpack_sbuffer message;
    load_request("aloha_sim", &message);
    openpi_noise(3, 4, noise, H * OPENPI_ACTION_DIM);
    if (kind == 1) add_noise(&message, noise, H);
    if (kind == 2) add_following(&message, 2);
    if (kind == 3) add_number(&message, "openpi/samples", 2);
    ws_frame frame = ask(fd, &message);
    assert_int_equal(frame.opcode, WS_BINARY);
    free(frame.data);
    msgpack_sbuffer_destroy(&message);
}

static double shadowed(int port) {
    static const char *const results[] = {RESULT("within"), RESULT("above"), RESULT("left_out"),
                                          RESULT("failed")};
    double all = 0;
    for (int i = 0; i < 4; i++) all += metric(port, results[i]);
    return all;
}

static void await_shadowed(int port, double count) {
    for (int i = 0; i < 6000 && shadowed(port) < count; i++) served_sleep(10);
    assert_true(shadowed(port) == count);
}

static void await_log(const served *s, const char *part) {
    for (int i = 0; i < 6000; i++) {
        char *text = served_log(s);
        int there = strstr(text, part) != NULL;
        free(text);
        if (there) return;
        served_sleep(10);
    }
    fail_msg("the log never says: %s", part);
}

/* The served weights again: every number is the same. */
static void the_same_weights(void **state) {
    (void)state;
    static const int kinds[] = {0, 1, 2};
    served server;
    served_start(&server, &box, MODEL " --seed 11 --shadow 1 --admin 127.0.0.1:0");
    int fd = greet(server.port), count = 0;
    for (int reloads = 0; reloads < 2; reloads++) {
        for (int i = 0; i < 3; i++) {
            ask_once(fd, kinds[i]);
            await_shadowed(server.admin, ++count);
        }
        if (reloads) break;
        kill(server.pid, SIGHUP);
        await_log(&server, "reloaded: model 2");
    }
    assert_true(metric(server.admin, RESULT("within")) == 6);
    assert_true(metric(server.admin, "openpi_shadow_rms_sum") == 0);
    assert_true(metric(server.admin, "openpi_shadow_max_sum") == 0);
    assert_true(metric(server.admin, "openpi_shadow_largest") < 1e-6);      /* what was sent is fp32      */
    close(fd);
    served_stop(&server);
    served_must_log(&server, "every 1 requests one is computed again with the weights bf16");
}

/* Every second one; several chunks are none of them. */
static void every_second(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, MODEL " --shadow 2 --shadow-weights int8x8 --admin 127.0.0.1:0");
    int fd = greet(server.port);
    for (int i = 0; i < 4; i++) {
        ask_once(fd, 3);
        ask_once(fd, 0);
        await_shadowed(server.admin, i / 2 + 1);
    }
    assert_true(metric(server.admin, "openpi_shadow_rms_count") == 2);
    double rms = metric(server.admin, "openpi_shadow_rms_sum");
    assert_true(rms > 0 && metric(server.admin, "openpi_shadow_max_sum") > rms);
    assert_true(metric(server.admin, "openpi_shadow_largest") > 0);
    close(fd);
    served_stop(&server);
}

/* 8 bits are served, and no difference is allowed. */
static void above_the_bound(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, MODEL " --weights int8x8 --shadow 1 --shadow-bound 1e-9 --admin 127.0.0.1:0");
    int fd = greet(server.port);
    ask_once(fd, 0);
    metric_await(server.admin, RESULT("above"), 1);
    assert_true(metric(server.admin, RESULT("within")) == 0);
    close(fd);
    served_stop(&server);
    served_must_log(&server, "more than the 1e-09 of --shadow-bound; the largest difference is ");
}

/* The checkpoint was replaced by another one, and no reload has read it. */
static void other_weights(void **state) {
    (void)state;
    served server;
    assert_int_equal(run("synth ckpt --preset tiny"), 0);
    assert_int_equal(run("synth other --preset tiny --seed 8"), 0);
    served_start(&server, &box, "'%s/ckpt' " POLICY " --shadow 1 --admin 127.0.0.1:0", box.folder);
    int fd = greet(server.port);
    ask_once(fd, 0);
    metric_await(server.admin, RESULT("within"), 1);
    kill(server.pid, SIGHUP);
    await_log(&server, "reloaded: model 2");
    char from[512], to[512];
    snprintf(from, sizeof from, "%s", scratch_path(&box, "other/model.safetensors"));
    snprintf(to, sizeof to, "%s", scratch_path(&box, "ckpt/model.safetensors"));
    assert_int_equal(rename(from, to), 0);
    ask_once(fd, 0);
    metric_await(server.admin, RESULT("left_out"), 1);
    close(fd);
    served_stop(&server);
    served_must_log(&server, "until the next reload: the checkpoint has other weights now");
}

static void refused_at_once(void **state) {
    (void)state;
    must_refuse("serve " MODEL " --port 0 --no-admin --shadow-weights bf16", "are of --shadow");
    must_refuse("serve " MODEL " --port 0 --no-admin --shadow 1 --shadow-bound no",
                "--shadow-bound is 'no', expected a number of σ");
    must_refuse("serve " MODEL " --port 0 --updates . --shadow 1",
                "--updates and --shadow exclude each other");
}

/* What only the shadow's load finds ends the start, too. */
static void not_loaded(void **state) {
    (void)state;
    assert_int_equal(run("serve " MODEL " --port 0 --no-admin --shadow 1 --shadow-weights bf17"), 2);
    must_contain(err, "--shadow: weights is \"bf17\"");
    assert_int_equal(run("serve " MODEL " --port 0 --no-admin --shadow 1 --shadow-device nowhere"), 3);
    must_contain(err, "--shadow: ");
    must_contain(err, "nowhere");
}

static void differences(void **state) {
    (void)state;
    float a[2 * OPENPI_ACTION_DIM] = {0}, b[2 * OPENPI_ACTION_DIM] = {0};
    b[1] = 3, a[OPENPI_ACTION_DIM] = 4, b[2] = 100;        /* two columns count                       */
    shadow_difference d = shadow_compare(a, b, 2, 2);
    assert_true(fabs(d.rms - 2.5) < 1e-12 && d.max == 4 && d.row == 1 && d.column == 0);
    a[1] = NAN;
    d = shadow_compare(a, b, 2, 2);
    assert_true(isinf(d.rms) && isinf(d.max));
}

static int set_up(void **state) { return open_box(state); }

static int tear_down(void **state) {
    int end = close_box(state);
    out = err = NULL;
    return end;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_weights), cmocka_unit_test(every_second), cmocka_unit_test(above_the_bound),
        cmocka_unit_test(other_weights),    cmocka_unit_test(refused_at_once),
        cmocka_unit_test(not_loaded),       cmocka_unit_test(differences),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
