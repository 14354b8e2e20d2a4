/* SHA-256, by OpenSSL's libcrypto, which libwebsockets itself needs. digest.c is the only file that includes
 * it; digest_absent.c stands in where the server is not built. */
#ifndef SERVE_DIGEST_H
#define SERVE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 32 };

/* Returns 0 where it cannot be computed. */
int digest_sha256(const void *bytes, size_t count, uint8_t digest[DIGEST_BYTES]);
/* 1: the same. Takes as long wherever they differ. */
int digest_equal(const uint8_t a[DIGEST_BYTES], const uint8_t b[DIGEST_BYTES]);

#endif
