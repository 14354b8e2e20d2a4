/* A robot that talks to `openpi serve` with real-time chunking, in C: it moves at its rate while the next
 * chunk is computed.
 *
 *   robot ws://127.0.0.1:8000 RATE STEPS      OPENPI_KEY: the key of a token, where the server wants one
 *
 * One thread and one loop: a timer ticks at the robot's rate, and replies come in between. At a tick the
 * robot takes an observation, sends it if no other one waits for its reply, and executes the next action. A
 * reply replaces the queue of actions, without the steps that were executed since its observation.
 *
 * A server that drains, because it is restarted, closes the connection: the robot executes what is left of
 * its chunk, holds still, and connects again every second.
 *
 * examples/rtc_client.py is the same in Python. WebSocket is client/ws_client.c, on libwebsockets;
 * messages are packed by msgpack-c. This robot is a DROID arm that sees grey: observe() and execute() are
 * yours.
 *
 * `make test` builds build/tests/robot. By hand, in a checkout:
 *   cc -O2 -D_POSIX_C_SOURCE=200809L -I. -o robot examples/robot.c client/ws_client.c \
 *      client/ws_address.c $(pkg-config --cflags --libs libwebsockets libuv) -lmsgpack-c -lm
 * where msgpack's library is msgpackc (Debian 12), with -lmsgpackc. */
#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ws_client.h"

enum {
    SIDE = 224,
    JOINTS = 7,
    DIMS = 8,                    /* numbers in an action: joint velocities and the gripper                 */
    EVERY = 5,                   /* steps of a chunk to execute before the next one is asked for           */
    CHUNK = 64,                  /* steps of a chunk at most                                               */
    LATENCIES = 20,
    AGAIN_MS = 1000,             /* until the next try to connect                                          */
};

typedef struct observation {
    uint8_t outside[SIDE][SIDE][3], wrist[SIDE][SIDE][3];      /* RGB                                      */
    double joints[JOINTS], gripper;
} observation;

typedef struct robot {
    ws_client *client;
    ws_socket *socket;           /* NULL: none                                                             */
    const char *key;             /* a token's key; NULL: none                                              */
    int ready, ticks;            /* 1: the server's metadata came; the control loop has begun              */
    double connect_ms;           /* when to connect again; 0: not                                          */
    double rate, due_ms;         /* steps a second; when the next tick is                                  */
    int steps, executed, held;   /* to execute; so far; ticks without an action                            */
    double chunk[CHUNK][DIMS];
    int rows, next;              /* rows in the chunk; 0: none yet                                         */
    int trained_delay;           /* the longest delay that the checkpoint was trained for; 0: any          */
    msgpack_sbuffer request;
    int asked;                   /* 1: a request is not yet answered                                       */
    int asked_at;                /* `next` at its observation                                              */
    double asked_ms;
    double latencies[LATENCIES]; /* the last ones, ms                                                      */
    int chunks, applied, failed;
} robot;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- the robot's own -------------------------------------------------------------------------------- */

static void observe(observation *o) {
    memset(o->outside, 127, sizeof o->outside);
    memset(o->wrist, 127, sizeof o->wrist);
    memset(o->joints, 0, sizeof o->joints);
    o->gripper = 0;
}

static void execute(const double action[DIMS]) { (void)action; }

/* ---- a request, as openpi-client packs it ------------------------------------------------------------ */

static void put_text(msgpack_packer *p, const char *text) {
    msgpack_pack_str(p, strlen(text));
    msgpack_pack_str_body(p, text, strlen(text));
}

static void put_bytes(msgpack_packer *p, const void *bytes, size_t count) {
    msgpack_pack_bin(p, count);
    msgpack_pack_bin_body(p, bytes, count);
}

/* An array of numpy; `dims` sizes in `shape`. */
static void put_array(msgpack_packer *p, const char *key, const char *dtype, const int *shape, int dims,
                      const void *data, size_t bytes) {
    put_text(p, key);
    msgpack_pack_map(p, 4);
    put_bytes(p, "__ndarray__", 11);
    msgpack_pack_true(p);
    put_bytes(p, "data", 4);
    put_bytes(p, data, bytes);
    put_bytes(p, "dtype", 5);
    put_text(p, dtype);
    put_bytes(p, "shape", 5);
    msgpack_pack_array(p, (size_t)dims);
    for (int i = 0; i < dims; i++) msgpack_pack_int(p, shape[i]);
}

