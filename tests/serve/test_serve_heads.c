/* labels: server */
/* A connection counts from accept on, whatever it says: each head of a table gets an answer or its end, on
 * both ports and before anybody looks at tokens; and nobody keeps robots out by heads that lead nowhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "served_resources.h"
#include "websocket.h"
#include "robot_message.h"
#include "admin_client.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --admin 127.0.0.1:0"
#define HOST "Host: 127.0.0.1\r\n"

/* `answers`: what each port must answer before the connection ends; 0: it may end without an answer. */
static const struct { const char *head; int answers[2]; } heads[] = {
    {"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" HOST "\r\n", {405, 405}},
    {"CONNECT / HTTP/1.1\r\n" HOST "\r\n", {405, 405}},
    {"CONNECT / HTTP/1.1\r\n" HOST WS_UPGRADE "\r\n", {405, 405}},
    {"CONNECT / HTTP/1.0\r\n\r\n", {405, 405}},
    {"CONNECT / HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n", {405, 405}},
    {"CONNECT / HTTP/1.1\r\n" HOST, {0, 0}},
    {"CONNECT / HTTP/1.1\r\n" HOST "\r\nand more that is no HTTP", {405, 405}},
    {"GET /healthz HTTP/1.1\r\n" HOST "\r\nCONNECT / HTTP/1.1\r\n" HOST "\r\n", {200, 200}},
    {"GET /healthz HTTP/1.1\r\n" HOST "\r\n", {200, 200}},
    {"GET /healthz HTTP/1.1\r\n" HOST "\r\nGET /healthz HTTP/1.1\r\n" HOST, {200, 200}},
    {"HEAD /healthz HTTP/1.1\r\n" HOST "\r\n", {200, 200}},
    {"GET / HTTP/1.1\r\n" HOST "\r\n", {426, 200}},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", {426, 405}},
    {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", {426, 405}},
    {"POST / HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", {426, 405}},
    {"PUT / HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", {0, 0}},
    {"PATCH / HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"DELETE / HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"TRACE / HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"BREW / HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {0, 0}},
    {"GET / HTTP/1.1\r\n" HOST "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
     "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", {0, 0}},
    {"GET / HTTP/1.1\r\n" HOST "Upgrade: tls/1.0\r\nConnection: Upgrade\r\n\r\n", {0, 0}},
    {"GET / HTTP/1.1\r\n" HOST "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", {0, 0}},
    {"POST / HTTP/1.1\r\n" HOST WS_UPGRADE "\r\n", {405, 405}},
    {"PUT / HTTP/1.1\r\n" HOST WS_UPGRADE "\r\n", {405, 405}},
    {"GET http://127.0.0.1/healthz HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"GET /../../etc/passwd HTTP/1.1\r\n" HOST "\r\n", {0, 0}},
    {"GET /healthz HTTP/1.0\r\n\r\n", {200, 0}},
    {"GET /healthz\r\n\r\n", {0, 0}},
    {"GET", {0, 0}},
    {"\r\n\r\n", {0, 0}},
    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {0, 0}},
    {"\x05\x01\x01", {0, 0}},
    {"", {0, 0}},
};

enum { HEADS = sizeof heads / sizeof *heads, PORTS = 2 };

static int set_up(void **state) { return open_box(state); }
static int tear_down(void **state) { return close_box(state); }

/* What comes until the server ends the connection. */
static void read_to_end(int fd, char *text, size_t capacity) {
    size_t count = 0;
    for (;;) {
        char piece[4096];
        ssize_t got = recv(fd, piece, sizeof piece, 0);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail_msg("the server keeps the connection");
        if (got <= 0) break;
        for (ssize_t i = 0; i < got && count + 1 < capacity; i++) text[count++] = piece[i];
    }
    text[count] = 0;
    close(fd);
}

/* The server waits a second for a head and another one for the next; who is there is served meanwhile. */
static void every_head(void **state) {
    (void)state;
    served server;
    int fd[HEADS][PORTS];
    char text[65536], status[32];
    served_start(&server, &box, TINY " --handshake-timeout 1 --max-per-address 1000");
    int robot = greet(server.port);
    for (int i = 0; i < HEADS; i++)
        for (int p = 0; p < PORTS; p++) {
            fd[i][p] = ws_socket(p ? server.admin : server.port);
            ws_put(fd[i][p], heads[i].head, strlen(heads[i].head));
        }
    for (int i = 0; i < HEADS; i++)
        for (int p = 0; p < PORTS; p++) {
            read_to_end(fd[i][p], text, sizeof text);
            snprintf(status, sizeof status, "HTTP/1.1 %d ", heads[i].answers[p]);
            if (heads[i].answers[p] && strncmp(text, status, strlen(status)))
                fail_msg("port %d, head %d (%s): expected %d, got \"%s\"", p, i, heads[i].head,
                         heads[i].answers[p], text);
            if (!strncmp(text, "HTTP/1.1 101 ", 13)) fail_msg("head %d (%s) got 101", i, heads[i].head);
        }
    ws_ping(robot);
    close(robot);
    served_stop(&server);
}

/* With tokens the port looks at none before it has a complete head. */
static void before_tokens(void **state) {
    (void)state;
    served server;
    char text[65536];
    static const char digest[] = "arm shared - "
                                 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
    assert_int_equal(scratch_write(&box, "tokens", digest, sizeof digest - 1), 0);
    chmod(scratch_path(&box, "tokens"), 0600);
    served_start(&server, &box, TINY " --handshake-timeout 1 --tokens %s", scratch_path(&box, "tokens"));
    int fd = ws_socket(server.port), half = ws_socket(server.port);
    ws_put(fd, heads[0].head, strlen(heads[0].head));
    ws_put(half, heads[5].head, strlen(heads[5].head));
    read_to_end(fd, text, sizeof text);
    assert_memory_equal(text, "HTTP/1.1 405 ", 13);
    read_to_end(half, text, sizeof text);
    served_stop(&server);
    served_must_log(&server, "dropped: no complete request head");
}

/* From many addresses of this machine. */
static int knock(int port, int number) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval most = {.tv_sec = WS_SECONDS};
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + (uint32_t)number / 20);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)port);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* A crowd that says something and then waits, on both ports, with more connections than the server has
 * places. Robots come in all the same, and the admin port answers. */
