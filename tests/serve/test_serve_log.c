/* labels: server threads links=serve */
/* Log lines of `openpi serve`: escapes, JSON and text, sampling in virtual time, a stderr that nobody reads,
 * and what a running server writes. */
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
#include "serve/log/log.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --horizon 5 --steps 1"
static const int64_t second = 1000000000;

/* ---- escapes ---------------------------------------------------------------------------------------- */

static void escapes(void **state) {
    (void)state;
    static const struct {
        const char *given, *text, *json;
    } table[] = {
        {"", "", ""},
        {"arm 1", "arm 1", "arm 1"},
        {"grün π €", "grün π €", "grün π €"},
        {"a\nb\r\t\x1b[31m", "a\\u000ab\\u000d\\u0009\\u001b[31m", "a\\u000ab\\u000d\\u0009\\u001b[31m"},
        {"say \"hi\" \\", "say \"hi\" \\\\", "say \\\"hi\\\" \\\\"},
        {"\x7f\xc2\x9b", "\\u007f\\u009b", "\\u007f\\u009b"},
        {"\xe2\x80\xae" "evil\xe2\x81\xa6", "\\u202eevil\\u2066", "\\u202eevil\\u2066"},
        {"\xff" "a\xc3", "\\xffa\\xc3", "\\ufffda\\ufffd"},
        {"\xc0\xaf", "\\xc0\\xaf", "\\ufffd\\ufffd"},                          /* not the shortest form     */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80", "\\ufffd\\ufffd\\ufffd"},          /* a surrogate               */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},
        {"\xf0\x9f\xa4\x96", "\xf0\x9f\xa4\x96", "\xf0\x9f\xa4\x96"},
        {"\xf3\xa0\x81\x81", "\\udb40\\udc41", "\\udb40\\udc41"},              /* an invisible tag          */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char escaped[200];
        size_t count = log_escape(escaped, sizeof escaped, table[i].given, LOG_TEXT);
        assert_int_equal(count, strlen(table[i].text));
        assert_string_equal(escaped, table[i].text);
        count = log_escape(escaped, sizeof escaped, table[i].given, LOG_JSON);
        assert_int_equal(count, strlen(table[i].json));
        assert_string_equal(escaped, table[i].json);
    }
    char bounded[12];
    log_escape(bounded, sizeof bounded, "12345678901", LOG_TEXT);
    assert_string_equal(bounded, "12345678901");
    log_escape(bounded, sizeof bounded, "123456789012", LOG_TEXT);
    assert_string_equal(bounded, "12345678…");
    log_escape(bounded, sizeof bounded, "1234567\n\n", LOG_TEXT);
    assert_string_equal(bounded, "1234567…");
}

/* ---- lines ------------------------------------------------------------------------------------------ */

static const struct timespec when = {1795350658, 123456789};   /* 2026-11-22 12:30:58 UTC                  */

static json_t *parse(const char *line, size_t bytes) {
    json_error_t error;
    assert_true(bytes < LOG_LINE_BYTES && line[bytes - 1] == '\n');
    assert_ptr_equal(memchr(line, '\n', bytes), line + bytes - 1);
    json_t *root = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("no JSON: %s\n%s", error.text, line);
    return root;
}

static void lines(void **state) {
    (void)state;
    char line[LOG_LINE_BYTES];
    log_entry entry = {.level = LOG_LEVEL_WARNING,
                       .event = "refused",
                       .reason = "no token",
                       .address = "192.0.2.7",
                       .robot = "arm\"1",
                       .numbers = {{"bytes", 301447}, {"total_ms", 12.34567}, {"odd", 1e300}}};
    size_t bytes = log_text_write(line, LOG_TEXT, 0, &entry, "refused: no token", when);
    assert_string_equal(line, "openpi serve: 192.0.2.7 arm\"1 refused: no token, bytes 301447, "
                              "total_ms 12.346, odd null\n");
    assert_int_equal(bytes, strlen(line));
    log_text_write(line, LOG_TEXT, 1, &entry, "x", when);
    assert_memory_equal(line, "<4>openpi serve: ", 17);
    bytes = log_text_write(line, LOG_JSON, 0, &entry, "refused: \"no\" token\n", when);
    json_t *root = parse(line, bytes);
    assert_string_equal(word(root, "time"), "2026-11-22T12:30:58.123Z");
    assert_string_equal(word(root, "level"), "warning");
    assert_string_equal(word(root, "event"), "refused");
    assert_string_equal(word(root, "address"), "192.0.2.7");
    assert_string_equal(word(root, "robot"), "arm\"1");
    assert_string_equal(word(root, "message"), "refused: \"no\" token\n");
    assert_true(number(root, "bytes") == 301447 && number(root, "total_ms") == 12.346);
    assert_true(json_is_null(json_object_get(root, "odd")));
    json_decref(root);
    entry = (log_entry){.event = "drained"};
    bytes = log_text_write(line, LOG_JSON, 0, &entry, "drained", when);
    assert_string_equal(line, "{\"time\":\"2026-11-22T12:30:58.123Z\",\"level\":\"info\","
                              "\"event\":\"drained\",\"message\":\"drained\"}\n");
    log_text_write(line, LOG_TEXT, 0, &entry, "drained", when);
    assert_string_equal(line, "openpi serve: drained\n");
}

