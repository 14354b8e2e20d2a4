/* labels: server threads cost */
/* Several chunks of one observation, and a prefix that is kept, over the wire: bit for bit the actions of as
 * many plain requests, whatever memory the server has for either, and never of another robot's pictures. */
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
#include "admin_client.h"
#include "robot_message.h"
#include "aloha_requests.h"

enum { H = 4, ARMS = 14, CHUNK = H * ARMS * (int)sizeof(double), MOST = 5, NOISES = H * OPENPI_ACTION_DIM };

#define MODEL "--synthetic tiny --robot aloha --horizon 4 --steps 2 --threads 2 "

/* Noises first … first+count-1 in one array; count 0: one, without a dimension for chunks. */
static void add_noises(msgpack_sbuffer *message, int first, int count) {
    float noise[MOST * NOISES];
    int all = count ? count : 1;
    const int shape[3] = {all, H, OPENPI_ACTION_DIM};
    msgpack_sbuffer entry;
    msgpack_packer packer;
    for (int i = 0; i < all; i++) openpi_noise(9, (uint64_t)(first + i), noise + i * NOISES, NOISES);
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, "openpi/noise");
    pack_array(&packer, "<f4", count ? shape : shape + 1, count ? 3 : 2, noise,
               (size_t)all * NOISES * sizeof *noise);
    add_entry(message, &entry);
    msgpack_sbuffer_destroy(&entry);
}

static msgpack_sbuffer request(int robot, int noise, int samples) {
    msgpack_sbuffer message;
    make_aloha_request(3 * robot + 1, &message);
    add_noises(&message, noise, samples);
    if (samples) add_number(&message, "openpi/samples", samples);
    return message;
}

/* The numbers of a reply's actions, [count] bytes. */
static void take_actions(int fd, uint8_t *actions, size_t count) {
    static const char data[] = "\xc4\x04" "data";
    ws_frame frame = ws_receive(fd);
    if (frame.opcode != WS_BINARY) fail_msg("opcode %d, \"%s\"", frame.opcode, (char *)frame.data);
    size_t at = 0;
    while (memcmp(frame.data + at, data, sizeof data - 1)) at++;
    at += sizeof data - 1;
    at += frame.data[at] == 0xc4 ? 2 : frame.data[at] == 0xc5 ? 3 : 5;
    assert_true(at + count < frame.bytes);
    memcpy(actions, frame.data + at, count);
    static const char dtype[] = "\xc4\x05" "dtype";            /* they end where the array's type begins   */
    assert_memory_equal(frame.data + at + count, dtype, sizeof dtype - 1);
    free(frame.data);
}

static void ask_actions(int fd, int robot, int noise, int samples, uint8_t *actions) {
    msgpack_sbuffer message = request(robot, noise, samples);
    ws_send(fd, WS_BINARY, 1, message.data, message.size);
    take_actions(fd, actions, (size_t)(samples ? samples : 1) * CHUNK);
    msgpack_sbuffer_destroy(&message);
}

/* A server that keeps nothing and computes one chunk a call. */
static void plain(int robots, uint8_t expected[][MOST][CHUNK]) {
    served server;
    served_start(&server, &box, MODEL "--kept-prefixes 0");
    int fd = greet(server.port);
    for (int r = 0; r < robots; r++)
        for (int i = 0; i < MOST; i++) ask_actions(fd, r, i, 0, expected[r][i]);
    close(fd);
    served_stop(&server);
}

static void chunks_are_those_of_plain_requests(void **state) {
    static const char *const servers[] = {"", "--samples 3", "--samples 5 --kept-prefixes 0",
                                          "--max-block 2 --kept-prefixes 2"};
    static uint8_t expected[2][MOST][CHUNK], actions[MOST][CHUNK];
    (void)state;
    plain(2, expected);
    assert_memory_not_equal(expected[0][0], expected[0][1], CHUNK);
    for (size_t s = 0; s < sizeof servers / sizeof *servers; s++) {
        served server;
        served_start(&server, &box, MODEL "%s", servers[s]);
        int fd = greet(server.port);
        for (int samples = MOST; samples >= 1; samples -= 4)
            for (int robot = 0; robot < 2; robot++) {
                ask_actions(fd, robot, 0, samples, actions[0]);
                assert_memory_equal(actions, expected[robot], (size_t)samples * CHUNK);
            }
        ask_actions(fd, 0, 4, 0, actions[0]);      /* the job's memory is of one chunk again               */
        assert_memory_equal(actions, expected[0][4], CHUNK);
        close(fd);
        served_stop(&server);
    }
}

