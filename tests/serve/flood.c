/* Trouble-makers for a server that runs: bare sockets, which do what a server must bear.
 *
 *   openpi_flood ws://HOST:PORT [--clients N] [--addresses N] [--seconds N]
 *
 * CLIENTS of them (70), of each kind in turn, for SECONDS or until SIGINT or SIGTERM (0, the default); then a
 * line a kind says how many connections were made, were not made, and were ended by the server. With
 * addresses they come from 127.0.1.1 and following, each with all kinds, else from the one that any client
 * here has. Measure robots beside them with `openpi bench --server`; docs/serve-bench.md has the kinds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"

enum {
    HEAD_BYTES = 512 + CLIENT_HOST + CLIENT_PATH,
    SLOW_BYTES = 300000,         /* a slow writer's frame: about a request from DROID                     */
    FRAME_HEAD = 14,
    NOISE_BYTES = 64,
    STEP_MS = 20,
};

#define FLOOD_LIST(X)                                                                                        \
    X(IDLE, "idle")                  /* shakes hands and then says nothing                                 */ \
    X(HALF_OPEN, "half-open")        /* connects and never says anything                                   */ \
    X(SLOW_HEAD, "slow head")        /* sends the handshake a byte at a time                               */ \
    X(SLOW_WRITER, "slow writer")    /* announces a request and sends ten bytes of it a second             */ \
    X(NO_READER, "no reader")        /* sends what fits no robot and never reads the answers               */ \
    X(RECONNECT, "reconnect")        /* shakes hands and hangs up, again and again                         */ \
    X(BROKEN, "broken frames")       /* shakes hands and sends random bytes                                */
typedef enum flood_kind {
#define X(name, text) FLOOD_##name,
    FLOOD_LIST(X)
#undef X
    FLOOD_KINDS
} flood_kind;

typedef struct flood_count {
    int clients;
    long connected, refused, ended;        /* ended: by the server                                        */
} flood_count;

static volatile sig_atomic_t over;

static void end_it(int signal) {
    (void)signal;
    over = 1;
}

/* Milliseconds of the monotonic clock. */
static double clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* A request that fits no robot, an empty map, as a frame masked with zeros: its answer is a sentence. */
static const uint8_t misfit[] = {0x82, 0x81, 0, 0, 0, 0, 0x80};

static const char *const names[] = {
#define X(name, text) text,
    FLOOD_LIST(X)
#undef X
};

/* How long each kind rests: after the server ended its connection, and between two things that it does. */
static const struct {
    double again_ms, step_ms;
} rests[FLOOD_KINDS] = {
    [FLOOD_IDLE] = {1000, INFINITY},
    [FLOOD_HALF_OPEN] = {1000, INFINITY},
    [FLOOD_SLOW_HEAD] = {1000, 500},
    [FLOOD_SLOW_WRITER] = {1000, 100},
    [FLOOD_NO_READER] = {1000, STEP_MS},
    [FLOOD_RECONNECT] = {200, 100},
    [FLOOD_BROKEN] = {200, STEP_MS},
};

typedef struct pest {
    flood_kind kind;
    int fd;                      /* -1: none                                                              */
    int from;                    /* the number of its own address, from 1 on; 0: none of its own           */
    int connecting;
    size_t head_sent;            /* bytes of the handshake                                                */
    size_t frame_sent;           /* bytes of the frame that goes on now                                   */
    double due_ms;
} pest;

typedef struct flood {
    struct addrinfo *found;
    char head[HEAD_BYTES];
    size_t head_bytes;
    uint8_t *slow;               /* [SLOW_BYTES] a frame of a large request, masked with zeros            */
    uint64_t seed;
    int count, addresses;        /* addresses 0: none of their own                                        */
    double seconds;              /* 0: until a signal comes                                               */
    pest *pests;
    struct pollfd *polls;
    flood_count counts[FLOOD_KINDS];
} flood;

/* ---- one connection ------------------------------------------------------------------------------- */

static void hang_up(pest *p, double again_ms) {
    struct linger at_once = {1, 0};
    if (p->kind == FLOOD_RECONNECT) setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(p->fd);
    *p = (pest){.kind = p->kind, .from = p->from, .fd = -1, .due_ms = clock_ms() + again_ms};
}

/* 127.0.1.1 and following. The port is chosen when it connects. Returns 0 where it cannot have it. */
static int take_address(const pest *p) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    int one = 1;
    own.sin_addr.s_addr = htonl(0x7f000100u + (uint32_t)p->from);
    setsockopt(p->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    return !bind(p->fd, (struct sockaddr *)&own, sizeof own);
}

