/* labels: server links=serve */
/* Tokens of `openpi serve`: SHA-256, every line that a file may not have, and who may connect as what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "scratch.h"
#include "command.h"
#include "served.h"
#include "websocket.h"
#include "serve/serve.h"
#include "serve/who/tokens.h"

#define TINY "--synthetic tiny --robot aloha --horizon 5 --steps 1"

static void hex_of(const char *text, size_t count, char hex[2 * DIGEST_BYTES + 1]) {
    uint8_t digest[DIGEST_BYTES];
    assert_true(digest_sha256(text, count, digest));
    for (int i = 0; i < DIGEST_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

/* ---- SHA-256 ---------------------------------------------------------------------------------------- */

/* Examples of FIPS 180-2 and of NIST's SHA256ShortMsg.rsp. */
static void vectors_of_nist(void **state) {
    (void)state;
    enum { MILLION = 1000000 };
    static const struct {
        const char *text, *digest;
    } table[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"},
        {"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[2 * DIGEST_BYTES + 1], *much = malloc(MILLION);
    assert_non_null(much);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        hex_of(table[i].text, strlen(table[i].text), hex);
        assert_string_equal(hex, table[i].digest);
    }
    memset(much, 'a', MILLION);
    hex_of(much, MILLION, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(much);
}

static void digests_are_compared_whole(void **state) {
    (void)state;
    uint8_t a[DIGEST_BYTES] = {1}, b[DIGEST_BYTES];
    for (int i = 0; i < DIGEST_BYTES; i++) {
        memcpy(b, a, sizeof b);
        assert_true(digest_equal(a, b));
        b[i] ^= 0x10;
        assert_false(digest_equal(a, b));
    }
}

/* ---- files ------------------------------------------------------------------------------------------ */

#define A "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"          /* of "abc"           */
#define B "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"
#define C "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"
#define NAME_63 "n23456789012345678901234567890123456789012345678901234567890123"

static openpi_status open_text(const char *text, size_t count, tokens *all, openpi_error *error) {
    *all = (tokens){.count = 0};
    assert_int_equal(scratch_write(&box, "tokens", text, count), 0);
    return tokens_open(scratch_path(&box, "tokens"), all, error);
}

/* What everybody can write is nobody's list; what a file says reaches a terminal escaped. */
static void files_of_others(void **state) {
    (void)state;
    static const char good[] = "arm shared - " A "\n", odd[] = "a\033[31mb shared - " A "\n";
    tokens all;
    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(scratch_write(&box, "tokens", good, sizeof good - 1), 0);
    assert_int_equal(chmod(scratch_path(&box, "tokens"), 0666), 0);
    memset(&all, 0x5a, sizeof all);        /* tokens_open reads nothing of it                               */
    assert_int_equal(tokens_open(scratch_path(&box, "tokens"), &all, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "everybody on this machine can write the tokens (mode 666)"));
    assert_int_equal(chmod(scratch_path(&box, "tokens"), 0664), 0);
    assert_int_equal(tokens_open(scratch_path(&box, "tokens"), &all, &error), OPENPI_OK);
    tokens_close(&all);
    assert_int_equal(open_text(odd, sizeof odd - 1, &all, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "the name is 'a\\u001b[31mb'"));
}

static void files_that_are_read(void **state) {
    (void)state;
    tokens all;
    openpi_error error = OPENPI_ERROR_INIT;
    static const char text[] = "# robots\n\n  arm_1 reserved 2.5 " A " # the left one\r\n"
                               "\t" NAME_63 "\tshared\t-\t" B;
    assert_int_equal(open_text(text, sizeof text - 1, &all, &error), OPENPI_OK);
    assert_int_equal(all.count, 2);
    assert_string_equal(all.items[0].name, "arm_1");
    assert_int_equal(all.items[0].class, SCHEDULER_RESERVED);
    assert_true(all.items[0].rate == 2.5);
    assert_string_equal(all.items[1].name, NAME_63);
    assert_int_equal(all.items[1].class, SCHEDULER_SHARED);
    assert_int_equal(all.items[1].digest[0], 0xe3);
    tokens_close(&all);
}

static void lines_that_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } table[] = {
        {"", "has no token"},
        {"# nobody\n", "has no token"},
        {"a\n", ", line 1: 1 fields, expected 4"},
        {"a shared - " A "\nb shared " B "\n", ", line 2: 3 fields, expected 4"},
        {"\n\na shared - " A " b\n", ", line 3: more than 4 fields"},
        {"a/b shared - " A "\n", ", line 1: the name is 'a/b'"},
        {NAME_63 "4 shared - " A "\n", "expected 1 to 63 letters"},
        {"a Shared - " A "\n", ", line 1: the class of 'a' is 'Shared', expected reserved, shared or admin"},
        {"a shared 10 " A "\n", "the rate of 'a' is '10'; a shared token has none"},
        {"a reserved - " A "\n", "the rate of 'a' is '-', expected calls a second"},
        {"a reserved 0 " A "\n", "the rate of 'a' is '0'"},
        {"a reserved 1001 " A "\n", "above 0 and at most 1000"},
        {"a reserved 10Hz " A "\n", "the rate of 'a' is '10Hz'"},
        {"a reserved nan " A "\n", "the rate of 'a' is 'nan'"},
        {"a reserved -3 " A "\n", "the rate of 'a' is '-3'"},
        {"a shared - " A "0\n", "the key of 'a' is not a SHA-256, expected 64 hex digits"},
        {"a shared - g" A "\n", "the key of 'a' is not a SHA-256"},
        {"a shared - secret\n", "the key of 'a' is not a SHA-256"},
        {"a shared - " A "\na shared - " B "\n", ", line 2: 'a' has the name of an earlier token"},
        {"a shared - " A "\n\nb shared - " A "\n", ", line 3: 'b' has the key of an earlier token, a"},
        {"a shared - " A "\na shared - " B "\nb\n", ", line 2: 'a' has the name of an earlier token"},
        {"a shared - " A "\nb\na shared - " B "\n", ", line 2: 1 fields, expected 4"},
        {"b shared - " C "\na shared - " A "\nb shared - " B "\na shared - " C "\n",
         ", line 3: 'b' has the name of an earlier token"},
        {"a shared - " C "\nb shared - " B "\nc shared - " C "\nd shared - " B "\na shared - " A "\n",
         ", line 3: 'c' has the key of an earlier token, a"},
        {"a shared - " C "\nb shared - " B "\na shared - " B "\n", ", line 3: 'a' has the name of"},
        {"b shared - " C "\na shared - " B "\na shared - " C "\n",
         ", line 3: 'a' has the key of an earlier token, b"},
        {"a shared - " A "\na shared - " A "\na shared - " A "\n", ", line 2: 'a' has the name of"},
    };
    char line[2000];
    tokens all;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        assert_int_not_equal(open_text(table[i].text, strlen(table[i].text), &all, &error), OPENPI_OK);
        if (!strstr(error.message, table[i].part))
            fail_msg("\"%s\": \"%s\", expected \"%s\"", table[i].text, error.message, table[i].part);
        assert_non_null(strstr(error.message, "/tokens"));
        assert_null(strstr(error.message, "secret"));
        assert_null(all.items);
    }
    openpi_error error = OPENPI_ERROR_INIT;
    memset(line, ' ', sizeof line);
    line[sizeof line - 1] = '\n';
    assert_int_not_equal(open_text(line, sizeof line, &all, &error), OPENPI_OK);
    assert_non_null(strstr(error.message, ", line 1: longer than 1022 bytes"));
    assert_int_not_equal(open_text("a\0b\n", 4, &all, &error), OPENPI_OK);
    assert_int_not_equal(tokens_open("/no/such/file", &all, &error), OPENPI_OK);
    assert_non_null(strstr(error.message, "/no/such/file"));
}