/* Robots in turn on connections of their own: each has its own actions, and its prefix once. */
static void each_connection_has_its_prefix(void **state) {
    enum { ROBOTS = 3, TURNS = 3 };
    static const struct { const char *options; double kept; } servers[] = {
        {"", 0}, {"--kept-prefixes 3", ROBOTS * (TURNS - 1)}, {"--kept-prefixes 0", 0}};
    static uint8_t expected[ROBOTS][MOST][CHUNK], actions[CHUNK];
    (void)state;
    plain(ROBOTS, expected);
    for (size_t s = 0; s < sizeof servers / sizeof *servers; s++) {
        served server;
        int fd[ROBOTS];
        served_start(&server, &box, MODEL "--admin 127.0.0.1:0 %s", servers[s].options);
        for (int r = 0; r < ROBOTS; r++) fd[r] = greet(server.port);
        for (int turn = 0; turn < TURNS; turn++)
            for (int r = 0; r < ROBOTS; r++) {
                ask_actions(fd[r], r, turn, 0, actions);
                assert_memory_equal(actions, expected[r][turn], CHUNK);
            }
        metric_await(server.admin, "openpi_prefixes_kept_total", servers[s].kept);
        for (int turn = 0; turn < TURNS; turn++) {     /* one connection, whose pictures change            */
            ask_actions(fd[0], turn % 2, turn, 0, actions);
            assert_memory_equal(actions, expected[turn % 2][turn], CHUNK);
        }
        for (int r = 0; r < ROBOTS; r++) close(fd[r]);
        served_stop(&server);
    }
}

/* ---- several observations in one message ------------------------------------------------------------ */

enum { ROBOTS = 5 };

/* A list of the requests of these robots, each for `samples` chunks, 0: not said; `broken`: one of them has
 * no state. */
static msgpack_sbuffer list_of(int robots, int broken, int samples) {
    msgpack_sbuffer list;
    msgpack_packer packer;
    msgpack_sbuffer_init(&list);
    msgpack_packer_init(&packer, &list, msgpack_sbuffer_write);
    msgpack_pack_array(&packer, (size_t)robots);
    for (int r = 0; r < robots; r++) {
        msgpack_sbuffer one = request(r, r, samples);
        if (r == broken) {
            size_t at = 0;
            while (memcmp(one.data + at, "\xa5" "state", 6)) at++;
            one.data[at + 1] = 'S';
        }
        msgpack_sbuffer_write(&list, one.data, one.size);
        msgpack_sbuffer_destroy(&one);
    }
    return list;
}

/* The same observations as arrays with a dimension for the robots before the others; for more samples than
 * MOST without noise. */
static msgpack_sbuffer arrays_of(int robots, int samples) {
    static uint8_t pictures[ROBOTS][3 * 240 * 320];
    double states[ROBOTS][ARMS];
    float noises[ROBOTS * MOST][NOISES];
    int noisy = samples <= MOST, chunks = samples && noisy ? samples : 1, rank = samples ? 4 : 3;
    const int picture[4] = {robots, 3, 240, 320}, state[2] = {robots, ARMS},
              noise[] = {robots, H, OPENPI_ACTION_DIM}, several[] = {robots, samples, H, OPENPI_ACTION_DIM};
    msgpack_sbuffer message;
    msgpack_packer packer;
    for (int r = 0; r < robots; r++) {
        int number = 3 * r + 1;
        for (size_t i = 0; i < sizeof *pictures; i++)
            pictures[r][i] = (uint8_t)((size_t)(3 * number + 1) * i / 64 + (size_t)(3 * number) * 9);
        for (int i = 0; i < ARMS; i++) states[r][i] = 0.02 * (i + 3 * number);
        for (int c = 0; c < chunks; c++)
            openpi_noise(9, (uint64_t)(r + c), noises[r * chunks + c], NOISES);
    }
    msgpack_sbuffer_init(&message);
    msgpack_packer_init(&packer, &message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, (size_t)(4 + (samples > 0) + noisy));
    pack_text(&packer, "openpi/batch");
    msgpack_pack_int(&packer, robots);
    if (samples) {
        pack_text(&packer, "openpi/samples");
        msgpack_pack_int(&packer, samples);
    }
    pack_text(&packer, "images");
    msgpack_pack_map(&packer, 1);
    pack_text(&packer, "cam_high");
    pack_array(&packer, "|u1", picture, 4, pictures, (size_t)robots * sizeof *pictures);
    pack_text(&packer, "state");
    pack_array(&packer, "<f8", state, 2, states, (size_t)robots * sizeof *states);
    if (noisy) pack_text(&packer, "openpi/noise");
    if (noisy)
        pack_array(&packer, "<f4", samples ? several : noise, rank, noises,
                   (size_t)(robots * chunks) * sizeof *noises);
    pack_text(&packer, "prompt");
    msgpack_pack_array(&packer, (size_t)robots);
    for (int r = 0; r < robots; r++) {
        char prompt[100];
        int number = 3 * r + 1;
        snprintf(prompt, sizeof prompt, "put block %d into the box%.*s", number, number % 4 * 6,
                 " and then close it");
        pack_text(&packer, prompt);
    }
    return message;
}

