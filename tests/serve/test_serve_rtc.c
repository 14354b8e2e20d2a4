/* labels: server threads cost */
/* Real-time chunking over the wire, against `openpi run --previous`, bit for bit: a connection's own last
 * chunk leads the next one, in batches with other robots too, and is forgotten with the connection. */
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

enum {
    DIMS = OPENPI_ACTION_DIM,
    H = 6,
    ARMS = 14,
    NUMBERS = H * DIMS,          /* numbers in the longest actions                                         */
    JOINTS_BYTES = ARMS * 8,
    DELAY = 3,                   /* the longest that the trained checkpoint takes                          */
};

/* An ALOHA whose arms' actions are relative to the state: what is left of a chunk changes with the state. */
static const char robot[] = "{\"like\": \"aloha\", \"name\": \"relative\", \"horizon\": 6, "
                            "\"normalization\": \"zscore\", \"prompt_state\": \"off\", "
                            "\"delta\": [6, -1, 6, -1], \"transform\": \"none\"}";
static char model[1024];         /* the options of run and serve                                           */
static int action_dim;           /* action dimensions of the model's robot                                 */
static int cut;                  /* 1: replies are guided, whose weight of 10 is cut to --steps 2          */
static void (*observe)(int number, msgpack_sbuffer *message);   /* makes its requests */

static void observe_aloha(int number, msgpack_sbuffer *message);

static int set_up(void **state) {
    if (open_box(state)) return -1;
    assert_int_equal(scratch_write(&box, "robot.json", robot, sizeof robot - 1), 0);
    snprintf(model, sizeof model,
             "--synthetic tiny --robot '%s' --norm-stats '" GOLDEN "/policy/aloha_sim/norm_stats.json' "
             "--tokenizer '" GOLDEN "/tokenizer.model' --threads 2 --steps 2",
             scratch_path(&box, "robot.json"));
    action_dim = ARMS;
    cut = 1;
    observe = observe_aloha;
    return 0;
}

static int tear_down(void **state) {
    int end = close_box(state);
    out = err = NULL;
    return end;
}

/* ---- requests --------------------------------------------------------------------------------------- */

static void pack_json(msgpack_packer *packer, json_t *value) {
    const char *key;
    json_t *entry;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        msgpack_pack_map(packer, json_object_size(value));
        json_object_foreach(value, key, entry) {
            pack_text(packer, key);
            pack_json(packer, entry);
        }
        break;
    case JSON_STRING: pack_text(packer, json_string_value(value)); break;
    case JSON_INTEGER: msgpack_pack_int64(packer, json_integer_value(value)); break;
    case JSON_REAL: msgpack_pack_double(packer, json_real_value(value)); break;
    default: msgpack_pack_nil(packer);
    }
}

static void add_rtc(msgpack_sbuffer *message, const char *json) {
    msgpack_sbuffer entry;
    msgpack_packer packer;
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    if (!value) fail_msg("not JSON: %s", json);
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, "openpi/rtc");
    pack_json(&packer, value);
    add_entry(message, &entry);
    msgpack_sbuffer_destroy(&entry);
    json_decref(value);
}

/* Adds `more` to the first joint. */
static void move(msgpack_sbuffer *message, double more) {
    static const char head[] = "\xa5state\x84";
    static const char data[] = "data\xc4\x70";
    double joint;
    size_t at = 0;
    while (memcmp(message->data + at, head, sizeof head - 1)) at++;
    while (memcmp(message->data + at, data, sizeof data - 1)) at++;
    at += sizeof data - 1;
    assert_true(at + JOINTS_BYTES < message->size);
    memcpy(&joint, message->data + at, sizeof joint);
    joint += more;
    memcpy(message->data + at, &joint, sizeof joint);
}

static void observe_aloha(int number, msgpack_sbuffer *message) {
    load_request("aloha_sim", message);
    move(message, 0.01 * number);
}

