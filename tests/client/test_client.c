/* labels: links=client links=serve */
/* What client/ writes is what openpi-client packs, byte for byte, and what the policy's own reader reads; its
 * frames are those of RFC 6455;
 * what the server writes is what client/ reads, and nothing that a server could send makes it read past its
 * end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client/client.h"
#include "client/client_frame.h"
#include "policy_golden.h"
#include "policy/wire/wire.h"
#include "serve/messages.h"

static openpi_error error = OPENPI_ERROR_INIT;
static char why[CLIENT_SENTENCE];

static void write_request(const client_request *request, client_message *out) {
    if (!client_request_write(request, out, why)) fail_msg("%s", why);
}

/* The value of a key in a request, as the policy reads it. */
static const wire_field *must_find(const wire_message *message, const char *key) {
    const wire_field *field = wire_find(message, key);
    if (!field) fail_msg("no %s", key);
    return field;
}

/* ---- requests ------------------------------------------------------------------------------------- */

enum { MOST = 16 };

/* The same field for client/, its text with a NUL. 0: the head of a map, which is in no list. */
static int field_of(const wire_field *from, client_field *out, char key[WIRE_KEY_BYTES], char text[200]) {
    static const client_kind kinds[] = {
        [WIRE_U8] = CLIENT_U8, [WIRE_F32] = CLIENT_F32, [WIRE_F64] = CLIENT_F64};
    strcpy(key, from->key);
    *out = (client_field){.key = key, .kind = CLIENT_TEXT, .data = text};
    if (from->kind == WIRE_MAP) return 0;
    if (!strncmp(key, "images/", 7)) out->map = "images", out->key = key + 7;
    if (from->kind == WIRE_TEXT) snprintf(text, 200, "%.*s", (int)from->bytes, from->text);
    if (from->kind == WIRE_TEXT) return 1;
    assert_int_equal(from->kind, WIRE_ARRAY);
    out->kind = kinds[from->element];
    out->data = from->data;
    out->rank = from->rank;
    for (int i = 0; i < from->rank; i++) out->shape[i] = (int)from->shape[i];
    return 1;
}

/* openpi-client wrote these. */
static void requests_have_the_bytes_of_openpi_client(void **state) {
    static const char *const goldens[] = {"aloha_pi05", "aloha_sim", "droid_pi0", "libero_pi0",
                                          "libero_pi05"};
    client_message message = {NULL, 0, 0};
    (void)state;
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++) {
        char path[512], keys[MOST][WIRE_KEY_BYTES], texts[MOST][200];
        client_field fields[MOST];
        wire_message *golden;
        size_t count;
        int field_count = 0;
        snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", goldens[g]);
        char *bytes = golden_read(path, &count);
        WORKS(wire_decode(bytes, count, &golden, &error));
        for (int i = 0; i < wire_count(golden); i++)
            field_count += field_of(wire_at(golden, i), &fields[field_count], keys[field_count],
                                    texts[field_count]);
        write_request(&(client_request){.fields = fields, .field_count = field_count}, &message);
        assert_int_equal(message.count, count);
        assert_memory_equal(message.bytes, bytes, count);
        wire_message_free(golden);
        free(bytes);
    }
    client_message_free(&message);
}

