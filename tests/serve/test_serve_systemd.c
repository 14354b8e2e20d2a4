/* labels: server threads links=serve links=cli wrap=openpi_session_run_rtc */
/* systemd's protocols in `openpi serve`: readiness, watchdog, sockets that it passes. The tests are the
 * service manager: they hold the socket of reports and the listening socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/un.h>

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "robot_message.h"
#include "serve/serve.h"
#include "serve/systemd.h"
#include "cli/service.h"

#define TINY \
    "--synthetic tiny --robot aloha --threads 2 --horizon 5 --steps 1 --handshake-timeout 600 --no-admin "  \
    "--ping-interval 3600"
enum { SECOND = 1000000000, REPORT_SECONDS = 600 };

/* ---- the socket of reports -------------------------------------------------------------------------- */

/* Bound to the path, or to "@name"; reading waits at most REPORT_SECONDS. */
static int reports_open(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval most = {.tv_sec = REPORT_SECONDS};
    size_t length = strlen(path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_true(fd >= 0 && length < sizeof address.sun_path);
    memcpy(address.sun_path, path, length);
    if (path[0] == '@') address.sun_path[0] = 0;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    return fd;
}

typedef struct report {
    char text[600];
} report;

static report next_report(int fd) {
    report r = {.text = ""};
    ssize_t count = recv(fd, r.text, sizeof r.text - 1, 0);
    if (count < 0) fail_msg("no report within %d s: %s", REPORT_SECONDS, strerror(errno));
    return r;
}

static void expect_report(int fd, const char *text) {
    report r = next_report(fd);
    assert_string_equal(r.text, text);
}

/* It has been sent. */
static void expect_now(int fd, const char *text) {
    report r = {.text = ""};
    assert_true(recv(fd, r.text, sizeof r.text - 1, MSG_DONTWAIT) > 0);
    assert_string_equal(r.text, text);
}

static void expect_silence(int fd) {
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
}

static const char *abstract_name(void) {
    static char name[64];
    static int count;
    snprintf(name, sizeof name, "@openpi_test_%ld_%d", (long)getpid(), count++);
    return name;
}

static void reports_arrive(void **state) {
    (void)state;
    char file[400];
    snprintf(file, sizeof file, "%s", scratch_path(&box, "notify"));
    const char *paths[] = {file, abstract_name()};
    for (int i = 0; i < 2; i++) {
        systemd s;
        int fd = reports_open(paths[i]);
        assert_int_equal(systemd_open(&s, paths[i], 0, NULL), OPENPI_OK);
        systemd_report(&s, "READY=1\nSTATUS=%d robots", 3);
        expect_report(fd, "READY=1\nSTATUS=3 robots");
        for (int k = 0; k < 10000; k++) systemd_report(&s, "STATUS=%d", k);    /* more than it takes */
        expect_report(fd, "STATUS=0");
        systemd_close(&s);
        close(fd);
    }
}

static void sockets_that_are_none(void **state) {
    (void)state;
    char endless[200];
    memset(endless, 'x', sizeof endless);
    endless[0] = '/';
    endless[sizeof endless - 1] = 0;
    const char *const paths[] = {"", "/", "@", "notify", "vsock:2:1234", endless, "/no/such/socket"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        systemd s;
        openpi_error error = OPENPI_ERROR_INIT;
        assert_int_equal(systemd_open(&s, paths[i], 0, &error), OPENPI_BAD_ARGUMENT);
        assert_true(!strncmp(error.message, "NOTIFY_SOCKET is '", 18));
        assert_int_equal(s.fd, -1);
    }
    systemd s;
    assert_int_equal(systemd_open(&s, NULL, 1000000, NULL), OPENPI_OK);
    systemd_report(&s, "READY=1");
    systemd_alive(&s, NULL, SECOND);
    assert_int_equal(systemd_interval(&s), 0);
    systemd_close(&s);
}

/* ---- the watchdog in virtual time ------------------------------------------------------------------- */

static void signs_of_life(void **state) {
    (void)state;
    systemd s;
    const char *name = abstract_name();
    int fd = reports_open(name);
    int64_t now = 5 * (int64_t)SECOND;
    assert_int_equal(systemd_open(&s, name, 8000000, NULL), OPENPI_OK);
    assert_int_equal(systemd_interval(&s), 1000);
    systemd_alive(&s, NULL, now);
    expect_now(fd, "WATCHDOG=1");
    for (int i = 1; i < 4; i++) systemd_alive(&s, NULL, now + i * (int64_t)SECOND);
    expect_silence(fd);
    now += 4 * (int64_t)SECOND;
    systemd_alive(&s, NULL, now);            /* half of the time                                           */
    expect_now(fd, "WATCHDOG=1");
    for (int i = 1; i < 100; i++) systemd_alive(&s, "cuda:1", now + i * (int64_t)SECOND);
    expect_now(fd, "STATUS=cuda:1 does not come back from a call");
    expect_silence(fd);
    systemd_alive(&s, NULL, now + 100 * (int64_t)SECOND);
    expect_now(fd, "STATUS=serving");
    expect_now(fd, "WATCHDOG=1");
    systemd_alive(&s, NULL, now + 101 * (int64_t)SECOND);
    expect_silence(fd);
    systemd_close(&s);
    close(fd);
}

/* ---- the environment -------------------------------------------------------------------------------- */

static void variables(void **state) {
    (void)state;
    static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
                                        "LISTEN_PID"};
    char me[32];
    snprintf(me, sizeof me, "%ld", (long)getpid());
    const struct {
        const char *values[5], *wrong;
        service_manager expected;
    } table[] = {
        {{NULL, NULL, NULL, NULL, NULL}, NULL, {NULL, 0, 0, 0}},
        {{"@x", "30000000", me, "2", me}, NULL, {"@x", 30000000, 2, 0}},
        {{"", "30000000", NULL, "2", NULL}, NULL, {NULL, 30000000, 0, 0}},
        {{NULL, "30000000", "1", "2", "1"}, NULL, {NULL, 0, 0, 0}},
        {{NULL, "", me, "", me}, NULL, {NULL, 0, 0, 0}},
        {{NULL, "soon", NULL, NULL, NULL}, "WATCHDOG_USEC is 'soon'", {NULL, 0, 0, 0}},
        {{NULL, "-1", me, NULL, NULL}, "WATCHDOG_USEC is '-1'", {NULL, 0, 0, 0}},
        {{NULL, "1", "x", NULL, NULL}, "WATCHDOG_PID is 'x'", {NULL, 0, 0, 0}},
        {{NULL, "99999999999999999999", NULL, NULL, NULL}, "WATCHDOG_USEC is '9999", {NULL, 0, 0, 0}},
        {{NULL, NULL, NULL, "1 2", me}, "LISTEN_FDS is '1 2'", {NULL, 0, 0, 0}},
        {{NULL, NULL, NULL, "1001", me}, "LISTEN_FDS is '1001', expected", {NULL, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        service_manager manager;
        char sentence[SERVICE_SENTENCE] = "";
        for (int k = 0; k < 5; k++)
            if (table[i].values[k]) setenv(names[k], table[i].values[k], 1);
            else unsetenv(names[k]);
        assert_int_equal(service_manager_read(&manager, sentence), !table[i].wrong);
        if (table[i].wrong) {
            must_contain(sentence, table[i].wrong);
            continue;
        }
        assert_int_equal(manager.watchdog_us, table[i].expected.watchdog_us);
        assert_int_equal(manager.sockets, table[i].expected.sockets);
        assert_int_equal(!manager.notify, !table[i].expected.notify);
        if (manager.notify) assert_string_equal(manager.notify, table[i].expected.notify);
    }
    for (int k = 0; k < 5; k++) unsetenv(names[k]);
    const char *const streams[] = {"0:0", "journal"};
    for (int i = 0; i < 3; i++) {
        service_manager manager;
        char sentence[SERVICE_SENTENCE], own[64];
        struct stat stream;
        assert_int_equal(fstat(STDERR_FILENO, &stream), 0);
        snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)stream.st_dev,
                 (unsigned long long)stream.st_ino);
        setenv("JOURNAL_STREAM", i < 2 ? streams[i] : own, 1);
        assert_int_equal(service_manager_read(&manager, sentence), 1);
        assert_int_equal(manager.journal, i == 2);
    }
    unsetenv("JOURNAL_STREAM");
}

