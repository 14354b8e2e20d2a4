/* labels: server host threads cost links=openssl */
/* `openpi serve` over TLS: what it refuses to start with, which versions it speaks, clients that do not speak
 * it or stop in the middle, and another certificate while connections live on. */
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
#include "tls_peer.h"
#include "admin_client.h"
#include "one_request.h"

#define TINY "--synthetic tiny --robot aloha --threads 2 --steps 1 --horizon 5"

static void start(served *server, const char *more) {
    tls_write_pair(&box, "cert", "key", 0, "first");
    served_start(server, &box, TINY " --tls-cert '%s/cert' --tls-key '%s/key' %s", box.folder, box.folder,
                 more);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void write_text(const char *name, const char *text) {
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
    assert_int_equal(chmod(scratch_path(&box, name), 0600), 0);
}

/* Nobody writes to it. */
static void make_pipe(const char *name) {
    unlink(scratch_path(&box, name));
    assert_int_equal(mkfifo(scratch_path(&box, name), 0600), 0);
}

/* The chain's second certificate is broken. */
static void write_broken_chain(const char *from, const char *to) {
    size_t bytes;
    char *text = slurp(scratch_path(&box, from), &bytes), *all = malloc(2 * bytes + 1);
    assert_non_null(all);
    snprintf(all, 2 * bytes + 1, "%s%s", text, text);
    memset(all + bytes + 60, '*', 20);
    write_text(to, all);
    free(text);
    free(all);
}

static void pairs_that_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *certificate, *key, *sentence;
    } table[] = {
        {"none", "key", "none: No such file or directory"},
        {".", "key", ".: Is a directory, expected a regular file"},
        {"pipe", "key", "pipe: Is a pipe, expected a regular file"},
        {"large", "key", "large: 1048577 bytes, expected at most 1048576"},
        {"text", "key", "text: holds no certificate, expected PEM"},
        {"half", "key", "half: holds a broken certificate"},
        {"chain", "key", "chain: certificate 2 of its chain is broken"},
        {"cert", "none", "none: No such file or directory"},
        {"cert", "pipe", "pipe: Is a pipe, expected a regular file"},
        {"cert", "large", "large: 1048577 bytes, expected at most 1048576"},
        {"cert", "text", "text: holds no key"},
        {"cert", "cert2", "cert2: holds no key"},
        {"cert", "half", "half: holds no key"},
        {"cert", "other", "other: the key does not belong to the certificate"},
        {"cert", "secret", "secret: the key is encrypted, expected one in PEM without a passphrase"},
        {"cert", "open", "open: everybody on this machine can read the key (mode 644), expected at most"},
        {"weak", "weak_key", "weak: OpenSSL does not take the certificate"},
    };
    EVP_PKEY *key = tls_key(0);
    tls_write_key(&box, "key", key, NULL);
    tls_write_key(&box, "open", key, NULL);
    assert_int_equal(chmod(scratch_path(&box, "open"), 0644), 0);
    tls_write_key(&box, "secret", key, "a passphrase");
    tls_write_certificate(&box, "cert", key, "first");
    EVP_PKEY_free(key);
    tls_write_pair(&box, "other_cert", "other", 0, "other");
    tls_write_pair(&box, "weak", "weak_key", 512, "weak");
    write_text("text", "this is no PEM\n");
    write_text("half", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
    write_broken_chain("cert", "chain");
    make_pipe("pipe");
    write_text("large", "");
    assert_int_equal(truncate(scratch_path(&box, "large"), (1 << 20) + 1), 0);
    size_t bytes;
    char *text = slurp(scratch_path(&box, "cert"), &bytes);
    write_text("cert2", text);
    free(text);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char args[600];
        snprintf(args, sizeof args, "serve " TINY " --port 0 --tls-cert %s --tls-key %s",
                 table[i].certificate, table[i].key);
        must_refuse(args, table[i].sentence);
    }
}