/* Each robot alone, with the noise of its number. */
static void each_alone(uint8_t expected[ROBOTS][CHUNK]) {
    served server;
    served_start(&server, &box, MODEL "--kept-prefixes 0");
    int fd = greet(server.port);
    for (int r = 0; r < ROBOTS; r++) ask_actions(fd, r, r, 0, expected[r]);
    close(fd);
    served_stop(&server);
}

static void ask_list(int fd, const msgpack_sbuffer *message, size_t count, const void *expected) {
    static uint8_t actions[ROBOTS * MOST][CHUNK];
    assert_true(count <= sizeof actions);
    ws_send(fd, WS_BINARY, 1, message->data, message->size);
    take_actions(fd, actions[0], count);
    assert_memory_equal(actions, expected, count);
}

static const uint8_t *find(const ws_frame *frame, const char *text, size_t from) {
    size_t length = strlen(text);
    for (size_t at = from; at + length <= frame->bytes; at++)
        if (!memcmp(frame->data + at, text, length)) return frame->data + at;
    fail_msg("the reply has no %s", text);
    return NULL;
}

/* Robot `broken` has nil in its place and a sentence under its number, the others what they get alone: arrays
 * of expected[robots][bytes]. */
static void ask_broken(int fd, const msgpack_sbuffer *message, int robots, int broken, size_t bytes,
                       const uint8_t *expected, const char *sentence) {
    ws_frame frame = ask(fd, message);
    assert_int_equal(frame.opcode, WS_BINARY);
    size_t at = (size_t)(find(&frame, "\xa7" "actions", 0) - frame.data) + 8;
    assert_int_equal(frame.data[at++], 0x90 + robots);
    for (int r = 0; r < robots; r++) {
        if (r == broken) {
            assert_int_equal(frame.data[at++], 0xc0);
            continue;
        }
        const uint8_t *type = find(&frame, "\xc4\x05" "dtype", at);
        assert_memory_equal(type - bytes, expected + (size_t)r * bytes, bytes);
        at = (size_t)(find(&frame, "\xc4\x05" "shape", at) - frame.data) + 7;
        at += 1 + (size_t)(frame.data[at] & 15);               /* sizes below 128                          */
    }
    char number[4] = {(char)0xa1, (char)('0' + broken)};
    find(&frame, number, (size_t)(find(&frame, "openpi/errors", at) - frame.data));
    find(&frame, sentence, at);
    free(frame.data);
}

static const char no_state[] = "the request has no \"state\"";

