/* Stands in for net.c, net_http.c and net_listen.c in a build without libwebsockets. */
#include "serve/small/fail.h"
#include "net.h"

openpi_status net_open(const net_events *events, void *user, const net_limits *limits, tls_pair *pair,
                       net **out, openpi_error *error) {
    (void)events;
    (void)user;
    (void)limits;
    (void)pair;
    (void)out;
    return fail(error, OPENPI_UNSUPPORTED,
                "this openpi was built without its server: install libwebsockets-dev, libwebsockets-evlib-uv "
                "and libuv1-dev, and build it again");
}

openpi_status net_bind(net *net, net_side side, const char *host, int port, int only_loopback,
                       openpi_error *error) {
    (void)net;
    (void)side;
    (void)host;
    (void)port;
    (void)only_loopback;
    return fail(error, OPENPI_UNSUPPORTED, "there is no network");
}

openpi_status net_inherit(net *net, int first, int count, int only_loopback, openpi_error *error) {
    (void)net;
    (void)first;
    (void)count;
    (void)only_loopback;
    return fail(error, OPENPI_UNSUPPORTED, "there is no network");
}

openpi_status net_listen(net *net, openpi_error *error) {
    (void)net;
    return fail(error, OPENPI_UNSUPPORTED, "there is no network");
}

void net_close(net *net) { (void)net; }

void net_renew(net *net, tls_pair *pair) {
    (void)net;
    (void)pair;
}

int net_port(const net *net, net_side side) { return net && side ? 0 : 0; }
int net_is_plain(const net *net, net_side side) { return !net || side; }
int net_count(const net *net, address_key key) { return net && key.family ? 0 : 0; }

void net_deafen(net *net, net_side side) {
    (void)net;
    (void)side;
}

void net_run(net *net) { (void)net; }
void net_stop(net *net) { (void)net; }
void net_wake(net *net) { (void)net; }

void net_after(net *net, int milliseconds) {
    (void)net;
    (void)milliseconds;
}

void net_every(net *net, int milliseconds) {
    (void)net;
    (void)milliseconds;
}

void net_send(net_peer *peer, net_message *message) {
    (void)peer;
    (void)message;
}

void net_share(net_peer *peer, net_sender *sender) {
    (void)peer;
    (void)sender;
}

void net_end(net_peer *peer, int code, const char *reason) {
    (void)peer;
    (void)code;
    (void)reason;
}

void net_hold(net_peer *peer, int hold) {
    (void)peer;
    (void)hold;
}

void net_rest(net_peer *peer, int milliseconds) {
    (void)peer;
    (void)milliseconds;
}