/* What the key of one token of many is. */
static void digest_of(int number, uint8_t digest[DIGEST_BYTES]) {
    char key[16];
    assert_true(digest_sha256(key, (size_t)snprintf(key, sizeof key, "%d", number), digest));
}

/* As many tokens as a file may have, every seventh an admin's. Were each compared with each, this would take
 * minutes, in which a server answers nobody: a clock of the time that it runs ends the test then. */
static void as_many_as_may_be(void **state) {
    (void)state;
    enum { MANY = 100000, LINE = 120, SECONDS = 30 };
    char *text = malloc((MANY + 1) * (size_t)LINE), hex[2 * DIGEST_BYTES + 1], key[16];
    size_t bytes = 0, last = 0;
    uint8_t digest[DIGEST_BYTES];
    tokens all;
    openpi_error error = OPENPI_ERROR_INIT;
    assert_non_null(text);
    for (int i = 0; i < MANY; i++) {
        hex_of(key, (size_t)snprintf(key, sizeof key, "%d", i), hex);
        last = bytes;
        bytes += (size_t)snprintf(text + bytes, LINE, "n%d %s - %s\n", i, i % 7 ? "shared" : "admin", hex);
    }
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = SECONDS}}, NULL);
    assert_int_equal(open_text(text, bytes, &all, &error), OPENPI_OK);
    assert_int_equal(all.count, MANY);
    for (int i = 0; i < MANY; i++) {
        digest_of(i, digest);
        assert_memory_equal(all.items[i].digest, digest, DIGEST_BYTES);
        assert_int_equal(tokens_has_robot(&all, digest), i % 7 != 0);
        digest_of(MANY + i, digest);
        assert_false(tokens_has_robot(&all, digest));
    }
    assert_ptr_equal(tokens_find(&all, "Bearer 99999"), &all.items[MANY - 1]);
    tokens_close(&all);
    hex_of("one more", 8, hex);
    bytes += (size_t)snprintf(text + bytes, LINE, "more shared - %s\n", hex);
    assert_int_equal(open_text(text, bytes, &all, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, ", line 100001: more than 100000 tokens"));
    hex_of("1", 1, hex);
    bytes = last + (size_t)snprintf(text + last, LINE, "again shared - %s\n", hex);
    assert_int_not_equal(open_text(text, bytes, &all, &error), OPENPI_OK);
    assert_non_null(strstr(error.message, ", line 100000: 'again' has the key of an earlier token, n1"));
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {0}}, NULL);
    free(text);
}

