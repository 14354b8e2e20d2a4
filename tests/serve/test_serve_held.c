/* A robot whose connection is held back for a long time, because the device takes long, gets its answers: no
 * ping comes between them and nothing ends the connection. The network library's own pings would come after
 * 300 s; the clock is openpi_host's, which a signal sets forward by 1,000 s, and so is the device. */
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
#include "host_robot.h"

#define TINY "--synthetic tiny:pi0 --robot libero --threads 2 --horizon 2 --steps 1 --device host:0"
#define PATIENT "--handshake-timeout 3600 --message-timeout 3600 --reply-timeout 3600 --ping-interval 3600"

/* Each pong is a turn of the loop; the timers of one turn are over before the next one reads. */
static void turn(int fd) {
    for (int i = 0; i < 3; i++) {
        ws_send(fd, WS_PING, 1, "", 0);
        free(ws_expect(fd, WS_PONG).data);
    }
}

static void held_for_long(void **state) {
    (void)state;
    served server;
    served_start(&server, &box, TINY " " PATIENT);
    int idle = greet(server.port), robot = greet(server.port);
    kill(server.pid, SIGUSR1);             /* the device stands still                                      */
    turn(idle);
    for (int i = 0; i < 2; i++) ws_send(robot, WS_BINARY, 1, request.data, request.size);
    turn(idle);
    for (int i = 0; i < 2; i++) {          /* time for a ping, and for its pong                            */
        kill(server.pid, SIGWINCH);
        turn(idle);
    }
    kill(server.pid, SIGURG);              /* the device is lost: sooner over than a call                  */
    for (int i = 0; i < 2; i++) free(ws_expect(robot, WS_TEXT).data);
    ws_expect_close(robot, 1012);
    ws_expect_close(idle, 1012);
    assert_int_equal(served_wait(&server), AGAIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(held_for_long)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
