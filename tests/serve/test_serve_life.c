/* The life of `openpi serve`: what it refuses to start with, when it listens, how it drains. */
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

#define ALOHA "--synthetic tiny --robot aloha --threads 2 --horizon 5"

static void bad_starts(void **state) {
    (void)state;
    must_refuse("serve", "no model");
    must_refuse("serve --synthetic tiny --robot nobody --port 0", "nobody");
    must_refuse("serve --synthetic tiny --robot aloha --port 70000", "--port is '70000'");
    must_refuse("serve --synthetic tiny --robot aloha --port 0 --host 0.0.0.0", "--trust-network");
    must_refuse("serve --synthetic tiny --robot aloha --port 0 --host no.such.host.invalid", "--host is");
    must_refuse("serve --synthetic tiny --robot aloha --port 0 --device cpu,", "names of devices");
    must_refuse("serve --synthetic tiny --robot aloha --port 0 --max-block 2 --throughput", "contradict");
    must_refuse("serve --synthetic tiny --robot aloha --port 0 --host 192.0.2.1 --trust-network",
                "cannot listen on 192.0.2.1");
}

/* One sentence before the model is loaded. */
static void port_in_use(void **state) {
    (void)state;
    served server;
    char args[200];
    served_start(&server, &box, ALOHA);
    snprintf(args, sizeof args, "serve " ALOHA " --port %d", server.port);
    must_refuse(args, "Address already in use");
    served_stop(&server);
}

/* Requests that came whole are answered, then 1001; who comes now is refused. */
static void drain(void **state) {
    (void)state;
    served server;
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    served_start(&server, &box, ALOHA " --steps 100 --drain 3600 --admin 127.0.0.1:0");
    int idle = greet(server.port), busy = greet(server.port);
    ws_send(busy, WS_BINARY, 1, request, count);
    ws_send(busy, WS_BINARY, 1, request, count);
    ws_send(busy, WS_PING, 1, "", 0);
    metric_await(server.admin, "openpi_received_bytes_total", 2 * (double)count);
    kill(server.pid, SIGTERM);
    ws_expect_close(idle, 1001);
    assert_int_equal(ws_try_socket(server.port), -1);
    int replies = 0;
    ws_frame frame = ws_receive(busy);
    for (; frame.opcode == WS_BINARY || frame.opcode == WS_PONG; frame = ws_receive(busy)) {
        replies += frame.opcode == WS_BINARY;
        free(frame.data);
    }
    assert_int_equal(replies, 2);
    assert_int_equal(frame.opcode, WS_CLOSE);
    assert_int_equal(frame.data[0] << 8 | frame.data[1], 1001);
    ws_send(busy, WS_CLOSE, 1, frame.data, 2);
    free(frame.data);
    close(busy);
    assert_int_equal(served_wait(&server), 0);
    free(request);
}

/* A call that is longer than the drain ends the server all the same. */
static void drain_has_an_end(void **state) {
    (void)state;
    served server;
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    served_start(&server, &box,
                 "--synthetic tiny --robot aloha --isa reference --threads 1 --steps 1 --drain 1");
    int busy = greet(server.port);
    ws_send(busy, WS_BINARY, 1, request, count);
    served_sleep(300);
    kill(server.pid, SIGTERM);
    assert_int_equal(served_wait(&server), 0);
    close(busy);
    free(request);
}

/* A signal that waits since before the program began is found as soon as the model loads. */
static void ended_while_loading(void **state) {
    (void)state;
    static const int numbers[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        served server = {.pid = fork()};
        snprintf(server.log, sizeof server.log, "%s", scratch_path(&box, "log"));
        if (!server.pid) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, numbers[i]);
            sigprocmask(SIG_BLOCK, &set, NULL);
            raise(numbers[i]);
            if (!freopen(server.log, "w", stderr)) _exit(126);
            execl(served_command(), "openpi", "serve", "--synthetic", "tiny", "--robot", "aloha", "--port",
                  "0", "--log-format", "text", "--no-admin", (char *)NULL);
            _exit(127);
        }
        assert_int_equal(served_wait(&server), 0);
        char *log = served_log(&server);
        assert_string_equal(log, "openpi serve: ended while the model was loaded\n");
        free(log);
    }
}

/* A client that leaves in the middle of its call, or of its message, hurts nobody. */
static void leaving(void **state) {
    (void)state;
    served server;
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    served_start(&server, &box, ALOHA " --steps 2");
    for (int i = 0; i < 4; i++) {
        int one = greet(server.port), two = greet(server.port);
        ws_send(one, WS_BINARY, 1, request, count);
        if (i % 2) ws_send(one, WS_BINARY, 1, request, count);
        ws_put_head(two, WS_BINARY, 1, count);
        ws_put(two, request, count / 2);
        close(one);
        close(two);
    }
    int fd = greet(server.port);
    ws_send(fd, WS_BINARY, 1, request, count);
    free(ws_expect(fd, WS_BINARY).data);
    close(fd);
    served_stop(&server);
    free(request);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_starts),       cmocka_unit_test(port_in_use), cmocka_unit_test(drain),
        cmocka_unit_test(drain_has_an_end), cmocka_unit_test(leaving),
        cmocka_unit_test(ended_while_loading),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