/* As a synthetic LeRobot checkpoint names its features. */
static void observe_lerobot(int number, msgpack_sbuffer *message) {
    static const uint8_t picture[8 * 8 * 3] = {200, 100, 50};
    static const int shape[3] = {8, 8, 3}, length = DIMS;
    double state[DIMS];
    msgpack_packer packer;
    for (int i = 0; i < DIMS; i++) state[i] = 0.01 * (i + number);
    msgpack_sbuffer_init(message);
    msgpack_packer_init(&packer, message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 3);
    pack_text(&packer, "observation.images.base_0_rgb");
    pack_array(&packer, "|u1", shape, 3, picture, sizeof picture);
    pack_text(&packer, "observation.state");
    pack_array(&packer, "<f8", &length, 1, state, sizeof state);
    pack_text(&packer, "task");
    pack_text(&packer, "go");
}

static void make_noise(int number, float noise[H * DIMS]) {
    openpi_noise(5, (uint64_t)number, noise, (size_t)H * DIMS);
}

/* Observation `number`: a state and noise of its own. `rtc` may be NULL. */
static msgpack_sbuffer request(int number, const char *rtc) {
    msgpack_sbuffer message;
    float noise[H * DIMS];
    observe(number, &message);
    make_noise(number, noise);
    add_noise(&message, noise, H);
    if (rtc) add_rtc(&message, rtc);
    return message;
}

/* ---- what must come --------------------------------------------------------------------------------- */

static void write_noise(int number) {
    float noise[H * DIMS];
    char bytes[128 + sizeof noise] = "\x93NUMPY\x01\x00\x76\x00";
    make_noise(number, noise);
    memset(bytes + 10, ' ', 118);
    int length = snprintf(bytes + 10, 118, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", H,
                          DIMS);
    bytes[10 + length] = ' ';
    bytes[127] = '\n';
    memcpy(bytes + 128, noise, sizeof noise);
    assert_int_equal(scratch_write(&box, "noise.npy", bytes, sizeof bytes), 0);
}

static void read_actions(double actions[NUMBERS]) {
    size_t bytes, wanted = (size_t)(H * action_dim) * sizeof *actions;
    char *npy = slurp(scratch_path(&box, "actions.npy"), &bytes);
    assert_int_equal(bytes, 128 + wanted);
    memset(actions, 0, NUMBERS * sizeof *actions);
    memcpy(actions, npy + 128, wanted);
    free(npy);
}

/* `openpi run` of observation `number`. It keeps the chunk in "NUMBER.npy". */
static void expect(int number, const char *options, double actions[NUMBERS]) {
    msgpack_sbuffer message = request(number, NULL);
    write_noise(number);
    assert_int_equal(scratch_write(&box, "request.msgpack", message.data, message.size), 0);
    if (run("run %s --request request.msgpack --noise noise.npy --format npy --out actions.npy "
            "--keep %d.npy %s", model, number, options))
        fail_msg("openpi run %s: %s", options, err);
    read_actions(actions);
    msgpack_sbuffer_destroy(&message);
}

/* ---- replies ---------------------------------------------------------------------------------------- */

static const msgpack_object *entry(const msgpack_object *map, const char *key) {
    size_t length = strlen(key);
    for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const msgpack_object *name = &map->via.map.ptr[i].key; /* str and bin lie alike */
        if (name->via.str.size == length && !memcmp(name->via.str.ptr, key, length))
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}

enum { NOT_ASKED = -2, NOT_APPLIED = -1 };