/* Whatever bytes come: one line, JSON, and no control character. */
static void random_bytes(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        char texts[3][1500], line[LOG_LINE_BYTES];
        for (int k = 0; k < 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t count = (seed >> 40) % (i % 10 ? 60 : sizeof texts[k] - 1);
            for (size_t c = 0; c < count; c++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                texts[k][c] = (char)(seed >> 56 ? seed >> 56 : 1);
            }
            texts[k][count] = 0;
        }
        log_entry entry = {.event = "x", .address = texts[0], .robot = texts[1], .numbers = {{"n", i}}};
        size_t bytes = log_text_write(line, LOG_JSON, 0, &entry, texts[2], when);
        json_decref(parse(line, bytes));
        bytes = log_text_write(line, LOG_TEXT, 0, &entry, texts[2], when);
        assert_true(bytes < LOG_LINE_BYTES);
        for (size_t c = 0; c + 1 < bytes; c++) assert_false((uint8_t)line[c] < 32 || line[c] == 127);
    }
}

/* ---- sampling --------------------------------------------------------------------------------------- */

static int taken(log_sampler *s, const char *reason, int count, int64_t now) {
    int written = 0;
    for (int i = 0; i < count; i++) written += log_sampler_take(s, "refused", reason, now + i);
    return written;
}

static void sampling(void **state) {
    (void)state;
    log_sampler s = {.count = 0};
    log_count over;
    int64_t now = 5 * second;
    assert_int_equal(taken(&s, "no token", LOG_PER_SECOND, now), LOG_PER_SECOND);
    assert_int_equal(taken(&s, "no token", 312, now), 0);
    assert_int_equal(taken(&s, "full", 3, now), 3);            /* each reason has its own                  */
    assert_int_equal(log_sampler_over(&s, now + second - 1, &over), 0);
    assert_int_equal(log_sampler_over(&s, now + second, &over), 1);
    assert_string_equal(over.event, "refused");
    assert_string_equal(over.reason, "no token");
    assert_int_equal(over.more, 312);
    assert_int_equal(log_sampler_over(&s, now + second, &over), 0);
    assert_int_equal(taken(&s, "no token", 50, now + second), LOG_PER_SECOND);
    assert_int_equal(log_sampler_over(&s, INT64_MAX, &over), 1);
    assert_int_equal(over.more, 40);
    /* A clock that steps back begins a new second. */
    assert_int_equal(taken(&s, "no token", 1, 0), 1);
}

/* However many reasons there are, nothing is lost from the count. */
static void many_reasons(void **state) {
    (void)state;
    log_sampler s = {.count = 0};
    log_count over;
    char reason[200];
    uint64_t all = 0, written = 0;
    for (int i = 0; i < 5 * LOG_REASONS; i++) {
        memset(reason, 'a' + i % 26, sizeof reason);
        snprintf(reason + 150 * (i % 2), 20, "%d", i);
        for (int k = 0; k < 3 * LOG_PER_SECOND; k++, all++)
            written += (uint64_t)log_sampler_take(&s, "x", reason, second);
    }
    assert_true(written <= LOG_REASONS * LOG_PER_SECOND);
    while (log_sampler_over(&s, 2 * second, &over)) written += over.more;
    assert_int_equal(written, all);
}

/* ---- a stderr that nobody reads --------------------------------------------------------------------- */

static void nobody_reads(void **state) {
    (void)state;
    enum { LINES = 5000 };
    logger log;
    int ends[2], read_lines = 0;
    static char text[1 << 20];
    assert_int_equal(pipe(ends), 0);
    log_open(&log, ends[1], LOG_JSON, 0);
    for (int i = 0; i < LINES; i++) log_line(&log, "line", "%d", i);
    unsigned long long lost = log.lost;
    assert_true(lost > 0 && lost < LINES);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ssize_t count = read(ends[0], text, sizeof text);
    assert_true(count > 0);
    for (ssize_t i = 0; i < count; i++) read_lines += text[i] == '\n';
    assert_int_equal(read_lines + (int)lost, LINES);
    log_line(&log, "line", "last");
    count = read(ends[0], text, sizeof text - 1);
    text[count] = 0;
    char *end = strchr(text, '\n');
    assert_non_null(end);
    json_t *first = parse(text, (size_t)(end + 1 - text));
    assert_int_equal(number(first, "lines"), lost);
    json_decref(first);
    assert_non_null(strstr(end, "\"message\":\"last\"}\n"));
    log_close(&log);
    close(ends[0]);
    close(ends[1]);
}

