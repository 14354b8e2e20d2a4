/* labels: server links=client */
/* A runner over `openpi serve`: the robot moves, is held while the server is away, and moves again. Not under
 * ThreadSanitizer: it does not see that libuv, which is built without, has closed a descriptor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/client_source.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "admin_client.h"
#include "structs.h"

enum { SIDE = 8, STATES = 8, DIMS = 8 };

static openpi_error error = OPENPI_ERROR_INIT;

/* Until the runner says `move` and, where it holds, the reason. */
static void until(openpi_runner *runner, double *now, openpi_move move, openpi_reason reason) {
    static uint8_t pixels[2][SIDE * SIDE * 3];
    static double state[STATES];
    double action[DIMS];
    openpi_runner_state told = OPENPI_RUNNER_STATE_INIT;
    memset(pixels, 90, sizeof pixels);
    openpi_image images[2] = {IMAGE("base", pixels[0], OPENPI_U8, OPENPI_HWC, SIDE, SIDE),
                              IMAGE("left_wrist", pixels[1], OPENPI_U8, OPENPI_HWC, SIDE, SIDE)};
    openpi_observation o = OBSERVATION(images, 2, state, STATES, "go", 0);
    do {
        served_sleep(2);
        *now += 2;
        WORKS(openpi_runner_observe(runner, &o, *now, &error));
    } while (openpi_runner_next(runner, *now, action, &told) != move || told.reason != reason);
}

/* Asks for the only robot's last minute until the numbers of a member have all these bits between them. What
 * is told comes with the second after the one in which it was. */
static void until_told(int admin, const char *member, int bits) {
    char name[64];
    int found = 0;
    snprintf(name, sizeof name, "\"%s\":[", member);
    while ((found & bits) != bits) {
        answer a = admin_request(admin, "GET", "/state/1", "localhost", "");
        char *trail = strstr(a.body, "\"trail\":{"), *at = trail ? strstr(trail, name) : NULL;
        assert_int_equal(a.status, 200);
        for (at = at ? at + strlen(name) - 1 : NULL; at && *at != ']';) found |= (int)strtod(at + 1, &at);
        free(a.body);
        served_sleep(20);
    }
}

static void a_server_comes_and_goes(void **state) {
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    client_source_options to = {.rtc = OPENPI_RTC_GUIDED};
    char address[64], why[CLIENT_SENTENCE], arguments[256];
    openpi_source source;
    openpi_runner *runner;
    served server;
    double now = 1000;
    (void)state;
    /* An address of its own: where the server comes back, no other test has taken its port meanwhile. */
    static const char model[] = "--host 127.0.0.11 --synthetic tiny --robot droid --threads 2 --steps 1 "
                                "--horizon 12 --admin 127.0.0.1:0";
    served_start(&server, &box, "%s", model);
    snprintf(address, sizeof address, "ws://127.0.0.11:%d", server.port);
    to.address = address;
    assert_int_equal(client_source_open(&to, &source, why), 1);
    options.robot = "droid", options.rtc = OPENPI_RTC_GUIDED, options.frozen_after = -1;
    options.retry_ms = 20, options.deadline_ms = 1e6;
    WORKS(openpi_runner_over_source(&source, &options, &runner, &error));
    for (int i = 0; i < 40; i++) until(runner, &now, OPENPI_MOVE_ACTION, OPENPI_REASON_NONE);
    until_told(server.admin, "reasons", 1 << OPENPI_REASON_STARTING);
    served_stop(&server);
    until(runner, &now, OPENPI_MOVE_HOLD, OPENPI_REASON_LOST);
    WORKS(openpi_runner_get_info(runner, &info, &error));
    assert_non_null(strstr(info.failure, "the server"));
    snprintf(arguments, sizeof arguments, "%s --port %d", model, server.port);
    served_launch(&server, &box, arguments);
    served_await(&server);
    until(runner, &now, OPENPI_MOVE_ACTION, OPENPI_REASON_NONE);
    until_told(server.admin, "reasons", 1 << OPENPI_REASON_LOST);
    openpi_runner_close(runner);
    served_stop(&server);
}

static void wrong_addresses(void **state) {
    client_source_options to = {.address = "http://x"};
    char why[CLIENT_SENTENCE];
    openpi_source source;
    (void)state;
    assert_int_equal(client_source_open(&to, &source, why), 0);
    assert_string_equal(why, "\"http://x\" is no address, expected ws://HOST:PORT");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_server_comes_and_goes, open_box, close_box),
        cmocka_unit_test(wrong_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
