/* labels: server */
/* Frames without bytes, and more pings than anybody needs: their connection is closed with 1008, and its
 * close names the limit. Many small frames of one message are its right. Closes of other limits name
 * theirs. */
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

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --admin 127.0.0.1:0"

/* The next frame that is no pong closes with this code and text. */
static void must_close(int fd, int code, const char *text) {
    ws_frame frame = ws_receive(fd);
    for (; frame.opcode == WS_PONG || frame.opcode == WS_TEXT; frame = ws_receive(fd)) free(frame.data);
    if (frame.opcode != WS_CLOSE) fail_msg("opcode %d, expected a close", frame.opcode);
    assert_int_equal(frame.data[0] << 8 | frame.data[1], code);
    assert_string_equal((char *)frame.data + 2, text);
    free(frame.data);
    close(fd);
}

/* So many frames with this opcode and `bytes` bytes, in one piece. */
static void put_frames(int fd, int count, int opcode, size_t bytes) {
    size_t each = 6 + bytes;
    uint8_t *all = calloc((size_t)count, each);
    assert_non_null(all);
    for (int i = 0; i < count; i++) {
        all[(size_t)i * each] = (uint8_t)opcode;
        all[(size_t)i * each + 1] = (uint8_t)(0x80 | bytes);
    }
    ws_put(fd, all, each * (size_t)count);
    free(all);
}

static void expect_reply(int fd) {
    ws_frame frame = ws_receive(fd);
    for (; frame.opcode == WS_PONG; frame = ws_receive(fd)) free(frame.data);
    assert_int_equal(frame.opcode, WS_BINARY);
    free(frame.data);
}

static void empty_frames(void **state) {
    (void)state;
    enum { MOST = 1000 };
    served server;
    served_start(&server, &box, TINY);
    int robot = greet(server.port);
    for (int i = 0; i < 3; i++) {          /* as many as there may be, in each message                      */
        ws_send(robot, WS_BINARY, 0, "", 0);
        put_frames(robot, MOST - 1, 0, 0);
        ws_send(robot, 0, 1, request, request_bytes);
        expect_reply(robot);
    }
    int flood = greet(server.port);
    ws_send(flood, WS_BINARY, 0, "\x80", 1);
    put_frames(flood, 20000, 0, 0);
    must_close(flood, 1008, "more than 1000 frames without a byte in one message");
    ws_send(robot, WS_BINARY, 1, request, request_bytes);
    expect_reply(robot);
    close(robot);
    assert_true(metric(server.admin, "openpi_connections_dropped_total{reason=\"empty\"}") == 1);
    served_must_log(&server, "dropped: it sends frames without a byte in them again and again");
    served_stop(&server);
}

/* Small and large ones, together and one by one. */
static void pings(void **state) {
    (void)state;
    static const size_t bytes[] = {0, 125};
    served server;
    served_start(&server, &box, TINY);
    int robot = greet(server.port);
    for (int i = 0; i < 2; i++) {
        int flood = greet(server.port);
        put_frames(flood, 30000, 0x89, bytes[i]);
        must_close(flood, 1008, "more than 100 pings in a second");
    }
    int one_by_one = greet(server.port);
    for (int i = 0; i < 20000; i++) {
        ws_frame frame;
        ws_send(one_by_one, WS_PING, 1, "", 0);
        frame = ws_receive(one_by_one);
        free(frame.data);
        if (frame.opcode == WS_CLOSE) break;
        assert_int_equal(frame.opcode, WS_PONG);
        assert_true(i < 19999);
    }
    close(one_by_one);
    put_frames(robot, 50, 0x89, 125);
    ws_send(robot, WS_BINARY, 1, request, request_bytes);
    expect_reply(robot);
    close(robot);
    assert_true(metric(server.admin, "openpi_connections_dropped_total{reason=\"pings\"}") == 3);
    served_stop(&server);
}

/* A message in frames of 16 bytes, with requests ahead and fast ones one after the other: nothing of it is a
 * flood. */
static void small_frames(void **state) {
    (void)state;
    enum { PIECE = 16, ROUNDS = 60 };
    served server;
    served_start(&server, &box, TINY);
    int robot = greet(server.port);
    uint8_t *frames = malloc(request_bytes / PIECE * (PIECE + 6) + PIECE + 6), *at = frames;
    assert_non_null(frames);
    for (size_t i = 0; i < request_bytes; i += PIECE) {
        size_t count = request_bytes - i < PIECE ? request_bytes - i : PIECE;
        *at++ = (uint8_t)((i + PIECE >= request_bytes ? 0x80 : 0) | (i ? 0 : WS_BINARY));
        *at++ = (uint8_t)(0x80 | count);
        memset(at, 0, 4);
        memcpy(at + 4, request + i, count);
        at += 4 + count;
    }
    for (int i = 0; i < 2; i++) ws_put(robot, frames, (size_t)(at - frames));
    for (int i = 0; i < 2; i++) expect_reply(robot);
    free(frames);
    for (int i = 0; i < 3; i++) ws_send(robot, WS_BINARY, 1, "\xc0", 1);
    for (int i = 0; i < ROUNDS; i++) {
        free(ws_expect(robot, WS_TEXT).data);
        if (i < ROUNDS - 3) ws_send(robot, WS_BINARY, 1, "\xc0", 1);
    }
    close(robot);
    served_stop(&server);
}

static void closes_name_their_limit(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY " --max-message 1000 --message-timeout 1");
    int large = greet(server.port), slow = greet(server.port);
    ws_put_head(large, WS_BINARY, 1, 1001);
    ws_put(large, "\x80", 1);
    must_close(large, 1009, "the message has more than the 1000 bytes of --max-message");
    ws_put_head(slow, WS_BINARY, 1, 1000);
    ws_put(slow, "\x80", 1);
    must_close(slow, 1008, "the message took longer than the 1 s of --message-timeout");
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_frames),
        cmocka_unit_test(pings),
        cmocka_unit_test(small_frames),
        cmocka_unit_test(closes_name_their_limit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
