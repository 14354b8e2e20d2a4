/* See tls.h. */
#include "tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve/small/fail.h"
#include "serve/small/regular.h"

/* More would keep the I/O thread too long. Clients of OpenSSL take a chain of at most 100 KiB. */
enum { FILE_BYTES = 1 << 20 };

struct tls_pair {
    X509 *certificate;
    STACK_OF(X509) *chain;
    EVP_PKEY *key;
    char until[TLS_UNTIL];
};

/* ---- files ------------------------------------------------------------------------------------------ */

static openpi_status open_file(const char *path, FILE **out, struct stat *about, openpi_error *error) {
    char why[REGULAR_WHY];
    *out = regular_open(path, FILE_BYTES, about, why);
    if (!*out) return fail(error, OPENPI_BAD_ARGUMENT, "%s: %s", path, why);
    if (!(about->st_mode & S_IWOTH)) return OPENPI_OK;
    fclose(*out);
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s: everybody on this machine can write it (mode %03o), expected at most mode 664", path,
                (unsigned)about->st_mode & 0777);
}

/* What the PEM reader stopped at, which is no error at the file's end. */
static int at_end(void) {
    unsigned long code = ERR_peek_last_error();
    ERR_clear_error();
    return ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
}

static openpi_status read_chain(FILE *file, const char *path, tls_pair *pair, openpi_error *error) {
    pair->certificate = PEM_read_X509(file, NULL, NULL, NULL);
    if (!pair->certificate)
        return fail(error, OPENPI_BAD_ARGUMENT, "%s: %s, expected PEM", path,
                    at_end() ? "holds no certificate" : "holds a broken certificate");
    pair->chain = sk_X509_new_null();
    for (;;) {
        X509 *next = PEM_read_X509(file, NULL, NULL, NULL);
        if (!next) break;
        if (pair->chain && sk_X509_push(pair->chain, next)) continue;
        X509_free(next);
        return fail(error, OPENPI_NO_MEMORY, "%s: no memory for its certificates", path);
    }
    if (at_end()) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT, "%s: certificate %d of its chain is broken", path,
                sk_X509_num(pair->chain) + 2);
}

static openpi_status read_certificate(const char *path, tls_pair *pair, openpi_error *error) {
    FILE *file;
    struct stat about;
    SERVE_TRY(open_file(path, &file, &about, error));
    openpi_status status = read_chain(file, path, pair, error);
    fclose(file);
    return status;
}

/* Nobody is asked for a passphrase. */
static int no_passphrase(char *text, int capacity, int writes, void *asked) {
    (void)text;
    (void)capacity;
    (void)writes;
    *(int *)asked = 1;
    return -1;
}

static openpi_status read_key(const char *path, tls_pair *pair, openpi_error *error) {
    FILE *file;
    struct stat about;
    int encrypted = 0;           /* 1: the reader asked for a passphrase                                   */
    SERVE_TRY(open_file(path, &file, &about, error));
    if (about.st_mode & S_IROTH) {
        fclose(file);
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "%s: everybody on this machine can read the key (mode %03o), expected at most mode 640",
                    path, (unsigned)about.st_mode & 0777);
    }
    pair->key = PEM_read_PrivateKey(file, NULL, no_passphrase, &encrypted);
    fclose(file);
    if (pair->key) return OPENPI_OK;
    ERR_clear_error();
    return fail(error, OPENPI_BAD_ARGUMENT, "%s: %s, expected one in PEM without a passphrase", path,
                encrypted ? "the key is encrypted" : "holds no key, or a broken one");
}

/* ---- a pair ----------------------------------------------------------------------------------------- */

static void read_until(tls_pair *pair) {
    BIO *text = BIO_new(BIO_s_mem());
    int count = 0;
    if (text && ASN1_TIME_print(text, X509_get0_notAfter(pair->certificate)))
        count = BIO_read(text, pair->until, TLS_UNTIL - 1);
    pair->until[count > 0 ? count : 0] = 0;
    BIO_free(text);
}

/* OpenSSL takes both: not where the key is of another certificate, or weaker than its security level. */
static openpi_status try_pair(const tls_pair *pair, const char *certificate, const char *key,
                              openpi_error *error) {
    if (X509_check_private_key(pair->certificate, pair->key) != 1) {
        ERR_clear_error();
        return fail(error, OPENPI_BAD_ARGUMENT, "%s: the key does not belong to the certificate %s", key,
                    certificate);
    }
    SSL_CTX *trial = SSL_CTX_new(TLS_server_method());
    int taken = trial && SSL_CTX_use_cert_and_key(trial, pair->certificate, pair->key, pair->chain, 1) == 1;
    const char *why = taken ? NULL : ERR_reason_error_string(ERR_peek_last_error());
    SSL_CTX_free(trial);
    ERR_clear_error();
    if (taken) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT, "%s: OpenSSL does not take the certificate: %s", certificate,
                why ? why : "no reason given");
}

openpi_status tls_read(const char *certificate, const char *key, tls_pair **out, openpi_error *error) {
    tls_pair *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: a certificate");
    openpi_status status = read_certificate(certificate, made, error);
    if (status == OPENPI_OK) status = read_key(key, made, error);
    if (status == OPENPI_OK) status = try_pair(made, certificate, key, error);
    if (status != OPENPI_OK) {
        tls_free(made);
        return status;
    }
    read_until(made);
    *out = made;
    return OPENPI_OK;
}

void tls_free(tls_pair *pair) {
    if (!pair) return;
    X509_free(pair->certificate);
    sk_X509_pop_free(pair->chain, X509_free);
    EVP_PKEY_free(pair->key);
    free(pair);
}

const char *tls_until(const tls_pair *pair) { return pair->until; }

/* ---- connections ------------------------------------------------------------------------------------ */

/* In the middle of a handshake. */
static int give_pair(SSL *connection, void *place) {
    const tls_pair *pair = *(tls_pair *const *)place;
    SSL_certs_clear(connection);
    return SSL_use_cert_and_key(connection, pair->certificate, pair->key, pair->chain, 1) == 1;
}

int tls_attach(void *context, tls_pair *const *pair) {
    SSL_CTX_set_cert_cb(context, give_pair, (void *)(uintptr_t)pair);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
    return SSL_CTX_set_num_tickets(context, 0) == 1 &&
           SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1;
}