static void keys_in_headers(void **state) {
    (void)state;
    tokens all;
    openpi_error error = OPENPI_ERROR_INIT;
    static const char text[] = "empty shared - " B "\nabc shared - " A "\n";
    static const char *const good[] = {"Api-Key abc", "Bearer abc", "bearer  abc", "API-KEY abc"};
    static const char *const bad[] = {"",          "abc",       "Basic abc",  "Bearer",     "Bearer ",
                                      "Bearer ab", "Bearerabc", "Bearer abcd", "Api-Key abc "};
    assert_int_equal(open_text(text, sizeof text - 1, &all, &error), OPENPI_OK);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ptr_equal(tokens_find(&all, good[i]), &all.items[1]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_null(tokens_find(&all, bad[i]));
    tokens_close(&all);
}

/* ---- the command ------------------------------------------------------------------------------------ */

/* A pipe that nobody writes to, in place of a file. */
static void make_pipe(const char *name) {
    unlink(scratch_path(&box, name));
    assert_int_equal(mkfifo(scratch_path(&box, name), 0600), 0);
}

/* The line names the key that was printed, and two keys differ. */
static void new_tokens(void **state) {
    (void)state;
    char keys[2][65], want[2 * DIGEST_BYTES + 1], line[200];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run("serve --new-token arm%d --class reserved --rate 10", i), 0);
        const char *key = strstr(err, ": ");
        assert_non_null(key);
        assert_int_equal(strlen(key), 2 + 64 + 1);
        snprintf(keys[i], sizeof keys[i], "%.64s", key + 2);
        hex_of(keys[i], 64, want);
        snprintf(line, sizeof line, "arm%d reserved 10 %s\n", i, want);
        assert_string_equal(out, line);
    }
    assert_string_not_equal(keys[0], keys[1]);
    assert_int_equal(run("serve --new-token desk"), 0);
    assert_memory_equal(out, "desk shared - ", 14);
    must_refuse("serve --new-token 'a b'", "--new-token is 'a b'");
    must_refuse("serve --new-token a --class reserved", "--rate");
    must_refuse("serve --new-token a --rate 3", "--class reserved");
    must_refuse("serve " TINY " --rate 3", "--new-token");
    must_refuse("serve " TINY " --port 0 --tokens /no/such/file", "/no/such/file");
    must_refuse("serve " TINY " --port 0 --tokens .", "cannot read .: Is a directory");
    make_pipe("pipe");
    must_refuse("serve " TINY " --port 0 --tokens pipe", "read pipe: Is a pipe, expected a regular file");
    must_refuse("serve " TINY " --port 0 --tokens /dev/zero", "/dev/zero: Is a device, expected");
    assert_int_equal(scratch_write(&box, "tokens", "", 0), 0);
    assert_int_equal(truncate(scratch_path(&box, "tokens"), (1 << 24) + 1), 0);
    must_refuse("serve " TINY " --port 0 --tokens tokens", "16777217 bytes, expected at most 16777216");
}

/* ---- the wire --------------------------------------------------------------------------------------- */

static int upgrade(int port, const char *authorization, char head[1024]) {
    char more[900];
    snprintf(more, sizeof more, "%s%s%s%s", WS_UPGRADE, *authorization ? "Authorization: " : "",
             authorization, *authorization ? "\r\n" : "");
    return ws_request(port, "/", more, head, 1024);
}

/* The status of the handshake, which is then closed. */
static int status_of(int port, const char *authorization) {
    char head[1024];
    close(upgrade(port, authorization, head));
    assert_memory_equal(head, "HTTP/1.1 ", 9);
    return atoi(head + 9);
}

