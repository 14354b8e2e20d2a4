/* labels: server host threads links=serve wrap=getaddrinfo */
/* The life of `openpi serve`: what it refuses to start with, when it listens, how it drains. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netdb.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "stalled.h"
#include "websocket.h"
#include "robot_message.h"
#include "small_robot.h"
#include "host_robot.h"
#include "admin_client.h"
#include "serve/schedule/drain.h"
#include "serve/net/net.h"

#define ALOHA_MODEL "--synthetic tiny --threads 2 --horizon 5"
#define ALOHA ALOHA_MODEL " --robot aloha"

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

/* Entries of a tuning table whose kernels have changed since are not used: the log says so. */
static void old_table(void **state) {
    (void)state;
    served server;
    if (run("bench " ALOHA_MODEL " --warmup 0 --runs 1 --no-energy --json bench.json")) fail_msg("%s", err);
    json_t *bench = json_load_file(scratch_path(&box, "bench.json"), 0, NULL);
    const char *hardware = NULL, *path = NULL;
    assert_int_equal(json_unpack(bench, "{s{ss ss}}", "machine", "hardware", &hardware, "path", &path), 0);
    json_t *table = json_pack("{ss si ss ss ss si s{ss} s[{ss ss ss ss si si si ss}]}", "kind", "tuning",
                              "format", 2, "openpi", "0.1.0", "device", hardware, "path", path, "threads", 2,
                              "kernels", "old", "0123456789abcdef", "entries", "op", "linear_residual",
                              "form", "plain", "norm", "none", "dtype", "bf16", "m", 1, "n", 2, "k", 3,
                              "choice", "old");
    assert_non_null(table);
    assert_int_equal(json_dump_file(table, scratch_path(&box, "old.json"), 0), 0);
    served_start(&server, &box, ALOHA " --table '%s'", scratch_path(&box, "old.json"));
    served_must_log(&server, "old.json: 1 of 1 entries ignored: old changed since the table was made");
    served_stop(&server);
    json_decref(table);
    json_decref(bench);
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

int __real_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* "FIRST+SECOND" is a name with two addresses. */
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *wanted,
                       struct addrinfo **found) {
    const char *plus = strchr(name, '+');
    char first[64];
    if (!plus) return __real_getaddrinfo(name, service, wanted, found);
    snprintf(first, sizeof first, "%.*s", (int)(plus - name), name);
    int code = __real_getaddrinfo(first, service, wanted, found);
    return code ? code : __real_getaddrinfo(plus + 1, service, wanted, &(*found)->ai_next);
}

/* A name may have addresses that the machine has not, as localhost has ::1 where IPv6 is switched off. */
static void names_with_absent_addresses(void **state) {
    (void)state;
    static const struct { const char *name; int listens; } table[] = {
        {"192.0.2.1+127.0.0.1", 1}, {"127.0.0.1+192.0.2.1", 1}, {"192.0.2.1+203.0.113.1", 0}};
    const net_events events = {.asked = NULL};
    const net_limits limits = {.handshake = 5, .files = 256};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        net *net;
        assert_int_equal(net_open(&events, NULL, &limits, NULL, &net, &error), OPENPI_OK);
        openpi_status status = net_bind(net, NET_ROBOTS, table[i].name, 0, 0, &error);
        if (table[i].listens != (status == OPENPI_OK)) fail_msg("%s: %s", table[i].name, error.message);
        assert_int_equal(net_port(net, NET_ROBOTS) != 0, table[i].listens);
        net_close(net);
    }
}

/* Requests that came whole are answered, then 1001; who comes now is refused. */
static void drain(void **state) {
    (void)state;
    served server;
    size_t count;
    char *asked = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    served_start(&server, &box, ALOHA " --steps 100 --drain 3600 --admin 127.0.0.1:0");
    int idle = greet(server.port), busy = greet(server.port);
    ws_send(busy, WS_BINARY, 1, asked, count);
    ws_send(busy, WS_BINARY, 1, asked, count);
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
    free(asked);
}

/* ---- a device that stands still ---------------------------------------------------------------------- */

/* openpi_host's device, which a signal stops and lets run. */
#define STALLING                                                                                            \
    "%s --device host:0 --handshake-timeout 3600 --message-timeout 3600 --ping-interval 3600"

/* One robot waits for a call that does not end. Returns when the call has begun. */
static int stall(const served *server) {
    int busy = greet(server->port), before = stalled_threads(server);
    kill(server->pid, SIGUSR1);
    ws_send(busy, WS_BINARY, 1, request.data, request.size);
    await_stalled(server, before + 1);
    return busy;
}

/* While the server drains, /healthz says so on a connection that is kept, and new ones are refused. A second
 * signal ends it, although a call does not end. */