/* ---- a running server ------------------------------------------------------------------------------- */

/* How many events of this kind the log tells of, those that were only counted too. */
static int events_of(served *server, const char *event, int *written) {
    char *log = served_log(server), *line = log;
    int count = 0;
    *written = 0;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *root = parse(line, (size_t)(end + 1 - line));
        if (!strcmp(word(root, "event"), event)) {
            json_t *more = json_object_get(root, "more");
            count += more ? (int)json_number_value(more) : 1;
            *written += !more;
        }
        json_decref(root);
    }
    free(log);
    return count;
}

static void hammer(int port, int times, const char *status) {
    char head[1024];
    for (int i = 0; i < times; i++) {
        close(ws_request(port, "/", WS_UPGRADE "Authorization: Bearer \"\x1b[2J\r\n", head, sizeof head));
        assert_memory_equal(head, status, strlen(status));
    }
}

/* stderr is no terminal: JSON. Every refusal is written or counted. */
static void refusals_are_sampled(void **state) {
    (void)state;
    served server;
    int written;
    static const char line[] = "desk shared - 248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1\n";
    assert_int_equal(scratch_write(&box, "tokens", line, sizeof line - 1), 0);
    served_start(&server, &box, TINY " --log-format auto --tokens '%s/tokens'", box.folder);
    hammer(server.port, 200, "HTTP/1.1 401 ");
    served_stop(&server);
    assert_int_equal(events_of(&server, "refused", &written), 200);
    assert_true(written >= LOG_PER_SECOND);
    assert_int_equal(events_of(&server, "ready", &written), 1);
    assert_int_equal(events_of(&server, "drained", &written), 1);
}

/* Requests that fail have a line, and with --log-requests the others too. */
static void requests_have_lines(void **state) {
    (void)state;
    static const uint8_t nonsense[] = {0x81, 0xa4, '\n', '"', 0x1b, 0xff, 0xc0};
    size_t count;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &count);
    for (int all = 0; all < 2; all++) {
        served server;
        int written;
        served_start(&server, &box, TINY " --log-format json%s", all ? " --log-requests" : "");
        int fd = ws_open(server.port, "/");
        free(ws_expect(fd, WS_BINARY).data);
        for (int i = 0; i < 3; i++) {
            ws_send(fd, WS_BINARY, 1, request, count);
            free(ws_expect(fd, WS_BINARY).data);
        }
        ws_send(fd, WS_BINARY, 1, nonsense, sizeof nonsense);
        free(ws_expect(fd, WS_TEXT).data);
        close(fd);
        served_stop(&server);
        assert_int_equal(events_of(&server, "connected", &written), 1);
        assert_int_equal(events_of(&server, "request", &written), all ? 3 : 0);
        assert_int_equal(events_of(&server, "request failed", &written), 1);
        char *log = served_log(&server);
        static const char line[] = "\"event\":\"request\",\"address\":\"127.0.0.1\",\"id\":1,\"bytes\":";
        if (all) assert_non_null(strstr(log, line));
        free(log);
    }
    free(request);
}

/* ---- connections that the server ends --------------------------------------------------------------- */

/* What a client does wrong: bytes instead of a head, or the head of a handshake and then bytes. */
static const struct wrong {
    const char *reason, *sentence;           /* in /metrics, in the log                                    */
    const char *lines;                       /* headers of the handshake; NULL: none                       */
    const char *bytes;
    size_t count, more;                      /* of bytes; of zeros after them                              */
} wrongs[] = {
#define BYTES(text, more) text, sizeof text - 1, more
    {"head", "no complete request head", NULL, BYTES("GET / HTTP/1.1\r\nHost: ", 0)},
    {"head", "no complete request head", NULL, BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0)},
    {"head", "no complete request head", NULL, BYTES("", 0)},
    {"subprotocol", "it asks for a subprotocol, and there is none",
     WS_UPGRADE "Sec-WebSocket-Protocol: chat\r\n", BYTES("", 0)},
    {"handshake", "its head is no handshake of WebSocket",
     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n", BYTES("", 0)},
    {"handshake", "its head is no handshake of WebSocket", "Upgrade: h2c\r\nConnection: Upgrade\r\n",
     BYTES("", 0)},
    {"text", "a text message", WS_UPGRADE, BYTES("\x81\x82\0\0\0\0hi", 0)},
    {"size", "its message is larger than --max-message", WS_UPGRADE,
     BYTES("\x82\xff\0\0\0\0\0\x04\0\0\0\0\0\0some bytes", 0)},
    {"memory", "no memory is left for it", WS_UPGRADE,
     BYTES("\x82\xff\0\0\0\0\0\x03\0\0\0\0\0\0", 180000)},
    {"frames", "it breaks the rules of frames", WS_UPGRADE, BYTES("\x83\x80\0\0\0\0", 0)},
    {"frames", "it breaks the rules of frames", WS_UPGRADE, BYTES("\x89\xfe\0\x7e\0\0\0\0", 0)},
};

