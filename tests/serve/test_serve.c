/* labels: server threads cost */
/* What robots and the server say to each other: metadata, requests, replies, sentences, by a client made of
 * bytes. Every policy golden goes through the wire and comes back bit for bit as `openpi run` computes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/sanitizer.h"
#include "base/utf8.h"
#include "policy_golden.h"
#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "robot_message.h"
#include "aloha_requests.h"

enum { DIMS = OPENPI_ACTION_DIM, ROBOT_TEXT = 1024, MODEL_TEXT = 2048 };

/* ---- messages --------------------------------------------------------------------------------------- */

static double double_at(const uint8_t *at) {
    uint64_t bits = 0;
    double value;
    for (int i = 0; i < 8; i++) bits = bits << 8 | at[i];
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put_double(uint8_t *at, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(bits >> 8 * (7 - i));
}

/* The reply byte for byte as openpi packs it, but for its times: that of the model is part of the server's.
 * Returns its actions, inside the frame. */
static const uint8_t *check_reply(const ws_frame *frame, int horizon, int dims, int first) {
    static const uint8_t before[] = "\x83\xa7"
                                    "actions\x84\xc4\x0b__ndarray__\xc3\xc4\x04"
                                    "data\xc5";
    static const uint8_t middle[] = "\xc4\x05"
                                    "dtype\xa3<f8\xc4\x05shape\x92";
    static const uint8_t policy[] = "\xadpolicy_timing\x81\xa8infer_ms\xcb";
    static const uint8_t server[] = "\xadserver_timing";
    static const uint8_t infer[] = "\xa8infer_ms\xcb", previous[] = "\xadprev_total_ms\xcb";
    uint8_t *want = calloc(1, frame->bytes + 1024), *at = want;
    size_t bytes = (size_t)horizon * (size_t)dims * 8;
    assert_non_null(want);
    assert_int_equal(frame->opcode, WS_BINARY);
    assert_in_range(bytes, 256, 65535);
#define PUT(TEXT) (memcpy(at, TEXT, sizeof(TEXT) - 1), at += sizeof(TEXT) - 1)
#define TIME(AT) (put_double(at, double_at(frame->data + (at - want))), (AT) = double_at(at), at += 8)
    double model_ms, infer_ms, prev_ms = 1;
    PUT(before);
    *at++ = (uint8_t)(bytes >> 8);
    *at++ = (uint8_t)bytes;
    size_t actions = (size_t)(at - want);
    assert_true(frame->bytes > actions + bytes + 64);
    memcpy(at, frame->data + actions, bytes);
    at += bytes;
    PUT(middle);
    *at++ = (uint8_t)horizon;
    *at++ = (uint8_t)dims;
    PUT(policy);
    TIME(model_ms);
    PUT(server);
    *at++ = first ? 0x81 : 0x82;
    PUT(infer);
    TIME(infer_ms);
    if (!first) {
        PUT(previous);
        TIME(prev_ms);
    }
    assert_int_equal(frame->bytes, at - want);
    assert_memory_equal(frame->data, want, frame->bytes);
    assert_true(model_ms > 0 && infer_ms > model_ms && prev_ms > 0);
    free(want);
    return frame->data + actions;
}

/* ---- goldens ---------------------------------------------------------------------------------------- */

/* The options that make openpi the policy of a golden, and its noise. Writes the robot's file. */
static void golden_options(const char *name, char args[MODEL_TEXT], float **noise, int *horizon) {
    char path[512], robot[ROBOT_TEXT];
    snprintf(path, sizeof path, GOLDEN "/policy/%s/expected.safetensors", name);
    tensors *file = golden_open(path);
    json_t *kind = golden_metadata(file, "robot"), *rows = golden_metadata(file, "horizon"),
           *seed = golden_metadata(file, "seed"), *delta = golden_metadata(file, "delta");
    int pi05 = golden_flag(file, "pi05", 0);
    char *runs = delta ? json_dumps(delta, JSON_ENCODE_ANY) : NULL;
    *horizon = (int)json_integer_value(rows);
    *noise = golden_copy(file, "noise", DTYPE_F32, (int64_t)*horizon * DIMS);
    int count = snprintf(robot, sizeof robot,
                         "{\"like\": \"%s\", \"name\": \"golden\", \"horizon\": %d, "
                         "\"normalization\": \"%s\", \"prompt_state\": \"%s\", \"delta\": %s%s}",
                         json_string_value(kind), *horizon, pi05 ? "quantile" : "zscore",
                         golden_flag(file, "discrete_state", pi05) ? "on" : "off", runs ? runs : "[]",
                         golden_flag(file, "adapt_to_pi", 1) ? "" : ", \"transform\": \"none\"");
    assert_int_equal(scratch_write(&box, "robot.json", robot, (size_t)count), 0);
    snprintf(args, MODEL_TEXT,
             "--synthetic tiny:%s:%lld --robot '%s' --norm-stats '%s/policy/%s/norm_stats.json' --tokenizer "
             "'%s/tokenizer.model' --threads 2",
             pi05 ? "pi05" : "pi0", (long long)json_integer_value(seed), scratch_path(&box, "robot.json"),
             GOLDEN, name, GOLDEN);
    free(runs);
    json_decref(kind);
    json_decref(rows);
    json_decref(seed);
    json_decref(delta);
    tensors_close(file);
}

/* What `openpi run` answers: the doubles of its .npy file, to be freed. */
static double *run_golden(const char *name, const char *args, const float *noise, int horizon,
                          size_t *count) {
    char head[128], request[512];
    FILE *file = fopen(scratch_path(&box, "noise.npy"), "wb");
    assert_non_null(file);
    int length = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
                          horizon, DIMS);
    memset(head + length, ' ', sizeof head - (size_t)length);
    head[117] = '\n';
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file);
    fwrite(head, 1, 118, file);
    fwrite(noise, sizeof *noise, (size_t)horizon * DIMS, file);
    fclose(file);
    snprintf(request, sizeof request, GOLDEN "/policy/%s/request.msgpack", name);
    if (run("run %s --request '%s' --noise noise.npy --format npy --out actions.npy", args, request))
        fail_msg("openpi run: %s", err);
    size_t bytes;
    char *npy = slurp(scratch_path(&box, "actions.npy"), &bytes);
    size_t data = 10 + (uint8_t)npy[8] + ((size_t)(uint8_t)npy[9] << 8);
    *count = (bytes - data) / sizeof(double);
    double *actions = malloc(bytes - data);
    assert_non_null(actions);
    memcpy(actions, npy + data, bytes - data);
    free(npy);
    return actions;
}