/* desk, which is shared; greedy; and for each power of two from 1/128 on two robots of that rate. */
enum { RATES = 34 };

/* From 1/128 to 724 calls a second, each 1.41 times the one before. */
static double rate_of(int step) { return (double)(1 << step / 2) / 128 * (step % 2 ? 1.4142 : 1); }

static void write_tokens(void) {
    char text[16384], key[32], hex[2 * DIGEST_BYTES + 1];
    hex_of("key-of-desk", 11, hex);
    int count = snprintf(text, sizeof text, "desk shared - %s\n", hex);
    hex_of("key-of-greedy", 13, hex);
    count += snprintf(text + count, sizeof text - (size_t)count, "greedy reserved 1000 %s\n", hex);
    for (int i = 0; i < 2 * RATES; i++) {
        hex_of(key, (size_t)snprintf(key, sizeof key, "key-of-arm%d", i), hex);
        count += snprintf(text + count, sizeof text - (size_t)count, "arm%d reserved %.9g %s\n", i,
                          rate_of(i / 2), hex);
    }
    assert_int_equal(scratch_write(&box, "tokens", text, (size_t)count), 0);
}

static void must_log(const served *server, const char *part) {
    served_must_log(server, part);
    char *log = served_log(server);
    assert_null(strstr(log, "key-of-"));
    free(log);
}