static void dial(flood *f, pest *p) {
    const struct addrinfo *to = f->found;
    int small = 4096;
    p->due_ms = clock_ms() + rests[p->kind].again_ms;
    p->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) {
        f->counts[p->kind].refused++;
        return;
    }
    if (p->kind == FLOOD_NO_READER) setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    p->connecting = 1;
    int bound = !p->from || take_address(p);
    if (bound && (!connect(p->fd, to->ai_addr, to->ai_addrlen) || errno == EINPROGRESS)) return;
    f->counts[p->kind].refused++;
    hang_up(p, rests[p->kind].again_ms);
}

/* Sends up to `most` bytes from data[*sent … bytes). Returns 0 where the connection has ended. */
static int push(pest *p, const void *data, size_t bytes, size_t *sent, size_t most) {
    size_t left = bytes - *sent;
    ssize_t put = send(p->fd, (const char *)data + *sent, left < most ? left : most, MSG_NOSIGNAL);
    if (put > 0) *sent += (size_t)put;
    return put >= 0 || errno == EAGAIN || errno == EWOULDBLOCK;
}

static int push_noise(flood *f, pest *p) {
    uint64_t noise[NOISE_BYTES / 8];
    size_t sent = 0;
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
        f->seed = f->seed * 6364136223846793005u + 1442695040888963407u;
        noise[i] = f->seed ^ f->seed >> 29;
    }
    return push(p, noise, sizeof noise, &sent, sizeof noise);
}

/* The next thing that the kind does. Returns 0 where the connection has ended. */
static int trouble(flood *f, pest *p) {
    if (p->kind == FLOOD_HALF_OPEN) return 1;
    if (p->head_sent < f->head_bytes)
        return push(p, f->head, f->head_bytes, &p->head_sent, p->kind == FLOOD_SLOW_HEAD ? 1 : f->head_bytes);
    switch (p->kind) {
    case FLOOD_SLOW_WRITER: return push(p, f->slow, SLOW_BYTES, &p->frame_sent, 1);
    case FLOOD_NO_READER:
        if (p->frame_sent == sizeof misfit) p->frame_sent = 0;
        return push(p, misfit, sizeof misfit, &p->frame_sent, sizeof misfit);
    case FLOOD_RECONNECT: return 0;
    case FLOOD_BROKEN: return push_noise(f, p);
    default: return 1;
    }
}

/* Reads what there is. Returns 0 where the connection has ended. */
static int swallow(pest *p) {
    char bytes[4096];
    for (;;) {
        ssize_t got = recv(p->fd, bytes, sizeof bytes, 0);
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (!got) return 0;
    }
}

static void step(flood *f, pest *p, short events, double now) {
    flood_count *count = &f->counts[p->kind];
    if (p->fd < 0) {
        if (now >= p->due_ms) dial(f, p);
        return;
    }
    if (p->connecting && (events & (POLLERR | POLLHUP))) {
        count->refused++;
        hang_up(p, rests[p->kind].again_ms);
        return;
    }
    if (p->connecting && !(events & POLLOUT)) return;
    if (p->connecting) {
        p->connecting = 0;
        p->due_ms = now;
        count->connected++;
    }
    int alive = !(events & (POLLERR | POLLHUP)) && (p->kind == FLOOD_NO_READER || swallow(p));
    if (!alive) {
        count->ended++;
        hang_up(p, rests[p->kind].again_ms);
        return;
    }
    if (now < p->due_ms) return;
    p->due_ms = now + rests[p->kind].step_ms;
    if (p->kind == FLOOD_IDLE && p->head_sent < f->head_bytes) p->due_ms = now + STEP_MS;
    if (trouble(f, p)) return;
    count->ended += p->kind != FLOOD_RECONNECT;
    hang_up(p, rests[p->kind].again_ms);
}

static void run(flood *f) {
    double ends = f->seconds > 0 ? clock_ms() + 1000 * f->seconds : INFINITY;
    while (!over && clock_ms() < ends) {
        for (int i = 0; i < f->count; i++) {
            const pest *p = &f->pests[i];
            short reads = p->kind == FLOOD_NO_READER || p->connecting ? 0 : POLLIN;
            f->polls[i] = (struct pollfd){p->fd, (short)(reads | (p->connecting ? POLLOUT : 0)), 0};
        }
        poll(f->polls, (nfds_t)f->count, STEP_MS);
        double now = clock_ms();
        for (int i = 0; i < f->count; i++) step(f, &f->pests[i], f->polls[i].revents, now);
    }
}

/* ---- starting and stopping ------------------------------------------------------------------------ */

static int bad(const char *sentence, const char *word) {
    fprintf(stderr, "openpi_flood: ");
    fprintf(stderr, sentence, word);
    fputc('\n', stderr);
    return 2;
}