static void check_golden(const char *name) {
    char args[MODEL_TEXT];
    float *noise;
    int horizon;
    size_t count;
    served server;
    msgpack_sbuffer message;
    print_message("           %s\n", name);
    golden_options(name, args, &noise, &horizon);
    double *want = run_golden(name, args, noise, horizon, &count);
    load_request(name, &message);
    add_noise(&message, noise, horizon);
    served_start(&server, &box, "%s", args);
    int fd = greet(server.port);
    for (int again = 0; again < 2; again++) {
        ws_frame frame = ask(fd, &message);
        const uint8_t *actions = check_reply(&frame, horizon, (int)count / horizon, !again);
        assert_memory_equal(actions, want, count * sizeof *want);
        free(frame.data);
    }
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&message);
    free(want);
    free(noise);
}

static int is_golden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void goldens_through_the_wire(void **state) {
    (void)state;
    struct dirent **names;
    int count = scandir(GOLDEN "/policy", &names, is_golden, alphasort);
    assert_int_equal(count, 6);
    for (int i = 0; i < count; i++) {
        check_golden(names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

/* ---- without a checkpoint --------------------------------------------------------------------------- */

#define ALOHA "--synthetic tiny --robot aloha --threads 2 --horizon 5 --steps 2"

/* Without noise of its own the first request gets what `openpi run` draws. */
static void first_noise_is_runs(void **state) {
    (void)state;
    served server;
    msgpack_sbuffer message;
    size_t bytes;
    load_request("aloha_sim", &message);
    if (run("run " ALOHA " --seed 3 --request '%s' --format npy --out a.npy",
            GOLDEN "/policy/aloha_sim/request.msgpack"))
        fail_msg("%s", err);
    char *npy = slurp(scratch_path(&box, "a.npy"), &bytes);
    served_start(&server, &box, ALOHA " --seed 3");
    int one = greet(server.port), two = greet(server.port);
    ws_frame first = ask(one, &message), second = ask(two, &message);
    const uint8_t *actions = check_reply(&first, 5, 14, 1);
    assert_memory_equal(actions, npy + bytes - 5 * 14 * 8, 5 * 14 * 8);
    assert_memory_not_equal(check_reply(&second, 5, 14, 1), actions, 5 * 14 * 8);
    free(first.data);
    free(second.data);
    free(npy);
    close(one);
    close(two);
    served_stop(&server);
    msgpack_sbuffer_destroy(&message);
}

static void metadata_bytes(void **state) {
    (void)state;
    served server;
    static const uint8_t pose[] = "\x82\xaareset_pose\x96\x00\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00"
                                  "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    static const uint8_t own[] = "\xadopenpi_server\x87\xa7version\xa5"
                                 "0.1.0\xa7horizon\x32\xaa"
                                 "action_dim\x0e\xb1max_message_bytes\xce\x00\xf4\x24\x00\xa9"
                                 "rtc_modes\xa6guided\xadrtc_max_delay\x00\xa6runner\x01";
    served_start(&server, &box, "--synthetic tiny --config pi0_aloha --steps 1 --threads 2 --norm-stats '%s'",
                 GOLDEN "/policy/aloha_sim/norm_stats.json");
    int fd = ws_open(server.port, "/any/path?at=all");
    ws_frame frame = ws_expect(fd, WS_BINARY);
    assert_int_equal(frame.bytes, sizeof pose - 1 + sizeof own - 1);
    assert_memory_equal(frame.data, pose, sizeof pose - 1);
    assert_memory_equal(frame.data + sizeof pose - 1, own, sizeof own - 1);
    free(frame.data);
    close(fd);
    served_stop(&server);
    served_start(&server, &box, ALOHA);
    fd = ws_open(server.port, "/");
    frame = ws_expect(fd, WS_BINARY);
    assert_int_equal(frame.data[0], 0x81);   /* no config, so nothing but our own map                      */
    free(frame.data);
    close(fd);
    served_stop(&server);
}

/* Each is one sentence, and the connection answers the next request. */
static void bad_requests(void **state) {
    (void)state;
    served server;
    msgpack_sbuffer good, bad;
    float noise[4 * DIMS] = {0};
    load_request("aloha_sim", &good);
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    static const struct {
        const char *bytes;
        size_t count;
        const char *part;
    } texts[] = {
        {"", 0, "request"},
        {"\xc1", 1, "request"},
        {"\x80", 1, "state"},
        {"\x81\xa5state\x93\x01\x02\x03", 11, "14"},
        {"\x81\xa6prompt\x01", 9, "state"},
        {"not msgpack at all", 18, "request"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        msgpack_sbuffer_init(&bad);
        if (texts[i].count) msgpack_sbuffer_write(&bad, texts[i].bytes, texts[i].count);
        expect_sentence(fd, &bad, texts[i].part);
        msgpack_sbuffer_destroy(&bad);
    }
    load_request("aloha_sim", &bad);
    add_noise(&bad, noise, 4);
    expect_sentence(fd, &bad, "has 4 rows, expected 5, the horizon");
    msgpack_sbuffer_destroy(&bad);
    load_request("aloha_sim", &bad);
    add_number(&bad, "openpi/dead_line", 3);
    expect_sentence(fd, &bad, "unknown key \"openpi/dead_line\"");
    msgpack_sbuffer_destroy(&bad);
    load_request("aloha_sim", &bad);
    add_number(&bad, "openpi/deadline_ms", -3);
    expect_sentence(fd, &bad, "openpi/deadline_ms");
    msgpack_sbuffer_destroy(&bad);
    ws_frame frame = ask(fd, &good);
    check_reply(&frame, 5, 14, 0);
    free(frame.data);
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&good);
}

static int is_utf8(const ws_frame *frame) {
    const char *text = (const char *)frame->data;
    uint32_t code;
    for (size_t at = 0, bytes; at < frame->bytes; at += bytes)
        if (!(bytes = utf8_decode(text + at, frame->bytes - at, &code)) || code < ' ') return 0;
    return 1;
}

/* A sentence quotes a key, or part of it: it is one line of UTF-8 all the same, or clients would hang up. */
static void quoted_keys(void **state) {
    (void)state;
    static const struct {
        const char *one;         /* repeated `times` times, it is the name of an observation's key          */
        int times;
    } names[] = {{"\xc3\xa9", 40}, {"\xf0\x9f\xa4\x96", 63}, {"openpi/\n\x1b[2J", 1},
                 {"openpi/\xc2\x85", 3}, {"openpi/\xe2\x82\xac", 9}, {"openpi/rtc/\r\n", 2}};
    served server;
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        msgpack_sbuffer message;
        msgpack_packer packer;
        char key[512] = "x";     /* for every other one, so that a cut falls elsewhere                      */
        key[i % 2] = 0;
        for (int k = 0; k < names[i / 2].times; k++) strcat(key, names[i / 2].one);
        msgpack_sbuffer_init(&message);
        msgpack_packer_init(&packer, &message, msgpack_sbuffer_write);
        msgpack_pack_map(&packer, 1);
        pack_text(&packer, key);
        pack_text(&packer, "value");
        ws_frame frame = ask(fd, &message);
        assert_int_equal(frame.opcode, WS_TEXT);
        if (!is_utf8(&frame)) fail_msg("key %zu: not one line of UTF-8: \"%s\"", i, (char *)frame.data);
        free(frame.data);
        msgpack_sbuffer_destroy(&message);
    }
    close(fd);
    served_stop(&server);
}

/* A prompt longer than the policy's tokens is answered, and its reply and the log say that it was cut; what a
 * robot sends under keys that nobody reads does not matter. */
static void a_cut_prompt_is_told(void **state) {
    (void)state;
    static const uint8_t picture[8 * 8 * 3];
    static const int shape[3] = {8, 8, 3};
    static const char key[] = "openpi/prompt_truncated\xc3";
    served server;
    served_start(&server, &box, "--synthetic tiny --robot none --horizon 8 --steps 1 --threads 1");
    int fd = greet(server.port);
    for (int times = 1; times <= 300; times += 299) {
        char prompt[300 * 5 + 1] = "";
        msgpack_sbuffer message;
        msgpack_packer packer;
        for (int i = 0; i < times; i++) strcat(prompt, "pick ");
        msgpack_sbuffer_init(&message);
        msgpack_packer_init(&packer, &message, msgpack_sbuffer_write);
        msgpack_pack_map(&packer, 5);
        pack_text(&packer, "base");
        pack_array(&packer, "uint8", shape, 3, picture, sizeof picture);
        pack_text(&packer, "state");
        msgpack_pack_array(&packer, 1);
        msgpack_pack_double(&packer, 0.5);
        pack_text(&packer, "prompt");
        pack_text(&packer, prompt);
        pack_text(&packer, "joint_names");
        msgpack_pack_array(&packer, 1);
        pack_text(&packer, "waist");
        pack_text(&packer, "nothing");
        msgpack_pack_nil(&packer);
        ws_frame frame = ask(fd, &message);
        if (frame.opcode != WS_BINARY) fail_msg("%s", (char *)frame.data);
        const uint8_t *end = frame.data + frame.bytes - (sizeof key - 1);
        assert_int_equal(!memcmp(end, key, sizeof key - 1), times > 1);
        free(frame.data);
        msgpack_sbuffer_destroy(&message);
    }
    close(fd);
    served_stop(&server);
}

/* Several requests at once, no two alike: all are answered, in order. */
static void reads_ahead_in_order(void **state) {
    (void)state;
    enum { REQUESTS = 5 };
    served server;
    msgpack_sbuffer message[REQUESTS];
    float noise[REQUESTS][5 * DIMS];
    uint8_t want[REQUESTS][5 * 14 * 8];
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    for (int i = 0; i < REQUESTS; i++) {
        openpi_noise(7, (uint64_t)i, noise[i], 5 * DIMS);
        make_aloha_request(i, &message[i]);
        add_noise(&message[i], noise[i], 5);
        ws_frame frame = ask(fd, &message[i]);
        memcpy(want[i], check_reply(&frame, 5, 14, !i), sizeof want[i]);
        free(frame.data);
    }
    for (int i = 0; i < REQUESTS; i++)
        ws_send(fd, WS_BINARY, 1, message[i].data, message[i].size);
    for (int i = 0; i < REQUESTS; i++) {
        ws_frame frame = ws_receive(fd);
        assert_memory_equal(check_reply(&frame, 5, 14, 0), want[i], sizeof want[i]);
        free(frame.data);
        msgpack_sbuffer_destroy(&message[i]);
    }
    close(fd);
    served_stop(&server);
}

/* More robots than devices, in batches and on two devices: each gets what it gets alone. No two observe the
 * same. */
static void many_robots(void **state) {
    (void)state;
    enum { ROBOTS = SANITIZED ? 9 : 12, TURNS = SANITIZED ? 2 : 4 };     /* more than fit into a call */
    static const char *const options[] = {"--max-block 8", "--device cpu,cpu",
                                          "--throughput --device cpu,cpu"};
    served server;
    msgpack_sbuffer message[ROBOTS];
    float noise[5 * DIMS];
    uint8_t want[ROBOTS][5 * 14 * 8];
    int fd[ROBOTS];
    served_start(&server, &box, ALOHA);
    int alone = greet(server.port);
    for (int r = 0; r < ROBOTS; r++) {
        openpi_noise(11, (uint64_t)r, noise, 5 * DIMS);
        make_aloha_request(r, &message[r]);
        add_noise(&message[r], noise, 5);
        ws_frame frame = ask(alone, &message[r]);
        memcpy(want[r], check_reply(&frame, 5, 14, !r), sizeof want[r]);
        free(frame.data);
    }
    close(alone);
    served_stop(&server);
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        served_start(&server, &box, ALOHA " %s", options[o]);
        for (int r = 0; r < ROBOTS; r++) fd[r] = greet(server.port);
        for (int turn = 0; turn < TURNS; turn++) {
            for (int r = 0; r < ROBOTS; r++)
                ws_send(fd[r], WS_BINARY, 1, message[r].data, message[r].size);
            for (int r = 0; r < ROBOTS; r++) {
                ws_frame frame = ws_receive(fd[r]);
                assert_memory_equal(check_reply(&frame, 5, 14, !turn), want[r], sizeof want[r]);
                free(frame.data);
            }
        }
        for (int r = 0; r < ROBOTS; r++) close(fd[r]);
        served_stop(&server);
    }
    for (int r = 0; r < ROBOTS; r++) msgpack_sbuffer_destroy(&message[r]);
}

/* Who sends what does not fit, so often that it has to rest, gets a sentence each time all the same, and
 * actions when a request fits. */
static void refused_again_and_again(void **state) {
    (void)state;
    enum { TIMES = 65 };
    served server;
    msgpack_sbuffer message;
    load_request("aloha_sim", &message);
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < TIMES; i++) ws_send(fd, WS_BINARY, 1, "\x80", 1);
        for (int i = 0; i < TIMES; i++) free(ws_expect(fd, WS_TEXT).data);
        ws_frame frame = ask(fd, &message);
        check_reply(&frame, 5, 14, 0);
        free(frame.data);
    }
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&message);
}