static void extras_are_those_of_the_protocol(void **state) {
    static const client_rtc rtcs[] = {{.executed = 25, .delay = 3},
                                      {300, 70000, "guided", 12, "linear", 7.5}};
    static const float noise[2][3] = {{1, 2, 3}, {4, 5, 6.5f}};
    static const double joints[2] = {-0.5, 1e300};
    const client_field fields[] = {client_state("state", joints, 2), client_text("prompt", "fold")};
    (void)state;
    for (int full = 0; full < 2; full++) {
        client_request request = {.fields = fields, .field_count = 2, .rtc = &rtcs[full]};
        client_message message = {NULL, 0, 0};
        wire_message *read;
        if (full) request.noise = noise[0], request.noise_rows = 2, request.noise_dims = 3;
        request.deadline_ms = full ? 41.5 : 0;
        write_request(&request, &message);
        WORKS(wire_decode(message.bytes, message.count, &read, &error));
        assert_true(must_find(read, "openpi/rtc/executed")->number == rtcs[full].executed);
        assert_true(must_find(read, "openpi/rtc/delay")->number == rtcs[full].delay);
        assert_int_equal(must_find(read, "state")->count, 2);
        assert_memory_equal(must_find(read, "state")->data, joints, sizeof joints);
        assert_int_equal(wire_count(read), full ? 11 : 5);
        if (full) {
            const wire_field *drawn = must_find(read, "openpi/noise");
            assert_true(drawn->element == WIRE_F32 && drawn->rank == 2);
            assert_true(drawn->shape[0] == 2 && drawn->shape[1] == 3);
            assert_memory_equal(drawn->data, noise, sizeof noise);
            assert_true(must_find(read, "openpi/deadline_ms")->number == 41.5);
            assert_true(must_find(read, "openpi/rtc/horizon")->number == 12);
            assert_true(must_find(read, "openpi/rtc/max_weight")->number == 7.5);
            assert_memory_equal(must_find(read, "openpi/rtc/mode")->text, "guided", 6);
            assert_memory_equal(must_find(read, "openpi/rtc/schedule")->text, "linear", 6);
        }
        wire_message_free(read);
        client_message_free(&message);
    }
}

/* Each length at which msgpack takes a longer head: texts, bytes, keys of a map, sizes. */
static void heads_of_each_length(void **state) {
    static const size_t lengths[] = {0, 31, 32, 255, 256, 65535, 65536};
    client_message message = {NULL, 0, 0};
    wire_message *read;
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char *text = calloc(1, lengths[i] + 1);
        memset(text, 'a', lengths[i]);
        client_field fields[] = {client_text("t", text),
                                 {NULL, "b", CLIENT_U8, text, 1, {(int)lengths[i]}}};
        write_request(&(client_request){.fields = fields, .field_count = 1 + (lengths[i] > 0)}, &message);
        WORKS(wire_decode(message.bytes, message.count, &read, &error));
        assert_int_equal(must_find(read, "t")->bytes, lengths[i]);
        if (lengths[i]) assert_int_equal(must_find(read, "b")->bytes, lengths[i]);
        if (lengths[i]) assert_int_equal(must_find(read, "b")->shape[0], lengths[i]);
        wire_message_free(read);
        free(text);
    }
    enum { MANY = 60 };
    static char keys[MANY][8];
    client_field many[MANY];
    for (int i = 0; i < MANY; i++) {       /* 20 in each of three maps: heads of 16 bits                    */
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        many[i] = client_text(keys[i], "v");
        if (i >= 20) many[i].map = i < 40 ? "m" : "n";
    }
    write_request(&(client_request){.fields = many, .field_count = MANY}, &message);
    WORKS(wire_decode(message.bytes, message.count, &read, &error));
    assert_int_equal(wire_count(read), MANY + 2);
    must_find(read, "k19"), must_find(read, "m/k39"), must_find(read, "n/k59");
    wire_message_free(read);
    client_message_free(&message);
}

static void a_request_that_says_nothing_is_refused(void **state) {
    static const uint8_t pixel[3] = {0};
    static const float noise = 0;
    static const client_rtc early = {.executed = -1};
    const client_field cases[] = {client_text("", "x"), client_text(NULL, "x"), client_text("prompt", NULL),
                                  client_picture("eye", pixel, 0, 1), client_picture("eye", pixel, 1, -1),
                                  {NULL, "eye", CLIENT_U8, pixel, 4, {1, 1, 3}}};
    static const char *const sentences[] = {
        "field 0 of the request has no name", "field 0 of the request has no name",
        "\"prompt\" of the request has no data",
        "\"eye\" of the request has rank 3 and sizes 0, 1, 3, expected 1",
        "sizes 1, -1, 3", "rank 4"};
    client_message message = {NULL, 0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        client_request one = {.fields = &cases[i], .field_count = 1};
        assert_false(client_request_write(&one, &message, why));
        if (!strstr(why, sentences[i])) fail_msg("%zu: \"%s\"", i, why);
        assert_int_equal(message.count, 0);
    }
    assert_false(client_request_write(&(client_request){.rtc = &early}, &message, why));
    assert_non_null(strstr(why, "executed -1, delay 0"));
    assert_false(client_request_write(&(client_request){.noise = &noise, .noise_rows = 1}, &message, why));
    assert_non_null(strstr(why, "noise has 1 rows of 0"));
    client_message_free(&message);
}

