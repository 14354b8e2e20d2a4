/* labels: server threads links=serve */
/* Memory that ends, in a server of this process: each allocation of its own code fails once, at its start and
 * while it serves. A start ends with one sentence. While it serves, whoever asks gets actions, a sentence or
 * a close; who asks next gets actions. No crash, and nothing is left in memory.
 *
 *   test_serve_memory [--every]
 *
 * By default some of the start's allocations fail, and all of a request's. Allocations of libwebsockets,
 * libuv and OpenSSL are not made to fail: what they do then is theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ALLOCATOR_REFUSES refuses
#include "allocator.h"

#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "served_resources.h"
#include "websocket.h"
#include "robot_message.h"
#include "small_robot.h"
#include "serve/serve.h"

#if !ALLOCATOR
int main(void) { return without_allocator(); }
#else

enum { STARTS = 150};            /* by default                                                             */

/* Shared with the server. */
typedef struct orders {
    atomic_llong calls;          /* requests of memory by the program's own code                           */
    atomic_llong fail_at;        /* the one that fails; 0: none                                            */
    atomic_llong failed;
    atomic_llong left;           /* blocks that are live after the server has ended                        */
} orders;

static orders *shared;
static int in_server, every;
static char model[400], robot_file[400];
static msgpack_sbuffer message;
static uint8_t want[SMALL_ACTIONS];
static long long whole_life;     /* blocks that libraries keep after a server's life without a failure     */

extern const char __executable_start, etext;

static int refuses(const void *caller) {
    if (!in_server || (const char *)caller < &__executable_start || (const char *)caller >= &etext) return 0;
    long long call = atomic_fetch_add(&shared->calls, 1) + 1;
    if (call != atomic_load(&shared->fail_at)) return 0;
    atomic_fetch_add(&shared->failed, 1);
    return 1;
}

/* ---- the server ------------------------------------------------------------------------------------- */

/* Ends with 0 after SIGTERM, with 2 after one sentence. */
static _Noreturn void be_server(const served *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    int busy;
    serve_options options = {.checkpoint = model,
                             .engine = OPENPI_ENGINE_OPTIONS_INIT,
                             .policy = OPENPI_POLICY_OPTIONS_INIT,
                             .steps = 1,
                             .host = "127.0.0.1",
                             .admin = "127.0.0.1:0",
                             .drain_seconds = 60,
                             .prepare_threads = 1,
                             .max_block = 1,
                             .max_message_bytes = SERVE_MESSAGE_BYTES,
                             .max_in_flight = SERVE_IN_FLIGHT_BYTES,
                             .max_connections = 16,
                             .max_per_address = 16,
                             .max_attempts = 1000000,
                             .handshake_seconds = 3600,
                             .message_seconds = 3600,
                             .reply_seconds = 3600,
                             .ping_seconds = 3600};
    options.engine.threads = 1;
    options.policy.robot = robot_file;
    int log = open(s->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, STDERR_FILENO);
    close(log);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    long long before = atomic_load(&allocator_blocks);
    in_server = 1;
    openpi_status status = serve(&options, &busy, &error);
    in_server = 0;
    atomic_store(&shared->left, atomic_load(&allocator_blocks) - before);
    if (status == OPENPI_OK) _exit(0);
    dprintf(STDERR_FILENO, "sentence: %s\n", error.message);
    _exit(status == OPENPI_NO_MEMORY ? 2 : 3);
}

/* A server whose allocation `fail_at` fails. Returns 1 when it is ready, else its port is 0 and *status is
 * that of its end. */
static int start(served *s, long long fail_at, int *status) {
    snprintf(s->log, sizeof s->log, "%s", scratch_path(&box, "log"));
    unlink(s->log);
    atomic_store(&shared->calls, 0);
    atomic_store(&shared->failed, 0);
    atomic_store(&shared->fail_at, fail_at);
    s->port = s->admin = 0;
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (!s->pid) be_server(s);
    for (int i = 0; i < 60000; i++) {
        char *log = served_log(s), *ready = strstr(log, "ready on ws");
        char *end = ready ? strchr(ready, '\n') : NULL;
        if (end) {
            while (end[-1] != ':') end--;
            s->port = atoi(end);
        }
        free(log);
        if (s->port) return 1;
        if (waitpid(s->pid, status, WNOHANG) == s->pid) return 0;
        served_sleep(1);
    }
    fail_msg("the server is neither ready nor ended within a minute");
    return 0;
}

