/* labels: server */
/* Many requests and many connections: memory and descriptors of the server stay flat, and each robot gets its
 * own chunk each time. The model is the smallest that there can be, so that a million requests take minutes:
 *
 *   test_serve_soak [--requests N] [--connections N]
 *
 * Flat means: after a tenth of them the server has what it needs, and from there on its memory grows by less
 * than GROWTH_KB, however many follow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/sanitizer.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "served_resources.h"
#include "websocket.h"
#include "robot_message.h"
#include "small_robot.h"

enum {
    ROBOTS = 4,
    TENTHS = 10,
    GROWTH_KB = 4096,
};

static struct {
    int requests, connections;
} numbers = {.requests = 2000, .connections = 500};

static served server;
static msgpack_sbuffer message[ROBOTS];
static uint8_t want[ROBOTS][SMALL_ACTIONS];

/* ---- robots ----------------------------------------------------------------------------------------- */

static void ask_for(int fd, int k) { ws_send(fd, WS_BINARY, 1, message[k].data, message[k].size); }

static void expect_actions(int fd, int k) {
    ws_frame frame = ws_receive(fd);
    if (memcmp(small_actions(&frame), want[k], SMALL_ACTIONS)) fail_msg("not the actions of robot %d", k);
    free(frame.data);
}

/* ---- flat ------------------------------------------------------------------------------------------- */

static int idle_descriptors;     /* descriptors of a server without connections                            */

/* Connections that were closed may still be there for a moment. Returns the memory. */
static long look(const char *what, int done, int connected) {
    served_await_descriptors(&server, idle_descriptors + connected);
    assert_int_equal(served_descriptors(&server), idle_descriptors + connected);
    long kb = served_resident_kb(&server);
    print_message("           %9d %s: %ld kB\n", done, what, kb);
    return kb;
}

/* Calls step(i) `count` times beside so many connections that stay, and looks after each tenth. */
static void repeat(int count, const char *what, int connected, void (*step)(int i)) {
    const long most = SANITIZED ? 1L << 40 : GROWTH_KB;        /* a sanitizer keeps what is freed           */
    long before = 0;
    for (int tenth = 1, done = 0; tenth <= TENTHS; tenth++) {
        int until = (int)((long long)count * tenth / TENTHS);
        while (done < until) step(done++);
        long kb = look(what, done, connected);
        if (tenth == 1) before = kb;
        if (kb > before + most) fail_msg("memory grew from %ld to %ld kB", before, kb);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static int robot[ROBOTS];

/* One for each robot: two of them wait while two are computed. */
static void one_round(int i) {
    (void)i;
    for (int k = 0; k < ROBOTS; k++) ask_for(robot[k], k);
    for (int k = 0; k < ROBOTS; k++) expect_actions(robot[k], k);
}

static void requests_in_a_row(void **state) {
    (void)state;
    for (int k = 0; k < ROBOTS; k++) {
        robot[k] = greet(server.port);
        ask_for(robot[k], k);
        ws_frame first = ws_receive(robot[k]);
        memcpy(want[k], small_actions(&first), SMALL_ACTIONS);
        for (int before = 0; before < k; before++)
            assert_memory_not_equal(want[k], want[before], SMALL_ACTIONS);
        free(first.data);
    }
    repeat(numbers.requests / ROBOTS, "rounds of four requests", ROBOTS, one_round);
    for (int k = 0; k < ROBOTS; k++) close(robot[k]);
}

/* In turn: leaves at once, after a request, before its answer; with a reset and without. */
static void one_connection(int i) {
    const struct linger reset = {.l_onoff = 1};
    int fd = greet(server.port), k = i % ROBOTS;
    if (i % 10 < 2) ask_for(fd, k);
    if (i % 10 == 0) expect_actions(fd, k);
    if (i % 4 == 3) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void connections_in_a_row(void **state) {
    (void)state;
    repeat(numbers.connections, "connections", 0, one_connection);
}

static int set_up(void **state) {
    if (open_box(state)) return -1;
    for (int k = 0; k < ROBOTS; k++) small_request(k, &message[k]);
    if (small_write()) return -1;
    char model[400];
    snprintf(model, sizeof model, "%s", scratch_path(&box, "model"));
    served_start(&server, &box, "'%s' --robot '%s' --steps 1 --threads 1 --ping-interval 3600", model,
                 scratch_path(&box, "robot.json"));
    idle_descriptors = served_descriptors(&server);
    return 0;
}

static int tear_down(void **state) {
    served_stop(&server);
    for (int k = 0; k < ROBOTS; k++) msgpack_sbuffer_destroy(&message[k]);
    return close_box(state);
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_in_a_row),
        cmocka_unit_test(connections_in_a_row),
    };
    for (int i = 1; i + 1 < count; i += 2) {
        int n = atoi(words[i + 1]);
        if (!strcmp(words[i], "--requests")) numbers.requests = n;
        else if (!strcmp(words[i], "--connections")) numbers.connections = n;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