/* ---- metadata ------------------------------------------------------------------------------------- */

static void metadata_of_the_server(void **state) {
    static const double pose[] = {0, -1.5, 1.25};
    static const serve_model served = {.notes = {{1, "the norm has no span"}, {0, "π0"}}, .note_count = 2};
    metadata written = {pose, 3, "0.1.0", 50, 14, 1u << 26, 4, &served};
    uint8_t bytes[1000];
    client_metadata read;
    (void)state;
    size_t count = metadata_write(&written, bytes, sizeof bytes);
    assert_true(count > 0);
    if (!client_metadata_read(bytes, count, &read, why)) fail_msg("%s", why);
    assert_int_equal(read.reset_pose_count, 3);
    assert_memory_equal(read.reset_pose, pose, sizeof pose);
    assert_string_equal(read.version, "0.1.0");
    assert_true(read.horizon == 50 && read.action_dim == 14 && read.max_message_bytes == 1u << 26);
    assert_true(read.rtc == 1 && read.rtc_max_delay == 4 && read.note_count == 2);
    assert_string_equal(read.notes[0], "warning: the norm has no span");
    assert_string_equal(read.notes[1], "π0");
    client_metadata_free(&read);
    for (size_t cut = 0; cut < count; cut++) {                 /* in memory of exactly its size            */
        uint8_t *part = malloc(cut ? cut : 1);
        memcpy(part, bytes, cut);
        assert_false(client_metadata_read(part, cut, &read, why));
        client_metadata_free(&read);
        free(part);
    }
    assert_non_null(strstr(why, "no msgpack map: it is no policy server"));
}

/* openpi's own server sends the config's metadata alone: an empty map for most. */
static void metadata_of_another_server(void **state) {
    client_metadata read;
    (void)state;
    assert_true(client_metadata_read((const uint8_t *)"\x80", 1, &read, why));
    assert_true(!read.version[0] && !read.horizon && !read.rtc && !read.note_count && !read.reset_pose_count);
    client_metadata_free(&read);
}

/* ---- replies -------------------------------------------------------------------------------------- */

enum { STEPS = 3, DIMS = 2, NUMBERS = STEPS * DIMS, REPLY = 500 };
static const double chunk[NUMBERS] = {0.5, -1, 1e-300, 4, 5, 6};

static void replies_of_the_server(void **state) {
    reply written = {.actions = chunk, .horizon = STEPS, .action_dim = DIMS, .model_ms = 12.5, .infer_ms = 14,
                     .prev_total_ms = -1};
    uint8_t bytes[REPLY];
    double actions[NUMBERS];
    client_reply read;
    (void)state;
    for (int full = 0; full < 2; full++) {
        if (full) written.rtc = written.rtc_applied = written.truncated = 1;
        if (full) written.limited = (openpi_limited){.changed = 300, .below_min = 1, .held = 70000};
        if (full) written.rtc_delay = 300, written.rtc_weight = 10, written.prev_total_ms = 15.25;
        size_t count = reply_write(&written, bytes, sizeof bytes);
        memset(actions, 0, sizeof actions);
        if (!client_reply_read(bytes, count, 0, &read, actions, NUMBERS, why)) fail_msg("%s", why);
        assert_memory_equal(actions, chunk, sizeof chunk);
        assert_true(read.steps == STEPS && read.dims == DIMS);
        assert_true(read.model_ms == 12.5 && read.server_ms == 14);
        assert_true(read.prev_total_ms == (full ? 15.25 : -1) && read.prompt_truncated == full);
        assert_true(read.rtc_applied == full && read.rtc_delay == full * 300);
        assert_true(read.rtc_max_weight == full * 10);
        assert_true(read.limited == full * 300 && read.held == full * 70000);
        assert_true(client_reply_read(bytes, count, 0, &read, NULL, 0, why));
        assert_false(client_reply_read(bytes, count, 0, &read, actions, NUMBERS - 1, why));
        assert_string_equal(why, "a reply with 3 steps of 2 numbers, more than the 5 that there is memory "
                                 "for");
        for (size_t cut = 0; cut < count; cut++) {
            uint8_t *part = malloc(cut ? cut : 1);
            memcpy(part, bytes, cut);
            assert_false(client_reply_read(part, cut, 0, &read, actions, NUMBERS, why));
            free(part);
        }
    }
}