/* In batches of one, of two, and beside another robot; as a list and as arrays. */
static void observations_are_as_alone(void **state) {
    static const char *const servers[] = {"", "--max-block 1 --kept-prefixes 2", "--max-block 2"};
    static uint8_t expected[ROBOTS][CHUNK], actions[CHUNK];
    (void)state;
    each_alone(expected);
    for (size_t s = 0; s < sizeof servers / sizeof *servers; s++) {
        served server;
        served_start(&server, &box, MODEL "%s", servers[s]);
        int fd = greet(server.port), other = greet(server.port);
        msgpack_sbuffer list = list_of(ROBOTS, -1, 0), arrays = arrays_of(ROBOTS, 0), one = request(2, 2, 0);
        ws_send(other, WS_BINARY, 1, one.data, one.size);
        ask_list(fd, &list, sizeof expected, expected);
        ask_list(fd, &arrays, sizeof expected, expected);
        take_actions(other, actions, CHUNK);
        assert_memory_equal(actions, expected[2], CHUNK);
        for (int broken = 0; broken < ROBOTS; broken += 2) {
            msgpack_sbuffer_destroy(&list);
            list = list_of(ROBOTS, broken, 0);
            ask_broken(fd, &list, ROBOTS, broken, CHUNK, expected[0], no_state);
        }
        ask_actions(fd, 1, 1, 0, actions);
        assert_memory_equal(actions, expected[1], CHUNK);
        msgpack_sbuffer_destroy(&list);
        msgpack_sbuffer_destroy(&arrays);
        msgpack_sbuffer_destroy(&one);
        close(fd);
        close(other);
        served_stop(&server);
    }
}

/* The second of two observations asks for other chunks than the first. */
static void ask_other_samples(int fd, int samples, const uint8_t *expected) {
    msgpack_sbuffer list, one = request(0, 0, samples), other;
    msgpack_packer packer;
    make_aloha_request(4, &other);
    add_number(&other, "openpi/samples", samples - 1);
    msgpack_sbuffer_init(&list);
    msgpack_packer_init(&packer, &list, msgpack_sbuffer_write);
    msgpack_pack_array(&packer, 2);
    msgpack_sbuffer_write(&list, one.data, one.size);
    msgpack_sbuffer_write(&list, other.data, other.size);
    ask_broken(fd, &list, 2, 1, (size_t)samples * CHUNK, expected,
               "\"openpi/samples\" of the request is 1, expected 2 as of the observations before it");
    msgpack_sbuffer_destroy(&list);
    msgpack_sbuffer_destroy(&one);
    msgpack_sbuffer_destroy(&other);
}

/* Two chunks of each of three observations, with the noises r and r+1 of robot r, whatever the server
 * computes together; one observation that does not fit, or asks for another number. */
static void observations_with_several_chunks(void **state) {
    enum { MANY = 3, EACH = 2 };
    static const char *const servers[] = {"", "--samples 2 --max-block 4 --kept-prefixes 0"};
    static uint8_t plain_ones[MANY][MOST][CHUNK], expected[MANY][EACH][CHUNK], actions[CHUNK];
    (void)state;
    plain(MANY, plain_ones);
    for (int r = 0; r < MANY; r++) memcpy(expected[r], plain_ones[r][r], sizeof expected[r]);
    for (size_t s = 0; s < sizeof servers / sizeof *servers; s++) {
        served server;
        served_start(&server, &box, MODEL "%s", servers[s]);
        int fd = greet(server.port);
        msgpack_sbuffer list = list_of(MANY, -1, EACH), arrays = arrays_of(MANY, EACH);
        ask_list(fd, &list, sizeof expected, expected);
        ask_list(fd, &arrays, sizeof expected, expected);
        msgpack_sbuffer_destroy(&list);
        list = list_of(MANY, 1, EACH);
        ask_broken(fd, &list, MANY, 1, sizeof *expected, expected[0][0], no_state);
        msgpack_sbuffer_destroy(&list);
        list = list_of(MANY, -1, EACH);
        char *other = NULL;                                    /* the last robot's "openpi/samples"        */
        for (size_t at = 0; at + 15 < list.size; at++)
            if (!memcmp(list.data + at, "openpi/samples\xcb\x40\x00", 17)) other = list.data + at + 16;
        assert_non_null(other);
        *other = 8;                                            /* the double 2 becomes 3                   */
        ask_broken(fd, &list, MANY, MANY - 1, sizeof *expected, expected[0][0],
                   "\"openpi/noise\" of the request is for 2 chunks, expected [3,horizon,32]");
        ask_other_samples(fd, EACH, expected[0][0]);
        ask_actions(fd, 1, 1, 0, actions);
        assert_memory_equal(actions, plain_ones[1][1], CHUNK);
        msgpack_sbuffer_destroy(&list);
        msgpack_sbuffer_destroy(&arrays);
        close(fd);
        served_stop(&server);
    }
}

