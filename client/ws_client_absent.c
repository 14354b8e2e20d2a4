/* Stands in for ws_client.c where libwebsockets or libuv is not installed. */
#include <stdio.h>

#include "ws_client.h"

ws_client *ws_client_open(const ws_events *events, const ws_address *address, void *client_user,
                          char why[WS_SENTENCE]) {
    (void)events, (void)address, (void)client_user;
    snprintf(why, WS_SENTENCE, "%s",
             "this openpi was built without its network library: install libwebsockets-dev, "
             "libwebsockets-evlib-uv and libuv1-dev and build it again");
    return NULL;
}

void ws_client_close(ws_client *client) { (void)client; }
void ws_client_run(ws_client *client) { (void)client; }
void ws_client_stop(ws_client *client) { (void)client; }
void ws_client_after(ws_client *client, double milliseconds) { (void)client, (void)milliseconds; }

int ws_connect(ws_client *client, const char *key, void *user) {
    (void)client, (void)key, (void)user;
    return 0;
}

void ws_send(ws_socket *socket, uint8_t *data, size_t bytes) { (void)socket, (void)data, (void)bytes; }
