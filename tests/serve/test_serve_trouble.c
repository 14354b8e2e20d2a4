/* labels: long server cost no_asan */
#define _GNU_SOURCE              /* prlimit */
/* Trouble-makers beside honest robots: each honest request is answered once, in order, with the bytes of
 * `openpi run`, and afterwards the server has no descriptor and little memory more than before. Small
 * numbers by default; docs/serve-protocol.md says how to run it with large ones:
 *
 *   test_serve_trouble [--clients N] [--rounds N] [--strings N] */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "base/sanitizer.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "served_resources.h"
#include "websocket.h"
#include "robot_message.h"
#include "aloha_requests.h"

#define MODEL "--synthetic tiny --robot aloha --threads 2 --steps 1 --horizon 5"

enum {
    H = 5,
    ACTIONS = H * 14 * 8,        /* bytes                                                                  */
    OBSERVATIONS = 4,
    ROBOTS = 3,
    MUCH = 16000000,
};

static struct {
    int clients, rounds, strings;
} numbers = {.clients = 50, .rounds = 10, .strings = 2000};

static served server;
static msgpack_sbuffer message[OBSERVATIONS];
static uint8_t want[OBSERVATIONS][ACTIONS];

/* ---- honest robots ---------------------------------------------------------------------------------- */

/* Observation k, like no other one and with noise of its own, and what `openpi run` answers. */
static void observe(int k) {
    float noise[H * OPENPI_ACTION_DIM];
    uint8_t npy[128 + sizeof noise] = "\x93NUMPY\x01\x00\x76\x00";
    size_t bytes;
    openpi_noise(5, (uint64_t)k, noise, sizeof noise / sizeof *noise);
    memset(npy + 10, ' ', 118);
    int length = snprintf((char *)npy + 10, 118,
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", H,
                          OPENPI_ACTION_DIM);
    npy[10 + length] = ' ';
    npy[127] = '\n';
    memcpy(npy + 128, noise, sizeof noise);
    assert_int_equal(scratch_write(&box, "noise.npy", npy, sizeof npy), 0);
    make_aloha_request(k, &message[k]);
    assert_int_equal(scratch_write(&box, "request.msgpack", message[k].data, message[k].size), 0);
    if (run("run " MODEL " --request request.msgpack --noise noise.npy --format npy --out actions.npy"))
        fail_msg("openpi run: %s", err);
    char *actions = slurp(scratch_path(&box, "actions.npy"), &bytes);
    assert_int_equal(bytes, 128 + ACTIONS);
    memcpy(want[k], actions + 128, ACTIONS);
    free(actions);
    add_noise(&message[k], noise, H);
}

static void expect_actions(int fd, int k) {
    enum { BEFORE = 44 };        /* bytes of a reply before its actions: test_serve's check_reply          */
    ws_frame frame = ws_receive(fd);
    if (frame.opcode != WS_BINARY) fail_msg("opcode %d, \"%s\"", frame.opcode, (char *)frame.data);
    size_t at = 0;
    while (at + ACTIONS <= frame.bytes && at < BEFORE && memcmp(frame.data + at, want[k], ACTIONS)) at++;
    if (at + ACTIONS > frame.bytes || at == BEFORE) fail_msg("no actions of observation %d", k);
    free(frame.data);
}

static void ask_for(int fd, int k) { ws_send(fd, WS_BINARY, 1, message[k].data, message[k].size); }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Each robot has two requests under way, and asks for another observation each time. One of them alone is
 * timed, for the eye only. */
static void serve_robots(const int fd[ROBOTS], int rounds, const char *when) {
    double *ms = calloc((size_t)rounds, sizeof *ms);
    assert_non_null(ms);
    for (int i = 0; i < rounds; i++) {
        for (int r = 1; r < ROBOTS; r++) {
            ask_for(fd[r], (i + r) % OBSERVATIONS);
            ask_for(fd[r], (i + r + 1) % OBSERVATIONS);
        }
        for (int r = 1; r < ROBOTS; r++) {
            expect_actions(fd[r], (i + r) % OBSERVATIONS);
            expect_actions(fd[r], (i + r + 1) % OBSERVATIONS);
        }
        double start = now_ms();
        ask_for(fd[0], i % OBSERVATIONS);
        expect_actions(fd[0], i % OBSERVATIONS);
        ms[i] = now_ms() - start;
    }
    qsort(ms, (size_t)rounds, sizeof *ms, by_value);
    print_message("           %s: p50 %.2f ms, p99 %.2f ms\n", when, ms[rounds / 2], ms[rounds * 99 / 100]);
    free(ms);
}

