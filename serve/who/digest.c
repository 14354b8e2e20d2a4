/* See digest.h. */
#include "digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

int digest_sha256(const void *bytes, size_t count, uint8_t digest[DIGEST_BYTES]) {
    return EVP_Digest(bytes, count, digest, NULL, EVP_sha256(), NULL) == 1;
}

int digest_equal(const uint8_t a[DIGEST_BYTES], const uint8_t b[DIGEST_BYTES]) {
    return !CRYPTO_memcmp(a, b, DIGEST_BYTES);
}