static void only_tokens_connect(void **state) {
    (void)state;
    served server;
    char head[1024];
    write_tokens();
    served_start(&server, &box, TINY " --threads 2 --tokens '%s'", scratch_path(&box, "tokens"));
    static const char *const strangers[] = {"", "Bearer key-of-nobody", "Api-Key key-of-des",
                                            "Basic key-of-desk"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        assert_int_equal(status_of(server.port, strangers[i]), 401);
    must_log(&server, "refused: no token, or an unknown one");
    close(upgrade(server.port, "", head));
    assert_non_null(strstr(head, "WWW-Authenticate: Bearer\r\n"));
    int health = ws_request(server.port, "/healthz", "", head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    close(health);
    int desk = upgrade(server.port, "Api-Key key-of-desk", head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(desk, WS_BINARY).data);
    must_log(&server, "desk #1 connected\n");
    int arm = upgrade(server.port, "Bearer key-of-arm0", head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(arm, WS_BINARY).data);
    must_log(&server, "arm0 #2 connected, reserved, 0.0078125 calls a second\n");
    ws_send(arm, WS_TEXT, 1, "hi", 2);
    ws_expect_close(arm, 1003);
    must_log(&server, "arm0 #2 dropped: a text message");
    close(desk);
    served_stop(&server);
}

/* SIGHUP, and waits for another line with this text. */
static void read_again(const served *server, const char *text) {
    int before = 0, now = 0;
    for (int i = 0; i < 12000 && (i < 1 || now <= before); i++) {
        char *log = served_log(server);
        now = 0;
        for (const char *at = log; (at = strstr(at, text)); at++) now++;
        free(log);
        if (!i) {
            before = now;
            kill(server->pid, SIGHUP);
        }
        served_sleep(10);
    }
    if (now <= before) fail_msg("no line with \"%s\" after SIGHUP", text);
}

static int connect_as(const served *server, const char *key) {
    char head[1024], authorization[80];
    snprintf(authorization, sizeof authorization, "Bearer %s", key);
    int fd = upgrade(server->port, authorization, head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(fd, WS_BINARY).data);
    return fd;
}

/* A request that is an empty map is answered with a sentence. */
static void must_be_served(int fd) {
    ws_send(fd, WS_BINARY, 1, "\x80", 1);
    free(ws_expect(fd, WS_TEXT).data);
}

static void leave(int fd) {
    ws_send(fd, WS_CLOSE, 1, "\x03\xe8", 2);
    free(ws_expect(fd, WS_CLOSE).data);
    close(fd);
}

/* Keys by name, and lines of a file with one. */
static void write_lines(const char *const lines[][3], int count) {
    char text[1024], key[64], hex[2 * DIGEST_BYTES + 1];
    int bytes = 0;
    for (int i = 0; i < count; i++) {
        hex_of(key, (size_t)snprintf(key, sizeof key, "key-of-%s", lines[i][0]), hex);
        bytes += snprintf(text + bytes, sizeof text - (size_t)bytes, "%s %s %s %s\n", lines[i][0],
                          lines[i][1], lines[i][2], hex);
    }
    assert_int_equal(scratch_write(&box, "tokens", text, (size_t)bytes), 0);
}

/* Who is in the file no more is closed, who is new may come, and the others stay. */
static void tokens_are_read_again(void **state) {
    (void)state;
    static const char *const first[][3] = {{"left", "shared", "-"}, {"right", "shared", "-"},
                                           {"arm", "reserved", "0.008"}, {"boss", "admin", "-"}};
    static const char *const second[][3] = {{"right", "shared", "-"}, {"arm", "reserved", "0.004"},
                                            {"new", "shared", "-"}, {"boss", "admin", "-"}};
    served server;
    write_lines(first, 4);
    served_start(&server, &box, TINY " --threads 2 --tokens '%s'", scratch_path(&box, "tokens"));
    int left = connect_as(&server, "key-of-left"), right = connect_as(&server, "key-of-right");
    int arm = connect_as(&server, "key-of-arm");
    assert_int_equal(status_of(server.port, "Bearer key-of-new"), 401);
    write_lines(second, 4);
    read_again(&server, "the tokens are read again: ");
    must_log(&server, "/tokens, tokens: 4, connections closed: 1\n");
    ws_expect_close(left, 1008);
    must_be_served(right);
    must_be_served(arm);
    assert_int_equal(status_of(server.port, "Bearer key-of-left"), 401);
    close(connect_as(&server, "key-of-new"));
    close(connect_as(&server, "key-of-arm"));
    must_log(&server, "arm #5 connected, reserved, 0.004 calls a second\n");
    write_lines(second, 3);                  /* without the admin                                          */
    read_again(&server, "the tokens stay as they were: ");
    must_log(&server, "/tokens has no token of the class admin any more");
    assert_int_equal(scratch_write(&box, "tokens", "right\n", 6), 0);
    read_again(&server, "the tokens stay as they were: ");
    must_log(&server, "/tokens, line 1: 1 fields, expected 4");
    make_pipe("tokens");
    read_again(&server, "the tokens stay as they were: ");
    must_log(&server, "/tokens: Is a pipe, expected a regular file");
    char head[1024];
    close(ws_request(server.port, "/healthz", "", head, sizeof head));
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    must_be_served(right);
    close(connect_as(&server, "key-of-new"));
    close(right);
    close(arm);
    served_stop(&server);
}

/* How many calls a second can be reserved depends on the machine, and the server says it, in four digits. Of
 * two robots that each take more than half of it the second is refused, and is served when the first has
 * left. A token's second connection reserves nothing more, and keeps what the first one reserved. */
static void rates_are_reserved(void **state) {
    (void)state;
    served server;
    char head[1024], key[2][32];
    int step = 0, status = 503;
    write_tokens();
    served_start(&server, &box, TINY " --threads 1 --tokens '%s'", scratch_path(&box, "tokens"));
    assert_int_equal(status_of(server.port, "Bearer key-of-greedy"), 503);
    must_log(&server, "greedy refused: it reserves 1000 calls a second, but 0 of at most ");
    char *log = served_log(&server);
    double most = atof(strstr(log, "but 0 of at most ") + 17);
    free(log);
    while (step + 1 < RATES && rate_of(step + 1) < .98 * most) step++;
    assert_true(2 * rate_of(step) > 1.02 * most);
    for (int i = 0; i < 2; i++) snprintf(key[i], sizeof key[i], "Bearer key-of-arm%d", 2 * step + i);
    int first = upgrade(server.port, key[0], head);
    assert_memory_equal(head, "HTTP/1.1 101 ", 13);
    free(ws_expect(first, WS_BINARY).data);
    assert_int_equal(status_of(server.port, key[1]), 503);
    assert_int_equal(status_of(server.port, "Bearer key-of-desk"), 101);
    int again = connect_as(&server, key[0] + 7);
    leave(first);
    must_be_served(again);
    assert_int_equal(status_of(server.port, key[1]), 503);
    leave(again);
    for (int i = 0; i < 6000 && status == 503; i++) {
        status = status_of(server.port, key[1]);
        served_sleep(10);
    }
    assert_int_equal(status, 101);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_nist),     cmocka_unit_test(digests_are_compared_whole),
        cmocka_unit_test(files_of_others),
        cmocka_unit_test(files_that_are_read), cmocka_unit_test(lines_that_are_refused),
        cmocka_unit_test(as_many_as_may_be),   cmocka_unit_test(keys_in_headers),
        cmocka_unit_test(new_tokens),          cmocka_unit_test(only_tokens_connect),
        cmocka_unit_test(rates_are_reserved),  cmocka_unit_test(tokens_are_read_again),
    };
    return cmocka_run_group_tests(tests, open_box, close_box);
}
