/* A TLS client of a test, and certificates that the test makes itself. After its handshake a connection is a
 * plain socket again, so that websocket.h serves: a child process passes the bytes on. Include after cmocka.h
 * and scratch.h. */
#ifndef TESTS_TLS_PEER_H
#define TESTS_TLS_PEER_H

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "websocket.h"

/* ---- certificates ----------------------------------------------------------------------------------- */

/* bits 0: of an elliptic curve. */
static inline EVP_PKEY *tls_key(unsigned bits) {
    EVP_PKEY *key = bits ? EVP_RSA_gen(bits) : EVP_EC_gen("P-256");
    assert_non_null(key);
    return key;
}

/* A certificate for this name that signs itself. */
static inline X509 *tls_certificate(EVP_PKEY *key, const char *name) {
    X509 *made = X509_new();
    assert_non_null(made);
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), 24 * 3600);
    X509_set_pubkey(made, key);
    X509_NAME *subject = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(made, subject);
    assert_true(X509_sign(made, key, EVP_sha256()) > 0);
    return made;
}

static inline FILE *tls_file(scratch *folder, const char *name, mode_t mode) {
    unlink(scratch_path(folder, name));
    FILE *file = fopen(scratch_path(folder, name), "wb");
    assert_non_null(file);
    assert_int_equal(chmod(folder->path, mode), 0);
    return file;
}

static inline void tls_write_key(scratch *folder, const char *name, EVP_PKEY *key, const char *passphrase) {
    FILE *file = tls_file(folder, name, 0600);
    assert_int_equal(PEM_write_PrivateKey(file, key, passphrase ? EVP_aes_128_cbc() : NULL,
                                          (const unsigned char *)passphrase,
                                          passphrase ? (int)strlen(passphrase) : 0, NULL, NULL), 1);
    fclose(file);
}

static inline void tls_write_certificate(scratch *folder, const char *name, EVP_PKEY *key,
                                         const char *subject) {
    FILE *file = tls_file(folder, name, 0644);
    X509 *made = tls_certificate(key, subject);
    assert_int_equal(PEM_write_X509(file, made), 1);
    X509_free(made);
    fclose(file);
}

/* A new key and its certificate, in two files. */
static inline void tls_write_pair(scratch *folder, const char *certificate, const char *key, unsigned bits,
                                  const char *subject) {
    EVP_PKEY *made = tls_key(bits);
    tls_write_key(folder, key, made, NULL);
    tls_write_certificate(folder, certificate, made, subject);
    EVP_PKEY_free(made);
}

/* ---- connections ------------------------------------------------------------------------------------ */

/* After a handshake with TLS 1.3 comes data and nothing else, or Python's clients may stand still (tls.h). */
static inline void tls_no_ticket(int sent, int version, int type, const void *bytes, size_t count, SSL *tls,
                                 void *context) {
    (void)version;
    (void)tls;
    (void)context;
    if (sent || type != SSL3_RT_HANDSHAKE || !count) return;
    fprintf(stderr, "a handshake message of kind %d came after the handshake\n", *(const uint8_t *)bytes);
    _exit(1);
}

/* Passes bytes on in both directions until one side ends. Does not return. */
static inline void tls_pass(SSL *tls, int secret, int plain) {
    static char bytes[1 << 16];
    SSL_set_msg_callback(tls, tls_no_ticket);
    for (int fd = 3; fd < 1024; fd++)        /* or others' sockets would stay open in here                 */
        if (fd != secret && fd != plain) close(fd);
    for (;;) {
        struct pollfd both[2] = {{.fd = secret, .events = POLLIN}, {.fd = plain, .events = POLLIN}};
        int waiting = SSL_pending(tls) > 0;
        if (poll(both, 2, waiting ? 0 : -1) < 0) _exit(1);
        if (waiting || both[0].revents) {
            int got = SSL_read(tls, bytes, sizeof bytes);
            if (got <= 0 || send(plain, bytes, (size_t)got, MSG_NOSIGNAL) != got) _exit(0);
        }
        if (both[1].revents) {
            ssize_t got = recv(plain, bytes, sizeof bytes, 0);
            if (got <= 0 || SSL_write(tls, bytes, (int)got) <= 0) _exit(0);
        }
    }
}

typedef struct tls_peer {
    int fd;                      /* -1: no handshake                                                       */
    int version;                 /* TLS1_2_VERSION …                                                       */
    char subject[64];            /* subject in the server's certificate                                    */
} tls_peer;

static inline void tls_look(SSL *tls, tls_peer *peer) {
    X509 *certificate = SSL_get1_peer_certificate(tls);
    assert_non_null(certificate);
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, peer->subject,
                              sizeof peer->subject);
    X509_free(certificate);
    peer->version = SSL_version(tls);
}

/* A handshake with versions from `least` to `most`; 0: any. */
static inline tls_peer tls_connect(int port, int least, int most) {
    tls_peer peer = {.fd = -1};
    struct timeval time = {.tv_sec = WS_SECONDS};
    int secret = ws_socket(port), pair[2];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    assert_non_null(context);
    SSL_CTX_set_min_proto_version(context, least);
    SSL_CTX_set_max_proto_version(context, most);
    SSL_CTX_set_security_level(context, 0);                    /* or OpenSSL itself would refuse TLS 1.1    */
    SSL *tls = SSL_new(context);
    assert_non_null(tls);
    SSL_set_fd(tls, secret);
    if (SSL_connect(tls) == 1) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        tls_look(tls, &peer);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            tls_pass(tls, secret, pair[1]);
        }
        close(pair[1]);
        peer.fd = pair[0];
        setsockopt(peer.fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    }
    ERR_clear_error();
    SSL_free(tls);
    SSL_CTX_free(context);
    close(secret);
    return peer;
}

#endif