/* A request that waits longer than its deadline is answered by a sentence; a generous one is computed. */
static void deadlines(void **state) {
    (void)state;
    served server;
    msgpack_sbuffer soon, late;
    load_request("aloha_sim", &soon);
    load_request("aloha_sim", &late);
    add_number(&soon, "openpi/deadline_ms", 0.001);
    add_number(&late, "openpi/deadline_ms", 3600000);
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    expect_sentence(fd, &soon, "0.001 ms");
    ws_frame frame = ask(fd, &late);
    check_reply(&frame, 5, 14, 0);
    free(frame.data);
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&soon);
    msgpack_sbuffer_destroy(&late);
}

/* Fragments with a ping between them are one message; the ping is answered at once. */
static void fragments(void **state) {
    (void)state;
    served server;
    msgpack_sbuffer message;
    load_request("aloha_sim", &message);
    served_start(&server, &box, ALOHA);
    int fd = greet(server.port);
    size_t cut = message.size / 3;
    ws_send(fd, WS_BINARY, 0, message.data, cut);
    ws_send(fd, WS_PING, 1, "hello", 5);
    ws_frame pong = ws_expect(fd, WS_PONG);
    assert_string_equal((char *)pong.data, "hello");
    free(pong.data);
    ws_send(fd, 0, 0, message.data + cut, cut);
    ws_send(fd, 0, 1, message.data + 2 * cut, message.size - 2 * cut);
    ws_frame frame = ws_receive(fd);
    check_reply(&frame, 5, 14, 1);
    free(frame.data);
    close(fd);
    served_stop(&server);
    msgpack_sbuffer_destroy(&message);
}