/* `delay`: what the reply says of real-time chunking, or one of the above. */
static void take_reply(int fd, int delay, const double want[NUMBERS]) {
    ws_frame frame = ws_receive(fd);
    msgpack_unpacked unpacked;
    if (frame.opcode != WS_BINARY) fail_msg("opcode %d, \"%s\"", frame.opcode, (char *)frame.data);
    msgpack_unpacked_init(&unpacked);
    assert_int_equal(msgpack_unpack_next(&unpacked, (char *)frame.data, frame.bytes, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    const msgpack_object *reply = &unpacked.data, *rtc = entry(reply, "rtc"),
                         *data = entry(entry(reply, "actions"), "data");
    assert_int_equal(reply->via.map.size, delay == NOT_ASKED ? 3 : 4);
    if (delay == NOT_ASKED) {
        assert_null(rtc);
    } else {
        assert_non_null(rtc);
        assert_int_equal(rtc->via.map.size, cut && delay >= 0 ? 3 : 2);
        if (cut && delay >= 0) assert_int_equal(entry(rtc, "max_weight")->via.u64, 2);
        assert_int_equal(entry(rtc, "applied")->type, MSGPACK_OBJECT_BOOLEAN);
        assert_int_equal(entry(rtc, "applied")->via.boolean, delay >= 0);
        assert_int_equal(entry(rtc, "delay")->type, MSGPACK_OBJECT_POSITIVE_INTEGER);
        assert_int_equal(entry(rtc, "delay")->via.u64, delay < 0 ? 0 : delay);
    }
    assert_int_equal(data->via.bin.size, (size_t)(H * action_dim) * sizeof *want);
    assert_memory_equal(data->via.bin.ptr, want, data->via.bin.size);
    msgpack_unpacked_destroy(&unpacked);
    free(frame.data);
}

static void send_request(int fd, int number, const char *rtc) {
    msgpack_sbuffer message = request(number, rtc);
    ws_send(fd, WS_BINARY, 1, message.data, message.size);
    msgpack_sbuffer_destroy(&message);
}

static void must_answer(int fd, int number, const char *rtc, int delay, const double want[NUMBERS]) {
    send_request(fd, number, rtc);
    take_reply(fd, delay, want);
}

static void must_refuse_rtc(int fd, const char *rtc, const char *part) {
    msgpack_sbuffer message = request(9, rtc);
    expect_sentence(fd, &message, part);
    msgpack_sbuffer_destroy(&message);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* Every chunk leads the next one, with or without "openpi/rtc" of its own; nothing left, nothing applied. */
static void follows_the_last_chunk(void **state) {
    (void)state;
    served server;
    double plain[5][NUMBERS], second[NUMBERS], third[NUMBERS], late[NUMBERS];
    for (int i = 0; i < 5; i++) expect(i, "", plain[i]);
    expect(1, "--previous 0.npy --rtc guided --executed 3 --delay 1", late);
    expect(1, "--previous 0.npy --rtc guided --executed 2 --delay 1", second);
    expect(2, "--previous 1.npy --rtc guided --executed 0 --delay 2 --overlap 4 --schedule exp "
              "--max-weight 2.5", third);
    assert_memory_not_equal(second, late, sizeof second);
    assert_memory_not_equal(second, plain[1], sizeof second);
    served_start(&server, &box, "%s", model);
    int fd = greet(server.port);
    must_answer(fd, 0, NULL, NOT_ASKED, plain[0]);
    must_answer(fd, 1, "{\"executed\": 2, \"delay\": 1}", 1, second);
    must_answer(fd, 2, "{\"executed\": 0, \"delay\": 2, \"horizon\": 4, \"schedule\": \"exp\", "
                       "\"max_weight\": 2.5, \"mode\": \"guided\"}", 2, third);
    must_answer(fd, 3, "{\"executed\": 6, \"delay\": 1}", NOT_APPLIED, plain[3]);
    must_answer(fd, 4, "{\"executed\": 100000, \"delay\": 0}", NOT_APPLIED, plain[4]);
    must_answer(fd, 0, NULL, NOT_ASKED, plain[0]);
    must_answer(fd, 1, "{\"executed\": 3, \"delay\": 1}", 1, late);
    close(fd);
    served_stop(&server);
}

/* The first request of a connection has nothing to follow on from, but the second has, also where both were
 * sent at once. Another connection, before or after, changes nothing. */
static void a_connection_forgets(void **state) {
    (void)state;
    served server;
    double plain[2][NUMBERS], second[NUMBERS];
    for (int i = 0; i < 2; i++) expect(i, "", plain[i]);
    expect(1, "--previous 0.npy --rtc guided --executed 2 --delay 1", second);
    served_start(&server, &box, "%s", model);
    for (int i = 0; i < 3; i++) {
        int fd = greet(server.port);
        send_request(fd, 0, "{\"executed\": 2, \"delay\": 1}");
        send_request(fd, 1, "{\"executed\": 2, \"delay\": 1}");
        take_reply(fd, NOT_APPLIED, plain[0]);
        take_reply(fd, 1, second);
        close(fd);
    }
    served_stop(&server);
}

/* Robots that are computed in one batch, guided and plain ones: each follows its own chunk. */
static void robots_do_not_see_each_other(void **state) {
    (void)state;
    enum { ROBOTS = 4, TURNS = 3 };
    static const char *const asks[ROBOTS] = {"{\"executed\": 2, \"delay\": 1}",
                                             "{\"executed\": 1, \"delay\": 2}", NULL,
                                             "{\"executed\": 4, \"delay\": 0}"};
    static const int delays[ROBOTS] = {1, 2, NOT_ASKED, 0}, executed[ROBOTS] = {2, 1, 0, 4};
    served server;
    double first[ROBOTS][NUMBERS], next[ROBOTS][NUMBERS];
    int fd[ROBOTS];
    for (int r = 0; r < ROBOTS; r++) {
        char options[200];
        expect(r, "", first[r]);
        snprintf(options, sizeof options, "--previous %d.npy --rtc guided --executed %d --delay %d", r,
                 executed[r], delays[r]);
        expect(r + ROBOTS, asks[r] ? options : "", next[r]);
    }
    served_start(&server, &box, "%s --max-block 8", model);
    for (int r = 0; r < ROBOTS; r++) fd[r] = greet(server.port);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int r = 0; r < ROBOTS; r++) send_request(fd[r], r, NULL);
        for (int r = 0; r < ROBOTS; r++) take_reply(fd[r], NOT_ASKED, first[r]);
        for (int r = 0; r < ROBOTS; r++) send_request(fd[r], r + ROBOTS, asks[r]);
        for (int r = ROBOTS; r-- > 0;) take_reply(fd[r], delays[r], next[r]);
    }
    for (int r = 0; r < ROBOTS; r++) close(fd[r]);
    served_stop(&server);
}

/* Each is one sentence; the connection lives, and its chunk is as it was. */
static void bad_values(void **state) {
    (void)state;
    static const struct {
        const char *rtc, *part;
    } cases[] = {
        {"3", "\"openpi/rtc\" of the request is a number, expected a map"},
        {"\"guided\"", "\"openpi/rtc\" of the request is text, expected a map"},
        {"{\"delay\": 1}", "has no \"executed\""},
        {"{\"executed\": 1}", "has no \"delay\""},
        {"{\"executed\": 1, \"delay\": null}", "has no \"delay\""},
        {"{\"mode\": \"guided\"}", "has no \"executed\""},
        {"{\"executed\": -1, \"delay\": 1}", "\"openpi/rtc/executed\" of the request is -1, expected"},
        {"{\"executed\": 1.5, \"delay\": 1}", "executed\" of the request is 1.5, expected a whole number"},
        {"{\"executed\": \"two\", \"delay\": 1}", "executed\" of the request is text"},
        {"{\"executed\": 1, \"delay\": -1}", "delay\" of the request is -1"},
        {"{\"executed\": 1, \"delay\": 6}", "delay\" of the request is 6, expected 0 to 5"},
        {"{\"executed\": 1, \"delay\": 64}", "delay\" of the request is 64"},
        {"{\"executed\": 1, \"delay\": 1, \"horizon\": 0}", "horizon\" of the request is 0"},
        {"{\"executed\": 1, \"delay\": 1, \"horizon\": 7}", "horizon\" of the request is 7, expected 1 to 6"},
        {"{\"executed\": 1, \"delay\": 1, \"schedule\": \"cosine\"}",
         "is \"cosine\", expected one of zeros, ones, linear, exp"},
        {"{\"executed\": 1, \"delay\": 1, \"schedule\": 1}", "schedule\" of the request is a number"},
        {"{\"executed\": 1, \"delay\": 1, \"max_weight\": 0}", "max_weight\" of the request is 0"},
        {"{\"executed\": 1, \"delay\": 1, \"max_weight\": \"x\"}", "max_weight\" of the request is text"},
        {"{\"executed\": 1, \"delay\": 1, \"mode\": \"soft\"}", "is \"soft\", expected one of guided"},
        {"{\"executed\": 1, \"delay\": 1, \"mode\": \"vjp\"}", "vjp, which needs a backward pass"},
        {"{\"executed\": 1, \"delay\": 1, \"mode\": \"trained\"}", "was not trained for it, expected guided"},
        {"{\"executed\": 1, \"delay\": 1, \"steps\": 1}", "unknown entry \"steps\", known are executed"},
    };
    served server;
    double first[NUMBERS], second[NUMBERS];
    expect(0, "", first);
    expect(1, "--previous 0.npy --rtc guided --executed 2 --delay 1", second);
    served_start(&server, &box, "%s", model);
    int fd = greet(server.port);
    must_refuse_rtc(fd, cases[0].rtc, cases[0].part);
    must_answer(fd, 0, NULL, NOT_ASKED, first);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must_refuse_rtc(fd, cases[i].rtc, cases[i].part);
        must_answer(fd, 1, "{\"executed\": 2, \"delay\": 1}", 1, second);
        must_answer(fd, 0, NULL, NOT_ASKED, first);
    }
    close(fd);
    served_stop(&server);
}

