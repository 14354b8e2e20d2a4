/* What a robot of a test sends to `openpi serve`: openpi's own requests, with keys added. Include after
 * cmocka.h, policy_golden.h and websocket.h. */
#ifndef TESTS_ROBOT_MESSAGE_H
#define TESTS_ROBOT_MESSAGE_H

/* The metadata must come first. */
static inline int greet(int port) {
    int fd = ws_open(port, "/");
    free(ws_expect(fd, WS_BINARY).data);
    return fd;
}

/* A map with one more entry, whose key and value are `entry`. */
static inline void add_entry(msgpack_sbuffer *message, const msgpack_sbuffer *entry) {
    assert_true((message->data[0] & 0xf0) == 0x80 && (message->data[0] & 0xf) < 15);
    message->data[0]++;
    msgpack_sbuffer_write(message, entry->data, entry->size);
}

static inline void add_noise(msgpack_sbuffer *message, const float *noise, int rows) {
    msgpack_sbuffer entry;
    msgpack_packer packer;
    const int shape[2] = {rows, OPENPI_ACTION_DIM};
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, "openpi/noise");
    pack_array(&packer, "<f4", shape, 2, noise, (size_t)rows * OPENPI_ACTION_DIM * sizeof *noise);
    add_entry(message, &entry);
    msgpack_sbuffer_destroy(&entry);
}

static inline void add_number(msgpack_sbuffer *message, const char *key, double value) {
    msgpack_sbuffer entry;
    msgpack_packer packer;
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, key);
    msgpack_pack_double(&packer, value);
    add_entry(message, &entry);
    msgpack_sbuffer_destroy(&entry);
}

/* "openpi/rtc": the next chunk, `executed` actions after the one before, a delay of one action. */
static inline void add_following(msgpack_sbuffer *message, int executed) {
    msgpack_sbuffer entry;
    msgpack_packer packer;
    msgpack_sbuffer_init(&entry);
    msgpack_packer_init(&packer, &entry, msgpack_sbuffer_write);
    pack_text(&packer, "openpi/rtc");
    msgpack_pack_map(&packer, 2);
    pack_text(&packer, "executed"), msgpack_pack_int(&packer, executed);
    pack_text(&packer, "delay"), msgpack_pack_int(&packer, 1);
    add_entry(message, &entry);
    msgpack_sbuffer_destroy(&entry);
}

/* A request as openpi's ALOHA client sends it. */
static inline void load_request(const char *golden, msgpack_sbuffer *message) {
    char path[512];
    size_t count;
    snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", golden);
    char *bytes = golden_read(path, &count);
    msgpack_sbuffer_init(message);
    msgpack_sbuffer_write(message, bytes, count);
    free(bytes);
}

static inline ws_frame ask(int fd, const msgpack_sbuffer *message) {
    ws_send(fd, WS_BINARY, 1, message->data, message->size);
    return ws_receive(fd);
}

/* The answer must be one sentence that has `part` in it. */
static inline void expect_sentence(int fd, const msgpack_sbuffer *message, const char *part) {
    ws_frame frame = ask(fd, message);
    if (frame.opcode != WS_TEXT || !strstr((char *)frame.data, part) || strchr((char *)frame.data, '\n'))
        fail_msg("opcode %d, \"%s\", expected one sentence with \"%s\"", frame.opcode,
                 frame.opcode == WS_BINARY ? "" : (char *)frame.data, part);
    free(frame.data);
}

#endif
