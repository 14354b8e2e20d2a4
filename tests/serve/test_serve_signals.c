/* labels: server host threads */
/* What a server meets at its start and its end: signals while a load or reload stands still, signals after it
 * has drained, ports that others have, too few descriptors. Each ends with a status, none with a signal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1"

#define STALLING "%s --device host:0 --message-timeout 3600"

/* The device stands still from the beginning on, so the load does not end by itself. It has its time; a
 * second signal ends it at once. */
static void a_load_that_blocks(void **state) {
    (void)state;
    served server;
    char args[1200];
    snprintf(args, sizeof args, STALLING " --port 0 --no-admin", robot_args);
    for (int twice = 0; twice < 2; twice++) {
        served_instead = OPENPI_HOST;
        served_pending = SIGUSR1;
        served_launch(&server, &box, args);
        served_pending = 0;
        served_instead = NULL;
        await_stalled(&server, 1);
        kill(server.pid, SIGTERM);
        if (twice) kill(server.pid, SIGINT);
        assert_int_equal(served_wait_soon(&server), 0);
        served_must_log(&server, "ended while the model was loaded: the load did not end by itself");
    }
}

/* A reload's first call stands still. */
static void a_reload_that_blocks(void **state) {
    (void)state;
    served server;
    served_instead = OPENPI_HOST;
    served_start(&server, &box, STALLING, robot_args);
    served_instead = NULL;
    kill(server.pid, SIGUSR1);
    kill(server.pid, SIGHUP);
    await_stalled(&server, 1);
    for (int i = 0; i < 3; i++) {
        kill(server.pid, SIGTERM);
        served_sleep(50);
    }
    assert_int_equal(served_wait_soon(&server), 0);
}

static void signals_without_end(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        served server;
        int status;
        served_start(&server, &box, TINY);
        for (int k = 0; k < 100000 && waitpid(server.pid, &status, WNOHANG) != server.pid; k++) {
            kill(server.pid, k % 2 ? SIGTERM : SIGINT);
            if (k > i) served_sleep(1);
        }
        assert_int_equal(served_ended(&server, status), 0);
    }
}

/* The port of a server that is still loading is taken, too: it does not listen yet. */
static void ports_of_others(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    char args[400];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    for (int i = 0; i < 2; i++) {
        int port = ntohs(address.sin_port);
        snprintf(args, sizeof args, "serve " TINY " --port 0 --admin 127.0.0.1:%d", port);
        must_refuse(args, "(the admin port): Address already in use");
        must_refuse(args, "--admin HOST:PORT gives another one, --no-admin none");
        snprintf(args, sizeof args, "serve " TINY " --no-admin --port %d", port);
        must_refuse(args, "(the robots' port): Address already in use");
        must_refuse(args, "--port gives another one");
        assert_int_equal(listen(fd, 1), 0);
    }
    close(fd);
}

static void few_descriptors(void **state) {
    (void)state;
    static const int files[] = {5, 7, 10, 13, 16, 19};
    char script[800];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        served server;
        int length = snprintf(script, sizeof script, "#!/bin/sh\nulimit -n %d\nexec '%s' \"$@\"\n", files[i],
                              served_command());
        assert_int_equal(scratch_write(&box, "limited", script, (size_t)length), 0);
        assert_int_equal(chmod(scratch_path(&box, "limited"), 0700), 0);
        snprintf(script, sizeof script, "%s", scratch_path(&box, "limited"));
        served_instead = script;
        served_launch(&server, &box, TINY " --port 0 --no-admin");
        served_instead = NULL;
        int status = served_wait_soon(&server);
        if (status <= 0) fail_msg("with %d descriptors it ended with %d", files[i], status);
    }
}

/* A server that ends at a third signal leaves threads unjoined, which may have ended just then:
 * ThreadSanitizer calls those leaks. Its other findings stay. */
static void leave_threads(void) {
    const char *given = getenv("TSAN_OPTIONS");
    char options[1000];
    snprintf(options, sizeof options, "%s%sreport_thread_leaks=0", given ? given : "",
             given ? ":" : "");
    setenv("TSAN_OPTIONS", options, 1);
}

/* Only some tests run openpi_host. */
static int begin(void **state) {
    leave_threads();
    int failed = set_up(state);
    served_instead = NULL;
    return failed;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_that_blocks),
        cmocka_unit_test(a_reload_that_blocks),
        cmocka_unit_test(signals_without_end),
        cmocka_unit_test(ports_of_others),
        cmocka_unit_test(few_descriptors),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
