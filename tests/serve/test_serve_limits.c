/* labels: server threads links=client */
/* Limits of a robot over the wire: what leaves is within them, a reply, the log and the metrics say what was
 * changed, and a chunk that is stopped is a sentence. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client/client.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "robot_message.h"
#include "admin_client.h"

enum { ACTIONS = 2, STEPS = 4, NUMBERS = ACTIONS * STEPS };

#define ARM "{\"name\": \"arm\", \"cameras\": {\"eye\": \"base\"}, \"state\": {\"joints\": 2}, " \
            "\"actions\": 2, \"normalization\": \"none\", \"prompt\": \"go\", \"starts\": [0, 1]"
#define LIMITS "\"min\": [-0.5, null], \"max\": [0.5, null], \"max_step\": [null, 0.01], " \
               "\"max_start_jump\": [null, 0.02]"
#define OPTIONS "--synthetic tiny --horizon 4 --steps 1 --threads 1 --admin 127.0.0.1:0 --robot "

/* A picture, a state and, where it is not NULL, the last action. */
static void pack(msgpack_sbuffer *message, const double *last) {
    static const uint8_t picture[8 * 8 * 3];
    static const double state[ACTIONS] = {0.25, 0.5};
    static const int shape[3] = {8, 8, 3}, two[1] = {ACTIONS};
    msgpack_packer packer;
    msgpack_sbuffer_init(message);
    msgpack_packer_init(&packer, message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, last ? 3 : 2);
    pack_text(&packer, "eye");
    pack_array(&packer, "uint8", shape, 3, picture, sizeof picture);
    pack_text(&packer, "joints");
    pack_array(&packer, "<f8", two, 1, state, sizeof state);
    if (!last) return;
    pack_text(&packer, "openpi/last_action");
    pack_array(&packer, "<f8", two, 1, last, sizeof state);
}

static void serve(served *server, const char *limits) {
    char record[1024];
    snprintf(record, sizeof record, ARM "%s}", limits);
    assert_int_equal(scratch_write(&box, "arm.json", record, strlen(record)), 0);
    served_start(server, &box, OPTIONS "'%s'", scratch_path(&box, "arm.json"));
}

/* Returns the reply; fails where the answer is a sentence. */
static client_reply infer(int fd, const double *last, double *actions) {
    char why[CLIENT_SENTENCE];
    msgpack_sbuffer message;
    client_reply reply;
    pack(&message, last);
    ws_frame frame = ask(fd, &message);
    if (!client_reply_read(frame.data, frame.bytes, frame.opcode == WS_TEXT, &reply, actions, NUMBERS, why))
        fail_msg("%s", why);
    free(frame.data);
    msgpack_sbuffer_destroy(&message);
    return reply;
}

static void metric_becomes(int admin, const char *sample, double least) {
    for (int tries = 0; tries < 500; tries++) {
        answer a = admin_request(admin, "GET", "/metrics", "127.0.0.1", "");
        const char *at = strstr(a.body, sample);
        double value = at ? strtod(at + strlen(sample), NULL) : -1;
        free(a.body);
        if (value >= least) return;
        served_sleep(10);
    }
    fail_msg("%s did not become %g", sample, least);
}

static void a_reply_is_within_the_limits(void **state) {
    (void)state;
    static const double last[ACTIONS] = {0, 0.51};
    double free_chunk[NUMBERS], chunk[NUMBERS];
    served server;
    serve(&server, "");
    int fd = greet(server.port);
    client_reply reply = infer(fd, NULL, free_chunk);
    assert_int_equal(reply.limited, 0);
    close(fd);
    served_stop(&server);

    serve(&server, ", \"limits\": {" LIMITS "}");
    fd = greet(server.port);
    reply = infer(fd, NULL, chunk);
    int changed = 0;
    for (int i = 0; i < NUMBERS; i++) changed += chunk[i] != free_chunk[i];
    assert_in_range(changed, 1, NUMBERS);
    assert_int_equal(reply.limited, changed);
    for (int again = 0; again < 2; again++) {
        for (int s = 0; s < STEPS; s++) {
            const double *a = chunk + s * ACTIONS;
            assert_true(a[0] >= -0.5 && a[0] <= 0.5);
            if (s) assert_true(fabs(a[1] - a[1 - ACTIONS]) <= 0.01);
        }
        assert_true(fabs(chunk[1] - 0.5) <= 0.02);
        if (!again) infer(fd, last, chunk);
        else assert_true(fabs(chunk[1] - 0.51) <= 0.01);
    }
    metric_becomes(server.admin, "\nopenpi_replies_limited_total ", 2);
    metric_becomes(server.admin, "\nopenpi_numbers_beyond_limit_total{limit=\"max_start_jump\"} ", 2);
    char *log = served_log(&server);
    if (!strstr(log, "the robot's limits changed ")) fail_msg("the log does not tell:\n%s", log);
    free(log);
    close(fd);
    served_stop(&server);
}

static void a_stopped_chunk_is_a_sentence(void **state) {
    (void)state;
    msgpack_sbuffer message;
    served server;
    serve(&server, ", \"limits\": {\"max_step\": [1e-9, 1e-9], \"on_violation\": \"stop\"}");
    int fd = greet(server.port);
    pack(&message, NULL);
    expect_sentence(fd, &message, "robot \"arm\" is sent nothing: action ");
    expect_sentence(fd, &message, "more than the max_step of 1e-09");       /* the connection lives on */
    msgpack_sbuffer_destroy(&message);
    metric_becomes(server.admin, "openpi_requests_total{class=\"shared\",result=\"stopped\"} ", 2);
    close(fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_reply_is_within_the_limits, open_box, close_box),
        cmocka_unit_test_setup_teardown(a_stopped_chunk_is_a_sentence, open_box, close_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
