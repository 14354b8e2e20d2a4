/* WebSocket connections of a client, many of them on one loop.
 *
 * All events come from ws_client_run, on its thread.
 *
 * Note: ws_client.c is the only file of the command that includes libwebsockets and libuv. Where they are not
 * installed ws_client_absent.c stands in, whose ws_client_open says so in a sentence. */
#ifndef CLI_BENCH_WS_CLIENT_H
#define CLI_BENCH_WS_CLIENT_H

#include <stddef.h>
#include <stdint.h>

enum { WS_HOST = 256, WS_PATH = 512, WS_SENTENCE = 256, WS_HEADROOM = 32 };

/* ws://HOST[:PORT][/PATH] or wss://… */
typedef struct ws_address {
    char host[WS_HOST], path[WS_PATH];
    int port, tls;
} ws_address;

/* 0: the text is no such address. */
int ws_address_read(const char *text, ws_address *out);
/* The number of the first of the host's addresses that takes a connection, or the host as it stands where
 * none does: "localhost" may be ::1 and 127.0.0.1, and a server listens on one of them. 0: nobody knows the
 * host. */
int ws_address_reach(const ws_address *address, char number[WS_HOST]);

typedef struct ws_client ws_client;
typedef struct ws_socket ws_socket;

typedef struct ws_events {
    /* The handshake is done. The socket is valid until `closed`. */
    void (*opened)(void *user, ws_socket *socket);
    /* A whole message. */
    void (*received)(void *user, const uint8_t *bytes, size_t count, int text);
    /* The kernel has all of the message that was sent. */
    void (*sent)(void *user);
    /* It failed, or was closed, at last by ws_client_close; no event follows. `why`: a few words. */
    void (*closed)(void *user, const char *why);
    /* After ws_client_after; the argument is the client's. */
    void (*timed)(void *client_user);
} ws_events;

/* NULL: `why` has a sentence. */
ws_client *ws_client_open(const ws_events *events, const ws_address *address, void *client_user,
                          char why[WS_SENTENCE]);
void ws_client_close(ws_client *client);

/* Until ws_client_stop. */
void ws_client_run(ws_client *client);
void ws_client_stop(ws_client *client);
/* One `timed` event in so many milliseconds, instead of the one that was ordered before. */
void ws_client_after(ws_client *client, double milliseconds);

/* Begins to connect; `opened` or `closed` follows, perhaps before this returns. `key`: sent as
 * "Authorization: Api-Key KEY"; NULL: nothing is. 0, and no event follows: no memory. */
int ws_connect(ws_client *client, const char *key, void *user);
/* `data` has WS_HEADROOM bytes before it, and is the connection's until `sent` or `closed`. One message at a
 * time. Sending changes the bytes. */
void ws_send(ws_socket *socket, uint8_t *data, size_t bytes);

#endif
