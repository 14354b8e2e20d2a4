/* labels: server host threads */
/* A robot whose connection is held back for a long time, because the device takes long, gets its answers: no
 * ping comes between them and nothing ends the connection. The network library's own pings would come after
 * 300 s; the clock is openpi_host's, which a signal sets forward by 1,000 s, and so is the device.
 *
 * A robot that is closed while the device computes for it gets nothing after the close.
 *
 * By the same clock: --handshake-timeout is how long a client may take to say what it wants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/tcp.h>
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

#define PATIENT "%s --device host:0 --handshake-timeout 3600 --message-timeout 3600 --reply-timeout 3600 " \
                "--ping-interval 3600"

static void held_for_long(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, PATIENT, robot_args);
    int idle = greet(server.port), robot = greet(server.port);
    kill(server.pid, SIGUSR1);             /* the device stands still                                      */
    ws_turn(idle);
    for (int i = 0; i < 2; i++) ws_send(robot, WS_BINARY, 1, request.data, request.size);
    await_stalled(&server, 1);
    ws_turn(idle);
    for (int i = 0; i < 2; i++) {          /* time for a ping, and for its pong                            */
        kill(server.pid, SIGWINCH);
        ws_turn(idle);
    }
    kill(server.pid, SIGURG);              /* the device is lost: sooner over than a call                  */
    for (int i = 0; i < 2; i++) free(ws_expect(robot, WS_TEXT).data);
    ws_expect_close(robot, 1012);
    ws_expect_close(idle, 1012);
    assert_int_equal(served_wait(&server), AGAIN);
}

/* What a robot sent that was silent for long, and is not read while the device computes, is not taken for
 * pings: the network library has it already, and looks at it when the robot is read again. */
static void what_waits_is_no_ping(void **state) {
    (void)state;
    enum { LARGE = 60000 };
    served server;
    char *sent = calloc(1, LARGE);
    assert_non_null(sent);
    served_start(&server, &box, PATIENT, robot_args);
    int idle = greet(server.port), robot = greet(server.port);
    kill(server.pid, SIGWINCH);            /* its last second is over                                      */
    kill(server.pid, SIGUSR1);             /* the device stands still                                      */
    ws_turn(idle);
    for (int i = 0; i < 2; i++) ws_send(robot, WS_BINARY, 1, request.data, request.size);
    ws_send(robot, WS_BINARY, 1, sent, LARGE);                 /* no request                             */
    await_stalled(&server, 1);
    for (int i = 0; i < 2; i++) {
        kill(server.pid, SIGWINCH);
        ws_turn(idle);
    }
    kill(server.pid, SIGUSR2);             /* it runs                                                      */
    for (int i = 0; i < 2; i++) free(ws_expect(robot, WS_BINARY).data);
    free(ws_expect(robot, WS_TEXT).data);
    free(sent);
    close(robot);
    close(idle);
    served_stop(&server);
}

/* A frame that WebSocket does not have ends a connection while its request is computed. No reply comes after
 * the close: the next one's is there, and this one has nothing more to read. */
static void no_reply_after_a_close(void **state) {
    (void)state;
    served server;
    char byte;
    served_start(&server, &box, PATIENT, robot_args);
    int idle = greet(server.port), bad = greet(server.port), robot = greet(server.port);
    kill(server.pid, SIGUSR1);             /* the device stands still                                      */
    ws_turn(idle);
    ws_send(bad, WS_BINARY, 1, request.data, request.size);
    await_stalled(&server, 1);
    ws_send(bad, 3, 1, "", 0);             /* a reserved opcode                                            */
    ws_frame close_frame = ws_receive(bad);
    assert_int_equal(close_frame.opcode, WS_CLOSE);
    free(close_frame.data);
    const int at_once = 1;                 /* a reply is only sent early where all before it is confirmed  */
    setsockopt(bad, IPPROTO_TCP, TCP_QUICKACK, &at_once, sizeof at_once);
    ws_send(robot, WS_BINARY, 1, request.data, request.size);
    ws_turn(idle);
    kill(server.pid, SIGUSR2);             /* it runs                                                      */
    free(ws_expect(robot, WS_BINARY).data);
    assert_true(recv(bad, &byte, 1, MSG_DONTWAIT) <= 0);
    close(bad);
    close(robot);
    close(idle);
    served_stop(&server);
}

/* Nobody is cut off before the time is over: neither who says nothing, nor who stops in a head, nor who keeps
 * a connection for another request. Then each of them is. */
static void heads_have_their_time(void **state) {
    (void)state;
    static const char half[] = "GET /healthz HTTP/1.1\r\nHost: ", rest[] = "localhost\r\n\r\n";
    served server;
    char head[1024], body[3];              /* "OK\n"                                                       */
    served_start(&server, &box, "--synthetic tiny --robot aloha --threads 2 --horizon 2 --steps 1 "
                                "--handshake-timeout 1500 --ping-interval 3600");
    int kept = ws_request(server.port, "/healthz", "", head, sizeof head);
    int mute = ws_socket(server.port), slow = ws_socket(server.port), other = ws_socket(server.port);
    ws_put(slow, half, sizeof half - 1);
    ws_put(other, half, sizeof half - 1);
    assert_true(ws_get(kept, body, sizeof body));
    int idle = greet(server.port);         /* the last one: the others are accepted                        */
    ws_turn(idle);
    kill(server.pid, SIGWINCH);
    ws_turn(idle);
    assert_true(ws_is_there(mute) && ws_is_there(slow) && ws_is_there(other) && ws_is_there(kept));
    ws_put(slow, rest, sizeof rest - 1);
    ws_head(slow, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    kill(server.pid, SIGWINCH);
    ws_turn(idle);
    ws_must_end(mute);
    ws_must_end(other);
    ws_must_end(kept);
    close(slow);
    close(idle);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(held_for_long),
                                       cmocka_unit_test(what_waits_is_no_ping),
                                       cmocka_unit_test(no_reply_after_a_close),
                                       cmocka_unit_test(heads_have_their_time)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
