/* labels: server threads */
/* The admin port of `openpi serve`: metrics that agree with what was sent, who may ask, and how it drains. */
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
#include "one_request.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --horizon 5"
#define ADMIN " --admin 127.0.0.1:0"

static void ask_aloha(int fd) {
    ws_send(fd, WS_BINARY, 1, request, request_bytes);
    free(ws_expect(fd, WS_BINARY).data);
}

/* ---- a storm ---------------------------------------------------------------------------------------- */

/* Robots' connections are accepted a few at a time. Who asks on the admin port does not wait for all that
 * came before: the server stands still until they are there. */
static void a_storm_leaves_the_page(void **state) {
    (void)state;
    enum { STORM = 100 };
    static const char robot[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" WS_UPGRADE "\r\n",
                      page[] = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    int storm[STORM];
    served server;
    served_start(&server, &box, TINY ADMIN " --max-per-address 200 --max-attempts 10000");
    kill(server.pid, SIGSTOP);
    for (int i = 0; i < STORM; i++) {
        storm[i] = ws_socket(server.port);
        ws_put(storm[i], robot, sizeof robot - 1);
    }
    int admin = ws_socket(server.admin);
    ws_put(admin, page, sizeof page - 1);
    kill(server.pid, SIGCONT);
    answer a = receive_answer(admin);
    assert_true(metric_in(a.body, "openpi_connections") < STORM / 2);
    free(a.body);
    close(admin);
    metric_await(server.admin, "openpi_connections", STORM);
    for (int i = 0; i < STORM; i++) close(storm[i]);
    served_stop(&server);
}

/* ---- metrics ---------------------------------------------------------------------------------------- */

static void metrics_agree(void **state) {
    (void)state;
    enum { ASKED = 5 };
    served server;
    char head[1024];
    served_start(&server, &box, TINY ADMIN " --max-connections 2 --device cpu");
    assert_true(server.admin > 0 && server.admin != server.port);
    metric_await(server.admin, "openpi_connections", 0);
    int one = greet(server.port), two = greet(server.port);
    close(ws_request(server.port, "/", WS_UPGRADE, head, sizeof head));
    assert_memory_equal(head, "HTTP/1.1 503 ", 13);
    for (int i = 0; i < ASKED; i++) ask_aloha(i % 2 ? one : two);
    ws_send(one, WS_BINARY, 1, "rubbish", 7);
    free(ws_expect(one, WS_TEXT).data);
    metric_await(server.admin, "openpi_requests_total{class=\"shared\",result=\"refused\"}", 1);
    metric_await(server.admin, "openpi_requests_total{class=\"shared\",result=\"ok\"}", ASKED);
    answer a = admin_request(server.admin, "GET", "/metrics", "127.0.0.1", "");
    assert_true(metric_in(a.body, "openpi_requests_total{class=\"reserved\",result=\"ok\"}") == 0);
    assert_true(metric_in(a.body, "openpi_request_duration_seconds_count") == ASKED + 1);
    assert_true(metric_in(a.body, "openpi_queue_duration_seconds_count") == ASKED);
    assert_true(metric_in(a.body, "openpi_stage_duration_seconds_count{stage=\"receive\"}") == ASKED + 1);
    assert_true(metric_in(a.body, "openpi_stage_duration_seconds_count{stage=\"prepare\"}") == ASKED + 1);
    assert_true(metric_in(a.body, "openpi_stage_duration_seconds_count{stage=\"run\"}") == ASKED);
    assert_true(metric_in(a.body, "openpi_batch_size_count") == ASKED);
    assert_true(metric_in(a.body, "openpi_batch_size_sum") == ASKED);
    assert_true(metric_in(a.body, "openpi_connections") == 2);
    assert_true(metric_in(a.body, "openpi_connections_rejected_total{reason=\"connections\"}") == 1);
    assert_true(metric_in(a.body, "openpi_received_bytes_total") == (double)(ASKED * request_bytes + 7));
    assert_true(metric_in(a.body, "openpi_sent_bytes_total") > ASKED * 5 * 14 * 8);
    assert_true(metric_in(a.body, "openpi_message_bytes_count") == ASKED + 1);
    assert_true(metric_in(a.body, "openpi_queue_length{class=\"shared\"}") == 0);
    /* the device computes within the time from begin to end of the run stages, and all of it */
    double busy = metric_in(a.body, "openpi_device_busy_seconds_total{device=\"cpu\"}");
    double ran = metric_in(a.body, "openpi_stage_duration_seconds_sum{stage=\"run\"}");
    assert_true(busy > 0 && fabs(busy - ran) < 1e-6 * ran);
    free(a.body);
    close(one);
    metric_await(server.admin, "openpi_connections", 1);
    close(two);
    served_stop(&server);
}

/* A request whose robot has left is counted as gone. */
static void who_leaves_is_counted(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY ADMIN);
    int fd = greet(server.port);
    ws_send(fd, WS_BINARY, 1, request, request_bytes);
    ws_send(fd, WS_PING, 1, "", 0);
    ws_frame frame = ws_receive(fd);         /* the pong or the reply: the request has arrived             */
    int answered = frame.opcode == WS_BINARY;
    free(frame.data);
    close(fd);
    metric_await(server.admin, "openpi_connections", 0);
    double gone = -1, ok = -1;
    for (int i = 0; i < 6000 && gone + ok != 1; i++) {
        gone = metric(server.admin, "openpi_requests_total{class=\"shared\",result=\"gone\"}");
        ok = metric(server.admin, "openpi_requests_total{class=\"shared\",result=\"ok\"}");
        if (gone + ok != 1) served_sleep(10);
    }
    assert_true(gone + ok == 1);
    assert_true(!answered || ok == 1);
    served_stop(&server);
}