/* Another address needs tokens and TLS, or --trust-network. */
static void other_addresses(void **state) {
    (void)state;
    static const char *const refused[] = {"", "--tokens tokens", "--tls-cert cert --tls-key key"};
    char args[600];
    write_text("tokens", "a shared - ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n");
    tls_write_pair(&box, "cert", "key", 0, "first");
    must_refuse("serve " TINY " --port 0 --tls-cert cert", "--tls-cert and --tls-key belong together");
    must_refuse("serve " TINY " --port 0 --tls-key key", "--tls-cert and --tls-key belong together");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(args, sizeof args, "serve " TINY " --port 0 --host 0.0.0.0 %s", refused[i]);
        must_refuse(args, "give --tokens, --tls-cert and --tls-key, or --trust-network");
    }
    served server;
    snprintf(args, sizeof args, "--host 0.0.0.0 --tokens '%s/tokens'", box.folder);
    start(&server, args);
    served_stop(&server);
    served_start(&server, &box, TINY " --host 0.0.0.0 --trust-network");
    served_stop(&server);
}

/* ---- connections ------------------------------------------------------------------------------------ */

static int greet(const tls_peer *peer, const char *authorization) {
    char text[1024], head[1024];
    assert_true(peer->fd >= 0);
    snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n", WS_UPGRADE, authorization);
    ws_put(peer->fd, text, strlen(text));
    ws_head(peer->fd, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 ", 9);
    int status = atoi(head + 9);
    if (status == 101) free(ws_expect(peer->fd, WS_BINARY).data);
    return status;
}

/* A WebSocket; which certificate the server has now. */
static int robot(const served *server, const char *subject) {
    tls_peer peer = tls_connect(server->port, 0, 0);
    assert_int_equal(greet(&peer, ""), 101);
    assert_string_equal(peer.subject, subject);
    return peer.fd;
}

/* The bytes of a reply before its times. */
static ws_frame ask(int fd) {
    ws_send(fd, WS_BINARY, 1, request, request_bytes);
    ws_frame frame = ws_expect(fd, WS_BINARY);
    assert_true(frame.bytes > 5 * 14 * 8);
    frame.bytes = 5 * 14 * 8;
    return frame;
}

static void expect_reply(int fd) { free(ask(fd).data); }

/* The same bytes as without TLS; requests that are read ahead, in pieces, beside each other. */
static void replies(void **state) {
    (void)state;
    enum { ROUNDS = 6 };
    served plain, secret;
    served_start(&plain, &box, TINY);
    int fd = ws_open(plain.port, "/");
    free(ws_expect(fd, WS_BINARY).data);
    ws_frame want = ask(fd);
    close(fd);
    served_stop(&plain);
    start(&secret, "");
    int one = robot(&secret, "first"), two = robot(&secret, "first");
    ws_frame got = ask(one);
    assert_memory_equal(got.data, want.data, want.bytes);
    for (int i = 0; i < ROUNDS; i++) {
        ws_send(one, WS_BINARY, 1, request, request_bytes);
        ws_send(two, WS_BINARY, 0, request, request_bytes / 3);
        ws_send(one, WS_BINARY, 1, request, request_bytes);
        ws_send(two, 0, 1, request + request_bytes / 3, request_bytes - request_bytes / 3);
        for (int k = 0; k < 2; k++) free(ws_expect(one, WS_BINARY).data);
        free(ws_expect(two, WS_BINARY).data);
    }
    free(want.data);
    free(got.data);
    kill(secret.pid, SIGTERM);
    ws_expect_close(one, 1001);
    ws_expect_close(two, 1001);
    assert_int_equal(served_wait(&secret), 0);
}

/* The head of the answer to a GET of the admin port; the body is read. */
static void admin_get(int fd, const char *path, const char *more, char *head, size_t capacity) {
    char text[1024], *length;
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, more);
    ws_put(fd, text, strlen(text));
    ws_head(fd, head, capacity);
    length = strstr(head, "Content-Length: ");
    assert_non_null(length);
    size_t bytes = (size_t)strtoul(length + 16, NULL, 10);
    char *body = malloc(bytes + 1);
    assert_non_null(body);
    assert_true(ws_get(fd, body, bytes));
    free(body);
}