/* Text is refused by 1003; what is announced too large by 1009, though not one byte more than a piece came.
 */
static void refused_frames(void **state) {
    (void)state;
    served server;
    char *much = calloc(1, 200000);
    assert_non_null(much);
    served_start(&server, &box, ALOHA " --max-message 100000");
    int fd = greet(server.port);
    ws_send(fd, WS_TEXT, 1, "hello", 5);
    ws_expect_close(fd, 1003);
    fd = greet(server.port);
    ws_put_head(fd, WS_BINARY, 1, 1ull << 40);
    ws_put(fd, much, 70000);
    free(ws_expect(fd, WS_CLOSE).data);
    close(fd);
    fd = greet(server.port);
    ws_send(fd, WS_BINARY, 1, much, 100001);
    ws_expect_close(fd, 1009);
    fd = greet(server.port);
    ws_send(fd, WS_BINARY, 0, much, 60000);
    ws_send(fd, 0, 1, much, 60000);
    ws_expect_close(fd, 1009);
    fd = greet(server.port);
    msgpack_sbuffer message = {.data = much, .size = 100000};
    expect_sentence(fd, &message, "request");
    close(fd);
    served_stop(&server);
    free(much);
}

static void pages(void **state) {
    (void)state;
    served server;
    char head[1024], body[4] = "";
    served_start(&server, &box, ALOHA);
    static const char *const ways[] = {"", WS_UPGRADE};
    for (size_t i = 0; i < 2; i++) {
        int fd = ws_request(server.port, "/healthz", ways[i], head, sizeof head);
        assert_memory_equal(head, "HTTP/1.1 200 OK\r\n", 17);
        assert_non_null(strstr(head, "Content-Type: text/plain\r\n"));
        assert_non_null(strstr(head, "Content-Length: 3\r\n"));
        assert_true(ws_get(fd, body, 3));
        assert_string_equal(body, "OK\n");
        close(fd);
    }
    int fd = ws_request(server.port, "/healthz/", "", head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 426 ", 13);
    close(fd);
    fd = ws_open(server.port, "/healthz?x=1");
    free(ws_expect(fd, WS_BINARY).data);
    close(fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_bytes),      cmocka_unit_test(goldens_through_the_wire),
        cmocka_unit_test(first_noise_is_runs), cmocka_unit_test(bad_requests),
        cmocka_unit_test(reads_ahead_in_order), cmocka_unit_test(fragments),
        cmocka_unit_test(many_robots),         cmocka_unit_test(refused_again_and_again),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(refused_frames),      cmocka_unit_test(pages),
        cmocka_unit_test(quoted_keys),         cmocka_unit_test(a_cut_prompt_is_told),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