/* ---- what the server has ---------------------------------------------------------------------------- */

/* The messages of free jobs that the server keeps, and what the allocator does not give back. */
static void must_be_flat(long before_kb, int before_files) {
    served_await_descriptors(&server, before_files);
    long after = served_resident_kb(&server);
    print_message("           descriptors %d, memory %ld kB before, %ld kB after\n", before_files, before_kb,
                  after);
    if (!SANITIZED && after > before_kb + (192 << 10))
        fail_msg("memory grew from %ld to %ld kB", before_kb, after);
}

/* ---- trouble-makers --------------------------------------------------------------------------------- */

/* In a forked child nothing may be asserted. */
static int try_connect(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server.port)};
    struct timeval most = {.tv_sec = 5};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
    return -1;
}

/* A WebSocket, or at least a socket that asked for one. */
static int try_open(void) {
    static const char head[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" WS_UPGRADE "\r\n";
    char byte;
    int fd = try_connect();
    if (fd < 0) return fd;
    send(fd, head, sizeof head - 1, MSG_NOSIGNAL);
    recv(fd, &byte, 1, MSG_PEEK);
    return fd;
}

static void try_put(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (fd >= 0 && bytes) {
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
        if (put <= 0) return;
        at += put;
        bytes -= (size_t)put;
    }
}

static const uint8_t request_head[14] = {0x82, 0xff};  /* masked by 0; a length of eight bytes follows     */

static void try_head(int fd, uint64_t bytes) {
    uint8_t head[14];
    memcpy(head, request_head, sizeof head);
    for (int k = 0; k < 8; k++) head[2 + k] = (uint8_t)(bytes >> 8 * (7 - k));
    try_put(fd, head, sizeof head);
}

/* A socket that stays as it is: kinds of silence. */
static int make_trouble(int kind) {
    static const char half[] = "GET / HTTP/1.1\r\nHost: ";
    int fd = kind < 2 ? try_connect() : try_open();
    switch (kind) {
    case 1: try_put(fd, half, sizeof half - 1); break;
    case 2:                                            /* half a message                                   */
        try_head(fd, message[0].size);
        try_put(fd, message[0].data, message[0].size / 2);
        break;
    case 3:                                            /* asks, and does not read                          */
        for (int i = 0; i < 2; i++) {
            try_head(fd, message[0].size);
            try_put(fd, message[0].data, message[0].size);
        }
        break;
    case 4:                                            /* announces much                                   */
        try_head(fd, MUCH);
        try_put(fd, message[0].data, 10);
        break;
    case 5: try_put(fd, "\xff\xff\xff\xff", 4); break; /* no frame                                         */
    default: break;                                    /* idle                                             */
    }
    return fd;
}

enum { KINDS = 7 };

/* Comes and goes for ever: at once, after a request, in the middle of a flood. */
static void storm(unsigned seed) {
    char *much = calloc(1, MUCH);
    for (; much; seed = seed * 1103515245 + 12345) {
        int fd = seed >> 16 & 1 ? try_open() : try_connect();
        switch (seed >> 18 & 7) {
        case 0:
            try_head(fd, MUCH);
            try_put(fd, much, MUCH);
            break;
        case 1:
        case 2:
            try_head(fd, message[0].size);
            try_put(fd, message[0].data, message[0].size);
            break;
        case 3: try_put(fd, "\x88\x80\x00\x00\x00\x00", 6); break;
        case 4: try_put(fd, "\x81\x85\x00\x00\x00\x00Hello\x82\xfe", 13); break;
        default: break;
        }
        if (fd >= 0) close(fd);
    }
    _exit(0);
}

static pid_t start_storm(unsigned seed) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    storm(seed);
    _exit(0);
}

/* WebSockets of a process that is stopped: its kernel acknowledges, and nobody answers. */
static pid_t start_half_open(int count) {
    pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < count; i++) make_trouble(i % 2 ? 3 : 6);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    return child;
}