static void pack_request(msgpack_sbuffer *out, const observation *o, int executed, int delay) {
    static const int picture[] = {SIDE, SIDE, 3}, joints[] = {JOINTS}, one[] = {1};
    static const char headroom[WS_HEADROOM];
    msgpack_packer p;
    msgpack_sbuffer_clear(out);
    msgpack_sbuffer_write(out, headroom, sizeof headroom);
    msgpack_packer_init(&p, out, msgpack_sbuffer_write);
    msgpack_pack_map(&p, 6);
    put_array(&p, "observation/exterior_image_1_left", "|u1", picture, 3, o->outside, sizeof o->outside);
    put_array(&p, "observation/wrist_image_left", "|u1", picture, 3, o->wrist, sizeof o->wrist);
    put_array(&p, "observation/joint_position", "<f8", joints, 1, o->joints, sizeof o->joints);
    put_array(&p, "observation/gripper_position", "<f8", one, 1, &o->gripper, sizeof o->gripper);
    put_text(&p, "prompt");
    put_text(&p, "pick up the fork");
    put_text(&p, "openpi/rtc");
    msgpack_pack_map(&p, 2);
    put_text(&p, "executed");
    msgpack_pack_int(&p, executed);
    put_text(&p, "delay");
    msgpack_pack_int(&p, delay);
}

/* The steps that will be executed before the reply is there, as long as the slowest of late. A longer delay
 * than the checkpoint was trained for would be refused. */
static int expected_delay(const robot *r) {
    double slowest = 1000 / r->rate;
    int most = r->trained_delay ? r->trained_delay : r->rows ? r->rows - 1 : 1;
    for (int i = 0; i < LATENCIES; i++) slowest = fmax(slowest, r->latencies[i]);
    int delay = (int)ceil(slowest * r->rate / 1000);
    return delay < most ? delay : most;
}

static void ask(robot *r) {
    static observation now;
    observe(&now);
    pack_request(&r->request, &now, r->next, expected_delay(r));
    r->asked = 1;
    r->asked_at = r->next;
    r->asked_ms = now_ms();
    ws_send(r->socket, (uint8_t *)r->request.data + WS_HEADROOM, r->request.size - WS_HEADROOM);
}

/* ---- a reply ---------------------------------------------------------------------------------------- */

/* The value of a key of a map, which is a str or a bin; NULL: it has none. */
static const msgpack_object *find(const msgpack_object *map, const char *key) {
    if (!map || map->type != MSGPACK_OBJECT_MAP) return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *k = &map->via.map.ptr[i].key;
        int text = k->type == MSGPACK_OBJECT_STR || k->type == MSGPACK_OBJECT_BIN;
        if (text && k->via.bin.size == strlen(key) && !memcmp(k->via.bin.ptr, key, k->via.bin.size))
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}

/* "actions", float64 [rows][DIMS]. Returns the rows, 0 where there is nothing like that. */
static int read_actions(const msgpack_object *reply, double chunk[CHUNK][DIMS]) {
    const msgpack_object *actions = find(reply, "actions"), *data = find(actions, "data");
    const msgpack_object *shape = find(actions, "shape");
    if (!data || data->type != MSGPACK_OBJECT_BIN || !shape || shape->type != MSGPACK_OBJECT_ARRAY) return 0;
    if (shape->via.array.size != 2 || shape->via.array.ptr[1].via.u64 != DIMS) return 0;
    uint64_t rows = shape->via.array.ptr[0].via.u64;
    if (rows > CHUNK || data->via.bin.size != rows * DIMS * sizeof(double)) return 0;
    memcpy(chunk, data->via.bin.ptr, data->via.bin.size);
    return (int)rows;
}

static void stop(robot *r, const char *why) {
    r->failed |= why != NULL;
    if (why) fprintf(stderr, "robot: %s\n", why);
    ws_client_stop(r->client);
}

/* What the server says of itself, before any reply. */
static void take_metadata(robot *r, const uint8_t *bytes, size_t count) {
    msgpack_unpacked about;
    msgpack_unpacked_init(&about);
    if (msgpack_unpack_next(&about, (const char *)bytes, count, NULL) == MSGPACK_UNPACK_SUCCESS) {
        const msgpack_object *most = find(find(&about.data, "openpi_server"), "rtc_max_delay");
        int known = most && most->type == MSGPACK_OBJECT_POSITIVE_INTEGER && most->via.u64 < CHUNK;
        r->trained_delay = known ? (int)most->via.u64 : 0;
    }
    msgpack_unpacked_destroy(&about);
}

