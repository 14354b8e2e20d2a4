/* labels: long server threads cost */
/* What a client may take of `openpi serve`: connections, bytes and time. Timeouts are set to seconds, and
 * nothing is asserted about how long anything takes, but that it ends. */
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
#include "websocket.h"
#include "robot_message.h"
#include "admin_client.h"
#include "one_request.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1"

static void expect_reply(int fd) {
    ws_send(fd, WS_BINARY, 1, request, request_bytes);
    free(ws_expect(fd, WS_BINARY).data);
}

/* ---- connections ------------------------------------------------------------------------------------ */

/* A handshake from this address of the machine. Returns the socket where it gets a WebSocket, else -1, and
 * then the answer was 503. */
static int knock(int port, uint32_t from) {
    struct sockaddr_in source = {.sin_family = AF_INET}, to = source;
    struct timeval most = {.tv_sec = WS_SECONDS};
    static const char text[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" WS_UPGRADE "\r\n";
    char head[1024];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    source.sin_addr.s_addr = htonl(from);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)port);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(bind(fd, (struct sockaddr *)&source, sizeof source), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    ws_put(fd, text, sizeof text - 1);
    ws_head(fd, head, sizeof head);
    if (!strncmp(head, "HTTP/1.1 101 ", 13)) return fd;
    assert_memory_equal(head, "HTTP/1.1 503 ", 13);
    close(fd);
    return -1;
}

/* A place is free when the server has noticed that somebody left. */
static int knock_until_open(int port, uint32_t from) {
    int fd = -1;
    for (int i = 0; i < 6000 && fd < 0; i++) {
        fd = knock(port, from);
        if (fd < 0) served_sleep(10);
    }
    assert_true(fd >= 0);
    return fd;
}

static void connections_are_counted(void **state) {
    (void)state;
    enum { ONE = INADDR_LOOPBACK, TWO = INADDR_LOOPBACK + 1 };
    served server;
    char head[1024];
    served_start(&server, &box, TINY " --max-connections 3 --max-per-address 2 --max-attempts 10000");
    int a = knock(server.port, ONE), b = knock(server.port, ONE);
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(knock(server.port, ONE), -1);
    served_must_log(&server, "refused: this address has as many connections as --max-per-address");
    int c = knock(server.port, TWO);
    assert_true(c >= 0);
    assert_int_equal(knock(server.port, TWO), -1);
    served_must_log(&server, "refused: as many connections as --max-connections");
    close(ws_request(server.port, "/healthz", "", head, sizeof head));
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    close(a);
    int d = knock_until_open(server.port, TWO);
    close(c);
    close(d);
    int e = knock_until_open(server.port, ONE);
    free(ws_expect(b, WS_BINARY).data);
    expect_reply(b);
    close(b);
    close(e);
    served_stop(&server);
}

/* Who connects too often is hung up on unread; who is there is served, and another address may come. */
static void attempts_are_counted(void **state) {
    (void)state;
    enum { TRIES = 200, OTHER = INADDR_LOOPBACK + 1 };
    struct pollfd tries[TRIES];
    served server;
    char byte;
    int refused = 0;
    served_start(&server, &box, TINY " --max-attempts 1 --handshake-timeout 3600");
    int robot = greet(server.port);
    for (int i = 0; i < TRIES; i++)
        tries[i] = (struct pollfd){.fd = ws_socket(server.port), .events = POLLIN};
    assert_true(poll(tries, TRIES, 1000 * WS_SECONDS) > 0);
    for (int i = 0; i < TRIES; i++) refused += tries[i].revents && recv(tries[i].fd, &byte, 1, 0) == 0;
    assert_true(refused > 0);
    served_must_log(&server, "refused: this address has connected as often in a second as --max-attempts");
    expect_reply(robot);
    int other = knock(server.port, OTHER);
    assert_true(other >= 0);
    for (int i = 0; i < TRIES; i++) close(tries[i].fd);
    close(other);
    close(robot);
    served_stop(&server);
}

/* ---- bytes ------------------------------------------------------------------------------------------ */