static void end_child(pid_t child) {
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void start_server(const char *more) {
    served_start(&server, &box,
                 MODEL " --max-connections %d --max-per-address %d --message-timeout 30 --reply-timeout 30 "
                 "--ping-interval 3600 %s", 4 * numbers.clients + 100, 4 * numbers.clients + 100, more);
}

static void greet_all(int fd[ROBOTS]) {
    for (int r = 0; r < ROBOTS; r++) fd[r] = greet(server.port);
}

/* Honest robots are served in batches, too. */
static void crowd(void **state) {
    (void)state;
    int fd[ROBOTS], held = numbers.clients - numbers.clients / 5;
    int *trouble = calloc((size_t)held, sizeof *trouble);
    pid_t storms[2], half_open;
    assert_non_null(trouble);
    start_server("--max-block 8");
    greet_all(fd);
    serve_robots(fd, numbers.rounds, "alone ");
    int files = served_descriptors(&server);
    long kb = served_resident_kb(&server);
    for (int i = 0; i < held; i++) trouble[i] = make_trouble(i % KINDS);
    half_open = start_half_open(numbers.clients / 5);
    for (int i = 0; i < 2; i++) storms[i] = start_storm((unsigned)i + 7);
    serve_robots(fd, numbers.rounds, "beside");
    for (int i = 0; i < 2; i++) end_child(storms[i]);
    end_child(half_open);
    for (int i = 0; i < held; i++)
        if (trouble[i] >= 0) close(trouble[i]);
    free(trouble);
    serve_robots(fd, 1, "after ");
    must_be_flat(kb, files);
    for (int r = 0; r < ROBOTS; r++) close(fd[r]);
    served_stop(&server);
}

/* ---- random bytes ----------------------------------------------------------------------------------- */

static uint32_t random_state;

static uint32_t random_number(uint32_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % below;
}

/* Noise; or a frame or a request's head with a few bytes changed. */
static size_t random_string(uint8_t *bytes, size_t capacity) {
    static const char head[] = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" WS_UPGRADE "\r\n";
    size_t count = 1 + random_number((uint32_t)capacity - 1);
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)random_number(256);
    int shape = (int)random_number(4);
    if (shape == 1) {
        count = sizeof head - 1;
        memcpy(bytes, head, count);
    } else if (shape == 2 && count > 8) {
        static const uint8_t firsts[] = {0x82, 0x02, 0x80, 0x89, 0x8a, 0x88, 0x81};
        bytes[0] = firsts[random_number(sizeof firsts)];
        bytes[1] = (uint8_t)(0x80 | (count - 6 < 126 ? count - 6 : random_number(128)));
    }
    for (uint32_t i = random_number(4); shape && i; i--)
        bytes[random_number((uint32_t)count)] = (uint8_t)random_number(256);
    return count;
}

static void random_bytes(void **state) {
    (void)state;
    enum { MOST = 700 };
    int fd[ROBOTS];
    start_server("--handshake-timeout 5");
    greet_all(fd);
    serve_robots(fd, 2, "before");
    int files = served_descriptors(&server);
    long kb = served_resident_kb(&server);
    random_state = 20260101;
    for (int i = 0; i < numbers.strings; i++) {
        uint8_t bytes[MOST];
        char answer[256];
        size_t count = random_string(bytes, MOST);
        int one = random_number(4) ? try_open() : try_connect();
        try_put(one, bytes, count);
        if (one < 0) continue;
        shutdown(one, SHUT_WR);
        while (i % 16 == 0 && recv(one, answer, sizeof answer, 0) > 0) {}
        close(one);
        if (i % 1000 == 999) serve_robots(fd, 1, "among ");
    }
    must_be_flat(kb, files);
    serve_robots(fd, 2, "after ");
    for (int r = 0; r < ROBOTS; r++) close(fd[r]);
    served_stop(&server);
}

#define WANTS_SOCKET "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" WS_UPGRADE "\r\n"

/* ---- descriptors ------------------------------------------------------------------------------------ */

/* Where there is no descriptor left who comes is sent away at once, and who is there is served. `head`: what
 * the others send; those that wait for nothing make room. */