/* A reply as another server packs it: keys as texts, float32, whole milliseconds. */
static void other_reply(msgpack_sbuffer *out, const char *dtype, const void *data, size_t bytes, int steps) {
    msgpack_packer packer;
    msgpack_sbuffer_init(out);
    msgpack_packer_init(&packer, out, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 2);
    pack_text(&packer, "policy_timing");
    msgpack_pack_map(&packer, 1);
    pack_text(&packer, "infer_ms");
    msgpack_pack_int(&packer, 7);
    pack_text(&packer, "actions");
    pack_array(&packer, dtype, (int[]){steps, 2}, 2, data, bytes);
}

static void replies_of_another_server(void **state) {
    static const float narrow[4] = {0.5f, -1, 3, 4.25f};
    double actions[4];
    client_reply read;
    msgpack_sbuffer out;
    (void)state;
    other_reply(&out, "<f4", narrow, sizeof narrow, 2);
    if (!client_reply_read((uint8_t *)out.data, out.size, 0, &read, actions, 4, why)) fail_msg("%s", why);
    assert_true(read.steps == 2 && read.dims == 2 && read.model_ms == 7 && read.server_ms == -1);
    for (int i = 0; i < 4; i++) assert_true(actions[i] == (double)narrow[i]);
    msgpack_sbuffer_destroy(&out);
    other_reply(&out, "<i4", narrow, sizeof narrow, 2);
    assert_false(client_reply_read((uint8_t *)out.data, out.size, 0, &read, actions, 4, why));
    assert_non_null(strstr(why, "a reply without actions, expected float64 or float32"));
    msgpack_sbuffer_destroy(&out);
    other_reply(&out, "<f4", narrow, sizeof narrow, 3);
    assert_false(client_reply_read((uint8_t *)out.data, out.size, 0, &read, actions, 4, why));
    assert_string_equal(why, "a reply whose actions have 16 bytes, expected 24 for 3 steps of 2 numbers");
    msgpack_sbuffer_destroy(&out);
}

/* What claims to hold 4 billion elements ends at its own end; numbers of every kind are read as they are. */
static void claims_are_not_believed(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
    } claims[] = {{"\xdd\xff\xff\xff\xff", 5}, {"\xdf\xff\xff\xff\xff", 5}, {"\xc6\xff\xff\xff\xff", 5},
                  {"\xdb\xff\xff\xff\xff", 5}, {"\xc9\xff\xff\xff\xff\1", 6}, {"\x81\xa1k", 3}, {"\xc1", 1},
                  {"\x80\x80", 2}, {"\x81\xa7" "actions\xdf\xff\xff\xff\xff", 14}};
    client_reply read;
    (void)state;
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        assert_false(client_reply_read((const uint8_t *)claims[i].bytes, claims[i].count, 0, &read, NULL, 0,
                                       why));
}

/* "max_weight" and the like stand among values of every type. */
static void numbers_of_every_kind(void **state) {
    static const struct {
        const char *bytes;
        size_t count;
        double number;
    } cases[] = {{"\x05", 1, 5}, {"\xff", 1, -1}, {"\xcc\xc8", 2, 200}, {"\xcd\1\2", 3, 258},
                 {"\xce\1\0\0\0", 5, 16777216}, {"\xcf\0\0\0\1\0\0\0\0", 9, 4294967296.0}, {"\xd0\x80", 2, -128},
                 {"\xd1\xff\xfe", 3, -2}, {"\xd2\xff\xff\xff\xfd", 5, -3},
                 {"\xd3\xff\xff\xff\xff\xff\xff\xff\xfc", 9, -4}, {"\xd3\0\0\0\0\0\0\0\7", 9, 7},
                 {"\xca\x3f\x80\0\0", 5, 1}, {"\xcb\xbf\xe0\0\0\0\0\0\0", 9, -0.5}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* {"reset_pose": [nil, extensions of 1 and 4 bytes, the number]}; what is no number is left out */
        static const char head[] = "\x81\xaareset_pose\x94\xc0\xd4\1a\xd6\1abcd";
        uint8_t bytes[64];
        client_metadata read;
        memcpy(bytes, head, sizeof head - 1);
        memcpy(bytes + sizeof head - 1, cases[i].bytes, cases[i].count);
        assert_true(client_metadata_read(bytes, sizeof head - 1 + cases[i].count, &read, why));
        assert_int_equal(read.reset_pose_count, 1);
        if (read.reset_pose[0] != cases[i].number) fail_msg("%zu: %g", i, read.reset_pose[0]);
        client_metadata_free(&read);
    }
}