/* One request takes 262,144 bytes of memory, and a message that has just begun 65,536. */
static void bytes_in_flight_are_counted(void **state) {
    (void)state;
    enum { PART = 150000 };
    served server;
    assert_in_range(request_bytes, 131073, 262144);
    must_refuse("serve " TINY " --port 0 --max-in-flight 15MB", "less than the 16000000 bytes");
    served_start(&server, &box, TINY " --max-message 300000 --max-in-flight 480000");
    for (int i = 0; i < 3; i++) {
        int one = greet(server.port), two = greet(server.port);
        ws_send(one, WS_BINARY, 0, request, PART);
        ws_ping(one);
        ws_send(two, WS_BINARY, 1, request, request_bytes);
        ws_expect_close(two, 1013);
        ws_send(one, 0, 1, request + PART, request_bytes - PART);
        free(ws_expect(one, WS_BINARY).data);
        expect_reply(one);
        close(one);
    }
    int claims[3], honest = greet(server.port);
    for (int i = 0; i < 3; i++) {
        claims[i] = greet(server.port);
        ws_ping(claims[i]);
        ws_put_head(claims[i], WS_BINARY, 1, 300000);
        ws_put(claims[i], request, 10);
    }
    expect_reply(honest);
    for (int i = 0; i < 3; i++) close(claims[i]);
    close(honest);
    served_stop(&server);
}

/* The least that --max-in-flight may be is enough for the largest message. */
static void one_message_in_flight(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY " --max-message %zu --max-in-flight %zu", request_bytes, request_bytes);
    int fd = greet(server.port);
    for (int i = 0; i < 2; i++) expect_reply(fd);
    close(fd);
    served_stop(&server);
}

/* The memory that the server keeps of large messages, here four of 262,144 bytes, is neither beyond the limit
 * when it is used again, nor does a message of a few bytes get it and leave nothing for the others. The large
 * ones are no requests, so that their memory is free when the sentence is there. */
static void kept_memory_is_counted(void **state) {
    (void)state;
    enum { LARGE = 4, SMALL = 7, BYTES = 200000 };
    served server;
    int fd[SMALL];
    char *message = calloc(1, BYTES);
    assert_non_null(message);
    served_start(&server, &box, TINY " --max-message 300000 --max-in-flight 500000 --message-timeout 3600");
    for (int i = 0; i < SMALL; i++) fd[i] = greet(server.port);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < LARGE; i++) {
            ws_send(fd[i], part ? 0 : WS_BINARY, part, message, part ? BYTES : 10);
            if (part) free(ws_expect(fd[i], WS_TEXT).data);
            else ws_ping(fd[i]);
        }
    for (int i = 0; i < SMALL; i++) {
        ws_send(fd[i], WS_BINARY, 0, message, 10);
        ws_ping(fd[i]);
    }
    ws_send(fd[0], 0, 1, message, BYTES);
    ws_expect_close(fd[0], 1013);
    for (int i = 1; i < SMALL; i++) close(fd[i]);
    free(message);
    served_stop(&server);
}

/* ---- time ------------------------------------------------------------------------------------------- */

static void answer_ping(int robot, ws_frame ping) {
    assert_int_equal(ping.opcode, WS_PING);
    ws_send(robot, WS_PONG, 1, ping.data, ping.bytes);
    free(ping.data);
}

/* Waits until there is something to read, while the robot's pings are answered. */
static int when_ready(int fd, int robot) {
    struct pollfd both[] = {{.fd = fd, .events = POLLIN}, {.fd = robot, .events = POLLIN}};
    do {
        assert_true(poll(both, 2, 1000 * WS_SECONDS) > 0);
        if (both[1].revents) answer_ping(robot, ws_receive(robot));
    } while (!both[0].revents);
    return fd;
}

/* A reply, with pings before it. */
static void expect_reply_and_pings(int robot) {
    ws_send(robot, WS_BINARY, 1, request, request_bytes);
    ws_frame frame = ws_receive(robot);
    for (; frame.opcode == WS_PING; frame = ws_receive(robot)) answer_ping(robot, frame);
    assert_int_equal(frame.opcode, WS_BINARY);
    free(frame.data);
}

/* Slow ones are dropped while a robot that answers pings stays. */
static void slow_clients_are_dropped(void **state) {
    (void)state;
    static const char half[] = "GET / HTTP/1.1\r\nHost: ";
    served server;
    served_start(&server, &box, TINY " --handshake-timeout 2 --message-timeout 2 --ping-interval 2");
    int robot = greet(server.port), mute = ws_socket(server.port), half_head = ws_socket(server.port);
    int writer = greet(server.port), half_open = greet(server.port);
    ws_put(half_head, half, sizeof half - 1);
    ws_put_head(writer, WS_BINARY, 1, request_bytes);
    ws_put(writer, request, request_bytes / 2);
    for (int i = 0; i < 3; i++) answer_ping(robot, ws_expect(robot, WS_PING));
    ws_must_end(when_ready(mute, robot));
    ws_must_end(when_ready(half_head, robot));
    ws_expect_close(when_ready(writer, robot), 1008);
    free(ws_expect(when_ready(half_open, robot), WS_PING).data);
    ws_must_end(when_ready(half_open, robot));
    expect_reply_and_pings(robot);
    close(robot);
    served_must_log(&server, "dropped: its message takes too long");
    served_must_log(&server, "dropped: it does not answer a ping");
    served_stop(&server);
}