/* ---- who may ask ------------------------------------------------------------------------------------ */

static void routes(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY ADMIN);
    int port = server.admin;
    char own[64], origin[128];
    snprintf(own, sizeof own, "127.0.0.1:%d", port);
    must_answer(port, "GET", "/healthz", own, "", 200);
    must_answer(port, "GET", "/metrics", own, "", 200);
    must_answer(port, "GET", "/metrics", "localhost:9090", "", 200);
    must_answer(port, "GET", "/metrics", "[::1]:9090", "", 200);
    must_answer(port, "GET", "/metrics", "[::1", "", 403);
    must_answer(port, "GET", "/metrics", "[localhost", "", 403);
    must_answer(port, "GET", "/metrics", "[127.0.0.1]:9090", "", 403);
    must_answer(port, "GET", "/metrics", "evil.example", "", 403);
    must_answer(port, "GET", "/metrics", "127.0.0.1.evil.example:9090", "", 403);
    must_answer(port, "GET", "/metrics", "", "", 403);
    must_answer(port, "GET", "/nothing", own, "", 404);
    must_answer(port, "GET", "/metrics", own, WS_UPGRADE, 200);
    must_answer(port, "GET", "/", own, WS_UPGRADE "Authorization: Bearer x\r\n", 200);
    must_answer(port, "GET", "/drain", own, "", 405);
    must_answer(port, "PUT", "/drain", own, "Content-Length: 0\r\n", 404);
    must_answer(port, "POST", "/metrics", own, "Content-Length: 0\r\n", 405);
    must_answer(port, "POST", "/drain", own, "Origin: http://evil.example\r\nContent-Length: 0\r\n", 403);
    must_answer(port, "POST", "/drain", own, "Origin: null\r\nContent-Length: 0\r\n", 403);
    snprintf(origin, sizeof origin, "Origin: http://127.0.0.1:%d\r\nContent-Length: 0\r\n", port + 1);
    must_answer(port, "POST", "/drain", own, origin, 403);
    must_answer(port, "GET", "/healthz", own, "", 200);
    /* the robots' port has none of it */
    must_answer(server.port, "GET", "/metrics", own, "", 426);
    must_answer(server.port, "POST", "/drain", own, "Content-Length: 0\r\n", 426);
    must_answer(server.port, "GET", "/healthz", own, "", 200);
    served_stop(&server);
}

/* One connection asks again and again, also with a body, and with HEAD. */
static void keep_alive(void **state) {
    (void)state;
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    static const char head[] = "HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    served server;
    served_start(&server, &box, TINY ADMIN);
    int fd = ws_socket(server.admin);
    for (int i = 0; i < 3; i++) {
        char text[2048];
        ws_put(fd, get, sizeof get - 1);
        answer a = receive_answer(fd);
        assert_int_equal(a.status, 200);
        free(a.body);
        ws_put(fd, head, sizeof head - 1);
        ws_head(fd, text, sizeof text);
        assert_memory_equal(text, "HTTP/1.1 200 ", 13);
    }
    close(fd);
    served_stop(&server);
}

