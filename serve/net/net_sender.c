/* See net_sender.h. */
#include "net_sender.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net.h"

enum { TEXT = 0x81, BINARY = 0x82, LENGTH_16 = 126, LONGEST_HEAD = 4 };

_Static_assert((int)LONGEST_HEAD <= (int)NET_HEADROOM, "a frame's head fits before a message");
_Static_assert(NET_SENDER_BYTES <= 0xffff, "a frame's length fits in 16 bits");

void net_sender_open(net_sender *sender) {
    pthread_mutex_init(&sender->lock, NULL);
    sender->fd = -1;
}

void net_sender_close(net_sender *sender) { pthread_mutex_destroy(&sender->lock); }

void net_sender_set(net_sender *sender, int fd) {
    pthread_mutex_lock(&sender->lock);
    sender->fd = fd;
    pthread_mutex_unlock(&sender->lock);
}

/* Writes the frame's head before the message. Returns its length. */
static size_t write_head(const net_message *message) {
    size_t head = message->bytes < LENGTH_16 ? 2 : LONGEST_HEAD;
    uint8_t *at = message->data - head;
    at[0] = message->text ? TEXT : BINARY;
    at[1] = head == 2 ? (uint8_t)message->bytes : LENGTH_16;
    if (head == 2) return head;
    at[2] = (uint8_t)(message->bytes >> 8);
    at[3] = (uint8_t)message->bytes;
    return head;
}

/* Whether the client has confirmed every byte that was sent to it. */
static int is_drained(int fd) {
    int waiting = 1;
    return !ioctl(fd, TIOCOUTQ, &waiting) && !waiting;
}

/* Where the kernel takes a part only, because it has no memory, the connection cannot go on. */
static int send_whole(int fd, const uint8_t *bytes, size_t count) {
    ssize_t sent = send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0 && (size_t)sent < count) shutdown(fd, SHUT_RDWR);
    return sent > 0;
}

int net_sender_send(net_sender *sender, net_message *message) {
    if (message->bytes > NET_SENDER_BYTES) return 0;
    size_t head = write_head(message);
    pthread_mutex_lock(&sender->lock);
    int sent = sender->fd >= 0 && is_drained(sender->fd) &&
               send_whole(sender->fd, message->data - head, head + message->bytes);
    if (sent) message->sent = 1;
    pthread_mutex_unlock(&sender->lock);
    return sent;
}