static void take_reply(robot *r, const uint8_t *bytes, size_t count) {
    msgpack_unpacked reply;
    msgpack_unpacked_init(&reply);
    int good = msgpack_unpack_next(&reply, (const char *)bytes, count, NULL) == MSGPACK_UNPACK_SUCCESS;
    r->rows = good ? read_actions(&reply.data, r->chunk) : 0;
    const msgpack_object *applied = find(find(&reply.data, "rtc"), "applied");
    if (r->rows) {
        r->latencies[r->chunks++ % LATENCIES] = now_ms() - r->asked_ms;
        r->applied += applied && applied->type == MSGPACK_OBJECT_BOOLEAN && applied->via.boolean;
        r->next -= r->asked_at;  /* row 0 of the new chunk is the step of the observation                  */
        r->asked = 0;
    } else {
        stop(r, "the reply has no actions of this robot");
    }
    msgpack_unpacked_destroy(&reply);
}

/* ---- the loop's events ------------------------------------------------------------------------------ */

static void on_opened(void *user, ws_socket *socket) {
    robot *r = user;
    r->socket = socket;
}

/* The first message has the server's metadata; then the control loop begins. */
static void on_received(void *user, const uint8_t *bytes, size_t count, int text) {
    robot *r = user;
    if (text) {
        fprintf(stderr, "robot: the server says: %.*s\n", (int)count, (const char *)bytes);
        stop(r, "the request was refused");
    } else if (r->asked) {
        take_reply(r, bytes, count);
    } else {
        take_metadata(r, bytes, count);
        r->ready = 1;
        if (r->ticks) return;
        r->ticks = 1;
        r->due_ms = now_ms();
        ws_client_after(r->client, 0);
    }
}

static void on_sent(void *user) { (void)user; }

static void on_closed(void *user, const char *why) {
    robot *r = user;
    if (r->executed == r->steps) return;
    if (!r->ticks) {             /* there was no server from the beginning                                 */
        stop(r, why);
        return;
    }
    if (r->ready) fprintf(stderr, "robot: %s; connects again\n", why);
    r->socket = NULL;
    r->ready = r->asked = 0;
    r->connect_ms = now_ms() + AGAIN_MS;
}

static void connect_again(robot *r) {
    if (!(r->connect_ms > 0) || now_ms() < r->connect_ms) return;
    r->connect_ms = 0;
    if (!ws_connect(r->client, r->key, r)) stop(r, "no memory to connect again");
}

/* A step of the robot. */
static void on_tick(void *user) {
    robot *r = user;
    int due = !r->rows || r->next >= (EVERY < r->rows ? EVERY : r->rows);
    connect_again(r);
    if (r->ready && !r->asked && due) ask(r);
    if (r->next < r->rows) {
        execute(r->chunk[r->next++]);
        r->executed++;
    } else {
        r->held++;
    }
    if (r->executed == r->steps) {
        stop(r, NULL);
        return;
    }
    r->due_ms = fmax(r->due_ms + 1000 / r->rate, now_ms() - 1000 / r->rate);
    ws_client_after(r->client, r->due_ms - now_ms());
}

int main(int count, char **words) {
    static const ws_events events = {on_opened, on_received, on_sent, on_closed, on_tick};
    static robot r;
    ws_address address;
    char why[WS_SENTENCE];
    if (count != 4 || !ws_address_read(words[1], &address) || (r.rate = atof(words[2])) < 1 ||
        (r.steps = atoi(words[3])) < 1) {
        fprintf(stderr, "usage: robot ws://HOST:PORT RATE STEPS\n");
        return 2;
    }
    msgpack_sbuffer_init(&r.request);
    r.client = ws_client_open(&events, &address, &r, why);
    r.key = getenv("OPENPI_KEY");
    if (!r.client || !ws_connect(r.client, r.key, &r)) {
        fprintf(stderr, "robot: %s\n", why);
        return 1;
    }
    ws_client_run(r.client);
    printf("%d steps, %d held, %d chunks, %d follow on from the one before\n", r.executed, r.held, r.chunks,
           r.applied);
    ws_client_close(r.client);
    msgpack_sbuffer_destroy(&r.request);
    return r.failed;
}
