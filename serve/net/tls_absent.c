/* Stands in for tls.c in a build without libwebsockets. */
#include "serve/small/fail.h"
#include "tls.h"

openpi_status tls_read(const char *certificate, const char *key, tls_pair **out, openpi_error *error) {
    (void)certificate;
    (void)key;
    (void)out;
    return fail(error, OPENPI_UNSUPPORTED, "this openpi was built without its server, and so without TLS");
}

void tls_free(tls_pair *pair) { (void)pair; }
const char *tls_until(const tls_pair *pair) { return pair ? "" : ""; }

int tls_attach(void *context, tls_pair *const *pair) {
    (void)context;
    (void)pair;
    return 0;
}
