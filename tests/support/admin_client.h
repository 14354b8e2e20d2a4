/* Requests to the admin port of `openpi serve`. Include after cmocka.h and websocket.h. */
#ifndef TESTS_ADMIN_CLIENT_H
#define TESTS_ADMIN_CLIENT_H

/* An answer of the admin port: its status, and its body, to be freed. */
typedef struct answer {
    int status;
    size_t bytes;
    char head[2048], *body;
} answer;

static inline answer receive_answer(int fd) {
    answer a = {.bytes = 0};
    ws_head(fd, a.head, sizeof a.head);
    const char *length = strstr(a.head, "Content-Length: ");
    if (sscanf(a.head, "HTTP/1.1 %d ", &a.status) != 1 || !length) fail_msg("the answer is:\n%s", a.head);
    a.bytes = (size_t)strtoul(length + 16, NULL, 10);
    a.body = calloc(1, a.bytes + 1);
    assert_non_null(a.body);
    assert_true(ws_get(fd, a.body, a.bytes));
    return a;
}

/* `more`: further headers, each with its line end. */
static inline answer admin_request(int port, const char *method, const char *path, const char *host,
                                   const char *more) {
    char text[2048];
    int fd = ws_socket(port);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, path, host, more);
    ws_put(fd, text, strlen(text));
    answer a = receive_answer(fd);
    close(fd);
    return a;
}

static inline void must_answer(int port, const char *method, const char *path, const char *host,
                               const char *more, int status) {
    answer a = admin_request(port, method, path, host, more);
    if (a.status != status)
        fail_msg("%s %s for %s with %s: got %d, expected %d: %s", method, path, host, more, a.status, status,
                 a.body);
    free(a.body);
}

#endif
