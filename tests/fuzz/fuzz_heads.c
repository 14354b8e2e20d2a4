/* Bytes that a client sends to a port of `openpi serve`, over a real socket. The input's first byte chooses
 * the port. Promised is that a connection is answered and ended, or a WebSocket, or among those that wait and
 * have a deadline; and that nothing is left of it when its client has left. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "serve/net/net_inside.h"

enum { TURNS = 400 };

static net *server;
static int sockets;              /* WebSockets that are open                                               */

static int asked(void *user, const net_head *head, net_page *page) {
    (void)user;
    PROMISE(head->path && head->host && head->origin && head->authorization && head->address);
    *page = (net_page){.status = 200, .type = "text/plain", .body = "OK\n", .bytes = 3};
    return head->side == NET_ADMIN || !head->upgrade;
}

static void *opened(void *user, net_peer *peer, const net_head *head) {
    (void)user;
    (void)peer;
    PROMISE(head->side == NET_ROBOTS);
    sockets++;
    return &sockets;
}

static int announced(void *connection, size_t bytes, int text) {
    (void)connection;
    return text ? CLOSE_UNSUPPORTED : bytes > 1000 ? CLOSE_TOO_BIG : 0;
}

static int received(void *connection, const uint8_t *bytes, size_t count, int last) {
    (void)connection;
    (void)bytes;
    (void)count;
    (void)last;
    return 0;
}

static void sent(void *connection, net_message *message) {
    (void)connection;
    (void)message;
}

static void closed(void *connection) {
    (void)connection;
    sockets--;
}

static void nothing(void *user) { (void)user; }
static void timed(void *user) {
    (void)user;
    net_stop(server);
}

static void dropped(void *user, const void *connection, const char *address, drop_reason why) {
    (void)user;
    (void)connection;
    PROMISE(address[0] && drop_sentence(why));
}

static void too_often(void *user, const char *address) {
    (void)user;
    (void)address;
}

static void start(void) {
    static const net_events events = {.asked = asked,
                                      .opened = opened,
                                      .announced = announced,
                                      .received = received,
                                      .sent = sent,
                                      .closed = closed,
                                      .woken = nothing,
                                      .timed = timed,
                                      .ticked = nothing,
                                      .dropped = dropped,
                                      .too_often = too_often};
    const net_limits limits = {.handshake = 3600, .message = 3600, .reply = 3600, .ping = 3600,
                               .attempts = 1000000000, .files = 1024, .per_address = 100,
                               .waiting = {100, 100}, .message_bytes = 1000, .in_flight = 1000};
    openpi_error error = OPENPI_ERROR_INIT;
    PROMISE(net_open(&events, NULL, &limits, NULL, &server, &error) == OPENPI_OK);
    for (int side = 0; side < NET_SIDES; side++)
        PROMISE(net_bind(server, (net_side)side, "127.0.0.1", 0, 1, &error) == OPENPI_OK);
    PROMISE(net_listen(server, &error) == OPENPI_OK);
}

static void turn(void) {
    net_after(server, 1);
    net_run(server);
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const struct linger at_once = {.l_onoff = 1};  /* or a port of this machine is used up by each input    */
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    PROMISE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    PROMISE(!connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

/* Whether the server has ended the connection; what came before is read. */
static int has_ended(int fd) {
    char bytes[4096];
    ssize_t got = 1;
    while (got > 0) got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return !got || (errno != EAGAIN && errno != EWOULDBLOCK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (!server) start();
    net_side side = data[0] & 1 ? NET_ADMIN : NET_ROBOTS;
    const waiting *waits = &server->waiting[side];
    int fd = connect_to(net_port(server, side)), known = 0;
    send(fd, data + 1, size - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (int i = 0; i < TURNS && !known; i++) {
        turn();
        known = waits->count + sockets > 0 || has_ended(fd);
    }
    PROMISE(known);
    turn();
    PROMISE(waits->count + sockets == 1 || has_ended(fd));
    close(fd);
    for (int i = 0; i < TURNS && waits->count + sockets > 0; i++) turn();
    PROMISE(!waits->count && !sockets);
    return 0;
}
