/* A policy server as the source of a runner's chunks: openpi_runner_over_source of openpi.h. It speaks
 * openpi's protocol, with openpi's own server and with `openpi serve`, and connects again where a server is
 * restarted.
 *
 * Calls no function of libopenpi: it knows the structs only. */
#ifndef CLIENT_SOURCE_H
#define CLIENT_SOURCE_H

#include "client/client.h"
#include "openpi_runner.h"

typedef struct client_source_options {
    const char *address;         /* "ws://HOST:PORT", "wss://…"; copied                                    */
    const char *key;             /* a token's key, copied; NULL: none                                      */
    openpi_rtc_mode rtc;         /* as the runner's option; where the server does not know it chunks are
                                    ordinary ones                                                          */
    void (*tell)(void *user, const char *sentence);    /* the server's notes, on the runner's thread; NULL  */
    void *tell_user;
} client_source_options;

/* Connects with the first call, and again after a failure. On success source->close frees it. 0: `why`. */
int client_source_open(const client_source_options *options, openpi_source *source,
                       char why[CLIENT_SENTENCE]);

#endif
