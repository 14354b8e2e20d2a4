/* TLS: a certificate with its chain and the key that belongs to it, and how connections use them. By OpenSSL,
 * which libwebsockets itself is built on; tls_absent.c stands in where the server is not built.
 *
 * Note: a connection takes the pair in the middle of its handshake (tls_attach), not from the context. So
 * another pair may take its place between two handshakes, whole, even with a key of another kind. */
#ifndef SERVE_TLS_H
#define SERVE_TLS_H

#include "openpi.h"

enum { TLS_UNTIL = 64 };

typedef struct tls_pair tls_pair;

/* Both files in PEM; the certificate's file holds its chain after it. One sentence names the file that cannot
 * be used: the key not where it belongs to another certificate, is encrypted, or can be read by everybody. */
openpi_status tls_read(const char *certificate, const char *key, tls_pair **out, openpi_error *error);
void tls_free(tls_pair *pair);
/* When the certificate ends, as text. */
const char *tls_until(const tls_pair *pair);

/* Handshakes of this context (an SSL_CTX) speak TLS 1.2 or newer and use the pair that *pair points to when
 * they happen. Returns 0 where that cannot be.
 *
 * Note: nothing follows a handshake of TLS 1.3, no session ticket either. Python's TLS sockets do not bear a
 * thread that reads a ticket while another one sends (CPython issue 151508), which is what openpi's client
 * does in its first moment: 2 to 5 of 1,000 connections stood still until they were given up. */
int tls_attach(void *context, tls_pair *const *pair);

#endif
