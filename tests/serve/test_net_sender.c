/* labels: links=serve */
/* A reply that the thread that made it sends itself (serve/net/net_sender.c): its bytes on a connection of
 * this machine, and when nothing may be sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <cmocka.h>

#include "serve/net/net.h"
#include "serve/net/net_sender.h"
#include "websocket.h"

enum { SMALL = 4096, SECONDS = 20 };         /* SECONDS: most that a client waits, no model computes     */

static uint8_t memory[NET_HEADROOM + NET_SENDER_BYTES + 1];
static net_sender sender;
static int server_end, client_end;

/* The client keeps at most `window` bytes unread, the server's kernel as many that wait to be sent; 0: as the
 * system does. */
static void connect_ends(int window, int waiting) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(listening >= 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &length), 0);
    ws_window = window;
    ws_seconds = SECONDS;
    client_end = ws_socket(ntohs(address.sin_port));
    server_end = accept(listening, NULL, NULL);
    assert_true(server_end >= 0);
    if (waiting) setsockopt(server_end, SOL_SOCKET, SO_SNDBUF, &waiting, sizeof waiting);
    close(listening);
    net_sender_open(&sender);
    net_sender_set(&sender, server_end);
}

static void close_ends(void) {
    net_sender_close(&sender);
    close(server_end);
    close(client_end);
}

static net_message make_message(size_t bytes, int text) {
    for (size_t i = 0; i < bytes; i++) memory[NET_HEADROOM + i] = (uint8_t)('a' + (i + bytes) % 26);
    return (net_message){.data = memory + NET_HEADROOM, .bytes = bytes, .text = text};
}

/* Waits until the client's kernel has confirmed all that was sent. */
static void await_confirmed(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    int waiting = 1;
    for (int i = 0; i < 60000 && waiting; i++) {
        assert_int_equal(ioctl(server_end, TIOCOUTQ, &waiting), 0);
        if (waiting) nanosleep(&moment, NULL);
    }
    assert_int_equal(waiting, 0);
}

static void must_arrive(const net_message *message) {
    ws_frame frame = ws_expect(client_end, message->text ? WS_TEXT : WS_BINARY);
    assert_int_equal(frame.bytes, message->bytes);
    assert_memory_equal(frame.data, message->data, frame.bytes);
    free(frame.data);
}

/* One byte of a length up to 125, two beyond. */
static void frames_of_every_length(void **state) {
    (void)state;
    static const size_t lengths[] = {0,   1,   124, 125, 126,  127,  128,   254,  255,
                                     256, 257, 511, 512, 4095, 4096, 32767, NET_SENDER_BYTES};
    connect_ends(0, 0);
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        net_message message = make_message(lengths[i / 2], i % 2);
        await_confirmed();
        assert_int_equal(net_sender_send(&sender, &message), 1);
        assert_int_equal(message.sent, 1);
        must_arrive(&message);
    }
    assert_true(ws_is_there(client_end));
    close_ends();
}

/* While the client has not confirmed all of one message the next one is left to the I/O thread. */
static void not_behind_another(void **state) {
    (void)state;
    connect_ends(SMALL, 0);
    net_message first = make_message(NET_SENDER_BYTES, 0), second = first;
    assert_int_equal(net_sender_send(&sender, &first), 1);
    assert_int_equal(net_sender_send(&sender, &second), 0);
    assert_int_equal(second.sent, 0);
    must_arrive(&first);
    await_confirmed();
    assert_true(ws_is_there(client_end));
    assert_int_equal(net_sender_send(&sender, &second), 1);
    must_arrive(&second);
    close_ends();
}

/* Too long, or on a connection that only the I/O thread sends on: not a byte of it goes out. */
static void left_to_the_loop(void **state) {
    (void)state;
    connect_ends(0, 0);
    net_message message = make_message(NET_SENDER_BYTES + 1, 0);
    assert_int_equal(net_sender_send(&sender, &message), 0);
    message = make_message(100, 0);
    net_sender_set(&sender, -1);
    assert_int_equal(net_sender_send(&sender, &message), 0);
    assert_int_equal(message.sent, 0);
    net_sender_set(&sender, server_end);
    assert_int_equal(net_sender_send(&sender, &message), 1);
    must_arrive(&message);
    assert_true(ws_is_there(client_end));
    close_ends();
}

/* Where the kernel takes a part only, the connection ends: no other message may come after a part. */
static void a_part_is_the_end(void **state) {
    (void)state;
    connect_ends(SMALL, SMALL);
    net_message message = make_message(NET_SENDER_BYTES, 0);
    assert_int_equal(net_sender_send(&sender, &message), 1);
    free(ws_expect(client_end, WS_END).data);
    close_ends();
}

/* A client that is gone ends nobody but itself. */
static void a_client_that_is_gone(void **state) {
    (void)state;
    enum { MOST = 1000 };
    int sent = 1;
    connect_ends(0, 0);
    close(client_end);
    client_end = -1;
    for (int i = 0; i < MOST && sent; i++) {
        net_message message = make_message(100, 0);
        sent = net_sender_send(&sender, &message);
    }
    assert_int_equal(sent, 0);
    close_ends();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_every_length), cmocka_unit_test(not_behind_another),
        cmocka_unit_test(left_to_the_loop),       cmocka_unit_test(a_part_is_the_end),
        cmocka_unit_test(a_client_that_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