static void refuse_bytes(int fd, const char *bytes, size_t count, const char *part) {
    msgpack_sbuffer message;
    msgpack_sbuffer_init(&message);
    msgpack_sbuffer_write(&message, bytes, count);
    expect_sentence(fd, &message, part);
    msgpack_sbuffer_destroy(&message);
}

#define BYTES(TEXT) TEXT, sizeof(TEXT) - 1

static void bad_lists(void **state) {
    static uint8_t expected[ROBOTS][CHUNK];
    served server;
    (void)state;
    served_start(&server, &box, MODEL);
    int fd = greet(server.port);
    refuse_bytes(fd, BYTES("\x90"),
                 "observations in the message's list is 0, expected a whole number from 1");
    refuse_bytes(fd, BYTES("\x91\x01"), "observation 0 of 1: request: the message starts with byte 0x01");
    refuse_bytes(fd, BYTES("\x92\x80\x80"), "observation 0 of 2: ");
    refuse_bytes(fd, BYTES("\x81\xacopenpi/batch\x00"),
                 "\"openpi/batch\" is 0, expected a whole number from 1");
    refuse_bytes(fd, BYTES("\x81\xacopenpi/batch\xcd\x01\x01"), "is 257, expected");
    refuse_bytes(fd, BYTES("\x81\xacopenpi/batch\xa1x"),
                 "\"openpi/batch\" is text, expected a whole number");
    refuse_bytes(fd, BYTES("\x81\xda\x00\x0c" "openpi/batch\x00"), "is 0, expected a whole number from 1");
    refuse_bytes(fd, BYTES("\x82\xad-openpi/batch\x02\xa5state\x93\x01\x02\x03"),
                 "\"state\" of the request has 3 numbers, expected 14");
    refuse_bytes(fd, BYTES("\x82\xacopenpi/batch\x02\xa5state\x93\x01\x02\x03"),
                 "\"state\" has 3 entries, expected 2, one for each observation");
    refuse_bytes(fd, BYTES("\xdd\xff\xff\xff\xff"), "expected at most 65536 values");
    each_alone(expected);
    msgpack_sbuffer list = arrays_of(ROBOTS, 52);
    expect_sentence(fd, &list, "has 5 observations with 52 chunks each, expected at most 256 chunks");
    msgpack_sbuffer_destroy(&list);
    list = list_of(2, -1, 0);
    ask_list(fd, &list, 2 * CHUNK, expected);
    msgpack_sbuffer_destroy(&list);
    close(fd);
    served_stop(&server);
}

/* Each is one sentence, and the connection lives. */
static void bad_values(void **state) {
    static const struct { double samples; int noises; const char *part; } cases[] = {
        {0, 0, "\"openpi/samples\" of the request is 0, expected a whole number from 1 to 64"},
        {65, 0, "is 65, expected"},
        {1.5, 0, "is 1.5, expected"},
        {3, 2, "\"openpi/noise\" of the request is for 2 chunks, expected [3,horizon,32]"},
        {3, 0, "is for 1 chunks, expected [3,horizon,32]"},
        {-1, 2, "is for 2 chunks, expected [horizon,32] without \"openpi/samples\""},
    };
    static uint8_t actions[2][CHUNK];
    served server;
    (void)state;
    served_start(&server, &box, MODEL);
    int fd = greet(server.port);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        msgpack_sbuffer message;
        make_aloha_request(0, &message);
        add_noises(&message, 0, cases[i].noises);
        if (cases[i].samples >= 0) add_number(&message, "openpi/samples", cases[i].samples);
        expect_sentence(fd, &message, cases[i].part);
        msgpack_sbuffer_destroy(&message);
    }
    ask_actions(fd, 0, 0, 2, actions[0]);
    close(fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chunks_are_those_of_plain_requests, open_box, close_box),
        cmocka_unit_test_setup_teardown(each_connection_has_its_prefix, open_box, close_box),
        cmocka_unit_test_setup_teardown(bad_values, open_box, close_box),
        cmocka_unit_test_setup_teardown(observations_with_several_chunks, open_box, close_box),
        cmocka_unit_test_setup_teardown(observations_are_as_alone, open_box, close_box),
        cmocka_unit_test_setup_teardown(bad_lists, open_box, close_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