static double wrongs_so_far(int last, const char *reason) {
    double count = 0;
    for (int i = 0; i <= last; i++) count += !strcmp(wrongs[i].reason, reason);
    return count;
}

/* `ids`: WebSockets so far, as the server numbers them. */
static void do_wrong(const served *server, int number, int *ids) {
    const struct wrong *w = &wrongs[number];
    static const char zeros[180000];
    char name[100], head[1024] = "", line[200], id[16] = "";
    int fd = w->lines ? ws_request(server->port, "/", w->lines, head, sizeof head) : ws_socket(server->port);
    ws_put(fd, w->bytes, w->count);
    ws_put(fd, zeros, w->more);
    if (!w->lines) shutdown(fd, SHUT_WR);
    snprintf(name, sizeof name, "openpi_connections_dropped_total{reason=\"%s\"}", w->reason);
    metric_await(server->admin, name, wrongs_so_far(number, w->reason));
    if (!strncmp(head, "HTTP/1.1 101 ", 13)) snprintf(id, sizeof id, "#%d ", ++*ids);
    snprintf(line, sizeof line, "127.0.0.1 %sdropped: %s", id, w->sentence);
    served_must_log(server, line);
    close(fd);
}

/* A robot that dies in the middle of its request: its socket is reset while there is more to read. */
static void die(const served *server) {
    static const char zeros[130000];
    char byte;
    int fd = ws_open(server->port, "/");
    assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), 1);         /* what is not read makes it a reset        */
    ws_put_head(fd, WS_BINARY, 1, sizeof zeros + 1);
    ws_put(fd, zeros, sizeof zeros);
    close(fd);
    metric_await(server->admin, "openpi_connections", 0);
}

/* Each of them is counted once, for its reason, and has a line, a robot's with the number of its connection.
 * Who leaves by itself has none. */
static void drops_have_lines(void **state) {
    (void)state;
    enum { WRONGS = sizeof wrongs / sizeof *wrongs };
    served server;
    char head[1024];
    static const char zeros[100000];
    served_start(&server, &box, TINY " --admin 127.0.0.1:0 --max-message 260000 --max-in-flight 260000 "
                                     "--message-timeout 3600");
    int other = ws_open(server.port, "/");                     /* its message takes half of --max-in-flight */
    ws_put_head(other, WS_BINARY, 1, 200000);
    ws_put(other, zeros, sizeof zeros);
    metric_await(server.admin, "openpi_received_bytes_total", sizeof zeros);
    int ids = 1;
    for (int i = 0; i < WRONGS; i++) do_wrong(&server, i, &ids);
    assert_int_equal(ids, 6);
    close(other);
    for (int i = 0; i < 3; i++) {
        int fd = ws_open(server.port, "/");
        free(ws_expect(fd, WS_BINARY).data);
        if (i == 1) ws_send(fd, WS_CLOSE, 1, "\x03\xe8", 2);
        if (i == 2) ws_put(fd, "\x82\x85\0\0\0\0x", 7);          /* the rest of it never comes        */
        close(fd);
        close(ws_request(server.port, "/healthz", "", head, sizeof head));
    }
    metric_await(server.admin, "openpi_connections", 0);
    for (int i = 0; i < 20; i++) die(&server);
    served_stop(&server);
    char *log = served_log(&server);
    int lines = 0;
    for (const char *at = strstr(log, "dropped: "); at; at = strstr(at + 1, "dropped: ")) lines++;
    assert_int_equal(lines, WRONGS);
    free(log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escapes),      cmocka_unit_test(lines),        cmocka_unit_test(random_bytes),
        cmocka_unit_test(sampling),     cmocka_unit_test(many_reasons), cmocka_unit_test(nobody_reads),
        cmocka_unit_test(refusals_are_sampled), cmocka_unit_test(requests_have_lines),
        cmocka_unit_test(drops_have_lines),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