/* Who asks over HTTP and sends a body has its answer, and is not read for as long as the body comes. */
static void bodies_are_not_read(void **state) {
    (void)state;
    enum { TRIES = 300 };
    static const char *const heads[] = {
        "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        "POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"};
    served server;
    char head[1024], byte;
    served_start(&server, &box, TINY);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        int fd = ws_socket(server.port), there = 1;
        ws_put(fd, heads[i], strlen(heads[i]));
        ws_head(fd, head, sizeof head);
        assert_memory_equal(head, "HTTP/1.1 200 ", 13);
        for (int k = 0; k < TRIES && there; k++) {
            struct pollfd answer = {.fd = fd, .events = POLLIN};
            ws_put(fd, "1", 1);
            if (poll(&answer, 1, 100) > 0) there = recv(fd, &byte, 1, 0) > 0;
        }
        assert_false(there);
        close(fd);
    }
    served_stop(&server);
}

/* Who asks and never reads is cut off; who reads is served. */
static void unread_replies(void **state) {
    (void)state;
    enum { MOST = 4000 };
    struct timeval most = {.tv_sec = WS_SECONDS};
    served server;
    static const uint8_t head[14] = {0x82, 0xff};              /* masked by 0, a length of eight bytes      */
    int small = 4096, i = 0;
    served_start(&server, &box, TINY " --reply-timeout 1 --horizon 64 --ping-interval 3600");
    int fd = greet(server.port), robot = greet(server.port);
    uint8_t *frame = malloc(sizeof head + request_bytes);
    assert_non_null(frame);
    memcpy(frame, head, sizeof head);
    for (int k = 0; k < 8; k++) frame[2 + k] = (uint8_t)((uint64_t)request_bytes >> 8 * (7 - k));
    memcpy(frame + sizeof head, request, request_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    for (; i < MOST; i++) {
        size_t sent = 0, bytes = sizeof head + request_bytes;
        ssize_t put = 1;
        for (; sent < bytes && put > 0; sent += put > 0 ? (size_t)put : 0)
            put = send(fd, frame + sent, bytes - sent, MSG_NOSIGNAL);
        if (put > 0) continue;
        assert_true(errno == ECONNRESET || errno == EPIPE);
        break;
    }
    assert_true(i < MOST);
    served_must_log(&server, "dropped: it does not read its replies");
    expect_reply(robot);
    free(frame);
    close(fd);
    close(robot);
    served_stop(&server);
}

/* A client that sends pings and reads nothing, not even pongs, and stops in the middle of a message: no close
 * frame can be sent to it, and it is cut off all the same. It is counted once. */
static void unread_pongs(void **state) {
    (void)state;
    enum { PINGS = 4000, FULL = 125 };
    const struct timespec moment = {.tv_nsec = 200000};
    static const char bytes[FULL];
    served server;
    int lines = 0;
    served_start(&server, &box, TINY " --message-timeout 1 --reply-timeout 1 --ping-interval 3600 "
                                     "--admin 127.0.0.1:0");
    int robot = greet(server.port);
    ws_window = 4096;
    int fd = greet(server.port);
    ws_window = 0;
    for (int i = 0; i < PINGS; i++) {      /* one by one: of several at once one is answered               */
        ws_send(fd, WS_PING, 1, bytes, FULL);
        nanosleep(&moment, NULL);
    }
    ws_put_head(fd, WS_BINARY, 1, request_bytes);
    ws_put(fd, request, request_bytes / 2);
    metric_await(server.admin, "openpi_connections", 1);
    expect_reply(robot);
    char *log = served_log(&server);
    for (const char *at = strstr(log, "dropped: "); at; at = strstr(at + 1, "dropped: ")) lines++;
    assert_int_equal(lines, 1);
    assert_non_null(strstr(log, "dropped: it sends too many pings"));
    free(log);
    close(fd);
    close(robot);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_are_counted),
        cmocka_unit_test(attempts_are_counted),
        cmocka_unit_test(bytes_in_flight_are_counted),
        cmocka_unit_test(one_message_in_flight),
        cmocka_unit_test(kept_memory_is_counted),
        cmocka_unit_test(slow_clients_are_dropped),
        cmocka_unit_test(bodies_are_not_read),
        cmocka_unit_test(unread_replies),
        cmocka_unit_test(unread_pongs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