static void health_and_a_second_signal(void **state) {
    (void)state;
    static const char again[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    served server;
    char head[1024], body[16] = "";
    served_instead = OPENPI_HOST;
    served_start(&server, &box, STALLING " --drain 3600", robot_args);
    served_instead = NULL;
    int idle = greet(server.port), busy = stall(&server);
    int kept = ws_request(server.port, "/healthz", "", head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    assert_true(ws_get(kept, body, strlen("OK\n")));
    assert_string_equal(body, "OK\n");
    kill(server.pid, SIGTERM);
    ws_expect_close(idle, 1001);
    assert_int_equal(ws_try_socket(server.port), -1);
    ws_put(kept, again, sizeof again - 1);
    ws_head(kept, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 503 ", 13);
    assert_true(ws_get(kept, body, strlen("draining\n")));
    assert_string_equal(body, "draining\n");
    kill(server.pid, SIGTERM);
    ws_expect_close(busy, 1001);
    close(kept);
    assert_int_equal(served_wait_soon(&server), 0);
}

/* A free port. While the socket is bound, nobody gets this port who asks for any. */
static int reserve(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* The device stands still from the beginning on, so the first call does not end: connecting is refused.
 * When the call has ended, it is not. Then another one does not end within --drain, and the server ends. */
static void first_call_and_last(void **state) {
    (void)state;
    served server;
    char args[1200];
    int port, reserved = reserve(&port);
    snprintf(args, sizeof args, STALLING " --no-admin --drain 1 --port %d", robot_args, port);
    served_instead = OPENPI_HOST;
    served_pending = SIGUSR1;
    served_launch(&server, &box, args);
    served_pending = 0;
    served_instead = NULL;
    await_stalled(&server, 1);
    assert_int_equal(ws_try_socket(port), -1);
    kill(server.pid, SIGUSR2);
    served_await(&server);
    assert_int_equal(server.port, port);
    close(reserved);
    int idle = greet(port), busy = stall(&server);
    kill(server.pid, SIGTERM);
    ws_expect_close(idle, 1001);
    ws_expect_close(busy, 1001);
    assert_int_equal(served_wait_soon(&server), 0);
}

/* Who waits for an answer has at least half of the time, and close frames a second at most. */
static void drain_is_divided(void **state) {
    (void)state;
    static const struct { int seconds; drain_times times; } table[] = {
        {1, {500, 500}}, {2, {1000, 1000}}, {3, {2000, 1000}}, {10, {9000, 1000}}, {3600, {3599000, 1000}}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        drain_times times = drain_divide(table[i].seconds);
        assert_int_equal(times.answers_ms, table[i].times.answers_ms);
        assert_int_equal(times.closing_ms, table[i].times.closing_ms);
    }
}

/* ---- the rest of a life ------------------------------------------------------------------------------ */

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

/* Who starts it without the standard descriptors: robots are served, and it ends as ever. No line of the log
 * goes into a socket. */
static void without_standard_descriptors(void **state) {
    (void)state;
    char text[8];
    int port, reserved = reserve(&port), fd = -1, status;
    snprintf(text, sizeof text, "%d", port);
    served server = {.pid = fork()};
    if (!server.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int closed = STDIN_FILENO; closed <= STDERR_FILENO; closed++) close(closed);
        execl(served_command(), "openpi", "serve", "--synthetic", "tiny", "--robot", "aloha", "--port", text,
              "--no-admin", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 60000 && fd < 0; i++) {
        assert_int_equal(waitpid(server.pid, &status, WNOHANG), 0);
        served_sleep(10);
        fd = ws_try_socket(port);
    }
    assert_true(fd >= 0);
    close(reserved);
    int robot = greet(port), other = greet(port);
    ws_send(other, WS_TEXT, 1, "hello", 5);
    ws_expect_close(other, 1003);
    ws_send(robot, WS_BINARY, 1, "\x80", 1);
    free(ws_expect(robot, WS_TEXT).data);
    kill(server.pid, SIGTERM);
    ws_expect_close(robot, 1001);
    close(fd);
    assert_int_equal(served_wait(&server), 0);
}

/* A client that leaves in the middle of its call, or of its message, hurts nobody. */
static void leaving(void **state) {
    (void)state;
    served server;
    size_t count;
    char *asked = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    served_start(&server, &box, ALOHA " --steps 2");
    for (int i = 0; i < 4; i++) {
        int one = greet(server.port), two = greet(server.port);
        ws_send(one, WS_BINARY, 1, asked, count);
        if (i % 2) ws_send(one, WS_BINARY, 1, asked, count);
        ws_put_head(two, WS_BINARY, 1, count);
        ws_put(two, asked, count / 2);
        close(one);
        close(two);
    }
    int fd = greet(server.port);
    ws_send(fd, WS_BINARY, 1, asked, count);
    free(ws_expect(fd, WS_BINARY).data);
    close(fd);
    served_stop(&server);
    free(asked);
}

/* Only some tests run openpi_host. */
static int begin(void **state) {
    int failed = set_up(state);
    served_instead = NULL;
    return failed;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_starts),       cmocka_unit_test(port_in_use),
        cmocka_unit_test(old_table),
        cmocka_unit_test(names_with_absent_addresses),
        cmocka_unit_test(drain),            cmocka_unit_test(drain_is_divided),
        cmocka_unit_test(leaving),          cmocka_unit_test(ended_while_loading),
        cmocka_unit_test(without_standard_descriptors),
        cmocka_unit_test(health_and_a_second_signal),
        cmocka_unit_test(first_call_and_last),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