static void post_drains(void **state) {
    (void)state;
    served server;
    char own[64], origin[256];
    served_start(&server, &box, TINY ADMIN);
    snprintf(own, sizeof own, "localhost:%d", server.admin);
    /* with a body: the braces, and the line's end that follows */
    snprintf(origin, sizeof origin, "Origin: http://%s\r\nContent-Length: 4\r\n\r\n{}", own);
    int idle = greet(server.port), busy = greet(server.port);
    ask_aloha(busy);
    must_answer(server.admin, "POST", "/drain", own, origin, 200);
    must_answer(server.admin, "GET", "/healthz", own, "", 503);
    must_answer(server.admin, "POST", "/drain", own, "Content-Length: 0\r\n", 200);
    assert_int_equal(ws_try_socket(server.port), -1);
    ws_expect_close(idle, 1001);
    ws_expect_close(busy, 1001);
    assert_int_equal(served_wait(&server), 0);
}

/* ---- where it listens ------------------------------------------------------------------------------- */

static void addresses(void **state) {
    (void)state;
    served server;
    must_refuse("serve " TINY " --port 0 --admin 9090", "expected HOST:PORT");
    must_refuse("serve " TINY " --port 0 --admin ::1:9090", "expected HOST:PORT");
    must_refuse("serve " TINY " --port 0 --admin 127.0.0.1:", "expected HOST:PORT");
    must_refuse("serve " TINY " --port 0 --admin 127.0.0.1:65536", "expected HOST:PORT");
    must_refuse("serve " TINY " --port 0 --admin 0.0.0.0:0", "token of the class admin");
    must_refuse("serve " TINY " --port 0 --admin 127.0.0.1:0 --no-admin", "contradict");
    served_start(&server, &box, TINY ADMIN);
    char args[300];
    snprintf(args, sizeof args, "serve " TINY " --port 0 --admin 127.0.0.1:%d", server.admin);
    must_refuse(args, "Address already in use");
    served_stop(&server);
}

/* Where there is a token of the class admin, the port asks for it, and only for it. */
static void tokens_are_asked_for(void **state) {
    (void)state;
    served server;
    char key[2][65], header[2][200];
    static const char *const class[2] = {"admin", "shared"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run("serve --new-token who%d --class %s >> tokens", i, class[i]), 0);
        const char *colon = strstr(err, ": ");
        assert_non_null(colon);
        assert_int_equal(sscanf(colon, ": %64s", key[i]), 1);
        snprintf(header[i], sizeof header[i], "Authorization: Bearer %s\r\n", key[i]);
    }
    must_refuse("serve " TINY " --port 0 --admin 0.0.0.0:0 --tokens tokens",
                "--tls-key or --trust-network");
    served_start(&server, &box, TINY " --admin 0.0.0.0:0 --trust-network --tokens %s",
                 scratch_path(&box, "tokens"));
    must_answer(server.admin, "GET", "/metrics", "robots.example", "", 401);
    must_answer(server.admin, "GET", "/metrics", "robots.example", header[1], 401);
    must_answer(server.admin, "GET", "/metrics", "robots.example", header[0], 200);
    must_answer(server.admin, "GET", "/healthz", "robots.example", "", 200);
    must_answer(server.admin, "POST", "/drain", "robots.example", "Content-Length: 0\r\n", 401);
    must_answer(server.admin, "POST", "/weights/file", "robots.example", "Content-Length: 0\r\n", 401);
    must_answer(server.admin, "GET", "/weights", "robots.example", "", 401);
    must_answer(server.admin, "POST", "/restore", "robots.example", "Content-Length: 0\r\n", 401);
    must_answer(server.admin, "GET", "/healthz", "robots.example", "", 200);
    must_answer(server.port, "GET", "/", "robots.example", "", 426);
    char upgrade[600];
    snprintf(upgrade, sizeof upgrade, WS_UPGRADE "%s", header[0]);
    must_answer(server.port, "GET", "/", "robots.example", upgrade, 401);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_leaves_the_page),
        cmocka_unit_test(metrics_agree),
        cmocka_unit_test(who_leaves_is_counted),
        cmocka_unit_test(routes),
        cmocka_unit_test(keep_alive),
        cmocka_unit_test(post_drains),
        cmocka_unit_test(addresses),
        cmocka_unit_test(tokens_are_asked_for),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
