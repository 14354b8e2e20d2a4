/* labels: server host threads */
/* A device that is lost while it computes: everybody who waits gets one sentence and the close code 1012,
 * everybody else the close code, and the exit status says: start me again. The device is openpi_host's, which
 * stands still and is lost when a signal says so. */
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
#include "stalled.h"
#include "websocket.h"
#include "robot_message.h"
#include "small_robot.h"
#include "host_robot.h"

enum { ROBOTS = 4 };

/* What was sent before has been read. Returns how many replies came before the pong. */
static int ping(int fd) {
    int replies = 0;
    ws_send(fd, WS_PING, 1, "", 0);
    ws_frame frame = ws_receive(fd);
    for (; frame.opcode == WS_BINARY; frame = ws_receive(fd), replies++) free(frame.data);
    assert_int_equal(frame.opcode, WS_PONG);
    free(frame.data);
    return replies;
}

/* The same sentence for the batch that was computed and for who waited behind it, without the driver's words.
 * Where another device is well, it may have said what the request read ahead lacks. */
static void expect_loss(const ws_frame *frame, int other_device) {
    const char *text = (const char *)frame->data;
    assert_int_equal(frame->opcode, WS_TEXT);
    if (other_device && strstr(text, "the request")) return;
    assert_string_equal(text, "the device is lost; the server restarts");
}

/* Each of the requests has one answer, and then comes the code. `replies`: where another device is well, so
 * many of the answers may be replies. */
static void expect_end(int fd, int asked, int replies) {
    for (int i = 0; i < asked; i++) {
        ws_frame frame = ws_receive(fd);
        if (frame.opcode == WS_BINARY && i < replies) {
            free(frame.data);
            continue;
        }
        expect_loss(&frame, replies > 0);
        free(frame.data);
    }
    ws_expect_close(fd, 1012);
}

/* Takes what was answered by now from what is asked; `replies`: the most that may be. */
static void count_replies(int fd, int *asked, int replies) {
    int answered = ping(fd);
    assert_in_range(answered, 0, replies < *asked ? replies : *asked);
    *asked -= answered;
}

/* The robots ask, again and again where another device answers, until this one stands still in a call. */
static void ask_until_stalled(const served *server, const int *fd, int *asked, int replies) {
    do {
        for (int r = 0; r < ROBOTS; r++) {
            count_replies(fd[r], &asked[r], replies);
            if (asked[r]) continue;
            ws_send(fd[r], WS_BINARY, 1, request.data, request.size);
            asked[r] = 1;
        }
        served_sleep(1);
    } while (!stalled_threads(server));
    for (int r = 0; r < ROBOTS; r++) count_replies(fd[r], &asked[r], replies);
}

/* Robots that wait have asked once, the last one twice; another one's message is half sent. `replies`: see
 * expect_end. */
static void lose_among(const char *options, int replies) {
    served server;
    int fd[ROBOTS], asked[ROBOTS] = {0}, idle, writer;
    served_start(&server, &box, "%s --ping-interval 3600 %s", robot_args, options);
    idle = greet(server.port);
    writer = greet(server.port);
    for (int r = 0; r < ROBOTS; r++) fd[r] = greet(server.port);
    kill(server.pid, SIGUSR1);                         /* the I/O thread has taken it when it answers       */
    ws_ping(idle);
    ask_until_stalled(&server, fd, asked, replies);
    ws_send(fd[ROBOTS - 1], WS_BINARY, 1, "\x80", 1);  /* read ahead: nobody says yet what it lacks  */
    asked[ROBOTS - 1]++;
    ws_put_head(writer, WS_BINARY, 1, request.size);
    ws_put(writer, request.data, request.size / 2);
    ws_turn(idle);                                     /* what is here by now has been read                 */
    kill(server.pid, SIGURG);
    for (int r = 0; r < ROBOTS; r++) expect_end(fd[r], asked[r], replies);
    ws_expect_close(idle, 1012);
    close(writer);
    assert_int_equal(served_wait(&server), AGAIN);
    char *log = served_log(&server);
    must_contain(log, "device host:0 is lost: it is gone");
    free(log);
}

static void everybody_is_answered(void **state) {
    (void)state;
    lose_among("--device host:0", 0);
}

/* The second device is well; the server ends all the same, so that it starts anew with both. */
static void one_of_two(void **state) {
    (void)state;
    lose_among("--device host:0,cpu", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_is_answered),
        cmocka_unit_test(one_of_two),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