/* ---- a server of a service manager ------------------------------------------------------------------ */

/* A listening socket of 127.0.0.1, as systemd makes it. */
static int listening_socket(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, SOMAXCONN), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* Starts "openpi serve ARGS" as systemd does: the sockets from descriptor 3 on, reports to `notify`. */
static void launch_with(served *s, const int *sockets, int count, const char *notify, const char *args) {
    char line[2000], pid[32], number[16];
    snprintf(s->log, sizeof s->log, "%s", scratch_path(&box, "log"));
    unlink(s->log);
    snprintf(line, sizeof line, "exec '%s' serve %s --log-format text 2>'%s' >/dev/null </dev/null",
             served_command(), args, s->log);
    s->port = 0;
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    snprintf(number, sizeof number, "%d", count);
    for (int i = 0; i < count; i++)
        if (dup2(sockets[i], SERVICE_FIRST_SOCKET + i) < 0) _exit(126);
    if (count && (setenv("LISTEN_PID", pid, 1) || setenv("LISTEN_FDS", number, 1))) _exit(126);
    if (notify) setenv("NOTIFY_SOCKET", notify, 1);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* With one socket; -1: with none. */
static void launch(served *s, int socket, const char *notify, const char *args) {
    launch_with(s, &socket, socket >= 0, notify, args);
}

static void expect_reply(int fd) {
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    ws_send(fd, WS_BINARY, 1, request, count);
    free(ws_expect(fd, WS_BINARY).data);
    free(request);
}

/* READY comes when robots are served, STOPPING when they no longer are. */
static void ready_and_stopping(void **state) {
    (void)state;
    served server;
    char head[1024];
    const char *name = abstract_name();
    int fd = reports_open(name);
    launch(&server, -1, name, TINY " --port 0");
    expect_report(fd, "STATUS=loading the model");
    expect_report(fd, "READY=1\nSTATUS=serving");
    served_await(&server);       /* reads its port, and does not wait: the line was written before READY   */
    close(ws_request(server.port, "/healthz", "", head, sizeof head));
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    int robot = greet(server.port);
    kill(server.pid, SIGHUP);
    report reloading = next_report(fd);
    assert_memory_equal(reloading.text, "RELOADING=1\nMONOTONIC_USEC=", 27);
    expect_report(fd, "READY=1");
    kill(server.pid, SIGTERM);
    expect_report(fd, "STOPPING=1\nSTATUS=draining, connections: 1");
    ws_expect_close(robot, 1001);
    assert_int_equal(served_wait(&server), 0);
    expect_silence(fd);          /* no watchdog was asked for                                              */
    close(fd);
}

/* The rest of greet() on a socket that is connected. */
static void shake_hands(int fd) {
    static const char text[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" WS_UPGRADE "\r\n";
    char head[1024];
    ws_put(fd, text, sizeof text - 1);
    ws_head(fd, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(fd, WS_BINARY).data);
}

/* The socket outlives the server: who connects after kill -9 waits for the next one, and is served. */
static void killed_and_restarted(void **state) {
    (void)state;
    enum { WAITING = 3 };
    served server = {.pid = 0};
    char byte;
    int port, listening = listening_socket(&port), robots[WAITING];
    for (int turn = 0; turn < 3; turn++) {
        if (server.pid) {
            kill(server.pid, SIGKILL);
            assert_int_equal(served_wait(&server), -SIGKILL);
            for (int k = 0; k < WAITING; k++) {
                assert_true(recv(robots[k], &byte, 1, 0) <= 0);
                close(robots[k]);
            }
        }
        for (int k = 0; k < WAITING; k++) robots[k] = ws_socket(port);         /* nobody accepts           */
        launch(&server, listening, NULL, TINY);
        served_await(&server);
        assert_int_equal(server.port, port);
        for (int k = 0; k < WAITING; k++) {
            shake_hands(robots[k]);
            expect_reply(robots[k]);
        }
    }
    kill(server.pid, SIGTERM);
    for (int k = 0; k < WAITING; k++) ws_expect_close(robots[k], 1001);
    close(ws_socket(port));      /* waits for the next server                                              */
    assert_int_equal(served_wait(&server), 0);
    close(listening);
}

static void refuse_socket(int fd, const char *sentence) {
    served server;
    launch(&server, fd, NULL, TINY);
    int status = served_wait(&server);
    char *log = served_log(&server);
    if (status != 2 || !strstr(log, sentence))
        fail_msg("status %d, expected 2 with \"%s\"; it said:\n%s", status, sentence, log);
    free(log);
    close(fd);
}

static void sockets_that_do_not_serve(void **state) {
    (void)state;
    struct sockaddr_in any = {.sin_family = AF_INET};
    int everywhere = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(everywhere, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(everywhere, 4), 0);
    refuse_socket(everywhere, "is one which other machines can reach");
    refuse_socket(open("/dev/null", O_RDWR), "passes no socket as descriptor 3");
    refuse_socket(socket(AF_UNIX, SOCK_STREAM, 0), "passes no TCP socket as descriptor 3");
    refuse_socket(socket(AF_INET, SOCK_DGRAM, 0), "passes no TCP socket as descriptor 3");
    refuse_socket(socket(AF_INET, SOCK_STREAM, 0), "passes a socket that does not listen as descriptor 3");
}

/* ---- a device that hangs ---------------------------------------------------------------------------- */

/* Pipes to the server's process: a byte in the first one makes a call wait for a byte in the second one. */
static int hang[2], release[2];

typedef openpi_status run_rtc(openpi_session *session, const openpi_sample *samples, const openpi_rtc *rtc,
                              int count, const float *noise, float *actions, openpi_timing *timing,
                              openpi_error *error);
run_rtc __real_openpi_session_run_rtc, __wrap_openpi_session_run_rtc;

openpi_status __wrap_openpi_session_run_rtc(openpi_session *session, const openpi_sample *samples,
                                            const openpi_rtc *rtc, int count, const float *noise,
                                            float *actions, openpi_timing *timing, openpi_error *error) {
    char byte;
    if (read(hang[0], &byte, 1) == 1 && read(release[0], &byte, 1) != 1) return OPENPI_SYSTEM;
    return __real_openpi_session_run_rtc(session, samples, rtc, count, noise, actions, timing, error);
}

static pid_t serve_in_child(const char *notify, int listening) {
    int busy;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    serve_options options = {.engine = OPENPI_ENGINE_OPTIONS_INIT,
                             .policy = OPENPI_POLICY_OPTIONS_INIT,
                             .horizon = 5,
                             .steps = 1,
                             .drain_seconds = WS_SECONDS,
                             .prepare_threads = 1,
                             .max_block = 1,
                             .max_message_bytes = SERVE_MESSAGE_BYTES,
                             .max_in_flight = SERVE_IN_FLIGHT_BYTES,
                             .max_connections = 4,
                             .max_per_address = 4,
                             .handshake_seconds = WS_SECONDS,
                             .message_seconds = WS_SECONDS,
                             .reply_seconds = WS_SECONDS,
                             .ping_seconds = 3600,
                             .notify_socket = notify,
                             .watchdog_us = 200000,
                             .inherited = 1,
                             .first_inherited = listening};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (openpi_synthetic_parse("tiny", &tiny, &error) != OPENPI_OK) _exit(126);
    options.engine.synthetic = options.policy.synthetic = &tiny;
    options.engine.threads = 1;
    options.policy.robot = "aloha";
    if (serve(&options, &busy, &error) != OPENPI_OK) fprintf(stderr, "%s\n", error.message);
    _exit(error.status != OPENPI_OK);
}

/* No sign of life from the report that a device hangs until it goes on. */
static void hung_device(void **state) {
    (void)state;
    const char *name = abstract_name();
    int port, fd = reports_open(name), listening = listening_socket(&port);
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    assert_int_equal(pipe(hang) | pipe(release) | fcntl(hang[0], F_SETFL, O_NONBLOCK), 0);
    served server = {.pid = serve_in_child(name, listening)};
    expect_report(fd, "STATUS=loading the model");
    expect_report(fd, "READY=1\nSTATUS=serving");
    for (int i = 0; i < 3; i++) expect_report(fd, "WATCHDOG=1");
    int robot = greet(port);
    assert_int_equal(write(hang[1], "x", 1), 1);
    ws_send(robot, WS_BINARY, 1, request, count);
    report r = next_report(fd);
    for (int i = 0; i < 3000 && !strcmp(r.text, "WATCHDOG=1"); i++) r = next_report(fd);       /* 5 minutes */
    assert_string_equal(r.text, "STATUS=cpu does not come back from a call");
    int other = greet(port);          /* the network goes on                              */
    expect_silence(fd);
    assert_int_equal(write(release[1], "x", 1), 1);
    free(ws_expect(robot, WS_BINARY).data);
    expect_report(fd, "STATUS=serving");
    expect_report(fd, "WATCHDOG=1");
    kill(server.pid, SIGTERM);
    ws_expect_close(robot, 1001);
    ws_expect_close(other, 1001);
    assert_int_equal(served_wait(&server), 0);
    for (int i = 0; i < 2; i++) close(hang[i]), close(release[i]);
    close(fd);
    close(listening);
    free(request);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

/* A socket of IPv6 that takes IPv4 too; -1: the machine has none. */
static int listening_on_both(int *port) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET6, SOCK_STREAM, 0), zero = 0;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, SOMAXCONN)) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin6_port);
    return fd;
}