static void sentences_of_servers(void **state) {
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"\"state\" of the request has 3 numbers, expected 14", "\"state\" of the request has 3 numbers, expected 14"},
        {"Traceback (most recent call last):\n  File \"x.py\", line 3\nKeyError: 'images'\n", "KeyError: 'images'"},
        {"", "the server answers with an empty text"},
        {"\n\n", "the server answers with an empty text"},
    };
    char longer[2 * CLIENT_SENTENCE];
    client_reply read;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint8_t *text = (const uint8_t *)cases[i].text;
        assert_false(client_reply_read(text, strlen(cases[i].text), 1, &read, NULL, 0, why));
        assert_string_equal(why, cases[i].sentence);
    }
    memset(longer, 'x', sizeof longer);
    assert_false(client_reply_read((uint8_t *)longer, sizeof longer, 1, &read, NULL, 0, why));
    assert_int_equal(strlen(why), CLIENT_SENTENCE - 1);
}

/* ---- frames ---------------------------------------------------------------------------------------- */

/* The bytes of a frame of a message that is read up to `at`, unmasked to `out`. Returns how many; *last: it
 * is the message's last frame. */
static size_t read_frame(const uint8_t *frame, size_t bytes, size_t at, uint8_t *out, int *last) {
    assert_int_equal(frame[0] & 0x7f, at ? 0 : 2);                       /* continued, or binary          */
    *last = frame[0] >> 7;
    assert_true(frame[1] & 0x80);                                        /* masked                        */
    size_t count = frame[1] & 0x7f, head = 2, more = count == 126 ? 2 : count == 127 ? 8 : 0;
    if (more) count = 0;
    for (size_t i = 0; i < more; i++) count = count << 8 | frame[head++];
    assert_true(count >= (more == 2 ? 126 : more ? 65536 : 0));          /* no shorter head would do      */
    const uint8_t *mask = frame + head;
    head += CLIENT_MASK;
    assert_int_equal(head + count, bytes);
    for (size_t i = 0; i < count; i++) out[i] = frame[head + i] ^ mask[i % CLIENT_MASK];
    return count;
}

static void frames_are_the_message(void **state) {
    enum { MOST_BYTES = 3 * CLIENT_FRAME_DATA };
    static const size_t counts[] = {0, 1, 7, 8, 125, 126, 65535, 65536, CLIENT_FRAME_DATA - 1,
                                    CLIENT_FRAME_DATA, CLIENT_FRAME_DATA + 1, MOST_BYTES, MOST_BYTES - 5};
    uint8_t *message = malloc(MOST_BYTES), *out = malloc(MOST_BYTES), *frame = malloc(CLIENT_FRAME);
    (void)state;
    assert_true(message && out && frame);
    for (size_t i = 0; i < MOST_BYTES; i++) message[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        size_t at = 0, written = 0;
        for (int last = 0; !last; assert_int_equal(at, written)) {
            const uint8_t mask[CLIENT_MASK] = {0x12, 0xa5, (uint8_t)at, (uint8_t)(77 + n)};
            size_t bytes = client_frame_write(frame, message, counts[n], &written, mask);
            at += read_frame(frame, bytes, at, out + at, &last);
            assert_int_equal(last, at == counts[n]);
        }
        assert_memory_equal(out, message, counts[n]);
    }
    free(message);
    free(out);
    free(frame);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_the_message),
        cmocka_unit_test(requests_have_the_bytes_of_openpi_client),
        cmocka_unit_test(extras_are_those_of_the_protocol),
        cmocka_unit_test(heads_of_each_length),
        cmocka_unit_test(a_request_that_says_nothing_is_refused),
        cmocka_unit_test(metadata_of_the_server),
        cmocka_unit_test(metadata_of_another_server),
        cmocka_unit_test(replies_of_the_server),
        cmocka_unit_test(replies_of_another_server),
        cmocka_unit_test(claims_are_not_believed),
        cmocka_unit_test(numbers_of_every_kind),
        cmocka_unit_test(sentences_of_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