/* A checkpoint that was trained for it: the first rows are given, where enough steps are left. */
static void trained(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    served server;
    double plain[4][NUMBERS], given[NUMBERS], guided[NUMBERS];
    WORKS(openpi_synthetic_parse("tiny:pi05", &synthetic, &error));
    synthetic.lerobot = 1;
    synthetic.rtc_max_delay = DELAY;
    WORKS(openpi_synthetic_write(&synthetic, scratch_path(&box, "trained"), 0, 2, NULL, NULL, &error));
    snprintf(model, sizeof model, "'%s' --threads 2 --steps 2 --horizon %d", scratch_path(&box, "trained"),
             H);
    action_dim = DIMS;
    cut = 0;
    observe = observe_lerobot;
    for (int i = 0; i < 4; i++) expect(i, "", plain[i]);
    expect(1, "--previous 0.npy --rtc guided --executed 3 --delay 3", guided);
    expect(1, "--previous 0.npy --rtc trained --executed 3 --delay 3", given);
    assert_memory_not_equal(given, guided, sizeof given);
    served_start(&server, &box, "%s", model);
    int fd = ws_open(server.port, "/");
    ws_frame about = ws_expect(fd, WS_BINARY);
    static const char end[] = "\xa9rtc_modes\xaeguided,trained\xadrtc_max_delay\x03\xa6runner\x01";
    assert_memory_equal(about.data + about.bytes - (sizeof end - 1), end, sizeof end - 1);
    free(about.data);
    must_answer(fd, 0, NULL, NOT_ASKED, plain[0]);
    must_answer(fd, 1, "{\"executed\": 3, \"delay\": 3, \"mode\": \"trained\"}", 3, given);
    must_refuse_rtc(fd, "{\"executed\": 0, \"delay\": 4, \"mode\": \"trained\"}",
                    "is 4, expected 0 to 3: the checkpoint was trained for no more");
    must_answer(fd, 2, "{\"executed\": 4, \"delay\": 3, \"mode\": \"trained\"}", NOT_APPLIED, plain[2]);
    must_answer(fd, 3, "{\"executed\": 0, \"delay\": 0, \"mode\": \"trained\"}", NOT_APPLIED, plain[3]);
    must_answer(fd, 0, NULL, NOT_ASKED, plain[0]);
    cut = 1;
    must_answer(fd, 1, "{\"executed\": 3, \"delay\": 3}", 3, guided);
    close(fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(follows_the_last_chunk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_connection_forgets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(robots_do_not_see_each_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(trained, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