/* A client of IPv4 is the same one through a socket of IPv6: --max-per-address counts both together. */
static void one_address_on_two_sockets(void **state) {
    (void)state;
    char head[1024];
    int ports[2], first = listening_on_both(&ports[0]);
    if (first < 0) {
        print_message("this machine has no IPv6\n");
        skip();
    }
    served server;
    int second = listening_socket(&ports[1]);
    int places[2] = {fcntl(first, F_DUPFD, 100), fcntl(second, F_DUPFD, 100)};
    launch_with(&server, places, 2, NULL, TINY " --trust-network --max-per-address 1");
    served_await(&server);
    int robot = greet(ports[0]);
    close(ws_request(ports[1], "/", WS_UPGRADE, head, sizeof head));
    assert_memory_equal(head, "HTTP/1.1 503 ", 13);
    served_must_log(&server, "refused: this address has as many connections as --max-per-address");
    close(robot);
    served_stop(&server);
    for (int i = 0; i < 2; i++) close(places[i]);
    close(first);
    close(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_arrive),       cmocka_unit_test(sockets_that_are_none),
        cmocka_unit_test(signs_of_life),        cmocka_unit_test(variables),
        cmocka_unit_test(ready_and_stopping),   cmocka_unit_test(killed_and_restarted),
        cmocka_unit_test(sockets_that_do_not_serve),   cmocka_unit_test(hung_device),
        cmocka_unit_test(one_address_on_two_sockets),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
