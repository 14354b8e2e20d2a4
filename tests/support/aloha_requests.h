/* What several ALOHAs send: pictures, state and prompt of each differ from those of the others, and not all
 * of them have the same cameras. So it shows where a robot gets the actions of another one. Include after
 * cmocka.h and policy_golden.h. */
#ifndef TESTS_ALOHA_REQUESTS_H
#define TESTS_ALOHA_REQUESTS_H

/* As large as a camera's picture on its way to the policy. */
static inline void pack_aloha_picture(msgpack_packer *packer, const char *camera, int seed) {
    static const int shape[3] = {3, 240, 320};
    size_t count = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
    uint8_t *picture = malloc(count);
    assert_non_null(picture);
    for (size_t i = 0; i < count; i++) picture[i] = (uint8_t)((size_t)(seed + 1) * i / 64 + (size_t)seed * 9);
    pack_text(packer, camera);
    pack_array(packer, "|u1", shape, 3, picture, count);
    free(picture);
}

/* Robot `number`, from 0 on. Of three robots one has one camera, one has two and one has three; of four, each
 * has a prompt of another length. */
static inline void make_aloha_request(int number, msgpack_sbuffer *message) {
    enum { ARMS_STATE = 14 };
    static const char *const cameras[] = {"cam_high", "cam_left_wrist", "cam_right_wrist"};
    static const int length = ARMS_STATE;
    int count = number % 3 ? number % 3 : 3;
    double state[ARMS_STATE];
    char prompt[100];
    msgpack_packer packer;
    for (int i = 0; i < ARMS_STATE; i++) state[i] = 0.02 * (i + 3 * number);
    snprintf(prompt, sizeof prompt, "put block %d into the box%.*s", number, number % 4 * 6,
             " and then close it");
    msgpack_sbuffer_init(message);
    msgpack_packer_init(&packer, message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 3);
    pack_text(&packer, "images");
    msgpack_pack_map(&packer, (size_t)count);
    for (int c = 0; c < count; c++) pack_aloha_picture(&packer, cameras[c], 3 * number + c);
    pack_text(&packer, "state");
    pack_array(&packer, "<f8", &length, 1, state, sizeof state);
    pack_text(&packer, "prompt");
    pack_text(&packer, prompt);
}

#endif
