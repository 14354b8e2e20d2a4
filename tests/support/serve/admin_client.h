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

/* The value of a sample in the text of /metrics. */
static inline double metric_in(const char *text, const char *name) {
    size_t count = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, count) && line[count] == ' ') return strtod(line + count, NULL);
    }
    fail_msg("there is no sample %s in\n%s", name, text);
    return 0;
}

static inline double metric(int port, const char *name) {
    answer a = admin_request(port, "GET", "/metrics", "127.0.0.1", "");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "Content-Type: text/plain; version=0.0.4"));
    double value = metric_in(a.body, name);
    free(a.body);
    return value;
}

/* The server counts a reply when the kernel has it, which may be after the robot has it. */
static inline void metric_await(int port, const char *name, double expected) {
    double found = metric(port, name);
    for (int i = 0; i < 6000 && found != expected; i++) {
        served_sleep(10);
        found = metric(port, name);
    }
    if (found != expected) fail_msg("%s is %g, expected %g", name, found, expected);
}

#endif