/* The admin port speaks TLS where other machines reach it, and none on loopback. */
static void admin_port(void **state) {
    (void)state;
    served server;
    char head[2048], key[65], header[200], more[600];
    start(&server, "--admin 127.0.0.1:0");
    int fd = ws_socket(server.admin);
    admin_get(fd, "/page.js", "", head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    close(fd);
    served_stop(&server);
    assert_int_equal(run("serve --new-token me --class admin > both"), 0);
    assert_int_equal(sscanf(strstr(err, ": "), ": %64s", key), 1);
    assert_int_equal(run("serve --new-token robot >> both"), 0);
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
    snprintf(more, sizeof more, "--admin 0.0.0.0:0 --tokens '%s/both'", box.folder);
    start(&server, more);
    tls_peer peer = tls_connect(server.admin, 0, 0);
    assert_true(peer.fd >= 0);
    admin_get(peer.fd, "/metrics", "", head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 401 ", 13);
    admin_get(peer.fd, "/metrics", header, head, sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200 ", 13);
    close(peer.fd);
    fd = ws_socket(server.admin);            /* without TLS: no answer                                      */
    ws_put(fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 43);
    ws_head(fd, head, sizeof head);
    assert_null(strstr(head, "200 OK"));
    close(fd);
    served_stop(&server);
}

static void versions(void **state) {
    (void)state;
    static const struct {
        int version, spoken;
    } table[] = {{TLS1_VERSION, 0}, {TLS1_1_VERSION, 0}, {TLS1_2_VERSION, 1}, {TLS1_3_VERSION, 1}};
    served server;
    start(&server, "");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        tls_peer peer = tls_connect(server.port, table[i].version, table[i].version);
        assert_int_equal(peer.fd >= 0, table[i].spoken);
        if (!table[i].spoken) continue;
        assert_int_equal(peer.version, table[i].version);
        assert_int_equal(greet(&peer, ""), 101);
        expect_reply(peer.fd);
        close(peer.fd);
    }
    served_stop(&server);
}

/* Reads to the end of the connection; whatever comes is no HTTP. */
static void must_end(int fd) {
    char bytes[5] = "";
    for (size_t i = 0; ws_get(fd, bytes + i % 4, 1); i++) {}
    assert_memory_not_equal(bytes, "HTTP", 4);
    close(fd);
}

/* Who does not speak TLS, or stops in the middle of the handshake, is cut off, and a robot is served. */
static void strangers(void **state) {
    (void)state;
    static const char head[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const uint8_t hello[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03};
    served server;
    start(&server, "--handshake-timeout 2 --admin 127.0.0.1:0");
    int fd = robot(&server, "first");
    int plain = ws_socket(server.port), mute = ws_socket(server.port), half = ws_socket(server.port);
    ws_put(plain, head, sizeof head - 1);
    kill(server.pid, SIGSTOP);             /* all of it is there when the server accepts the next one      */
    int at_once = ws_socket(server.port);
    ws_put(at_once, head, sizeof head - 1);
    kill(server.pid, SIGCONT);
    ws_put(half, hello, sizeof hello);
    tls_peer silent = tls_connect(server.port, 0, 0);
    expect_reply(fd);
    must_end(plain);
    must_end(at_once);
    must_end(mute);
    must_end(half);
    must_end(silent.fd);
    expect_reply(fd);
    metric_await(server.admin, "openpi_connections_dropped_total{reason=\"tls\"}", 5);
    metric_await(server.admin, "openpi_connections_dropped_total{reason=\"head\"}", 0);
    served_must_log(&server, "127.0.0.1 dropped: no complete TLS handshake, or no complete request head");
    close(fd);
    served_stop(&server);
}

/* Nobody is cut off before --handshake-timeout is over, and then everybody who has not asked for anything is.
 * The clock is openpi_host's, which a signal sets forward by 1,000 s. */
static void strangers_have_their_time(void **state) {
    (void)state;
    static const uint8_t hello[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03};
    served server;
    served_instead = OPENPI_HOST;
    start(&server, "--handshake-timeout 1500 --ping-interval 3600");
    served_instead = NULL;
    int mute = ws_socket(server.port), half = ws_socket(server.port);
    ws_put(half, hello, sizeof hello);
    tls_peer silent = tls_connect(server.port, 0, 0);
    int fd = robot(&server, "first");      /* the last one: the others are accepted                        */
    ws_turn(fd);
    kill(server.pid, SIGWINCH);
    ws_turn(fd);
    assert_true(ws_is_there(mute) && ws_is_there(half) && ws_is_there(silent.fd));
    kill(server.pid, SIGWINCH);
    ws_turn(fd);
    must_end(mute);
    must_end(half);
    must_end(silent.fd);
    close(fd);
    served_stop(&server);
}

static void tokens_over_tls(void **state) {
    (void)state;
    char more[600];
    served server;
    write_text("tokens", "a shared - ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n");
    snprintf(more, sizeof more, "--tokens '%s/tokens'", box.folder);
    start(&server, more);
    tls_peer peer = tls_connect(server.port, 0, 0);
    assert_int_equal(greet(&peer, ""), 401);
    close(peer.fd);
    peer = tls_connect(server.port, 0, 0);
    assert_int_equal(greet(&peer, "Authorization: Api-Key abc\r\n"), 101);
    expect_reply(peer.fd);
    close(peer.fd);
    served_stop(&server);
}

/* Robots of `openpi bench` that do not speak TLS; those who cannot trust the certificate. */
static void strangers_are_told(void **state) {
    (void)state;
    char args[200];
    served server;
    start(&server, "");
    snprintf(args, sizeof args, "bench --server ws://127.0.0.1:%d --seconds 1", server.port);
    must_refuse(args, "the server hangs up without an answer; one that has TLS is asked with wss://");
    snprintf(args, sizeof args, "bench --server wss://127.0.0.1:%d --seconds 1", server.port);
    must_refuse(args, "no server answers there with TLS that can be trusted");
    served_stop(&server);
}

/* ---- another certificate ---------------------------------------------------------------------------- */

/* SIGHUP, and waits for another line with this text. */
static void renew(const served *server, const char *part, int count) {
    kill(server->pid, SIGHUP);
    for (int i = 0; i < WS_SECONDS * 100; i++) {
        char *log = served_log(server);
        int found = 0;
        for (const char *at = strstr(log, part); at; at = strstr(at + 1, part)) found++;
        free(log);
        if (found == count) return;
        served_sleep(10);
    }
    fail_msg("\"%s\" is not %d times in the log", part, count);
}

/* From an elliptic curve to RSA and back; a broken pair leaves the old one; connections live on. */
static void renewal(void **state) {
    (void)state;
    static const char again[] = "the certificate is read again", stays[] = "the certificate stays as it was";
    served server;
    start(&server, "");
    int first = robot(&server, "first");
    tls_write_pair(&box, "cert", "key", 2048, "second");
    int still = robot(&server, "first");
    renew(&server, again, 1);
    int second = robot(&server, "second");
    tls_peer old = tls_connect(server.port, TLS1_2_VERSION, TLS1_2_VERSION);
    assert_string_equal(old.subject, "second");
    write_text("key", "broken");
    renew(&server, stays, 1);
    int third = robot(&server, "second");
    tls_write_pair(&box, "other", "key", 0, "other");
    renew(&server, stays, 2);
    int fourth = robot(&server, "second");
    make_pipe("cert");
    renew(&server, stays, 3);
    unlink(scratch_path(&box, "cert"));
    int fifth = robot(&server, "second");
    tls_write_pair(&box, "cert", "key", 0, "third");
    renew(&server, again, 2);
    int sixth = robot(&server, "third");
    const int all[] = {first, still, second, third, fourth, fifth, sixth};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        expect_reply(all[i]);
        close(all[i]);
    }
    close(old.fd);
    served_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_that_are_refused), cmocka_unit_test(other_addresses),
        cmocka_unit_test(replies),                cmocka_unit_test(admin_port),
        cmocka_unit_test(versions),
        cmocka_unit_test(strangers),              cmocka_unit_test(tokens_over_tls),
        cmocka_unit_test(strangers_are_told),
        cmocka_unit_test(renewal),                cmocka_unit_test(strangers_have_their_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