/* ---- robots ----------------------------------------------------------------------------------------- */

static void must_answer(int port) {
    int fd = greet(port);
    ws_frame frame = ask(fd, &message);
    assert_memory_equal(small_actions(&frame), want, SMALL_ACTIONS);
    free(frame.data);
    close(fd);
}

/* Actions, a sentence or the end of the connection; no wrong actions. */
static void may_answer(int port) {
    char head[1024];
    int fd = ws_request(port, "/", WS_UPGRADE, head, sizeof head);
    for (int frames = 0; *head && frames < 2; frames++) {
        if (frames) ws_send(fd, WS_BINARY, 1, message.data, message.size);
        ws_frame frame = ws_receive(fd);
        if (frames && frame.opcode == WS_BINARY)
            assert_memory_equal(small_actions(&frame), want, SMALL_ACTIONS);
        free(frame.data);
        if (frame.opcode != WS_BINARY) break;
    }
    close(fd);
}

/* Its end; returns the blocks that are left. */
static long long stop(served *s) {
    served_stop(s);
    return atomic_load(&shared->left);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void each_start_ends_with_a_sentence_or_serves(void **state) {
    (void)state;
    served s;
    int status, sentences = 0, ready = 0;
    assert_true(start(&s, 0, &status));
    long long calls = atomic_load(&shared->calls);
    must_answer(s.port);
    stop(&s);
    long long step = every || calls < STARTS ? 1 : calls / STARTS;
    for (long long at = 1; at <= calls; at += step) {
        if (start(&s, at, &status)) {
            must_answer(s.port);
            stop(&s);
            ready++;
        } else {
            char *log = served_log(&s), *sentence = strstr(log, "sentence: ");
            int fine = WIFEXITED(status) && WEXITSTATUS(status) == 2;
            if (!fine || !sentence || !strstr(sentence, "memory") || strchr(sentence, '\n')[1])
                fail_msg("allocation %lld: status %#x, \"%s\"", at, (unsigned)status, log);
            free(log);
            sentences++;
        }
        if (atomic_load(&shared->left) > whole_life)
            fail_msg("allocation %lld leaves %lld blocks of %lld", at, (long long)atomic_load(&shared->left),
                     whole_life);
    }
    print_message("           %lld allocations: %d sentences, %d servers\n", calls, sentences, ready);
    assert_true(sentences > 0);
}

/* Of a server that has just started, the k-th allocation from the first connection on fails. */
static void each_request_is_answered_or_closed(void **state) {
    (void)state;
    served s;
    int status, k = 0;
    long long failed = 1;
    while (failed && k < 1000) {
        assert_true(start(&s, 0, &status));
        int files = served_descriptors(&s);
        atomic_store(&shared->fail_at, atomic_load(&shared->calls) + ++k);
        may_answer(s.port);
        failed = atomic_load(&shared->failed);
        atomic_store(&shared->fail_at, 0);
        must_answer(s.port);
        served_await_descriptors(&s, files);
        long long left = stop(&s);
        if (left > whole_life) fail_msg("allocation %d leaves %lld blocks of %lld", k, left, whole_life);
    }
    print_message("           %d allocations of a connection and its request\n", k - 1);
    assert_in_range(k - 1, 5, 999);
}

static int set_up(void **state) {
    if (open_box(state) || small_write()) return -1;
    snprintf(model, sizeof model, "%s", scratch_path(&box, "model"));
    snprintf(robot_file, sizeof robot_file, "%s", scratch_path(&box, "robot.json"));
    static const orders none;
    if (scratch_write(&box, "orders", &none, sizeof none)) return -1;
    int fd = open(scratch_path(&box, "orders"), O_RDWR);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || shared == MAP_FAILED) return -1;
    close(fd);
    small_request(0, &message);
    served s;
    int status;
    if (!start(&s, 0, &status)) return -1;
    fd = greet(s.port);
    ws_frame frame = ask(fd, &message);
    memcpy(want, small_actions(&frame), SMALL_ACTIONS);
    free(frame.data);
    close(fd);
    whole_life = stop(&s);
    return 0;
}

static int tear_down(void **state) {
    msgpack_sbuffer_destroy(&message);
    return close_box(state);
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_start_ends_with_a_sentence_or_serves),
        cmocka_unit_test(each_request_is_answered_or_closed),
    };
    every = count > 1 && !strcmp(words[1], "--every");
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
#endif