static void must_turn_away(int clients, const char *head, const char *says) {
    char byte;
    int fd[ROBOTS], gone = clients, *mute = calloc((size_t)clients, sizeof *mute);
    assert_non_null(mute);
    greet_all(fd);
    int files = served_descriptors(&server);
    for (int i = 0; i < clients; i++) {
        mute[i] = ws_socket(server.port);
        ws_put(mute[i], head, strlen(head));
        if (*head && gone == clients && !ws_get(mute[i], &byte, 1)) gone = i;
    }
    if (*head) assert_true(gone < clients);
    else assert_int_equal(ws_get(mute[0], &byte, 1), 0);
    char *log = served_log(&server);
    must_contain(log, says);
    free(log);
    serve_robots(fd, 3, "without descriptors");
    for (int i = 0; i < clients; i++) close(mute[i]);
    free(mute);
    served_await_descriptors(&server, files);
    int late = greet(server.port);
    ask_for(late, 1);
    expect_actions(late, 1);
    close(late);
    for (int r = 0; r < ROBOTS; r++) close(fd[r]);
    served_stop(&server);
}

static void no_descriptor(void **state) {
    (void)state;
    enum { FILES = 80, CLIENTS = 120 };
    char script[600];
    int length = snprintf(script, sizeof script, "#!/bin/sh\nulimit -n %d\nexec '%s' \"$@\"\n", FILES,
                          served_command());
    assert_int_equal(scratch_write(&box, "limited", script, (size_t)length), 0);
    assert_int_equal(chmod(scratch_path(&box, "limited"), 0700), 0);
    snprintf(script, sizeof script, "%s", scratch_path(&box, "limited"));
    served_instead = script;
    start_server("--handshake-timeout 3600");
    served_instead = NULL;
    must_turn_away(CLIENTS, WANTS_SOCKET, "127.0.0.1 dropped: no descriptor is left");
}

/* Another thread may have taken the spare descriptor; here the limit falls below all that are open. The loop
 * does not turn for who waits, and serves who is there. */
static void no_spare_descriptor(void **state) {
    (void)state;
    enum { WATCHED_MS = 1000 };
    struct rlimit before, few;
    int fd[ROBOTS];
    start_server("--handshake-timeout 3600");
    greet_all(fd);
    assert_int_equal(prlimit(server.pid, RLIMIT_NOFILE, NULL, &before), 0);
    few = before;
    few.rlim_cur = 3;
    assert_int_equal(prlimit(server.pid, RLIMIT_NOFILE, &few, NULL), 0);
    int waits = ws_socket(server.port);
    serve_robots(fd, 3, "without a spare descriptor");
    long ran_ms = served_cpu_ms(&server);
    served_sleep(WATCHED_MS);
    ran_ms = served_cpu_ms(&server) - ran_ms;
    if (ran_ms > WATCHED_MS / 2) fail_msg("the server ran for %ld ms of %d", ran_ms, WATCHED_MS);
    assert_int_equal(prlimit(server.pid, RLIMIT_NOFILE, &before, NULL), 0);
    int late = greet(server.port);
    assert_true(ws_is_there(waits));
    close(waits);
    close(late);
    for (int r = 0; r < ROBOTS; r++) close(fd[r]);
    served_stop(&server);
}

/* More come than there are descriptors, and say nothing: the first make room for the last. */
static void more_than_places(void **state) {
    (void)state;
    enum { PLACES = ROBOTS + 1, CLIENTS = 4 * PLACES + 512 };
    served_start(&server, &box, MODEL " --max-connections %d --handshake-timeout 3600", PLACES);
    must_turn_away(CLIENTS, "", "127.0.0.1 dropped: it makes room");
}

/* ---- the program ------------------------------------------------------------------------------------ */

static int set_up(void **state) {
    if (open_box(state)) return -1;
    for (int k = 0; k < OBSERVATIONS; k++) observe(k);
    return 0;
}

static int tear_down(void **state) {
    for (int k = 0; k < OBSERVATIONS; k++) msgpack_sbuffer_destroy(&message[k]);
    return close_box(state);
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crowd),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(no_descriptor),
        cmocka_unit_test(no_spare_descriptor),
        cmocka_unit_test(more_than_places),
    };
    for (int i = 1; i + 1 < count; i += 2) {
        int n = atoi(words[i + 1]);
        if (!strcmp(words[i], "--clients")) numbers.clients = n;
        else if (!strcmp(words[i], "--rounds")) numbers.rounds = n;
        else if (!strcmp(words[i], "--strings")) numbers.strings = n;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