static void a_crowd_that_waits(void **state) {
    (void)state;
    enum { CROWD = 800 };
    static const char *const words[] = {"CONNECT / HTTP/1.1\r\n" HOST "\r\n", "CONNECT / HTTP/1.1\r\n", "",
                                        "GET / HTTP/1.1\r\nHost: "};
    static int fd[CROWD][PORTS];
    served server;
    served_start(&server, &box, TINY " --handshake-timeout 3600 --max-connections 5");
    int before = served_descriptors(&server), robot = greet(server.port);
    for (int i = 0; i < CROWD; i++)
        for (int p = 0; p < PORTS; p++) {
            fd[i][p] = knock(p ? server.admin : server.port, i);
            ws_put(fd[i][p], words[i % 4], strlen(words[i % 4]));
        }
    ws_ping(robot);
    int late = greet(server.port);
    ws_ping(late);
    must_answer(server.admin, "GET", "/healthz", "127.0.0.1", "", 200);
    assert_true(metric(server.admin, "openpi_connections_dropped_total{reason=\"crowd\"}") > 0);
    assert_true(metric(server.admin, "openpi_connections_dropped_total{reason=\"descriptors\"}") == 0);
    close(robot);
    close(late);
    for (int i = 0; i < CROWD; i++)
        for (int p = 0; p < PORTS; p++) close(fd[i][p]);
    served_await_descriptors(&server, before);
    served_stop(&server);
}

/* One address has as many connections that wait as --max-per-address. */
static void one_address(void **state) {
    (void)state;
    enum { MOST = 3 };
    int fd[MOST + 1];
    served server;
    served_start(&server, &box, TINY " --handshake-timeout 3600 --max-per-address 3");
    for (int i = 0; i <= MOST; i++) fd[i] = ws_socket(server.port);
    ws_must_end(fd[0]);
    int other = knock(server.port, 0);
    for (int i = 1; i <= MOST; i++) assert_true(ws_is_there(fd[i]));
    int robot = greet(server.port);
    served_must_log(&server, "dropped: it makes room: too many connections wait that are no WebSocket");
    ws_must_end(fd[1]);
    for (int i = 2; i <= MOST; i++) close(fd[i]);
    close(other);
    close(robot);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head),
        cmocka_unit_test(before_tokens),
        cmocka_unit_test(a_crowd_that_waits),
        cmocka_unit_test(one_address),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
