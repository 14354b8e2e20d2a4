/* The smallest model that there can be, its robot with one camera, and what that asks: calls of a fraction
 * of a millisecond. Include after cmocka.h, policy_golden.h, command.h, websocket.h and robot_message.h. */
#ifndef TESTS_SMALL_ROBOT_H
#define TESTS_SMALL_ROBOT_H

/* A layer each, eight wide; the prompt's vocabulary is as large as the tokenizer's. */
#define SMALL_DIMS                                                                                          \
    "{\"vision\": [8, 1, 1, 8], \"vlm\": [8, 1, 1, 256, 8], \"expert\": [8, 8], \"vocab\": 2048}"
#define SMALL_ROBOT                                                                                         \
    "{\"name\": \"soak\", \"cameras\": {\"eye\": {\"slot\": \"base\"}}, \"layout\": \"auto\", "             \
    "\"other_pictures\": \"ignore\", \"state\": {\"joints\": 8}, \"transform\": \"none\", \"delta\": [], "  \
    "\"actions\": 8, \"variant\": \"pi0\", \"horizon\": 1, \"max_prompt\": 48}"

enum {
    SMALL_HORIZON = 1,
    SMALL_ACTIONS = SMALL_HORIZON * 8 * 8,             /* bytes                                            */
    SMALL_PICTURE = 16,
};

/* What robot k asks, each time: a picture, a state and noise of its own. */
static inline void small_request(int k, msgpack_sbuffer *message) {
    uint8_t picture[SMALL_PICTURE * SMALL_PICTURE * 3];
    double joints[8];
    float noise[SMALL_HORIZON * OPENPI_ACTION_DIM];
    msgpack_packer packer;
    for (size_t i = 0; i < sizeof picture; i++) picture[i] = (uint8_t)((i * 7 + (size_t)k * 31) % 256);
    for (int i = 0; i < 8; i++) joints[i] = 0.1 * i - 0.2 * k;
    openpi_noise(7, (uint64_t)k, noise, sizeof noise / sizeof *noise);
    msgpack_sbuffer_init(message);
    msgpack_packer_init(&packer, message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 3);
    pack_text(&packer, "prompt"), pack_text(&packer, "pick up the fork");
    pack_text(&packer, "joints"), pack_array(&packer, "<f8", (int[]){8}, 1, joints, sizeof joints);
    pack_text(&packer, "eye");
    pack_array(&packer, "|u1", (int[]){SMALL_PICTURE, SMALL_PICTURE, 3}, 3, picture, sizeof picture);
    add_noise(message, noise, SMALL_HORIZON);
}

/* Where a reply has its actions: after the head of the map and of the array. */
static inline const uint8_t *small_actions(const ws_frame *frame) {
    enum { BEFORE = 32 };        /* test_serve checks every byte of a reply                                */
    if (frame->opcode != WS_BINARY) fail_msg("opcode %d, \"%s\"", frame->opcode, (char *)frame->data);
    assert_true(frame->bytes > BEFORE + SMALL_ACTIONS);
    assert_int_equal(frame->data[BEFORE - 2], 0xc4);
    assert_int_equal(frame->data[BEFORE - 1], SMALL_ACTIONS);
    return frame->data + BEFORE;
}

/* Writes the model and its robot into the test's folder. Returns -1 where it cannot. */
static inline int small_write(void) {
    if (scratch_write(&box, "robot.json", SMALL_ROBOT, sizeof SMALL_ROBOT - 1)) return -1;
    return run("synth model --dims '" SMALL_DIMS "'") ? -1 : 0;
}

#endif
