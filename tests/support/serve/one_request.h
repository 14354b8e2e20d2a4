/* The set_up and tear_down of tests with a folder and one request of an ALOHA robot, as openpi's client sends
 * it. Include after cmocka.h, policy_golden.h, scratch.h and command.h. */
#ifndef TESTS_ONE_REQUEST_H
#define TESTS_ONE_REQUEST_H

static char *request;            /* [request_bytes] */
static size_t request_bytes;

static inline int set_up(void **state) {
    request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &request_bytes);
    return open_box(state);
}

static inline int tear_down(void **state) {
    free(request);
    return close_box(state);
}

#endif