static uint8_t *slow_frame(void) {
    uint8_t *frame = calloc(1, SLOW_BYTES);
    if (!frame) return NULL;
    frame[0] = 0x82;
    frame[1] = 0x80 | 127;
    for (int i = 0; i < 8; i++) frame[2 + i] = (uint8_t)((uint64_t)(SLOW_BYTES - FRAME_HEAD) >> 8 * (7 - i));
    return frame;
}

static void raise_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Whether a client of 127.0.1.1 reaches it. */
static int is_loopback(const struct addrinfo *to) {
    if (!to || to->ai_family != AF_INET) return 0;
    return ntohl(((const struct sockaddr_in *)(const void *)to->ai_addr)->sin_addr.s_addr) >> 24 == 127;
}

/* Returns 0, or the status to end with. */
static int find_server(flood *f, const client_address *address) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char port[16];
    snprintf(port, sizeof port, "%d", address->port);
    if (getaddrinfo(address->host, port, &hints, &f->found)) return bad("there is no host %s", address->host);
    if (f->addresses && !is_loopback(f->found))
        return bad("--addresses only reach a server on 127.0.0.1, and this one is on %s", address->host);
    f->head_bytes = (size_t)snprintf(f->head, sizeof f->head,
                                     "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\n"
                                     "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                                     "Sec-WebSocket-Key: b3BlbnBpIGJlbmNoIGZsb28=\r\n\r\n",
                                     address->path, address->host, address->port);
    return 0;
}

static int gather(flood *f) {
    f->pests = calloc((size_t)f->count, sizeof *f->pests);
    f->polls = calloc((size_t)f->count, sizeof *f->polls);
    f->slow = slow_frame();
    if (!f->pests || !f->polls || !f->slow) return bad("out of memory%s", "");
    raise_descriptors();
    for (int i = 0; i < f->count; i++) {
        int from = f->addresses ? 1 + i / FLOOD_KINDS % f->addresses : 0;  /* all kinds from each         */
        f->pests[i] = (pest){.kind = (flood_kind)(i % FLOOD_KINDS), .from = from, .fd = -1};
        f->counts[i % FLOOD_KINDS].clients++;
    }
    return 0;
}

static void show(const flood *f) {
    printf("%-14s %8s %10s %8s %8s\n", "trouble-makers", "clients", "connected", "refused", "ended");
    for (int kind = 0; kind < FLOOD_KINDS; kind++) {
        const flood_count *c = &f->counts[kind];
        if (c->clients)
            printf("%-14s %8d %10ld %8ld %8ld\n", names[kind], c->clients, c->connected, c->refused,
                   c->ended);
    }
}

/* A whole number from `low` to `high`; -1, and said: it is none. */
static int read_number(const char *name, const char *text, int low, int high) {
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (text && end != text && !*end && value >= low && value <= high) return (int)value;
    fprintf(stderr, "openpi_flood: %s is '%s', expected a number from %d to %d\n", name, text ? text : "",
            low, high);
    return -1;
}

/* Returns 0, or the status to end with. */
static int read_words(flood *f, client_address *address, char **words) {
    if (!words[0] || !client_address_read(words[0], address) || address->tls)
        return bad("'%s', expected ws://HOST:PORT [--clients N] [--addresses N] [--seconds N]",
                   words[0] ? words[0] : "");
    for (char **at = words + 1; *at; at += 2) {
        int number = 0;
        if (!strcmp(*at, "--clients")) number = f->count = read_number(*at, at[1], 1, 100000);
        else if (!strcmp(*at, "--addresses")) number = f->addresses = read_number(*at, at[1], 1, 250);
        else if (!strcmp(*at, "--seconds")) f->seconds = number = read_number(*at, at[1], 1, 86400);
        else return bad("there is no option %s", *at);
        if (number < 0) return 2;
    }
    return 0;
}

int main(int count, char **words) {
    static flood f = {.count = 10 * FLOOD_KINDS, .seed = 7};
    client_address address;
    (void)count;
    int end = read_words(&f, &address, words + 1);
    if (!end) end = find_server(&f, &address);
    if (!end) end = gather(&f);
    if (!end) {
        sigaction(SIGINT, &(struct sigaction){.sa_handler = end_it}, NULL);
        sigaction(SIGTERM, &(struct sigaction){.sa_handler = end_it}, NULL);
        run(&f);
        show(&f);
        for (int i = 0; i < f.count; i++)
            if (f.pests[i].fd >= 0) close(f.pests[i].fd);
    }
    if (f.found) freeaddrinfo(f.found);
    free(f.slow);
    free(f.pests);
    free(f.polls);
    return end;
}
