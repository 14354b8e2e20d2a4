/* Stands in for client.c where libwebsockets or libuv is not installed. */
#include <stdio.h>

#include "client.h"

client_loop *client_open(const client_events *events, const client_address *address, void *client_user,
                          char why[CLIENT_SENTENCE]) {
    (void)events, (void)address, (void)client_user;
    snprintf(why, CLIENT_SENTENCE, "%s",
             "this openpi was built without its network library: install libwebsockets-dev, "
             "libwebsockets-evlib-uv and libuv1-dev and build it again");
    return NULL;
}

void client_close(client_loop *loop) { (void)loop; }
void client_run(client_loop *loop) { (void)loop; }
void client_stop(client_loop *loop) { (void)loop; }
void client_after(client_loop *loop, double milliseconds) { (void)loop, (void)milliseconds; }

int client_connect(client_loop *loop, const char *key, void *user) {
    (void)loop, (void)key, (void)user;
    return 0;
}

void client_send(client_socket *socket, const uint8_t *data, size_t bytes) {
    (void)socket, (void)data, (void)bytes;
}
